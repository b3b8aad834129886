//! The suite that every engine passes (ARCHITECTURE.md, "The store"), over one real member behind a
//! relay. An interruption compacts the log and closes all connections.

use std::rc::Rc;

use russet_store::conformance::{Subject, atomic, core, ttl};
use russet_store::{BoxFuture, Store};
use russet_store_etcd::{Etcd, Settings};
use russet_testkit::proxy::Proxy;

use crate::server::Cluster;

struct Relayed<'a> {
    cluster: &'a Cluster,
    proxy: Proxy,
}

// === impl Relayed ===

impl<'a> Relayed<'a> {
    async fn fresh(cluster: &'a Cluster) -> Self {
        cluster.clear();
        Self { cluster, proxy: Proxy::to(&cluster.members[0].client).await }
    }
}

impl Subject for Relayed<'_> {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(Etcd::connect(Settings::for_endpoints(&self.proxy.address).unwrap()).unwrap())
    }

    fn interrupt(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.cluster.members[0].compact();
            self.proxy.cut().await;
        })
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn etcd_passes_core() {
    let cluster = Cluster::single();
    core(async || Relayed::fresh(&cluster).await).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn etcd_passes_atomic() {
    let cluster = Cluster::single();
    atomic(async || Relayed::fresh(&cluster).await).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn etcd_passes_ttl() {
    let cluster = Cluster::single();
    ttl(async || Relayed::fresh(&cluster).await).await;
}
