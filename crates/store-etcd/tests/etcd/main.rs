//! Tests of the engines against real etcd servers. They need the `etcd` and `etcdctl` programs: run
//! with `--include-ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "these are tests, outside their #[test] functions, too"
)]

mod auth;
mod cluster;
mod conformance;
mod server;
mod silence;
mod tls;
mod v2;
mod watch;

use std::time::Duration;

use russet_model::{HandleId, Key};

/// The key of handle `n`.
/// How soon a cluster that refuses is an error: 0.6 s, with room for a busy machine.
const SOON: Duration = Duration::from_millis(1500);

fn key(n: usize) -> Key {
    Key::handle(&HandleId::new(format!("k8s-pod-network.{n:06}")).unwrap())
}
