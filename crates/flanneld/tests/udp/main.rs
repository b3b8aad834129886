//! Tests of the userspace udp backend with the real kernel: two nodes, a pod behind each, and a
//! peer without offloads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests, too")]

mod fast;
mod guards;
mod lab;
mod life;
mod plain;
mod rows;
mod traffic;
mod transfer;
