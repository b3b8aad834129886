//! The container runtime interface (CRI v1) over sandboxes: what kubelet and crictl ask about pods' sandboxes is answered, what they ask about
//! containers and images is Unimplemented, by name. `russet cri` runs it.
//!
//! A request becomes a [`Config`](russet_sandbox::Config) or an ID at the border (`request`), blocking work on
//! [`Sandboxes`](russet_sandbox::Sandboxes) in a bounded crew of threads (`crew`), and an answer (`answer`, `info`) or a status (`failure`).
//! cni-runtime.md sections 3.1 to 3.3 say what callers expect.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod answer;
mod connection;
mod crew;
mod events;
mod failure;
mod health;
mod info;
mod named;
mod request;
mod server;
mod service;
mod socket;
mod turns;

pub use russet_cri_api::CgroupDriver;
pub use server::{Options, ServeError, serve};
pub use socket::{Address, AddressError, Door, SocketError};
