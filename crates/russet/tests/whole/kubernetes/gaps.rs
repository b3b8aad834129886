//! No packet passes that a policy denies: not at a pod's first instant, and not while the agent is
//! killed and started again. Where another program removes the table, packets pass until it is
//! restored, which is measured.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use russet_testkit::{Random, eventually, let_pass};
use serde_json::json;

use super::policies::{POLICIES, create_policy, create_role};
use super::{Cluster, call};
use crate::node::{TIMEOUT, TestNode, TestPod};
use crate::probing::{Prober, Socket};

/// As many pods start together, unless `RUSSET_POLICY_PODS` says otherwise.
const PODS: usize = 30;
/// As many requests run at a time, as kubelet's do.
const AT_ONCE: usize = 6;
/// As often the agent is killed, and another program removes tables.
const KILLS: usize = 3;
const REMOVALS: usize = 6;
/// How long denied packets may pass after another program removed the table (policy.md P124).
const RESTORED: Duration = Duration::from_secs(2);
/// What an agent logs.
const IN_FORCE: &str = "policies are in force";
const SEED: u64 = 1029;

/// Pods that the policy isolates are attached at once, each with probes from before it has an
/// interface. A request that fails is repeated with a new sandbox, as kubelet does.
fn attach(cluster: &Cluster, node: &mut TestNode, prober: &Prober, names: &[String]) {
    names.iter().for_each(|name| create_role(cluster, "n1", name, "subject"));
    let pods: Vec<(&String, TestPod)> = names.iter().map(|name| (name, node.pod())).collect();
    pods.iter().for_each(|(name, pod)| prober.add(Socket::open(name, pod, &[])));
    let (node, queue) = (&*node, Mutex::new(pods.iter()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, pod)) = { queue.lock().unwrap().next() } {
                    let addresses = attach_one(node, name, pod);
                    prober.learn(name, &addresses);
                    cluster.report_running(name, &addresses);
                }
            });
        }
    });
}

fn attach_one(node: &TestNode, name: &str, pod: &TestPod) -> Vec<String> {
    let mut sandbox = pod.clone();
    let began = Instant::now();
    for attempt in 1.. {
        let answer = call(node, "ADD", &sandbox, name);
        if answer.status == 0 {
            return answer.addresses();
        }
        assert!(began.elapsed() < 3 * TIMEOUT, "{name}: {answer:?}\n{}", node.log());
        call(node, "DEL", &sandbox, name);
        sandbox.container = format!("{}-{attempt}", pod.container);
    }
    unreachable!("the loop ends by its assertion")
}

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}-{index}")).collect()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, nft"]
fn no_denied_packet_passes_at_the_start_of_pods_nor_while_the_agent_is_killed() {
    // policy.md P29, P121, P124
    let pods = std::env::var("RUSSET_POLICY_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(PODS);
    let mut cluster = Cluster::new();
    let (mut one, mut two) = (cluster.node("n1", &[]), cluster.node("n2", &[]));
    let peer = |cluster: &Cluster, node: &mut TestNode, at: &str, name: &str| {
        create_role(cluster, at, name, "peer");
        let pod = node.pod();
        let addresses = call(node, "ADD", &pod, name).addresses();
        cluster.report_running(name, &addresses);
        Socket::open(name, &pod, &addresses)
    };
    let near = peer(&cluster, &mut one, "n1", "near");
    let far = peer(&cluster, &mut two, "n2", "far");
    let isolated = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "default" },
        "spec": { "podSelector": { "matchLabels": { "role": "subject" } }, "policyTypes": ["Ingress", "Egress"] } });
    create_policy(&cluster, &isolated);
    eventually(TIMEOUT, || one.log().contains(IN_FORCE));
    let prober = Prober::start(vec![near, far]);
    prober.assert_is_tight("before there is a pod");

    let began = Instant::now();
    attach(&cluster, &mut one, &prober, &names("burst", pods));
    println!("{pods} pods attached in {:?}", began.elapsed());
    prober.assert_is_tight("while pods start");

    let mut random = Random::new(SEED);
    for kill in 0..KILLS {
        one.kill_agent();
        // Without an agent the plugin attaches by itself.
        attach(&cluster, &mut one, &prober, &names(&format!("alone-{kill}"), 2));
        prober.assert_is_tight(&format!("seed {SEED}, without an agent, round {kill}"));
        start_agent(&mut one);
        prober.assert_is_tight(&format!("seed {SEED}, after the agent's start, round {kill}"));
        kill_during_adds(&cluster, &mut one, &prober, kill, &mut random);
        start_agent(&mut one);
        prober.assert_is_tight(&format!("seed {SEED}, agent killed during requests, round {kill}"));
    }
    let gaps = removals(&one, &prober);
    println!("after removals of tables denied packets passed for at most {:?}: {gaps:?}", gaps.iter().max());
    assert!(gaps.iter().all(|gap| *gap < RESTORED), "{gaps:?}");
    prober.report();

    // The probes see what they look for.
    cluster.with(|server| server.delete(&format!("{POLICIES}/deny")));
    prober.assert_sees_all();
}

/// Starts the agent, and waits until policies are in force.
fn start_agent(node: &mut TestNode) {
    let starts = |node: &TestNode| node.log().matches(IN_FORCE).count();
    let before = starts(node);
    node.start_agent();
    eventually(TIMEOUT, || starts(node) > before);
}

/// Kills the agent while it serves requests; the plugins that lose it, or that come later, go on
/// without.
fn kill_during_adds(
    cluster: &Cluster,
    node: &mut TestNode,
    prober: &Prober,
    round: usize,
    random: &mut Random,
) {
    let (pid, moment) = (node.agent_pid(), random.delay(Duration::from_millis(60)));
    let killer = std::thread::spawn(move || {
        let_pass(moment);
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    attach(cluster, node, prober, &names(&format!("killed-{round}"), 4));
    killer.join().unwrap();
    node.wait_for_agents_death();
}

/// Has another program remove tables while the agent runs; how long denied packets passed then.
fn removals(node: &TestNode, prober: &Prober) -> Vec<Duration> {
    let commands: [&[&str]; 2] = [&["flush", "ruleset"], &["delete", "table", "inet", "russet-decisions"]];
    let remove = |index: usize| {
        node.inside("nft", commands[index % commands.len()]);
        prober.gap(Instant::now())
    };
    (0..REMOVALS).map(remove).collect()
}
