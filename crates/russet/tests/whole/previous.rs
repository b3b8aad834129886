//! This build beside the executables of an earlier release: on one node, with what one of them wrote, and as an upgrade and back.
//!
//! RUSSET_PREVIOUS is the path of the earlier release's command. `cargo xtask upgrade` builds one and runs these tests; `cargo xtask test` leaves them out.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::{bound, eventually, run};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{Answer, PATH, TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;
use crate::upgrade::{
    INTERVAL_S, Release, go_there_and_back, plugin, plugin_named, print_warnings, restart_agent,
};
use crate::upgrade_gaps::no_denied_packet_passes;

/// Requests that an agent is killed in the midst of.
const LATE: usize = 6;
const PLUGINS: &str = "russet,portmap,bridge,host-local";
/// The node's own address, and a port of it that leads to a pod.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 18080;

/// The earlier release and this build, below a directory for the test's files.
fn releases(machine: &Path) -> [Release; 2] {
    let command = std::env::var_os("RUSSET_PREVIOUS").map(PathBuf::from).filter(|it| it.is_file());
    let Some(command) = command else {
        panic!(
            "this test needs the command of an earlier release, and RUSSET_PREVIOUS names no file: `cargo xtask upgrade` builds a release and runs this test with it"
        )
    };
    // The command is the plugin, too, if it is called as one.
    let plugin = Some(command.with_file_name("russet-cni")).filter(|it| it.is_file());
    let plugin = plugin.unwrap_or_else(|| command.clone());
    let directory = machine.join("earlier");
    std::fs::create_dir(&directory).unwrap();
    // Another process writes them, as in `install::version`.
    for (from, name) in [(command, "russet"), (plugin, "russet-cni")] {
        run("cp", &[from.to_str().unwrap(), directory.join(name).to_str().unwrap()]);
    }
    [Release::at(directory), Release::present(machine)]
}

/// Asserts success.
#[track_caller]
fn good(answer: Answer, node: &TestNode) -> Answer {
    assert_eq!(answer.status, 0, "{answer:?}\n{}", node.log());
    answer
}

fn is_served_by(plugin: &Release, agent: &Release) {
    let mut node = TestNode::without_agent(&[]);
    agent.start_agent(&mut node);
    let [pod, other] = [node.pod(), node.pod()];
    let call = |verb: &str, pod: &TestPod, members: Value| plugin.call(&node, verb, pod, members);
    good(call("STATUS", &pod, json!({})), &node);
    let added = good(call("ADD", &pod, json!({})), &node);
    let addresses = added.addresses();
    assert_eq!(addresses.len(), 2, "{added:?}");
    good(call("ADD", &other, json!({})), &node);
    assert!(other.pings(&["-W", "5", &addresses[0]]), "{}", node.log());
    good(call("CHECK", &pod, json!({ "prevResult": added.result() })), &node);
    let kept = json!({ "cni.dev/valid-attachments": [{ "containerID": pod.container, "ifname": "eth0" }] });
    good(call("GC", &pod, kept), &node);
    assert!(!other.pings(&["-W", "1", &addresses[0]]), "GC has removed the other one");
    good(call("CHECK", &pod, json!({ "prevResult": added.result() })), &node);
    // An error of the agent is one of CNI, whichever of them writes it.
    let mut nowhere = pod.clone();
    (nowhere.container, nowhere.netns_name) = ("nowhere".to_owned(), "rstest-nowhere".to_owned());
    call("ADD", &nowhere, json!({})).error();
    for _ in 0..2 {
        good(call("DEL", &pod, json!({})), &node);
        good(call("DEL", &other, json!({})), &node);
    }
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, ping, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn the_plugin_of_each_release_is_served_by_the_agent_of_the_other() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    is_served_by(&earlier, &present);
    is_served_by(&present, &earlier);
}

/// Pods of the plugins `portmap` and `bridge`, which a release has attached.
struct Others {
    published: TestPod,
    published_members: Value,
    /// In the pod's namespace.
    _listener: TcpListener,
    bridged: TestPod,
    bridged_members: Value,
}

// === impl Others ===

