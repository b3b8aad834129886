//! Compares the host ends of attachments with the kernel and restores what other programs removed
//! or changed: drift repair.
//!
//! The desired state is the plans' steps for the host end, the same that wired it. All attachments
//! are compared with one reading of the kernel's tables, so that a node with hundreds of pods costs
//! a handful of dumps. The caller makes sure that none of the attachments is being wired or
//! removed.
//!
//! A pod whose host end is gone is not drift: its namespace is gone, too. Nor is a link that waits
//! for its deletion, or that belongs to another sandbox of the pod.

mod execute;
mod tables;

use std::fmt;

use russet_addr::{Family, IfName};
use russet_linux::sysctl;
use russet_netlink::Link;

use crate::inspect;
use crate::plan::{Bridge, Op, Plan, Setting, Side, Step, When};

pub use execute::{RestoreError, restore};
pub use tables::Tables;

/// One difference, and how to repair it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// The host end.
    pub host_name: IfName,
    /// Its index.
    pub ifindex: u32,
    /// The protocol of its routes.
    pub protocol: u8,
    /// How to repair it.
    pub remedy: Remedy,
}

/// How to repair a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Restore its name; this is what it is called now.
    Name(String),
    /// Write its owner.
    Alias(String),
    /// Set the MAC of host ends.
    Mac,
    /// Set its MTU in bytes.
    Mtu(u32),
    /// Write a sysctl.
    Sysctl(Setting),
    /// Create the bridge, or adapt it, and make the host end a port of it again.
    Bridge(Bridge),
    /// Make it a port of the bridge with this index.
    Join(u32),
    /// Do one operation of its plan again.
    Op(Op),
}

/// How much is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What netlink reports, and every sysctl of links with a difference that a sysctl may have
    /// caused.
    Tables,
    /// Also every sysctl: a handful of files for each link.
    Everything,
}

/// The differences between `plans` and the kernel on the node's side; empty if there are none.
/// Sysctls follow the calling thread's namespace.
pub fn differences(plans: &[Plan], tables: &Tables, depth: Depth) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for plan in plans {
        let Some(link) = link_of(plan, tables) else { continue };
        let mut subject = Comparison { plan, link, tables, fixes: Vec::new() };
        subject.compare();
        subject.sysctls(depth);
        subject.fixes.sort_by_key(|fix| fix.remedy.order());
        fixes.append(&mut subject.fixes);
    }
    fixes
}

/// The attachment's host end, by its name or, if it was renamed, by its alias.
fn link_of<'t>(plan: &Plan, tables: &'t Tables) -> Option<&'t Link> {
    let ours = |link: &&Link| match inspect::owner(link) {
        Some(owner) => owner == plan.owner && !inspect::is_doomed(link),
        // The alias may have been removed; a link that is just being created has none yet.
        None => link.alias.is_none() && is_host_end(link) && !inspect::is_precreated(link),
    };
    let named = tables.link(&plan.host_name);
    match named {
        Some(link) => Some(link).filter(ours),
        None => tables.owned(&plan.owner).filter(ours),
    }
}

fn is_host_end(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth") && link.link_netnsid.is_some()
}

/// An attachment that is compared.
struct Comparison<'a> {
    plan: &'a Plan,
    link: &'a Link,
    tables: &'a Tables,
    fixes: Vec<Fix>,
}

// === impl Comparison ===

