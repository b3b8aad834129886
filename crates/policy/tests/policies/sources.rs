//! Rules that ask for the port of the source: what passes is what the evaluator says, and a change of
//! such a rule interrupts nothing that it allows before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_addr::IfName;
use russet_model::Selector;
use russet_policy::Policies;
use russet_testkit::Random;
use russet_verdict::engine::Engine;
use russet_verdict::evaluator;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction::{self, Egress, Ingress};
use russet_verdict::ir::{
    Action, Directions, Entity, HostUse, Order, Policy, PolicyId, PolicyKind, Port, Protocol, Rule,
};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::table::{Delta, Part, SourceRange, Word};
use russet_verdict::world::{Config, Endpoint, EndpointKey, EndpointKind, Update};

use crate::world::*;

const STATES: usize = 60;
/// Around the ends of the ranges in rules.
const CLIENT_PORTS: [u16; 6] = [1999, 2000, 2001, 2999, 3000, 3001];
const SERVER_PORTS: [u16; 2] = [5000, 5001];
const POLICIES: [&str; 4] = ["p0", "p1", "p2", "p3"];
/// No packet here is dropped that the test waits for.
const ARRIVES: Duration = Duration::from_secs(10);

/// The same objects for the engine and for the evaluator.
#[derive(Default)]
struct Twins {
    engine: Engine,
    snapshot: Snapshot,
}

/// A socket of a pod, and the addresses to which it sends.
struct Client {
    socket: UdpSocket,
    to: Vec<SocketAddr>,
}

// === impl Twins ===

impl Twins {
    fn with_pods() -> Self {
        let mut twins = Self::default();
        let config = Config { node: "here".into(), allow_without_profile: true, ..Config::default() };
        twins.apply(Update::Config(config));
        for (name, host_end, addresses) in PODS {
            let endpoint = Endpoint {
                kind: EndpointKind::Workload,
                namespace: None,
                name: name.into(),
                node: "here".into(),
                addresses: addresses.map(ip).into(),
                labels: BTreeMap::from([("name".into(), name.into())]),
                profiles: Vec::new(),
                ports: Vec::new(),
                local: IfName::new(host_end).ok(),
                age: 0,
            };
            twins.apply(Update::Endpoint(EndpointKey(name.into()), Some(Arc::new(endpoint))));
        }
        twins
    }

    fn apply(&mut self, update: Update) {
        self.engine.apply(update.clone());
        self.snapshot.apply(update);
    }

    fn allows(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let flow = Flow {
            source: from.ip(),
            destination: to.ip(),
            protocol: Protocol::UDP,
            source_port: from.port(),
            destination_port: to.port(),
        };
        [(Egress, from), (Ingress, to)].into_iter().all(|(direction, end)| {
            let (key, _) = self.snapshot.workload_at(end.ip()).unwrap();
            evaluator::judge(&self.snapshot, key, direction, &flow).is_some_and(|trace| trace.allowed)
        })
    }
}

fn random_policy(random: &mut Random, name: &str) -> Update {
    let id = PolicyId { kind: PolicyKind::GlobalNetworkPolicy, namespace: None, name: name.into() };
    if random.below(4) == 0 {
        return Update::Policy(id, None);
    }
    let subject = ["name == 'a'", "name == 'b'", "all()"][random.below(3)];
    let directions = [(true, false), (false, true), (true, true)][random.below(3)];
    let mut rules = || (0..random.below(4)).map(|_| random_rule(random)).collect::<Vec<_>>();
    let policy = Policy {
        name: name.into(),
        tier: "default".into(),
        order: Order::new(None),
        subject: Selector::parse(subject).unwrap(),
        directions: Directions { ingress: directions.0, egress: directions.1 },
        staged: None,
        host_use: HostUse::Normal,
        ingress: rules(),
        egress: rules(),
        problems: Vec::new(),
        id: id.clone(),
    };
    Update::Policy(id, Some(Arc::new(policy)))
}

