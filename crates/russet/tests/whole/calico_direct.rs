//! Concurrent plugins without an agent, on a datastore that does not answer at first
//! (crates/agent/src/node_lock.rs has the locks and their order): each request reaches etcd through a
//! proxy of its own, which the test opens.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use russet_linux::{FileLock, NetNs};
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::calico::{CalicoSetup, Request, address};
use crate::node::{Answer, TIMEOUT, TestPod};

const ETCD: &str = "10.77.0.1:2379";

/// A proxy to etcd, closed at first: it accepts connections and forwards nothing.
struct EtcdProxy {
    at: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// The number of connections so far, and whether the proxy forwards.
    connections_and_open: Mutex<(usize, bool)>,
    changed: Condvar,
}

// === impl EtcdProxy ===

impl EtcdProxy {
    fn new(node: &NetNs) -> Self {
        let node = node.try_clone().unwrap();
        let listener = node.with(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let (at, state) = (listener.local_addr().unwrap(), Arc::<ProxyState>::default());
        let keeper = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                keeper.connections_and_open.lock().unwrap().0 += 1;
                keeper.changed.notify_all();
                let (keeper, node) = (Arc::clone(&keeper), node.try_clone().unwrap());
                std::thread::spawn(move || keeper.pass(&client, &node));
            }
        });
        Self { at, state }
    }

    fn open(&self) {
        self.state.connections_and_open.lock().unwrap().1 = true;
        self.state.changed.notify_all();
    }

    /// The number of connections so far.
    fn connections(&self) -> usize {
        self.state.connections_and_open.lock().unwrap().0
    }

    /// A request that uses this proxy.
    fn request<'a>(&self, setup: &CalicoSetup, pod: &'a TestPod, extra: Value) -> Request<'a> {
        let mut request =
            setup.request(pod, &pod.container, json!({"etcd_endpoints": format!("http://{}", self.at)}));
        request.config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        request
    }
}

// === impl ProxyState ===

impl ProxyState {
    fn pass(&self, client: &TcpStream, node: &NetNs) {
        let closed = |connections_and_open: &mut (usize, bool)| !connections_and_open.1;
        drop(self.changed.wait_while(self.connections_and_open.lock().unwrap(), closed).unwrap());
        let server = node.with(|| TcpStream::connect(ETCD)).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| copy(client, &server));
            copy(&server, client);
        });
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // Either end may close at any time: a plugin does not close its connections in order.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn answer(child: Child) -> Answer {
    child.wait_with_output().unwrap().into()
}

/// Whether the process has a file open whose path ends with `path`.
fn has_open(process: u32, path: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let names = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    names.into_iter().any(|name| name.to_string_lossy().ends_with(path))
}

