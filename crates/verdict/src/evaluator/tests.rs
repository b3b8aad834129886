//! Tiers, profiles, staged policies and host endpoints, on policies made by hand. What documents
//! of each API mean is tested with their translators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::*;
use crate::felix::{Failsafe, FelixSettings};
use crate::ir::{Directions, Entity, Icmp, PolicyKind, Port, StagedAction};
use crate::world::{Config, EgressFirewall, EndpointKind, NamedPort, NetworkSet, Node, SetId, Update};
use russet_model::Selector;

fn text(text: &str) -> Arc<str> {
    text.into()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap()
}

/// A pod with a label `name`, on node `n1`, with a profile that allows everything.
fn pod(name: &str, at: &str) -> Update {
    let endpoint = Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(text("shop")),
        name: text(name),
        node: text("n1"),
        addresses: BTreeSet::from([address(at)]),
        labels: BTreeMap::from([
            (text("name"), text(name)),
            (text("projectcalico.org/namespace"), text("shop")),
        ]),
        profiles: vec![text("kns.shop")],
        ports: vec![NamedPort { name: text("web"), protocol: Protocol::TCP, port: 8080 }],
        local: None,
        age: 0,
    };
    Update::Endpoint(EndpointKey(text(name)), Some(Arc::new(endpoint)))
}

fn profile(name: &str, rules: &[Action]) -> Update {
    let rules: Vec<Rule> = rules.iter().map(|action| Rule::any(*action, "")).collect();
    let profile = Profile { ingress: rules.clone(), egress: rules, ..Profile::default() };
    Update::Profile(text(name), Some(Arc::new(profile)))
}

fn tier(name: &str, order: Option<f64>, default_action: TierDefault) -> Update {
    Update::Tier(text(name), Some(crate::ir::Tier { order: Order::new(order), default_action }))
}

/// A policy for ingress of the pod `b`.
fn policy(tier: &str, name: &str, order: f64, rules: Vec<Rule>) -> Policy {
    let id = PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: None, name: text(name) };
    Policy {
        id,
        name: text(name),
        tier: text(tier),
        order: Order::new(Some(order)),
        subject: selector("name == 'b'"),
        directions: Directions { ingress: true, egress: false },
        staged: None,
        host_use: HostUse::Normal,
        ingress: rules,
        egress: Vec::new(),
        problems: Vec::new(),
    }
}

fn put(policy: Policy) -> Update {
    Update::Policy(policy.id.clone(), Some(Arc::new(policy)))
}

fn actions(actions: &[Action]) -> Vec<Rule> {
    actions.iter().map(|action| Rule::any(*action, "")).collect()
}

/// Pods `a` and `b`, the tiers of Kubernetes, and some more updates.
fn world(updates: Vec<Update>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let base = [
        pod("a", "10.0.0.1"),
        pod("b", "10.0.0.2"),
        profile("kns.shop", &[Action::Allow]),
        tier("default", Some(1e6), TierDefault::Deny),
    ];
    base.into_iter().chain(updates).for_each(|update| snapshot.apply(update));
    snapshot
}

fn flow(from: &str, to: &str, protocol: Protocol, port: u16) -> Flow {
    let (source, destination) = (address(from), address(to));
    Flow { source, destination, protocol, source_port: 40_000, destination_port: port }
}

fn a_to_b() -> Flow {
    flow("10.0.0.1", "10.0.0.2", Protocol::TCP, 80)
}

fn allowed(snapshot: &Snapshot) -> bool {
    ask(snapshot, &a_to_b()).allowed()
}

fn one_rule(change: impl FnOnce(&mut Rule)) -> Snapshot {
    let mut rule = Rule::any(Action::Allow, "spec.ingress[0]");
    change(&mut rule);
    world(vec![put(policy("default", "p", 1.0, vec![rule]))])
}

