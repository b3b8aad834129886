//! Whole-program tests: real executables in real namespaces, one topology a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

mod any_state;
mod bad_input;
mod calico;
mod calico_agent;
mod calico_containerd;
mod calico_direct;
mod calico_ipam;
mod calico_v1;
mod chaos;
mod cni_command;
mod containerd;
mod containerd_faults;
mod conversation;
mod cri;
mod cross_delete;
mod demo;
mod demo_etcd;
mod demo_flannel;
mod drift;
mod fabric;
mod faults;
mod flannel;
mod host;
mod install;
mod ipam;
mod migrate_calico_v1;
mod migrate_flannel_v2;
mod netnamespace;
mod node;
mod openshift_drift;
mod openshift_tenants;
mod pinging;
mod races;
mod recovery;
mod reference_plugins;
mod repair;
mod resources;
mod restart;
mod sandboxes;
mod storm;
mod uninstall;
mod v1_data;
mod verbs;
