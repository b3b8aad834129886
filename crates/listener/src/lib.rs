//! What every listener of Russet has in common: a socket that is restricted before anybody can connect, limits for all connections and for each peer,
//! time limits for peers that say nothing, and counters and log lines for what was refused. docs/limits.md has the table of all listeners.
//!
//! A peer that waits - it has sent no request, or is idle between two - never keeps another from service: when the seats of a listener or of a peer are
//! taken, the connection that has waited longest is closed for the new one. Connections with requests in progress are never closed for others.

// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod acceptor;
mod admission;
mod connection;
pub mod http;
mod peer;
pub mod unix;

pub use acceptor::{Acceptor, Listen};
pub use admission::{Admission, Allowed, Busy, Limits, Reason};
pub use connection::{Connection, Seat};
pub use peer::Peer;
