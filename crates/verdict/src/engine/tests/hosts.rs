//! The table of host endpoints against the evaluator.

use std::collections::BTreeSet;

use russet_addr::IfName;
use russet_model::Selector;

use super::*;
use crate::evaluator::{HostInterface, Reason, Stage, judge_host};
use crate::felix::Failsafe;
use crate::hosts::{Entrance, HostTable, TooLarge};
use crate::ir::{Action, Directions, Entity, HostUse, Order, Policy, PolicyKind, Rule};
use crate::table::Word;
use crate::world::Endpoint;

fn interfaces() -> Interfaces {
    let addresses = |all: &[&str]| all.iter().map(|it| it.parse().unwrap()).collect();
    let all = [("eth0", addresses(&["10.0.0.1", "fd00::1"])), ("eth1", addresses(&["192.0.2.9"]))];
    all.into_iter().map(|(name, addresses)| (IfName::new(name).unwrap(), addresses)).collect()
}

/// The update, with host endpoints of several kinds, and more policies for forwarded packets.
fn varied(update: Update, random: &mut Random) -> Update {
    match update {
        Update::Endpoint(key, Some(endpoint)) if random.below(3) == 0 => {
            let interface = ["*", "eth0", "eth1", ""][random.below(4)];
            let kind = EndpointKind::Host { interface: interface.into() };
            Update::Endpoint(
                key,
                Some(Arc::new(Endpoint { kind, local: None, ..Endpoint::clone(&endpoint) })),
            )
        }
        Update::Policy(id, Some(policy)) if random.below(2) == 0 => {
            let host_use =
                [HostUse::Forward, HostUse::Forward, HostUse::PreDnat, HostUse::Untracked][random.below(4)];
            let mut policy = Policy { host_use, ..Policy::clone(&policy) };
            if host_use == HostUse::Untracked && random.below(4) == 0 {
                // Else little is forbidden there: what no rule names passes on.
                policy.ingress.push(Rule::any(Action::Deny, ""));
                policy.egress.push(Rule::any(Action::Deny, ""));
            }
            Update::Policy(id, Some(Arc::new(policy)))
        }
        other => other,
    }
}

fn here() -> Update {
    Update::Config(Config { node: "here".into(), allow_without_profile: true, ..Config::default() })
}

/// Whether an entrance asks for what a rule allows, and not for what nothing forbids.
fn asks_for_a_rule(entrance: Entrance) -> bool {
    matches!(entrance, Entrance::UntrackedIn | Entrance::UntrackedOut)
}

// policy.md P82 to P85: by tables like the kernel's
#[test]
fn p82_p85_the_table_of_host_endpoints_says_what_the_evaluator_says() {
    let none = Failsafe { inbound: Vec::new(), outbound: Vec::new() };
    let interfaces = interfaces();
    let mut answers = [[0; 2]; Entrance::EACH.len()];
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut twins = Twins::new(Limits::default());
        twins.apply(&here());
        for step in 0..10 {
            for _ in 0..=random.below(12) {
                let update = random.update();
                twins.apply(&varied(update, &mut random));
            }
            twins.flush();
            let table = twins.engine.host_table(&interfaces).unwrap();
            for _ in 0..64 {
                let flow = random.flow();
                for (place, entrance) in Entrance::EACH.into_iter().enumerate() {
                    let name = ["eth0", "eth1", "eth2"][random.below(3)];
                    let name = IfName::new(name).unwrap();
                    let addresses = interfaces.get(&name).cloned().unwrap_or_default();
                    let interface =
                        HostInterface { node: "here", name: name.as_str(), addresses: &addresses };
                    let stage = match entrance {
                        Entrance::Input | Entrance::Output => Stage::Local,
                        Entrance::ForwardIn | Entrance::ForwardOut => Stage::Forward,
                        Entrance::PreDnat => Stage::PreDnat,
                        Entrance::RawIn
                        | Entrance::RawOut
                        | Entrance::UntrackedIn
                        | Entrance::UntrackedOut => Stage::Untracked,
                    };
                    let direction = entrance.direction();
                    let trace = judge_host(&twins.snapshot, &interface, &none, stage, direction, &flow);
                    let is_rule = matches!(trace.reason, Reason::Rule { .. });
                    let allowed = trace.allowed && (is_rule || !asks_for_a_rule(entrance));
                    let unguarded = if asks_for_a_rule(entrance) { Word::DENY } else { Word::ALLOW };
                    let found = table.decide(entrance, &name, &flow).unwrap_or(unguarded);
                    assert_eq!(
                        (found.verdict == Verdict::Allow, found.log),
                        (allowed, trace.logged),
                        "seed {seed}, step {step}: {entrance:?} of {name}, {flow:?}"
                    );
                    if trace.endpoint.is_some() {
                        answers[place][usize::from(allowed)] += 1;
                    }
                }
            }
        }
    }
    let is_rare = |[denied, allowed]: &[usize; 2]| denied.min(allowed) * 1000 < denied + allowed;
    assert!(!answers.iter().any(is_rare), "one answer is too rare: {answers:?}");
}

