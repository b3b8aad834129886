//! What daemons serve and how they reach servers over HTTP: listening sockets with limits, HTTP/1 on
//! them, health and metrics; pages for a browser of this machine; connections of clients, TLS, and secrets.

#![allow(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]
// It reads bytes that others wrote: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

pub mod client;
pub mod health;
pub mod listener;
pub mod local;
mod secret;
pub mod server;
pub mod tls;

pub use secret::Secret;
