//! The firewall of the flannel daemon in the real kernel, with real packets; `nft` and `iptables`
//! verify the rules.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests, too")]

mod foreign;
mod iptables;
mod lab;
mod native;
mod switching;
mod traffic;
