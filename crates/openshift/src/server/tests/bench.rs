//! A node in its own namespace, with the server, our plugin, and a stock plugin's requests.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::registry::Registry;
use russet_addr::{Ipv4Net, NodeName};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult};
use russet_http::listener::Admission;
use russet_linux::NetNs;
use russet_model::openshift::{Namespace, PodNetwork};
use russet_plugins::{LocalNode, RequestLog};
use russet_store::{Sim, Store};
use russet_testkit as testkit;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};

use super::super::{LISTENER, NetworkDefault, Node, Server, Settings};
use crate::data_path::Sdn;
use crate::tenants::{Action, Tenants};
use crate::{DataPathController, DriftRepair, lock};

pub struct Bench {
    pub root: tempfile::TempDir,
    pub store: Rc<dyn Store>,
    pub settings: RefCell<Settings>,
    pub repair: Repair,
    /// Why pods cannot be attached, as the server published it last; None before the first time.
    pub published: Rc<RefCell<Option<Option<String>>>>,
}

/// Drift repair without kernel events: the path is compared when the server asks for it.
#[derive(Clone, Default)]
pub struct Repair(Arc<Mutex<DataPathController>>);

/// One run of the server.
pub struct Life {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    registry: Registry,
}

/// Longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` on a node with one interface, 192.0.2.11/24, and a default route.
pub fn on_a_node<T: Send>(body: impl AsyncFnOnce(Rc<Bench>) -> T + Send) -> T {
    testkit::in_netns_with_loopback(|| {
        for command in [
            "link add nic0 type veth peer name wire0",
            "address add 192.0.2.11/24 dev nic0",
            "link set nic0 up",
            "link set wire0 up",
            "route add default via 192.0.2.1",
        ] {
            testkit::run("ip", &command.split(' ').collect::<Vec<_>>());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let bench = Rc::new(Bench::new());
            for namespace in ["default", "ns1", "ns2"] {
                bench.act(namespace, &Action::Create).await;
            }
            body(bench).await
        })
    })
}

// === impl Bench ===

impl Bench {
    fn new() -> Self {
        let pods = PodNetwork { cidr: net("10.128.0.0/14"), host_subnet_length: 9 };
        let network = NetworkDefault { pods, service: Some(net("172.30.0.0/16")) };
        let settings = RefCell::new(Settings {
            network: Some(network),
            routable_mtu: Some(1350),
            platform: "AWS".to_owned(),
            ..Settings::default()
        });
        Self {
            root: tempfile::tempdir().unwrap(),
            store: Rc::new(Sim::atomic(7)),
            settings,
            repair: Repair::default(),
            published: Rc::default(),
        }
    }

    /// Changes a tenant.
    pub async fn act(&self, namespace: &str, action: &Action) {
        let namespace = Namespace::new(namespace).unwrap();
        Tenants::new(Rc::clone(&self.store)).act(&namespace, action).await.unwrap();
    }

    /// Starts the server and waits until it serves.
    pub async fn serve(&self) -> Life {
        let life = self.begin();
        let conf = self.path("etc/cni/net.d/80-openshift-network.conf");
        let begun = async {
            // A later run finds the file of the earlier one; a socket without a server yet accepts
            // and lets us wait.
            while self.try_exchange(b"GET / HTTP/1.1\r\nHost: dummy\r\n\r\n".to_vec()).await.is_none()
                || !conf.exists()
            {
                assert!(!life.task.is_finished());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, begun).await.expect("the server begins");
        life
    }

    /// Starts the server without waiting; something may prevent its start.
    pub fn begin(&self) -> Life {
        let node = Node {
            name: NodeName::new("n1").unwrap(),
            root: self.root.path().to_owned(),
            run_dir: self.path("run/russet"),
            state_dir: self.path("var/lib/russet"),
            interface: None,
            mtu_bytes: Some(1400),
        };
        let published = Rc::clone(&self.published);
        let publish = move |problem: Option<&str>| {
            published.replace(Some(problem.map(str::to_owned)));
        };
        let mut registry = Registry::default();
        let (stop, stopped) = watch::channel(false);
        let (settings, admission) = (self.settings.borrow().clone(), Admission::new(LISTENER));
        let store = (Rc::clone(&self.store), None);
        let server = Server::new(node, settings, store, &mut registry, publish, admission, stopped);
        Life { task: tokio::task::spawn_local(server.run(self.repair.clone())), stop, registry }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("var/run/openshift-sdn/cniserver/socket")
    }

    /// The allocated addresses.
    pub fn addresses(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path("var/lib/cni/networks/openshift-sdn")) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            names.filter(|name| name.parse::<std::net::Ipv4Addr>().is_ok()).collect();
        names.sort();
        names
    }

