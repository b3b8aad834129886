//! The calls of CRI v1 as a client sees them (cni-runtime.md sections 3.1 to 3.3), over a real socket, on sandboxes that an engine of the tests makes
//! in memory. Whoever wants a network needs root: those tests are in `russet`'s `whole/cri.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

mod hanging;
mod health;
mod lab;
mod life;
mod runtime;
mod storm;
mod watching;
