//! `russet flanneld` as a process, in nodes' namespaces with a real etcd: what a node's owner sees (flannel.md section 10).

mod cluster;
mod faults;
mod kubernetes;
mod lab;
mod leases;
mod start;
mod storm;
mod takeover;
mod traffic;
mod variants;

pub use lab::Lab;
