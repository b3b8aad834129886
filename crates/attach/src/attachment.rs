//! What a pod's interface is to look like: the input of [`plan`](crate::plan) and [`check`](crate::check).

use std::net::IpAddr;

use russet_addr::{EndpointId, Family, IfName, IpNet, Mac};
use russet_netlink::PacketSizes;
use serde::{Deserialize, Serialize};

use crate::naming;
use crate::owner::Owner;

/// One interface of one pod, complete: nothing is looked up later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    #[serde(flatten)]
    pub id: EndpointId,
    /// The Kubernetes pod, where there is one.
    pub pod: Option<Pod>,
    /// The conventions that the node follows.
    pub dialect: Dialect,
    /// The name of the end in the node's namespace.
    pub host_name: IfName,
    /// The pod's addresses; each becomes a /32 or /128.
    pub addresses: Vec<IpAddr>,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// The pod end's MAC; by default a stable one ([`naming::pod_mac`]).
    pub mac: Option<Mac>,
    /// Whether the pod may forward packets.
    pub allow_ip_forwarding: bool,
    /// The destinations that the pod reaches through this interface.
    pub routes: PodRoutes,
    /// Metric of the pod's IPv4 and IPv6 routes; by default the kernel's.
    pub route_metric: Option<u32>,
    /// Delete an interface in the way at once instead of leaving it to [`reap`](crate::reap): for
    /// callers without an agent.
    pub sync_delete: bool,
    /// The largest packets of both ends inside the kernel; the kernel's default otherwise. Not recorded and not compared:
    /// a setting of the node decides, and the agent has interfaces follow it.
    #[serde(skip)]
    pub sizes: Option<PacketSizes>,
    /// What the pod's interface is if it is created. Not recorded and not compared: one that is there stays as it is.
    #[serde(skip)]
    pub pair: Pair,
}

/// The kinds of pairs of links that connect a pod with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pair {
    #[default]
    Veth,
    /// Programs of the fast path run where the pod sends.
    Netkit,
}

/// A Kubernetes pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The conventions that a node follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Russet's own.
    Native,
    /// Those of Calico's plugin, so that Felix can take over (calico-cni.md section 3).
    Calico,
}

/// The routes inside the pod, except the one to the gateway itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodRoutes {
    /// `0.0.0.0/0` and `::/0`, as far as the pod has an address of the family.
    Default,
    /// These instead; prefixes of a family that the pod has no address of are skipped.
    Only(Vec<IpNet>),
}

/// An invalid attachment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// The name is taken in every namespace.
    #[error("interface {0} cannot be attached: it is every namespace's own loopback")]
    Loopback(IfName),
    /// No pod can have this address.
    #[error("{address} cannot be a pod's address: {reason}")]
    Address {
        /// The address.
        address: IpAddr,
        /// Why not.
        reason: &'static str,
    },
    /// More addresses than the limit.
    #[error("{0} addresses for one interface: at most {MAX_ADDRESSES} are supported")]
    TooManyAddresses(usize),
    /// More routes than the limit.
    #[error("{0} routes for one interface: at most {MAX_ROUTES} are supported")]
    TooManyRoutes(usize),
    /// The kernel refuses it.
    #[error("MTU {mtu_bytes} is {reason}")]
    Mtu {
        /// The requested MTU.
        mtu_bytes: u32,
        /// Why not.
        reason: &'static str,
    },
    /// It is not a unicast address.
    #[error("{0} cannot be an interface's MAC: it is zero or a group address")]
    Mac(Mac),
}

