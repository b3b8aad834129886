//! Pod sandboxes: their configuration and life cycle, and the CRI server over them ([`cri`]).
//! `russet sandbox` and `russet cri` call this.
//!
//! [`Sandboxes`] creates, stops, removes, lists and recovers sandboxes. An [`Engine`] makes their
//! processes and namespaces; their network is the runtime's default network. All calls block.
//!
//! What must survive a reboot is a checkpoint below the state directory, written once, before
//! anything exists that has to be undone; the rest is below the run directory. Between them every
//! sandbox is found again, whenever the process or the machine died (cni-runtime.md sections 1.13,
//! 3.1 to 3.3 and A.5).

#![allow(missing_docs, reason = "used only by this repository; names say most of it")]
// It reads requests, checkpoints and answers of other programs: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod builtin;
mod capabilities;
mod checkpoint;
mod config;
mod containerd;
pub mod cri;
mod engine;
mod error;
mod event;
mod fault;
mod files;
mod id;
mod metrics;
mod network;
mod orphans;
mod quantity;
mod recreate;
mod sandbox;
mod sandboxes;
mod stats;
mod sysctls;
#[cfg(test)]
mod testing;

pub use builtin::{Builtin, EnterError};
pub use checkpoint::kept;
pub use config::{Config, ConfigError, Dns, HostAlias, Metadata, PortMapping, Protocol};
pub use containerd::{Containerd, ContainerdOptions};
pub use engine::{Engine, EngineError, EngineState, Made};
pub use error::SandboxError;
pub use event::{Event, EventKind, Events};
pub use files::node_resolv_conf;
pub use id::{SandboxId, SandboxIdError};
pub use metrics::{Metrics, Operation};
pub use network::NetworkSource;
pub use recreate::{Recreation, Seen, Why, recreation};
pub use russet_containerd::{Reference as ImageName, usual_files as usual_credentials};
pub use sandbox::{Filter, Sandbox, State};
pub use sandboxes::{Collect, Collected, Options, Sandboxes};
pub use stats::{InterfaceStats, Stats};
pub use sysctls::SysctlError;
