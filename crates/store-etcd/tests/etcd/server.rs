//! A cluster of real members as the engine's tests want it: with clients.

pub use russet_testkit::etcd::{Cluster, Member, PATIENCE};

use russet_store_etcd::{Etcd, Settings};

/// What the engine adds to a cluster.
pub trait Clients {
    /// How a client finds every member.
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
