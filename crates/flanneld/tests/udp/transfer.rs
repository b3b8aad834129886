//! Traffic between pods whose arrival is checked byte by byte.

use std::collections::BTreeSet;
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use russet_linux::NetNs;
use russet_linux::udp::{DatagramBatch, PortSharing, UdpSocket as SegmentingSocket};
use russet_testkit::bound;
use rustix::net::sockopt;

const DEADLINE: Duration = Duration::from_secs(20);
/// Room for every datagram of a test.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Sends `bytes` bytes over TCP from one namespace to an address in another, and compares what arrives.
pub fn tcp(from: &NetNs, to: &NetNs, address: Ipv4Addr, bytes: usize) {
    tcp_by(from, to, address, address, bytes);
}

/// The same where the receiver is reached by another address than its own.
pub fn tcp_by(from: &NetNs, to: &NetNs, address: Ipv4Addr, by: Ipv4Addr, bytes: usize) {
    let pattern: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
    let listener = to.with(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    // Timeout of `accept`, in case the sender fails.
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(DEADLINE)).unwrap();
    let target = (by, listener.local_addr().unwrap().port()).into();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = from.with(|| TcpStream::connect_timeout(&target, DEADLINE)).unwrap().unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(&pattern).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let received = receiver.join().unwrap();
        assert_eq!(received.len(), pattern.len());
        assert!(received == pattern, "bytes differ");
    });
}

/// Sends `sends` times `each` datagrams of `size` bytes with one call each, as a QUIC server does.
/// Returns how many different ones arrive whole.
///
/// Do not call it after [`tcp`]: packets that TCP sent again may still fill the TUN's queue of 500,
/// and what exceeds it is lost.
pub fn udp_segments(
    from: &NetNs,
    to: &NetNs,
    address: Ipv4Addr,
    sends: u32,
    each: u32,
    size: usize,
) -> usize {
    let receiver = to.with(|| bound(|| UdpSocket::bind((address, 4433)))).unwrap();
    sockopt::set_socket_recv_buffer_size_force(&receiver, RECEIVE_BUFFER_BYTES).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let sender = from.with(|| SegmentingSocket::bind(any, PortSharing::Alone)).unwrap().unwrap();
    for send in 0..sends {
        let datagrams: Vec<Vec<u8>> = (0..each).map(|n| datagram(send * each + n, size)).collect();
        let pieces: Vec<IoSlice<'_>> = datagrams.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let batch =
            DatagramBatch { pieces: &pieces, pieces_each: 1, datagram_bytes: u16::try_from(size).unwrap() };
        sender.send(SocketAddrV4::new(address, 4433), batch).unwrap();
    }
    assert!(sender.segments() || each == 1, "the pod's own kernel did not segment");
    let mut arrived = BTreeSet::new();
    let mut buffer = vec![0; 65_536];
    while arrived.len() < (sends * each) as usize {
        let Ok(bytes) = receiver.recv(&mut buffer) else { break };
        let number = u32::from_be_bytes(*buffer.first_chunk().unwrap());
        assert!(buffer[..bytes] == datagram(number, size), "datagram {number}");
        arrived.insert(number);
    }
    arrived.len()
}

fn datagram(number: u32, size: usize) -> Vec<u8> {
    let mut bytes = vec![number as u8; size];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}
