//! `russet flanneld` as a process, in nodes' namespaces with a real etcd: the behaviour that an
//! operator observes (flannel.md section 10).

mod api_server;
mod churn;
mod cluster;
mod faults;
mod kubernetes;
mod lab;
mod leases;
mod start;
mod takeover;
mod traffic;
mod uninstall;
mod variants;

pub use lab::{Lab, PREFIX};
