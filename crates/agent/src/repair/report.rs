//! The report of a round: what it read, what it found, and what it did. For logs, people and
//! programs.

use std::fmt;
use std::net::IpAddr;

use russet_addr::BlockCidr;
use russet_ipam::Held;
use russet_ipam::audit::Holder;
use russet_model::HandleId;
use serde::{Deserialize, Serialize};

use super::Reach;
use super::allocations::{Allocations, Residue};
use super::liveness::{Endpoint, Machine};
use super::unheld::Unheld;

/// The report of a round. `schema` is incremented when a field changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// The node whose addresses were checked; none: nodes without a record.
    pub node: Option<String>,
    /// The time between the checks, in milliseconds.
    pub grace_ms: u64,
    /// Nothing was released.
    pub dry_run: bool,
    /// What the first check read.
    pub seen: Seen,
    /// What the first check found.
    pub findings: Vec<Finding>,
}

/// What one check read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Entries of the allocator that were checked.
    pub entries: usize,
    pub blocks: usize,
    /// Handles; none if they were not checked.
    pub handles: Option<usize>,
    /// None if no machine was read.
    pub machine: Option<SeenMachine>,
    /// Endpoints; none if they were not needed.
    pub endpoints: Option<usize>,
}

/// What one check read of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeenMachine {
    /// Links of Russet.
    pub links: usize,
    /// Addresses with a host route.
    pub routes: usize,
    pub namespaces: usize,
    /// Processes whose namespace could not be read.
    pub unseen_processes: usize,
    /// Attachments in runtimes' caches.
    pub cached: usize,
}

/// A leak, or an entry that looked like one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    #[serde(flatten)]
    pub subject: Subject,
    /// Evidence that was checked without a match.
    pub evidence: Vec<String>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What is leaked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Subject {
    Address {
        address: IpAddr,
        block: BlockCidr,
        /// The sequence number of its allocation.
        sequence_number: u64,
        /// The container or pod in the entry.
        #[serde(flatten)]
        holder: Holder,
        /// The interface of the container; peers write none.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        interface: Option<String>,
        /// When it was allocated, as the entry says.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        taken: Option<String>,
    },
    /// A handle without any address.
    Handle {
        handle: HandleId,
        /// The revision of its last write.
        revision: u64,
    },
    /// A running pod's address that is not allocated to it.
    Unallocated {
        address: IpAddr,
        /// The host end of the pod's interface, and its owner.
        interface: String,
        /// The handle to which it is allocated instead.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        held_by: Option<String>,
    },
    /// A handle's count for blocks in which it has no address.
    HandleCount {
        handle: HandleId,
        /// The revision of its last write.
        revision: u64,
        blocks: Vec<String>,
    },
}

/// What was done about a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was released.
    Released,
    /// Both checks agree that it is leaked; this was a dry run, or the round ended before its
    /// release.
    Leaked,
    /// The second check found that it is in use.
    Alive { reason: String },
    /// It changed between the second check and the release.
    Kept { reason: String },
    /// It cannot be released; the reason says what to do.
    Left { reason: String },
    /// The store failed.
    Failed { reason: String },
}

// === impl Report ===

impl Report {
    /// The current version of the report.
    pub const SCHEMA: u32 = 1;

    /// Whether a leak remains.
    pub fn has_leaks_left(&self) -> bool {
        self.findings.iter().any(|finding| finding.outcome.is_left())
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether the leak still exists, as far as is known.
    pub const fn is_left(&self) -> bool {
        matches!(self, Self::Leaked | Self::Left { .. } | Self::Failed { .. })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::Leaked => f.write_str("leaked"),
            Self::Alive { reason } => write!(f, "alive: {reason}"),
            Self::Kept { reason } => write!(f, "kept: {reason}"),
            Self::Left { reason } => write!(f, "left: {reason}"),
            Self::Failed { reason } => write!(f, "not released: {reason}"),
        }
    }
}

