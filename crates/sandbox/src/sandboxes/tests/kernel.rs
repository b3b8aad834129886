//! The same life cycle on a real kernel: the built-in engine, Debian's `bridge` with `host-local`,
//! and the kernel's addresses. Leftovers of a death at each step are counted in namespaces, veths,
//! addresses and mounts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_runtime::{ConfigDir, Runtime};
use russet_testkit::{eventually, in_netns_with_loopback, ip_json, require_cni_plugin};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};

use super::lab::pod;
use crate::fault::DIE_AT;
use crate::{Builtin, Engine as _, Filter, Metrics, Options, SandboxId, Sandboxes, State};

/// The environment of a child: its node.
const NODE: &str = "RUSSET_TEST_NODE";

/// A node of the test's own, in namespaces of the test's own.
struct TestNode(PathBuf);

// === impl TestNode ===

impl TestNode {
    fn new(dir: &Path, ipam: Value) -> Self {
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipam": ipam}]});
        fs::create_dir_all(dir.join("net.d")).unwrap();
        fs::write(dir.join("net.d/10-pods.conflist"), list.to_string()).unwrap();
        Self(dir.to_owned())
    }

    fn host_local(dir: &Path) -> Self {
        let range = json!([[{"subnet": "10.77.0.0/24"}]]);
        Self::new(dir, json!({"type": "host-local", "dataDir": dir.join("ipam"), "ranges": range}))
    }

    fn open(&self) -> Sandboxes {
        let plugins = require_cni_plugin("bridge").parent().unwrap().to_owned();
        let run_dir = self.0.join("run");
        let options = Options {
            state_dir: self.0.join("state"),
            engine: Box::new(Builtin::new(&run_dir)),
            runtime: Runtime::new(vec![plugins], run_dir.join("cni")),
            networks: Box::new(ConfigDir::new(self.0.join("net.d"))),
            metrics: Metrics::new(),
            lock_timeout: Duration::from_secs(60),
            on_waiting: |_| (),
            run_dir,
        };
        Sandboxes::open(options).unwrap()
    }

    /// Nothing of any sandbox is left. The kernel removes a dead namespace's links in the
    /// background, after its last user has ended, so they have a few seconds.
    fn assert_nothing_left(&self) {
        eventually(Duration::from_secs(10), || self.veths() == 0);
        assert_eq!(self.left(), Vec::<String>::new());
    }

