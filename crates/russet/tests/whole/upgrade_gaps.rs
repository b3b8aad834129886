//! No packet passes that a policy denies while plugin and agent of two nodes are replaced by those of another release, back, and again, and pods start
//! all the time; and no packet is lost that is allowed. Here both releases are this build, under different bytes; `previous.rs` does it with the
//! executables of an earlier release.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use russet_linux::{NetNs, process};
use russet_testkit::{eventually, eventually_some, spawn_with_input};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;
use crate::probing::{Prober, Socket};
use crate::upgrade::{Release, installed_command, installed_plugin, restart_agent, roll_back};

/// Pods may only ping each other in one of these namespaces, and no policy selects those of the other one.
const PINGING: &str = "pinging";
const OPEN: &str = "open";
/// As many pods are attached on the first node again and again, so many of them at a time.
const PODS: usize = 9;
const AT_ONCE: usize = 3;
/// So many of them start with the plugin of one release and the agent of the other.
const STARTS: usize = 6;
/// Seconds between two pings that are allowed.
const INTERVAL_S: &str = "0.002";
/// What an agent logs.
const IN_FORCE: &str = "policies are in force";

/// What calls the installed plugin of a node as a runtime does, whatever becomes of the node's agent.
struct Runtime {
    netns: NetNs,
    plugin: PathBuf,
    config: String,
}

/// Two nodes at an etcd, with an agent of some release each.
struct Nodes {
    _fabric: Fabric,
    /// The namespace whose pods a policy isolates.
    isolated: &'static str,
    one: TestNode,
    two: TestNode,
}

/// Pods that are attached, and detached to be attached again.
struct Restarted<'a> {
    runtime: Runtime,
    prober: &'a Prober,
    namespace: &'static str,
    pods: Vec<TestPod>,
    starts: AtomicUsize,
    is_over: AtomicBool,
}

/// How an agent of the other release takes the place of the one that runs.
#[derive(Clone, Copy)]
enum Change<'a> {
    To(&'a Release),
    Back,
    /// The same as `To`, with an agent that is killed.
    Crash(&'a Release),
}

// === impl Runtime ===

impl Runtime {
    fn of(node: &TestNode) -> Self {
        let config = node.config(json!({ "russet_path": installed_command(node) })).to_string();
        let netns = NetNs::open_named(node.netns_name()).unwrap();
        Self { netns, plugin: installed_plugin(node, "russet"), config }
    }

    fn call(&self, verb: &str, pod: &TestPod, namespace: &str) -> Answer {
        let mut command = pod.call(&self.plugin, verb, self.plugin.parent().unwrap());
        let name = pod.container.split('.').next().unwrap();
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        process::in_netns(command.env("CNI_ARGS", args), &self.netns).unwrap();
        spawn_with_input(&mut command, &self.config).wait_with_output().unwrap().into()
    }

    /// Attaches a pod in a new sandbox; a request that fails is repeated with another one, as kubelet does.
    fn attach(&self, pod: &TestPod, namespace: &str) -> (TestPod, Vec<String>) {
        let sandbox = || {
            static SANDBOXES: AtomicUsize = AtomicUsize::new(0);
            let number = SANDBOXES.fetch_add(1, Ordering::Relaxed);
            TestPod { container: format!("{}.{number}", pod.container), ..pod.clone() }
        };
        eventually_some(TIMEOUT, || {
            let sandbox = sandbox();
            let answer = self.call("ADD", &sandbox, namespace);
            if answer.status == 0 {
                let addresses = answer.addresses();
                return Some((sandbox, addresses));
            }
            println!("an ADD failed: {}", answer.error());
            self.call("DEL", &sandbox, namespace);
            None
        })
    }
}

// === impl Nodes ===

impl Nodes {
    /// With agents of this release, and without policies.
    fn with(release: &Release, isolated: &'static str) -> Self {
        let mut fabric = Fabric::new();
        let args = ["--ipv6-pool", "none"];
        let [mut one, mut two] = ["node-a", "node-b"].map(|name| fabric.node(name, &args));
        for node in [&mut one, &mut two] {
            release.install(node, "russet");
            node.start_agent_by(Command::new(installed_command(node)));
        }
        Self { _fabric: fabric, isolated, one, two }
    }

    /// An agent follows them in this order: once the last one is in force, both are.
    fn policies(&self) -> [Value; 2] {
        let policy = |namespace: &str, rules: Value| {
            json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": { "name": namespace },
                "spec": { "selector": format!("projectcalico.org/namespace == '{namespace}'"),
                    "types": ["Ingress", "Egress"], "ingress": rules, "egress": rules } })
        };
        let pings = json!([{ "action": "Allow", "protocol": "ICMP" }]);
        [policy(PINGING, pings), policy(self.isolated, json!([]))]
    }

    fn resource(&self, verb: &str, document: &Value) {
        let mut command = Command::new(installed_command(&self.one));
        command.args([verb, "-f", "-", "--root"]).arg(self.one.root());
        let answer = self.one.output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }
}

