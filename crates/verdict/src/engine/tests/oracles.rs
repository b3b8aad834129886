//! Cases of policy.md section 6.1, each with a small world of its own.

use super::*;
use crate::ir::*;
use crate::world::{Endpoint, NamedPort, NetworkSet};
use russet_addr::IfName;
use russet_model::Selector;

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A pod with the labels `a` and `projectcalico.org/namespace`. It is on this node if its address is 10.0.0.1.
fn pod(name: &str, at: &str, label: &str, age: u64) -> Update {
    let labels = [("a", label), ("projectcalico.org/namespace", "n")];
    let endpoint = Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some("n".into()),
        name: name.into(),
        node: "here".into(),
        addresses: [address(at)].into(),
        labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        profiles: vec!["kns.n".into()],
        ports: Vec::new(),
        local: (at == "10.0.0.1").then(|| IfName::new("cali1").unwrap()),
        age,
    };
    Update::Endpoint(EndpointKey(name.into()), Some(Arc::new(endpoint)))
}

/// A policy that selects all local pods and has these rules for ingress.
fn policy(ingress: Vec<Rule>) -> Update {
    let id = PolicyId { kind: PolicyKind::NetworkPolicy, namespace: Some("n".into()), name: "p".into() };
    let policy = Policy {
        id: id.clone(),
        name: "p".into(),
        tier: "default".into(),
        order: Order::LAST,
        subject: selector("a == 'server'"),
        directions: Directions { ingress: true, egress: false },
        staged: None,
        host_use: HostUse::Normal,
        ingress,
        egress: Vec::new(),
        problems: Vec::new(),
    };
    Update::Policy(id, Some(Arc::new(policy)))
}

fn allow_from(source: Entity) -> Rule {
    Rule { source, ..Rule::any(Action::Allow, "spec.ingress[0]") }
}

fn of_selector(text: &str) -> Entity {
    Entity { selector: Some(selector(text)), ..Entity::default() }
}

fn tcp(from: &str, port: u16) -> Flow {
    Flow {
        source: address(from),
        destination: address("10.0.0.1"),
        protocol: Protocol::TCP,
        source_port: 40_000,
        destination_port: port,
    }
}

/// The twins of a node with one pod, which denies everything but what the rules say.
fn server(limits: Limits, ingress: Vec<Rule>) -> Twins {
    let mut twins = Twins::new(limits);
    twins.apply(&pod("server", "10.0.0.1", "server", 1));
    twins.apply(&policy(ingress));
    twins
}

impl Twins {
    /// Whether the table lets a TCP connection to the pod begin; the evaluator must agree.
    fn allows(&self, from: &str, port: u16) -> bool {
        let flow = tcp(from, port);
        let found = self.model.judge(Direction::Ingress, flow.destination, &flow).unwrap();
        let found = found.verdict == Verdict::Allow;
        let wanted = self.judge(Direction::Ingress, flow.destination, &flow).unwrap();
        assert_eq!(found, wanted.0, "{flow:?}");
        found
    }
}

#[test]
fn p07_without_its_last_peer_a_rule_allows_nothing() {
    // policy.md P07
    const FROM: [&str; 4] = ["10.0.1.1", "10.0.1.2", "10.0.1.3", "192.0.2.1"];
    let mut twins = server(Limits::default(), vec![allow_from(of_selector("a == 'client'"))]);
    for (name, address) in ["c1", "c2", "c3"].into_iter().zip(FROM) {
        twins.apply(&pod(name, address, "client", 1));
    }
    twins.flush();
    let allowed = |twins: &Twins| FROM.map(|from| twins.allows(from, 80));
    assert_eq!(allowed(&twins), [true, true, true, false]);
    for (gone, name) in ["c1", "c2", "c3"].into_iter().enumerate() {
        twins.apply(&Update::Endpoint(EndpointKey(name.into()), None));
        let delta = twins.flush();
        assert_eq!(delta.identities.len(), 1);
        assert!(delta.tightens);
        assert_eq!(allowed(&twins), [0, 1, 2, 3].map(|at| at > gone && at < 3), "without {name}");
    }
}

