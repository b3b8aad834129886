//! Keys and values of the programs' maps, as the structures of `crates/linux/bpf/fast.h`. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use russet_addr::{Family, IpNet, Mac};

/// A pod of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Of the host end of its veth.
    pub ifindex: u32,
    pub mtu_bytes: u32,
    pub pod_mac: Mac,
    pub host_mac: Mac,
}

/// Another node, as the next hop of one or more of its prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// The link of the kernel's route: the tunnel's device, or the uplink.
    pub via_ifindex: u32,
    /// The largest packet, without outer headers.
    pub mtu_bytes: u32,
    /// The uplink.
    pub out_ifindex: u32,
    /// The neighbour on the uplink.
    pub next_hop: IpAddr,
    /// None without encapsulation.
    pub vxlan: Option<VxlanHeaders>,
}

/// What the outer headers of packets to a node have. The programs make those of IPv4, and the tunnel's device those of
/// IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VxlanHeaders {
    pub remote: IpAddr,
    pub local: IpAddr,
    pub vni: u32,
    pub port: u16,
    pub inner_to: Mac,
    pub inner_from: Mac,
}

/// The device of a tunnel through which packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    pub ifindex: u32,
    pub vni: u32,
    pub port: u16,
}

/// What flows are distinguished by. A connection has two of them, one for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub from: IpAddr,
    pub to: IpAddr,
    pub from_port: u16,
    pub to_port: u16,
    pub protocol: u8,
}

/// A direction of a flow that the kernel's path has let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFlow {
    pub tuple: Tuple,
    /// Where it came in, and where it left.
    pub ifindex: u32,
    pub out_ifindex: u32,
    /// The number of the epoch in which it was learnt; 0 once it has ended.
    pub epoch: u32,
    /// What the fast path has carried of it.
    pub carried: Carried,
}

/// What was carried of connections that have ended, and differ in nothing but the asking side's port: one direction of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedFlows {
    /// With 0 as the asking side's port.
    pub tuple: Tuple,
    /// Where they came in, and where they left.
    pub ifindex: u32,
    pub out_ifindex: u32,
    pub carried: Carried,
    /// The asking side's port of one of them.
    pub port: u16,
}

/// Packets, and their bytes from their IP headers on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    pub packets: u64,
    pub bytes: u64,
}

/// What was carried of a pod's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub from_pod: Carried,
    pub to_pod: Carried,
}

/// The number of a value in the map `settings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Setting {
    Epoch = 0,
    Readings = 1,
    VxlanIfindex = 2,
    VxlanPort = 3,
    VxlanVni = 4,
    VxlanIpv6Ifindex = 5,
    VxlanIpv6Port = 6,
    VxlanIpv6Vni = 7,
}

const NODE_DIRECT: u32 = 1;
const NODE_VXLAN: u32 = 2;
const NODE_VXLAN_IPV6: u32 = 3;
const NODE_BYTES: usize = 88;
const CARRIED_BYTES: usize = 16;
const TUPLE_BYTES: usize = 40;
/// Where `kind` ends in a node's.
const KIND_BYTES: usize = 4;
/// Where the outer headers' values begin in a node's.
const HEADERS_AT: usize = 36;
/// IPv4 in the keys of addresses: `::ffff:0:0/96`.
const MAPPED_BITS: u32 = 96;

/// An address in network byte order, `struct address`.
pub(super) fn address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(super) fn prefix(net: IpNet) -> Vec<u8> {
    let bits = match net {
        IpNet::V4(net) => MAPPED_BITS + u32::from(net.prefix_len()),
        IpNet::V6(net) => net.prefix_len().into(),
    };
    [&bits.to_ne_bytes()[..], &address(net.network())].concat()
}

/// A VNI as the VXLAN header has it: the upper 24 bits of a word in network byte order.
pub(super) fn vni(number: u32) -> [u8; 4] {
    (number << 8).to_be_bytes()
}

// === impl Endpoint ===

