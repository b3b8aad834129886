//! Random policies have the same effect on flows that were open before as on new ones, and the effect that the
//! evaluator computes, packet by packet, with the fast path on, off, and flapping.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russet_addr::Family;
use russet_testkit::{Random, bound, eventually, let_pass};
use serde_json::{Value, json};

use super::{Pod, carried, record};
use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};

/// Pods by their names, which are also the values of their label `role`; two on each node.
const PODS: [&str; 4] = ["a", "b", "c", "d"];
const NODES: [&str; 2] = ["n1", "n2"];
/// Every pod answers at this port, TCP and UDP.
const PORT: u16 = 7007;
/// Known flows send from here on, with a port for each destination.
const KNOWN_PORT: u16 = 20_000;
/// A new flow has its answer in this time, or in the second or third attempt.
const FRESH: Duration = Duration::from_millis(150);
const ATTEMPTS: usize = 3;
/// After a policy has its effect on new flows, packets of known flows may pass for this long (P138).
const LATE: Duration = Duration::from_millis(100);
/// For how long it is watched what passes.
const WATCHED: Duration = Duration::from_millis(300);
/// The answer to a byte of a connection: longer than TCP's second retransmission.
const STREAM_ANSWER: Duration = Duration::from_secs(2);
/// States of policies with one setting of the fast path. `RUSSET_POLICY_STATES` sets another number.
const STATES: usize = 8;

/// From one pod to another, by their numbers.
type Pair = (usize, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Transport {
    Tcp,
    Udp,
}

/// One question of the matrix.
type Cell = (Pair, Transport);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    On,
    Off,
    /// Agents are killed and started while packets flow.
    Flapping,
}

/// What servers have received, by the client's address.
type Arrivals = Arc<Mutex<HashMap<(Transport, SocketAddr), u64>>>;

/// A flow that is open all the time: it sends, and counts answers.
struct Known {
    answers: Arc<AtomicU64>,
    /// How often the connection had to be made again.
    connects: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    from: SocketAddr,
}

struct World {
    /// Of all flows.
    family: Family,
    _fabric: Fabric,
    nodes: [TestNode; 2],
    pods: Vec<Pod>,
    arrivals: Arrivals,
    known: BTreeMap<Cell, Known>,
}

fn pairs() -> impl Iterator<Item = Pair> {
    let all = 0..PODS.len();
    all.clone().flat_map(move |from| all.clone().filter(move |to| *to != from).map(move |to| (from, to)))
}

fn cells() -> impl Iterator<Item = Cell> {
    pairs().flat_map(|pair| [(pair, Transport::Tcp), (pair, Transport::Udp)])
}

fn node_of(pod: usize) -> usize {
    pod / 2
}

fn address((pod, family): (&Pod, Family), port: u16) -> SocketAddr {
    SocketAddr::new(text_of(pod, family).parse::<IpAddr>().unwrap(), port)
}

fn text_of(pod: &Pod, family: Family) -> &str {
    if family == Family::V6 { &pod.v6 } else { &pod.v4 }
}

fn count(arrivals: &Arrivals, transport: Transport, from: SocketAddr) {
    *arrivals.lock().unwrap_or_else(PoisonError::into_inner).entry((transport, from)).or_default() += 1;
}