impl Comparison<'_> {
    fn fix(&mut self, remedy: Remedy) {
        let Self { plan, link, .. } = self;
        let (host_name, protocol) = (plan.host_name.clone(), plan.protocol);
        self.fixes.push(Fix { host_name, ifindex: link.index, protocol, remedy });
    }

    fn compare(&mut self) {
        let (plan, link, tables) = (self.plan, self.link, self.tables);
        // A port of a bridge may have been made by another plugin, with its own MAC and without an
        // alias.
        let foreign = plan.bridge().is_some() && link.alias.is_none();
        if link.name != plan.host_name.as_str() {
            self.fix(Remedy::Name(link.name.clone()));
        }
        if inspect::owner(link).is_none() && !foreign {
            self.fix(Remedy::Alias(plan.owner.to_string()));
        }
        if link.mac != Some(russet_addr::Mac::GATEWAY) && !foreign {
            self.fix(Remedy::Mac);
        }
        if link.mtu_bytes != plan.mtu {
            self.fix(Remedy::Mtu(plan.mtu));
        }
        for step in &plan.steps {
            match step {
                Step::Bridge(bridge) if !tables.has_bridge(bridge) => {
                    self.fix(Remedy::Bridge(bridge.clone()));
                }
                Step::Batch { side: Side::Host, ops } => {
                    for op in ops.iter().filter(|op| !tables.has(op, link, plan)) {
                        match (op, plan.bridge().filter(|bridge| tables.has_bridge(bridge))) {
                            (Op::Join, Some(bridge)) => {
                                let index = tables.link(&bridge.name).map(|bridge| bridge.index);
                                index.into_iter().for_each(|index| self.fix(Remedy::Join(index)));
                            }
                            // Restored together with its bridge.
                            (Op::Join, None) => {}
                            _ => self.fix(Remedy::Op(*op)),
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// A sysctl that cannot be read is left to CHECK.
    fn sysctls(&mut self, depth: Depth) {
        let files =
            depth == Depth::Everything || self.fixes.iter().any(|fix| fix.remedy.may_be_of_a_sysctl());
        for step in &self.plan.steps {
            let Step::Sysctls { side: Side::Host, settings } = step else { continue };
            for setting in settings {
                let right = match self.tables.setting(self.link, setting) {
                    Some(right) => right,
                    None => !files || as_set(setting),
                };
                if !right {
                    self.fix(Remedy::Sysctl(setting.clone()));
                }
            }
        }
    }
}

fn as_set(setting: &Setting) -> bool {
    match sysctl::read(&setting.path) {
        Ok(now) => now == setting.value,
        Err(error) => error.is_missing() && setting.when == When::Present || !error.is_missing(),
    }
}

// === impl Remedy ===

impl Remedy {
    /// Remedies that others need come first: sysctls are found by the link's name, and a link
    /// without IPv6 refuses routes.
    fn order(&self) -> u8 {
        match self {
            Remedy::Name(_) => 0,
            Remedy::Alias(_) | Remedy::Mac | Remedy::Mtu(_) => 1,
            Remedy::Sysctl(_) => 2,
            Remedy::Bridge(_) => 3,
            // Neighbours, the link, routes: in the order of the plan; IPv6 neighbours vanish with a
            // link that is down.
            Remedy::Join(_) | Remedy::Op(Op::LinkUp | Op::Join | Op::Port(_)) => 4,
            Remedy::Op(_) => 5,
        }
    }

    /// Whether a sysctl may have caused it: no IPv4 sysctl removes a route or neighbour.
    fn may_be_of_a_sysctl(&self) -> bool {
        match self {
            Remedy::Op(Op::Route(route)) => Family::of_net(&route.net) == Family::V6,
            Remedy::Op(Op::Neighbour(neighbour)) => neighbour.address.is_ipv6(),
            _ => true,
        }
    }

    /// The label of metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Remedy::Sysctl(_) => "pod_sysctl",
            Remedy::Bridge(_) => "bridge",
            Remedy::Op(Op::Route(_) | Op::Rule(_)) => "pod_route",
            Remedy::Op(Op::Neighbour(_)) => "pod_neighbour",
            _ => "pod_link",
        }
    }
}

// === impl Fix ===

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.host_name;
        match &self.remedy {
            Remedy::Name(found) => write!(f, "rename link {found} to {name}"),
            Remedy::Alias(alias) => write!(f, "write alias {alias} on {name}"),
            Remedy::Mac => write!(f, "set mac of {name} to {}", russet_addr::Mac::GATEWAY),
            Remedy::Mtu(mtu) => write!(f, "set mtu of {name} to {mtu}"),
            Remedy::Sysctl(setting) => write!(f, "write sysctl {} = {}", setting.path, setting.value),
            Remedy::Bridge(bridge) => write!(f, "restore bridge {}", bridge.name),
            Remedy::Join(_) => write!(f, "make {name} a port of its bridge"),
            Remedy::Op(Op::LinkUp) => write!(f, "set {name} up"),
            Remedy::Op(op) => write!(f, "put {op}, {name}"),
        }
    }
}
