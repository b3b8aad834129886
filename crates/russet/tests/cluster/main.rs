//! Whole Kubernetes clusters: real API server, controllers, scheduler and three nodes, each with a real kubelet, containerd and kube-proxy, which Russet's manifests
//! are applied to. `cargo xtask e2e` runs all of it, and the layer `cluster` of `cargo xtask test` its smallest form.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

mod flannel;
mod lab;
mod life;
mod traffic;
mod vxlan;
