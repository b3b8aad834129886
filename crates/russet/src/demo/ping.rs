//! ICMP echo from inside a namespace, so that the demo needs no `ping` program.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{ipproto, recvfrom, sendto, socket_with};

use russet_addr::Family;

/// How long one echo may take; the first packet may wait for neighbour resolution on the underlay.
const REPLY_DEADLINE: Duration = Duration::from_secs(1);
/// Echoes sent before a target counts as unreachable.
pub const TRIES: u16 = 3;

/// A raw ICMP socket; it stays in the namespace in which it was opened.
pub struct Pinger {
    socket: OwnedFd,
    family: Family,
    ident: u16,
    sequence: u16,
}

// === impl Pinger ===

impl Pinger {
    /// Opens a socket in the calling thread's network namespace. `ident` distinguishes this
    /// pinger's replies from others'.
    pub fn open(family: Family, ident: u16) -> io::Result<Self> {
        let (domain, protocol) = match family {
            Family::V4 => (AddressFamily::INET, ipproto::ICMP),
            Family::V6 => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let socket = socket_with(domain, SocketType::RAW, SocketFlags::CLOEXEC, Some::<Protocol>(protocol))?;
        Ok(Self { socket, family, ident, sequence: 0 })
    }

    /// The round-trip time to `target`, or why there is none after [`TRIES`] echoes.
    pub fn ping(&mut self, target: IpAddr) -> io::Result<Duration> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..TRIES {
            match self.echo(target) {
                Ok(elapsed) => return Ok(elapsed),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn echo(&mut self, target: IpAddr) -> io::Result<Duration> {
        let sent = Instant::now();
        let sequence = self.request_from(target)?;
        while let Some(reply) = self.reply(sent + REPLY_DEADLINE)? {
            if reply == (target, sequence) {
                return Ok(sent.elapsed());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Sends one echo request and returns its sequence number.
    pub fn request_from(&mut self, target: IpAddr) -> io::Result<u16> {
        self.sequence = self.sequence.wrapping_add(1);
        sendto(&self.socket, &self.request(), SendFlags::empty(), &SocketAddr::new(target, 0))?;
        Ok(self.sequence)
    }

    /// The next echo reply to this pinger, with its source and sequence number; None if there is none
    /// until `end`. What has arrived already is returned even after that.
    pub fn reply(&self, end: Instant) -> io::Result<Option<(IpAddr, u16)>> {
        let mut buffer = [0; 1500];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let flags = if left.is_zero() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            if !left.is_zero() {
                set_socket_timeout(&self.socket, Timeout::Recv, Some(left))?;
            }
            let (length, _, from) = match recvfrom(&self.socket, &mut buffer, flags) {
                Ok(got) => got,
                Err(rustix::io::Errno::AGAIN) if left.is_zero() => return Ok(None),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let from = from.and_then(|from| SocketAddr::try_from(from).ok()).map(|from| from.ip());
            if let (Some(from), Some(sequence)) = (from, self.answered(&buffer[..length])) {
                return Ok(Some((from, sequence)));
            }
        }
    }

    /// RFC 792 and RFC 4443: type, code, checksum, identifier, sequence. The kernel computes
    /// ICMPv6's checksum itself.
    fn request(&self) -> [u8; 16] {
        let mut message = [0; 16];
        message[0] = match self.family {
            Family::V4 => 8,
            Family::V6 => 128,
        };
        message[4..6].copy_from_slice(&self.ident.to_be_bytes());
        message[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        message[8..16].copy_from_slice(b"russet\r\n");
        if self.family == Family::V4 {
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        message
    }

    /// The sequence number of the request that a packet answers, if it is one of this pinger's.
    fn answered(&self, packet: &[u8]) -> Option<u16> {
        let (kind, message) = match self.family {
            // A raw IPv4 socket includes the IP header.
            Family::V4 => {
                let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
                (0, packet.get(header..).unwrap_or_default())
            }
            Family::V6 => (129, packet),
        };
        let is_own = message.len() >= 8 && message[0] == kind && message[4..6] == self.ident.to_be_bytes();
        is_own.then(|| u16::from_be_bytes([message[6], message[7]]))
    }
}

/// The Internet checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_message_with_its_checksum_is_zero() {
        let mut message = *b"\x08\x00\x00\x00\x12\x34\x00\x01russet\r\n";
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(checksum(&message), 0);
    }
}