/// What a host endpoint for all interfaces and a policy with these rules decide.
fn decided(rules: Vec<Rule>) -> Result<HostTable, TooLarge> {
    let mut twins = Twins::new(Limits::default());
    twins.apply(&here());
    let host = Endpoint {
        kind: EndpointKind::Host { interface: "*".into() },
        namespace: None,
        name: "h".into(),
        node: "here".into(),
        addresses: BTreeSet::new(),
        labels: BTreeMap::new(),
        profiles: Vec::new(),
        ports: Vec::new(),
        local: None,
        age: 0,
    };
    twins.apply(&Update::Endpoint(EndpointKey("host/h".into()), Some(Arc::new(host))));
    let policy = Policy {
        id: PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: None, name: "p".into() },
        name: "p".into(),
        tier: "default".into(),
        order: Order::LAST,
        subject: Selector::parse("all()").unwrap(),
        directions: Directions { ingress: true, egress: false },
        staged: None,
        host_use: HostUse::Normal,
        ingress: rules,
        egress: Vec::new(),
        problems: Vec::new(),
    };
    twins.apply(&Update::Policy(policy.id.clone(), Some(Arc::new(policy))));
    twins.flush();
    twins.engine.host_table(&Interfaces::new())
}

fn from(nets: Vec<IpNet>) -> Rule {
    let source = Entity { nets: Some(nets), ..Entity::default() };
    Rule { source, ..Rule::any(Action::Allow, "") }
}

#[test]
fn a_state_has_the_same_number_wherever_and_whenever_it_means_the_same() {
    let net = |text: &str| vec![text.parse().unwrap()];
    let (one, other) =
        (decided(vec![from(net("10.0.0.0/8"))]).unwrap(), decided(vec![from(net("10.0.0.0/9"))]).unwrap());
    assert_eq!(decided(vec![from(net("10.0.0.0/8"))]).unwrap(), one);
    let first = |table: &HostTable| table.ways.values().copied().collect::<BTreeSet<_>>();
    // Output and IPv6 are denied, whatever IPv4 may do.
    assert_eq!(first(&one).intersection(&first(&other)).count(), 2);
    // What the source leads to is the same, from another state.
    let next = |table: &HostTable| table.spans.values().copied().collect::<BTreeSet<_>>();
    assert_eq!((next(&one), next(&one).len()), (next(&other), 1));
    assert!(one.spans.keys().all(|span| !other.spans.contains_key(span)));
}

#[test]
fn a_table_that_is_too_large_is_refused() {
    let alternate = (0..30_000_u32).map(|place| std::net::Ipv4Addr::from_bits(place << 9));
    let nets = alternate.map(|at| IpNet::new(at.into(), 24).unwrap()).collect();
    assert_eq!(decided(vec![from(nets)]), Err(TooLarge));
}
