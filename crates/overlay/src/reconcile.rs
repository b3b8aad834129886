//! The body of the reconcile loop: computes the desired state, observes the kernel, and carries out
//! the difference in pieces. The agent calls it whenever the overlay is dirty, and handles urgent
//! requests between the pieces (ARCHITECTURE.md, "The reconcile loop").

use std::collections::VecDeque;

use russet_addr::{Family, IfName};
use russet_linux::sysctl;
use russet_netlink::{NetlinkError, Socket};
use russet_nft::{Nft, Transaction};

use crate::apply::Executor;
use crate::desired::{Desired, desired};
use crate::inputs::{Dialect, Inputs};
use crate::nat;
use crate::observe::observe;
use crate::owner::Owner;
use crate::plan::{Op, plan};
use crate::report::{Kind, OverlayError, ReconcileReport};

/// Holds the sockets. It works in the network namespace of the thread that made it, and must be
/// used on threads in that namespace, because sysctls follow the thread.
#[derive(Debug)]
pub struct Reconciler {
    route: Socket,
    nft: Nft,
}

/// A planned run that is carried out step by step.
///
/// No state is kept between runs: each begins with the kernel's current state, so objects that
/// another program deleted are restored, and the next run completes one that was dropped halfway.
#[derive(Debug)]
pub struct Run<'a> {
    reconciler: &'a mut Reconciler,
    executor: Executor,
    steps: VecDeque<Step>,
    report: ReconcileReport,
}

/// One piece of work between two yields.
#[derive(Debug)]
enum Step {
    Forwarding(Family, u32),
    Nat(Transaction),
    Ops(Vec<Op>),
}

// === impl Reconciler ===

impl Reconciler {
    /// Opens the sockets in the calling thread's network namespace.
    pub fn new() -> Result<Self, NetlinkError> {
        Ok(Self { route: Socket::route()?, nft: Nft::open()? })
    }

    /// Brings the kernel to the state that `inputs` describe.
    pub fn reconcile(&mut self, inputs: &Inputs) -> ReconcileReport {
        let mut run = self.start(inputs);
        while run.step() {}
        run.finish()
    }

    /// Removes all of the overlay's objects; forwarding stays on, because other programs may need
    /// it.
    pub fn withdraw(&mut self, dialect: Dialect) -> ReconcileReport {
        let mut run = self.begin(Desired { owner: Owner::calico(dialect), ..Desired::default() }, 0);
        while run.step() {}
        run.finish()
    }

    /// Removes only the guard of the tunnels' ports: for a node whose tunnels another program
    /// maintains from now on, since only that program knows the peers. True if there was one.
    pub fn withdraw_guard(&mut self) -> Result<bool, OverlayError> {
        let transaction = nat::without_guard(&mut self.nft)?;
        if transaction.is_empty() {
            return Ok(false);
        }
        self.nft.commit(&transaction)?;
        Ok(true)
    }

    /// Reads the kernel and plans; changes nothing yet.
    pub fn start(&mut self, inputs: &Inputs) -> Run<'_> {
        self.begin(desired(inputs), inputs.underlay.ifindex)
    }

    fn begin(&mut self, mut desired: Desired, underlay: u32) -> Run<'_> {
        let mut report =
            ReconcileReport { refusals: std::mem::take(&mut desired.refusals), ..ReconcileReport::default() };
        let mut steps = VecDeque::new();
        let executor = match observe(&mut self.route, &desired) {
            Ok(observed) => {
                let plan = plan(&desired, &observed);
                report.refusals.extend(plan.refusals);
                report.replaced = plan.replaced;
                steps.extend(desired.forwarding.iter().map(|family| Step::Forwarding(*family, underlay)));
                steps.extend(self.nat(&desired, &mut report));
                steps.extend(plan.batches.into_iter().map(Step::Ops));
                Executor::new(&observed.devices, &desired.owner)
            }
            Err(error) => {
                // Without knowledge of the current state nothing is changed.
                report.fail(error);
                Executor::default()
            }
        };
        Run { reconciler: self, executor, steps, report }
    }

    fn nat(&mut self, desired: &Desired, report: &mut ReconcileReport) -> Option<Step> {
        match nat::difference(&mut self.nft, &desired.masquerade) {
            Ok(transaction) => (!transaction.is_empty()).then_some(Step::Nat(transaction)),
            Err(error) => {
                report.fail(error);
                None
            }
        }
    }
}

// === impl Run ===

impl Run<'_> {
    /// Carries out the next piece, at most [`BATCH_MAX_OPS`](crate::BATCH_MAX_OPS) requests; false
    /// when there was none.
    pub fn step(&mut self) -> bool {
        let Some(step) = self.steps.pop_front() else { return false };
        let socket = &mut self.reconciler.route;
        match step {
            Step::Forwarding(family, underlay) => forward(socket, family, underlay, &mut self.report),
            Step::Nat(transaction) => match self.reconciler.nft.commit(&transaction) {
                Ok(()) => self.report.count(Kind::Nat),
                Err(error) => self.report.fail(error),
            },
            Step::Ops(ops) => {
                if !self.executor.run(socket, &ops, &mut self.report) {
                    self.steps.clear();
                }
            }
        }
        true
    }

    /// Describes the remaining operations: the drift, as long as no step was taken. Switching
    /// forwarding on is one of them.
    pub fn pending(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for step in &self.steps {
            match step {
                Step::Forwarding(family, _) if is_off(*family) => {
                    lines.push(format!("write sysctl {} = 1", forwarding(*family)));
                }
                Step::Forwarding(..) => {}
                Step::Nat(_) => lines.push("replace the overlay's part of table inet russet".to_owned()),
                Step::Ops(ops) => lines.extend(ops.iter().map(Op::to_string)),
            }
        }
        lines
    }

    /// The results so far.
    pub fn finish(self) -> ReconcileReport {
        self.report
    }
}

fn forward(socket: &mut Socket, family: Family, underlay: u32, report: &mut ReconcileReport) {
    match family {
        Family::V4 => {}
        Family::V6 => keep_router_advertisements(socket, underlay, report),
    }
    set(forwarding(family), "1", report);
}

/// The sysctl of the whole namespace.
fn forwarding(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    }
}

/// An unreadable sysctl counts as on; `forward` reports the error when it writes.
fn is_off(family: Family) -> bool {
    sysctl::read(forwarding(family)).is_ok_and(|value| value == "0")
}

/// A forwarding machine ignores router advertisements unless accept_ra is 2, and would lose a
/// default route learned from one.
fn keep_router_advertisements(socket: &mut Socket, underlay: u32, report: &mut ReconcileReport) {
    let Ok(link) = socket.link_by_index(underlay) else { return };
    let Ok(name) = IfName::new(link.name) else { return };
    let accept_ra = format!("net/ipv6/conf/{name}/accept_ra");
    if sysctl::read(&accept_ra).is_ok_and(|value| value == "1") {
        set(&accept_ra, "2", report);
    }
}

fn set(name: &str, value: &str, report: &mut ReconcileReport) {
    match sysctl::write_if_different(name, value) {
        Ok(true) => report.count(Kind::Sysctl),
        Ok(false) => {}
        Err(error) => report.fail(error),
    }
}
