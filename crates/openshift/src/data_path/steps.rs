//! The differences of the data path, each as one change of the kernel, and how they are applied.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use russet_linux::sysctl;
use russet_netlink::{Address, Batch, LinkAdd, LinkDel, LinkSet, Neighbour, Route, Socket};
use russet_overlay::ReconcileReport;

use super::programs::{self, Hook};
use super::{Ports, Sdn, SdnError, TABLE, device, kind};

/// One change of the kernel.
#[derive(Debug, Clone)]
pub struct Difference {
    what: String,
    pub(super) stage: Stage,
    action: Action,
}

/// What a change is a part of. A failure of the device, a program, a sysctl or the table ends its
/// stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Routes to pods that are gone.
    Stale,
    /// The table of verdicts. If it fails, everything ends: no route may exist without a verdict.
    Table,
    /// The tunnel device, its programs and sysctls.
    Device,
    /// What needs the device, and on which nothing depends.
    Tunnel,
    /// The link of a pod, by its index. Without its guard it gets no route.
    Pod(u32),
    /// Other nodes. They need the device.
    Peers,
    /// Sysctls of pods' links; last, since there are many and packets rarely depend on them.
    Sysctls,
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    AddLink(LinkAdd),
    SetLink(LinkSet),
    DeleteLink(u32),
    PutAddress(Address),
    DeleteAddress(Address),
    PutNeighbour(Neighbour),
    DeleteNeighbour(Neighbour),
    PutRoute(Route),
    DeleteRoute(Route),
    Sysctl(String, &'static str),
    /// Attaches a program to the link with this index.
    Program(u32, Hook),
    /// Writes the table anew.
    Table,
    /// Permits exactly these nodes to send. The numbers say how many come and go.
    Senders(BTreeSet<Ipv4Addr>, [usize; 2]),
}

/// Collects differences.
pub(super) struct Steps<'a> {
    socket: &'a Socket,
    all: Vec<Difference>,
}

// === impl Steps ===

impl<'a> Steps<'a> {
    /// `socket` knows the names of interfaces for descriptions.
    pub fn new(socket: &'a Socket) -> Self {
        Self { socket, all: Vec::new() }
    }

    pub fn push(&mut self, stage: Stage, action: Action) {
        let mut batch = Batch::new();
        let what = match &action {
            Action::Sysctl(name, value) => format!("write sysctl {name} = {value}"),
            Action::Program(ifindex, hook) => {
                let link = self.socket.interface_name(*ifindex);
                format!("attach program {} to link {link}", programs::for_hook(*hook).name)
            }
            Action::Table => format!("write table ip {TABLE} anew"),
            Action::Senders(_, [come, gone]) => format!("let {come} nodes send, and {gone} no more"),
            request => {
                request.encode(&mut batch);
                self.socket.describe(&batch, 0)
            }
        };
        self.all.push(Difference { what, stage, action });
    }

    pub fn extend(&mut self, stage: Stage, actions: impl IntoIterator<Item = Action>) {
        actions.into_iter().for_each(|action| self.push(stage, action));
    }

    pub fn finish(self) -> Vec<Difference> {
        self.all
    }
}

// === impl Difference ===

impl Difference {
    /// Whether both are requests that may be sent together: those of one stage, and the same
    /// requests for several pods.
    fn joins(&self, next: &Self) -> bool {
        let pods = matches!((self.stage, next.stage), (Stage::Pod(_), Stage::Pod(_)));
        let together = self.stage == next.stage || (pods && self.action.kind() == next.action.kind());
        together && self.action.is_request() && next.action.is_request()
    }

