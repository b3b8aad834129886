//! Pods wired into real namespaces, with `ip` and `ping` as the second opinion.
//!
//! Run as root: `cargo test -p russet-attach -- --include-ignored`.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but knows only #[test] functions")]

mod bench;
mod netkit;
mod obstacles;
mod packet_sizes;
mod precreate;
mod repeat;
mod restore;
mod shape;
mod speed;
mod teardown;
mod undo;
mod wiring;
