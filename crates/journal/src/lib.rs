//! What a node remembers of its pods' interfaces: the table of endpoints, the journal that is the
//! table's write-ahead log, and the history of addresses.
//!
//! The agent writes them. Plugins without an agent look for unfinished operations in the journal and
//! write the history; `russet journal` and `russet ipam who` show both.

#![expect(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads files that a crash may have damaged: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod endpoints;
mod history;
mod journal;

pub use endpoints::{Endpoint, EndpointTable};
pub use history::{History, Tenure};
pub use journal::{
    Attachment, Begin, Effect, EndpointPart, Interface, Journal, JournalContents, JournalError,
    JournalMetrics, OpenOperation, Operation, TableState, Verb, View, unfinished, view,
};

/// The target of this crate's log lines. Operators filter by it since this was a part of the agent.
const LOG: &str = "russet_agent::journal";
