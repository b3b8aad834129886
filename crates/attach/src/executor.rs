//! Executes plans: each step that changes something records its reversal, and a failure runs the
//! record.
//!
//! The agent keeps one netlink socket of the node's namespace for this; the one of the pod's
//! namespace lives as long as the attachment takes. Everything is synchronous and takes well under
//! a millisecond, except for the caller's work in the gate.

mod bridge;
mod create;
mod obstacle;
mod record;
mod request;
mod run;

use std::path::PathBuf;

use russet_addr::{IfName, IpNet, Mac};
use russet_linux::sysctl::SysctlError;
use russet_linux::{NetNs, NetNsError};
use russet_netlink::{NetlinkError, Socket};

use crate::owner::Owner;
use crate::plan::{Plan, Step};
use crate::precreate::PrecreatedVeth;

pub(crate) use bridge::prepare_bridge;
pub(crate) use create::create_veth;
pub(crate) use request::{push, wire_route};

/// Executes plans on one node.
#[derive(Debug)]
pub struct Executor<'s> {
    host: &'s mut Socket,
    precreated: Option<PrecreatedVeth>,
}

/// The caller's part in an attachment.
pub trait Hooks {
    /// Called before each step, in order. An error fails the attachment as if the step had failed.
    fn before(&mut self, step: &Step) -> Result<(), Refusal> {
        let _ = step;
        Ok(())
    }

    /// Called when everything is ready and the host end is still down. Packets flow after it
    /// returns, so this is where verdicts are set (ARCHITECTURE.md, invariant 4). An error undoes the
    /// attachment.
    fn gate(&mut self, pending: &Pending<'_>) -> Result<(), Refusal> {
        let _ = pending;
        Ok(())
    }
}

/// Why a hook refused.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// Hooks that do nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

/// An attachment before its gate.
#[derive(Debug, Clone, Copy)]
pub struct Pending<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// The host end's index.
    pub host_ifindex: u32,
    /// The pod end's index in its namespace.
    pub pod_ifindex: u32,
    /// Whether the veth existed before, and so may be up already.
    pub reused: bool,
}

/// A wired interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The end in the node's namespace.
    pub host_name: IfName,
    /// Its index.
    pub host_ifindex: u32,
    /// Its MAC.
    pub host_mac: Mac,
    /// The pod end's index in its namespace.
    pub pod_ifindex: u32,
    /// The pod end's MAC.
    pub pod_mac: Mac,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Whether the veth existed before: the ADD was repeated.
    pub reused: bool,
    /// The MAC of its bridge, if it is a port of one.
    pub bridge_mac: Option<Mac>,
}

/// An attachment that failed; its changes have been undone.
#[derive(Debug, thiserror::Error)]
#[error("attach {owner}: {step}: {cause}{}", undone(.undo))]
pub struct AttachError {
    /// The interface's owner.
    pub owner: Owner,
    /// The step that failed.
    pub step: &'static str,
    #[source]
    pub cause: Box<AttachCause>,
    /// What could not be undone; normally empty.
    pub undo: Vec<String>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachCause {
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The pod's namespace cannot be entered.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The namespace is the node's own: a runtime's path leads to another process by now.
    #[error("{} is the node's own network namespace", .0.display())]
    OwnNamespace(PathBuf),
    /// A sysctl cannot be written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The pod is to have an IPv6 address and the kernel has no IPv6.
    #[error("the pod has an IPv6 address, but IPv6 is switched off in this kernel ({0})")]
    NoIpv6(SysctlError),
    /// The pod has an interface of this name that does not belong to this attachment.
    #[error("interface {ifname} exists already in {} and is not ours to replace", netns.display())]
    InterfaceExists {
        /// The interface.
        ifname: IfName,
        /// The pod's namespace.
        netns: PathBuf,
    },
    /// The node has a foreign link with the host end's name.
    #[error("link {0} exists already on the node and is not ours to replace")]
    ForeignLink(IfName),
    /// The host end's name belongs to another interface of the same container.
    #[error("link {host_name} is already the host end of {owner}")]
    NameTaken {
        /// The name.
        host_name: IfName,
        /// The name's owner.
        owner: Owner,
    },
    /// The node has a link with the bridge's name that is not a bridge.
    #[error("{0:?} already exists but is not a bridge")]
    NotABridge(String),
    /// The bridge has an address that conflicts with its gateway's.
    #[error("{bridge:?} already has an IP address different from {wanted}: {found}")]
    BridgeAddress {
        /// The bridge.
        bridge: String,
        /// The gateway's address.
        wanted: IpNet,
        /// The bridge's address.
        found: IpNet,
    },
    /// A route to the pod's address exists and leads elsewhere.
    #[error("route {net} exists already: {holder}")]
    RouteTaken {
        /// The destination.
        net: IpNet,
        /// Where it leads.
        holder: String,
    },
    /// A link vanished during the attachment.
    #[error("link {0} vanished")]
    Vanished(String),
    /// A hook refused.
    #[error("{0}")]
    Refused(Refusal),
}

fn undone(errors: &[String]) -> String {
    if errors.is_empty() {
        String::new()
    } else {
        format!(" (undoing it failed, too: {})", errors.join("; "))
    }
}

// === impl Executor ===

impl<'s> Executor<'s> {
    /// An executor that works through `host`, a route socket of the node's namespace. The thread that calls
    /// [`attach`](Self::attach) must be in that namespace, too: sysctls follow the thread.
    pub fn new(host: &'s mut Socket) -> Self {
        Self { host, precreated: None }
    }

    /// Uses the veth that was precreated for the next attachment, if there is one.
    pub fn with_precreated(self, precreated: Option<PrecreatedVeth>) -> Self {
        Self { precreated, ..self }
    }

    /// Executes `plan` in the pod's namespace `netns`.
    ///
    /// A repeated ADD finds its veth and repairs what is missing. The link of an old sandbox of the
    /// same pod is removed. A foreign link is an error and stays untouched.
    pub fn attach(&mut self, plan: &Plan, netns: &NetNs) -> Result<Attached, AttachError> {
        self.attach_with(plan, netns, &mut NoHooks)
    }

    /// The same with the caller's hooks.
    pub fn attach_with(
        &mut self,
        plan: &Plan,
        netns: &NetNs,
        hooks: &mut dyn Hooks,
    ) -> Result<Attached, AttachError> {
        let mut run = run::Run::new(self.host, plan, netns, self.precreated.take());
        run.carry_out(hooks).map_err(|(step, cause)| AttachError {
            owner: plan.owner.clone(),
            step: step.name(),
            cause: Box::new(cause),
            undo: run.undo(),
        })
    }
}

// === impl NoHooks ===

impl Hooks for NoHooks {}

// === impl AttachCause ===

impl AttachCause {
    /// Whether the same request may succeed later without a change.
    pub fn is_retryable(&self) -> bool {
        match self {
            AttachCause::Netlink(error) => {
                let never = [libc::EPERM, libc::EACCES, libc::EINVAL].map(Some).contains(&error.errno());
                !(never || error.is_unsupported() || matches!(error, NetlinkError::Invalid { .. }))
            }
            AttachCause::Vanished(_) | AttachCause::Refused(_) => true,
            _ => false,
        }
    }
}
