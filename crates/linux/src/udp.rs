//! A UDP socket with segmentation offload (`UDP_SEGMENT`) for sending and coalescing (`UDP_GRO`)
//! for receiving.
//!
//! `flanneld::udp` is the only caller. Both offloads are requested when the socket is created. If a
//! route's device does not support segmentation, the first send fails; then this and all later
//! sends go out datagram by datagram.

mod inbox;

use std::io::{self, IoSlice};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

pub use inbox::{Arrival, Inbox};

/// A bound socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    /// False once the kernel has refused segmentation.
    segments: AtomicBool,
    coalesces: bool,
}

/// Whether several sockets of this process share a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortSharing {
    /// The only socket.
    Alone,
    /// The first socket: bound exclusively, so that a port in use is detected.
    First,
    /// A further socket of the same port.
    Further,
}

/// Datagrams of equal size to be sent with one call.
#[derive(Debug, Clone, Copy)]
pub struct DatagramBatch<'a> {
    /// The bytes.
    pub pieces: &'a [IoSlice<'a>],
    /// How many pieces make one datagram.
    pub pieces_each: usize,
    /// Size of a datagram; the last may be smaller.
    pub datagram_bytes: u16,
}

/// The socket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("open UDP socket {address}: {step}: {source}")]
pub struct UdpSocketError {
    /// The address to bind.
    pub address: SocketAddrV4,
    /// The step that failed.
    pub step: &'static str,
    pub source: io::Error,
}

/// Limit of datagrams per call: `UDP_MAX_SEGMENTS` of kernels before 6.9.
pub const GSO_MAX_DATAGRAMS: usize = 64;
/// Limit of bytes per call: the largest UDP payload of an IPv4 packet.
pub const GSO_MAX_BYTES: usize = 65_507;

/// Size of receive and send buffer: about a hundred coalesced packets of 64 KiB, as the kernel
/// counts.
const BUFFER_BYTES: usize = 8 << 20;
/// Room for one control message of 2 or 4 bytes: `CMSG_SPACE(4)`.
const CONTROL_BYTES: usize = 24;

/// Aligned like `struct cmsghdr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

// === impl UdpSocket ===

impl UdpSocket {
    /// Binds a socket in the calling thread's network namespace. It never sends fragments, and its
    /// calls have no deadline.
    pub fn bind(address: SocketAddrV4, port: PortSharing) -> Result<Self, UdpSocketError> {
        let failed =
            |step| move |source: rustix::io::Errno| UdpSocketError { address, step, source: source.into() };
        let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(failed("socket"))?;
        if port == PortSharing::Further {
            sockopt::set_socket_reuseport(&fd, true).map_err(failed("SO_REUSEPORT"))?;
        }
        rustix::net::bind(&fd, &address).map_err(failed("bind"))?;
        if port == PortSharing::First {
            sockopt::set_socket_reuseport(&fd, true).map_err(failed("SO_REUSEPORT"))?;
        }
        let whole = sockopt::Ipv4PathMtuDiscovery::DO;
        sockopt::set_ip_mtu_discover(&fd, whole).map_err(failed("IP_MTU_DISCOVER"))?;
        grow_buffers(&fd);
        // 0 means no segmentation, the default; the call fails only on a kernel without this
        // option.
        let segments = set_udp_option(&fd, libc::UDP_SEGMENT, 0).is_ok();
        let coalesces = set_udp_option(&fd, libc::UDP_GRO, 1).is_ok();
        Ok(Self { fd, segments: AtomicBool::new(segments), coalesces })
    }

