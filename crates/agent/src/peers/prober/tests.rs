use std::collections::BTreeSet;

use russet_overlay::{Encapsulation, desired};

use super::*;
use crate::peers::report::{PeerState, PeersReport};
use crate::peers::targets::tests::inputs;

/// A prober in a simulated network, in which nodes can be cut off.
struct Network {
    prober: Prober,
    now: Instant,
    began: Instant,
    tokens: u64,
    sent: Vec<Sending>,
    /// Addresses that do not answer.
    cut: BTreeSet<IpAddr>,
    /// The largest packet that arrives.
    carries_bytes: usize,
    /// The kernel refuses to send, with this error number.
    refuses: Option<i32>,
}

const INTERVAL: Duration = Duration::from_secs(5);

impl Network {
    fn new(nodes: u8, at_a_time: usize, seed: u64) -> Self {
        let now = Instant::now();
        let settings = ProbeSettings { interval: INTERVAL, at_a_time };
        let mut prober = Prober::new(settings, seed, 7, now);
        let mut inputs = inputs(nodes, Encapsulation::Vxlan, false);
        inputs.pools.retain(|pool| Family::of_net(&pool.cidr) == Family::V4);
        prober.set_targets(&Arc::new(Targets::new(&inputs, &desired(&inputs), 1450)));
        let (sent, cut) = (Vec::new(), BTreeSet::new());
        Self { prober, now, began: now, tokens: 0, sent, cut, carries_bytes: 9000, refuses: None }
    }

    /// Lets time pass; answers arrive at once.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let tokens = &mut self.tokens;
            let token = || {
                *tokens += 1;
                let mut token = [0; TOKEN_BYTES];
                token[..8].copy_from_slice(&tokens.to_be_bytes());
                token
            };
            for sending in self.prober.due(self.now, token) {
                self.sent.push(sending);
                if let Some(errno) = self.refuses {
                    self.prober.refused(&sending.id, errno, self.now);
                    continue;
                }
                if !self.cut.contains(&sending.to) && sending.packet_bytes <= self.carries_bytes {
                    assert!(self.prober.arrived(&reply(&sending), self.now));
                }
            }
            self.now = self.prober.next_at().clamp(self.now + Duration::from_millis(1), end);
        }
    }

    fn state(&self, node: &str) -> Option<Reached> {
        self.prober.states().find(|(name, ..)| name.as_str() == node).map(|(_, _, state)| state.reached)
    }

    fn report(&self) -> PeersReport {
        PeersReport::new(&self.prober, self.now)
    }
}