#[test]
fn p30_an_address_is_of_its_younger_owner_at_once() {
    let mut twins = server(Limits::default(), vec![allow_from(of_selector("a == 'client'"))]);
    twins.apply(&pod("old", "10.0.1.1", "client", 1));
    twins.flush();
    assert!(twins.allows("10.0.1.1", 80));
    twins.apply(&pod("new", "10.0.1.1", "other", 2));
    assert!(twins.flush().tightens);
    assert!(!twins.allows("10.0.1.1", 80));
    twins.apply(&Update::Endpoint(EndpointKey("old".into()), None));
    assert_eq!(twins.flush(), Delta::default());
}

#[test]
fn p35_a_label_of_a_namespace_moves_its_addresses_and_nothing_else() {
    // policy.md P35
    let mut twins = server(Limits::default(), vec![allow_from(of_selector("pcns.env == 'prod'"))]);
    for at in 1..=9 {
        twins.apply(&pod(&format!("c{at}"), &format!("10.0.1.{at}"), "client", 1));
    }
    let profile = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Update::Profile("kns.n".into(), Some(Arc::new(Profile { labels, ..Profile::default() })))
    };
    twins.apply(&profile(&[]));
    twins.flush();
    assert!(!twins.allows("10.0.1.9", 80));
    twins.apply(&profile(&[("pcns.env", "prod")]));
    let delta = twins.flush();
    assert!(twins.allows("10.0.1.9", 80));
    // The server itself is in the namespace too.
    assert_eq!(delta.identities.len(), 10);
    assert_eq!(delta.decisions.len(), 1);
    assert!(delta.defaults.is_empty() && !delta.tightens);
    twins.apply(&profile(&[("pcns.env", "prod"), ("pcns.team", "blue")]));
    assert_eq!(twins.flush(), Delta::default());
}

#[test]
fn p75_overlapping_nets_of_a_set_come_and_go_one_by_one() {
    let mut twins = server(Limits::default(), vec![allow_from(of_selector("s == 'yes'"))]);
    let set = |name: &str, nets: &[&str], label: &str| {
        let nets = nets.iter().map(|text| net(text)).collect();
        let labels = [("s".into(), label.into())].into();
        let id = SetId { namespace: None, name: name.into() };
        Update::NetworkSet(id, Some(Arc::new(NetworkSet { nets, labels, profile: None })))
    };
    twins.apply(&set("one", &["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24"], "yes"));
    twins.flush();
    twins.apply(&set("one", &["10.0.0.0/8", "10.0.0.0/24"], "yes"));
    assert!(!twins.flush().tightens);
    twins.model.check("without the middle one");
    assert!(twins.allows("10.0.9.9", 80) && twins.allows("10.0.0.9", 80) && twins.allows("10.9.9.9", 80));
    twins.apply(&set("one", &["10.0.0.0/24"], "yes"));
    assert!(twins.flush().tightens);
    assert!(!twins.allows("10.0.9.9", 80) && twins.allows("10.0.0.9", 80));
    // P76: an equal prefix stays by another set.
    twins.apply(&set("two", &["10.0.0.0/24"], "yes"));
    twins.apply(&set("one", &["10.0.0.0/24"], "no"));
    assert_eq!(twins.flush(), Delta::default());
    assert!(twins.allows("10.0.0.9", 80));
    twins.apply(&set("two", &["10.0.0.0/24"], "no"));
    assert!(twins.flush().tightens);
    assert!(!twins.allows("10.0.0.9", 80));
}