impl Others {
    /// Has `published`, which the plugin `russet` has attached, answer on a port of the node, and attaches a pod to a bridge.
    fn attach(node: &mut TestNode, (published, added): (&TestPod, &Answer)) -> Self {
        let ports = json!([{ "hostPort": PORT, "containerPort": 80, "protocol": "tcp" }]);
        let published_members =
            json!({ "prevResult": added.result(), "runtimeConfig": { "portMappings": ports } });
        plugin_named("portmap", node, "ADD", (published, published_members.clone()));
        let netns = NetNs::open_named(&published.netns_name).unwrap();
        let listener = netns.with(|| bound(|| TcpListener::bind("0.0.0.0:80"))).unwrap();
        node.ip(&["address", "add", &format!("{NODE}/32"), "dev", "lo"]);
        let bridged = node.pod();
        let ipam =
            json!({ "type": "host-local", "dataDir": node.path("host-local"), "subnet": "10.55.0.0/24" });
        let mut bridged_members = json!({ "bridge": "br-test", "isGateway": true, "ipam": ipam });
        let attached = plugin_named("bridge", node, "ADD", (&bridged, bridged_members.clone()));
        bridged_members["prevResult"] = attached.result();
        Self {
            published: published.clone(),
            published_members,
            _listener: listener,
            bridged,
            bridged_members,
        }
    }

    /// Whether a pod reaches the port of the node.
    fn is_reached(from: &TestPod) -> bool {
        let address = SocketAddr::from((NODE, PORT));
        let netns = NetNs::open_named(&from.netns_name).unwrap();
        netns.with(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()).unwrap()
    }

    fn check(&self, node: &TestNode, from: &TestPod) {
        plugin_named("portmap", node, "CHECK", (&self.published, self.published_members.clone()));
        plugin_named("bridge", node, "CHECK", (&self.bridged, self.bridged_members.clone()));
        eventually(TIMEOUT, || Self::is_reached(from));
        assert!(self.bridged.pings(&["-W", "5", "10.55.0.1"]), "{}", node.log());
    }

    fn detach(&self, node: &TestNode, from: &TestPod) {
        plugin_named("bridge", node, "DEL", (&self.bridged, self.bridged_members.clone()));
        plugin_named("portmap", node, "DEL", (&self.published, self.published_members.clone()));
        assert!(!Self::is_reached(from));
        let held = std::fs::read_dir(node.path("host-local/testnet")).unwrap();
        let held = held.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(held.filter(|name| name.starts_with("10.")).collect::<Vec<_>>(), [""; 0]);
    }
}

/// Without an agent the plugin uses what the agent of the other release has recorded. Releases before that record had none, and a later
/// one then refuses to choose a store.
fn attach_without_agent(release: &Release, node: &TestNode, pod: &TestPod) {
    let answer = release.call(node, "ADD", pod, json!({}));
    if answer.status == 0 {
        return;
    }
    assert!(!node.path("run/russet/settings.toml").exists(), "{answer:?}");
    let (code, error) = (answer.code(), answer.error().to_string());
    assert!(code == 11 && error.contains("start it again, in this version"), "{answer:?}");
    println!("refused without an agent: {error}");
}

/// An agent of `then` takes over a node whose agent of `first` was killed in the midst of requests.
fn takes_over(then: &Release, first: &Release) {
    let mut node = TestNode::without_agent(&[]);
    first.install(&node, PLUGINS);
    restart_agent(&mut node);
    let pods: Vec<TestPod> = (0..4).map(|_| node.pod()).collect();
    let added: Vec<Answer> = pods.iter().map(|pod| plugin(&node, "ADD", pod, None)).collect();
    let pinging = Pinging::start_every(&pods[0], &added[1].addresses()[0], INTERVAL_S);

    let others = Others::attach(&mut node, (&pods[3], &added[3]));
    others.check(&node, &pods[0]);

    let late: Vec<TestPod> = (0..LATE).map(|_| node.pod()).collect();
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let calls: Vec<_> =
            late.iter().map(|pod| scope.spawn(|| first.call(&node, "ADD", pod, json!({})))).collect();
        eventually(TIMEOUT, || calls.iter().any(std::thread::ScopedJoinHandle::is_finished));
        node.signal_agent(Signal::KILL);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    node.wait_for_agents_death();
    let answered = answers.iter().filter(|answer| answer.status == 0).count();
    println!("{answered} of {LATE} ADDs succeeded while the agent was killed");

    then.install(&node, PLUGINS);
    // No agent runs: the plugin uses what the agent of the other release has recorded.
    let without = node.pod();
    attach_without_agent(then, &node, &without);
    restart_agent(&mut node);
    let known: Vec<(&TestPod, &Answer)> =
        pods.iter().zip(&added).chain(late.iter().zip(&answers).filter(|(_, it)| it.status == 0)).collect();
    for (pod, answer) in &known {
        plugin(&node, "CHECK", pod, Some(answer));
    }
    others.check(&node, &pods[0]);
    let new = node.pod();
    let taken: Vec<String> = known.iter().flat_map(|(_, answer)| answer.addresses()).collect();
    let addresses = plugin(&node, "ADD", &new, None).addresses();
    assert!(addresses.iter().all(|address| !taken.contains(address)), "{addresses:?} of {taken:?}");
    assert!(pods[2].pings(&["-W", "5", &addresses[0]]) && new.pings(&["-W", "5", &taken[0]]));
    pinging.finish();
    others.detach(&node, &pods[0]);
    for pod in pods.iter().chain(&late).chain([&new, &without]) {
        plugin(&node, "DEL", pod, None);
    }
    // Interfaces are deleted together, a while after their DEL.
    eventually(TIMEOUT, || node.links() == ["br-test"]);
    node.stop_agent();
    print_warnings(&node);
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, ping, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn journal_and_store_of_the_earlier_release_are_read_and_its_pods_keep_addresses_and_connections() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    takes_over(&present, &earlier);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, ping, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn journal_and_store_of_this_release_are_read_by_the_earlier_one_and_pods_keep_addresses_and_connections() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    takes_over(&earlier, &present);
}

