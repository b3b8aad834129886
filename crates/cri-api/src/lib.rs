//! The container runtime interface (CRI v1), as far as it is about sandboxes: messages, a client's stub and a server's, generated from
//! `proto/cri.proto` by build.rs. `russet-sandbox` serves it, `russet_testkit::cri` is a client of it.
//!
//! The calls for containers and images are left out, because Russet neither serves nor sends them.

#![allow(missing_docs, clippy::all, unreachable_pub, dead_code, reason = "generated")]

tonic::include_proto!("runtime.v1");

/// The service of sandboxes and containers.
pub const RUNTIME_SERVICE: &str = "runtime.v1.RuntimeService";
/// The service of images.
pub const IMAGE_SERVICE: &str = "runtime.v1.ImageService";