// policy.md P01
#[test]
fn p01_everything_is_allowed_without_policies() {
    let snapshot = world(Vec::new());
    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP] {
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("8.8.8.8", "10.0.0.1"), ("10.0.0.2", "8.8.8.8")] {
            assert!(ask(&snapshot, &flow(from, to, protocol, 80)).allowed(), "{from} {to} {protocol:?}");
        }
    }
}

// policy.md P55
#[test]
fn p55_the_outcome_of_two_policies_in_a_tier() {
    // calico-cni.md section 4P.2. Each policy: None does not select, Some(rules) does.
    use Action::{Allow, Deny, Log, Pass};
    type Rules = Option<&'static [Action]>;
    let cases: [(Rules, Rules, TierDefault, bool); 13] = [
        (None, None, TierDefault::Deny, true),
        (Some(&[]), None, TierDefault::Deny, false),
        (Some(&[]), None, TierDefault::Pass, true),
        (Some(&[]), Some(&[Allow]), TierDefault::Deny, true),
        (Some(&[Deny]), Some(&[Allow]), TierDefault::Deny, false),
        (Some(&[Allow]), Some(&[Deny]), TierDefault::Deny, true),
        (Some(&[Pass]), Some(&[Deny]), TierDefault::Deny, true),
        (Some(&[Log]), None, TierDefault::Deny, false),
        (Some(&[Log]), Some(&[Allow]), TierDefault::Deny, true),
        (Some(&[Log, Deny]), Some(&[Allow]), TierDefault::Deny, false),
        (None, Some(&[Deny]), TierDefault::Pass, false),
        (None, Some(&[]), TierDefault::Deny, false),
        (Some(&[]), Some(&[]), TierDefault::Pass, true),
    ];
    for (first, second, default_action, wanted) in cases {
        let of = |name, order, rules: Rules| {
            let mut policy = policy("default", name, order, actions(rules.unwrap_or_default()));
            if rules.is_none() {
                policy.subject = selector("name == 'none'");
            }
            put(policy)
        };
        let tier = tier("default", Some(1e6), default_action);
        let snapshot = world(vec![tier, of("a", 10.0, first), of("b", 20.0, second)]);
        assert_eq!(allowed(&snapshot), wanted, "{first:?} {second:?} {default_action:?}");
    }
}

// policy.md P56
#[test]
fn p56_tiers_are_asked_by_order_then_by_name_and_unknown_ones_last() {
    // Each tier has one policy; the first tier of the wanted order denies and the others allow.
    let tiers = [("z", Some(1.0)), ("b", Some(2.0)), ("c", Some(2.0)), ("a", None), ("d", None)];
    let wanted = ["z", "b", "c", "a", "d", "0-unknown", "1-unknown"];
    for start in 0..wanted.len() {
        let mut updates: Vec<Update> =
            tiers.iter().map(|(name, order)| tier(name, *order, TierDefault::Deny)).collect();
        for (index, name) in wanted.iter().enumerate().skip(start) {
            let action = if index == start { Action::Deny } else { Action::Allow };
            updates.push(put(policy(name, &format!("in-{name}"), 1.0, actions(&[action]))));
        }
        let trace = ask(&world(updates), &a_to_b());
        assert_eq!(&*trace.ingress.policy().unwrap().name, format!("in-{}", wanted[start]));
        assert!(!trace.allowed());
    }
}

// policy.md P57
#[test]
fn p57_a_tier_whose_default_is_pass_asks_the_next_one() {
    let with = |default_action| {
        world(vec![
            tier("first", Some(1.0), default_action),
            put(policy("first", "f", 1.0, Vec::new())),
            put(policy("default", "d", 1.0, actions(&[Action::Allow]))),
        ])
    };
    assert!(allowed(&with(TierDefault::Pass)));
    assert_eq!(ask(&with(TierDefault::Deny), &a_to_b()).ingress.reason, Reason::EndOfTier(text("first")));
}

