//! The parts of Linux other than rtnetlink and nf_tables: network namespaces, sysctls, locks,
//! durable files, processes, TUN devices and segmenting UDP sockets, BPF programs, the process's
//! heap, and facts about the running kernel.
//!
//! Layer 1: mechanisms without decisions, used by `attach`, `overlay`, `plugins`, the agent and the
//! test kit. Everything that depends on a namespace follows the *calling thread's* network
//! namespace.

#![expect(missing_docs, reason = "used by the crates of this workspace only")]

pub mod bpf;
pub mod conntrack;
pub mod cpu;
pub mod echo;
pub mod execute;
pub mod file;
pub mod host;
pub mod lock;
pub mod memory;
pub mod namespaces;
pub mod netns;
pub mod notify;
pub mod packet;
pub mod pause;
pub mod probe;
pub mod process;
pub mod random;
pub mod sysctl;
pub mod tun;
pub mod udp;
pub mod userns;
pub mod watch;

pub use lock::{FileLock, LockError, LockHolder};
pub use netns::{NetNs, NetNsError, NetNsGuard, NetNsId};