    /// One HTTP exchange as raw bytes: head and body.
    pub async fn exchange(&self, request: Vec<u8>) -> (String, String) {
        self.try_exchange(request).await.expect("an answer")
    }

    /// On its own thread, because the server uses this one.
    async fn try_exchange(&self, request: Vec<u8>) -> Option<(String, String)> {
        let socket = self.socket();
        let talk = move || {
            let mut stream = UnixStream::connect(socket).ok()?;
            // A server that refuses a request early stops reading; the rest of the request then resets the
            // connection behind the answer.
            let _ = stream.write_all(&request);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8(answer).ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            Some((head.to_owned(), body.to_owned()))
        };
        tokio::task::spawn_blocking(talk).await.unwrap()
    }

    /// The stock plugin's POST, as Go's client writes it.
    pub async fn post(&self, body: &str) -> (String, String) {
        self.exchange(post(body)).await
    }

    /// Runs our plugin.
    pub async fn plugin(
        &self,
        verb: &str,
        pod: (&str, &str),
        config: &Value,
    ) -> Result<Option<CniResult>, CniError> {
        self.plugin_in(verb, pod, &format!("/run/netns/{}", pod.1), config).await
    }

    /// Runs our plugin with another path of the pod's namespace.
    pub async fn plugin_in(
        &self,
        verb: &str,
        (namespace, name): (&str, &str),
        netns: &str,
        config: &Value,
    ) -> Result<Option<CniResult>, CniError> {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={name}"
        );
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", name),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", &args),
        ];
        let request = Request::new(vars, config.to_string().into_bytes())?;
        let node = LocalNode::for_request(self.root.path().to_owned());
        russet_plugins::run_local(&node, "openshift-sdn", &request, &RequestLog::new("test")).await
    }

    /// Attaches a pod by our plugin and returns its address.
    pub async fn add(&self, namespace: &str, name: &str) -> String {
        NetNs::create_named(name).unwrap();
        let result = self.plugin("ADD", (namespace, name), &conf()).await;
        let result = result.unwrap_or_else(|error| panic!("{error}")).unwrap();
        result.ips[0].address.addr().to_string()
    }
}

// === impl Repair ===

impl DriftRepair for Repair {
    fn keep(&self, path: &Arc<Mutex<Sdn>>) -> watch::Receiver<Option<String>> {
        // The agent reads the path's settings here, which waits for its holder.
        let _held = lock(path);
        lock(&self.0).keep(path)
    }

    fn reconcile(&self) {
        lock(&self.0).reconcile();
    }
}

// === impl Life ===

impl Life {
    /// Like SIGTERM.
    pub async fn stop(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(TIMEOUT, self.task).await.unwrap().unwrap();
    }

    /// Like SIGKILL: the server is dropped at its current await, and its connections are closed.
    /// (Work on threads ends by itself, as work in the kernel would.)
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// The metrics as a scrape returns them.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

pub fn post(body: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: dummy\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub fn conf() -> Value {
    json!({"cniVersion": "1.1.0", "name": "openshift-sdn", "type": "openshift-sdn"})
}

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

/// One echo request and its reply.
pub async fn pings(pod: &str, to: &str) -> bool {
    let (pod, to) = (pod.to_owned(), to.to_owned());
    tokio::task::spawn_blocking(move || testkit::pings(&pod, &to)).await.unwrap()
}

/// The names of the pods' host ends.
pub fn links() -> Vec<String> {
    testkit::links(None).into_iter().filter(|name| name.starts_with("veth")).collect()
}
