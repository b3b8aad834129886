//! The calls of CRI v1 as a client sees them (cni-runtime.md sections 3.1 to 3.3), over a real
//! socket, on sandboxes that a test engine makes in memory. Tests of a network need root: they are
//! in `russet`'s `whole/cri.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

mod burst;
mod hanging;
mod health;
mod lab;
mod life;
mod runtime;
mod watching;
