//! Decides who may talk to whom: resources in, a table of decisions out (policy.md section 2).
//!
//! No I/O, no clock, no threads. The same updates and flushes give the same tables, in the same
//! order. [`ir`] is the one form into which the policies of every API are translated; [`world`] is
//! what else decides: endpoints, sets, services, nodes, and what [`felix`] is configured with; [`engine`] keeps up to date what the kernel
//! gets, which [`table`] describes, and [`hosts`] for a node's own interfaces; [`flow`] is a question about one packet, which [`evaluator`] answers
//! from a [`snapshot`] of everything.

// It decodes what other programs wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

pub mod engine;
pub mod evaluator;
pub mod expect;
pub mod explain;
pub mod felix;
pub mod flow;
#[cfg(any(test, feature = "testing"))]
pub mod generate;
pub mod hosts;
pub mod ir;
pub mod recommend;
#[cfg(any(test, feature = "testing"))]
pub mod scale;
pub mod snapshot;
pub mod table;
pub mod translate;
pub mod what_if;
pub mod world;