    pub fn creates_device(&self) -> bool {
        matches!(self.action, Action::AddLink(_))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

// === impl Action ===

impl Action {
    /// Whether it is a request to rtnetlink.
    fn is_request(&self) -> bool {
        !matches!(self, Self::Sysctl(..) | Self::Program(..) | Self::Table | Self::Senders(..))
    }

    fn encode(&self, batch: &mut Batch) {
        match self {
            Self::AddLink(link) => batch.add_link(link),
            Self::SetLink(link) => batch.set_link(link),
            Self::DeleteLink(ifindex) => batch.delete_link(&LinkDel::Index(*ifindex)),
            Self::PutAddress(address) => batch.replace_address(address),
            Self::DeleteAddress(address) => batch.delete_address(address),
            Self::PutNeighbour(neighbour) => batch.replace_neighbour(neighbour),
            Self::DeleteNeighbour(neighbour) => batch.delete_neighbour(neighbour),
            Self::PutRoute(route) => batch.replace_route(route),
            Self::DeleteRoute(route) => batch.delete_route(route),
            Self::Sysctl(..) | Self::Program(..) | Self::Table | Self::Senders(..) => batch,
        };
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::AddLink(_) | Self::SetLink(_) | Self::DeleteLink(_) | Self::Program(..) => kind::DEVICE,
            Self::PutAddress(_) | Self::DeleteAddress(_) => kind::ADDRESS,
            Self::PutNeighbour(_) | Self::DeleteNeighbour(_) => kind::NEIGHBOUR,
            Self::PutRoute(_) | Self::DeleteRoute(_) => kind::ROUTE,
            Self::Sysctl(..) => kind::SYSCTL,
            Self::Table | Self::Senders(..) => kind::TABLE,
        }
    }
}

// === impl Sdn ===

impl Sdn {
    /// Applies differences in order. `ports` are those that the table should have. Returns the
    /// stages that failed; an error if everything ended.
    pub(super) fn carry_out(
        &mut self,
        ports: &Ports,
        differences: &[Difference],
        report: &mut ReconcileReport,
    ) -> Result<Vec<Stage>, SdnError> {
        report.note(differences);
        let mut failed = Vec::new();
        for run in differences.chunk_by(Difference::joins) {
            let ended = |difference: &&Difference| {
                let needs_device = matches!(difference.stage, Stage::Tunnel | Stage::Peers);
                failed.contains(&difference.stage) || (needs_device && failed.contains(&Stage::Device))
            };
            let ready: Vec<&Difference> = run.iter().filter(|difference| !ended(difference)).collect();
            let Some(first) = ready.first() else { continue };
            let done = match &first.action {
                Action::Table => self.verdicts.rewrite(&self.settings, ports),
                Action::Senders(senders, _) => {
                    self.verdicts.permit_senders(&self.settings, senders.clone(), ports)
                }
                Action::Sysctl(name, value) => sysctl::write(name, value).map_err(SdnError::from),
                Action::Program(ifindex, hook) => {
                    device::attach(&mut self.socket, *ifindex, *hook, &mut self.delivery)
                }
                _ => {
                    self.send(&ready, &mut failed, report);
                    continue;
                }
            };
            match done {
                Ok(()) => report.count_as(first.action.kind()),
                Err(error) if first.stage == Stage::Table => return Err(error),
                Err(error) => {
                    report.fail(error);
                    failed.push(first.stage);
                }
            }
        }
        Ok(failed)
    }

    /// Sends requests. A missing object is not an error, since it may have been removed meanwhile.
    fn send(&mut self, requests: &[&Difference], failed: &mut Vec<Stage>, report: &mut ReconcileReport) {
        let mut batch = Batch::new();
        requests.iter().for_each(|request| request.action.encode(&mut batch));
        for (Difference { stage, action, .. }, result) in requests.iter().zip(self.socket.execute_all(&batch))
        {
            match result {
                Ok(()) => report.count_as(action.kind()),
                Err(error) if error.is_not_found() && *stage != Stage::Device => {}
                Err(error) => {
                    report.fail(error);
                    if action.kind() == kind::DEVICE || *stage == Stage::Peers {
                        failed.push(*stage);
                    }
                }
            }
        }
    }
}

/// Which sysctls of a link have other values. Without IPv6 its sysctls are missing and are not
/// needed. `{}` in a pattern stands for the link.
pub(super) fn wrong_sysctls(
    link: &str,
    sysctls: &[(&'static str, &'static str)],
) -> Result<Vec<(String, &'static str)>, SdnError> {
    let mut wrong = Vec::new();
    for (pattern, value) in sysctls {
        let name = format!("net/{}", pattern.replace("{}", link));
        match sysctl::read(&name) {
            Ok(found) if found == *value => {}
            Ok(_) => wrong.push((name, *value)),
            Err(error) if error.is_missing() && name.starts_with("net/ipv6/") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(wrong)
}
