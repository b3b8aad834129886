//! What happens to a cluster in its life, whatever its network is: parts are killed, nodes leave and join, the network's DaemonSet is upgraded and rolled back.

use russet_testkit::kubernetes::Node;
use russet_testkit::{eventually, image, let_pass};
use serde_json::json;

use crate::lab::{BETWEEN_LOOKS, Lab, PORT, Pod, TIMEOUT, answer};
use crate::traffic::Stream;

/// What serves a node's pods with Russet's part of it.
pub struct DaemonSet {
    pub namespace: &'static str,
    /// `daemonset/NAME`.
    pub name: &'static str,
    /// The label of its pods.
    pub label: &'static str,
    /// The arguments of its process, for `pgrep -f` within a node; brackets keep the searching shell out.
    pub process: &'static str,
}

/// A name of the step and what does it.
type Fault = (&'static str, fn(&mut Lab, &DaemonSet));

/// The Deployment of the test's pods.
pub const WEB: &str = "web";
/// The port of the node in [`host_port_and_probes`].
const HOST_PORT: u16 = 18080;
/// More pods after each fault: one on each node.
const MORE: usize = 3;

const FAULTS: &[Fault] = &[
    ("all daemons of the network", |lab, set| {
        let kill = format!("kill -KILL $(pgrep -f '{}')", set.process);
        for node in &lab.cluster.nodes {
            node.machine.run("sh", &["-ec", &kill]);
        }
        lab.rolled_out(set.name, set.namespace);
    }),
    ("all kubelets", |lab, _| {
        lab.cluster.nodes.iter_mut().for_each(|node| node.kubelet.kill());
        lab.cluster.nodes.iter_mut().for_each(|node| node.kubelet.start());
    }),
    ("all containerds", |lab, _| {
        lab.cluster.nodes.iter_mut().for_each(|node| node.containerd.kill());
        lab.cluster.nodes.iter_mut().for_each(|node| node.containerd.start());
    }),
    ("the API server", |lab, _| {
        lab.cluster.server.kill();
        lab.cluster.server.start();
    }),
    ("etcd", |lab, _| {
        lab.cluster.server.etcd.members[0].kill();
        lab.cluster.server.etcd.members[0].start();
        lab.cluster.server.etcd.wait();
    }),
];

/// A port of a node leads to its pod from everywhere; a pod that says that it is not ready is no longer.
fn host_port_and_probes(lab: &mut Lab, pods: &[Pod]) {
    let container = json!({
        "name": "pod", "image": image::POD, "imagePullPolicy": "Never", "args": ["serve", PORT.to_string()],
        "ports": [{ "containerPort": PORT, "hostPort": HOST_PORT }],
    });
    let spec = json!({ "nodeName": "n1", "terminationGracePeriodSeconds": 1, "containers": [container] });
    let pod = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "port" }, "spec": spec });
    lab.cluster.apply(&pod.to_string());
    lab.cluster.wait(TIMEOUT, "condition=Ready", &["pod/port"]);
    let reached = || answer(("10.77.0.11", HOST_PORT), "/name").is_ok_and(|name| name == "port");
    eventually(TIMEOUT, reached);
    assert!(lab.node("n2").machine.inside(reached), "from another node");
    lab.cluster.kubectl(&["delete", "pod", "port"]);
    eventually(TIMEOUT, || !reached());

    let unready = &pods[0];
    lab.ask(unready, "/unready");
    lab.cluster.wait(TIMEOUT, "condition=Ready=false", &[&format!("pod/{}", unready.name)]);
    lab.cluster.kubectl(&["delete", "pod", &unready.name]);
    lab.report("a host port, and a readiness probe that fails");
}

/// Kills each part of the cluster in turn. Pods that run lose no packet, and new ones start on each node afterwards.
fn faults(lab: &mut Lab, set: &DaemonSet, deployment: &str, mut replicas: usize) -> usize {
    let pods = lab.pods(deployment, replicas);
    let stream = Stream::start(lab, &pods);
    for (name, fault) in FAULTS {
        let before = stream.count(lab);
        lab.begin();
        fault(lab, set);
        replicas += MORE;
        let pods = lab.pods(deployment, replicas);
        lab.report(&format!("killed: {name} -> one more pod on each node is ready"));
        lab.assert_all_reach_all(&pods);
        assert_eq!(stream.lost(lab, before), 0, "{name} was killed: {:?}", stream.count(lab));
    }
    println!(
        "{:7.3} s  longest time without an answer from another node's pod",
        stream.count(lab).longest_gap.as_secs_f64()
    );
    replicas
}