// policy.md P58
#[test]
fn p58_staged_policies_count_only_in_the_pending_trace() {
    let staged = |action| {
        let mut staged = policy("default", "p", 1.0, Vec::new());
        staged.id.kind = PolicyKind::StagedGlobalNetworkPolicy;
        staged.staged = Some(action);
        put(staged)
    };
    let only = world(vec![staged(StagedAction::Set)]);
    assert!(allowed(&only) && !allowed(&only.with_staged()));
    let enforced = || put(policy("default", "p", 1.0, actions(&[Action::Deny])));
    for (action, wanted) in [
        (StagedAction::Set, false),
        (StagedAction::Delete, true),
        (StagedAction::Learn, false),
        (StagedAction::Ignore, false),
    ] {
        let snapshot = world(vec![enforced(), staged(action)]);
        assert!(!allowed(&snapshot), "{action:?}");
        assert_eq!(allowed(&snapshot.with_staged()), wanted, "{action:?}");
    }
    // Set replaces: the rule that denied is gone, and the end of the tier denies.
    let replaced = world(vec![enforced(), staged(StagedAction::Set)]).with_staged();
    assert_eq!(ask(&replaced, &a_to_b()).ingress.reason, Reason::EndOfTier(text("default")));
}

// policy.md P59
#[test]
fn p59_policies_are_asked_by_order_then_by_the_text_of_their_key() {
    let of = |kind, name: &str, order: Option<f64>, action| {
        let mut policy = policy("default", name, 0.0, actions(&[action]));
        policy.id.kind = kind;
        policy.id.namespace = (kind == PolicyKind::NetworkPolicy).then(|| text("shop"));
        policy.order = Order::new(order);
        put(policy)
    };
    use Action::{Allow, Deny};
    use PolicyKind::{GlobalNetworkPolicy as Global, NetworkPolicy as Namespaced};
    let cases = [
        (of(Global, "a", Some(5.0), Deny), of(Global, "b", Some(5.0), Allow)),
        (of(Global, "b", Some(-0.5), Deny), of(Global, "a", Some(0.0), Allow)),
        (of(Global, "b", Some(5.0), Deny), of(Global, "a", None, Allow)),
        // "a//GlobalNetworkPolicy" is before "a/shop/NetworkPolicy".
        (of(Global, "a", None, Deny), of(Namespaced, "a", None, Allow)),
        (of(Namespaced, "a", None, Deny), of(Global, "b", None, Allow)),
    ];
    for (first, second) in cases {
        assert!(!allowed(&world(vec![second.clone(), first.clone()])), "{first:?} {second:?}");
    }
}

// policy.md P60
#[test]
fn p60_pass_in_the_last_tier_and_in_a_profile() {
    let pass = || put(policy("default", "p", 1.0, actions(&[Action::Pass])));
    assert!(allowed(&world(vec![pass()])));
    assert!(!allowed(&world(vec![pass(), profile("kns.shop", &[Action::Deny])])));
    // Pass ends its profile; there is no other, so nothing allows.
    assert!(!allowed(&world(vec![profile("kns.shop", &[Action::Pass, Action::Allow])])));
}

// policy.md P61
#[test]
fn p61_an_unknown_profile_denies_where_it_stands() {
    let with_profiles = |profiles: &[&str]| {
        let mut snapshot = world(vec![profile("allows", &[Action::Allow])]);
        for name in ["a", "b"] {
            let mut endpoint = (*snapshot.endpoints[&EndpointKey(text(name))]).clone();
            endpoint.profiles = profiles.iter().map(|name| text(name)).collect();
            snapshot.apply(Update::Endpoint(EndpointKey(text(name)), Some(Arc::new(endpoint))));
        }
        snapshot
    };
    assert!(!allowed(&with_profiles(&["unknown", "allows"])));
    assert!(allowed(&with_profiles(&["allows", "unknown"])));
    assert!(allowed(&with_profiles(&["projectcalico-default-allow"])));
    let mut none = with_profiles(&[]);
    assert!(!allowed(&none));
    none.apply(Update::Config(Config { allow_without_profile: true, ..Config::default() }));
    assert!(allowed(&none));
}

