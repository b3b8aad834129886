//! Neighbours (the MAC of an address on a link) and forwarding entries of bridges and vxlan devices
//! (the port or remote of a MAC). Both use `struct ndmsg`.

use std::collections::HashMap;
use std::net::IpAddr;

use russet_addr::{Family, Mac};

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// An entry of the ARP or NDP table, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// The index of the link; 0 for a proxy entry of all links.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// The MAC; a proxy entry has none.
    pub mac: Option<Mac>,
    /// The reachability state.
    pub state: NeighbourState,
    /// Whether it is a proxy entry, for which the machine answers.
    pub proxy: bool,
    /// Whether the neighbour is an IPv6 router.
    pub router: bool,
    /// The originator, as in routes; 0 if not given.
    pub protocol: u8,
}

/// `NUD_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NeighbourState {
    /// Configured, valid for ever.
    Permanent,
    /// Needs no resolution.
    NoArp,
    /// Confirmed a short time ago.
    Reachable,
    /// Not confirmed for some time.
    Stale,
    /// Being resolved.
    Incomplete,
    /// Resolution failed.
    Failed,
    /// Other bits.
    Other(u16),
}

/// A forwarding entry of a vxlan device or of a bridge port, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FdbEntry {
    /// The vxlan device, or the port.
    pub ifindex: u32,
    /// The inner destination; all zeroes stands for unknown destinations.
    pub mac: Mac,
    /// The remote tunnel endpoint.
    pub dst: Option<IpAddr>,
    /// The VXLAN network, if it differs from the device's.
    pub vni: Option<u32>,
    /// The remote UDP port, if it differs from the device's.
    pub port: Option<u16>,
    /// The VLAN, for bridges with VLAN filtering.
    pub vlan: Option<u16>,
    /// Whether the entry never expires.
    pub permanent: bool,
    /// The table that contains the entry.
    pub table: FdbTable,
}

/// The two forwarding tables of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FdbTable {
    /// The table of the device itself (`NTF_SELF`).
    Device,
    /// The table of its bridge (`NTF_MASTER`).
    Bridge,
}

/// `struct ndmsg`.
struct Header {
    af: u8,
    ifindex: u32,
    state: u16,
    flags: u8,
}

// === impl Neighbour ===

impl Neighbour {
    /// A permanent entry.
    pub fn permanent(ifindex: u32, address: IpAddr, mac: Mac) -> Self {
        Self {
            ifindex,
            address,
            mac: Some(mac),
            state: NeighbourState::Permanent,
            proxy: false,
            router: false,
            protocol: 0,
        }
    }

    /// A proxy entry, for which the link answers.
    pub fn proxy(ifindex: u32, address: IpAddr) -> Self {
        Self {
            ifindex,
            address,
            mac: None,
            state: NeighbourState::Other(0),
            proxy: true,
            router: false,
            protocol: 0,
        }
    }

    /// Decodes `RTM_NEWNEIGH` and `RTM_DELNEIGH`; `None` for other messages and for forwarding
    /// entries.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        let header = Header::read(message)?;
        let (mut address, mut mac, mut protocol) = (None, None, 0);
        for attribute in message.attributes(NDMSG_BYTES) {
            match attribute.kind {
                NDA_DST => address = attribute.ip(),
                NDA_LLADDR => mac = attribute.mac(),
                NDA_PROTOCOL => protocol = attribute.u8().unwrap_or(0),
                _ => {}
            }
        }
        let address = address.filter(|ip| family(header.af) == Some(Family::of(*ip)))?;
        Some(Self {
            ifindex: header.ifindex,
            address,
            mac,
            state: NeighbourState::from_number(header.state),
            proxy: header.flags & NTF_PROXY != 0,
            router: header.flags & NTF_ROUTER != 0,
            protocol,
        })
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let header = Header {
            af: af(Family::of(self.address)),
            ifindex: self.ifindex,
            state: self.state.number(),
            flags: flag(self.proxy, NTF_PROXY) | flag(self.router, NTF_ROUTER),
        };
        header.write(message);
        message.attr_ip(NDA_DST, self.address);
        if let Some(mac) = self.mac {
            message.attr(NDA_LLADDR, &mac.octets());
        }
        if self.protocol != 0 {
            message.attr_u8(NDA_PROTOCOL, self.protocol);
        }
    }
}

// === impl NeighbourState ===

impl NeighbourState {
    const fn number(self) -> u16 {
        match self {
            NeighbourState::Incomplete => 0x01,
            NeighbourState::Reachable => 0x02,
            NeighbourState::Stale => 0x04,
            NeighbourState::Failed => 0x20,
            NeighbourState::NoArp => 0x40,
            NeighbourState::Permanent => 0x80,
            NeighbourState::Other(bits) => bits,
        }
    }

    const fn from_number(bits: u16) -> Self {
        match bits {
            0x01 => NeighbourState::Incomplete,
            0x02 => NeighbourState::Reachable,
            0x04 => NeighbourState::Stale,
            0x20 => NeighbourState::Failed,
            0x40 => NeighbourState::NoArp,
            0x80 => NeighbourState::Permanent,
            bits => NeighbourState::Other(bits),
        }
    }
}

