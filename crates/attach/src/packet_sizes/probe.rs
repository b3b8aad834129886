//! Asks the kernel what it does with a packet that is larger than the device takes by which it leaves. A kernel that
//! segments it makes BIG TCP safe whatever the path is. Linux 6.3 to 6.6 have the large sizes, but compare them only
//! where TCP begins, unless the comparison at devices (`gso_features_check`, Linux 6.7) was added to them.
//!
//! The packet passes through two TUN devices in a namespace of its own: it comes from one, is forwarded, and is read
//! from the other.

use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use russet_addr::{IfName, Ipv4Net};
use russet_linux::sysctl::SysctlError;
use russet_linux::tun::{Segments, Tun, TunError, VIRTIO_HEADER_BYTES, VirtioHeader};
use russet_linux::{NetNs, NetNsError, sysctl};
use russet_netlink::{
    Address, Batch, LinkAdd, LinkKind, LinkSet, NetlinkError, PacketSizes, Peer, Route, Socket,
};

/// Why BIG TCP cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Before Linux 6.3.
    #[error("this kernel has no BIG TCP for IPv4, which came with Linux 6.3")]
    Missing,
    /// The sizes that a veth has instead of the wanted ones.
    #[error("this kernel gives a veth other sizes than wanted: {0:?}")]
    Veth(PacketSizes),
    /// It passed on a packet that is too large for the device.
    #[error("this kernel gives a device {0} bytes at once, although the device takes fewer (see Linux 6.7)")]
    TooLarge(usize),
    /// It passed on only so much of a packet.
    #[error(
        "this kernel passes on {0} bytes of a packet of {PAYLOAD_BYTES}, through a device that takes fewer at once"
    )]
    Lost(usize),
    #[error("a TUN device: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// Addresses in and behind the device that the packet comes from, and behind the other.
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const NEAR_NET_BITS: u8 = 24;
/// More than 64 KiB, which every device takes.
const PAYLOAD_BYTES: usize = 100_000;
const SEGMENT_BYTES: u16 = 1400;
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
const HEADERS_BYTES: usize = IP_BYTES + TCP_BYTES;
/// The place of the checksum in TCP's header.
const TCP_CHECKSUM: u16 = 16;
const IPPROTO_TCP: u8 = 6;
/// The kernel needs some microseconds.
const DEADLINE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// Whether packets of this size may be used between pods. It makes a namespace and needs some milliseconds.
pub fn probe(sizes: PacketSizes) -> Result<(), ProbeError> {
    NetNs::create_unnamed()?.run_in_thread(|| {
        veth(sizes)?;
        forward()
    })?
}

/// A veth has to have the sizes that it is created with.
fn veth(sizes: PacketSizes) -> Result<(), ProbeError> {
    let mut socket = Socket::route()?;
    // The kernel would not ask, and before 6.3 not understand.
    if socket.link_by_index(LOOPBACK)?.sizes.gso_ipv4 == 0 {
        return Err(ProbeError::Missing);
    }
    let [one, other] = ["v0", "v1"].map(name);
    let peer = Peer { sizes: Some(sizes), ..Peer::new(other?) };
    let (one, peer_name) = (one?, peer.name.clone());
    let link = LinkAdd { sizes: Some(sizes), ..LinkAdd::new(one.clone(), LinkKind::Veth(peer)) };
    let mut batch = Batch::new();
    batch.add_link(&link);
    socket.execute(&batch).map_err(NetlinkError::from)?;
    for name in [one, peer_name] {
        let found = socket.link_by_name(&name)?.sizes;
        if found != sizes {
            return Err(ProbeError::Veth(found));
        }
    }
    Ok(())
}

