//! The allocator on real etcd servers: many processes whose servers are killed, and the blocks of a
//! large cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests, outside their #[test] functions, too"
)]

mod expected_owners;
mod observed;
mod ownership_check;
mod processes;
mod volume;
mod worker;