// policy.md P62
#[test]
fn p62_not_selector_alone_matches_addresses_of_nothing_known() {
    let snapshot = one_rule(|rule| rule.source.not_selector = Some(selector("name == 'a'")));
    assert!(!allowed(&snapshot));
    assert!(ask(&snapshot, &flow("8.8.8.8", "10.0.0.2", Protocol::TCP, 80)).allowed());
    let both = one_rule(|rule| {
        rule.source.selector = Some(selector("has(name)"));
        rule.source.not_selector = Some(selector("name == 'a'"));
    });
    assert!(!allowed(&both));
    assert!(!ask(&both, &flow("8.8.8.8", "10.0.0.2", Protocol::TCP, 80)).allowed());
    assert!(ask(&both, &flow("10.0.0.2", "10.0.0.2", Protocol::TCP, 80)).allowed());
}

// policy.md P65 and P66
#[test]
fn p65_p66_nets_of_one_family_match_nothing_of_the_other() {
    let six = flow("fd00::1", "fd00::2", Protocol::TCP, 80);
    for (nets, not_nets, four_ok, six_ok) in [
        (Some(vec!["10.0.0.0/8"]), vec![], true, false),
        (Some(vec![]), vec![], false, false),
        (None, vec!["::/0"], true, false),
        (Some(vec!["10.0.0.0/8", "fd00::/8"]), vec!["10.0.0.0/24"], false, true),
    ] {
        let parse = |nets: Vec<&str>| nets.iter().map(|net| net.parse().unwrap()).collect();
        let mut snapshot = one_rule(|rule| {
            rule.source.nets = nets.clone().map(parse);
            rule.source.not_nets = parse(not_nets.clone());
        });
        assert_eq!(allowed(&snapshot), four_ok, "{nets:?} {not_nets:?}");
        snapshot.apply(pod("b", "fd00::2"));
        assert_eq!(ask(&snapshot, &six).allowed(), six_ok, "{nets:?} {not_nets:?}");
    }
}

// policy.md P67 and P68
#[test]
fn p67_p68_icmp_messages() {
    let message = |snapshot: &Snapshot, kind: u16, code: u16| {
        ask(snapshot, &flow("10.0.0.1", "10.0.0.2", Protocol::ICMP, kind * 256 + code)).allowed()
    };
    let icmp = |code| Some(Icmp { kind: 8, code });
    let not = one_rule(|rule| rule.not_icmp = icmp(Some(0)));
    assert!(!message(&not, 8, 0) && message(&not, 8, 1) && message(&not, 0, 0));
    let any_code = one_rule(|rule| rule.icmp = icmp(None));
    assert!(message(&any_code, 8, 0) && message(&any_code, 8, 7) && !message(&any_code, 0, 0));
    assert!(!allowed(&any_code) && !allowed(&not), "TCP is no ICMP message");
    let four = one_rule(|rule| rule.protocol = Some(Protocol::ICMP));
    assert!(message(&four, 8, 0));
    assert!(!ask(&four, &flow("fd00::1", "10.0.0.2", Protocol::ICMPV6, 128 * 256)).ingress.allowed);
}

// policy.md P69 to P71
#[test]
fn p69_to_p71_ports_and_what_must_not_be() {
    let to = |snapshot: &Snapshot, protocol, port| {
        ask(snapshot, &flow("10.0.0.1", "10.0.0.2", protocol, port)).allowed()
    };
    let list = one_rule(|rule| {
        rule.destination.ports = Some(vec![Port::Named(text("web")), Port::Range(90, 92)]);
    });
    for (protocol, port, wanted) in [
        (Protocol::TCP, 8080, true),
        (Protocol::UDP, 8080, false),
        (Protocol::TCP, 90, true),
        (Protocol::SCTP, 92, true),
        (Protocol::TCP, 93, false),
        (Protocol::ICMP, 90, false),
    ] {
        assert_eq!(to(&list, protocol, port), wanted, "{protocol:?} {port}");
    }
    let source = one_rule(|rule| rule.source.ports = Some(vec![Port::Range(1000, 2000)]));
    assert!(!allowed(&source));
    assert!(ask(&source, &Flow { source_port: 1000, ..a_to_b() }).allowed());
    let not = one_rule(|rule| {
        rule.not_protocol = Some(Protocol::UDP);
        rule.destination.not_ports = vec![Port::Range(80, 80)];
    });
    assert!(!to(&not, Protocol::TCP, 80) && to(&not, Protocol::TCP, 81) && !to(&not, Protocol::UDP, 81));
    assert!(to(&not, Protocol::ICMP, 80), "it has no port");
}