/// A device that takes 64 KiB has to get a larger packet in parts.
fn forward() -> Result<(), ProbeError> {
    let (from, to) = (Tun::create("in%d", 1, true)?, Tun::create("out%d", 1, true)?);
    sysctl::write_if_different("net/ipv4/ip_forward", "1")?;
    let mut socket = Socket::route()?;
    let [from_index, to_index] =
        [&from, &to].map(|tun| socket.link_by_name(&tun.name).map(|link| link.index));
    let (from_index, to_index) = (from_index?, to_index?);
    let mut batch = Batch::new();
    let near = Ipv4Net::new(NEAR, NEAR_NET_BITS).map_err(std::io::Error::other)?;
    batch.add_address(&Address::new(from_index, near.into()));
    for index in [from_index, to_index] {
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(index) });
    }
    batch.add_route(&Route::dev(russet_addr::host_net(DESTINATION.into()), to_index));
    socket.execute(&batch).map_err(NetlinkError::from)?;
    let (Some(input), Some(output)) = (from.queues.first(), to.queues.first()) else {
        return Err(std::io::Error::other("no queue").into());
    };
    input.write(&[IoSlice::new(&packet())])?;
    let (mut buffer, mut arrived) = (vec![0; 2 * PAYLOAD_BYTES], 0);
    let end = Instant::now() + DEADLINE;
    while arrived < PAYLOAD_BYTES && Instant::now() < end {
        let Some(bytes) = output.read(&mut buffer)? else {
            // Mostly it is there when the write returns.
            std::thread::park_timeout(PAUSE);
            continue;
        };
        let packet = &buffer[..bytes];
        let is_ours = packet.get(VIRTIO_HEADER_BYTES + 16..VIRTIO_HEADER_BYTES + IP_BYTES)
            == Some(&DESTINATION.octets()[..]);
        let payload = bytes.saturating_sub(VIRTIO_HEADER_BYTES + HEADERS_BYTES);
        if is_ours && payload > PacketSizes::LEGACY.gso as usize {
            return Err(ProbeError::TooLarge(payload));
        }
        arrived += if is_ours { payload } else { 0 };
    }
    if arrived == PAYLOAD_BYTES { Ok(()) } else { Err(ProbeError::Lost(arrived)) }
}

/// TCP over IPv4 that is to be segmented, too long for the header's 16 bits, which are 0 then.
fn packet() -> Vec<u8> {
    let header = VirtioHeader {
        needs_checksum: true,
        segments: Segments::Tcp4,
        header_bytes: HEADERS_BYTES as u16,
        segment_bytes: SEGMENT_BYTES,
        csum_start: IP_BYTES as u16,
        csum_offset: TCP_CHECKSUM,
    };
    let mut ip = [0; IP_BYTES];
    (ip[0], ip[8], ip[9]) = (0x45, 64, IPPROTO_TCP);
    ip[12..16].copy_from_slice(&SOURCE.octets());
    ip[16..20].copy_from_slice(&DESTINATION.octets());
    let sum = !folded_sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = [0; TCP_BYTES];
    // Ports, the header's length, and a flag: ACK.
    (tcp[1], tcp[3], tcp[12], tcp[13]) = (7, 7, 0x50, 0x10);
    [&header.encode()[..], &ip, &tcp, &vec![0x55; PAYLOAD_BYTES]].concat()
}

/// The sum of RFC 1071.
fn folded_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let once = (sum >> 16) + (sum & 0xffff);
    ((once >> 16) + (once & 0xffff)) as u16
}

fn name(text: &str) -> std::io::Result<IfName> {
    IfName::new(text).map_err(std::io::Error::other)
}

/// The first link of every namespace.
const LOOPBACK: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_checksum_is_that_of_a_known_packet() {
        // The example of RFC 1071's usual explanation: an IPv4 header whose sum with the checksum is all ones.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(folded_sum(&header), 0xffff);
        let packet = packet();
        let ip = &packet[VIRTIO_HEADER_BYTES..VIRTIO_HEADER_BYTES + IP_BYTES];
        assert_eq!((folded_sum(ip), &ip[2..4]), (0xffff, &[0, 0][..]));
    }
}
