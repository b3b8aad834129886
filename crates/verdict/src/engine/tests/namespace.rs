//! A namespace is deleted with what is in it, in any order.

use serde_json::{Value, json};

use super::*;
use crate::translate::{Translator, built_in_tiers};
use crate::world::Config;

/// What each end of a flow decides: none where nothing judges it.
type Verdicts = Vec<Option<bool>>;

const POLICIES: usize = 1000;
/// The pods of the namespace that is deleted, and of the one that stays, with addresses that [`Random::flow`] asks about.
const PODS: [(&str, &str, &[&str]); 6] = [
    ("n", "a", &["10.0.0.1", "fd00::1"]),
    ("n", "b", &["10.0.0.2", "fd00::2"]),
    ("n", "c", &["10.0.0.3"]),
    ("m", "a", &["10.0.1.1", "fd00:0:0:1::1"]),
    ("m", "b", &["10.0.1.2"]),
    ("m", "c", &["10.1.0.1"]),
];
const PORTS: [u16; 4] = [53, 80, 81, 8080];
/// How many flows are followed, in both directions.
const FLOWS: usize = 400;

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "team": name } } })
}

fn pod((namespace, name, addresses): (&str, &str, &[&str])) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": { "nodeName": "here", "containers": [{}] },
        "status": { "phase": "Running", "podIPs": addresses } })
}

fn selector(random: &mut Random, label: &str, values: [&str; 3]) -> Value {
    let value = values[random.below(3)];
    match random.below(4) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [{ "key": label, "operator": "NotIn", "values": [value] }] }),
        _ => json!({ "matchLabels": { label: value } }),
    }
}

fn peer(random: &mut Random) -> Value {
    let pods = |random: &mut Random| selector(random, "app", ["a", "b", "c"]);
    match random.below(5) {
        0 => json!({ "podSelector": pods(random) }),
        1 => json!({ "namespaceSelector": selector(random, "team", ["n", "m", "none"]) }),
        2 => {
            json!({ "namespaceSelector": selector(random, "team", ["n", "m", "none"]), "podSelector": pods(random) })
        }
        3 => json!({ "ipBlock": { "cidr": "10.0.0.0/16", "except": ["10.0.0.0/30"] } }),
        _ => {
            let cidr = ["192.0.2.0/24", "fd00::/64", "10.0.1.2/32"][random.below(3)];
            json!({ "ipBlock": { "cidr": cidr } })
        }
    }
}

/// A NetworkPolicy. Most allow little, so that a pod with hundreds of them is not open.
fn policy(random: &mut Random, namespace: &str, name: &str) -> Value {
    let types =
        [json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])][random.below(3)].clone();
    let mut rules = |member: &str| -> Value {
        if random.below(60) > 0 {
            return json!([]);
        }
        let port = PORTS[random.below(PORTS.len())];
        json!([{ member: [peer(random)], "ports": [{ "port": port }] }])
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "podSelector": selector(random, "app", ["a", "b", "c"]), "policyTypes": types,
            "ingress": ingress, "egress": egress } })
}

fn cluster_policy(random: &mut Random, tier: &str, priority: usize) -> Value {
    let action = ["Accept", "Deny", "Pass"][random.below(3)];
    let peer = json!({ "namespaces": selector(random, "team", ["n", "m", "none"]) });
    json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": format!("{tier}-{priority}").to_lowercase() },
        "spec": { "tier": tier, "priority": priority,
            "subject": { "namespaces": selector(random, "team", ["n", "m", "none"]) },
            "ingress": [{ "action": action, "from": [peer] }], "egress": [{ "action": action, "to": [peer] }] } })
}

/// A cluster whose objects are documents, with an engine and an evaluator.
struct Cluster {
    translator: Translator,
    twins: Twins,
}

impl Cluster {
    fn new() -> Self {
        let mut twins = Twins::new(Limits::default());
        let config = Config { node: "here".into(), allow_without_profile: true, ..Config::default() };
        twins.apply(&Update::Config(config));
        built_in_tiers().iter().for_each(|tier| twins.apply(tier));
        Self { translator: Translator::default(), twins }
    }