#[test]
fn a_policy_that_comes_moves_no_address_of_a_class_that_exists() {
    let mut twins = server(Limits::default(), vec![allow_from(of_selector("a == 'client'"))]);
    twins.apply(&pod("c1", "10.0.1.1", "client", 1));
    twins.flush();
    let peers = ["a == 'client'", "a in {'client', 'admin'}"];
    twins.apply(&policy(peers.iter().map(|text| allow_from(of_selector(text))).collect()));
    assert_eq!(twins.flush(), Delta::default());
    assert!(twins.allows("10.0.1.1", 80));
}

#[test]
fn a_port_that_changes_changes_decisions_only() {
    let rule = |port| {
        let destination = Entity { ports: Some(vec![Port::Range(port, port)]), ..Entity::default() };
        Rule { protocol: Some(Protocol::TCP), destination, ..allow_from(of_selector("a == 'client'")) }
    };
    let mut twins = server(Limits::default(), vec![rule(80)]);
    twins.apply(&pod("c1", "10.0.1.1", "client", 1));
    twins.flush();
    twins.apply(&policy(vec![rule(81)]));
    let delta = twins.flush();
    assert!(delta.identities.is_empty() && delta.defaults.is_empty() && delta.tightens);
    assert_eq!(delta.decisions.len(), 2);
    assert!(twins.allows("10.0.1.1", 81) && !twins.allows("10.0.1.1", 80));
}

#[test]
fn identities_of_a_former_run_are_taken_over() {
    let updates = [
        pod("server", "10.0.0.1", "server", 1),
        pod("c1", "10.0.1.1", "client", 1),
        pod("c2", "10.0.1.2", "admin", 1),
        policy(vec![
            allow_from(of_selector("a == 'client'")),
            allow_from(Entity { nets: Some(vec![net("192.0.2.0/24")]), ..of_selector("all()") }),
        ]),
    ];
    let run = |mut engine: Engine, order: &[usize]| {
        order.iter().for_each(|at| engine.apply(updates[*at].clone()));
        engine.flush()
    };
    let first = run(Engine::default(), &[0, 1, 2, 3]);
    let numbers = |delta: &Delta| -> BTreeMap<IpNet, Identity> {
        delta.identities.iter().filter_map(|(net, identity)| Some((*net, (*identity)?))).collect()
    };
    let higher =
        numbers(&first).into_iter().map(|(net, it)| (net, Identity::new(it.number() + 1000).unwrap()));
    let known: BTreeMap<IpNet, Identity> = higher.collect();
    let second = run(Engine::with_identities(known.clone()), &[3, 2, 1, 0]);
    assert!(!known.is_empty());
    assert_eq!(numbers(&second), known);
    assert_eq!(second.decisions.len(), first.decisions.len());
}

#[test]
fn p104_what_is_beyond_a_limit_is_denied_and_reported() {
    // policy.md P104
    let everything = Limits::default();
    let ports: Vec<Port> = (0..20).map(|port| Port::Range(port * 10, port * 10)).collect();
    let destination = Entity { ports: Some(ports), ..Entity::default() };
    let rules = vec![
        Rule { protocol: Some(Protocol::TCP), destination, ..allow_from(of_selector("a == 'client'")) },
        allow_from(of_selector("a == 'admin'")),
    ];
    let world = |limits| {
        let mut twins = server(limits, rules.clone());
        twins.apply(&pod("c1", "10.0.1.1", "client", 1));
        twins.apply(&pod("c2", "10.0.1.2", "admin", 1));
        let delta = twins.flush();
        twins.model.check("limits");
        let judge = |from: &str, port| {
            let flow = tcp(from, port);
            twins.model.judge(Direction::Ingress, flow.destination, &flow).unwrap().verdict == Verdict::Allow
        };
        let open = [judge("10.0.1.1", 10), judge("10.0.1.2", 80), judge("192.0.2.1", 10)];
        (open, delta.exceeded, delta.problems)
    };
    let place = address("10.0.0.1");
    assert_eq!(world(everything), ([true, true, false], None, vec![]));
    let segments = BTreeSet::from([Exceeded::Segments(Direction::Ingress, place)]);
    assert_eq!(world(Limits { segments: 40, ..everything }), ([true, true, false], None, vec![]));
    assert_eq!(world(Limits { segments: 39, ..everything }), ([false, true, false], Some(segments), vec![]));
    let decisions = BTreeSet::from([Exceeded::Decisions(Direction::Ingress, place)]);
    assert_eq!(world(Limits { decisions: 22, ..everything }), ([true, true, false], None, vec![]));
    assert_eq!(
        world(Limits { decisions: 21, ..everything }),
        ([false, false, false], Some(decisions), vec![])
    );
    let identities = BTreeSet::from([Exceeded::Identities]);
    assert_eq!(world(Limits { identities: 2, ..everything }), ([true, true, false], None, vec![]));
    let (open, exceeded, _) = world(Limits { identities: 1, ..everything });
    assert_eq!((open.iter().filter(|it| **it).count(), exceeded), (1, Some(identities)));
    let (open, _, problems) = world(Limits { rules: 1, ..everything });
    assert_eq!((open, problems.len()), ([false; 3], 1));
}

