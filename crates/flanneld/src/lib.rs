//! flannel's daemon: takes a subnet for this node, programs the way to the other nodes' subnets, and says so in `subnet.env`.
//!
//! A peer of real `flanneld` nodes in the same network; docs/spec/flannel.md is the contract, docs/flanneld.md the user's page. Layer 4:
//! leases come from `lease`, the kernel's side from `overlay`; here is what joins them. Called by `russet flanneld`.

mod asking;
mod backend;
mod carrier;
pub mod docker_opts;
mod ear;
mod extension;
pub mod flags;
mod guard;
mod health;
mod interface;
mod peers;
mod run;
mod source;
pub mod subnet_env;
mod takeover;
mod telling;
mod tend;
#[cfg(test)]
mod testing;

pub use run::{RunError, run};
