//! What build.rs generates from `proto/`.

#![allow(missing_docs, clippy::all, unreachable_pub, dead_code, reason = "generated")]

pub(crate) mod mvccpb {
    tonic::include_proto!("mvccpb");
}

mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

pub(crate) use etcdserverpb::*;