// === impl FdbEntry ===

impl FdbEntry {
    /// A permanent entry of a vxlan device: `mac` is behind the tunnel endpoint `dst`.
    pub fn remote(ifindex: u32, mac: Mac, dst: IpAddr) -> Self {
        Self {
            ifindex,
            mac,
            dst: Some(dst),
            vni: None,
            port: None,
            vlan: None,
            permanent: true,
            table: FdbTable::Device,
        }
    }

    /// Decodes the `AF_BRIDGE` form of `RTM_NEWNEIGH` and `RTM_DELNEIGH`; `None` for other
    /// messages.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        let header = Header::read(message).filter(|header| header.af == AF_BRIDGE)?;
        let (mut mac, mut dst, mut vni, mut port, mut vlan) = (None, None, None, None, None);
        for attribute in message.attributes(NDMSG_BYTES) {
            match attribute.kind {
                NDA_LLADDR => mac = attribute.mac(),
                NDA_DST => dst = attribute.ip(),
                NDA_VNI => vni = attribute.u32(),
                NDA_PORT => port = attribute.be16(),
                NDA_VLAN => vlan = attribute.u16(),
                _ => {}
            }
        }
        Some(Self {
            ifindex: header.ifindex,
            mac: mac?,
            dst,
            vni,
            port,
            vlan,
            permanent: header.state & NeighbourState::Permanent.number() != 0,
            table: if header.flags & NTF_SELF != 0 { FdbTable::Device } else { FdbTable::Bridge },
        })
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        let state = if self.permanent { NeighbourState::Permanent } else { NeighbourState::Reachable };
        let flags = match self.table {
            FdbTable::Device => NTF_SELF,
            FdbTable::Bridge => NTF_MASTER,
        };
        Header { af: AF_BRIDGE, ifindex: self.ifindex, state: state.number(), flags }.write(message);
        message.attr(NDA_LLADDR, &self.mac.octets());
        if let Some(dst) = self.dst {
            message.attr_ip(NDA_DST, dst);
        }
        if let Some(vni) = self.vni {
            message.attr_u32(NDA_VNI, vni);
        }
        if let Some(port) = self.port {
            message.attr_be16(NDA_PORT, port);
        }
        if let Some(vlan) = self.vlan {
            message.attr_u16(NDA_VLAN, vlan);
        }
    }
}

// === impl Header ===

impl Header {
    fn read(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWNEIGH | RTM_DELNEIGH) {
            return None;
        }
        let bytes: [u8; NDMSG_BYTES] = array(message.payload, 0)?;
        Some(Self {
            af: bytes[0],
            ifindex: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            state: u16::from_ne_bytes([bytes[8], bytes[9]]),
            flags: bytes[10],
        })
    }

    fn write(&self, message: &mut MessageBuilder<'_>) {
        let mut bytes = [0; NDMSG_BYTES];
        bytes[0] = self.af;
        bytes[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.state.to_ne_bytes());
        bytes[10] = self.flags;
        message.raw(&bytes);
    }
}

// === impl Batch ===

/// Neighbours and forwarding entries.
impl Batch {
    /// Adds a neighbour; EEXIST if there is one with this address.
    pub fn add_neighbour(&mut self, neighbour: &Neighbour) -> &mut Self {
        self.push(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, |message| neighbour.encode(message))
    }

    /// Adds a neighbour or changes the one with this address.
    pub fn replace_neighbour(&mut self, neighbour: &Neighbour) -> &mut Self {
        self.push(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, |message| neighbour.encode(message))
    }

    /// Deletes a neighbour; ENOENT if it does not exist.
    pub fn delete_neighbour(&mut self, neighbour: &Neighbour) -> &mut Self {
        self.push(RTM_DELNEIGH, 0, |message| neighbour.encode(message))
    }

    /// Adds a forwarding entry; EEXIST if the MAC has one.
    pub fn add_fdb(&mut self, entry: &FdbEntry) -> &mut Self {
        self.push(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_EXCL, |message| entry.encode(message))
    }

    /// Sets the only forwarding entry of a MAC. Not for the all-zero MAC and multicast
    /// (EOPNOTSUPP).
    pub fn replace_fdb(&mut self, entry: &FdbEntry) -> &mut Self {
        self.push(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, |message| entry.encode(message))
    }

    /// Adds a remote to those of the all-zero MAC or a multicast MAC; EEXIST if it exists.
    pub fn append_fdb(&mut self, entry: &FdbEntry) -> &mut Self {
        self.push(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_APPEND, |message| entry.encode(message))
    }

    /// Deletes a forwarding entry; ENOENT if it does not exist.
    pub fn delete_fdb(&mut self, entry: &FdbEntry) -> &mut Self {
        self.push(RTM_DELNEIGH, 0, |message| entry.encode(message))
    }
}

/// The kernel answers a list of fewer neighbours in one part, which is complete.
const ONE_PART: usize = 64;

/// Reads of a list in more parts, at most.
const READS: usize = 8;

