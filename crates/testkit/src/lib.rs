//! What tests share: a network namespace each, tools as second opinions, the only sanctioned wait, and the rule for
//! skipping (docs/testing.md).
//!
//! Only tests depend on this crate. It panics where other crates return errors: a broken test bench fails the test.

pub mod blocks;
mod bytes;
#[cfg(feature = "containerd")]
pub mod containerd;
pub mod cross_traffic;
mod disk;
pub mod etcd;
pub mod frame;
mod kernel;
mod netns;
mod random;
#[cfg(feature = "containerd")]
pub mod registry;
mod tool;
mod wait;

pub use bytes::{Replayed, replay};
pub use cross_traffic::CrossTraffic;
pub use disk::Disk;
pub use kernel::{Support, require_kernel};
pub use netns::{in_netns_with_loopback, in_new_netns};
pub use random::Random;
pub use tool::{ip_json, nft_json, require_cni_plugin, require_tool, run};
pub use wait::{eventually, eventually_some, let_pass};
