//! What tests share: a network namespace each, tools as second opinions, the only sanctioned wait, and the rule for
//! skipping (docs/testing.md).
//!
//! Only tests depend on this crate. It panics where other crates return errors: a broken test bench fails the test.

pub mod blocks;
pub mod bridge;
mod bytes;
pub mod certificates;
#[cfg(feature = "containerd")]
pub mod containerd;
#[cfg(feature = "cri")]
pub mod cri;
pub mod cross_traffic;
mod disk;
pub mod etcd;
pub mod faults;
pub mod forged;
pub mod frame;
pub mod image;
mod kernel;
pub mod kubernetes;
mod machine;
mod netns;
pub mod pages;
mod process;
mod program;
#[cfg(feature = "proxy")]
pub mod proxy;
mod random;
#[cfg(feature = "containerd")]
pub mod registry;
mod socket;
mod store;
pub mod terminal;
mod tool;
mod wait;

pub use bytes::{Replayed, replay};
pub use cross_traffic::CrossTraffic;
pub use disk::Disk;
pub use kernel::{Support, require_kernel};
pub use machine::Machine;
pub use netns::{in_netns_with_loopback, in_new_netns};
pub use process::{Process, http_get, spawn_with_input, without_capabilities};
pub use program::{copy_program, write_program};
pub use random::Random;
pub use socket::bound;
pub use tool::{
    inside, ip_json, links, nft_json, pings, pings_with, require_cni_plugin, require_tool, run, sh, sh_json,
    succeeds,
};
pub use wait::{eventually, eventually_some, let_pass};