    /// Whether the kernel segments what is sent.
    pub fn segments(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    /// Whether the kernel coalesces what arrives.
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Switches the coalescing of what arrives, if the kernel has it. What has arrived already stays as it is.
    pub fn coalesce(&self, on: bool) {
        if self.coalesces {
            // A socket that coalesces, or does not, works as well.
            let _ = set_udp_option(&self.fd, libc::UDP_GRO, on.into());
        }
    }

    /// Disables both offloads.
    pub fn plain(&mut self) {
        self.segments.store(false, Ordering::Relaxed);
        self.coalesces = set_udp_option(&self.fd, libc::UDP_GRO, 0).is_err() && self.coalesces;
    }

    /// Sends all datagrams; blocks while the send buffer is full.
    pub fn send(&self, to: SocketAddrV4, batch: DatagramBatch<'_>) -> io::Result<()> {
        if batch.pieces.len() <= batch.pieces_each {
            return self.send_message(to, batch.pieces, None);
        }
        if self.segments() {
            match self.send_message(to, batch.pieces, Some(batch.datagram_bytes)) {
                Err(error) if is_refusal(&error) => {}
                other => return other,
            }
        }
        self.send_singly(to, batch)
    }

    /// Sends datagram by datagram. If that succeeds after the kernel refused to segment,
    /// segmentation is disabled.
    fn send_singly(&self, to: SocketAddrV4, batch: DatagramBatch<'_>) -> io::Result<()> {
        for datagram in batch.pieces.chunks(batch.pieces_each.max(1)) {
            self.send_message(to, datagram, None)?;
        }
        self.segments.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn send_message(&self, to: SocketAddrV4, pieces: &[IoSlice<'_>], segment: Option<u16>) -> io::Result<()> {
        let mut address = socket_address(to);
        let name: *mut libc::sockaddr_in = &mut address;
        let mut control = Control::segment(segment.unwrap_or(0));
        // SAFETY: every field of struct msghdr may be zero.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = name.cast();
        message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // IoSlice is guaranteed to be struct iovec in layout; sendmsg does not write through it.
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        message.msg_iovlen = pieces.len() as _;
        if segment.is_some() {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_BYTES as _;
        }
        loop {
            // SAFETY: message points to an address, pieces and control bytes that live until the
            // call returns, each with its length.
            let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// === impl Control ===

impl Control {
    const EMPTY: Self = Self([0; CONTROL_BYTES]);

    /// A control message with a `UDP_SEGMENT` of two bytes; the padding after it does not count.
    fn segment(bytes: u16) -> Self {
        let mut control = Self::EMPTY;
        let header = size_of::<libc::cmsghdr>();
        let len = header + size_of::<u16>();
        control.0[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        control.0[header - 8..header - 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
        control.0[header - 4..header].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
        control.0[header..len].copy_from_slice(&bytes.to_ne_bytes());
        control
    }

    /// The `UDP_GRO` of an arrival, if the kernel has written one over the zeros.
    fn joined(&self) -> Option<u16> {
        let header = size_of::<libc::cmsghdr>();
        let number = |at: usize| self.0.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let is_it = number(header - 8)? == libc::SOL_UDP && number(header - 4)? == libc::UDP_GRO;
        is_it.then(|| number(header)).flatten().and_then(|bytes| u16::try_from(bytes).ok())
    }
}

/// Errors of `sendmsg` if it cannot segment for this route: no support in kernel or device, or no
/// checksum offload.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP))
}

/// As large as allowed; smaller buffers only make bursts slower.
fn grow_buffers(fd: &OwnedFd) {
    let _ = sockopt::set_socket_recv_buffer_size_force(fd, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, BUFFER_BYTES));
    let _ = sockopt::set_socket_send_buffer_size_force(fd, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, BUFFER_BYTES));
}

/// Sets options of UDP that `rustix` lacks.
fn set_udp_option(fd: &OwnedFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let pointer: *const libc::c_int = &value;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: pointer is valid for reads of len bytes.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_UDP, option, pointer.cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn socket_address(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn socket() -> (UdpSocket, SocketAddrV4) {
        let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), PortSharing::Alone).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        (socket, address)
    }

    /// Sends datagrams of the given lengths, in two pieces each, with one call; returns what `to`
    /// receives.
    fn deliver(from: &UdpSocket, to: &UdpSocket, address: SocketAddrV4, lens: &[usize]) -> Vec<Vec<u8>> {
        let sent: Vec<Vec<u8>> = lens.iter().enumerate().map(|(n, len)| vec![n as u8; *len]).collect();
        let pieces: Vec<IoSlice<'_>> =
            sent.iter().flat_map(|bytes| [IoSlice::new(&bytes[..3]), IoSlice::new(&bytes[3..])]).collect();
        let datagram_bytes = u16::try_from(lens[0]).unwrap();
        from.send(address, DatagramBatch { pieces: &pieces, pieces_each: 2, datagram_bytes }).unwrap();
        let mut inbox = Inbox::new(4);
        let mut received: Vec<Vec<u8>> = Vec::new();
        while received.len() < lens.len() {
            to.receive(&mut inbox).unwrap();
            for arrival in inbox.arrivals() {
                let each = usize::from(arrival.datagram_bytes).max(1);
                received.extend(arrival.bytes.chunks(each).map(<[u8]>::to_vec));
            }
        }
        assert_eq!(received.len(), lens.len());
        assert!(received.iter().zip(&sent).all(|(a, b)| a == b));
        received
    }

    #[test]
    fn the_datagrams_of_a_batch_arrive_in_order_and_whole() {
        let ((from, _), (to, address)) = (socket(), socket());
        let received = deliver(&from, &to, address, &[1200, 1200, 1200, 700]);
        assert_eq!(received.last().unwrap().len(), 700);
        deliver(&from, &to, address, &[50]);
        deliver(&from, &to, address, &[1000; GSO_MAX_DATAGRAMS]);
    }

    #[test]
    fn datagrams_arrive_without_either_offload() {
        let ((mut from, _), (mut to, address)) = (socket(), socket());
        from.plain();
        to.plain();
        assert!(!from.segments() && !to.coalesces());
        deliver(&from, &to, address, &[1200, 1200, 1200, 700]);
    }

    #[test]
    fn after_a_refused_batch_all_datagrams_are_sent_singly() {
        let ((from, _), (to, address)) = (socket(), socket());
        // More than any kernel's maximum, which has been 128 since 6.9.
        deliver(&from, &to, address, &[20; 200]);
        assert!(!from.segments());
        deliver(&from, &to, address, &[20; 3]);
    }

    #[test]
    fn a_port_in_use_is_refused_and_further_sockets_share_ours() {
        let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let first = UdpSocket::bind(local, PortSharing::First).unwrap();
        let taken: SocketAddrV4 = rustix::net::getsockname(&first).unwrap().try_into().unwrap();
        let second = UdpSocket::bind(taken, PortSharing::Further).unwrap();
        for port in [PortSharing::Alone, PortSharing::First] {
            let error = UdpSocket::bind(taken, port).unwrap_err();
            assert_eq!(error.source.raw_os_error(), Some(libc::EADDRINUSE));
            assert!(error.to_string().starts_with(&format!("open UDP socket {taken}: bind: ")), "{error}");
        }
        drop(second);
    }

    #[test]
    fn a_socket_that_is_shut_waits_no_longer() {
        let (socket, _) = socket();
        let bytes = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut inbox = Inbox::new(2);
                socket.wait(&mut inbox, 2).unwrap();
                inbox.arrivals().map(|arrival| arrival.bytes.len()).sum::<usize>()
            });
            socket.shut();
            waits.join().unwrap()
        });
        assert_eq!(bytes, 0);
    }

    #[test]
    fn receive_does_not_block_on_an_empty_socket() {
        let (socket, _) = socket();
        let mut inbox = Inbox::new(2);
        socket.receive(&mut inbox).unwrap();
        assert_eq!(inbox.arrivals().count(), 0);
    }
}
