//! One attachment in progress: the steps, and what they have found so far.

use russet_addr::Mac;
use russet_linux::NetNs;
use russet_linux::sysctl::{self, SysctlError};
use russet_netlink::{Batch, Link, NetlinkError, Route, Socket};

use super::bridge::prepare_bridge;
use super::record::{Record, Reversal, World};
use super::{AttachCause, Attached, Hooks, Pending, create, request};
use crate::inspect;
use crate::plan::{Op, Plan, PlannedRoute, Setting, Side, Step, When};
use crate::precreate::PrecreatedVeth;

/// An attachment in progress.
pub(super) struct Run<'r> {
    pub host: &'r mut Socket,
    pub plan: &'r Plan,
    pub netns: &'r NetNs,
    /// The veth, if it was precreated.
    pub precreated: Option<PrecreatedVeth>,
    /// Opened when it is first needed.
    pub pod: Option<Socket>,
    /// The bridge, after its step.
    pub bridge: Option<Link>,
    pub ends: Option<Ends>,
    pub record: Record,
}

/// The two ends of the veth.
pub(super) struct Ends {
    /// The node's end.
    pub host: Link,
    /// The pod's end, in its namespace.
    pub pod_ifindex: u32,
    /// The pod's end as it was, if the veth existed before.
    pub reused: Option<Link>,
}

/// Prefix of the sysctls that do not exist on a kernel without IPv6.
const IPV6_SYSCTLS: &str = "net/ipv6/";

// === impl Run ===

impl<'r> Run<'r> {
    pub fn new(
        host: &'r mut Socket,
        plan: &'r Plan,
        netns: &'r NetNs,
        precreated: Option<PrecreatedVeth>,
    ) -> Self {
        Self { host, plan, netns, precreated, pod: None, bridge: None, ends: None, record: Record::default() }
    }

    /// Executes all steps, or returns the one that failed.
    pub fn carry_out(&mut self, hooks: &mut dyn Hooks) -> Result<Attached, (&'r Step, AttachCause)> {
        let mut last = None;
        for step in &self.plan.steps {
            let before = hooks.before(step).map_err(AttachCause::Refused);
            before.and_then(|()| self.step(step, hooks)).map_err(|cause| (step, cause))?;
            last = Some(step);
        }
        let vanished = || AttachCause::Vanished(self.plan.host_name.to_string());
        match (self.attached(), last) {
            (Some(attached), _) => Ok(attached),
            (None, Some(step)) => Err((step, vanished())),
            (None, None) => Err((&Step::CreateVeth, vanished())),
        }
    }

    /// Reverses the changes; returns the errors.
    pub fn undo(&mut self) -> Vec<String> {
        let Self { host, pod, netns, plan, record, .. } = self;
        record.run(&mut World { host, pod: pod.as_mut(), netns, protocol: plan.protocol })
    }

    fn step(&mut self, step: &Step, hooks: &mut dyn Hooks) -> Result<(), AttachCause> {
        match step {
            Step::Bridge(bridge) => {
                self.bridge = Some(prepare_bridge(self.host, bridge)?);
                Ok(())
            }
            Step::CreateVeth => self.create(),
            Step::Sysctls { side: Side::Host, settings } => self.write(Side::Host, settings),
            Step::Sysctls { side: Side::Pod, settings } => {
                let _inside = self.netns.enter()?;
                if self.pod.is_none() {
                    self.pod = Some(Socket::route()?);
                }
                self.write(Side::Pod, settings)
            }
            Step::Batch { side, ops } => self.send(*side, ops),
            Step::Gate => {
                let pending = self.pending()?;
                hooks.gate(&pending).map_err(AttachCause::Refused)
            }
            Step::Settle => self.settle(),
        }
    }

