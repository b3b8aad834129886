//! The runtime's side of CNI: what containerd, CRI-O and podman do through libcni.
//!
//! Read a [`ConfigList`](russet_cni_spec::ConfigList) with [`load_conflist`] or a [`ConfigDir`], or, in a process that runs
//! all the time, have the default network watched by [`Networks`]; then call [`Runtime`]. Everything here blocks. Nothing here locks: whoever calls keeps the operations of one container apart
//! from each other, and GC apart from everything (cni-runtime.md section 1.13). Every ADD, even a failed one, is to be
//! followed by a DEL some time.
//!
//! Where we differ from Go's libcni, on purpose: DEL goes by the configuration that the cache has for the attachment
//! ([`Runtime::del_cached`] even without knowing the network), and on past a plugin that fails or is missing, so that
//! the address is given back; it tells nobody of a namespace that was unmounted; a plugin is killed with everything it
//! started at its deadline; the cache is written atomically, and an unwritable cache undoes the ADD.

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

pub use cache::{Attached, AttachedOwner, CacheEntry, CacheError, Detached, attached};
pub use error::{PluginError, RuntimeError};
pub use in_process::{Call, InProcess};
pub use load::{ConfigDir, LoadError, load_conflist};
pub use network::{Networks, Skipped, Unready, WatchError, Why};
pub use progress::Progress;
pub use times::{PluginTime, Times};

/// Executes plugins and remembers their results.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Where plugins are looked for, in this order; also their `CNI_PATH`.
    pub plugin_dirs: Vec<PathBuf>,
    /// Where results are kept; libcni's default is `/var/lib/cni`.
    pub cache_dir: PathBuf,
    /// How long one plugin may take.
    pub plugin_deadline: Duration,
    /// Where it is noted what plugins take, if anybody wants to know.
    pub times: Option<Times>,
    /// Below which each network's vendor has a directory that comes before [`plugin_dirs`](Self::plugin_dirs): `<prefix>/opt/<type>/bin`.
    pub vendor_prefix: Option<PathBuf>,
    /// Who is told of each plugin as it runs.
    pub progress: Option<Arc<dyn Progress>>,
    /// The plugins for which no process is started.
    pub in_process: Option<Arc<dyn InProcess>>,
}

/// One interface of one container, and what the runtime says about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The container or sandbox.
    pub container_id: ContainerId,
    /// Path of its network namespace; empty when that is gone, which only DEL may see.
    pub netns: PathBuf,
    /// The interface inside it.
    pub ifname: IfName,
    /// `CNI_ARGS`, pair by pair.
    pub args: Vec<(String, String)>,
    /// Values for capabilities; each plugin gets those that it declared.
    pub capability_args: Map<String, Value>,
}

/// dockershim gave a chain 220 s, CRI-O gives an ADD 5 minutes and a DEL one; a plugin of ours answers within 55 s.
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
