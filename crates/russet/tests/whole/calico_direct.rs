//! Plugins that work without an agent, several at once, on a datastore that keeps them waiting (crates/agent/src/turn.rs has the locks and their
//! order): each request has a way to etcd of its own, which the test opens when it likes.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use russet_linux::{FileLock, NetNs};
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::calico::{Ask, Scene, address};
use crate::node::{Answer, PATIENCE, TestPod};

const ETCD: &str = "10.77.0.1:2379";

/// A way to etcd, closed at first: whoever comes is let in and gets no answer.
struct Toll {
    at: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections so far, and whether the way is open.
    gate: Mutex<(usize, bool)>,
    changed: Condvar,
}

// === impl Toll ===

impl Toll {
    fn new(node: &NetNs) -> Self {
        let node = node.try_clone().unwrap();
        let listener = node.with(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let (at, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let keeper = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                keeper.gate.lock().unwrap().0 += 1;
                keeper.changed.notify_all();
                let (keeper, node) = (Arc::clone(&keeper), node.try_clone().unwrap());
                std::thread::spawn(move || keeper.pass(&client, &node));
            }
        });
        Self { at, state }
    }

    fn open(&self) {
        self.state.gate.lock().unwrap().1 = true;
        self.state.changed.notify_all();
    }

    /// Connections so far.
    fn came(&self) -> usize {
        self.state.gate.lock().unwrap().0
    }

    /// A request that goes this way.
    fn ask<'a>(&self, scene: &Scene, pod: &'a TestPod, extra: Value) -> Ask<'a> {
        let mut ask =
            scene.ask(pod, &pod.container, json!({"etcd_endpoints": format!("http://{}", self.at)}));
        ask.config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask
    }
}

// === impl State ===

impl State {
    fn pass(&self, client: &TcpStream, node: &NetNs) {
        let closed = |gate: &mut (usize, bool)| !gate.1;
        drop(self.changed.wait_while(self.gate.lock().unwrap(), closed).unwrap());
        let server = node.with(|| TcpStream::connect(ETCD)).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| copy(client, &server));
            copy(&server, client);
        });
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // Either end may go at any time: a plugin that is done closes nothing in order.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn answer(child: Child) -> Answer {
    child.wait_with_output().unwrap().into()
}

/// Whether the process has a file open whose path ends so.
fn has_open(process: u32, path: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let names = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    names.into_iter().any(|name| name.to_string_lossy().ends_with(path))
}

/// What requests without an agent leave: no lock of a container or pod.
fn assert_no_locks(scene: &Scene) {
    let left: Vec<_> = std::fs::read_dir(scene.node.path("run/russet/locks")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn adds_without_an_agent_wait_for_the_datastore_together_and_get_an_address_each() {
    let mut scene = Scene::new();
    let pods: Vec<TestPod> = (0..6).map(|_| scene.node.pod()).collect();
    let tolls: Vec<Toll> = pods.iter().map(|_| Toll::new(scene.node.netns())).collect();
    let asks: Vec<Ask<'_>> =
        pods.iter().zip(&tolls).map(|(pod, toll)| toll.ask(&scene, pod, json!({}))).collect();
    let children: Vec<Child> = asks.iter().map(|ask| scene.spawn("ADD", ask)).collect();
    // None has had an answer yet, and all have asked: they do not wait for each other.
    eventually(PATIENCE, || tolls.iter().all(|toll| toll.came() > 0));
    tolls.iter().for_each(Toll::open);
    let given: BTreeSet<String> =
        children.into_iter().map(|child| address(&answer(child).result())).collect();
    assert_eq!(given.len(), pods.len(), "{given:?}");
    assert_no_locks(&scene);
    let children: Vec<Child> = asks.iter().map(|ask| scene.spawn("DEL", ask)).collect();
    for child in children {
        let answer = answer(child);
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    assert_eq!(scene.fabric.keys("/calico/ipam/v2/handle/"), Vec::<String>::new());
    assert_no_locks(&scene);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn two_adds_of_one_container_without_an_agent_come_one_after_the_other() {
    let mut scene = Scene::new();
    let pod = scene.node.pod();
    let (one, two) = (Toll::new(scene.node.netns()), Toll::new(scene.node.netns()));
    two.open();
    let first = scene.spawn("ADD", &one.ask(&scene, &pod, json!({})));
    eventually(PATIENCE, || one.came() > 0);
    let second = scene.spawn("ADD", &two.ask(&scene, &pod, json!({})));
    let lock = format!("/locks/container-{}", pod.container);
    eventually(PATIENCE, || has_open(second.id(), &lock));
    assert_eq!(two.came(), 0, "the container is another request's");
    one.open();
    let (first, second) = (answer(first).result(), answer(second).result());
    assert_eq!(first["ips"], second["ips"]);
    assert_no_locks(&scene);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn an_agent_that_starts_waits_for_requests_under_way_and_answers_those_that_come_then() {
    let mut scene = Scene::new();
    let (early, late) = (scene.node.pod(), scene.node.pod());
    let (one, two) = (Toll::new(scene.node.netns()), Toll::new(scene.node.netns()));
    two.open();
    let first = scene.spawn("ADD", &one.ask(&scene, &early, json!({})));
    eventually(PATIENCE, || one.came() > 0);
    let mut agent = scene.node.spawn_agent();
    let gate = scene.node.path("run/russet/gate.lock");
    eventually(PATIENCE, || FileLock::shared(&gate, Instant::now()).is_err());
    let second = scene.spawn("ADD", &two.ask(&scene, &late, json!({})));
    eventually(PATIENCE, || has_open(second.id(), "/run/russet/gate.lock"));
    assert!(two.came() == 0 && !scene.node.path("run/russet/cni.sock").exists());
    one.open();
    let (first, second) = (address(&answer(first).result()), address(&answer(second).result()));
    assert_ne!(first, second);
    // The second one's datastore was opened by the agent, which has the node to itself.
    let node = scene.node.path("run/russet/node.lock");
    assert!(two.came() > 0 && FileLock::shared(&node, Instant::now()).is_err(), "{}", scene.node.log());
    assert!(agent.try_wait().unwrap().is_none(), "{}", scene.node.log());
    let pid = rustix::process::Pid::from_child(&agent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success(), "{}", scene.node.log());
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_pod_whose_policy_comes_late_keeps_nobody_waiting() {
    // calico-cni.md section 4.9
    let mut scene = Scene::new();
    let pod = scene.node.pod();
    let toll = Toll::new(scene.node.netns());
    toll.open();
    let status = scene.node.path("status");
    let wish = json!({"policy_setup_timeout_seconds": 60, "endpoint_status_dir": status});
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0".to_owned();
    let ask = Ask { args, ..toll.ask(&scene, &pod, wish) };
    let mut add = scene.spawn("ADD", &ask);
    let locks = scene.node.path("run/russet/locks");
    let unlocked = || std::fs::read_dir(&locks).is_ok_and(|mut entries| entries.next().is_none());
    // Written, and nothing is locked any more, although nobody has its answer.
    eventually(PATIENCE, || !scene.endpoints().is_empty() && unlocked());
    scene.succeed("DEL", &ask);
    assert_eq!(scene.endpoints(), Vec::<String>::new());
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