impl Endpoint {
    /// `place` is where packets to the pod are counted.
    pub(super) fn encode(&self, place: u32) -> Vec<u8> {
        let numbers = [self.ifindex, self.mtu_bytes].map(u32::to_ne_bytes);
        let macs = [self.pod_mac.octets(), self.host_mac.octets()];
        [numbers.as_flattened(), macs.as_flattened(), &place.to_ne_bytes()].concat()
    }
}

// === impl Node ===

impl Node {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self.vxlan.map(|headers| Family::of(headers.remote)) {
            None => NODE_DIRECT,
            Some(Family::V4) => NODE_VXLAN,
            Some(Family::V6) => NODE_VXLAN_IPV6,
        };
        let (family, hop) = match self.next_hop {
            IpAddr::V4(address) => (libc::AF_INET, [&address.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let numbers = [kind, self.via_ifindex, self.mtu_bytes, self.out_ifindex, family.cast_unsigned()];
        let mut value = [numbers.map(u32::to_ne_bytes).as_flattened(), &hop].concat();
        debug_assert_eq!(value.len(), HEADERS_AT, "the structure has no gaps");
        if let Some(headers) = &self.vxlan {
            value.extend(address(headers.remote));
            value.extend(address(headers.local));
            value.extend(vni(headers.vni));
            value.extend(headers.port.to_be_bytes());
            value.extend(headers.inner_to.octets());
            value.extend(headers.inner_from.octets());
        }
        value.resize(NODE_BYTES, 0);
        value
    }

    /// The value of a node whose packets take the kernel's path for a while: nothing but the kind differs, because a
    /// program may read the others at the moment.
    pub(super) fn paused(&self) -> Vec<u8> {
        let mut value = self.encode();
        value.iter_mut().take(KIND_BYTES).for_each(|byte| *byte = 0);
        value
    }

    /// The value of a place that no node has.
    pub(super) fn none() -> Vec<u8> {
        vec![0; NODE_BYTES]
    }
}

// === impl Tuple ===

impl Tuple {
    pub const fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            from_port: self.to_port,
            to_port: self.from_port,
            protocol: self.protocol,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let ports = [self.from_port, self.to_port].map(u16::to_be_bytes);
        let protocol = u32::from(self.protocol).to_ne_bytes();
        [&address(self.from)[..], &address(self.to), ports.as_flattened(), &protocol].concat()
    }

    fn decode(key: &[u8]) -> Option<Self> {
        let (from, rest) = key.split_first_chunk::<16>()?;
        let (to, rest) = rest.split_first_chunk::<16>()?;
        let (from_port, rest) = rest.split_first_chunk()?;
        let (to_port, rest) = rest.split_first_chunk()?;
        let protocol = u32::from_ne_bytes(*rest.first_chunk()?);
        Some(Self {
            from: Ipv6Addr::from(*from).to_canonical(),
            to: Ipv6Addr::from(*to).to_canonical(),
            from_port: u16::from_be_bytes(*from_port),
            to_port: u16::from_be_bytes(*to_port),
            protocol: u8::try_from(protocol).ok()?,
        })
    }
}

// === impl KnownFlow ===

impl KnownFlow {
    /// An entry of the map `flows`.
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*value.get(at..)?.first_chunk()?));
        Some(Self {
            tuple: Tuple::decode(key)?,
            epoch: word(0)?,
            ifindex: word(4)?,
            out_ifindex: word(8)?,
            carried: Carried::decode(value.get(32..)?)?,
        })
    }

    /// Whether the connection has ended, or another one with the same ports begins.
    pub const fn has_ended(&self) -> bool {
        self.epoch == 0
    }
}

// === impl EndedFlows ===

