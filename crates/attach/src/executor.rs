//! Carries plans out: each step that changes the world records its reversal, and a failure runs the record.
//!
//! The agent keeps one netlink socket of the node's namespace for this; the one of the pod's namespace lives as long
//! as the attachment takes. Everything is synchronous and takes well under a millisecond, apart from what a caller
//! does at the gate.

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

use crate::birth::Newborn;
use crate::owner::Owner;
use crate::plan::{Plan, Step};

pub(crate) use bridge::prepare_bridge;
pub(crate) use create::create_veth;
pub(crate) use request::{push, wire_route};

/// Carries plans out on one node.
#[derive(Debug)]
pub struct Executor<'s> {
    host: &'s mut Socket,
    newborn: Option<Newborn>,
}

/// Where a caller takes part in an attachment.
pub trait Hooks {
    /// Before each step, in order; an error fails the attachment as if the step had failed.
    fn before(&mut self, step: &Step) -> Result<(), Refusal> {
        let _ = step;
        Ok(())
    }

    /// When all is ready and the host end is still down: returning lets packets flow, so this is where verdicts
    /// are put in place (ARCHITECTURE.md, invariant 4). An error undoes the attachment.
    fn gate(&mut self, pending: &Pending<'_>) -> Result<(), Refusal> {
        let _ = pending;
        Ok(())
    }
}

/// Why a hook refused.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// Hooks that let everything pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

/// An attachment in front of the gate.
#[derive(Debug, Clone, Copy)]
pub struct Pending<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// The host end's index.
    pub host_ifindex: u32,
    /// The pod end's index in its namespace.
    pub pod_ifindex: u32,
    /// Whether the veth was there before, and so may be up already.
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
    /// Whether the veth was there before: an ADD repeated.
    pub reused: bool,
    /// The MAC of its bridge, where it is a port of one.
    pub bridge_mac: Option<Mac>,
}

/// An attachment that failed; what it had changed has been undone.
#[derive(Debug, thiserror::Error)]
#[error("attach {owner}: {step}: {cause}{}", undone(.undo))]
pub struct AttachError {
    /// Whose interface it was to be.
    pub owner: Owner,
    /// The step that failed.
    pub step: &'static str,
    /// Why.
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
    /// The namespace is the node's own: a runtime's path was given to another process meanwhile.
    #[error("{} is the node's own network namespace", .0.display())]
    OwnNamespace(PathBuf),
    /// A sysctl cannot be written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The pod is to have an IPv6 address and the kernel has no IPv6.
    #[error("the pod has an IPv6 address, but IPv6 is switched off in this kernel ({0})")]
    NoIpv6(SysctlError),
    /// The pod has an interface of this name, and it is not this attachment's.
    #[error("interface {ifname} exists already in {} and is not ours to replace", netns.display())]
    InterfaceExists {
        /// The interface.
        ifname: IfName,
        /// The pod's namespace.
        netns: PathBuf,
    },
    /// The node has a link with the host end's name, and it is not one of ours.
    #[error("link {0} exists already on the node and is not ours to replace")]
    ForeignLink(IfName),
    /// The host end's name is that of another interface of the same container.
    #[error("link {host_name} is already the host end of {owner}")]
    NameTaken {
        /// The name.
        host_name: IfName,
        /// Whose it is.
        owner: Owner,
    },
    /// The node has a link with the bridge's name, and it is none.
    #[error("{0:?} already exists but is not a bridge")]
    NotABridge(String),
    /// The bridge has an address that is in the way of its gateway's.
    #[error("{bridge:?} already has an IP address different from {wanted}: {found}")]
    BridgeAddress {
        /// The bridge.
        bridge: String,
        /// What it was to have.
        wanted: IpNet,
        /// What it has.
        found: IpNet,
    },
    /// The route to the pod's address exists and leads elsewhere.
    #[error("route {net} exists already: {holder}")]
    RouteTaken {
        /// The destination.
        net: IpNet,
        /// Where it leads.
        holder: String,
    },
    /// A link vanished while it was being set up.
    #[error("link {0} vanished")]
    Vanished(String),
    /// The caller refused.
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
        Self { host, newborn: None }
    }

    /// Goes on with the veth that was created for the next attachment ahead of it, if one was.
    pub fn go_on_with(self, newborn: Option<Newborn>) -> Self {
        Self { newborn, ..self }
    }

    /// Carries `plan` out in the pod's namespace `netns`.
    ///
    /// An ADD repeated finds its veth and repairs what is missing. The link of an old sandbox of the same pod makes
    /// room. Links of anybody else are an error that leaves them untouched.
    pub fn attach(&mut self, plan: &Plan, netns: &NetNs) -> Result<Attached, AttachError> {
        self.attach_with(plan, netns, &mut NoHooks)
    }

    /// The same, with the caller taking part.
    pub fn attach_with(
        &mut self,
        plan: &Plan,
        netns: &NetNs,
        hooks: &mut dyn Hooks,
    ) -> Result<Attached, AttachError> {
        let mut run = run::Run::new(self.host, plan, netns, self.newborn.take());
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
    /// Whether the same request may succeed later without anybody changing it.
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