/// A limit on one interface's addresses: each costs the node a route and a neighbour.
pub const MAX_ADDRESSES: usize = 32;
/// Limit of one interface's routes, so that a pod's batch fits into one send.
pub const MAX_ROUTES: usize = 256;
/// The kernel's minimum MTU for IPv4 (`ETH_MIN_MTU`).
const MTU_MIN_BYTES: u32 = 68;
/// The kernel removes IPv6 from links with a smaller MTU (RFC 8200 section 5).
const MTU_MIN_IPV6_BYTES: u32 = 1280;
/// veth's maximum MTU (`ETH_MAX_MTU`).
const MTU_MAX_BYTES: u32 = 65535;
/// The MTU of a pod without a configured one.
pub(crate) const MTU_DEFAULT_BYTES: u32 = 1500;
/// The metric of routes of further interfaces, which come after those of `eth0`, whose metric is 0
/// (IPv4) or 1024 (IPv6).
const SECONDARY_METRIC: u32 = 2048;
/// The interface that runtimes give every pod first.
pub(crate) const PRIMARY_IFNAME: &str = "eth0";

// === impl Attachment ===

impl Attachment {
    /// An attachment without addresses, with defaults in everything else.
    pub fn new(dialect: Dialect, id: EndpointId, pod: Option<Pod>) -> Self {
        let host_name = naming::host_end(dialect, &id, pod.as_ref());
        let new = Self {
            id,
            pod,
            dialect,
            host_name,
            addresses: Vec::new(),
            mtu: MTU_DEFAULT_BYTES,
            mac: None,
            allow_ip_forwarding: false,
            routes: PodRoutes::Default,
            route_metric: None,
            sync_delete: false,
            sizes: None,
            pair: Pair::default(),
        };
        Self { route_metric: new.is_secondary().then_some(SECONDARY_METRIC), ..new }
    }

    /// Whether the pod has `eth0` for its main routes, and this interface only answers for itself.
    /// Calico has no such interfaces.
    pub fn is_secondary(&self) -> bool {
        self.dialect == Dialect::Native && self.id.ifname.as_str() != PRIMARY_IFNAME
    }

    /// The content of the host end's alias.
    pub fn owner(&self) -> Owner {
        Owner::new(&self.id)
    }

    /// The pod end's MAC: the chosen one, or the stable one.
    pub fn pod_mac(&self) -> Mac {
        self.mac.unwrap_or_else(|| naming::pod_mac(&self.id))
    }

    /// Whether the pod end's MAC is the stable one.
    pub(crate) fn has_derived_mac(&self) -> bool {
        self.pod_mac() == naming::pod_mac(&self.id)
    }

    /// Whether the pod has an address of `family`.
    pub fn has(&self, family: Family) -> bool {
        self.addresses.iter().any(|address| Family::of(*address) == family)
    }

    /// The prefixes that the pod reaches through its gateways, each once, for the families of its
    /// addresses.
    pub fn destinations(&self) -> Vec<IpNet> {
        let default = Family::BOTH.map(Family::default_net);
        let wanted: &[IpNet] = match &self.routes {
            PodRoutes::Default => &default,
            PodRoutes::Only(list) => list,
        };
        let mut nets: Vec<IpNet> = Vec::with_capacity(wanted.len());
        for net in wanted.iter().map(IpNet::trunc) {
            let gateway = net == IpNet::from(IpAddr::V4(naming::GATEWAY_V4));
            if self.has(Family::of_net(&net)) && !gateway && !nets.contains(&net) {
                nets.push(net);
            }
        }
        nets
    }

    /// Refuses what the kernel would refuse half-way, and what makes no sense.
    pub fn validate(&self) -> Result<(), AttachmentError> {
        if self.id.ifname.as_str() == "lo" {
            return Err(AttachmentError::Loopback(self.id.ifname.clone()));
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(AttachmentError::TooManyAddresses(self.addresses.len()));
        }
        for (index, address) in self.addresses.iter().enumerate() {
            let repeated = self.addresses[..index].contains(address);
            if let Some(reason) = unusable(*address).or(repeated.then_some("it is listed twice")) {
                return Err(AttachmentError::Address { address: *address, reason });
            }
        }
        match &self.routes {
            PodRoutes::Only(list) if list.len() > MAX_ROUTES => {
                return Err(AttachmentError::TooManyRoutes(list.len()));
            }
            _ => {}
        }
        check_mtu(self.mtu, self.has(Family::V6))?;
        check_mac(self.mac)
    }
}

