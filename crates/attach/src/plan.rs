//! From an [`Attachment`] to ordered steps: pure, and the only place with decisions about a pod's
//! wiring.
//!
//! The order is calico-cni.md section 3.3 with four improvements, all invisible to peers: the veth is created in
//! place, with MAC, MTU and alias, in one message; each side gets one batch; the gateways are permanent neighbours
//! inside the pod and the pod is one on the node, so nothing ever waits for ARP and a node without a default route,
//! whose proxy ARP stays silent, works as well; and the host end, which opens the path, comes up last, behind a
//! gate where the caller makes sure that the pod's verdicts are in force.

mod text;

use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac, host_net};
use russet_netlink::{BridgePort, PacketSizes, Route, Scope};
use serde::{Deserialize, Serialize};

use crate::attachment::{Attachment, AttachmentError, Dialect, Pair};
use crate::naming::{GATEWAY_V4, GATEWAY_V6};
use crate::owner::Owner;
use crate::{ROUTE_PROTOCOL, rules, serial};

/// The steps of an [`Executor`](crate::Executor), in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The owner of the links.
    pub owner: Owner,
    /// The conventions for links in the way.
    pub dialect: Dialect,
    /// The end in the node's namespace.
    pub host_name: IfName,
    /// The end inside the pod.
    pub ifname: IfName,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// The pod end's MAC; the host end has [`Mac::GATEWAY`].
    pub pod_mac: Mac,
    /// That MAC is derived from container and interface, and was not configured: no other program
    /// makes a veth with it.
    pub derived_mac: bool,
    /// `rtm_protocol` of every route.
    pub protocol: u8,
    /// Delete an old sandbox's link at once instead of leaving it to `reap`.
    pub sync_delete: bool,
    /// The largest packets of both ends inside the kernel, if it is created; the kernel's default otherwise.
    pub sizes: Option<PacketSizes>,
    /// What the two ends are, if they are created.
    pub pair: Pair,
    /// The steps.
    pub steps: Vec<Step>,
}

/// One step. An error names the step that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the bridge of the host end, or adapt an existing one. It belongs to the network, not
    /// to the pod: nothing of this is undone.
    Bridge(Bridge),
    /// Create the pair, each end in its namespace.
    CreateVeth,
    /// Write these, in order.
    Sysctls {
        /// The namespace.
        side: Side,
        /// What to write.
        settings: Vec<Setting>,
    },
    /// Send these in one batch.
    Batch {
        /// The namespace and the end of the veth.
        side: Side,
        /// What to do.
        ops: Vec<Op>,
    },
    /// Let the caller decide whether packets may flow.
    Gate,
    /// Read both ends once more, so that the kernel finishes setting them up before ADD answers.
    Settle,
}

/// Which end of the veth, and which namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The node's.
    Host,
    /// The pod's.
    Pod,
}

/// A value under `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The path below `/proc/sys`, with slashes.
    pub path: String,
    /// The value.
    pub value: &'static str,
    /// Whether it is required.
    pub when: When,
    /// Whether it belongs to the namespace and so outlives the link.
    pub lasting: bool,
}

/// Whether a [`Setting`] is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Failing to write it fails the attachment.
    Required,
    /// Not needed on a kernel that does not have it (IPv6 disabled); any other failure counts.
    Present,
}

/// One message about an end of the veth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Set the link up.
    LinkUp,
    /// Make it a port of the plan's bridge.
    Join,
    /// The options of a port of the bridge.
    Port(BridgePort),
    /// Add this address, without duplicate-address detection.
    Address(IpNet),
    /// A neighbour that never expires.
    Neighbour(PermanentNeighbour),
    /// A route.
    Route(PlannedRoute),
    /// A rule for packets with one of the pod's addresses.
    Rule(SourceRule),
}

/// A neighbour that never expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermanentNeighbour {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC.
    pub mac: Mac,
}

/// A routing table for packets with a source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRule {
    /// The address.
    pub from: IpAddr,
    /// The table.
    pub table: u32,
}

/// A route out of one end of the veth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRoute {
    /// The destination.
    pub net: IpNet,
    /// How to get there.
    pub via: Via,
    /// The metric; none is the kernel's default (0 for IPv4, 1024 for IPv6).
    pub metric: Option<u32>,
    /// The table.
    pub table: u32,
    /// The scope; none is link scope for a route without a gateway, and global otherwise.
    #[serde(with = "serial::optional_scope")]
    pub scope: Option<Scope>,
}

