//! A pod's interface behind a bridge, as the reference plugin `bridge` makes it (cni-runtime.md
//! section 5): the plan, and the removal of interfaces that that plugin made.
//!
//! Differences from the reference plugin that it cannot notice: the veth is created in place; its
//! host end has its owner's name and stays down until everything is ready; and a failed step undoes
//! the earlier ones. The bridge stays, because it belongs to the network.

use std::net::IpAddr;

use russet_addr::{EndpointId, Family, IfName, IpNet, Mac};
use russet_linux::NetNs;
use russet_netlink::{BridgePort, Link, NetlinkError, Route, Scope, Socket};
use serde::{Deserialize, Serialize};

use crate::attachment::{
    AttachmentError, Dialect, MAX_ADDRESSES, MAX_ROUTES, MTU_DEFAULT_BYTES, Pair, check_mac, check_mtu,
};
use crate::owner::Owner;
use crate::plan::{Bridge, Op, Plan, PlannedRoute, Setting, Side, Step, Via, When};
use crate::{ROUTE_PROTOCOL, detach, inspect, naming, serial};

/// One interface of one pod behind a bridge, complete: nothing is looked up later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    #[serde(flatten)]
    pub id: EndpointId,
    /// The name of the end in the node's namespace.
    pub host_name: IfName,
    /// The bridge.
    pub bridge: Bridge,
    /// Its options as a port of the bridge.
    #[serde(with = "serial::BridgePortFields")]
    pub mode: BridgePort,
    /// The pod's addresses, with the prefix lengths of their networks; none for a network without addresses.
    pub addresses: Vec<IpNet>,
    /// The pod's routes besides those to its addresses' networks.
    pub routes: Vec<PlannedRoute>,
    /// MTU of both ends, in bytes; 1500 by default.
    pub mtu: Option<u32>,
    /// The pod end's MAC; by default a stable one ([`naming::pod_mac`]).
    pub mac: Option<Mac>,
    /// Delete an interface in the way at once instead of leaving it to [`reap`](crate::reap): for
    /// callers without an agent.
    pub sync_delete: bool,
    /// What of the pod's frames is checked. Part of no plan: the caller puts it in force before the interface is wired.
    #[serde(default, skip_serializing_if = "SourceCheck::is_off")]
    pub source_check: SourceCheck,
}

/// What of the frames that a port sends is compared with what was wired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceCheck {
    /// Nothing.
    #[default]
    Off,
    /// The MAC.
    Mac,
    /// The MAC and the addresses.
    Addresses {
        /// What the pod may send from besides its addresses.
        allowed: Vec<IpNet>,
    },
}

// === impl Port ===

impl Port {
    /// The content of the host end's alias.
    pub fn owner(&self) -> Owner {
        Owner::new(&self.id)
    }

    /// The default name of the host end. Several sandboxes of a pod may exist at once, so it is
    /// derived from the container.
    pub fn default_host_name(id: &EndpointId) -> IfName {
        naming::host_end(Dialect::Native, id, None)
    }

    /// The MAC of the pod's end.
    pub fn pod_mac(&self) -> Mac {
        self.mac.unwrap_or_else(|| naming::pod_mac(&self.id))
    }

    fn has(&self, family: Family) -> bool {
        self.addresses.iter().any(|net| Family::of_net(net) == family)
    }

    fn validate(&self) -> Result<(), AttachmentError> {
        if self.id.ifname.as_str() == "lo" {
            return Err(AttachmentError::Loopback(self.id.ifname.clone()));
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(AttachmentError::TooManyAddresses(self.addresses.len()));
        }
        if self.routes.len() > MAX_ROUTES {
            return Err(AttachmentError::TooManyRoutes(self.routes.len()));
        }
        let unusable = |address: IpAddr| address.is_unspecified() || address.is_multicast();
        if let Some(net) = self.addresses.iter().find(|net| unusable(net.addr())) {
            let reason = "it is no address of a single station";
            return Err(AttachmentError::Address { address: net.addr(), reason });
        }
        check_mac(self.mac)?;
        check_mtu(self.mtu.unwrap_or(MTU_DEFAULT_BYTES), self.has(Family::V6))
    }

    fn pod_settings(&self) -> Vec<Setting> {
        let name = &self.id.ifname;
        // Neighbours learn the new MAC at once if another container had the address before.
        let mut settings =
            vec![Setting::of_link(format!("net/ipv4/conf/{name}/arp_notify"), "1").when(When::Present)];
        if self.has(Family::V6) {
            for scope in ["all", "default", "lo"] {
                settings.push(Setting::of_namespace(format!("net/ipv6/conf/{scope}/disable_ipv6"), "0"));
            }
            settings.push(Setting::of_link(format!("net/ipv6/conf/{name}/disable_ipv6"), "0"));
            settings.push(Setting::of_link(format!("net/ipv6/conf/{name}/accept_dad"), "0"));
        }
        settings
    }

    fn pod_ops(&self) -> Vec<Op> {
        let addresses = self.addresses.iter().copied().map(Op::Address);
        let routes = self.routes.iter().copied().map(Op::Route);
        [Op::LinkUp].into_iter().chain(addresses).chain(routes).collect()
    }
}

// === impl SourceCheck ===

