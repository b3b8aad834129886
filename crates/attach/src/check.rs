//! Compares an attachment with the kernel: for CNI's CHECK, and for the agent after a restart.
//!
//! The desired state is the plan's steps, the same that wired it; here each is compared instead of
//! executed.

use std::fmt;

use russet_addr::{Family, IfName, Mac};
use russet_linux::sysctl::{self, SysctlError};
use russet_linux::{NetNs, NetNsError};
use russet_netlink::{
    Address, BridgePort, Link, Neighbour, NeighbourState, NetlinkError, Route, RouteFilter, Rule, Socket,
};

use crate::attachment::{Attachment, AttachmentError, Dialect};
use crate::executor::wire_route;
use crate::inspect;
use crate::plan::{Op, Plan, Setting, Side, Step, When, plan};
use crate::rules::wire_rule;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The namespace.
    pub side: Side,
    /// The object and property: `mtu of eth0`.
    pub subject: String,
    /// The desired value.
    pub wanted: String,
    /// The value in the kernel.
    pub found: String,
}

/// Why the comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The attachment is invalid.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// The pod's namespace cannot be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel cannot be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A sysctl cannot be read.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// One side's tables, as far as they concern one link.
struct Tables {
    master: Option<u32>,
    port: Option<BridgePort>,
    /// The index of the plan's bridge.
    bridge: Option<u32>,
    addresses: Vec<Address>,
    neighbours: Vec<Neighbour>,
    routes: Vec<Route>,
    rules: Vec<Rule>,
}

/// A side and the differences found so far.
struct Checker<'c> {
    side: Side,
    name: &'c IfName,
    /// Calico's own plugin made the veth, with fewer settings.
    by_calico: bool,
    found: Vec<Mismatch>,
}

/// Sysctls that Calico's plugin did not write before v3 (calico-cni.md section 3.3).
const NEWER_SETTINGS: [&str; 3] = ["route_localnet", "accept_ra", "accept_dad"];

/// The differences from `attachment`; empty if there are none.
pub fn check(attachment: &Attachment, host: &mut Socket, netns: &NetNs) -> Result<Vec<Mismatch>, CheckError> {
    check_plan(&plan(attachment)?, host, netns)
}

/// The differences from `plan`; empty if there are none. A port of a bridge may have been made by
/// another plugin, with its own MAC and alias on the host end. In Calico's dialect, on a node that
/// was migrated with its pods, the veth may have been made by Calico's plugin, which writes no
/// alias and no neighbours.
pub fn check_plan(plan: &Plan, host: &mut Socket, netns: &NetNs) -> Result<Vec<Mismatch>, CheckError> {
    let mut pod = netns.with(Socket::route)??;
    let host_link = inspect::by_name(host, &plan.host_name)?;
    let pod_link = inspect::by_name(&mut pod, &plan.ifname)?;
    let pair = matches!((&host_link, &pod_link), (Some(host), Some(pod)) if inspect::is_pair(host, pod));

    let by_calico = host_link.as_ref().is_some_and(|link| is_by_calico(link, pod_link.as_ref(), plan));
    let mut node = Checker { side: Side::Host, name: &plan.host_name, by_calico, found: Vec::new() };
    let foreign = plan.bridge().is_some() && host_link.as_ref().is_some_and(|link| link.alias.is_none());
    node.link(host_link.as_ref(), plan, (!foreign).then_some(Mac::GATEWAY));
    if !foreign && !by_calico {
        node.owner(host_link.as_ref(), plan);
    }
    if let Some(link) = &host_link {
        let bridge = match plan.bridge() {
            Some(bridge) => inspect::by_name(host, &bridge.name)?.map(|link| link.index),
            None => None,
        };
        node.tables(plan, link, &Tables { bridge, ..Tables::read(host, link)? });
        node.sysctls(plan)?;
    }
    let mut inside = Checker { side: Side::Pod, name: &plan.ifname, by_calico, found: Vec::new() };
    inside.link(pod_link.as_ref(), plan, (!by_calico || !plan.derived_mac).then_some(plan.pod_mac));
    if host_link.is_some() && pod_link.is_some() && !pair {
        inside.differ("other end".to_owned(), plan.host_name.to_string(), "another link".to_owned());
    }
    if let Some(link) = &pod_link {
        inside.tables(plan, link, &Tables::read(&mut pod, link)?);
        netns.with(|| inside.sysctls(plan))??;
    }
    node.found.append(&mut inside.found);
    Ok(node.found)
}

/// Whether Calico's plugin made the link: it leaves the pod a random MAC, where Russet derives one,
/// and writes no alias. Endpoints in the Kubernetes API have no MAC, so that the plan has the derived
/// one there, which such a link has not.
fn is_by_calico(host_link: &Link, pod_link: Option<&Link>, plan: &Plan) -> bool {
    let is_random = !plan.derived_mac || pod_link.is_some_and(|link| link.mac != Some(plan.pod_mac));
    plan.dialect == Dialect::Calico && is_random && host_link.alias.is_none()
}

// === impl Tables ===