// policy.md P75 and P76
#[test]
fn p75_p76_network_sets_may_overlap() {
    let set = |name: &str, nets: &[&str], label: &str| {
        let labels = BTreeMap::from([(text("role"), text(label))]);
        let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
        let id = SetId { namespace: None, name: text(name) };
        Update::NetworkSet(id, Some(Arc::new(NetworkSet { nets, labels, profile: None })))
    };
    let mut snapshot = one_rule(|rule| {
        rule.source.selector = Some(selector("role == 'x'"));
    });
    let from =
        |snapshot: &Snapshot, from| ask(snapshot, &flow(from, "10.0.0.2", Protocol::TCP, 80)).allowed();
    snapshot.apply(set("one", &["10.0.0.0/8", "10.9.0.0/16", "10.9.0.0/24"], "x"));
    assert!(from(&snapshot, "10.9.0.1"));
    snapshot.apply(set("one", &["10.9.0.0/24"], "x"));
    assert!(from(&snapshot, "10.9.0.1") && !from(&snapshot, "10.9.1.1"));
    snapshot.apply(set("two", &["10.9.0.0/24"], "x"));
    snapshot.apply(set("one", &["10.9.0.0/24"], "y"));
    assert!(from(&snapshot, "10.9.0.1"));
    snapshot.apply(set("two", &["10.9.0.0/24"], "y"));
    assert!(!from(&snapshot, "10.9.0.1"));
}

// policy.md P78
#[test]
fn p78_log_is_noted_and_goes_on() {
    let snapshot = world(vec![put(policy("default", "p", 1.0, actions(&[Action::Log])))]);
    let trace = ask(&snapshot, &a_to_b());
    assert!(trace.ingress.logged && !trace.allowed());
    assert_eq!(trace.ingress.reason, Reason::EndOfTier(text("default")));
    assert_eq!(trace.ingress.tiers[0].policies[0].rules, [None]);
}

// policy.md P80
#[test]
fn p80_labels_of_namespaces_cannot_be_forged_by_pods() {
    let mut snapshot = one_rule(|rule| rule.source.selector = Some(selector("has(pcns.env)")));
    let key = EndpointKey(text("a"));
    let mut endpoint = (*snapshot.endpoints[&key]).clone();
    endpoint.labels.insert(text("pcns.env"), text("prod"));
    snapshot.apply(Update::Endpoint(key, Some(Arc::new(endpoint))));
    assert!(!allowed(&snapshot));
    let mut shop = (*snapshot.profiles["kns.shop"]).clone();
    shop.labels.insert(text("pcns.env"), text("prod"));
    snapshot.apply(Update::Profile(text("kns.shop"), Some(Arc::new(shop))));
    assert!(allowed(&snapshot));
}

