use russet_journal::EndpointTable;
use russet_verdict::explain::Explanation;
use russet_verdict::flow::Flow;
use russet_verdict::hosts::Entrance;
use russet_verdict::table::Delta;
use russet_verdict::translate::{built_in_tiers, document};
use russet_verdict::world::{Config, Endpoint, EndpointKey, EndpointKind};
use serde_json::{Value, json};

use super::*;
use crate::config::Paths;
use crate::fast_path::Signal;
use crate::flows::{FlowRecord, FlowsRequest};
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use crate::policies::alone::Marker;
use crate::policies::{Shared, Source};

/// A thread's state without the thread, and everything that it was given.
struct Setup {
    worker: Worker,
    snapshot: Snapshot,
    _dir: tempfile::TempDir,
}

impl Setup {
    /// The pods `shop/web` and, on this node, `shop/db`.
    fn new(documents: &[Value]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::new(Source::Records));
        let marker = Marker::new(&Paths::new(dir.path()));
        let (endpoints, metrics) = (EndpointTable::default(), PolicyMetrics::default());
        let metrics = (metrics, Readiness::pending());
        let mut worker = Worker::new("n1", (endpoints, &Signal::default()), marker, shared, metrics);
        worker.phase = Phase::Enforcing;
        let mut setup = Self { worker, snapshot: Snapshot::default(), _dir: dir };
        let config = Config { node: "n1".into(), allow_without_profile: true, ..Config::default() };
        let pods = [("web", "n2", "10.1.0.2"), ("db", "n1", "10.1.0.9")].map(|(name, node, address)| {
            let key = EndpointKey(name.into());
            Update::Endpoint(key, Some(Arc::new(pod(name, node, address))))
        });
        for update in built_in_tiers().into_iter().chain([Update::Config(config)]).chain(pods) {
            setup.worker.engine.apply(update.clone());
            setup.snapshot.apply(update);
        }
        documents.iter().for_each(|it| _ = setup.put(it));
        setup
    }

    /// What this changes in the kernel.
    fn put(&mut self, value: &Value) -> Delta {
        let translated = document(value).unwrap();
        translated.updates.iter().for_each(|update| self.snapshot.apply(update.clone()));
        self.worker.apply(translated);
        self.worker.engine.flush()
    }

    /// The last flow, after the kernel has logged this one.
    fn logged(&self, direction: Direction, flow: Flow) -> FlowRecord {
        self.named(LoggedFlow { direction, allowed: false, flow, host: None })
    }

    fn named(&self, logged: LoggedFlow) -> FlowRecord {
        self.worker.shared.logged.lock().unwrap().push_back(logged);
        self.worker.name_flows();
        let request = FlowsRequest { limit: 1, ..FlowsRequest::default() };
        self.worker.shared.flows.report(&request).flows.pop().unwrap()
    }

    /// What `russet explain` says of the destination's ingress.
    fn explained(&self, flow: Flow) -> Value {
        Explanation::new(&self.snapshot, &flow).to_json()["directions"][1].clone()
    }
}

fn pod(name: &str, node: &str, address: &str) -> Endpoint {
    let labels =
        [("app", name), ("projectcalico.org/namespace", "shop"), ("projectcalico.org/orchestrator", "k8s")];
    Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some("shop".into()),
        name: name.into(),
        node: node.into(),
        addresses: [address.parse().unwrap()].into(),
        labels: labels.into_iter().map(|(label, value)| (label.into(), value.into())).collect(),
        profiles: Vec::new(),
        ports: Vec::new(),
        local: (node == "n1").then(|| "russ0".parse().unwrap()),
        age: 1,
    }
}

fn to_db(source: &str, port: u16) -> Flow {
    let (source, destination) = (source.parse().unwrap(), "10.1.0.9".parse().unwrap());
    Flow { source, destination, protocol: Protocol::TCP, source_port: 4000, destination_port: port }
}

fn calico(kind: &str, name: &str, order: u32, more: &Value) -> Value {
    let mut spec = json!({ "selector": "app == 'db'", "order": order, "types": ["Ingress"] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn db_in() -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "db-in", "namespace": "shop" },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } } } })
}

fn policies(named: &[PolicyName]) -> Vec<String> {
    named.iter().map(ToString::to_string).collect()
}

