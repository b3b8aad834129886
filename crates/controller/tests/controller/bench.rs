//! A test server with nodes, pods and their addresses, and controllers on it.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::NodeName;
use russet_controller::{Limits, Metrics, Report, Settings, Timing};
use russet_ipam::{Allocator, Request, SystemClock, Use};
use russet_kube::testing::{Seen, Server};
use russet_kube::{Client, Heartbeat};
use russet_model::{HandleId, Key};
use russet_store::{Step, Store};
use russet_store_kube::{KubeStore, Settings as StoreSettings};
use serde_json::{Value, json};

/// Far longer than any step takes.
const LIMIT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
pub const GROUP: &str = "crd.projectcalico.org";
pub const NAMESPACE: &str = "russet-system";

pub struct Bench {
    pub server: Server,
    pub store: Rc<dyn Store>,
    pub allocator: Allocator,
}

/// Short times: a grace period is some looks.
pub fn settings(identity: &str) -> Settings {
    let ms = Duration::from_millis;
    let limits = Limits { grace: ms(300), tunnel_grace: ms(1_500), ..Limits::default() };
    let timing = Timing { lease: ms(3_000), renew_deadline: ms(2_000), retry: ms(100) };
    Settings {
        timing,
        limits,
        interval: ms(50),
        handle_grace: ms(300),
        handle_interval: ms(100),
        ..Settings::new(identity.to_owned(), NAMESPACE.to_owned())
    }
}

pub fn kind(name: &str) -> String {
    format!("{name}.{GROUP}")
}

impl Bench {
    /// A cluster with these nodes, and a pool with small blocks.
    pub async fn with(nodes: &[&str]) -> Self {
        let server = Server::start();
        server.install(GROUP);
        for name in nodes {
            server.put(json!({ "kind": "Node", "metadata": { "name": name } }));
        }
        let store: Rc<dyn Store> = Rc::new(
            KubeStore::connect(StoreSettings { writes: None, ..StoreSettings::new(server.source()) })
                .unwrap(),
        );
        let pool = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"p","creationTimestamp":null},"spec":{"cidr":"10.1.0.0/20","blockSize":29}}"#;
        store.commit(vec![Step::put(Key::pool("p").unwrap(), pool)]).await.unwrap();
        let allocator = Allocator::new(store.clone(), Rc::new(SystemClock));
        Self { server, store, allocator }
    }

    /// An address of a pod, which has an object that reports it.
    pub async fn pod(&self, node: &str, name: &str) -> IpAddr {
        let address = self.address(node, name, Some(name)).await;
        self.server.put(json!({ "kind": "Pod", "metadata": { "namespace": "shop", "name": name },
            "spec": { "nodeName": node }, "status": { "podIP": address.to_string() } }));
        address
    }

    /// An address with the attributes of a pod, or without.
    pub async fn address(&self, node: &str, container: &str, pod: Option<&str>) -> IpAddr {
        let mut request = Request::pod(NodeName::new(node).unwrap(), handle(container));
        if let Some(pod) = pod {
            request.attributes.insert("namespace".to_owned(), "shop".to_owned());
            request.attributes.insert("pod".to_owned(), pod.to_owned());
        }
        self.allocator.auto_assign(&request).await.unwrap().addresses[0].addr()
    }

    /// An address of the node's tunnel.
    pub async fn tunnel(&self, node: &str) -> IpAddr {
        let mut request = Request::pod(
            NodeName::new(node).unwrap(),
            HandleId::new(format!("vxlan-tunnel-addr-{node}")).unwrap(),
        );
        request.use_ = Use::Tunnel;
        request.attributes.insert("type".to_owned(), "vxlanTunnelAddress".to_owned());
        self.allocator.auto_assign(&request).await.unwrap().addresses[0].addr()
    }

    /// What Kubernetes does with a deleted node: its pods go, too.
    pub fn delete_node(&self, node: &str, pods: &[&str]) {
        self.server.delete("Node", "", node);
        pods.iter().for_each(|pod| self.server.delete("Pod", "shop", pod));
    }

    /// Renewals of an agent that lives for a second after each.
    pub fn heartbeat(&self, node: &str) -> Heartbeat {
        let client = Client::new(self.server.source()).unwrap();
        Heartbeat::new(client, node).every(Duration::from_millis(100), Duration::from_secs(1))
    }

    pub async fn is_allocated(&self, address: IpAddr) -> bool {
        self.allocator.holder_of(address).await.unwrap().is_some()
    }

    /// The objects of a kind of Calico's.
    pub async fn names(&self, prefix: &str) -> Vec<String> {
        let listed = self.store.list(&russet_model::Prefix::from_stored(prefix)).await.unwrap();
        listed.records.into_iter().map(|record| record.key.to_string()).collect()
    }

    /// Runs a controller over a store until `done` says so about a report.
    pub async fn run_on(
        &self,
        store: Rc<dyn Store>,
        settings: Settings,
        mut done: impl FnMut(&Report) -> bool,
    ) -> Report {
        let last: Rc<RefCell<Option<Report>>> = Rc::default();
        let is_done = Rc::new(tokio::sync::Notify::new());
        let mut looked = |report: &Report| {
            *last.borrow_mut() = Some(report.clone());
            if done(report) {
                is_done.notify_one();
            }
        };
        let client = Client::new(self.server.source()).unwrap();
        let run = russet_controller::run(
            client,
            store,
            settings,
            Metrics::default(),
            &mut looked,
            is_done.notified(),
        );
        let ended = tokio::time::timeout(LIMIT, run).await;
        assert!(ended.is_ok(), "it did not come to an end: {:#?}", last.borrow());
        let report = last.borrow().clone();
        report.expect("there was a look")
    }

    pub async fn run(&self, settings: Settings, done: impl FnMut(&Report) -> bool) -> Report {
        self.run_on(self.store.clone(), settings, done).await
    }

    /// Runs until nothing more can be freed.
    pub async fn once(&self) -> Report {
        self.run(Settings { once: true, ..settings("a") }, |_| false).await
    }

    pub fn lease(&self) -> Option<Value> {
        self.server.object("Lease.coordination.k8s.io", NAMESPACE, russet_controller::LEASE)
    }

    /// The requests that were no reads.
    pub fn writes(&self) -> Vec<Seen> {
        self.server.seen().into_iter().filter(|seen| seen.method != "GET").collect()
    }
}

pub fn handle(container: &str) -> HandleId {
    HandleId::new(format!("net.{container}")).unwrap()
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "{what}");
}