    /// Everything that a sandbox could have left, by kind.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for dir in [
            "ipam/pods",
            "run/engine",
            "run/netns",
            "run/sandboxes",
            "run/live",
            "state/checkpoints",
            "run/cni/results",
        ] {
            let names =
                fs::read_dir(self.0.join(dir)).into_iter().flatten().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap());
            left.extend(
                names
                    .filter(|name| name != "lock" && !name.starts_with("last_reserved"))
                    .map(|name| format!("{dir}/{name}")),
            );
        }
        left.extend((0..self.veths()).map(|_| "veth".to_owned()));
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let ours = self.0.to_str().unwrap();
        let inside = |line: &&str| line.contains(ours) && !line.contains(&format!("{ours}/run/netns "));
        left.extend(mounts.lines().filter(inside).map(str::to_owned));
        left.sort();
        left
    }

    fn veths(&self) -> usize {
        let links = ip_json(&["link", "show", "type", "veth"]);
        links.as_array().map_or(0, Vec::len)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::env::var_os(NODE).is_none() {
            // After a failed assertion there may be pods; their processes would survive the test.
            let engine = Builtin::new(self.0.join("run"));
            for id in engine.list().unwrap_or_default() {
                let _ = engine.remove(&id);
            }
            let _ = unmount(self.0.join("run/netns"), UnmountFlags::DETACH);
        }
    }
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn status_says_what_the_kernel_says() {
    // cni-runtime.md section 3.1, Pod IP, and section 3.2: READY with ip "" when the namespace is unmounted
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::host_local(dir.path());
        let sandboxes = node.open();
        let id = sandboxes.run(pod("web")).unwrap();
        let sandbox = sandboxes.status(&id).unwrap();
        let netns = NetNs::open(sandbox.netns.as_ref().unwrap()).unwrap();
        let shown = |name: &str| netns.run_in_thread(|| ip_json(&["addr", "show", "dev", name])).unwrap();
        let eth0 = shown("eth0");
        let addresses: Vec<String> = sandbox.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, [eth0[0]["addr_info"][0]["local"].as_str().unwrap()]);
        assert!(shown("lo")[0]["flags"].as_array().unwrap().contains(&"UP".into()));
        let hosts = fs::read_to_string(sandbox.dir.join("hosts")).unwrap();
        assert!(hosts.contains(&format!("{}\tweb\n", addresses[0])), "{hosts}");
        let (_, stats) = sandboxes.stats(&id).unwrap();
        assert_eq!(stats.interfaces.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["eth0"]);
        unmount(sandbox.netns.unwrap(), UnmountFlags::DETACH).unwrap();
        let sandbox = sandboxes.status(&id).unwrap();
        assert_eq!((sandbox.state, sandbox.addresses.len()), (State::Ready, 0));
        drop(netns);
        sandboxes.remove(&id).unwrap();
        node.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn sysctls_of_eth0_are_set_when_the_pod_has_it_and_a_bad_one_leaves_nothing() {
    // cni-runtime.md section 3.1: sysctls are part of the sandbox's linux section
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::host_local(dir.path());
        let sandboxes = node.open();
        let with = |name: &str| {
            let sysctls = [(name.to_owned(), "1".to_owned())].into();
            sandboxes.run(crate::Config { sysctls, ..pod("web") })
        };
        let error = with("net.ipv4.conf.eth7.arp_ignore").unwrap_err().to_string();
        assert!(
            error.contains("set sysctls in") && error.contains("net/ipv4/conf/eth7/arp_ignore"),
            "{error}"
        );
        node.assert_nothing_left();
        let id = with("net.ipv4.conf.eth0.arp_ignore").unwrap();
        let netns = NetNs::open(sandboxes.status(&id).unwrap().netns.unwrap()).unwrap();
        let read = || fs::read_to_string("/proc/sys/net/ipv4/conf/eth0/arp_ignore").unwrap();
        assert_eq!(netns.run_in_thread(read).unwrap(), "1\n");
        drop(netns);
        sandboxes.remove(&id).unwrap();
        node.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn a_killed_process_is_reported_without_a_request() {
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::host_local(dir.path());
        let sandboxes = node.open();
        let (old, new) = (sandboxes.run(pod("old")).unwrap(), pod("new"));
        drop(sandboxes);
        // One of an earlier process, and one of this.
        let sandboxes = node.open();
        let ids = [old, sandboxes.run(new).unwrap()];
        let events = sandboxes.events();
        let deaths = sandboxes.deaths().unwrap();
        assert!(!russet_linux::process::has_ended(&deaths, Duration::ZERO).unwrap(), "no process has died");
        for id in &ids {
            let pid = sandboxes.status(id).unwrap().pid.unwrap();
            assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
            assert!(russet_linux::process::has_ended(&deaths, Duration::from_secs(20)).unwrap());
            sandboxes.notice_deaths();
            let event = events.wait(Duration::ZERO).unwrap();
            assert_eq!((&event.sandbox.id, event.kind), (id, crate::EventKind::Stopped));
        }
        assert!(!russet_linux::process::has_ended(&deaths, Duration::ZERO).unwrap(), "all are noticed");
        ids.iter().for_each(|id| sandboxes.remove(id).unwrap());
        node.assert_nothing_left();
    });
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn an_ipv4_address_is_the_primary_one_whatever_came_first() {
    // cni-runtime.md section 3.1: v4 is primary
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let addresses =
            json!([{"address": "fd00::9/64"}, {"address": "10.9.9.9/24"}, {"address": "10.9.9.10/24"}]);
        let node = TestNode::new(dir.path(), json!({"type": "static", "addresses": addresses}));
        let sandboxes = node.open();
        let id = sandboxes.run(pod("web")).unwrap();
        let addresses = sandboxes.status(&id).unwrap().addresses;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.9.9.9", "10.9.9.10", "fd00::9"]);
        sandboxes.remove(&id).unwrap();
        node.assert_nothing_left();
    });
}

