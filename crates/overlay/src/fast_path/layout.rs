//! Keys and values of the programs' maps, as the structures of `crates/linux/bpf/fast.h`. Pure.

use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{IpNet, Mac};

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

/// What the outer headers of packets to a node have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VxlanHeaders {
    pub remote: Ipv4Addr,
    pub local: Ipv4Addr,
    pub vni: u32,
    pub port: u16,
    pub inner_to: Mac,
    pub inner_from: Mac,
}

/// The device of the tunnel through which packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    pub ifindex: u32,
    pub vni: u32,
    pub port: u16,
}

/// The number of a value in the map `settings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Setting {
    Epoch = 0,
    VxlanIfindex = 1,
    VxlanPort = 2,
    VxlanVni = 3,
}

const NODE_DIRECT: u32 = 1;
const NODE_VXLAN: u32 = 2;
const NODE_BYTES: usize = 64;
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
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.ifindex, self.mtu_bytes].map(u32::to_ne_bytes);
        [numbers.as_flattened(), &self.pod_mac.octets(), &self.host_mac.octets()].concat()
    }
}

// === impl Node ===

impl Node {
    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = if self.vxlan.is_some() { NODE_VXLAN } else { NODE_DIRECT };
        let (family, hop) = match self.next_hop {
            IpAddr::V4(address) => (libc::AF_INET, [&address.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let numbers = [kind, self.via_ifindex, self.mtu_bytes, self.out_ifindex, family.cast_unsigned()];
        let mut value = [numbers.map(u32::to_ne_bytes).as_flattened(), &hop].concat();
        debug_assert_eq!(value.len(), HEADERS_AT, "the structure has no gaps");
        if let Some(headers) = &self.vxlan {
            value.extend(headers.remote.octets());
            value.extend(headers.local.octets());
            value.extend(vni(headers.vni));
            value.extend(headers.port.to_be_bytes());
            value.extend(headers.inner_to.octets());
            value.extend(headers.inner_from.octets());
        }
        value.resize(NODE_BYTES, 0);
        value
    }

    /// The value of a place that no node has.
    pub(super) fn none() -> Vec<u8> {
        vec![0; NODE_BYTES]
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
    /// The values of settings without and with a tunnel.
    pub(super) fn settings(tunnel: Option<&Self>) -> [(Setting, [u8; 4]); 3] {
        let port = |tunnel: &Self| [&tunnel.port.to_be_bytes()[..], &[0; 2]].concat().try_into();
        let word = |of: &dyn Fn(&Self) -> [u8; 4]| tunnel.map_or([0; 4], of);
        [
            (Setting::VxlanPort, word(&|it| port(it).unwrap_or_default())),
            (Setting::VxlanVni, word(&|it| vni(it.vni))),
            (Setting::VxlanIfindex, word(&|it| it.ifindex.to_ne_bytes())),
        ]
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
        assert_eq!(endpoint.encode().len(), 20);
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
        assert_eq!(value[36..48], [192, 0, 2, 2, 192, 0, 2, 3, 0, 0, 1, 0]);
        assert_eq!(value[48..64], [0x12, 0xb5, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 0, 0]);
        node.vxlan = None;
        assert_eq!((node.encode()[0], &node.encode()[36..]), (1, &[0; 28][..]));
    }
}