impl EndedFlows {
    /// An entry of the map `ended`.
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*key.get(at..)?.first_chunk()?));
        let port = value.get(CARRIED_BYTES..)?.first_chunk()?;
        Some(Self {
            tuple: Tuple::decode(key)?,
            ifindex: word(TUPLE_BYTES)?,
            out_ifindex: word(TUPLE_BYTES + 4)?,
            carried: Carried::decode(value)?,
            port: u16::from_be_bytes(*port),
        })
    }

    /// Whether it is the direction of those that have asked for the connections.
    pub const fn is_asking(&self) -> bool {
        self.tuple.from_port == 0
    }

    /// One of them.
    pub const fn one(&self) -> Tuple {
        match self.is_asking() {
            true => Tuple { from_port: self.port, ..self.tuple },
            false => Tuple { to_port: self.port, ..self.tuple },
        }
    }
}

// === impl Carried ===

impl Carried {
    fn decode(value: &[u8]) -> Option<Self> {
        let (packets, rest) = value.split_first_chunk()?;
        let bytes = u64::from_ne_bytes(*rest.first_chunk()?);
        Some(Self { packets: u64::from_ne_bytes(*packets), bytes })
    }

    /// The sum over all processors.
    pub(super) fn sum(value: &[u8]) -> Self {
        value.chunks_exact(CARRIED_BYTES).filter_map(Self::decode).fold(Self::default(), Self::plus)
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        let packets = self.packets.wrapping_add(other.packets);
        Self { packets, bytes: self.bytes.wrapping_add(other.bytes) }
    }

    /// What came since there was so much; everything, if it began again.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        match (self.packets.checked_sub(before.packets), self.bytes.checked_sub(before.bytes)) {
            (Some(packets), Some(bytes)) => Self { packets, bytes },
            _ => self,
        }
    }
}

// === impl Traffic ===

impl Traffic {
    /// The sum over all processors.
    pub(super) fn sum(value: &[u8]) -> Self {
        let of_processors = value.chunks_exact(2 * CARRIED_BYTES);
        of_processors.fold(Self::default(), |sum, value| {
            let (from, to) = value.split_at(CARRIED_BYTES);
            Self {
                from_pod: sum.from_pod.plus(Carried::sum(from)),
                to_pod: sum.to_pod.plus(Carried::sum(to)),
            }
        })
    }
}

// === impl Setting ===

impl Setting {
    pub(super) fn key(self) -> [u8; 4] {
        (self as u32).to_ne_bytes()
    }
}

// === impl Tunnel ===

impl Tunnel {
    /// The values of settings with these tunnels, by the families of their outer headers.
    pub(super) fn settings(tunnels: &BTreeMap<Family, Self>) -> Vec<(Setting, [u8; 4])> {
        let places = [
            (Family::V4, [Setting::VxlanPort, Setting::VxlanVni, Setting::VxlanIfindex]),
            (Family::V6, [Setting::VxlanIpv6Port, Setting::VxlanIpv6Vni, Setting::VxlanIpv6Ifindex]),
        ];
        let values = |family| tunnels.get(&family).map_or([[0; 4]; 3], Self::values);
        places.into_iter().flat_map(|(family, settings)| settings.into_iter().zip(values(family))).collect()
    }

