//! What a round looked at, what it found, and what it did about it: for logs, for people and for programs.

use std::fmt;
use std::net::IpAddr;

use russet_addr::BlockCidr;
use russet_ipam::Held;
use russet_ipam::audit::Holder;
use russet_model::HandleId;
use serde::{Deserialize, Serialize};

use super::Reach;
use super::books::{Books, Residue};
use super::judge::{Endpoint, Machine};
use super::unheld::Unheld;

/// What a round did; `schema` grows when a member changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`Report::SCHEMA`].
    pub schema: u32,
    /// Whose addresses were judged; none: those of nodes without a record.
    pub node: Option<String>,
    /// The time between the looks, in milliseconds.
    pub grace_ms: u64,
    /// Nothing was released.
    pub dry_run: bool,
    /// What the first look saw.
    pub seen: Seen,
    /// What is or was leaked by the first look.
    pub findings: Vec<Finding>,
}

/// What one look saw.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Entries of the allocator that were judged.
    pub entries: usize,
    /// Blocks.
    pub blocks: usize,
    /// Handles; none when they were not looked at.
    pub handles: Option<usize>,
    /// What the machine knows; none when no machine was looked at.
    pub machine: Option<SeenMachine>,
    /// Endpoints; none when there was nobody to accuse.
    pub endpoints: Option<usize>,
}

/// What one look saw of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SeenMachine {
    /// Links of ours.
    pub links: usize,
    /// Addresses with a route of their own.
    pub routes: usize,
    /// Network namespaces.
    pub namespaces: usize,
    /// Processes that could not be asked for theirs.
    pub unseen_processes: usize,
    /// Attachments in runtimes' caches.
    pub cached: usize,
}

/// One leak, or what looked like one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    #[serde(flatten)]
    pub subject: Subject,
    /// What was looked at without finding it.
    pub evidence: Vec<String>,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What is leaked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Subject {
    /// An address.
    Address {
        /// It.
        address: IpAddr,
        /// Its block.
        block: BlockCidr,
        /// Under which number it was taken.
        sequence_number: u64,
        /// Whose it was.
        #[serde(flatten)]
        holder: Holder,
        /// The interface of the container; peers name none.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        interface: Option<String>,
        /// When it was taken, as it stands there.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        taken: Option<String>,
    },
    /// A handle that holds no address.
    Handle {
        /// It.
        handle: HandleId,
        /// When it was last written.
        revision: u64,
    },
    /// A live pod's address that is not allocated to it.
    Unallocated {
        /// The address.
        address: IpAddr,
        /// The host end of the pod's interface, and what it is for.
        interface: String,
        /// The handle that it is allocated to instead.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        held_by: Option<String>,
    },
    /// What a handle counts although the block holds nothing of it.
    HandleCount {
        /// The handle.
        handle: HandleId,
        /// When it was last written.
        revision: u64,
        /// The blocks.
        blocks: Vec<String>,
    },
}

/// What became of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was given back.
    Released,
    /// Both looks say that it is leaked; nothing was to be released, or the round had to end before it came to this.
    Leaked,
    /// The second look found that it is none.
    Alive {
        /// Why.
        reason: String,
    },
    /// It changed between the second look and the release.
    Kept {
        /// How.
        reason: String,
    },
    /// It is nothing that can be given back; the reason says what to do.
    Left {
        /// What to do.
        reason: String,
    },
    /// The store failed.
    Failed {
        /// Why.
        reason: String,
    },
}

// === impl Report ===

impl Report {
    /// The meaning that the members have today.
    pub const SCHEMA: u32 = 1;

    /// Whether something is left to be repaired.
    pub fn has_leaks_left(&self) -> bool {
        self.findings.iter().any(|finding| finding.outcome.is_left())
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether the leak is still there, as far as is known.
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
    pub(super) fn of(reach: Reach, books: &Books, machine: &Machine, endpoints: Option<&[Endpoint]>) -> Self {
        let here = SeenMachine {
            links: machine.links.len(),
            routes: machine.routes.len(),
            namespaces: machine.namespaces,
            unseen_processes: machine.unseen,
            cached: machine.cached.len(),
        };
        Self {
            entries: books.entries.len(),
            blocks: books.blocks,
            handles: (reach == Reach::Everything).then_some(books.handles),
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
    /// Its name, as in JSON.
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