/// Requests without an agent must leave no lock of a container or pod.
fn assert_no_locks(setup: &CalicoSetup) {
    let left: Vec<_> = std::fs::read_dir(setup.node.path("run/russet/locks")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn adds_without_an_agent_wait_for_the_datastore_together_and_get_an_address_each() {
    let mut setup = CalicoSetup::new();
    let pods: Vec<TestPod> = (0..6).map(|_| setup.node.pod()).collect();
    let proxies: Vec<EtcdProxy> = pods.iter().map(|_| EtcdProxy::new(setup.node.netns())).collect();
    let asks: Vec<Request<'_>> =
        pods.iter().zip(&proxies).map(|(pod, proxy)| proxy.request(&setup, pod, json!({}))).collect();
    let children: Vec<Child> = asks.iter().map(|request| setup.spawn("ADD", request)).collect();
    // None has an answer yet, and all have connected: they do not wait for each other.
    eventually(TIMEOUT, || proxies.iter().all(|proxy| proxy.connections() > 0));
    proxies.iter().for_each(EtcdProxy::open);
    let given: BTreeSet<String> =
        children.into_iter().map(|child| address(&answer(child).result())).collect();
    assert_eq!(given.len(), pods.len(), "{given:?}");
    assert_no_locks(&setup);
    let children: Vec<Child> = asks.iter().map(|request| setup.spawn("DEL", request)).collect();
    for child in children {
        let answer = answer(child);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    assert_eq!(setup.fabric.keys("/calico/ipam/v2/handle/"), Vec::<String>::new());
    assert_no_locks(&setup);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn two_adds_of_one_container_without_an_agent_are_serialised() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let (one, two) = (EtcdProxy::new(setup.node.netns()), EtcdProxy::new(setup.node.netns()));
    two.open();
    let first = setup.spawn("ADD", &one.request(&setup, &pod, json!({})));
    eventually(TIMEOUT, || one.connections() > 0);
    let second = setup.spawn("ADD", &two.request(&setup, &pod, json!({})));
    let lock = format!("/locks/container-{}", pod.container);
    eventually(TIMEOUT, || has_open(second.id(), &lock));
    assert_eq!(two.connections(), 0, "the container is another request's");
    one.open();
    let (first, second) = (answer(first).result(), answer(second).result());
    assert_eq!(first["ips"], second["ips"]);
    assert_no_locks(&setup);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_starting_agent_waits_for_requests_in_progress_and_answers_later_ones() {
    let mut setup = CalicoSetup::new();
    let (early, late) = (setup.node.pod(), setup.node.pod());
    let (one, two) = (EtcdProxy::new(setup.node.netns()), EtcdProxy::new(setup.node.netns()));
    two.open();
    let first = setup.spawn("ADD", &one.request(&setup, &early, json!({})));
    eventually(TIMEOUT, || one.connections() > 0);
    let mut agent = setup.node.spawn_agent();
    let gate = setup.node.path("run/russet/gate.lock");
    eventually(TIMEOUT, || FileLock::shared(&gate, Instant::now()).is_err());
    let second = setup.spawn("ADD", &two.request(&setup, &late, json!({})));
    eventually(TIMEOUT, || has_open(second.id(), "/run/russet/gate.lock"));
    assert!(two.connections() == 0 && !setup.node.path("run/russet/cni.sock").exists());
    one.open();
    let (first, second) = (address(&answer(first).result()), address(&answer(second).result()));
    assert_ne!(first, second);
    // The agent opened the second one's datastore; it has the node's lock.
    let node = setup.node.path("run/russet/node.lock");
    assert!(
        two.connections() > 0 && FileLock::shared(&node, Instant::now()).is_err(),
        "{}",
        setup.node.log()
    );
    assert!(agent.try_wait().unwrap().is_none(), "{}", setup.node.log());
    let pid = rustix::process::Pid::from_child(&agent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success(), "{}", setup.node.log());
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_late_policy_of_one_pod_delays_no_other_pod() {
    // calico-cni.md section 4.9
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let proxy = EtcdProxy::new(setup.node.netns());
    proxy.open();
    let status = setup.node.path("status");
    let wish = json!({"policy_setup_timeout_seconds": 60, "endpoint_status_dir": status});
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0".to_owned();
    let request = Request { args, ..proxy.request(&setup, &pod, wish) };
    let mut add = setup.spawn("ADD", &request);
    let locks = setup.node.path("run/russet/locks");
    let unlocked = || std::fs::read_dir(&locks).is_ok_and(|mut entries| entries.next().is_none());
    // The endpoint is written and no lock is held, although the answer is still pending.
    eventually(TIMEOUT, || !setup.endpoints().is_empty() && unlocked());
    setup.succeed("DEL", &request);
    assert_eq!(setup.endpoints(), Vec::<String>::new());
    assert!(add.try_wait().unwrap().is_none(), "it waits for the policy");
    std::fs::create_dir_all(&status).unwrap();
    std::fs::write(status.join("k8s shop%2Fweb-0 eth0"), "").unwrap();
    answer(add).result();
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn many_native_adds_without_an_agent_at_once_get_an_address_each() {
    let mut fabric = crate::fabric::Fabric::new();
    let mut node = fabric.node("n1", &[]);
    let pods: Vec<TestPod> = (0..12).map(|_| node.pod()).collect();
    let given: Vec<Vec<String>> = std::thread::scope(|scope| {
        let adding: Vec<_> = pods.iter().map(|pod| scope.spawn(|| node.add(pod).addresses())).collect();
        adding.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let unique: BTreeSet<&String> = given.iter().flatten().collect();
    assert_eq!(unique.len(), given.iter().map(Vec::len).sum::<usize>(), "{given:?}");
    assert!(given.iter().all(|addresses| addresses.len() == 2), "{given:?}");
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| {
                let answer = node.del(pod);
                assert_eq!(answer.status, 0, "{answer:?}");
            });
        }
    });
    assert_eq!(fabric.keys("/calico/ipam/v2/handle/"), Vec::<String>::new());
}