/// The life of one pod; runs in a child, on the given node.
#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn a_pod_comes_and_goes_and_another_stays() {
    let live = |node: TestNode| {
        let sandboxes = node.open();
        let stays = sandboxes.run(pod("stays")).unwrap();
        fs::write(node.0.join("stays"), stays.as_str()).unwrap();
        let web = sandboxes.run(pod("web")).unwrap();
        sandboxes.stop(&web).unwrap();
        sandboxes.remove(&web).unwrap();
        assert_eq!(sandboxes.status(&stays).unwrap().state, State::Ready);
        assert_eq!(node.veths(), 1);
        sandboxes
    };
    match std::env::var_os(NODE) {
        Some(path) => drop(live(TestNode(path.into()))),
        None => in_netns_with_loopback(|| {
            let dir = tempfile::tempdir().unwrap();
            let sandboxes = live(TestNode::host_local(dir.path()));
            let ids: Vec<SandboxId> =
                sandboxes.list(&Filter::default()).into_iter().map(|it| it.id).collect();
            ids.iter().for_each(|id| sandboxes.remove(id).unwrap());
        }),
    }
}

/// Returns whether it was killed.
fn child(node: &TestNode, die_at: u64) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "sandboxes::tests::kernel::a_pod_comes_and_goes_and_another_stays";
    command.args(["--exact", test, "--test-threads=1", "--include-ignored"]);
    command.env(NODE, &node.0).env(DIE_AT, die_at.to_string());
    let output = command.output().unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    killed
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn a_daemon_killed_at_any_step_leaves_no_namespace_veth_or_address() {
    in_netns_with_loopback(|| {
        let mut killed = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let node = TestNode::host_local(dir.path());
            if !child(&node, killed + 1) {
                let sandboxes = node.open();
                let ids: Vec<SandboxId> =
                    sandboxes.list(&Filter::default()).into_iter().map(|it| it.id).collect();
                ids.iter().for_each(|id| sandboxes.remove(id).unwrap());
                break;
            }
            killed += 1;
            eprintln!("step {killed}");
            let sandboxes = node.open();
            let listed = sandboxes.list(&Filter::default());
            let ready = |id: &str| listed.iter().any(|it| it.id.as_str() == id && it.state == State::Ready);
            if let Ok(id) = fs::read_to_string(node.0.join("stays")) {
                assert!(ready(&id), "step {killed}");
                assert_eq!(
                    sandboxes.status(&id.parse().unwrap()).unwrap().addresses.len(),
                    1,
                    "step {killed}"
                );
            }
            let attached = listed.iter().filter(|it| it.state == State::Ready).count();
            // The kernel removes a dead namespace's links in the background.
            eventually(Duration::from_secs(10), || node.veths() == attached);
            let addresses = node.left().iter().filter(|thing| thing.starts_with("ipam/")).count();
            assert_eq!(addresses, attached, "step {killed}");
            listed.iter().for_each(|it| sandboxes.remove(&it.id).unwrap());
            node.assert_nothing_left();
        }
        println!("killed at each of {killed} steps");
        assert!(killed > 25, "{killed}");
    });
}

#[test]
#[ignore = "kernel: namespaces, bridge, veth; root; tool: the Go plugins, ip"]
fn two_hundred_sandboxes_twenty_at_a_time_have_two_hundred_addresses_and_leave_nothing() {
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let node = TestNode::host_local(dir.path());
        let sandboxes = node.open();
        // Threads of the standard library start in the namespaces of their parent.
        let each = |work: &(dyn Fn(usize) + Sync)| {
            let began = Instant::now();
            std::thread::scope(|scope| {
                for worker in 0..20 {
                    scope.spawn(move || (0..10).for_each(|round| work(worker * 10 + round)));
                }
            });
            began.elapsed()
        };
        let made = each(&|n| drop(sandboxes.run(pod(&format!("pod-{n}"))).unwrap()));
        let listed = sandboxes.list(&Filter::default());
        let addresses: BTreeSet<_> =
            listed.iter().flat_map(|it| sandboxes.status(&it.id).unwrap().addresses).collect();
        assert_eq!((listed.len(), addresses.len()), (200, 200));
        let removed = each(&|n| sandboxes.remove(&listed[n].id).unwrap());
        println!(
            "200 sandboxes made in {made:?} and removed in {removed:?}, 20 at a time, with Go's bridge and host-local"
        );
        node.assert_nothing_left();
    });
}