// === impl Seen ===

impl Seen {
    pub(super) fn new(
        reach: Reach,
        allocations: &Allocations,
        machine: &Machine,
        endpoints: Option<&[Endpoint]>,
    ) -> Self {
        let here = SeenMachine {
            links: machine.links.len(),
            routes: machine.routes.len(),
            namespaces: machine.namespaces,
            unseen_processes: machine.unseen,
            cached: machine.cached.len(),
        };
        Self {
            entries: allocations.entries.len(),
            blocks: allocations.blocks,
            handles: (reach == Reach::Everything).then_some(allocations.handles),
            machine: (reach != Reach::GoneNodes).then_some(here),
            endpoints: endpoints.map(<[Endpoint]>::len),
        }
    }

    fn evidence(&self) -> Vec<String> {
        let mut evidence = Vec::new();
        match &self.machine {
            Some(machine) => evidence.extend([
                format!("none of {} links is for its container", machine.links),
                format!("it is not among the {} addresses with a route", machine.routes),
                format!("no interface in {} network namespaces has it", machine.namespaces),
                format!("no runtime has it attached ({} cached attachments)", machine.cached),
            ]),
            None => evidence.push("its node has no record".to_owned()),
        }
        evidence.push(format!("none of {} endpoints names it", self.endpoints.unwrap_or(0)));
        evidence
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn address(leak: &Held, seen: &Seen, outcome: Outcome) -> Self {
        let member = |name: &str| leak.attribute.get(name).map(str::to_owned);
        let subject = Subject::Address {
            address: leak.address,
            block: leak.block,
            sequence_number: leak.sequence_number,
            holder: Holder::of(&leak.attribute),
            interface: member("interface"),
            taken: member("timestamp"),
        };
        Self { subject, evidence: seen.evidence(), outcome }
    }

    pub(super) fn unallocated(unheld: Unheld) -> Self {
        let Unheld { address, interface, held_by } = unheld;
        let evidence = vec![match &held_by {
            Some(handle) => format!("it is routed to the pod, and the store has allocated it to {handle}"),
            None => "it is routed to the pod, and no block has it allocated".to_owned(),
        }];
        let reason = "replace the pod: another one may be given its address".to_owned();
        let subject = Subject::Unallocated { address, interface, held_by };
        Self { subject, evidence, outcome: Outcome::Left { reason } }
    }

    pub(super) fn handle(residue: &Residue, seen: &Seen, outcome: Outcome) -> Self {
        let (handle, revision) = (residue.handle.clone(), residue.revision.0);
        let (subject, found) = if residue.orphan {
            (Subject::Handle { handle, revision }, "no block holds anything of it".to_owned())
        } else {
            let blocks = residue.blocks.clone();
            let found = format!("{} of its blocks hold nothing of it", blocks.len());
            (Subject::HandleCount { handle, revision, blocks }, found)
        };
        Self { subject, evidence: vec![format!("{found} ({} blocks)", seen.blocks)], outcome }
    }
}

// === impl Subject ===

impl Subject {
    /// The kind as in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Address { .. } => "address",
            Self::Handle { .. } => "handle",
            Self::Unallocated { .. } => "unallocated",
            Self::HandleCount { .. } => "handle-count",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, holder, interface, taken, .. } => {
                write!(f, "{address}: {holder}")?;
                if let Some(interface) = interface {
                    write!(f, ", interface {interface}")?;
                }
                taken.as_ref().map_or(Ok(()), |taken| write!(f, ", taken at {taken}"))
            }
            Self::Unallocated { address, interface, .. } => {
                write!(f, "{address}: it is not allocated to {interface}")
            }
            Self::Handle { handle, .. } => write!(f, "handle {handle}: it holds no address"),
            Self::HandleCount { handle, blocks, .. } => {
                write!(f, "handle {handle}: it counts addresses of {}", blocks.join(", "))
            }
        }
    }
}
