//! Random decisions: which packets pass is what a plain reading of the maps says.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_policy::Decisions;
use russet_testkit::Random;
use russet_verdict::ir::Direction::{self, Egress, Ingress};
use russet_verdict::ir::Protocol;
use russet_verdict::table::{Delta, Identity, Key, Part, Verdict, Word};

use crate::world::*;

const STATES: usize = 150;
const PORTS: [u16; 3] = [1000, 1001, 1002];
const IDENTITIES: [u32; 4] = [1, A, B, C];

/// A packet from one pod to a port of another.
struct Probe {
    from: UdpSocket,
    to: (IpAddr, u16),
    number: u8,
}

/// What `table.rs` of `verdict` says about the packets between two addresses.
fn allows(state: &Decisions, direction: Direction, local: IpAddr, peer: IpAddr, port: u16) -> bool {
    if state.held.contains(&local) {
        return false;
    }
    let around = state.identities.iter().filter(|(net, _)| net.contains(&peer));
    let peer =
        around.max_by_key(|(net, _)| net.prefix_len()).map_or(Identity::WORLD, |(_, identity)| *identity);
    let is_of_packet = |part: &Part| match *part {
        Part::Port(protocol, other) => protocol == Protocol::UDP && other == port,
        Part::Range(protocol, first, last) => protocol == Protocol::UDP && (first..=last).contains(&port),
        Part::Protocol(protocol) => protocol == Protocol::UDP,
        Part::All => true,
    };
    let ours = |key: &Key| {
        (key.direction, key.local, key.peer) == (direction, local, peer) && is_of_packet(&key.part)
    };
    let narrowest = state.decisions.iter().filter(|(key, _)| ours(key)).min_by_key(|(key, _)| key.part);
    let word = narrowest.map(|(_, word)| word).or_else(|| state.defaults.get(&(direction, local)));
    word.is_none_or(|word| word.verdict == Verdict::Allow)
}

fn word(random: &mut Random) -> Word {
    let verdict = [Verdict::Allow, Verdict::Allow, Verdict::Deny, Verdict::Wide][random.below(4)];
    Word { verdict, log: verdict != Verdict::Wide && random.below(4) == 0 }
}

fn identity(random: &mut Random) -> Identity {
    Identity::new(IDENTITIES[random.below(4)]).unwrap()
}

fn random_state(random: &mut Random) -> Decisions {
    let mut state = Decisions::default();
    let addresses = || PODS.into_iter().flat_map(|(_, _, addresses)| addresses);
    for net in ["10.9.0.0/22", "10.9.0.0/23", "fd09::/16", "fd09:2::/32", "192.0.2.0/24", "192.0.3.0/24"] {
        // Prefixes are disjoint.
        let net: IpNet = net.parse().unwrap();
        if random.below(2) == 0
            && !state.identities.keys().any(|other| other.contains(&net) || net.contains(other))
        {
            state.identities.insert(net, identity(random));
        }
    }
    for address in addresses() {
        if random.below(4) > 0 {
            state.identities.insert(IpNet::from(ip(address)), identity(random));
        }
        if random.below(12) == 0 {
            state.held.insert(ip(address));
        }
        for direction in [Ingress, Egress] {
            if random.below(4) == 0 {
                continue;
            }
            state.defaults.insert((direction, ip(address)), word(random));
            for number in IDENTITIES {
                if random.below(2) == 0 {
                    continue;
                }
                let first = PORTS[random.below(3)];
                let parts = [
                    Part::Port(Protocol::UDP, PORTS[random.below(3)]),
                    Part::Port(Protocol::TCP, PORTS[random.below(3)]),
                    Part::Range(Protocol::UDP, first, first + random.below(2) as u16),
                    Part::Protocol([Protocol::UDP, Protocol::TCP][random.below(2)]),
                ];
                let parts = parts.into_iter().filter(|_| random.below(3) == 0).chain([Part::All]);
                for part in parts.collect::<Vec<_>>() {
                    state.decisions.insert(key(direction, address, number, part), word(random));
                }
            }
        }
    }
    state
}

/// What makes one state the other; everything is judged again.
fn between(old: &Decisions, new: &Decisions) -> Delta {
    let mut delta = Delta { tightens: true, ..Delta::default() };
    delta.identities = old.identities.keys().map(|net| (*net, None)).collect();
    delta.identities.extend(new.identities.iter().map(|(net, identity)| (*net, Some(*identity))));
    delta.decisions = old.decisions.keys().map(|key| (*key, None)).collect();
    delta.decisions.extend(new.decisions.iter().map(|(key, word)| (*key, Some(*word))));
    delta.defaults = old.defaults.keys().map(|key| (*key, None)).collect();
    delta.defaults.extend(new.defaults.iter().map(|(key, word)| (*key, Some(*word))));
    delta
}

/// All packets between different pods, of each family.
fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    for (from, _, sources) in PODS {
        for (to, _, destinations) in PODS {
            for (source, destination) in sources.into_iter().zip(destinations).filter(|_| from != to) {
                for port in PORTS {
                    let number = probes.len() as u8;
                    let socket = udp(Some(from), source, 2000 + u16::from(number));
                    probes.push(Probe { from: socket, to: (ip(destination), port), number });
                }
            }
        }
    }
    probes
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn random_decisions_let_pass_what_a_plain_reading_of_them_says() {
    const LAST: u8 = u8::MAX;
    let seed = 17;
    on_a_node(|| {
        let mut random = Random::new(seed);
        let mut policies = open();
        let probes = probes();
        let servers: Vec<UdpSocket> = PODS
            .into_iter()
            .flat_map(|(netns, _, addresses)| {
                addresses.map(|address| PORTS.map(|port| udp(Some(netns), address, port)))
            })
            .flatten()
            .collect();
        servers.iter().for_each(|server| server.set_read_timeout(Some(Duration::from_secs(10))).unwrap());
        let nodes = ["192.0.2.1", "2001:db8::1"].map(|address| udp(None, address, 0));
        let mut passed = [0; 2];
        for state in 0..STATES {
            let wanted = random_state(&mut random);
            policies.hold(&wanted.held, Instant::now()).unwrap();
            let delta = between(policies.current(), &wanted);
            let decided = policies.current().held.difference(&wanted.held).copied().collect();
            apply_deciding(&mut policies, &delta, &decided);
            assert_eq!(*policies.current(), wanted);
            for probe in &probes {
                probe.from.send_to(&[probe.number], probe.to).unwrap();
            }
            let mut arrived = BTreeSet::new();
            for server in &servers {
                // The node's packet passes always, and overtakes none.
                let address = server.local_addr().unwrap();
                nodes[usize::from(address.is_ipv6())].send_to(&[LAST], address).unwrap();
                let mut packet = [0];
                while server.recv_from(&mut packet).is_ok() && packet[0] != LAST {
                    arrived.insert(packet[0]);
                }
                assert_eq!(packet[0], LAST, "the node's packet did not arrive");
            }
            for probe in &probes {
                let (source, (destination, port)) = (probe.from.local_addr().unwrap().ip(), probe.to);
                let allowed = allows(&wanted, Egress, source, destination, port)
                    && allows(&wanted, Ingress, destination, source, port);
                let has_arrived = arrived.contains(&probe.number);
                assert_eq!(
                    has_arrived, allowed,
                    "seed {seed}, state {state}: {source} to {destination} port {port}: {wanted:#?}"
                );
                passed[usize::from(allowed)] += 1;
            }
        }
        assert!(passed.into_iter().all(|count| count > 300), "{passed:?}");
    });
}