// policy.md P96 and P97
#[test]
fn p96_p97_egress_firewalls_count_outside_the_cluster_only() {
    let firewall = |name: &str, rules: &[(bool, &str)]| {
        let rules = rules.iter().map(|(ok, net)| (*ok, EgressPeer::Net(net.parse().unwrap()))).collect();
        Update::EgressFirewall(text("shop"), text(name), Some(Arc::new(EgressFirewall { rules })))
    };
    let mut snapshot = world(vec![firewall("one", &[(true, "1.2.3.0/24"), (false, "0.0.0.0/0")])]);
    snapshot.apply(Update::Config(Config {
        node: text("n1"),
        own_addresses: BTreeSet::from([address("192.168.0.1")]),
        cluster_nets: BTreeSet::from(["10.0.0.0/8".parse().unwrap()]),
        allow_without_profile: true,
    }));
    let to =
        |snapshot: &Snapshot, to, port| ask(snapshot, &flow("10.0.0.1", to, Protocol::UDP, port)).allowed();
    assert!(to(&snapshot, "1.2.3.4", 80) && !to(&snapshot, "8.8.8.8", 80) && to(&snapshot, "10.0.0.2", 80));
    assert!(to(&snapshot, "192.168.0.1", 53) && !to(&snapshot, "192.168.0.1", 54));
    snapshot.apply(firewall("two", &[]));
    assert!(to(&snapshot, "1.2.3.4", 80), "one without rules does not count");
    snapshot.apply(firewall("two", &[(true, "0.0.0.0/0")]));
    assert!(!to(&snapshot, "1.2.3.4", 80) && to(&snapshot, "10.0.0.2", 80));
    // It does not open what a policy has denied.
    let mut closed = policy("default", "p", 1.0, Vec::new());
    closed.subject = selector("name == 'a'");
    closed.directions = Directions { ingress: false, egress: true };
    let both = world(vec![firewall("one", &[(true, "0.0.0.0/0")]), put(closed)]);
    assert!(!to(&both, "1.2.3.4", 80));
}

#[test]
fn the_own_node_reaches_its_pods_and_other_nodes_do_not() {
    let closed = || put(policy("default", "p", 1.0, Vec::new()));
    let node = |name: &str, at: &str| {
        let node = crate::world::Node { addresses: BTreeSet::from([address(at)]), ..Default::default() };
        Update::Node(russet_addr::NodeName::new(name).unwrap(), Some(Arc::new(node)))
    };
    let snapshot = world(vec![closed(), node("n1", "192.168.0.1"), node("n2", "192.168.0.2")]);
    let from = |from| ask(&snapshot, &flow(from, "10.0.0.2", Protocol::TCP, 80));
    assert_eq!(from("192.168.0.1").ingress.reason, Reason::OwnNode);
    assert!(from("192.168.0.1").allowed() && !from("192.168.0.2").allowed());
}

#[test]
fn the_youngest_of_two_endpoints_has_their_address() {
    let mut snapshot = one_rule(|rule| rule.source.selector = Some(selector("name == 'a'")));
    let Update::Endpoint(key, Some(endpoint)) = pod("new", "10.0.0.1") else { unreachable!() };
    let younger = Endpoint { age: 1, ..(*endpoint).clone() };
    snapshot.apply(Update::Endpoint(key.clone(), Some(Arc::new(younger))));
    assert!(!allowed(&snapshot));
    snapshot.apply(Update::Endpoint(key, None));
    assert!(allowed(&snapshot));
}

#[test]
fn a_change_of_a_clone_leaves_the_original_alone() {
    let before = world(Vec::new());
    let mut after = before.clone();
    after.apply(put(policy("default", "p", 1.0, Vec::new())));
    assert!(allowed(&before) && !allowed(&after));
    assert!(Arc::ptr_eq(&before.endpoints, &after.endpoints));
}

mod hosts {
    use super::*;

    fn host(interface: &str, at: &[&str]) -> Update {
        let Update::Endpoint(_, Some(endpoint)) = pod("b", "10.0.0.9") else { unreachable!() };
        let endpoint = Endpoint {
            kind: EndpointKind::Host { interface: text(interface) },
            namespace: None,
            addresses: at.iter().map(|at| address(at)).collect(),
            profiles: Vec::new(),
            ..(*endpoint).clone()
        };
        let key = EndpointKey(text(&format!("host-{interface}")));
        Update::Endpoint(key, Some(Arc::new(endpoint)))
    }

    fn used(host_use: HostUse, name: &str, rules: Vec<Rule>) -> Update {
        put(Policy { host_use, ..policy("default", name, 1.0, rules) })
    }