/// A rule that asks for the port of the source, two times in three.
fn random_rule(random: &mut Random) -> Rule {
    let action = [Action::Allow, Action::Allow, Action::Deny][random.below(3)];
    let ranges = [(2000, 2999), (2000, 2000), (3000, u16::MAX), (0, 1999), (2001, 3000)];
    let source = [Port::Range(2000, 2000), Port::Range(2999, 3000)];
    let ports = match random.below(3) {
        0 => None,
        1 => Some(source.to_vec()),
        _ => {
            let (first, last) = ranges[random.below(ranges.len())];
            Some(vec![Port::Range(first, last)])
        }
    };
    let to = (random.below(2) == 0).then(|| vec![Port::Range(5000, 5000)]);
    let peer = ["all()", "name == 'b'", "name != 'c'"][random.below(3)];
    let selector = (random.below(2) == 0).then(|| Selector::parse(peer).unwrap());
    Rule {
        protocol: (random.below(3) > 0 || ports.is_some() || to.is_some()).then_some(Protocol::UDP),
        source: Entity { ports, selector, ..Entity::default() },
        destination: Entity { ports: to, ..Entity::default() },
        ..Rule::any(action, "rule")
    }
}

fn clients() -> Vec<Client> {
    let mut clients = Vec::new();
    for (netns, _, addresses) in PODS {
        for (which, address) in addresses.into_iter().enumerate() {
            let others = PODS.into_iter().filter(|(other, ..)| *other != netns);
            let to: Vec<SocketAddr> = others
                .flat_map(|(_, _, addresses)| SERVER_PORTS.map(|port| (ip(addresses[which]), port).into()))
                .collect();
            for port in CLIENT_PORTS {
                let socket = udp(Some(netns), address, port);
                socket.set_read_timeout(Some(ARRIVES)).unwrap();
                clients.push(Client { socket, to: to.clone() });
            }
        }
    }
    clients
}

fn servers() -> Vec<UdpSocket> {
    let mut servers = Vec::new();
    for (netns, _, addresses) in PODS {
        for (address, port) in addresses.into_iter().flat_map(|it| SERVER_PORTS.map(|port| (it, port))) {
            let server = udp(Some(netns), address, port);
            server.set_read_timeout(Some(ARRIVES)).unwrap();
            servers.push(server);
        }
    }
    servers
}

/// The flows whose packets arrive. The node's own packets pass always, and overtake none.
fn arrivals(clients: &[Client], servers: &[UdpSocket], nodes: &[UdpSocket; 2]) -> BTreeSet<[SocketAddr; 2]> {
    for client in clients {
        client.to.iter().for_each(|to| _ = client.socket.send_to(b"x", to).unwrap());
    }
    let mut arrived = BTreeSet::new();
    for server in servers {
        let address = server.local_addr().unwrap();
        let node = &nodes[usize::from(address.is_ipv6())];
        node.send_to(b"x", address).unwrap();
        loop {
            let (_, from) = server.recv_from(&mut [0]).expect("the node's packet arrives");
            if from == node.local_addr().unwrap() {
                break;
            }
            arrived.insert([from, address]);
        }
    }
    arrived
}