/// Answers every byte, until the pod is gone.
fn serve(pod: &Pod, family: Family, arrivals: &Arrivals) {
    let at = address((pod, family), PORT);
    let (datagrams, listener) =
        pod.within(move || (bound(|| UdpSocket::bind(at)), bound(|| TcpListener::bind(at))));
    let arrived = Arc::clone(arrivals);
    std::thread::spawn(move || {
        let mut byte = [0];
        while let Ok((_, from)) = datagrams.recv_from(&mut byte) {
            count(&arrived, Transport::Udp, from);
            let _ = datagrams.send_to(&byte, from);
        }
    });
    let arrived = Arc::clone(arrivals);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, arrived) = (stream.unwrap(), Arc::clone(&arrived));
            std::thread::spawn(move || {
                let (mut byte, from) = ([0], stream.peer_addr().unwrap());
                while stream.read_exact(&mut byte).is_ok() {
                    count(&arrived, Transport::Tcp, from);
                    if stream.write_all(&byte).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// Whether a flow that no packet was seen of has an answer.
fn fresh(client: &Pod, server: &Pod, family: Family, transport: Transport) -> bool {
    let (from, to) = (address((client, family), 0), address((server, family), PORT));
    client.within(move || match transport {
        Transport::Tcp => (0..ATTEMPTS).any(|_| TcpStream::connect_timeout(&to, FRESH).is_ok()),
        Transport::Udp => (0..ATTEMPTS).any(|_| {
            let socket = UdpSocket::bind(from).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(FRESH)).unwrap();
            socket.send(&[1]).is_ok() && socket.recv(&mut [0]).is_ok()
        }),
    })
}

// === impl Known ===

impl Known {
    fn start(client: &Pod, to: (usize, &Pod), family: Family, transport: Transport) -> Self {
        let port = KNOWN_PORT + u16::try_from(to.0).unwrap();
        let (from, to) = (address((client, family), port), address((to.1, family), PORT));
        let (answers, connects, stop) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let known = Self {
            answers: Arc::clone(&answers),
            connects: Arc::clone(&connects),
            stop: Arc::clone(&stop),
            from,
        };
        let netns = client.pod.netns_name.clone();
        std::thread::spawn(move || {
            let netns = russet_linux::NetNs::open_named(&netns).unwrap();
            let mut exchange: Box<dyn FnMut() -> bool + Send> = match transport {
                Transport::Udp => {
                    let socket = netns.run_in_thread(move || bound(|| UdpSocket::bind(from))).unwrap();
                    socket.connect(to).unwrap();
                    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                    Box::new(move || socket.send(&[1]).is_ok() && socket.recv(&mut [0]).is_ok())
                }
                Transport::Tcp => {
                    let mut stream = None;
                    Box::new(move || {
                        if stream.is_none() {
                            connects.fetch_add(1, Ordering::Relaxed);
                            let connect = move || TcpStream::connect_timeout(&to, FRESH);
                            stream = netns.run_in_thread(connect).unwrap().ok();
                        }
                        let answered = stream.as_mut().is_some_and(answers_a_byte);
                        stream.take_if(|_| !answered);
                        answered
                    })
                }
            };
            while !stop.load(Ordering::Relaxed) {
                answers.fetch_add(u64::from(exchange()), Ordering::Relaxed);
                let_pass(Duration::from_millis(2));
            }
        });
        known
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn answers_a_byte(stream: &mut TcpStream) -> bool {
    let mut byte = [1];
    stream.set_read_timeout(Some(STREAM_ANSWER)).is_ok()
        && stream.write_all(&byte).is_ok()
        && stream.read_exact(&mut byte).is_ok()
}

// === impl World ===

impl World {
    fn new(mode: Mode, family: Family) -> Self {
        let mut fabric = Fabric::new();
        let setting = if mode == Mode::Off { "off" } else { "require" };
        let mut nodes = NODES.map(|name| fabric.node(name, &["--fast-path", setting]));
        nodes.iter().for_each(|node| fabric.add_ipv6(node));
        nodes.iter_mut().for_each(TestNode::start_agent);
        let pods = PODS.iter().enumerate();
        let pods: Vec<_> = pods.map(|(number, name)| Pod::on(&mut nodes[node_of(number)], name)).collect();
        let arrivals = Arrivals::default();
        pods.iter().for_each(|pod| serve(pod, family, &arrivals));
        let world = Self { family, _fabric: fabric, nodes, pods, arrivals, known: BTreeMap::new() };
        let records = PODS
            .iter()
            .enumerate()
            .map(|(number, name)| record(&world.pods[number], NODES[node_of(number)], name));
        world.run("apply", records.collect());
        eventually(TIMEOUT, || cells().all(|cell| world.is_open_to_new(cell)));
        let known = cells().map(|cell @ ((from, to), transport)| {
            (cell, Known::start(&world.pods[from], (to, &world.pods[to]), family, transport))
        });
        let world = Self { known: known.collect(), ..world };
        // The first attempt of a connection may have met a machine that has other work.
        eventually(TIMEOUT, || world.known.values().all(|known| known.answers() > 0));
        world
    }

    fn run(&self, verb: &str, documents: Vec<Value>) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.nodes[0].root());
        let answer = self.nodes[0].output(&mut command, Value::from(documents).to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn is_open_to_new(&self, ((from, to), transport): Cell) -> bool {
        fresh(&self.pods[from], &self.pods[to], self.family, transport)
    }

    /// What new flows are allowed, each cell asked at the same time.
    fn new_flows(&self) -> BTreeMap<Cell, bool> {
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                cells().map(|cell| (cell, scope.spawn(move || self.is_open_to_new(cell)))).collect();
            asked.into_iter().map(|(cell, answer)| (cell, answer.join().unwrap())).collect()
        })
    }

    /// What the evaluator computes from the datastore.
    fn computed(&self) -> BTreeMap<Cell, bool> {
        let verdict = |cell: Cell| {
            let ((from, to), transport) = cell;
            let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
            let [from, to] = [from, to].map(|pod| text_of(&self.pods[pod], self.family));
            let port = PORT.to_string();
            let answer =
                self.nodes[0].russet_inside(&["explain", from, to, &port, "--proto", protocol, "-o", "json"]);
            // It exits with 3 where the answer is "denied".
            let found: Value =
                serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
            (cell, found["verdict"] == "allowed")
        };
        cells().map(verdict).collect()
    }

    fn arrivals(&self, cell: Cell) -> u64 {
        let arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.get(&(cell.1, self.known[&cell].from)).copied().unwrap_or_default()
    }

    /// Known flows have the fate of `allowed`: none that is denied has a packet delivered, and the
    /// others go on.
    fn assert_known(&self, allowed: &BTreeMap<Cell, bool>, origin: &str) {
        let denied = || allowed.iter().filter(|(_, allowed)| !**allowed).map(|(cell, _)| *cell);
        // A connection's own source port is chosen anew by each attempt, so that nothing at all may arrive.
        let delivered =
            || -> BTreeMap<Cell, u64> { denied().map(|cell| (cell, self.arrivals(cell))).collect() };
        let before = delivered();
        let answers: BTreeMap<Cell, u64> =
            self.known.iter().map(|(cell, it)| (*cell, it.answers())).collect();
        let_pass(WATCHED);
        assert_eq!(delivered(), before, "{origin}: packets of denied flows were delivered");
        for cell in denied().filter(|(_, transport)| *transport == Transport::Tcp) {
            assert_eq!(self.known[&cell].answers(), answers[&cell], "{origin}: {cell:?} is denied");
        }
        eventually(TIMEOUT, || {
            let mut open = allowed.iter().filter(|(_, allowed)| **allowed);
            open.all(|(cell, _)| self.known[cell].answers() > answers[cell])
        });
    }
}

/// One to three policies about the four pods.
fn policies(random: &mut Random) -> Vec<Value> {
    let selector = |random: &mut Random| {
        let role = *random.pick(&[&"a", &"b", &"c", &"d"]);
        match random.below(4) {
            0 => "all()".to_owned(),
            1 => format!("role != '{role}'"),
            2 => "role in {'a', 'c'}".to_owned(),
            _ => format!("role == '{role}'"),
        }
    };
    let rule = |random: &mut Random, side: &str| {
        let mut rule = json!({ "action": random.pick(&["Allow", "Deny"]) });
        if !random.once_in(3) {
            rule[side] = json!({ "selector": selector(random) });
        }
        if random.once_in(2) {
            rule["protocol"] = json!(random.pick(&["TCP", "UDP"]));
        }
        if rule["protocol"].is_string() && random.once_in(2) {
            rule["destination"]["ports"] = json!([*random.pick(&[&PORT, &9])]);
        }
        rule
    };
    (0..=random.below(3))
        .map(|number| {
            let selector = selector(random);
            let types: &[&str] = random.pick(&[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"]]);
            let mut spec = json!({ "selector": selector, "types": types, "order": random.below(3) });
            for (kind, member, side) in
                [("Ingress", "ingress", "source"), ("Egress", "egress", "destination")]
            {
                if types.contains(&kind) {
                    let rules: Vec<_> = (0..random.below(4)).map(|_| rule(random, side)).collect();
                    spec[member] = json!(rules);
                }
            }
            json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
                "metadata": { "name": format!("random-{number}") }, "spec": spec })
        })
        .collect()
}

fn states_have_equal_effects(mode: Mode, family: Family) {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, states) = (number("RUSSET_SEED", 19), number("RUSSET_POLICY_STATES", STATES as u64));
    let mut random = Random::new(seed);
    let mut world = World::new(mode, family);
    let mut allowed: BTreeMap<Cell, bool> = cells().map(|cell| (cell, true)).collect();
    let mut verdicts = [0_u64; 2];
    // A policy stays until a later state has another one of its name.
    let mut applied: BTreeMap<String, Value> = BTreeMap::new();
    for state in 0..states {
        let origin = format!("RUSSET_SEED={seed}, {mode:?}, {family:?}, state {state}");
        if mode == Mode::Flapping && random.once_in(2) {
            let node = random.below(2);
            world.nodes[node].kill_agent();
            world.assert_known(&allowed, &format!("{origin}, an agent is killed"));
            world.nodes[node].start_agent();
            world.assert_known(&allowed, &format!("{origin}, an agent is started"));
        }
        let connects: BTreeMap<Cell, u64> =
            world.known.iter().map(|(cell, it)| (*cell, it.connects.load(Ordering::Relaxed))).collect();
        let policies = policies(&mut random);
        world.run("apply", policies.clone());
        applied
            .extend(policies.iter().map(|policy| (policy["metadata"]["name"].to_string(), policy.clone())));
        let next = world.computed();
        eventually(TIMEOUT, || world.new_flows() == next);
        let_pass(LATE);
        world.assert_known(&next, &format!("{origin}: {}", Value::from(policies)));
        for (cell, known) in &world.known {
            let is_kept = allowed[cell] && next[cell];
            let connects_now = known.connects.load(Ordering::Relaxed);
            assert!(!is_kept || connects_now == connects[cell], "{origin}: {cell:?} was interrupted");
            verdicts[usize::from(next[cell])] += 1;
        }
        let open = next.iter().any(|((pair, _), allowed)| *allowed && node_of(pair.0) != node_of(pair.1));
        if open && mode != Mode::Off {
            let before = carried(&world.nodes[0]);
            eventually(TIMEOUT, || carried(&world.nodes[0]) > before + 20);
        }
        allowed = next;
        if random.once_in(3) {
            world.run("delete", std::mem::take(&mut applied).into_values().collect());
            allowed = cells().map(|cell| (cell, true)).collect();
            eventually(TIMEOUT, || world.new_flows() == allowed);
            world.assert_known(&allowed, &format!("{origin}, without policies"));
        }
    }
    println!("{mode:?}: {} cells were denied and {} allowed", verdicts[0], verdicts[1]);
    assert!(states < STATES as u64 || verdicts.iter().all(|count| *count > 0));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd"]
fn random_policies_have_equal_effects_on_known_and_new_flows_with_the_fast_path() {
    // policy.md P137, P138; section 4.4 (2)
    states_have_equal_effects(Mode::On, Family::V4);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd"]
fn random_policies_have_equal_effects_on_flows_of_ipv6_with_the_fast_path() {
    // policy.md P137, P138; section 4.4 (2)
    states_have_equal_effects(Mode::On, Family::V6);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd"]
fn random_policies_have_equal_effects_on_known_and_new_flows_without_the_fast_path() {
    // policy.md P137
    states_have_equal_effects(Mode::Off, Family::V4);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, BPF, TCX; tool: etcd"]
fn random_policies_have_equal_effects_while_the_fast_path_comes_and_goes() {
    // policy.md P137, P138
    states_have_equal_effects(Mode::Flapping, Family::V4);
}
