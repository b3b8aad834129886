//! flannel's daemon: acquires a subnet for this node, programs the routes to the other nodes'
//! subnets, and publishes its own in `subnet.env`.
//!
//! It is a peer of real `flanneld` nodes in the same network; docs/spec/flannel.md is the contract,
//! docs/flanneld.md the user's page. Layer 4: leases come from `lease`, the kernel's side from
//! `overlay`, and the proxy of the backend `udp` is here; this crate connects them. Called by `russet flanneld`.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads leases, configurations and packets of other programs: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod backend;
mod carrier;
pub mod docker_opts;
mod drops;
mod extension;
pub mod flags;
mod guard;
mod health;
mod interface;
mod maintain;
mod peers;
mod readable_fd;
mod readiness;
mod run;
mod source;
mod startup;
pub mod subnet_env;
mod takeover;
#[cfg(test)]
mod testing;
pub mod udp;

pub use run::{RunError, run};
pub use takeover::{Predecessor, TakeoverError};