impl Tables {
    fn read(socket: &mut Socket, link: &Link) -> Result<Self, NetlinkError> {
        let ifindex = link.index;
        let filter = RouteFilter { oif: Some(ifindex), ..RouteFilter::default() };
        let (mut neighbours, mut routes, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        for family in Family::BOTH {
            neighbours.extend(socket.neighbours_of(family, ifindex)?);
            routes.extend(socket.routes_where(family, filter)?);
            rules.extend(socket.rules(family)?);
        }
        let (master, port, bridge) = (link.master, link.bridge_port, None);
        let addresses = socket.addresses_of(ifindex)?;
        Ok(Self { master, port, bridge, addresses, neighbours, routes, rules })
    }

    fn has(&self, op: &Op, ifindex: u32, protocol: u8) -> bool {
        match op {
            Op::LinkUp => true,
            Op::Join => self.master.is_some() && self.master == self.bridge,
            Op::Port(port) => self.port == Some(*port),
            Op::Address(address) => self.addresses.iter().any(|a| a.net == *address),
            Op::Neighbour(wanted) => self.neighbours.iter().any(|n| {
                n.address == wanted.address
                    && n.mac == Some(wanted.mac)
                    && n.state == NeighbourState::Permanent
            }),
            Op::Rule(rule) => self.rules.contains(&wire_rule(rule)),
            Op::Route(route) => {
                let wanted = wire_route(route, ifindex, protocol);
                // The kernel shows IPv6 routes with the metric that it chose, and any protocol is
                // accepted.
                self.routes.iter().any(|route| {
                    route.dst == wanted.dst
                        && route.table == wanted.table
                        && route.gateway == wanted.gateway
                        && wanted.metric.is_none_or(|metric| route.metric == Some(metric))
                })
            }
        }
    }
}

// === impl Checker ===

impl Checker<'_> {
    fn differ(&mut self, subject: String, wanted: String, found: String) {
        self.found.push(Mismatch { side: self.side, subject, wanted, found });
    }

    fn link(&mut self, link: Option<&Link>, plan: &Plan, mac: Option<Mac>) {
        let name = self.name;
        let Some(link) = link else {
            return self.differ(format!("link {name}"), "present".to_owned(), "missing".to_owned());
        };
        if link.mtu_bytes != plan.mtu {
            self.differ(format!("mtu of {name}"), plan.mtu.to_string(), link.mtu_bytes.to_string());
        }
        if let Some(mac) = mac.filter(|mac| link.mac != Some(*mac)) {
            let found = link.mac.map_or_else(|| "none".to_owned(), |mac| mac.to_string());
            self.differ(format!("mac of {name}"), mac.to_string(), found);
        }
        if !link.is_up() {
            self.differ(format!("state of {name}"), "up".to_owned(), "down".to_owned());
        }
    }

    fn owner(&mut self, link: Option<&Link>, plan: &Plan) {
        if let Some(link) = link.filter(|link| inspect::owner(link).as_ref() != Some(&plan.owner)) {
            let found = link.alias.clone().unwrap_or_else(|| "none".to_owned());
            self.differ(format!("alias of {}", self.name), plan.owner.to_string(), found);
        }
    }

    fn tables(&mut self, plan: &Plan, link: &Link, tables: &Tables) {
        for step in &plan.steps {
            let Step::Batch { side, ops } = step else { continue };
            if *side != self.side {
                continue;
            }
            let left_out = |op: &&Op| self.by_calico && matches!(op, Op::Neighbour(_));
            let missing = |op: &&Op| !left_out(op) && !tables.has(op, link.index, plan.protocol);
            for op in ops.iter().filter(missing).collect::<Vec<_>>() {
                self.differ(format!("{op}, {}", self.name), "present".to_owned(), "missing".to_owned());
            }
        }
    }

    /// Reads this side's settings; the caller makes sure that the thread is in the side's
    /// namespace.
    fn sysctls(&mut self, plan: &Plan) -> Result<(), SysctlError> {
        let settings = plan.steps.iter().flat_map(|step| match step {
            Step::Sysctls { side, settings } if *side == self.side => settings.as_slice(),
            _ => &[],
        });
        let newer = |path: &str| NEWER_SETTINGS.iter().any(|name| path.ends_with(name));
        let settings = settings.filter(|setting| !self.by_calico || !newer(&setting.path));
        let mut found = Vec::new();
        for Setting { path, value, when, .. } in settings {
            match sysctl::read(path) {
                Ok(now) if now == *value => {}
                Ok(now) => found.push((path, value, now)),
                Err(error) if error.is_missing() && *when == When::Present => {}
                Err(error) if error.is_missing() => found.push((path, value, "missing".to_owned())),
                Err(error) => return Err(error),
            }
        }
        for (path, value, now) in found {
            self.differ(format!("sysctl {path}"), (*value).to_owned(), now);
        }
        Ok(())
    }
}

// === impl Mismatch ===

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, subject, wanted, found } = self;
        write!(f, "{side}: {subject}: {found}, should be {wanted}")
    }
}
