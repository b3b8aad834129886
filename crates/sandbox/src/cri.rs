//! The container runtime interface (CRI v1) over sandboxes: kubelet's and crictl's calls about
//! pods' sandboxes are served, calls about containers and images get Unimplemented, by name.
//! `russet cri` runs it.
//!
//! A request becomes a [`Config`](crate::Config) or an ID (`request`), blocking work on
//! [`Sandboxes`](crate::Sandboxes) in a bounded pool of threads (`service`), and an
//! answer (`answer`, `info`) or a status (`failure`). cni-runtime.md sections 3.1 to 3.3 define
//! what clients expect.

mod answer;
mod connection;
mod events;
mod failure;
mod health;
mod info;
mod named;
mod request;
mod server;
mod service;
mod socket;

pub use russet_cri_api::CgroupDriver;
pub use server::{Options, ServeError, serve};
pub use socket::{Address, AddressError, Listener, SocketError};
