//! The controller against the test server: what it frees, what it keeps, and when it writes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests, outside their #[test] functions, too"
)]

mod bench;
mod faults;
mod garbage;
mod openshift;
mod replicas;
mod taints;
