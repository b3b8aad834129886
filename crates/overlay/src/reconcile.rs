//! The controller of a node's routes and tunnels. The agent calls it whenever the overlay is dirty
//! (ARCHITECTURE.md, "The reconcile loop").

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use russet_addr::{Family, IfName};
use russet_linux::sysctl;
use russet_netlink::{NetlinkError, Socket};
use russet_nft::{Nft, Transaction};

use crate::apply::Executor;
use crate::controller::{self, Comparison, Controller, Result, Round};
use crate::desired::{Desired, desired};
use crate::inputs::Inputs;
use crate::nat;
use crate::observe::{Observed, loopback, observe};
use crate::owner::Owner;
use crate::plan::{Op, plan};
use crate::report::{Kind, ReconcileReport};
use crate::ruleset::ObservedTable;

/// Holds the sockets. It works in the network namespace of the thread that made it, and must be
/// used on threads in that namespace, because sysctls follow the thread.
#[derive(Debug)]
pub struct Reconciler {
    route: Socket,
    nft: Nft,
    /// None until it is set.
    desired: Option<Arc<Desired>>,
}

/// The node's state.
#[derive(Debug)]
pub struct NodeState {
    overlay: Observed,
    /// None if it cannot be read.
    table: Option<ObservedTable>,
    /// Sysctls with other values than they should have, and those values.
    sysctls: Vec<(String, &'static str)>,
}

/// One change of a node's state.
#[derive(Debug, Clone)]
pub enum Difference {
    /// A sysctl and its value.
    Sysctl(String, &'static str),
    /// The transaction for address translation.
    Nat(Transaction),
    /// A link, address, neighbour, forwarding entry or route.
    Op(Op),
}

// === impl Reconciler ===

impl Reconciler {
    /// Opens the sockets in the calling thread's network namespace.
    pub fn new() -> Result<Self, NetlinkError> {
        Ok(Self { route: Socket::route()?, nft: Nft::open()?, desired: None })
    }

    /// Sets the desired state; None: there is none any more.
    pub fn set(&mut self, desired: Option<Arc<Desired>>) {
        self.desired = desired;
    }

    /// Brings the kernel to the state that `inputs` describe.
    pub fn reconcile(&mut self, inputs: &Inputs) -> ReconcileReport {
        self.set(Some(Arc::new(desired(inputs))));
        controller::reconcile(self)
    }

    /// Removes only the guard of the tunnels' ports: for a node whose tunnels another program
    /// maintains from now on, since only that program knows the peers. True if there was one.
    pub fn withdraw_guard(&mut self) -> Result<bool> {
        let transaction = nat::without_guard(&mut self.nft)?;
        if transaction.is_empty() {
            return Ok(false);
        }
        self.nft.commit(&transaction)?;
        Ok(true)
    }

    /// Removes only the addresses for probes, for the same reason. True if there were any.
    pub fn withdraw_probe_addresses(&mut self) -> Result<bool> {
        let (desired, mut report) = (Desired::default(), ReconcileReport::default());
        let observed = Observed { loopback: loopback(&mut self.route)?, ..Observed::default() };
        let ops = plan(&desired, &observed).ops;
        Executor::new(&observed.devices, &desired.owner).run(&mut self.route, &ops, &mut report);
        match report.errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(!ops.is_empty()),
        }
    }

    /// The indexes of the tunnel devices that exist.
    pub fn devices(&mut self) -> BTreeSet<u32> {
        let names = Owner::default().names;
        let found = names.iter().flatten().filter_map(|name| self.route.link_by_name(name).ok());
        found.map(|link| link.index).collect()
    }
}

impl Controller for Reconciler {
    type Desired = Arc<Desired>;
    type Observed = NodeState;
    type Difference = Difference;

    fn desired(&mut self) -> Result<Option<Self::Desired>> {
        Ok(self.desired.clone())
    }

    fn observe(&mut self, desired: &Self::Desired, report: &mut ReconcileReport) -> Result<NodeState> {
        let overlay = observe(&mut self.route, desired)?;
        let table = nat::observe(&mut self.nft).map_err(|error| report.fail(error)).ok();
        Ok(NodeState { overlay, table, sysctls: self.wrong_sysctls(desired, report) })
    }

    /// Packets are forwarded and translated before there are routes.
    fn diff(
        &self,
        desired: &Self::Desired,
        observed: &NodeState,
        report: &mut ReconcileReport,
    ) -> Vec<Difference> {
        let plan = plan(desired, &observed.overlay);
        report.refusals.extend(desired.refusals.iter().cloned().chain(plan.refusals));
        report.replaced.extend(plan.replaced);
        let sysctls = observed.sysctls.iter().cloned().map(|(path, value)| Difference::Sysctl(path, value));
        let nat = observed.table.as_ref().map(|found| nat::difference(&desired.masquerade, found));
        let nat = nat.filter(|transaction| !transaction.is_empty()).map(Difference::Nat);
        sysctls.chain(nat).chain(plan.ops.into_iter().map(Difference::Op)).collect()
    }

    fn apply(&mut self, comparison: Comparison<Self>, report: &mut ReconcileReport) -> Result<Round> {
        let Comparison { desired, observed, differences } = comparison;
        report.note(&differences);
        let mut ops = Vec::new();
        for difference in differences {
            match difference {
                Difference::Sysctl(path, value) => match sysctl::write(&path, value) {
                    Ok(()) => report.count(Kind::Sysctl),
                    Err(error) => report.fail(error),
                },
                Difference::Nat(transaction) => match self.nft.commit(&transaction) {
                    Ok(()) => report.count(Kind::Nat),
                    Err(error) => report.fail(error),
                },
                Difference::Op(op) => ops.push(op),
            }
        }
        Executor::new(&observed.overlay.devices, &desired.owner).run(&mut self.route, &ops, report);
        Ok(Round::Complete)
    }
}

impl Reconciler {
    fn wrong_sysctls(
        &mut self,
        desired: &Desired,
        report: &mut ReconcileReport,
    ) -> Vec<(String, &'static str)> {
        let mut wrong = Vec::new();
        for family in &desired.forwarding {
            match family {
                Family::V4 => {}
                Family::V6 => wrong.extend(self.lost_router(desired.underlay)),
            }
            let path = forwarding(*family);
            match sysctl::read(path) {
                Ok(value) if value == "1" => {}
                Ok(_) => wrong.push((path.to_owned(), "1")),
                Err(error) => report.fail(error),
            }
        }
        wrong
    }

    /// A forwarding machine ignores router advertisements unless accept_ra is 2, and would lose a
    /// default route learned from one.
    fn lost_router(&mut self, underlay: u32) -> Option<(String, &'static str)> {
        let name = IfName::new(self.route.link_by_index(underlay).ok()?.name).ok()?;
        let accept_ra = format!("net/ipv6/conf/{name}/accept_ra");
        sysctl::read(&accept_ra).is_ok_and(|value| value == "1").then_some((accept_ra, "2"))
    }
}

/// The sysctl of the whole namespace.
fn forwarding(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    }
}

// === impl Difference ===

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(path, value) => write!(f, "write sysctl {path} = {value}"),
            Self::Nat(_) => f.write_str("replace the overlay's part of table inet russet"),
            Self::Op(op) => op.fmt(f),
        }
    }
}