#[test]
fn a_flow_is_named_with_its_pods_and_what_decides_as_explain_says() {
    // policy.md P132
    let mut setup = Setup::new(&[db_in()]);
    let flow = setup.logged(Direction::Ingress, to_db("10.1.0.2", 5432)).decision;
    assert_eq!((flow.source.name.as_str(), flow.destination.name.as_str()), ("shop/web", "shop/db"));
    assert_eq!((flow.direction.as_str(), flow.proto.as_str(), flow.port), ("ingress", "tcp", Some(5432)));
    assert_eq!(policies(&flow.policies), ["KubernetesNetworkPolicy shop/db-in"]);
    let explained = setup.explained(to_db("10.1.0.2", 5432));
    assert_eq!((&explained["verdict"], &explained["end"]), (&"denied".into(), &flow.reason.into()));
    let named = json!({ "kind": "KubernetesNetworkPolicy", "namespace": "shop", "name": "db-in" });
    assert_eq!((&explained["steps"][0]["policy"], flow.rule), (&named, None));
    // A rule that decides before it.
    let rules = json!({ "ingress": [{ "action": "Allow", "protocol": "UDP" }, { "action": "Deny" }] });
    setup.put(&calico("GlobalNetworkPolicy", "first", 5, &rules));
    let flow = setup.logged(Direction::Ingress, to_db("10.1.0.2", 5432)).decision;
    assert_eq!(policies(&flow.policies), ["GlobalNetworkPolicy first"]);
    let explained = setup.explained(to_db("10.1.0.2", 5432));
    let last = explained["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&explained["end"], &last["path"]), (&flow.reason.into(), &flow.rule.unwrap().into()));
    assert!(flow.pending.is_none());
}

#[test]
fn a_flow_at_an_interface_of_the_node_is_named_with_its_host_endpoint_and_what_decides() {
    // The loopback interface, which every network namespace has with this index.
    const LO: u32 = 1;
    let mut host = calico("HostEndpoint", "h", 1, &json!({}));
    host["spec"] = json!({ "node": "n1", "interfaceName": "lo" });
    host["metadata"]["labels"] = json!({ "app": "db" });
    let mut setup = Setup::new(&[host]);
    let at = |setup: &Setup, allowed, entrances: &[(Entrance, u32)]| {
        let host = Some(entrances.to_vec());
        let (direction, flow) = (Direction::Ingress, to_db("203.0.113.9", 5432));
        let named = setup.named(LoggedFlow { direction, allowed, flow, host });
        assert_eq!(named.verdict, if allowed { "allowed" } else { "denied" });
        (named.decision.direction.clone(), policies(&named.decision.policies), named.decision)
    };
    let input = [(Entrance::Input, LO)];
    let (_, named, decision) = at(&setup, false, &input);
    let reason = "HostEndpoint h at lo: no policy selects it; no rule of its profiles allows it";
    assert_eq!((named, decision.reason.as_str()), (Vec::<String>::new(), reason));
    setup.put(&calico(
        "GlobalNetworkPolicy",
        "web",
        5,
        &json!({ "ingress": [{ "action": "Allow", "protocol": "UDP" }] }),
    ));
    let (direction, named, decision) = at(&setup, false, &input);
    assert_eq!((direction.as_str(), named), ("ingress", vec!["GlobalNetworkPolicy web".to_owned()]));
    assert_eq!(decision.reason, "HostEndpoint h at lo: no rule matches, and tier default denies at its end");
    // What is forwarded is denied at the interface by which it leaves.
    let out = json!({ "types": ["Egress"], "applyOnForward": true, "egress": [{ "action": "Deny" }] });
    setup.put(&calico("GlobalNetworkPolicy", "out", 6, &out));
    let (direction, named, decision) =
        at(&setup, false, &[(Entrance::ForwardIn, LO), (Entrance::ForwardOut, LO)]);
    assert_eq!((direction.as_str(), named), ("egress", vec!["GlobalNetworkPolicy out".to_owned()]));
    assert_eq!(decision.rule.as_deref(), Some("spec.egress[0]"));
    // Before the translation.
    let early = json!({ "preDNAT": true, "applyOnForward": true, "ingress": [{ "action": "Deny" }] });
    setup.put(&calico("GlobalNetworkPolicy", "early", 1, &early));
    assert_eq!(at(&setup, false, &[(Entrance::PreDnat, LO)]).1, ["GlobalNetworkPolicy early"]);
    // A rule that asks to log, of what passes.
    let log = json!({ "ingress": [{ "action": "Log" }, { "action": "Allow" }] });
    assert!(at(&setup, true, &input).2.reason.contains(CHANGED));
    setup.put(&calico("GlobalNetworkPolicy", "seen", 0, &log));
    assert_eq!(at(&setup, true, &input).1, ["GlobalNetworkPolicy seen"]);
    // An interface that is gone, and policies that are not known.
    assert!(at(&setup, false, &[(Entrance::Input, u32::MAX)]).2.reason.contains(CHANGED));
    setup.worker.phase = Phase::Waiting;
    assert_eq!(at(&setup, false, &input).2.reason, UNKNOWN);
}

#[test]
fn what_no_policy_decided_is_said() {
    let mut setup = Setup::new(&[db_in()]);
    let reason = |setup: &Setup, direction, flow| {
        let flow = setup.logged(direction, flow).decision;
        assert!(flow.policies.is_empty(), "{flow:?}");
        flow.reason
    };
    // Its own egress is allowed.
    let back = Flow { source: "10.1.0.9".parse().unwrap(), ..to_db("10.1.0.9", 80) };
    let back = Flow { destination: "203.0.113.7".parse().unwrap(), ..back };
    assert!(reason(&setup, Direction::Egress, back).contains("have changed since"));
    let unknown = Flow { destination: "10.1.0.77".parse().unwrap(), ..to_db("10.1.0.2", 80) };
    assert_eq!(reason(&setup, Direction::Ingress, unknown), "no pod is known at 10.1.0.77");
    setup.worker.wanted.held.insert("10.1.0.9".parse().unwrap());
    assert!(reason(&setup, Direction::Ingress, to_db("10.1.0.2", 80)).contains("not in force yet"));
    setup.worker.wanted.held.clear();
    setup.worker.phase = Phase::Waiting;
    assert_eq!(reason(&setup, Direction::Ingress, to_db("10.1.0.2", 80)), "the policies are not known yet");
}

#[test]
fn staged_policies_are_judged_with_the_flow_and_change_nothing_in_the_kernel() {
    // policy.md P93
    let mut setup = Setup::new(&[db_in()]);
    let pending = |setup: &Setup| {
        let decision = setup.logged(Direction::Ingress, to_db("10.1.0.2", 80)).decision;
        assert_eq!(policies(&decision.policies), ["KubernetesNetworkPolicy shop/db-in"]);
        decision.pending.map(|it| (it.verdict, policies(&it.policies)))
    };
    let allow = json!({ "ingress": [{ "action": "Allow", "source": { "selector": "app == 'web'" } }] });
    assert_eq!(setup.put(&calico("StagedGlobalNetworkPolicy", "soon", 5, &allow)), Delta::default());
    let soon = vec!["StagedGlobalNetworkPolicy soon".to_owned()];
    assert_eq!(pending(&setup), Some(("allowed".to_owned(), soon.clone())));
    let deny = json!({ "ingress": [{ "action": "Deny" }] });
    assert_eq!(setup.put(&calico("StagedGlobalNetworkPolicy", "soon", 5, &deny)), Delta::default());
    assert_eq!(pending(&setup), Some(("denied".to_owned(), soon)));
    // One that is learnt from, or ignored, does nothing.
    for action in ["Learn", "Ignore"] {
        let mut learn = calico("StagedGlobalNetworkPolicy", "soon", 5, &deny);
        learn["spec"]["stagedAction"] = action.into();
        assert_eq!(setup.put(&learn), Delta::default());
        assert_eq!(pending(&setup), None, "{action}");
    }
    // One that removes the policy that denies.
    let mut delete = db_in();
    delete["apiVersion"] = "projectcalico.org/v3".into();
    delete["kind"] = "StagedKubernetesNetworkPolicy".into();
    delete["spec"]["stagedAction"] = "Delete".into();
    assert_eq!(setup.put(&delete), Delta::default());
    let removed = vec!["StagedKubernetesNetworkPolicy shop/db-in".to_owned()];
    assert_eq!(pending(&setup), Some(("allowed".to_owned(), removed)));
}

#[test]
fn a_flood_is_named_in_parts() {
    let setup = Setup::new(&[db_in()]);
    let flows = (0..NAMED_MAX as u16 * 2 + 1).map(|port| LoggedFlow {
        direction: Direction::Ingress,
        allowed: false,
        flow: to_db("10.1.0.2", port),
        host: None,
    });
    setup.worker.shared.logged.lock().unwrap().extend(flows);
    for named in [NAMED_MAX, 2 * NAMED_MAX, 2 * NAMED_MAX + 1] {
        assert!(setup.worker.shared.has_unnamed());
        assert!(setup.worker.pause().is_zero());
        setup.worker.name_flows();
        let request = FlowsRequest { limit: usize::MAX, ..FlowsRequest::default() };
        assert_eq!(setup.worker.shared.flows.report(&request).flows.len(), named);
    }
    assert!(!setup.worker.shared.has_unnamed());
}

#[test]
fn what_the_fast_path_has_carried_counts_for_the_policy_that_let_the_flow_pass() {
    // policy.md section 4
    let allow =
        json!({ "ingress": [{ "action": "Allow", "protocol": "TCP", "destination": { "ports": [5432] } }] });
    let mut setup = Setup::new(&[]);
    setup.put(&calico("GlobalNetworkPolicy", "in", 1, &allow));
    let carried = russet_overlay::fast_path::Carried { packets: 7, bytes: 700 };
    let share = |direction, flow| crate::fast_path::Share { direction, flow, carried };
    let flow = to_db("10.1.0.2", 5432);
    let shares = [
        share(Direction::Ingress, Some(flow)),
        share(Direction::Ingress, Some(flow)),
        // Nothing decides about the other end, which is not known here.
        share(Direction::Egress, Some(Flow { source: flow.destination, destination: flow.source, ..flow })),
        share(Direction::Ingress, None),
    ];
    setup.worker.shared.carried.lock().unwrap().extend(shares);
    assert!(setup.worker.shared.has_unnamed());
    setup.worker.count_carried();
    assert!(!setup.worker.shared.has_unnamed());
    let counted = |policy: &str| setup.worker.metrics.carried_of(policy);
    assert_eq!(counted("GlobalNetworkPolicy in"), (14, 1400));
    assert_eq!((counted("none"), counted("unknown")), ((7, 700), (7, 700)));
}
