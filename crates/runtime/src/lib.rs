//! The runtime's side of CNI, like libcni in containerd, CRI-O and podman.
//!
//! Read a [`ConfigList`](russet_cni_spec::ConfigList) with [`load_conflist`] or a [`ConfigDir`],
//! or, in a daemon, have the default network watched by [`Networks`]; then call [`Runtime`]. All
//! calls block. Nothing here locks: the caller serialises the operations of one container, and GC
//! with everything (cni-runtime.md section 1.13). Every ADD, even a failed one, must be followed by
//! a DEL some time.
//!
//! Differences from Go's libcni, on purpose: DEL uses the configuration in the attachment's cache
//! entry ([`Runtime::del_cached`] works even without knowing the network), and continues after a
//! plugin that fails or is missing, so that the address is released; it does not pass the path of
//! an unmounted namespace to plugins; a plugin is killed with everything it started at its
//! deadline; the cache is written atomically, and an unwritable cache undoes the ADD.

#![allow(missing_docs, reason = "used only by this repository; names say most of it")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod cache;
mod error;
mod execute;
mod in_process;
pub mod lint;
mod load;
mod network;
mod operations;
mod progress;
mod request;
mod times;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use russet_addr::{ContainerId, IfName};
use serde_json::{Map, Value};

pub use cache::{Attached, CacheEntry, CacheError, Detached, attached};
pub use error::{PluginError, RuntimeError};
pub use in_process::{Call, InProcess};
pub use load::{ConfigDir, LoadError, load_conflist};
pub use network::{Networks, Skipped, Unready, WatchError, Why};
pub use progress::Progress;
pub use times::{PluginTime, Times};

/// Executes plugins and caches their results.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The directories of plugins, in this order; also their `CNI_PATH`.
    pub plugin_dirs: Vec<PathBuf>,
    /// The directory of results; libcni's default is `/var/lib/cni`.
    pub cache_dir: PathBuf,
    /// The time limit of one plugin.
    pub plugin_deadline: Duration,
    /// Records the time of each plugin, if set.
    pub times: Option<Times>,
    /// The prefix below which each network's vendor has a directory that precedes
    /// [`plugin_dirs`](Self::plugin_dirs): `<prefix>/opt/<type>/bin`.
    pub vendor_prefix: Option<PathBuf>,
    /// Notified of each plugin as it runs.
    pub progress: Option<Arc<dyn Progress>>,
    /// The plugins that run without a process.
    pub in_process: Option<Arc<dyn InProcess>>,
}

/// One interface of one container, with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The container or sandbox.
    pub container_id: ContainerId,
    /// Path of its network namespace; empty when it is gone, which is valid for DEL only.
    pub netns: PathBuf,
    /// The interface inside it.
    pub ifname: IfName,
    /// `CNI_ARGS`, pair by pair.
    pub args: Vec<(String, String)>,
    /// Values for capabilities; each plugin gets those that it declared.
    pub capability_args: Map<String, Value>,
}

/// dockershim gave a chain 220 s, CRI-O gives an ADD 5 minutes and a DEL one; Russet's plugins
/// answer within 55 s.
const PLUGIN_DEADLINE: Duration = Duration::from_secs(60);

// === impl Runtime ===

impl Runtime {
    /// A runtime with the default deadline, which starts a process for every plugin.
    pub fn new(plugin_dirs: Vec<PathBuf>, cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            plugin_dirs,
            cache_dir: cache_dir.into(),
            plugin_deadline: PLUGIN_DEADLINE,
            times: None,
            vendor_prefix: None,
            progress: None,
            in_process: None,
        }
    }
}

// === impl Attachment ===

impl Attachment {
    /// An attachment without arguments.
    pub fn new(container_id: ContainerId, netns: impl Into<PathBuf>, ifname: IfName) -> Self {
        let netns = netns.into();
        Self { container_id, netns, ifname, args: Vec::new(), capability_args: Map::new() }
    }
}
