//! ICMP and ICMPv6 echo: requests to an address, and the answers and errors that belong to them.
//!
//! The agent's probes of other nodes are the only caller. A raw socket is used because the kernel
//! refuses ping sockets to everybody unless `net.ipv4.ping_group_range` allows them. It needs
//! CAP_NET_RAW.
//!
//! Everything that arrives is untrusted: a message counts only if it has the identifier, the
//! sequence number and the random token of a request, which the caller compares, and it is read into
//! a buffer of fixed size. The kernel drops messages with another identifier before they are queued, so that answers
//! that any program or pod can send to this machine do not displace those that are waited for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use russet_addr::Family;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto, sockopt,
};

/// A socket that is bound to one address of this machine, and does not block.
#[derive(Debug)]
pub struct EchoSocket {
    fd: OwnedFd,
    family: Family,
}

/// What distinguishes a request from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoId {
    /// The same in all requests of a process.
    pub identifier: u16,
    pub sequence: u16,
    /// Random: only a machine that received the request can answer it.
    pub token: [u8; TOKEN_BYTES],
}

/// A message that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub from: IpAddr,
    /// None if it is neither an answer nor an error about a request of this format.
    pub answer: Option<(EchoId, Answer)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The echo, whose packet has this size with its IP header.
    Echo { packet_bytes: usize },
    /// An error of a machine on the path.
    Error(PathError),
}

/// Why a machine on the path did not forward a request, or did not deliver it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// The packet is larger than the next link carries. 0: the machine names no size.
    TooBig { mtu_bytes: u32 },
    /// A firewall refuses it.
    Prohibited,
    /// There is no route, or the machine does not answer its neighbours.
    Unreachable,
}

/// Bytes of a token: beyond guessing.
pub const TOKEN_BYTES: usize = 16;
/// Bytes of the smallest request, with its IP header.
pub const fn packet_min_bytes(family: Family) -> usize {
    ip_header_bytes(family) + ECHO_BYTES
}

/// Type, code, checksum, identifier, sequence number, token.
const ECHO_BYTES: usize = HEADER_BYTES + TOKEN_BYTES;
/// An ICMP header.
const HEADER_BYTES: usize = 8;
/// What is read of a message: the largest IPv4 header, an ICMP header, and the same of the packet
/// that an error is about. The rest of a large echo is padding.
const READ_BYTES: usize = 256;
/// The receive buffer: many answers of the usual size, and a bound for a flood.
const BUFFER_BYTES: usize = 64 * 1024;

const ICMP_ECHO_REPLY: u8 = 0;
const ICMP_UNREACHABLE: u8 = 3;
const ICMP_ECHO_REQUEST: u8 = 8;
const ICMP6_UNREACHABLE: u8 = 1;
const ICMP6_TOO_BIG: u8 = 2;
const ICMP6_ECHO_REQUEST: u8 = 128;
const ICMP6_ECHO_REPLY: u8 = 129;

const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ICMPV6: u8 = 58;

/// `linux/icmp.h`.
const ICMP_FILTER: libc::c_int = 1;
/// `linux/icmpv6.h`: `ICMPV6_FILTER`.
const ICMPV6_FILTER: libc::c_int = 1;

// === impl EchoSocket ===