    fn port(action: Action, port: u16) -> Rule {
        let ports = Some(vec![Port::Range(port, port)]);
        let destination = Entity { ports, ..Entity::default() };
        Rule { destination, protocol: Some(Protocol::TCP), ..Rule::any(action, "") }
    }

    fn judged(snapshot: &Snapshot, stage: Stage, direction: Direction, port: u16) -> EndTrace {
        let interface = HostInterface { node: "n1", name: "eth0", addresses: &BTreeSet::new() };
        let flow = flow("8.8.8.8", "192.168.0.1", Protocol::TCP, port);
        judge_host(snapshot, &interface, &Failsafe::default(), stage, direction, &flow)
    }

    // policy.md P81
    #[test]
    fn p81_without_policies_only_failsafe_ports_and_forwarded_packets_pass() {
        let snapshot = world(vec![host("*", &[])]);
        let to = |stage, port| judged(&snapshot, stage, Direction::Ingress, port);
        assert_eq!(to(Stage::Local, 22).reason, Reason::Failsafe);
        assert!(!to(Stage::Local, 80).allowed && to(Stage::Forward, 80).allowed);
        assert!(judged(&world(Vec::new()), Stage::Local, Direction::Ingress, 80).allowed);
        let out = |port| judged(&snapshot, Stage::Local, Direction::Egress, port).allowed;
        assert!(out(6443) && !out(22), "ssh is a failsafe port of the node itself only");
    }

    // policy.md P82
    #[test]
    fn p82_a_normal_policy_of_a_host_endpoint_leaves_forwarded_packets_alone() {
        let snapshot = world(vec![host("*", &[]), used(HostUse::Normal, "p", vec![port(Action::Allow, 80)])]);
        let to = |stage, port| judged(&snapshot, stage, Direction::Ingress, port).allowed;
        assert!(to(Stage::Local, 80) && !to(Stage::Local, 81) && to(Stage::Forward, 81));
    }

    // policy.md P83
    #[test]
    fn p83_apply_on_forward_counts_for_forwarded_packets_too() {
        let snapshot =
            world(vec![host("eth0", &[]), used(HostUse::Forward, "p", vec![port(Action::Deny, 80)])]);
        let to = |stage, port| judged(&snapshot, stage, Direction::Ingress, port).allowed;
        assert!(!to(Stage::Forward, 80) && !to(Stage::Local, 80));
        // Its end of tier denies what no rule names.
        assert!(!to(Stage::Forward, 81));
    }

    fn node(name: &str, at: &str) -> Update {
        let node = Node { addresses: BTreeSet::from([address(at)]), ..Node::default() };
        Update::Node(russet_addr::NodeName::new(name).unwrap(), Some(Arc::new(node)))
    }

    fn to_host(configuration: &str, action: EndpointToHost) -> Update {
        let settings = FelixSettings { endpoint_to_host: Some(action), ..FelixSettings::default() };
        Update::Felix(text(configuration), Some(Arc::new(settings)))
    }

    // policy.md P86
    #[test]
    fn p86_an_action_decides_what_becomes_of_packets_of_pods_to_their_own_node() {
        let judged = |more: Vec<Update>, to: &str| {
            let nodes = vec![node("n1", "192.168.0.1"), node("n2", "192.168.0.2")];
            ask(&world([nodes, more].concat()), &flow("10.0.0.1", to, Protocol::TCP, 80))
        };
        assert_eq!(judged(Vec::new(), "192.168.0.1").ingress.reason, Reason::NoEndpoint);
        let own = |action| judged(vec![to_host("default", action)], "192.168.0.1").allowed();
        let each = [EndpointToHost::Accept, EndpointToHost::Return, EndpointToHost::Drop];
        assert_eq!(each.map(own), [true, true, false]);
        // Egress is judged before, and in none of the cases replaced.
        let closed = put(Policy {
            directions: Directions { ingress: false, egress: true },
            subject: selector("all()"),
            ..policy("default", "p", 1.0, Vec::new())
        });
        let accept = to_host("default", EndpointToHost::Accept);
        assert!(!judged(vec![closed, accept], "192.168.0.1").allowed());
        // Another node, and another pod.
        let drop = || to_host("default", EndpointToHost::Drop);
        assert!(judged(vec![drop()], "192.168.0.2").allowed() && judged(vec![drop()], "10.0.0.2").allowed());
        // What is said of the node itself goes before.
        let of_node = to_host("node.n1", EndpointToHost::Return);
        let trace = judged(vec![drop(), of_node, to_host("node.n2", EndpointToHost::Drop)], "192.168.0.1");
        let reason =
            Reason::EndpointToHost { configuration: text("node.n1"), action: EndpointToHost::Return };
        assert_eq!((trace.allowed(), trace.ingress.reason), (true, reason));
    }

