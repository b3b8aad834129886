//! A test server, a store in it, and records.

use std::future::Future;
use std::time::Duration;

use russet_addr::{BlockCidr, NodeName};
use russet_kube::testing::{Seen, Server};
use russet_model::{HandleId, Key};
use russet_store::{Event, Record, Revision, Step, Store, StoreError, Watch};
use russet_store_kube::{Group, KubeStore, Settings};

use crate::subject::settings;

/// Far longer than any step takes, and far shorter than a hung test.
const LIMIT: Duration = Duration::from_secs(30);

pub struct Bench {
    pub server: Server,
    pub store: KubeStore,
    /// The group of its objects, with a dot before it.
    pub group: &'static str,
}

impl Bench {
    /// A cluster with Calico's resource definitions.
    pub fn new() -> Self {
        Self::with(Group::V1, |settings| settings)
    }

    pub fn with(group: Group, change: impl FnOnce(Settings) -> Settings) -> Self {
        let server = Server::start();
        let group = match group {
            Group::V1 => "crd.projectcalico.org",
            Group::V3 => "projectcalico.org",
        };
        server.install(group);
        let store = KubeStore::connect(change(settings(server.source()))).unwrap();
        Self { server, store, group }
    }

    /// Another process with the same cluster.
    pub fn other(&self) -> KubeStore {
        KubeStore::connect(settings(self.server.source())).unwrap()
    }

    pub async fn one(&self, step: Step) -> Result<Revision, StoreError> {
        Ok(self.store.commit(vec![step]).await?[0])
    }

    pub async fn get(&self, key: &Key) -> Option<Record> {
        self.store.get(key).await.unwrap()
    }

    /// The requests since the last call, as `PUT /apis/...` without the query.
    pub fn requests(&self, since: usize) -> Vec<String> {
        let line = |seen: &Seen| {
            let path = seen.path.split('?').next().unwrap();
            format!("{} {}", seen.method, path.rsplit_once("/v1/").map_or(path, |(_, rest)| rest))
        };
        self.server.seen()[since..].iter().map(line).collect()
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<serde_json::Value> {
        self.server.object(&format!("{kind}.{}", self.group), "", name)
    }
}

pub fn handle(id: &str) -> Key {
    Key::handle(&HandleId::new(id).unwrap())
}

pub fn count(addresses: u64) -> Vec<u8> {
    format!(r#"{{"block":{{"10.1.0.16/29":{addresses}}},"deleted":false}}"#).into_bytes()
}

pub fn block() -> BlockCidr {
    "10.1.0.16/29".parse().unwrap()
}

pub fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it happens in time")
}

pub async fn next(watch: &mut Box<dyn Watch>) -> Event {
    within(watch.next()).await.unwrap()
}