/// Refuses an MTU that the kernel would refuse, or that would disable IPv6.
pub(crate) fn check_mtu(mtu_bytes: u32, ipv6: bool) -> Result<(), AttachmentError> {
    let reason = match mtu_bytes {
        0..MTU_MIN_BYTES => "below 68, the kernel's least",
        MTU_MIN_BYTES..MTU_MIN_IPV6_BYTES if ipv6 => "below 1280, the least for IPv6",
        MTU_MIN_BYTES..=MTU_MAX_BYTES => return Ok(()),
        _ => "above 65535, the kernel's greatest",
    };
    Err(AttachmentError::Mtu { mtu_bytes, reason })
}

/// Refuses a MAC that is not unicast.
pub(crate) fn check_mac(mac: Option<Mac>) -> Result<(), AttachmentError> {
    match mac {
        Some(mac) if mac.is_multicast() || mac.octets() == [0; 6] => Err(AttachmentError::Mac(mac)),
        _ => Ok(()),
    }
}

fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    match address {
        _ if address.is_unspecified() => Some("it is the unspecified address"),
        _ if address.is_multicast() => Some("it is a multicast address"),
        _ if address.is_loopback() => Some("it is a loopback address"),
        _ if link_local => Some("it is valid on one link only"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Attachment {
        Attachment::new(Dialect::Native, "net1/abc123/eth0".parse().unwrap(), None)
    }

    #[test]
    fn addresses_that_no_pod_can_have_are_refused() {
        for bad in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "169.254.1.1", "::", "::1", "ff02::1", "fe80::1"] {
            let attachment = Attachment { addresses: vec![bad.parse().unwrap()], ..sample() };
            assert!(attachment.validate().is_err(), "{bad}");
        }
        let twice = vec!["10.0.0.1".parse().unwrap(); 2];
        let error = Attachment { addresses: twice, ..sample() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.1 cannot be a pod's address: it is listed twice");
    }

    #[test]
    fn an_mtu_below_1280_is_good_for_ipv4_only() {
        let v4 = Attachment { mtu: 1000, addresses: vec!["10.0.0.1".parse().unwrap()], ..sample() };
        assert_eq!(v4.validate(), Ok(()));
        let v6 = Attachment { addresses: vec!["fd00::1".parse().unwrap()], ..v4 };
        assert_eq!(v6.validate().unwrap_err().to_string(), "MTU 1000 is below 1280, the least for IPv6");
        assert!(Attachment { mtu: 65536, ..sample() }.validate().is_err());
        assert!(Attachment { mtu: 67, ..sample() }.validate().is_err());
    }

    #[test]
    fn routes_of_a_family_without_an_address_are_skipped() {
        // calico-cni.md section 3.3, step 8
        let list = ["10.9.1.5/16", "10.9.0.0/16", "fd00::/64", "169.254.1.1/32"].map(|t| t.parse().unwrap());
        let routes = PodRoutes::Only(list.to_vec());
        let attachment = Attachment { addresses: vec!["10.0.0.1".parse().unwrap()], routes, ..sample() };
        assert_eq!(attachment.destinations(), vec!["10.9.0.0/16".parse::<IpNet>().unwrap()]);
    }

    #[test]
    fn the_loopback_and_group_macs_are_refused() {
        assert!(Attachment { id: "net1/abc123/lo".parse().unwrap(), ..sample() }.validate().is_err());
        assert!(Attachment { mac: Some(Mac([1, 0, 0, 0, 0, 1])), ..sample() }.validate().is_err());
        assert!(Attachment { mac: Some(Mac([0; 6])), ..sample() }.validate().is_err());
    }
}