/// Has each flow judged again at its reply.
fn check_replies(
    policies: &mut Policies,
    arrived: &BTreeSet<[SocketAddr; 2]>,
    clients: &[Client],
    servers: &[UdpSocket],
) {
    assert!(apply(policies, &Delta { tightens: true, ..Delta::default() }).advanced);
    for [client, server] in arrived {
        let is_at = |socket: &&UdpSocket, address: &SocketAddr| socket.local_addr().unwrap() == *address;
        let from = servers.iter().find(|socket| is_at(socket, server)).unwrap();
        let to = clients.iter().map(|client| &client.socket).find(|socket| is_at(socket, client)).unwrap();
        from.send_to(b"y", client).unwrap();
        let reply = to.recv_from(&mut [0]).map(|(_, from)| from);
        assert!(reply.is_ok_and(|from| from == *server), "no reply of {server} to {client}");
    }
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn rules_by_source_port_let_pass_what_the_evaluator_says() {
    // policy.md P70
    let seed = 70;
    on_a_node(|| {
        let (clients, servers) = (clients(), servers());
        let nodes = ["192.0.2.1", "2001:db8::1"].map(|address| udp(None, address, 0));
        let (mut random, mut twins, mut policies) = (Random::new(seed), Twins::with_pods(), open());
        let (mut lists, mut passed) = (BTreeSet::new(), [0; 2]);
        for state in 0..STATES {
            for _ in 0..=random.below(2) {
                let name = POLICIES[random.below(POLICIES.len())];
                twins.apply(random_policy(&mut random, name));
            }
            let delta = twins.engine.flush();
            apply(&mut policies, &delta);
            assert_eq!(open().current(), policies.current(), "seed {seed}, state {state}");
            lists.extend(policies.current().wide.values().cloned());
            let arrived = arrivals(&clients, &servers, &nodes);
            for (client, to) in clients.iter().flat_map(|it| it.to.iter().map(move |to| (it, to))) {
                let from = client.socket.local_addr().unwrap();
                let allowed = twins.allows(from, *to);
                let text =
                    || format!("seed {seed}, state {state}: {from} to {to}: {:#?}", twins.snapshot.policies);
                assert_eq!(arrived.contains(&[from, *to]), allowed, "{}", text());
                passed[usize::from(allowed)] += 1;
            }
            if state % 5 == 0 {
                check_replies(&mut policies, &arrived, &clients, &servers);
            }
        }
        assert!(lists.len() > 10, "too few rules by source port: {lists:#?}");
        assert!(passed.into_iter().all(|count| count > 1000), "{passed:?}");
    });
}

/// UDP of a peer by the port of the source: up to `last` it is allowed.
fn up_to(direction: Direction, local: &str, last: u16) -> Delta {
    let key = key(direction, local, B, Part::Protocol(Protocol::UDP));
    let range = |first, last, word| SourceRange { first, last, word };
    let ranges = vec![range(0, last, Word::ALLOW), range(last + 1, u16::MAX, Word::DENY)];
    let mut delta = Delta { tightens: true, ..Delta::default() };
    delta.decisions.insert(key, Some(Word::WIDE));
    delta.wide.insert(key, Some(ranges));
    delta
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_change_of_the_ports_interrupts_nothing_that_stays_allowed() {
    const CHANGES: u16 = 400;
    on_a_node(|| {
        let mut policies = open();
        let local = "10.9.1.2";
        apply(&mut policies, &merged(isolated(Ingress, local), up_to(Ingress, local, 4000)));
        let (server, client) = (udp(Some("a"), local, 53), udp(Some("b"), "10.9.2.2", 2000));
        server.set_read_timeout(Some(ARRIVES)).unwrap();
        let is_done = AtomicBool::new(false);
        let packets = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut packets = 0_u32;
                // At least as many as changes: each change is met by some packet.
                while !is_done.load(Ordering::Relaxed) || packets < u32::from(CHANGES) {
                    assert!(sends(&client, &server), "packet {packets} was lost");
                    packets += 1;
                }
                packets
            });
            for change in 0..CHANGES {
                apply(&mut policies, &up_to(Ingress, local, 4000 + change % 7));
            }
            is_done.store(true, Ordering::Relaxed);
            sender.join().unwrap()
        });
        assert!(packets >= u32::from(CHANGES));
        // Nothing is left of earlier lists, and the last one is in force.
        assert_eq!(open().current(), policies.current());
        let sources = russet_testkit::run("nft", &["list map inet russet-decisions sources4"]);
        assert_eq!(sources.matches("ffff:1").count() + sources.matches("ffff:2").count(), 2, "{sources}");
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(!sends(&udp(Some("b"), "10.9.2.2", 4007), &server));
    });
}
