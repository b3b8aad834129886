//! The wiring of one pod, as a plan with recorded undo (ARCHITECTURE.md, "ADD and DEL"): a routed veth
//! with /32 and /128 addresses, or a port of a bridge.
//!
//! The agent and the CNI plugins call it: they describe an [`Attachment`] or a [`Port`], [`plan`]
//! or [`plan_port`] turns that into ordered steps without reading any state, and an [`Executor`]
//! executes the steps, recording the reversal of each one as it succeeds. [`detach`] removes an
//! attachment in any state, [`reap`] deletes what a deferred `detach` left behind, [`check`]
//! compares an attachment with the kernel, and [`list`] finds all of Russet's interfaces. A link's
//! owner is only in its alias ([`Owner`]), so no file can contradict the kernel.
//!
//! Nothing here chooses an address, waits for a verdict or reads a datastore.

#![expect(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]

mod adopt;
mod attachment;
mod check;
mod detach;
mod executor;
mod inspect;
pub mod loopback;
pub mod marked;
pub mod naming;
pub mod nat;
mod owner;
pub mod packet_sizes;
mod plan;
mod port;
mod precreate;
mod reap;
pub mod restore;
mod rules;
pub mod sdn;
mod serial;
mod shape;
mod wired;

pub use adopt::{Adopted, adopt};
pub use attachment::{Attachment, AttachmentError, Dialect, Pair, Pod, PodRoutes};
pub use check::{CheckError, Mismatch, check, check_plan};
pub use detach::{
    DetachError, Detached, Detachment, Removal, detach, detach_owned, detach_owned_with, detach_with,
};
pub use executor::{AttachCause, AttachError, Attached, Executor, Hooks, NoHooks, Pending, Refusal};
pub use owner::{Owner, OwnerError};
pub use plan::{
    Bridge, Op, PermanentNeighbour, Plan, PlannedRoute, Setting, Side, SourceRule, Step, Via, When, plan,
};
pub use port::{Port, SourceCheck, detach_port, has_interface, plan_port};
pub use precreate::{PrecreatedVeth, delete_precreated, precreate_veth};
pub use reap::{OwnedLink, Reaped, list, reap, reap_one, reap_precreated, reap_unless_gone};
pub use shape::{Limit, Shape, ShapeError, check_shape, collect_shapes, shape, shaped, unshape};
pub use wired::Wired;

/// The group that links which wait for their deletion are in (ARCHITECTURE.md, "Names and places").
pub const DOOMED_GROUP: u32 = 7273;

/// The route protocol of everything that Russet installs (ARCHITECTURE.md, "Names and places").
pub const ROUTE_PROTOCOL: u8 = 114;
