//! No packet passes that a policy denies: not at a pod's first instant, and not while the agent is
//! killed and started again. Where another program removes the table, packets pass until it is
//! restored, which is measured.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::{Random, eventually, let_pass};
use serde_json::json;

use super::policies::{POLICIES, create_policy, create_role};
use super::{Cluster, call};
use crate::node::{TIMEOUT, TestNode, TestPod};

/// As many pods start together, unless `RUSSET_POLICY_PODS` says otherwise.
const PODS: usize = 30;
/// As many requests run at a time, as kubelet's do.
const AT_ONCE: usize = 6;
/// As often the agent is killed, and another program removes tables.
const KILLS: usize = 3;
const REMOVALS: usize = 6;
/// How long denied packets may pass after another program removed the table (policy.md P124).
const RESTORED: Duration = Duration::from_secs(2);
/// What an agent logs.
const IN_FORCE: &str = "policies are in force";
const PORT: u16 = 5000;
/// The pause of the probes, as long as one round does not take longer.
const PERIOD: Duration = Duration::from_millis(1);
/// The addresses of a block.
const BLOCK: u8 = 64;
const SEED: u64 = 1029;

/// A socket in a pod's namespace, from before the pod has an address.
struct Socket {
    name: String,
    socket: UdpSocket,
    addresses: Vec<IpAddr>,
}

/// Sends datagrams between the peers, and between them and all subjects, and records what arrives.
struct Prober {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Two pods that no policy selects, on two nodes.
    peers: Vec<Socket>,
    /// Pods that a policy isolates in both directions.
    subjects: Mutex<Vec<Socket>>,
    /// Packets that no policy allows: when they arrived, and where.
    leaked: Mutex<Vec<(Instant, String)>>,
    /// Packets between the peers that arrived.
    controls: AtomicU64,
    /// Datagrams that subjects sent, and rounds of all sockets.
    sent: AtomicU64,
    rounds: AtomicU64,
    is_over: AtomicBool,
}

// === impl Socket ===

impl Socket {
    fn open(name: &str, pod: &TestPod, addresses: &[String]) -> Self {
        let netns = NetNs::open_named(&pod.netns_name).unwrap();
        let socket = netns.with(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Self { name: name.to_owned(), socket, addresses }
    }

    /// Sends a datagram; whether the pod's own kernel took it.
    fn send(&self, to: IpAddr) -> bool {
        self.socket.send_to(b"x", mapped(to)).is_ok()
    }

    /// The sources of what has arrived.
    fn received(&self) -> Vec<IpAddr> {
        std::iter::from_fn(|| self.socket.recv_from(&mut [0; 8]).ok())
            .map(|(_, from)| from.ip().to_canonical())
            .collect()
    }
}

/// The address as a socket of IPv6 takes it.
fn mapped(address: IpAddr) -> SocketAddr {
    let address = match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    (address, PORT).into()
}

// === impl Shared ===

impl Shared {
    fn leaked(&self) -> MutexGuard<'_, Vec<(Instant, String)>> {
        self.leaked.lock().unwrap()
    }

    /// The addresses of the first peer's block, of which new pods get theirs.
    fn block(&self) -> Vec<IpAddr> {
        let Some(IpAddr::V4(peer)) = self.peers[0].addresses.iter().copied().find(IpAddr::is_ipv4) else {
            panic!("the peer has no address of IPv4");
        };
        let [a, b, c, last] = peer.octets();
        let first = last - last % BLOCK;
        (first..first + BLOCK).filter(|it| *it != last).map(|it| [a, b, c, it].into()).collect()
    }

    fn run(&self) {
        let mut block = self.block().into_iter().cycle();
        let peers: BTreeSet<IpAddr> = self.peers.iter().flat_map(|peer| peer.addresses.clone()).collect();
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            self.round(&peers, &mut block);
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let_pass(PERIOD.saturating_sub(began.elapsed()));
        }
    }

    fn round(&self, peers: &BTreeSet<IpAddr>, block: &mut impl Iterator<Item = IpAddr>) {
        let subjects = self.subjects.lock().unwrap();
        for subject in subjects.iter() {
            let sent = peers.iter().filter(|peer| subject.send(**peer)).count();
            self.sent.fetch_add(sent as u64, Ordering::Relaxed);
        }
        for peer in &self.peers {
            peers.iter().for_each(|other| _ = peer.send(*other));
            for subject in subjects.iter() {
                subject.addresses.iter().for_each(|address| _ = peer.send(*address));
            }
        }
        // The address of a pod that is being attached is not known yet.
        block.take(usize::from(BLOCK) / 8).for_each(|address| _ = self.peers[0].send(address));
        for (index, socket) in self.peers.iter().chain(subjects.iter()).enumerate() {
            let is_peer = index < self.peers.len();
            for from in socket.received() {
                if is_peer && peers.contains(&from) {
                    self.controls.fetch_add(u64::from(!socket.addresses.contains(&from)), Ordering::Relaxed);
                } else {
                    self.leaked().push((Instant::now(), format!("{from} to {}", socket.name)));
                }
            }
        }
    }
}

