//! The store that several nodes share, with the network between them.

use std::time::Duration;

use russet_testkit::let_pass;

use crate::fabric::Fabric;
use crate::kubernetes::Cluster;

pub enum SharedStore {
    Etcd(Fabric),
    Kubernetes(Box<Cluster>),
}

// === impl SharedStore ===

impl SharedStore {
    /// The network.
    pub fn fabric(&mut self) -> &mut Fabric {
        match self {
            Self::Etcd(fabric) => fabric,
            Self::Kubernetes(cluster) => &mut cluster.fabric,
        }
    }

    pub fn serves(&self) -> bool {
        match self {
            Self::Etcd(fabric) => fabric.etcd_serves(),
            Self::Kubernetes(cluster) => cluster.serves(),
        }
    }

    /// Ends etcd or the API server as a crash would, and starts it again after a while.
    pub fn kill_and_restart(&mut self, down: Duration) {
        match self {
            Self::Etcd(fabric) => {
                fabric.kill_etcd();
                let_pass(down);
                fabric.start_etcd();
            }
            Self::Kubernetes(cluster) => {
                cluster.kill_server();
                let_pass(down);
                cluster.start_server();
            }
        }
    }
}