    #[test]
    fn p86_neighbours_and_listeners_pass_whatever_the_action_is() {
        let drop = to_host("default", EndpointToHost::Drop);
        let snapshot = world(vec![node("n1", "fd00::1"), pod("d", "fd01::1"), drop]);
        let passes = |kind: &u8| {
            let message = u16::from_be_bytes([*kind, 0]);
            ask(&snapshot, &flow("fd01::1", "fd00::1", Protocol::ICMPV6, message)).allowed()
        };
        assert_eq!((0..=u8::MAX).filter(passes).collect::<Vec<_>>(), [130, 131, 132, 133, 135, 136]);
    }

    // policy.md P84 and P85
    #[test]
    fn p84_p85_before_the_translation_and_untracked_only_rules_decide() {
        for (host_use, stage) in [(HostUse::PreDnat, Stage::PreDnat), (HostUse::Untracked, Stage::Untracked)]
        {
            let rules = vec![port(Action::Deny, 30_080)];
            let snapshot = world(vec![host("eth0", &[]), used(host_use, "p", rules)]);
            assert!(!judged(&snapshot, stage, Direction::Ingress, 30_080).allowed, "{stage:?}");
            assert!(judged(&snapshot, stage, Direction::Ingress, 80).allowed, "{stage:?}");
            // It is no policy of the other stages, and none of workloads.
            assert!(judged(&snapshot, Stage::Forward, Direction::Ingress, 30_080).allowed, "{stage:?}");
            assert!(ask(&snapshot, &flow("10.0.0.1", "10.0.0.2", Protocol::TCP, 30_080)).allowed());
        }
    }

    #[test]
    fn replies_of_failsafe_ports_pass_untracked() {
        let deny = Policy {
            directions: Directions { ingress: true, egress: true },
            egress: actions(&[Action::Deny]),
            host_use: HostUse::Untracked,
            ..policy("default", "p", 1.0, actions(&[Action::Deny]))
        };
        let snapshot = world(vec![host("eth0", &[]), put(deny)]);
        let interface = HostInterface { node: "n1", name: "eth0", addresses: &BTreeSet::new() };
        let reply = |source_port| {
            let flow = Flow { source_port, ..flow("192.168.0.1", "8.8.8.8", Protocol::TCP, 40_000) };
            let failsafe = Failsafe::default();
            judge_host(&snapshot, &interface, &failsafe, Stage::Untracked, Direction::Egress, &flow).allowed
        };
        assert!(reply(22) && !reply(80));
    }

    #[test]
    fn the_host_endpoint_of_an_interface_is_the_most_specific_one() {
        let addresses = BTreeSet::from([address("192.168.0.1")]);
        let interface = HostInterface { node: "n1", name: "eth0", addresses: &addresses };
        let mut snapshot = world(vec![host("*", &[]), host("", &["192.168.0.1"]), host("eth0", &[])]);
        for wanted in ["host-eth0", "host-", "host-*"] {
            let (key, _) = host_endpoint(&snapshot, &interface).unwrap();
            assert_eq!(&*key.0, wanted);
            let key = key.clone();
            snapshot.apply(Update::Endpoint(key, None));
        }
        assert!(host_endpoint(&snapshot, &interface).is_none());
    }
}