// === impl Prober ===

impl Prober {
    fn start(peers: Vec<Socket>) -> Self {
        let shared = Arc::new(Shared {
            peers,
            subjects: Mutex::default(),
            leaked: Mutex::default(),
            controls: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let worker = Arc::clone(&shared);
        let thread = Some(std::thread::spawn(move || worker.run()));
        Self { shared, thread }
    }

    fn add(&self, subject: Socket) {
        self.shared.subjects.lock().unwrap().push(subject);
    }

    fn learn(&self, name: &str, addresses: &[String]) {
        let mut subjects = self.shared.subjects.lock().unwrap();
        let subject = subjects.iter_mut().find(|subject| subject.name == name).unwrap();
        subject.addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    }

    /// Waits until many more packets between the peers have arrived.
    fn goes_on(&self) {
        let wanted = self.shared.controls.load(Ordering::Relaxed) + 200;
        eventually(TIMEOUT, || self.shared.controls.load(Ordering::Relaxed) >= wanted);
    }

    #[track_caller]
    fn assert_is_tight(&self, when: &str) {
        self.goes_on();
        let leaked = self.shared.leaked().clone();
        assert!(leaked.is_empty(), "{when}: {} packets passed, such as {:?}", leaked.len(), leaked.first());
    }

    /// How long packets passed that were denied, since `began`; they do not any more.
    fn gap(&self, began: Instant) -> Duration {
        loop {
            let known = self.shared.leaked().len();
            self.goes_on();
            let mut leaked = self.shared.leaked();
            if leaked.len() == known {
                let last = leaked.iter().map(|(at, _)| at.saturating_duration_since(began)).max();
                leaked.clear();
                return last.unwrap_or_default();
            }
            assert!(began.elapsed() < TIMEOUT, "denied packets pass and pass");
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        assert!(ended || std::thread::panicking(), "the thread of the prober panicked");
    }
}

/// Pods that the policy isolates are attached at once, each with probes from before it has an
/// interface. A request that fails is repeated with a new sandbox, as kubelet does.
fn attach(cluster: &Cluster, node: &mut TestNode, prober: &Prober, names: &[String]) {
    names.iter().for_each(|name| create_role(cluster, "n1", name, "subject"));
    let pods: Vec<(&String, TestPod)> = names.iter().map(|name| (name, node.pod())).collect();
    pods.iter().for_each(|(name, pod)| prober.add(Socket::open(name, pod, &[])));
    let (node, queue) = (&*node, Mutex::new(pods.iter()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, pod)) = { queue.lock().unwrap().next() } {
                    let addresses = attach_one(node, name, pod);
                    prober.learn(name, &addresses);
                    cluster.report_running(name, &addresses);
                }
            });
        }
    });
}

