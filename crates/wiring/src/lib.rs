//! What the CNI plugins have in common, whichever they are: kernel work on a bounded number of
//! threads ([`Wiring`]) behind the gate of verdicts, the stages of a request, its target and its
//! log, errors, and the execution of other vendors' plugins.

#![expect(missing_docs, reason = "used by the programs of this workspace only")]

mod delegate;
pub mod executable;
pub mod failure;
pub mod gc;
mod isolation;
mod node;
mod observer;
mod pause;
mod request_log;
pub mod stages;
mod target;
pub mod threads;
mod wiring;

pub use delegate::Delegate;
pub use isolation::port_guard;
pub use node::{LocalNode, NotReady, Teardown, status};
pub use observer::InterfaceObserver;
pub use pause::Pause;
pub use request_log::{LogLevel, RequestLog};
pub use stages::{Stage, Stages};
pub use target::{Target, pod};
pub use wiring::{AttachFailure, Wiring};
