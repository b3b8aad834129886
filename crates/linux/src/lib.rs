//! The parts of Linux that are neither rtnetlink nor nf_tables: network namespaces, sysctls, locks, durable files,
//! processes, TUN devices and segmenting UDP sockets, the process's heap, and facts about the running kernel.
//!
//! Layer 1. `attach`, `overlay`, `plugins`, the agent and the test kit call it; it decides nothing.
//! Everything that depends on a namespace follows the *calling thread's* network namespace.

pub mod bpf;
pub mod cpu;
pub mod execute;
pub mod file;
pub mod host;
pub mod lock;
pub mod memory;
pub mod namespaces;
pub mod netns;
pub mod notify;
pub mod pause;
pub mod probe;
pub mod process;
pub mod random;
pub mod sysctl;
pub mod tun;
pub mod udp;
pub mod userns;
pub mod watch;

pub use lock::{FileLock, Holder, LockError};
pub use netns::{NetNs, NetNsError, NetNsGuard, NetNsId};