fn attach_one(node: &TestNode, name: &str, pod: &TestPod) -> Vec<String> {
    let mut sandbox = pod.clone();
    let began = Instant::now();
    for attempt in 1.. {
        let answer = call(node, "ADD", &sandbox, name);
        if answer.status == 0 {
            return answer.addresses();
        }
        assert!(began.elapsed() < 3 * TIMEOUT, "{name}: {answer:?}\n{}", node.log());
        call(node, "DEL", &sandbox, name);
        sandbox.container = format!("{}-{attempt}", pod.container);
    }
    unreachable!("the loop ends by its assertion")
}

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}-{index}")).collect()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, nft"]
fn no_denied_packet_passes_at_the_start_of_pods_nor_while_the_agent_is_killed() {
    // policy.md P29, P121, P124
    let pods = std::env::var("RUSSET_POLICY_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(PODS);
    let mut cluster = Cluster::new();
    let (mut one, mut two) = (cluster.node("n1", &[]), cluster.node("n2", &[]));
    let peer = |cluster: &Cluster, node: &mut TestNode, at: &str, name: &str| {
        create_role(cluster, at, name, "peer");
        let pod = node.pod();
        let addresses = call(node, "ADD", &pod, name).addresses();
        cluster.report_running(name, &addresses);
        Socket::open(name, &pod, &addresses)
    };
    let near = peer(&cluster, &mut one, "n1", "near");
    let far = peer(&cluster, &mut two, "n2", "far");
    let isolated = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "default" },
        "spec": { "podSelector": { "matchLabels": { "role": "subject" } }, "policyTypes": ["Ingress", "Egress"] } });
    create_policy(&cluster, &isolated);
    eventually(TIMEOUT, || one.log().contains(IN_FORCE));
    let prober = Prober::start(vec![near, far]);
    prober.assert_is_tight("before there is a pod");

    let began = Instant::now();
    attach(&cluster, &mut one, &prober, &names("burst", pods));
    println!("{pods} pods attached in {:?}", began.elapsed());
    prober.assert_is_tight("while pods start");

    let mut random = Random::new(SEED);
    for kill in 0..KILLS {
        one.kill_agent();
        // Without an agent the plugin attaches by itself.
        attach(&cluster, &mut one, &prober, &names(&format!("alone-{kill}"), 2));
        prober.assert_is_tight(&format!("seed {SEED}, without an agent, round {kill}"));
        start_agent(&mut one);
        prober.assert_is_tight(&format!("seed {SEED}, after the agent's start, round {kill}"));
        kill_during_adds(&cluster, &mut one, &prober, kill, &mut random);
        start_agent(&mut one);
        prober.assert_is_tight(&format!("seed {SEED}, agent killed during requests, round {kill}"));
    }
    let gaps = removals(&one, &prober);
    println!("after removals of tables denied packets passed for at most {:?}: {gaps:?}", gaps.iter().max());
    assert!(gaps.iter().all(|gap| *gap < RESTORED), "{gaps:?}");
    report(&prober);

    // The probes see what they look for.
    cluster.with(|server| server.delete(&format!("{POLICIES}/deny")));
    eventually(TIMEOUT, || {
        let seen: BTreeSet<String> = prober.shared.leaked().iter().map(|(_, what)| what.clone()).collect();
        let subjects = prober.shared.subjects.lock().unwrap();
        subjects.iter().all(|subject| {
            let arrives = |to: &str| seen.contains(&format!("{} to {to}", subject.addresses[0]));
            arrives("near")
                && arrives("far")
                && seen.iter().any(|it| it.ends_with(&format!(" to {}", subject.name)))
        })
    });
}

/// Starts the agent, and waits until policies are in force.
fn start_agent(node: &mut TestNode) {
    let starts = |node: &TestNode| node.log().matches(IN_FORCE).count();
    let before = starts(node);
    node.start_agent();
    eventually(TIMEOUT, || starts(node) > before);
}

/// Kills the agent while it serves requests; the plugins that lose it, or that come later, go on
/// without.
fn kill_during_adds(
    cluster: &Cluster,
    node: &mut TestNode,
    prober: &Prober,
    round: usize,
    random: &mut Random,
) {
    let (pid, moment) = (node.agent_pid(), random.delay(Duration::from_millis(60)));
    let killer = std::thread::spawn(move || {
        let_pass(moment);
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    attach(cluster, node, prober, &names(&format!("killed-{round}"), 4));
    killer.join().unwrap();
    node.wait_for_agents_death();
}

/// Has another program remove tables while the agent runs; how long denied packets passed then.
fn removals(node: &TestNode, prober: &Prober) -> Vec<Duration> {
    let commands: [&[&str]; 2] = [&["flush", "ruleset"], &["delete", "table", "inet", "russet-decisions"]];
    let remove = |index: usize| {
        node.inside("nft", commands[index % commands.len()]);
        prober.gap(Instant::now())
    };
    (0..REMOVALS).map(remove).collect()
}

fn report(prober: &Prober) {
    let Shared { sent, rounds, controls, subjects, .. } = &*prober.shared;
    let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} pods sent {} datagrams in {} rounds; {} datagrams arrived that are allowed",
        subjects.lock().unwrap().len(),
        number(sent),
        number(rounds),
        number(controls)
    );
}
