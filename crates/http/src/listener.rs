//! The common part of all listeners of Russet: a socket with restricted access before the first
//! connection, limits for all connections and for each peer, time limits for peers that send
//! nothing, and metrics and log lines for refusals. docs/limits.md has the table of all listeners.
//!
//! A waiting peer - one that has sent no request, or is idle between two - never prevents the
//! service of another: when the slots of a listener or of a peer are in use, the connection that
//! has waited longest is closed for the new one. Connections with requests in progress are never
//! closed for others.

mod acceptor;
mod admission;
mod connection;
mod peer;
pub mod unix;

pub use acceptor::{Acceptor, Listen};
pub use admission::{Admission, Allowed, Busy, Limits, Reason};
pub use connection::{Connection, Slot};
pub use peer::Peer;
