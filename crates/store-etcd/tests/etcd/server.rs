//! A cluster of real members, with clients.

pub use russet_testkit::etcd::{Cluster, Member, TIMEOUT};

use russet_store_etcd::{Etcd, Settings};

/// Clients for a cluster.
pub trait Clients {
    /// Settings with all members.
    fn settings(&self) -> Settings;

    /// A client with connections of its own.
    fn client(&self) -> Etcd {
        Etcd::connect(self.settings()).unwrap()
    }
}

impl Clients for Cluster {
    fn settings(&self) -> Settings {
        self.location().parse().unwrap()
    }
}