fn attached(node: &mut TestNode, namespace: &str) -> (TestPod, String) {
    let pod = node.pod();
    let (pod, mut addresses) = Runtime::of(node).attach(&pod, namespace);
    (pod, addresses.remove(0))
}

fn in_force(node: &TestNode) -> usize {
    node.log().matches(IN_FORCE).count()
}

// === impl Restarted ===

impl<'a> Restarted<'a> {
    fn new(nodes: &mut Nodes, prober: &'a Prober) -> Self {
        let pods: Vec<TestPod> = (0..PODS).map(|_| nodes.one.pod()).collect();
        pods.iter().for_each(|pod| prober.add(Socket::open(&pod.container, pod, &[])));
        let (runtime, namespace) = (Runtime::of(&nodes.one), nodes.isolated);
        Self {
            runtime,
            prober,
            namespace,
            pods,
            starts: AtomicUsize::default(),
            is_over: AtomicBool::default(),
        }
    }

    /// Starts some of the pods again and again until it is over; all of them are attached then.
    fn run(&self, pods: &[TestPod]) -> Vec<TestPod> {
        let mut sandboxes: Vec<Option<TestPod>> = vec![None; pods.len()];
        for turn in 0.. {
            if turn >= pods.len() && self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let (pod, sandbox) = (&pods[turn % pods.len()], &mut sandboxes[turn % pods.len()]);
            if let Some(sandbox) = sandbox.take() {
                self.prober.learn(&pod.container, &[]);
                eventually(TIMEOUT, || self.runtime.call("DEL", &sandbox, self.namespace).status == 0);
            }
            let (attached, addresses) = self.runtime.attach(pod, self.namespace);
            self.prober.learn(&pod.container, &addresses);
            *sandbox = Some(attached);
            self.starts.fetch_add(1, Ordering::Relaxed);
        }
        sandboxes.into_iter().flatten().collect()
    }

    /// Waits until more pods have started.
    fn goes_on(&self) {
        let wanted = self.starts.load(Ordering::Relaxed) + STARTS;
        eventually(TIMEOUT, || self.starts.load(Ordering::Relaxed) >= wanted);
    }

    /// Has pods start while `change` runs; returns what is attached then.
    fn during(&self, change: impl FnOnce()) -> Vec<TestPod> {
        self.is_over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let pods = self.pods.chunks(PODS / AT_ONCE);
            let running: Vec<_> = pods.map(|pods| scope.spawn(move || self.run(pods))).collect();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
            // Else the others would go on for ever.
            self.is_over.store(true, Ordering::Relaxed);
            let attached = running.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            attached
        })
    }

    fn detach(&self, pods: Vec<TestPod>) {
        for pod in pods {
            let answer = self.runtime.call("DEL", &pod, self.namespace);
            assert_eq!(answer.status, 0, "{answer:?}");
        }
    }
}

// === impl Change ===