    fn values(&self) -> [[u8; 4]; 3] {
        let [high, low] = self.port.to_be_bytes();
        [[high, low, 0, 0], vni(self.vni), self.ifindex.to_ne_bytes()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_the_bytes_of_the_c_structures() {
        assert_eq!(
            prefix("10.244.2.0/26".parse().unwrap()),
            [&122_u32.to_ne_bytes()[..], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 244, 2, 0]].concat()
        );
        let six = prefix("fd00::40/122".parse().unwrap());
        assert_eq!((&six[..4], six[4], six[19]), (&122_u32.to_ne_bytes()[..], 0xfd, 0x40));
        assert_eq!(vni(4096), [0, 16, 0, 0]);
        let endpoint = Endpoint { ifindex: 7, mtu_bytes: 1450, pod_mac: Mac([1; 6]), host_mac: Mac([2; 6]) };
        assert_eq!((endpoint.encode(5).len(), &endpoint.encode(5)[20..]), (24, &5_u32.to_ne_bytes()[..]));
        let mut node = Node {
            via_ifindex: 3,
            mtu_bytes: 1450,
            out_ifindex: 2,
            next_hop: "192.0.2.1".parse().unwrap(),
            vxlan: Some(VxlanHeaders {
                remote: "192.0.2.2".parse().unwrap(),
                local: "192.0.2.3".parse().unwrap(),
                vni: 1,
                port: 4789,
                inner_to: Mac([3; 6]),
                inner_from: Mac([4; 6]),
            }),
        };
        let value = node.encode();
        assert_eq!(value.len(), NODE_BYTES);
        assert_eq!(value[20..24], [192, 0, 2, 1]);
        assert_eq!((value[0], &value[46..52]), (2, &[255, 255, 192, 0, 2, 2][..]));
        assert_eq!(value[62..72], [255, 255, 192, 0, 2, 3, 0, 0, 1, 0]);
        assert_eq!(value[72..88], [0x12, 0xb5, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 0, 0]);
        assert_eq!((node.paused()[..4].to_vec(), &node.paused()[4..]), (vec![0; 4], &value[4..]));
        let six = ["fd00::2", "fd00::3"].map(|text| text.parse().unwrap());
        node.vxlan = node.vxlan.map(|headers| VxlanHeaders { remote: six[0], local: six[1], ..headers });
        let value = node.encode();
        assert_eq!((value[0], value[36], value[51], value[67]), (3, 0xfd, 2, 3));
        node.vxlan = None;
        assert_eq!((node.encode()[0], &node.encode()[36..]), (1, &[0; 52][..]));
        let tunnel = Tunnel { ifindex: 9, vni: 1, port: 4789 };
        let settings = Tunnel::settings(&BTreeMap::from([(Family::V6, tunnel)]));
        assert_eq!(settings[..3].iter().map(|it| it.1).collect::<Vec<_>>(), [[0; 4]; 3]);
        assert_eq!(settings[3], (Setting::VxlanIpv6Port, [0x12, 0xb5, 0, 0]));
        assert_eq!(settings[5], (Setting::VxlanIpv6Ifindex, 9_u32.to_ne_bytes()));
    }

    #[test]
    fn flows_and_counters_are_read_and_what_is_cut_is_none() {
        for [from, to] in [["10.244.1.2", "10.244.2.3"], ["fd00::1", "fd00:0:0:1::2"]] {
            let [from, to] = [from, to].map(|text| text.parse().unwrap());
            let tuple = Tuple { from, to, from_port: 0x1234, to_port: 80, protocol: 6 };
            let words = [7, 3, 4, 0].map(u32::to_ne_bytes);
            let longs = [99, 0, 5, 700_u64].map(u64::to_ne_bytes);
            let value = [words.as_flattened(), longs.as_flattened()].concat();
            let carried = Carried { packets: 5, bytes: 700 };
            let flow = KnownFlow { tuple, ifindex: 3, out_ifindex: 4, epoch: 7, carried };
            assert_eq!(KnownFlow::decode(&tuple.encode(), &value), Some(flow));
            assert_eq!((tuple.reversed().from_port, tuple.reversed().reversed()), (80, tuple));
            assert!((0..value.len()).all(|len| KnownFlow::decode(&tuple.encode(), &value[..len]).is_none()));
            assert!((0..40).all(|len| KnownFlow::decode(&tuple.encode()[..len], &value).is_none()));
        }
        let two_processors = [1, 10, 2, 20, 3, 30, 4, 40_u64].map(u64::to_ne_bytes);
        let traffic = Traffic::sum(two_processors.as_flattened());
        let carried = |packets, bytes| Carried { packets, bytes };
        assert_eq!((traffic.from_pod, traffic.to_pod), (carried(4, 40), carried(6, 60)));
        assert_eq!(Carried::sum(two_processors.as_flattened()), carried(10, 100));
        assert_eq!(carried(5, 50).since(carried(3, 20)), carried(2, 30));
        assert_eq!(carried(2, 50).since(carried(3, 20)), carried(2, 50), "it began again");
    }
}