fn reply(sending: &Sending) -> Arrival {
    let answer = Some((sending.id, Answer::Echo { packet_bytes: sending.packet_bytes }));
    Arrival { from: sending.to, answer }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn three_lost_probes_in_a_row_make_a_node_unreachable_and_one_answer_ends_that() {
    let mut network = Network::new(4, 16, 1);
    network.run(INTERVAL * 4);
    assert_eq!(network.report().counts.reachable, 3);
    network.cut.insert(address("10.244.2.1"));
    network.run(INTERVAL * 2);
    assert_eq!(network.state("n2"), Some(Reached::Yes), "two may be lost");
    network.run(INTERVAL);
    assert_eq!(network.state("n2"), Some(Reached::No));
    let report = network.report();
    let first = &report.peers[0];
    assert_eq!((first.node.as_str(), first.state, first.lost), ("n2", PeerState::Unreachable, 3));
    assert_eq!(report.counts.reachable, 2);
    // Its own address was probed meanwhile, and that of no other node.
    let to_nodes: BTreeSet<IpAddr> = network
        .sent
        .iter()
        .map(|sending| sending.to)
        .filter(|to| to.to_string().starts_with("10.77."))
        .collect();
    assert_eq!(to_nodes, BTreeSet::from([address("10.77.0.3")]));
    let (_, _, state) = network.prober.states().find(|(name, ..)| name.as_str() == "n2").unwrap();
    assert_eq!(state.underlay, Some(true));
    network.cut.clear();
    network.run(INTERVAL * 2);
    assert_eq!(network.state("n2"), Some(Reached::Yes));
}

#[test]
fn what_a_node_sends_does_not_grow_with_the_cluster() {
    let sent = |nodes: u8| {
        let mut network = Network::new(nodes, 16, 3);
        network.run(INTERVAL * 100);
        let seconds = (network.now - network.began).as_secs_f64();
        let large = network.sent.iter().filter(|sending| sending.packet_bytes > 44).count();
        (network.sent.len() as f64 / seconds, large)
    };
    // 16 nodes in 5 s, and one large packet for each node, ever.
    let (rate, large) = sent(250);
    assert!(rate < 3.2 * 1.2 && large == 249, "{rate} a second, {large}");
    let (rate, large) = sent(17);
    assert!(rate > 3.0 && large == 16, "{rate} a second, {large}");
}

#[test]
fn the_probes_of_an_interval_are_spread_over_it() {
    let mut network = Network::new(60, 16, 3);
    network.run(INTERVAL);
    let before = network.sent.len();
    let tick = INTERVAL / 16;
    for _ in 0..16 {
        let sent = network.sent.len();
        network.run(tick);
        assert!(network.sent.len() - sent <= 4, "a node or two, with a small and a large probe each");
    }
    assert!(network.sent.len() > before);
    // A thread that was asleep for a minute does not catch up.
    network.now += Duration::from_secs(60);
    let sent = network.sent.len();
    network.run(Duration::from_millis(1));
    assert!(network.sent.len() - sent <= 2);
}

#[test]
fn only_the_right_answer_from_the_right_address_counts() {
    let mut network = Network::new(2, 4, 5);
    network.cut.insert(address("10.244.1.1"));
    network.run(Duration::from_millis(1));
    let sending = network.sent[0];
    let right = reply(&sending);
    let (now, prober) = (network.now, &mut network.prober);
    let changed = |id: EchoId| Arrival { answer: Some((id, right.answer.unwrap().1)), ..right };
    let id = sending.id;
    for wrong in [
        Arrival { answer: None, ..right },
        Arrival { from: address("10.244.1.2"), ..right },
        changed(EchoId { identifier: id.identifier ^ 1, ..id }),
        changed(EchoId { sequence: id.sequence ^ 1, ..id }),
        changed(EchoId { token: [9; TOKEN_BYTES], ..id }),
        Arrival { answer: Some((id, Answer::Echo { packet_bytes: 45 })), ..right },
    ] {
        assert!(!prober.arrived(&wrong, now), "{wrong:?}");
    }
    // An error explains and decides nothing.
    let error = Arrival { answer: Some((id, Answer::Error(PathError::Prohibited))), ..right };
    assert!(prober.arrived(&error, now));
    assert!(prober.arrived(&right, now));
    assert!(!prober.arrived(&right, now), "an answer counts once");
    assert_eq!(network.state("n1"), Some(Reached::Yes));
}

#[test]
fn random_arrivals_change_nothing() {
    let mut rng = russet_sync::Rng::new(42);
    let mut network = Network::new(3, 4, 5);
    for _ in 0..2000 {
        network.run(Duration::from_millis(50));
        let number = rng.next_u64();
        let known = network.sent[usize::try_from(number).unwrap_or(0) % network.sent.len()];
        // An answer to an earlier probe, or a guess with a wrong token.
        let token = std::array::from_fn(|_| rng.next_u64() as u8);
        let id = if number.is_multiple_of(2) { known.id } else { EchoId { token, ..known.id } };
        let answer = Some((id, Answer::Echo { packet_bytes: known.packet_bytes }));
        assert!(!network.prober.arrived(&Arrival { from: known.to, answer }, network.now));
    }
    assert_eq!(network.report().counts.reachable, 2);
}

#[test]
fn the_largest_packet_that_arrives_is_found_and_its_repair_is_seen() {
    let mut network = Network::new(3, 16, 1);
    network.carries_bytes = 1372;
    network.run(INTERVAL * 30);
    let report = network.report();
    assert_eq!(report.counts.small_packets_only, 2);
    let carries = report.peers[0].carries_bytes.unwrap();
    assert!((1364..=1372).contains(&carries), "{carries}");
    let reason = report.peers[0].reason.as_deref().unwrap();
    assert!(reason.contains("pods send up to 1450") && reason.contains("--mtu 13"), "{reason}");
    network.carries_bytes = 1500;
    network.run(INTERVAL * 8);
    assert_eq!(network.report().counts.reachable, 2);
    let large = |network: &Network| network.sent.iter().filter(|sending| sending.packet_bytes > 44).count();
    let before = large(&network);
    network.run(INTERVAL * 20);
    assert_eq!(large(&network), before, "nothing large is sent where everything fits");
}

#[test]
fn a_large_cluster_finds_its_unreachable_node_and_keeps_it() {
    let mut network = Network::new(200, 8, 11);
    network.cut.extend([address("10.244.77.1"), address("10.77.0.78")]);
    // Each node has three probes in its slot: 25 times eight nodes, and a few for the one that keeps a slot.
    network.run(INTERVAL * 3 * 32);
    assert_eq!(network.state("n77"), Some(Reached::No));
    assert!(network.prober.states().count() <= 9, "what is known of others is forgotten");
    network.cut.clear();
    network.run(INTERVAL * 2);
    assert_ne!(network.state("n77"), Some(Reached::No), "it has kept its slot");
}

#[test]
fn a_report_is_bounded_and_has_problems_first() {
    let mut network = Network::new(200, 200, 11);
    network.cut.insert(address("10.244.199.1"));
    network.run(INTERVAL * 6);
    let report = network.report();
    assert_eq!((report.known, report.counts.reachable, report.counts.unreachable), (199, 198, 1));
    assert_eq!(report.peers.len(), PeersReport::PEERS_MAX);
    assert_eq!(report.peers[0].node, "n199");
    assert!(serde_json::to_vec(&report).unwrap().len() < 32 * 1024);
}

#[test]
fn a_probe_that_the_kernel_refuses_is_lost_with_the_kernels_reason() {
    let mut network = Network::new(2, 4, 5);
    network.refuses = Some(1);
    network.run(INTERVAL * 3);
    let (_, _, state) = network.prober.states().next().unwrap();
    assert_eq!((state.reached, state.error), (Reached::No, Some(SendError::Own(1))));
}

#[test]
fn targets_that_change_are_judged_anew_and_others_keep_their_state() {
    let mut network = Network::new(4, 16, 1);
    network.run(INTERVAL * 4);
    let mut inputs = inputs(4, Encapsulation::Vxlan, false);
    inputs.pools.retain(|pool| Family::of_net(&pool.cidr) == Family::V4);
    let n2: NodeName = "n2".parse().unwrap();
    inputs.nodes.get_mut(&n2).unwrap().v4.underlay = Some("10.77.0.99/24".parse().unwrap());
    inputs.nodes.remove(&"n3".parse::<NodeName>().unwrap());
    network.prober.set_targets(&Arc::new(Targets::new(&inputs, &desired(&inputs), 1450)));
    assert_eq!(
        (network.state("n1"), network.state("n2"), network.state("n3")),
        (Some(Reached::Yes), None, None)
    );
}

#[test]
fn packets_are_counted_for_nodes_that_do_not_answer_and_are_probed_now() {
    let mut network = Network::new(60, 8, 3);
    network.run(INTERVAL * 3);
    assert_eq!(network.prober.uncertain(), BTreeMap::new());
    network.cut = (1..60).map(|n| address(&format!("10.244.{n}.1"))).collect();
    network.run(INTERVAL * 40);
    let uncertain = network.prober.uncertain();
    let unreachable = network.prober.states().filter(|(.., state)| state.reached == Reached::No).count();
    assert!(unreachable > uncertain.len(), "others wait for their turn: {unreachable}");
    assert!((1..=8).contains(&uncertain.len()), "{uncertain:?}");
    for ((name, family), ends) in &uncertain {
        assert!(network.prober.rotation.probed().any(|probed| probed == name));
        assert_eq!(*family, Family::V4);
        let n = name.as_str().trim_start_matches('n').parse::<u8>().unwrap();
        assert_eq!(ends.tunnel, address(&format!("10.244.{n}.1")));
        assert_eq!(ends.underlay, address(&format!("10.77.0.{}", n + 1)));
    }
    // However many are probed at a time.
    let mut network = Network::new(51, 50, 3);
    network.cut = (1..51).map(|n| address(&format!("10.244.{n}.1"))).collect();
    network.run(INTERVAL * 5);
    assert_eq!(network.prober.uncertain().len(), encapsulated::PEERS_MAX);
}

#[test]
fn what_was_counted_is_said_after_two_intervals_and_until_the_node_answers() {
    let mut network = Network::new(2, 16, 1);
    network.cut.insert(address("10.244.1.1"));
    network.run(INTERVAL * 4);
    let (key, _) = network.prober.uncertain().pop_first().unwrap();
    let counted = |for_s| Encapsulated { sent: 3, received: 0, decapsulated: 0, for_s };
    let said = |network: &mut Network, for_s| {
        network.prober.set_encapsulated(&BTreeMap::from([(key.clone(), counted(for_s))]));
        network.report().peers[0].encapsulated
    };
    assert_eq!(said(&mut network, 9), None);
    assert_eq!(said(&mut network, 10), Some(counted(10)));
    network.cut.clear();
    network.run(INTERVAL);
    assert_eq!(network.report().peers[0].encapsulated, None);
    assert!(network.prober.uncertain().is_empty());
}