/// The last node is drained, switched off and deleted, and another one joins. Returns how many pods there are now.
fn node_leaves_and_another_joins(lab: &mut Lab, deployment: &str, replicas: usize) -> usize {
    let name = lab.cluster.nodes.last().unwrap().name.clone();
    lab.begin();
    lab.cluster.kubectl(&["drain", &name, "--ignore-daemonsets", "--force", "--delete-emptydir-data"]);
    lab.report("a node drained");
    let gone = lab.cluster.nodes.pop().unwrap();
    assert!(lab.cluster.nodes.iter().all(|node| !has_forgotten(node, &gone)));
    lab.cluster.kubectl(&["delete", "node", &name]);
    eventually(TIMEOUT, || {
        let_pass(BETWEEN_LOOKS);
        lab.cluster.nodes.iter().all(|node| has_forgotten(node, &gone))
    });
    drop(gone);
    lab.report("its Node deleted -> other nodes have forgotten it");
    lab.cluster.add_node(|_| {});
    lab.wait_for_nodes();
    lab.report("another node started -> Ready");
    let pods = lab.pods(deployment, replicas + MORE);
    lab.report("one more pod on each node is ready");
    lab.assert_all_reach_all(&pods);
    pods.len()
}

/// No tunnel leads from a node to another one.
fn has_forgotten(node: &Node, gone: &Node) -> bool {
    !node.machine.run("bridge", &["fdb", "show"]).contains(&format!("dst {}", gone.address))
}

/// The whole life of a cluster with 30 pods, whose network has just been installed, up to 100 pods.
pub fn all(lab: &mut Lab, set: &DaemonSet) {
    let pods = lab.pods(WEB, 30);
    lab.report("30 pods applied -> all ready");
    lab.assert_all_reach_all(&pods);
    for pod in &pods {
        assert_eq!(lab.ask(pod, "/connect?10.96.0.1:443"), "10.96.0.1:443 connected\n");
    }
    lab.report("all pods and nodes reach all pods, and all pods the API server");
    host_port_and_probes(lab, &pods);
    let replicas = faults(lab, set, WEB, pods.len());
    let replicas = node_leaves_and_another_joins(lab, WEB, replicas);
    upgrade_and_rollback(lab, set, WEB, replicas);
    lab.begin();
    let pods = lab.pods(WEB, 100);
    lab.report("more pods, up to 100 -> all ready");
    lab.assert_all_reach_all(&pods);
    lab.report("all 100 pods and nodes reach all pods");
}

/// What the layer `cluster` runs: pods reach each other, also while all pods of the DaemonSet are replaced.
pub fn smallest(lab: &mut Lab, set: &DaemonSet) {
    let pods = lab.pods(WEB, 9);
    lab.report("9 pods applied -> all ready");
    lab.assert_all_reach_all(&pods);
    assert_eq!(lab.ask(&pods[0], "/connect?10.96.0.1:443"), "10.96.0.1:443 connected\n");
    lab.report("all pods and nodes reach all pods, and a pod the API server");
    let stream = Stream::start(lab, &pods);
    let before = stream.count(lab);
    lab.cluster.kubectl(&["delete", "pod", "-n", set.namespace, "-l", set.label, "--wait"]);
    lab.rolled_out(set.name, set.namespace);
    let pods = lab.pods(WEB, pods.len() + MORE);
    lab.assert_all_reach_all(&pods);
    assert_eq!(stream.lost(lab, before), 0, "{:?}", stream.count(lab));
    lab.report("all daemons replaced, and one more pod on each node is ready: no packet lost");
}

/// Deletes all pods of the test.
pub fn delete_pods(lab: &mut Lab) {
    lab.begin();
    lab.cluster.kubectl(&["delete", "deployment", WEB]);
    lab.cluster.wait(TIMEOUT, "delete", &["pod", "-l", &format!("app={WEB}")]);
    lab.report("all pods deleted");
}

/// Another image and back, one node after the other: traffic loses nothing, and pods can be started meanwhile.
fn upgrade_and_rollback(lab: &mut Lab, set: &DaemonSet, deployment: &str, mut replicas: usize) {
    let image = concat!("localhost/russet:", env!("CARGO_PKG_VERSION"));
    for node in &lab.cluster.nodes {
        node.machine.run("ctr", &["-n", "k8s.io", "images", "tag", image, "localhost/russet:next"]);
    }
    let stream = Stream::start(lab, &lab.pods(deployment, replicas));
    let upgrade: &[&str] = &["set", "image", set.name, "*=localhost/russet:next"];
    for (step, change) in [("upgraded", upgrade), ("rolled back", &["rollout", "undo", set.name])] {
        let before = stream.count(lab);
        lab.begin();
        lab.cluster.kubectl(&[change, &["-n", set.namespace]].concat());
        replicas += MORE;
        let pods = lab.pods(deployment, replicas);
        lab.rolled_out(set.name, set.namespace);
        lab.report(&format!("{step}, with a new pod on each node meanwhile"));
        lab.assert_all_reach_all(&pods);
        assert_eq!(stream.lost(lab, before), 0, "{step}: {:?}", stream.count(lab));
    }
}