impl EchoSocket {
    /// A socket in the calling thread's network namespace that sends from `source`, and receives what is sent to it
    /// about requests with this identifier. EPERM without CAP_NET_RAW, EADDRNOTAVAIL if the machine does not have the
    /// address.
    pub fn bind(source: IpAddr, identifier: u16) -> io::Result<Self> {
        let (domain, protocol) = match source {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(domain, SocketType::RAW, flags, Some(protocol))?;
        let socket = Self { fd, family: Family::of(source) };
        // Before the address, so that nothing else is ever queued.
        socket.filter()?;
        socket.attach(&identifier_filter(socket.family, identifier))?;
        rustix::net::bind(&socket.fd, &SocketAddr::new(source, 0))?;
        // A whole packet or none, whatever the kernel believes to know of the path's MTU.
        match socket.family {
            Family::V4 => sockopt::set_ip_mtu_discover(&socket.fd, sockopt::Ipv4PathMtuDiscovery::PROBE)?,
            Family::V6 => sockopt::set_ipv6_mtu_discover(&socket.fd, sockopt::Ipv6PathMtuDiscovery::PROBE)?,
        }
        // A smaller buffer than asked for only loses answers earlier in a flood.
        let _ = sockopt::set_socket_recv_buffer_size(&socket.fd, BUFFER_BYTES);
        Ok(socket)
    }

    /// Sends one request in a packet of this size, with its IP header; at least [`packet_min_bytes`].
    pub fn send(&self, to: IpAddr, id: &EchoId, packet_bytes: usize) -> io::Result<()> {
        let request = request(self.family, id, packet_bytes);
        sendto(&self.fd, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &SocketAddr::new(to, 0))?;
        Ok(())
    }

    /// The next message; None if there is none now.
    pub fn receive(&self) -> io::Result<Option<Arrival>> {
        let mut buffer = [0_u8; READ_BYTES];
        loop {
            match recvfrom(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((read, whole, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    let Some(from) = from else { continue };
                    let bytes = buffer.get(..read).unwrap_or_default();
                    return Ok(Some(Arrival { from: from.ip(), answer: answer(self.family, bytes, whole) }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lets only answers and errors through.
    fn filter(&self) -> io::Result<()> {
        match self.family {
            Family::V4 => {
                let blocked = !(1_u32 << ICMP_ECHO_REPLY | 1 << ICMP_UNREACHABLE);
                self.set(libc::SOL_RAW, ICMP_FILTER, &blocked.to_ne_bytes())
            }
            Family::V6 => {
                let mut blocked = [u32::MAX; 8];
                for kind in [ICMP6_ECHO_REPLY, ICMP6_UNREACHABLE, ICMP6_TOO_BIG] {
                    blocked[usize::from(kind >> 5)] &= !(1 << (kind & 31));
                }
                let bytes: Vec<u8> = blocked.iter().flat_map(|word| word.to_ne_bytes()).collect();
                self.set(libc::SOL_ICMPV6, ICMPV6_FILTER, &bytes)
            }
        }
    }

    /// Has the kernel queue only what the program accepts.
    fn attach(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let len = libc::c_ushort::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
        let (pointer, size): (*const libc::sock_fprog, _) = (&program, size_of::<libc::sock_fprog>());
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        // SAFETY: pointer is valid for reads of size bytes, and names len instructions, which the kernel copies.
        match unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, option, pointer.cast(), size as libc::socklen_t)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets an option that `rustix` lacks.
    fn set(&self, level: libc::c_int, option: libc::c_int, value: &[u8]) -> io::Result<()> {
        let len = value.len() as libc::socklen_t;
        // SAFETY: value is valid for reads of len bytes.
        match unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, value.as_ptr().cast(), len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for EchoSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A classic BPF program that accepts answers with this identifier, and errors about requests that have it. In IPv4 the
/// packet begins with its IP header, in IPv6 behind it; the packet that an error is about has no IP options, because
/// requests have none.
fn identifier_filter(family: Family, identifier: u16) -> [libc::sock_filter; 9] {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let ret = |k| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let half = |k| instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, k);
    let equal = |k, jt, jf| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
    let (start, reply) = match family {
        Family::V4 => (instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0), ICMP_ECHO_REPLY),
        Family::V6 => (instruction(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 0, 0, 0), ICMP6_ECHO_REPLY),
    };
    let about = u32::try_from(HEADER_BYTES + ip_header_bytes(family)).unwrap_or(0);
    [
        start,
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, 0, 0, 0),
        equal(reply.into(), 0, 2),
        half(4),
        instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        half(about + 4),
        equal(identifier.into(), 0, 1),
        ret(u32::MAX),
        ret(0),
    ]
}

const fn ip_header_bytes(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// The bytes behind the IP header. The kernel computes the checksum of ICMPv6.
fn request(family: Family, id: &EchoId, packet_bytes: usize) -> Vec<u8> {
    let len = packet_bytes.saturating_sub(ip_header_bytes(family)).max(ECHO_BYTES);
    let mut bytes = vec![0; len];
    bytes[0] = match family {
        Family::V4 => ICMP_ECHO_REQUEST,
        Family::V6 => ICMP6_ECHO_REQUEST,
    };
    bytes[4..6].copy_from_slice(&id.identifier.to_be_bytes());
    bytes[6..8].copy_from_slice(&id.sequence.to_be_bytes());
    bytes[HEADER_BYTES..ECHO_BYTES].copy_from_slice(&id.token);
    if family == Family::V4 {
        let sum = checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) as u16 + (folded >> 16) as u16)
}

/// What a received message answers; `whole` is its length before it was cut to the buffer.
fn answer(family: Family, bytes: &[u8], whole: usize) -> Option<(EchoId, Answer)> {
    let (message, packet_bytes) = match family {
        // The kernel passes the IPv4 header on, and of IPv6 none.
        Family::V4 => (behind_header(family, bytes)?, whole),
        Family::V6 => (bytes, whole.saturating_add(ip_header_bytes(family))),
    };
    let (kind, code) = (*message.first()?, *message.get(1)?);
    match (family, kind) {
        (Family::V4, ICMP_ECHO_REPLY) | (Family::V6, ICMP6_ECHO_REPLY) => {
            Some((echo_id(message)?, Answer::Echo { packet_bytes }))
        }
        (Family::V4, ICMP_UNREACHABLE) | (Family::V6, ICMP6_UNREACHABLE | ICMP6_TOO_BIG) => {
            let about = behind_header(family, message.get(HEADER_BYTES..)?)?;
            let asked = match family {
                Family::V4 => ICMP_ECHO_REQUEST,
                Family::V6 => ICMP6_ECHO_REQUEST,
            };
            let id = (about.first() == Some(&asked)).then(|| echo_id(about))??;
            Some((id, Answer::Error(path_error(family, kind, code, message)?)))
        }
        _ => None,
    }
}

/// The ICMP message behind an IP header.
fn behind_header(family: Family, packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let (len, protocol) = match family {
        Family::V4 if first >> 4 == 4 => (usize::from(first & 15) * 4, *packet.get(9)?),
        Family::V6 if first >> 4 == 6 => (ip_header_bytes(family), *packet.get(6)?),
        _ => return None,
    };
    let expected = match family {
        Family::V4 => IPPROTO_ICMP,
        Family::V6 => IPPROTO_ICMPV6,
    };
    (protocol == expected && len >= 20).then(|| packet.get(len..)).flatten()
}

fn echo_id(message: &[u8]) -> Option<EchoId> {
    let number = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let token = message.get(HEADER_BYTES..ECHO_BYTES)?.try_into().ok()?;
    Some(EchoId { identifier: number(4)?, sequence: number(6)?, token })
}

/// RFC 792, RFC 1191 section 4, RFC 4443 sections 3.1 and 3.2.
fn path_error(family: Family, kind: u8, code: u8, message: &[u8]) -> Option<PathError> {
    let word = |at: usize| Some(u32::from_be_bytes(message.get(at..at + 4)?.try_into().ok()?));
    Some(match (family, kind, code) {
        (Family::V4, _, 4) => PathError::TooBig { mtu_bytes: word(4)? & 0xffff },
        (Family::V6, ICMP6_TOO_BIG, _) => PathError::TooBig { mtu_bytes: word(4)? },
        (Family::V4, _, 9 | 10 | 13) | (Family::V6, _, 1 | 5) => PathError::Prohibited,
        _ => PathError::Unreachable,
    })
}

#[cfg(test)]
mod tests;