#[test]
fn p14_a_name_of_a_port_means_the_number_that_the_pod_itself_gives_it() {
    let destination = Entity { ports: Some(vec![Port::Named("web".into())]), ..Entity::default() };
    let rule = Rule { protocol: Some(Protocol::TCP), destination, ..Rule::any(Action::Allow, "rule") };
    let mut twins = server(Limits::default(), vec![rule]);
    let Update::Endpoint(key, Some(endpoint)) = pod("server", "10.0.0.1", "server", 1) else {
        unreachable!()
    };
    let with = |port| {
        let ports = vec![NamedPort { name: "web".into(), protocol: Protocol::TCP, port }];
        Update::Endpoint(key.clone(), Some(Arc::new(Endpoint { ports, ..(*endpoint).clone() })))
    };
    twins.apply(&with(80));
    twins.flush();
    assert!(twins.allows("192.0.2.1", 80) && !twins.allows("192.0.2.1", 8080));
    twins.apply(&with(8080));
    twins.flush();
    assert!(twins.allows("192.0.2.1", 8080) && !twins.allows("192.0.2.1", 80));
}

#[test]
fn a_source_is_of_a_service_by_its_address_also_without_a_port() {
    // policy.md section 1.4, `services`; found by seed 608 of p103
    let id = ServiceId { namespace: "n".into(), name: "v".into() };
    let source = Entity { service: Some(id.clone()), ..Entity::default() };
    let Update::Policy(policy_id, Some(policy)) = policy(Vec::new()) else { panic!("no policy") };
    let egress = Policy {
        directions: Directions { ingress: false, egress: true },
        egress: vec![allow_from(source)],
        ..(*policy).clone()
    };
    let mut twins = server(Limits::default(), Vec::new());
    twins.apply(&Update::Policy(policy_id, Some(Arc::new(egress))));
    let flow = Flow { source: address("10.0.0.1"), destination: address("192.0.2.1"), ..tcp("10.0.0.1", 80) };
    let mut expect = |addresses: &[&str], is_allowed: bool| {
        let addresses = addresses.iter().map(|text| address(text)).collect();
        let service = crate::world::Service { addresses, endpoints: BTreeSet::new() };
        twins.apply(&Update::Service(id.clone(), Some(Arc::new(service))));
        twins.flush();
        let word = twins.model.judge(Direction::Egress, flow.source, &flow);
        assert_eq!(word.map(|it| it.verdict == Verdict::Allow), Some(is_allowed));
        assert_eq!(twins.judge(Direction::Egress, flow.source, &flow), Some((is_allowed, false)));
    };
    expect(&[], false);
    expect(&["10.0.0.1"], true);
    expect(&["10.0.0.2"], false);
}