/// All neighbours that `read` lists, read until two lists in a row add none to the ones before.
///
/// All network namespaces share one table, and between two parts of a list the kernel remembers only
/// a position in it: entries that come and go in another namespace make a list omit or repeat some,
/// more likely the same one twice, since the parts end at the same places.
fn all_of(mut read: impl FnMut() -> Result<Vec<Neighbour>>) -> Result<Vec<Neighbour>> {
    let first = read()?;
    if first.len() < ONE_PART {
        return Ok(first);
    }
    let by_address = |listed: Vec<Neighbour>| listed.into_iter().map(|it| ((it.ifindex, it.address), it));
    let mut found: HashMap<_, _> = by_address(first).collect();
    let (mut reads, mut without_new) = (1, 0);
    while reads < READS && without_new < 2 {
        let before = found.len();
        found.extend(by_address(read()?));
        reads += 1;
        without_new = if found.len() == before { without_new + 1 } else { 0 };
    }
    Ok(found.into_values().collect())
}

// === impl Socket ===

/// Neighbours and forwarding entries.
impl Socket {
    /// All neighbours of a family, without proxy entries.
    pub fn neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>> {
        let header = Header { af: af(family), ifindex: 0, state: 0, flags: 0 };
        let fill = |message: &mut MessageBuilder<'_>| header.write(message);
        all_of(|| self.dump(&format!("list {family} neighbours"), RTM_GETNEIGH, fill, Neighbour::decode))
    }

    /// The neighbours of a family on one link, without proxy entries.
    pub fn neighbours_of(&mut self, family: Family, ifindex: u32) -> Result<Vec<Neighbour>> {
        let header = Header { af: af(family), ifindex: 0, state: 0, flags: 0 };
        let fill = |message: &mut MessageBuilder<'_>| {
            header.write(message);
            message.attr_u32(NDA_IFINDEX, ifindex);
        };
        let decode = |message: &Message<'_>| Neighbour::decode(message).filter(|n| n.ifindex == ifindex);
        all_of(|| self.dump(&format!("list {family} neighbours"), RTM_GETNEIGH, fill, decode))
    }

    /// All proxy entries of a family.
    pub fn proxy_neighbours(&mut self, family: Family) -> Result<Vec<Neighbour>> {
        let header = Header { af: af(family), ifindex: 0, state: 0, flags: NTF_PROXY };
        let fill = |message: &mut MessageBuilder<'_>| header.write(message);
        self.dump(&format!("list {family} proxy neighbours"), RTM_GETNEIGH, fill, Neighbour::decode)
    }

    /// The forwarding entries of a vxlan device or of a bridge's port.
    pub fn fdb(&mut self, ifindex: u32) -> Result<Vec<FdbEntry>> {
        let header = Header { af: AF_BRIDGE, ifindex, state: 0, flags: 0 };
        let fill = |message: &mut MessageBuilder<'_>| header.write(message);
        let decode = |message: &Message<'_>| FdbEntry::decode(message).filter(|e| e.ifindex == ifindex);
        self.dump(&format!("list forwarding entries of link {ifindex}"), RTM_GETNEIGH, fill, decode)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn neighbours(numbers: std::ops::Range<u32>) -> Vec<Neighbour> {
        let address = |number| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number));
        numbers.map(|number| Neighbour::permanent(1, address(number), Mac::GATEWAY)).collect()
    }

    /// Reads these lists in turn, and the last one from then on; returns what was found, by address,
    /// and the number of reads.
    fn read(lists: &[Vec<Neighbour>]) -> (Vec<Neighbour>, usize) {
        let mut reads = 0;
        let mut found = all_of(|| {
            reads += 1;
            Ok(lists.get(reads - 1).or(lists.last()).unwrap().clone())
        })
        .unwrap();
        found.sort_by_key(|it| it.address);
        (found, reads)
    }

    #[test]
    fn what_one_list_omits_another_adds() {
        let all = neighbours(0..200);
        let omitting = |n: usize| all.iter().filter(|it| **it != all[n]).cloned().collect::<Vec<_>>();
        let repeating = [neighbours(0..120), neighbours(100..200)].concat();
        assert_eq!(read(std::slice::from_ref(&all)), (all.clone(), 3));
        assert_eq!(read(&[omitting(7), omitting(7), all.clone()]), (all.clone(), 5));
        assert_eq!(read(&[omitting(7), omitting(150)]), (all.clone(), 4));
        assert_eq!(read(&[repeating, all.clone()]), (all, 3));
    }

    #[test]
    fn a_list_in_one_part_is_read_once_and_one_that_always_grows_not_for_ever() {
        assert_eq!(read(&[neighbours(0..63)]), (neighbours(0..63), 1));
        let growing: Vec<_> = (1..20).map(|n| neighbours(0..n * 100)).collect();
        assert_eq!(read(&growing).1, READS);
    }

    #[test]
    fn the_newest_state_of_a_neighbour_counts() {
        let (all, mut moved) = (neighbours(0..64), neighbours(0..64));
        moved[3].mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(read(&[all, moved.clone()]).0, moved);
    }
}
