//! What build.rs generates from `proto/`.

#![allow(missing_docs, clippy::all, unreachable_pub, dead_code, reason = "generated")]

tonic::include_proto!("runtime.v1");