#[test]
#[ignore = "root: two nodes whose executables are replaced and restored; kernel: vxlan; tool: etcd, ip, ping, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn an_upgrade_from_an_earlier_release_and_back_loses_no_packet_and_lets_none_pass() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    go_there_and_back(&earlier, &present, &[]);
    let knows_it =
        String::from_utf8(Command::new(earlier.command()).args(["agent", "--help"]).output().unwrap().stdout);
    match knows_it.unwrap().contains("--fast-path") {
        true => _ = go_there_and_back(&earlier, &present, &["--fast-path", "require"]),
        false => println!("the earlier release has no fast path"),
    }
}

#[test]
#[ignore = "root: two nodes whose executables are replaced and restored; kernel: vxlan; tool: etcd, ip, ping, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn no_denied_packet_passes_during_an_upgrade_from_an_earlier_release_back_and_again() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    // For an earlier release every pod that is attached while no agent runs is of this namespace.
    no_denied_packet_passes(&earlier, &present, "default");
}

/// Sandboxes of one release are executed in and removed by the command of another.
fn are_managed_by(first: &Release, then: &Release) {
    let mut node = TestNode::without_agent(&[]);
    then.start_agent(&mut node);
    let conf = node.path("etc/cni/net.d");
    std::fs::create_dir_all(&conf).unwrap();
    let russet = json!({ "type": "russet", "agent_socket": node.path("run/russet/cni.sock"), "root": node.root(), "russet_path": then.command() });
    let list = json!({ "cniVersion": "1.1.0", "name": "testnet", "plugins": [russet] });
    std::fs::write(conf.join("10-testnet.conflist"), list.to_string()).unwrap();
    let manifest = node.path("web.yaml");
    std::fs::write(&manifest, "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {hostname: web-0}}")
        .unwrap();
    let sandbox = |release: &Release, args: &[&str]| {
        let mut command = Command::new(release.command());
        command.env_clear().env("PATH", PATH).env("RUSSET_ROOT", node.root()).arg("sandbox").args(args);
        good(node.output(&mut command, ""), &node)
    };
    sandbox(first, &["run", manifest.to_str().unwrap(), "--cluster-dns", "10.96.0.10"]);
    assert!(sandbox(then, &["ls"]).stdout.contains("web"));
    assert_eq!(sandbox(then, &["exec", "web", "--", "hostname"]).stdout, "web-0\n");
    sandbox(then, &["rm", "web"]);
    assert!(!sandbox(first, &["ls"]).stdout.contains("web"));
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes pods; tool: ip, hostname, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn sandboxes_of_each_release_are_used_and_removed_by_the_command_of_the_other() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    are_managed_by(&earlier, &present);
    are_managed_by(&present, &earlier);
}

#[test]
#[ignore = "root: makes a network namespace; tool: ip, strip, and an earlier release, whose command RUSSET_PREVIOUS names"]
fn version_shows_that_of_the_running_agent_of_an_earlier_release_or_why_it_is_not_known() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    let mut node = TestNode::without_agent(&[]);
    assert!(!present.run(&node, &["version"]).stdout.contains("agent"));
    earlier.start_agent(&mut node);
    let own = Command::new(earlier.command()).arg("--version").output().unwrap().stdout;
    let own = String::from_utf8(own).unwrap().trim().replace("russet ", "");
    let shown = present.run(&node, &["version"]).stdout;
    println!("{shown}");
    if !shown.contains(&format!("\nagent {own} (node node-a)\n")) {
        assert!(shown.contains("\nagent: it runs, and its version is not known: "), "{shown}");
        let doctor = present.run(&node, &["doctor"]);
        assert!(
            doctor.status == 3 && doctor.stdout.contains("the running agent is of an earlier version"),
            "{doctor:?}"
        );
    }
}