/// The bridge of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bridge {
    /// Its name.
    pub name: IfName,
    /// Its MTU in bytes, if it has to be created; the kernel's default otherwise.
    pub mtu: Option<u32>,
    /// Whether it is promiscuous.
    pub promiscuous: bool,
    /// Its addresses. The node forwards for them.
    pub gateways: Vec<IpNet>,
    /// Remove other addresses that conflict with them.
    pub force_address: bool,
    /// Its MAC, if it has to be created; a random one otherwise. A bridge that is recreated gets
    /// its earlier MAC, because pods have it in their neighbour tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

/// The next hop of a [`PlannedRoute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The destination itself, on the link.
    Link,
    /// A gateway on the link.
    Gateway(IpAddr),
}

/// `RTPROT_BOOT`, the protocol of routes of Calico's plugin (calico-cni.md section 3.5).
pub(crate) const PROTOCOL_BOOT: u8 = 3;

/// The steps that wire `attachment`.
pub fn plan(attachment: &Attachment) -> Result<Plan, AttachmentError> {
    attachment.validate()?;
    let steps = vec![
        Step::CreateVeth,
        Step::Sysctls { side: Side::Host, settings: host_settings(attachment) },
        Step::Sysctls { side: Side::Pod, settings: pod_settings(attachment) },
        Step::Batch { side: Side::Pod, ops: pod_ops(attachment) },
        Step::Gate,
        Step::Batch { side: Side::Host, ops: host_ops(attachment) },
        Step::Settle,
    ];
    Ok(Plan {
        owner: attachment.owner(),
        dialect: attachment.dialect,
        host_name: attachment.host_name.clone(),
        ifname: attachment.id.ifname.clone(),
        mtu: attachment.mtu,
        pod_mac: attachment.pod_mac(),
        derived_mac: attachment.has_derived_mac(),
        protocol: match attachment.dialect {
            Dialect::Native => ROUTE_PROTOCOL,
            Dialect::Calico => PROTOCOL_BOOT,
        },
        sync_delete: attachment.sync_delete,
        sizes: attachment.sizes,
        pair: attachment.pair,
        steps,
    })
}

/// calico-cni.md section 3.4. `accept_ra` matters without IPv6, too: a pod that sends router advertisements must
/// not become the node's default gateway (CVE-2020-10749). Natively there is no Felix to set `rp_filter`, which
/// keeps a pod from sending with an address that is not its own, nor one to guard `route_localnet`, which lets
/// pods reach the node's 127.0.0.1.
fn host_settings(attachment: &Attachment) -> Vec<Setting> {
    let name = &attachment.host_name;
    let v4 = |knob: &str, value| Setting::of_link(format!("net/ipv4/conf/{name}/{knob}"), value);
    let v6 = |knob: &str, value| Setting::of_link(format!("net/ipv6/conf/{name}/{knob}"), value);
    let mut settings = vec![v6("accept_ra", "0").when(When::Present)];
    if attachment.has(Family::V4) {
        settings.push(Setting::of_link(format!("net/ipv4/neigh/{name}/proxy_delay"), "0"));
        settings.push(v4("proxy_arp", "1"));
        settings.push(v4("forwarding", "1"));
        settings.push(match attachment.dialect {
            Dialect::Native => v4("rp_filter", "1"),
            Dialect::Calico => v4("route_localnet", "1"),
        });
    }
    if attachment.has(Family::V6) {
        settings.push(v6("disable_ipv6", "0"));
        settings.push(v6("accept_dad", "0"));
        settings.push(v6("proxy_ndp", "1"));
        settings.push(v6("forwarding", "1"));
    }
    settings
}

/// calico-cni.md section 3.3, steps 4, 9 and 11.
fn pod_settings(attachment: &Attachment) -> Vec<Setting> {
    let forwarding = if attachment.allow_ip_forwarding { "1" } else { "0" };
    let mut settings = Vec::new();
    if attachment.has(Family::V6) {
        for scope in ["all", "default", "lo"] {
            settings.push(Setting::of_namespace(format!("net/ipv6/conf/{scope}/disable_ipv6"), "0"));
        }
        let name = &attachment.id.ifname;
        settings.push(Setting::of_link(format!("net/ipv6/conf/{name}/disable_ipv6"), "0"));
        settings.push(Setting::of_link(format!("net/ipv6/conf/{name}/accept_dad"), "0"));
        settings.push(Setting::of_namespace("net/ipv6/conf/all/forwarding".to_owned(), forwarding));
    }
    if attachment.has(Family::V4) {
        settings.push(Setting::of_namespace("net/ipv4/ip_forward".to_owned(), forwarding));
    }
    settings
}