impl Change<'_> {
    fn make(self, node: &mut TestNode, meanwhile: impl Fn()) {
        match self {
            Self::To(release) | Self::Crash(release) => release.install(node, "russet"),
            Self::Back => roll_back(node),
        }
        // The plugin of one release, the agent of the other.
        meanwhile();
        let before = in_force(node);
        if matches!(self, Self::Crash(_)) {
            node.signal_agent(Signal::KILL);
            node.wait_for_agents_death();
            meanwhile();
        }
        restart_agent(node);
        eventually(TIMEOUT, || in_force(node) > before);
        meanwhile();
    }
}

/// Two nodes go from the earlier release to the present one, back, and to the present one again, each time the first one before the second one. Datagrams that
/// policies deny are sent all the time by pods that were there before and by pods that start, of the namespace `isolated`.
pub fn no_denied_packet_passes(earlier: &Release, present: &Release, isolated: &'static str) {
    let mut nodes = Nodes::with(earlier, isolated);
    // Before there is a policy.
    let subjects = [attached(&mut nodes.one, isolated), attached(&mut nodes.two, isolated)];
    let pair = [attached(&mut nodes.one, PINGING), attached(&mut nodes.two, PINGING)];
    let open = [attached(&mut nodes.one, OPEN), attached(&mut nodes.two, OPEN)];
    nodes.policies().iter().for_each(|policy| nodes.resource("apply", policy));
    for node in [&nodes.one, &nodes.two] {
        eventually(TIMEOUT, || in_force(node) > 0);
    }
    let reaches = |from: &(TestPod, String), to: &(TestPod, String)| from.0.pings(&["-W", "1", &to.1]);
    for subject in &subjects {
        eventually(TIMEOUT, || !reaches(subject, &open[0]) && !reaches(&open[0], subject));
    }
    let socket = |name: &str, (pod, address): &(TestPod, String)| {
        Socket::open(name, pod, std::slice::from_ref(address))
    };
    let prober = Prober::start(vec![socket("near", &open[0]), socket("far", &open[1])]);
    for (name, pod) in ["old-a", "old-b", "pair-a", "pair-b"].iter().zip(subjects.iter().chain(&pair)) {
        prober.add(socket(name, pod));
    }
    prober.assert_is_tight("before the first change");
    let pings = [(&open[0], &open[1]), (&pair[0], &pair[1]), (&pair[1], &pair[0])]
        .map(|((from, _), (_, to))| Pinging::start_every(from, to, INTERVAL_S));

    let restarted = Restarted::new(&mut nodes, &prober);
    let changes = [
        ("from the earlier release", Change::To(present)),
        ("back to it", Change::Back),
        ("from it, agent killed", Change::Crash(present)),
    ];
    let mut last = Vec::new();
    for (name, change) in changes {
        restarted.detach(std::mem::take(&mut last));
        last = restarted.during(|| {
            change.make(&mut nodes.one, || restarted.goes_on());
            change.make(&mut nodes.two, || restarted.goes_on());
        });
        prober.assert_is_tight(name);
        println!("{name}: {} pods started so far", restarted.starts.load(Ordering::Relaxed));
    }
    assert!(present.is_installed(&nodes.one) && present.is_installed(&nodes.two));
    pings.into_iter().for_each(Pinging::finish);
    prober.report();

    nodes.policies().iter().for_each(|policy| nodes.resource("delete", policy));
    prober.assert_sees_all();
    restarted.detach(last);
    nodes.one.stop_agent();
    nodes.two.stop_agent();
}

#[test]
#[ignore = "root: two nodes whose executables are replaced and restored; kernel: vxlan; tool: etcd, ip, ping, strip"]
fn no_denied_packet_passes_while_plugin_and_agent_are_replaced_under_pods_that_start() {
    // policy.md P29: the same for pods that are attached while no agent runs.
    let machine = tempfile::tempdir().unwrap();
    let earlier = Release::named(machine.path(), "earlier");
    no_denied_packet_passes(&earlier, &Release::present(machine.path()), "isolated");
}