    /// Writes values that differ, and remembers the old ones of settings that outlive the veth.
    fn write(&mut self, side: Side, settings: &[Setting]) -> Result<(), AttachCause> {
        let precreated = self.ends.as_ref().is_some_and(|ends| ends.reused.is_none());
        for setting in settings {
            if precreated && side == Side::Host && create::is_set_at_creation(&self.plan.host_name, setting) {
                continue;
            }
            let Setting { path, value, when, lasting } = setting;
            let written = match (lasting, precreated) {
                (true, _) => replace(path, value),
                // A new link never has the desired value already. If sysctls cannot be written,
                // this finds it out, too.
                (false, true) => sysctl::write(path, value)
                    .or_else(|_| sysctl::write_if_different(path, value).map(drop))
                    .map(|()| None),
                (false, false) => sysctl::write_if_different(path, value).map(|_| None),
            };
            match written {
                Ok(Some(value)) => self.record.push(Reversal::Sysctl { side, path: path.clone(), value }),
                Ok(None) => {}
                Err(error) if error.is_missing() && *when == When::Present => {}
                Err(error) if error.is_missing() && path.starts_with(IPV6_SYSCTLS) => {
                    return Err(AttachCause::NoIpv6(error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends one batch. On an existing veth, objects that exist and are ours are kept, and new ones
    /// are recorded; a new veth takes everything with it when it is deleted.
    fn send(&mut self, side: Side, ops: &[Op]) -> Result<(), AttachCause> {
        let ends = self.ends()?;
        let (ifindex, old) = match side {
            Side::Host => (ends.host.index, ends.reused.as_ref().map(|_| ends.host.is_up())),
            Side::Pod => (ends.pod_ifindex, ends.reused.as_ref().map(Link::is_up)),
        };
        let mut batch = Batch::new();
        let bridge = self.bridge.as_ref().map(|bridge| bridge.index);
        ops.iter().for_each(|op| request::push(&mut batch, op, ifindex, bridge, self.plan.protocol));
        let mut outcome = Ok(());
        for (op, result) in ops.iter().zip(self.socket(side)?.execute_all(&batch)) {
            let noted = match result {
                Ok(()) if old.is_none() && !op.outlives_link() => Ok(()),
                Ok(()) if *op == Op::LinkUp && old == Some(true) => Ok(()),
                Ok(()) => {
                    self.record.push(Reversal::Op { side, ifindex, op: *op });
                    Ok(())
                }
                Err(error) if error.is_exists() => self.existing(side, op, ifindex, error),
                Err(error) => Err(error.into()),
            };
            outcome = outcome.and(noted);
        }
        outcome
    }

    /// Whether an existing object is the desired one.
    fn existing(
        &mut self,
        side: Side,
        op: &Op,
        ifindex: u32,
        error: NetlinkError,
    ) -> Result<(), AttachCause> {
        let Op::Route(route @ PlannedRoute { net, .. }) = op else {
            return if matches!(op, Op::Address(_) | Op::Rule(_)) { Ok(()) } else { Err(error.into()) };
        };
        let holders = request::conflicting_routes(self.socket(side)?, route)?;
        match holders.first() {
            Some(holder) if holder.oif == Some(ifindex) => Ok(()),
            Some(holder) => {
                let holder = self.describe(side, holder);
                Err(AttachCause::RouteTaken { net: *net, holder })
            }
            None => Err(error.into()),
        }
    }

    /// Where a route leads, with its links by name.
    fn describe(&mut self, side: Side, route: &Route) -> String {
        let hops = route.oif.into_iter().chain(route.multipath.iter().map(|hop| hop.oif));
        let links: Vec<String> = hops.map(|index| self.link_name(side, index)).collect();
        let what = match links.is_empty() {
            true => format!("it is of type {}", route.kind),
            false => format!("it leads to {}", links.join(" and ")),
        };
        format!("{what} (protocol {})", route.protocol)
    }

    fn link_name(&mut self, side: Side, index: u32) -> String {
        let link = self.socket(side).ok().and_then(|socket| inspect::by_index(socket, index).ok().flatten());
        link.map_or_else(|| "a link that is gone".to_owned(), |link| link.name)
    }

    /// Reads both ends once more. Carrier changes are finished asynchronously, and until then the
    /// pod's packets are dropped and the host end has no link-local address; reading a link makes
    /// the kernel finish now (since 6.8).
    fn settle(&mut self) -> Result<(), AttachCause> {
        let Ends { host, pod_ifindex, .. } = self.ends()?;
        for (side, ifindex) in [(Side::Pod, *pod_ifindex), (Side::Host, host.index)] {
            let link = self.socket(side)?.link_by_index(ifindex)?;
            if !link.is_up() {
                return Err(AttachCause::Vanished(link.name));
            }
        }
        Ok(())
    }

    fn pending(&self) -> Result<Pending<'_>, AttachCause> {
        let Ends { host, pod_ifindex, reused } = self.ends()?;
        let (plan, reused) = (self.plan, reused.is_some());
        Ok(Pending { plan, host_ifindex: host.index, pod_ifindex: *pod_ifindex, reused })
    }

    fn attached(&self) -> Option<Attached> {
        let Ends { host, pod_ifindex, reused } = self.ends.as_ref()?;
        Some(Attached {
            host_name: self.plan.host_name.clone(),
            host_ifindex: host.index,
            host_mac: Mac::GATEWAY,
            pod_ifindex: *pod_ifindex,
            pod_mac: self.plan.pod_mac,
            mtu: self.plan.mtu,
            reused: reused.is_some(),
            bridge_mac: self.bridge.as_ref().and_then(|bridge| bridge.mac),
        })
    }

    fn ends(&self) -> Result<&Ends, AttachCause> {
        self.ends.as_ref().ok_or_else(|| AttachCause::Vanished(self.plan.host_name.to_string()))
    }

    /// The socket of a side; the pod's is opened when it is first needed.
    pub(super) fn socket(&mut self, side: Side) -> Result<&mut Socket, AttachCause> {
        match side {
            Side::Host => Ok(self.host),
            Side::Pod => open_in(&mut self.pod, self.netns),
        }
    }
}

/// Writes a value if it differs, and returns the old one.
fn replace(path: &str, value: &str) -> Result<Option<String>, SysctlError> {
    let old = sysctl::read(path)?;
    if old == value {
        return Ok(None);
    }
    sysctl::write(path, value).map(|()| Some(old))
}

/// A route socket of `netns`, opened once.
pub(super) fn open_in<'s>(
    socket: &'s mut Option<Socket>,
    netns: &NetNs,
) -> Result<&'s mut Socket, AttachCause> {
    match socket {
        Some(socket) => Ok(socket),
        None => Ok(socket.insert(netns.with(Socket::route)??)),
    }
}
