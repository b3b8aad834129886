//! Leases in stores: the simulated one (plain `cargo test`: faults, crashes and races from seeds), and real etcd servers, v3 and v2.

#![allow(clippy::unwrap_used, reason = "these are tests, outside their #[test] functions, too")]

mod acquire;
mod bench;
mod cluster_load;
mod costs;
mod etcd;
mod etcd_v2;
mod keep;
mod renewing;
mod watch;
