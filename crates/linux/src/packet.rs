//! Packet sockets: every packet that an interface sends or receives, as `packet(7)` shows it.
//!
//! `russet capture` is the only caller. The kernel queues packets up to the socket's receive buffer, and counts those
//! that do not fit. It needs CAP_NET_RAW.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// A socket that is bound to one interface, and does not block.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    hardware: u16,
}

/// A packet of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When the kernel saw it, since 1970.
    pub at: Duration,
    pub direction: Direction,
    /// How many bytes of the buffer it has.
    pub captured_bytes: usize,
    /// How long it was.
    pub whole_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The interface received it.
    Inbound,
    /// This machine sent it through the interface.
    Outbound,
}

/// What the kernel counted for a socket since the last question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketStatistics {
    /// All packets, those without room among them.
    pub seen: u64,
    /// Packets without room in the receive buffer.
    pub dropped: u64,
}

/// `linux/if_packet.h`: `struct tpacket_stats`.
#[repr(C)]
#[derive(Default)]
struct TpacketStats {
    packets: u32,
    drops: u32,
}

/// Ancillary data, aligned as the kernel wants it: one timestamp, and room for what may come with it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 128;
/// Some thousand full packets: a burst while the reader writes.
const BUFFER_BYTES: libc::c_int = 16 * 1024 * 1024;
/// `linux/if_packet.h`.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_OUTGOING: u8 = 4;

// === impl PacketSocket ===

impl PacketSocket {
    /// A socket in the calling thread's network namespace for the interface with this index. EPERM without CAP_NET_RAW,
    /// ENODEV if there is no such interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Protocol 0: nothing is queued before the socket is bound to its interface.
        // SAFETY: socket(2) takes no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: fd is a new descriptor, which nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut socket = Self { fd, hardware: 0 };
        socket.set(libc::SO_TIMESTAMPNS, 1)?;
        // The limit of net.core.rmem_max does not hold for root; a smaller buffer only drops packets earlier.
        if socket.set(libc::SO_RCVBUFFORCE, BUFFER_BYTES).is_err() {
            let _ = socket.set(libc::SO_RCVBUF, BUFFER_BYTES);
        }
        let mut address = empty_address();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let pointer: *mut libc::sockaddr_ll = &mut address;
        // SAFETY: pointer is valid for reads of len bytes, and names a link-layer address.
        check(unsafe { libc::bind(socket.fd.as_raw_fd(), pointer.cast(), len) })?;
        // SAFETY: pointer is valid for writes of len bytes, and len for a write.
        check(unsafe { libc::getsockname(socket.fd.as_raw_fd(), pointer.cast(), &mut len) })?;
        socket.hardware = address.sll_hatype;
        Ok(socket)
    }

    /// The interface's type: `ARPHRD_ETHER` and so on (`linux/if_arp.h`).
    pub fn hardware(&self) -> u16 {
        self.hardware
    }

    /// The next packet, of which as much as fits is in the buffer; None if there is none now. ENETDOWN once after the
    /// interface went down or was deleted.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Packet>> {
        let mut address = empty_address();
        let mut control = Control([0; CONTROL_BYTES]);
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all bytes zero is a value of msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let received = loop {
            // SAFETY: message names memory that is valid for writes of the lengths that it names, for the whole call.
            let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, libc::MSG_TRUNC) };
            match usize::try_from(received) {
                Ok(received) => break received,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        };
        let direction =
            if address.sll_pkttype == PACKET_OUTGOING { Direction::Outbound } else { Direction::Inbound };
        let captured_bytes = received.min(buffer.len());
        Ok(Some(Packet { at: timestamp(&message), direction, captured_bytes, whole_bytes: received }))
    }

    /// What was counted since the socket was opened, or since the last call.
    pub fn take_statistics(&self) -> io::Result<PacketStatistics> {
        let mut stats = TpacketStats::default();
        let mut len = size_of::<TpacketStats>() as libc::socklen_t;
        let pointer: *mut TpacketStats = &mut stats;
        // SAFETY: pointer is valid for writes of len bytes, and len for a write.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                pointer.cast(),
                &mut len,
            )
        })?;
        Ok(PacketStatistics { seen: stats.packets.into(), dropped: stats.drops.into() })
    }

    /// Sets a number among the socket's own options.
    fn set(&self, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let (pointer, len): (*const libc::c_int, _) = (&value, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: pointer is valid for reads of len bytes.
        check(unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, option, pointer.cast(), len)
        })?;
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

fn empty_address() -> libc::sockaddr_ll {
    // SAFETY: all bytes zero is a value of sockaddr_ll.
    unsafe { std::mem::zeroed() }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The kernel's timestamp of a received message; without one the time is now.
fn timestamp(message: &libc::msghdr) -> Duration {
    // SAFETY: message was filled by recvmsg(2), and its control data is still there.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: header is within the control data and aligned, as CMSG_FIRSTHDR and CMSG_NXTHDR return it.
        let (level, kind, len) = unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        // SAFETY: CMSG_LEN only computes.
        let wanted = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as u32) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPNS && len >= wanted as _ {
            // SAFETY: the length says that a timespec is there; it need not be aligned.
            let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            return Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0));
        }
        // SAFETY: header is within the control data of message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::netns::NetNs;

    /// A namespace whose loopback is up.
    fn namespace() -> NetNs {
        let netns = NetNs::create_unnamed().unwrap();
        let up = || std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(netns.with(up).unwrap().success());
        netns
    }

    #[test]
    #[ignore = "root: packet sockets in a new network namespace; tool: ip"]
    fn packets_come_with_time_direction_and_length_and_those_without_room_are_counted() {
        let netns = namespace();
        let (socket, sender) =
            netns.with(|| (PacketSocket::open(1).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap())).unwrap();
        assert_eq!(socket.hardware(), libc::ARPHRD_LOOPBACK);
        let mut buffer = [0; 64];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        sender.send_to(&[7; 100], sender.local_addr().unwrap()).unwrap();
        // Sent and received through the loopback: both are there when the call has returned.
        let first = socket.receive(&mut buffer).unwrap().unwrap();
        let second = socket.receive(&mut buffer).unwrap().unwrap();
        assert_eq!((first.direction, second.direction), (Direction::Outbound, Direction::Inbound));
        assert_eq!((first.captured_bytes, first.whole_bytes), (64, 14 + 20 + 8 + 100));
        assert_eq!((&buffer[12..14], &buffer[42..64]), (&[8, 0][..], &[7; 22][..]));
        assert!(
            first.at >= before && first.at < before + Duration::from_secs(60),
            "{:?} {before:?}",
            first.at
        );
        assert_eq!(socket.take_statistics().unwrap(), PacketStatistics { seen: 2, dropped: 0 });

        let large = [0; 60_000];
        for _ in 0..1000 {
            sender.send_to(&large, sender.local_addr().unwrap()).unwrap();
        }
        let statistics = socket.take_statistics().unwrap();
        assert!(statistics.seen == 2000 && (1..2000).contains(&statistics.dropped), "{statistics:?}");
        let mut queued = 0;
        while socket.receive(&mut buffer).unwrap().is_some() {
            queued += 1;
        }
        assert_eq!(queued, statistics.seen - statistics.dropped);
        let error = netns.with(|| PacketSocket::open(99).unwrap_err()).unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
