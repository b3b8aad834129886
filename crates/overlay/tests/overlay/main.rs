//! Tests of the overlay from outside: pure ones, a model kernel, and the real kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests, too")]

mod cluster;
mod convergence;
mod desired;
mod flannel;
mod guards;
mod kernel;
mod model;
mod nat;
mod scene;
