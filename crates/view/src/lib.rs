//! What people see of a cluster: its [`map`] as DOT and SVG, and the [`page`] of a node. Values in, text out: no I/O and no clock.
//!
//! Names, versions and reasons come from records that any client of the store can write. Whatever they contain, none of them becomes syntax of
//! the text in which it is shown ([`escape`]).

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads what other programs wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

pub mod escape;
pub mod map;
pub mod page;
#[cfg(test)]
mod testing;
