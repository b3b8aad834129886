//! The engine against the API server of `russet_kube::testing`, and against a real one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests, outside their #[test] functions, too"
)]

mod allocator;
mod bench;
mod conformance;
mod definitions;
mod faults;
mod networks;
mod pods;
mod real;
mod storm;
mod subject;
mod watches;
mod writes;
