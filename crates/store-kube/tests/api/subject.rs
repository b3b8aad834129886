//! A store in an API server, as the conformance suite wants it. Also used by the example
//! `conformance`.

use std::rc::Rc;
use std::time::Duration;

use russet_kube::Source;
use russet_kube::testing::Server;
use russet_model::Prefix;
use russet_store::conformance::Subject;
use russet_store::{BoxFuture, Step, Store};
use russet_store_kube::{KubeStore, Pauses, Settings};
use serde_json::Value;

/// A store in an API server.
pub struct OnServer {
    source: Source,
    /// The server, if it is the test server.
    pub server: Option<Server>,
}

/// Pauses that suit a server with one client.
pub const PAUSES: Pauses = Pauses {
    resume: Duration::from_millis(5),
    relist: Duration::from_millis(5),
    compare: Duration::from_millis(5),
    failure_min: Duration::from_millis(5),
    failure_max: Duration::from_millis(100),
    silence: russet_kube::SILENCE,
};
/// What the suite writes.
const WRITTEN: [&str; 4] = [
    "/calico/ipam/v2/assignment/",
    "/calico/ipam/v2/host/",
    "/calico/ipam/v2/handle/",
    "/calico/ipam/v2/config",
];

pub fn settings(source: Source) -> Settings {
    Settings { writes: None, pauses: PAUSES, ..Settings::new(source) }
}

impl OnServer {
    #[allow(dead_code, reason = "the example has no test server")]
    pub fn fake(server: Server) -> Self {
        Self { source: server.source(), server: Some(server) }
    }

    /// Another server, without records of the allocator: those that it has are deleted.
    pub async fn emptied(source: Source) -> Self {
        let store = KubeStore::connect(settings(source.clone())).unwrap();
        for prefix in WRITTEN.map(Prefix::from_stored) {
            for record in store.list(&prefix).await.unwrap().records {
                store.commit(vec![Step::delete(record.key, Some(record.revision))]).await.unwrap();
            }
        }
        Self { source, server: None }
    }
}

impl Subject for OnServer {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(KubeStore::connect(settings(self.source.clone())).unwrap())
    }

    fn interrupt(&self) -> BoxFuture<'_, ()> {
        if let Some(server) = &self.server {
            server.forget_history();
            server.end_watches();
        }
        Box::pin(async {})
    }

    /// Objects come back with sorted members.
    fn canonical(&self, value: &[u8]) -> Vec<u8> {
        let mut value: Value = serde_json::from_slice(value).unwrap();
        value.sort_all_objects();
        value.to_string().into_bytes()
    }

    fn many(&self) -> usize {
        2_000
    }
}