/// calico-cni.md section 3.2. Addresses come before routes, so that the kernel has a source to choose, and
/// neighbours before the routes that use them.
fn pod_ops(attachment: &Attachment) -> Vec<Op> {
    let mut ops = vec![Op::LinkUp];
    ops.extend(attachment.addresses.iter().map(|address| Op::Address(host_net(*address))));
    for family in Family::BOTH.into_iter().filter(|family| attachment.has(*family)) {
        ops.push(Op::Neighbour(PermanentNeighbour { address: gateway(family), mac: Mac::GATEWAY }));
    }
    ops.extend(pod_routes(attachment, Route::MAIN, attachment.route_metric));
    if attachment.is_secondary() {
        let table = rules::table(&attachment.id.ifname);
        ops.extend(pod_routes(attachment, table, None));
        ops.extend(attachment.addresses.iter().map(|from| Op::Rule(SourceRule { from: *from, table })));
    }
    ops
}

fn pod_routes(attachment: &Attachment, table: u32, metric: Option<u32>) -> Vec<Op> {
    let route = |net, via| Op::Route(PlannedRoute { net, via, metric, table, scope: None });
    let link = attachment.has(Family::V4).then(|| route(host_net(GATEWAY_V4.into()), Via::Link));
    let far = |net: IpNet| route(net, Via::Gateway(gateway(Family::of_net(&net))));
    link.into_iter().chain(attachment.destinations().into_iter().map(far)).collect()
}

/// calico-cni.md section 3.5. The kernel refuses routes out of a link that is down, so they follow it; until the
/// last message nothing on the node finds the pod.
fn host_ops(attachment: &Attachment) -> Vec<Op> {
    let mac = attachment.pod_mac();
    let neighbour = |address: &IpAddr| Op::Neighbour(PermanentNeighbour { address: *address, mac });
    let route = |address: &IpAddr| {
        let (net, via) = (host_net(*address), Via::Link);
        Op::Route(PlannedRoute { net, via, metric: None, table: Route::MAIN, scope: None })
    };
    let addresses = &attachment.addresses;
    let neighbours = addresses.iter().map(neighbour);
    neighbours.chain([Op::LinkUp]).chain(addresses.iter().map(route)).collect()
}

/// The gateway of every pod.
fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => GATEWAY_V4.into(),
        Family::V6 => GATEWAY_V6.into(),
    }
}

// === impl Setting ===

impl Setting {
    pub(crate) fn of_link(path: String, value: &'static str) -> Self {
        Self { path, value, when: When::Required, lasting: false }
    }

    pub(crate) fn of_namespace(path: String, value: &'static str) -> Self {
        Self { lasting: true, ..Self::of_link(path, value) }
    }

    pub(crate) fn when(self, when: When) -> Self {
        Self { when, ..self }
    }
}

// === impl Op ===

impl Op {
    /// Whether it remains after the veth is deleted.
    pub const fn outlives_link(&self) -> bool {
        matches!(self, Op::Rule(_))
    }
}

// === impl Step ===

impl Step {
    /// The name in errors and stage times.
    pub const fn name(&self) -> &'static str {
        match self {
            Step::Bridge(_) => "bridge",
            Step::CreateVeth => "create veth",
            Step::Sysctls { side: Side::Host, .. } => "sysctls of the node",
            Step::Sysctls { side: Side::Pod, .. } => "sysctls of the pod",
            Step::Batch { side: Side::Host, .. } => "batch of the node",
            Step::Batch { side: Side::Pod, .. } => "batch of the pod",
            Step::Gate => "gate",
            Step::Settle => "settle",
        }
    }
}

// === impl Plan ===

impl Plan {
    /// The bridge that the host end is a port of.
    pub fn bridge(&self) -> Option<&Bridge> {
        self.steps.iter().find_map(|step| match step {
            Step::Bridge(bridge) => Some(bridge),
            _ => None,
        })
    }

    /// The sysctls of the node's namespace.
    pub(crate) fn host_settings(&self) -> impl Iterator<Item = &Setting> {
        let settings = self.steps.iter().filter_map(|step| match step {
            Step::Sysctls { side: Side::Host, settings } => Some(settings),
            _ => None,
        });
        settings.flatten()
    }

    /// The pod's addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpNet> + '_ {
        let ops = self.steps.iter().flat_map(|step| match step {
            Step::Batch { side: Side::Pod, ops } => ops.as_slice(),
            _ => &[],
        });
        ops.filter_map(|op| match op {
            Op::Address(address) => Some(*address),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