    fn take(&mut self, updates: Vec<Update>) {
        for update in updates {
            self.twins.apply(&match update {
                Update::Endpoint(key, Some(endpoint)) => {
                    let local = Some("russ1".parse().unwrap());
                    Update::Endpoint(
                        key,
                        Some(Arc::new(crate::world::Endpoint { local, ..(*endpoint).clone() })),
                    )
                }
                other => other,
            });
        }
    }

    fn put(&mut self, document: &Value) {
        let updates = self.translator.put(document).updates;
        self.take(updates);
    }

    fn remove(&mut self, document: &Value) {
        let updates = self.translator.remove(document).updates;
        self.take(updates);
    }

    /// What the table says of each flow at each of its ends.
    fn verdicts(&self, flows: &[Flow]) -> Verdicts {
        let ends = |flow: &Flow| [(Direction::Egress, flow.source), (Direction::Ingress, flow.destination)];
        let judge = |flow: &Flow| {
            ends(flow).map(|(direction, address)| {
                self.twins.model.judge(direction, address, flow).map(|word| word.verdict == Verdict::Allow)
            })
        };
        flows.iter().flat_map(judge).collect()
    }
}

#[test]
fn p140_what_is_denied_before_and_after_the_deletion_of_a_namespace_is_denied_meanwhile() {
    // policy.md P140
    let mut kept = 0;
    for seed in 0..seeds().div_ceil(60) {
        let mut random = Random::new(seed);
        let policies: Vec<Value> =
            (0..POLICIES).map(|number| policy(&mut random, "n", &format!("p{number}"))).collect();
        let mut staying: Vec<Value> =
            (0..6).map(|number| policy(&mut random, "m", &format!("q{number}"))).collect();
        for priority in 0..2 {
            staying.extend(["Admin", "Baseline"].map(|tier| cluster_policy(&mut random, tier, priority)));
        }
        let mut cluster = Cluster::new();
        ["n", "m"].iter().for_each(|name| cluster.put(&namespace(name)));
        PODS.iter().for_each(|it| cluster.put(&pod(*it)));
        staying.iter().chain(&policies).for_each(|document| cluster.put(document));
        cluster.twins.flush();

        // One pod of the namespace outlives its policies; the others end among them. The namespace is the last to go.
        let survivor = PODS[random.below(3)];
        let ending = PODS.iter().filter(|it| it.0 == "n" && **it != survivor).map(|it| pod(*it));
        let gone: Vec<Value> = random.shuffled(&policies.into_iter().chain(ending).collect::<Vec<_>>());
        let flows: Vec<Flow> = (0..FLOWS).map(|_| random.flow()).collect();
        let mut history = vec![cluster.verdicts(&flows)];
        let mut left = gone.as_slice();
        while !left.is_empty() {
            let (now, later) = left.split_at((random.below(40) + 1).min(left.len()));
            now.iter().for_each(|document| cluster.remove(document));
            cluster.twins.flush();
            let context = format!("seed {seed}, {} left", later.len());
            cluster.twins.model.check(&context);
            cluster.twins.compare(&mut random, 32, &context);
            history.push(cluster.verdicts(&flows));
            left = later;
        }
        let (first, last) = (history[0].clone(), history[history.len() - 1].clone());
        for (step, verdicts) in history.iter().enumerate() {
            for (at, verdict) in verdicts.iter().enumerate() {
                let is_denied = [first[at], last[at]] == [Some(false); 2];
                kept += usize::from(is_denied);
                let flow = &flows[at / 2];
                assert!(
                    !is_denied || *verdict == Some(false),
                    "seed {seed}, step {step}: {flow:?} is opened"
                );
            }
        }
        // Nothing is left of it.
        [pod(survivor), namespace("n")].iter().for_each(|document| cluster.remove(document));
        cluster.twins.flush();
        let addresses =
            PODS.iter().filter(|it| it.0 == "n").flat_map(|it| it.2).map(|it| it.parse().unwrap());
        for (address, direction) in
            addresses.flat_map(|it| [Direction::Ingress, Direction::Egress].map(|to| (it, to)))
        {
            assert_eq!(
                cluster.twins.model.judge(direction, address, &flows[0]),
                None,
                "seed {seed}: {address}"
            );
        }
    }
    assert!(kept > 1000, "{kept}");
}