impl SourceCheck {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// The steps that wire `port`.
pub fn plan_port(port: &Port) -> Result<Plan, AttachmentError> {
    port.validate()?;
    let steps = vec![
        Step::Bridge(port.bridge.clone()),
        Step::CreateVeth,
        Step::Sysctls { side: Side::Pod, settings: port.pod_settings() },
        Step::Batch { side: Side::Pod, ops: port.pod_ops() },
        Step::Gate,
        Step::Batch { side: Side::Host, ops: vec![Op::Join, Op::Port(port.mode), Op::LinkUp] },
        Step::Settle,
    ];
    Ok(Plan {
        owner: port.owner(),
        dialect: Dialect::Native,
        host_name: port.host_name.clone(),
        ifname: port.id.ifname.clone(),
        mtu: port.mtu.unwrap_or(MTU_DEFAULT_BYTES),
        pod_mac: port.pod_mac(),
        derived_mac: port.mac.is_none(),
        protocol: ROUTE_PROTOCOL,
        sync_delete: port.sync_delete,
        sizes: None,
        pair: Pair::Veth,
        steps,
    })
}

impl PlannedRoute {
    /// The route to `net` in the main table; without a gateway it leads to the link.
    pub fn new(net: IpNet, gateway: Option<IpAddr>) -> Self {
        let via = gateway.map_or(Via::Link, Via::Gateway);
        Self { net: net.trunc(), via, metric: None, table: Route::MAIN, scope: None }
    }

    /// With a scope by its number (`RT_SCOPE_*`).
    pub fn scope_number(mut self, number: u8) -> Self {
        self.scope = Some(Scope::of(number));
        self
    }
}

/// Whether the pod has an interface of this name already.
pub fn has_interface(
    netns: &NetNs,
    ifname: &IfName,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let mut socket = netns.with(Socket::route)??;
    Ok(inspect::by_name(&mut socket, ifname)?.is_some())
}

/// Deletes the pod's interface if another plugin made it a port of `bridge` (or of no bridge, if
/// that was deleted). Russet's own interfaces are left to [`detach`](crate::detach).
pub fn detach_port(
    host: &mut Socket,
    netns: &NetNs,
    ifname: &IfName,
    bridge: &IfName,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    if inspect::is_own(netns)? {
        return Ok(false);
    }
    let mut socket = netns.with(Socket::route)??;
    let Some(pod) = inspect::by_name(&mut socket, ifname)? else { return Ok(false) };
    let Some(index) = pod.link else { return Ok(false) };
    let bridge = inspect::by_name(host, bridge)?.map(|bridge| bridge.index);
    let is_port = |host: &Link| {
        inspect::is_pair(host, &pod)
            && host.alias.is_none()
            && (host.master.is_none() || host.master == bridge)
    };
    let Some(link) = inspect::by_index(host, index)?.filter(is_port) else { return Ok(false) };
    detach::delete(host, link.index).map(|()| true).map_err(|error: NetlinkError| error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> Port {
        Port {
            id: "net/abc/eth0".parse().unwrap(),
            host_name: "russ0".parse().unwrap(),
            bridge: Bridge {
                name: "cni0".parse().unwrap(),
                mtu: None,
                promiscuous: false,
                gateways: vec!["10.1.2.1/24".parse().unwrap()],
                force_address: false,
                mac: None,
            },
            mode: BridgePort { hairpin: true, isolated: false },
            addresses: vec!["10.1.2.7/24".parse().unwrap()],
            routes: vec![PlannedRoute::new("0.0.0.0/0".parse().unwrap(), Some("10.1.2.1".parse().unwrap()))],
            mtu: Some(1450),
            mac: Some("02:11:22:33:44:55".parse().unwrap()),
            sync_delete: false,
            source_check: SourceCheck::Off,
        }
    }

    #[test]
    fn the_host_end_joins_the_bridge_when_the_pod_is_ready() {
        let text = plan_port(&port()).unwrap().to_string();
        let expected = "\
russet:net/abc/eth0, routes of protocol 114
bridge
  node: cni0 with 10.1.2.1/24
create veth
  node: russ0 mac ee:ee:ee:ee:ee:ee mtu 1450 alias russet:net/abc/eth0
  pod: eth0 mac 02:11:22:33:44:55 mtu 1450
sysctls of the pod
  net/ipv4/conf/eth0/arp_notify = 1 if present
batch of the pod
  link up
  address 10.1.2.7/24
  route 0.0.0.0/0 via 10.1.2.1
gate
batch of the node
  port of the bridge
  hairpin true, isolated false
  link up
settle
";
        assert_eq!(text, expected);
    }

    #[test]
    fn invalid_addresses_and_names_are_refused_before_any_change() {
        for bad in ["0.0.0.0/24", "224.0.0.1/24", "::/64", "ff02::1/64"] {
            let port = Port { addresses: vec![bad.parse().unwrap()], ..port() };
            assert!(plan_port(&port).is_err(), "{bad}");
        }
        assert!(plan_port(&Port { id: "net/abc/lo".parse().unwrap(), ..port() }).is_err());
        assert!(plan_port(&Port { mtu: Some(67), ..port() }).is_err());
        let six = vec!["fd00::2/64".parse().unwrap()];
        assert!(plan_port(&Port { mtu: Some(1279), addresses: six, ..port() }).is_err());
        assert!(plan_port(&Port { mac: Some(Mac([1, 0, 0, 0, 0, 1])), ..port() }).is_err());
    }
}
