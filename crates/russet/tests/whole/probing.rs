//! Datagrams in both directions between pods that policies isolate and pods that none selects, about a thousand times a second and from before a pod has an
//! interface: whether any of them arrives.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::{bound, eventually, let_pass};

use crate::node::{TIMEOUT, TestPod};

const PORT: u16 = 5000;
/// The pause of the probes, as long as one round does not take longer.
const PERIOD: Duration = Duration::from_millis(1);
/// The addresses of a block.
const BLOCK: u8 = 64;

/// A socket in a pod's namespace, from before the pod has an address.
pub struct Socket {
    name: String,
    socket: UdpSocket,
    addresses: Vec<IpAddr>,
}

/// Sends datagrams between the peers, and between them and all subjects, and records what arrives.
pub struct Prober {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

struct Shared {
    /// Pods that no policy selects, on two nodes.
    peers: Vec<Socket>,
    /// Pods that a policy isolates in both directions.
    subjects: Mutex<Vec<Socket>>,
    /// Packets that no policy allows: when they arrived, and where.
    leaked: Mutex<Vec<(Instant, String)>>,
    /// Packets between the peers that arrived.
    controls: AtomicU64,
    /// Datagrams that subjects sent, rounds of all sockets, and the time of the longest round in microseconds.
    sent: AtomicU64,
    rounds: AtomicU64,
    longest_us: AtomicU64,
    is_over: AtomicBool,
}

// === impl Socket ===

impl Socket {
    pub fn open(name: &str, pod: &TestPod, addresses: &[String]) -> Self {
        let netns = NetNs::open_named(&pod.netns_name).unwrap();
        let socket = netns.with(|| bound(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)))).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { name: name.to_owned(), socket, addresses: parsed(addresses) }
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

fn parsed(addresses: &[String]) -> Vec<IpAddr> {
    addresses.iter().map(|text| text.parse().unwrap()).collect()
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

    fn subjects(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.subjects.lock().unwrap()
    }

    /// The addresses of the first peer's block, of which new pods get theirs.
    fn block(&self) -> Vec<IpAddr> {
        let Some(IpAddr::V4(peer)) = self.peers[0].addresses.iter().copied().find(IpAddr::is_ipv4) else {
            panic!("the peer has no address of IPv4");
        };
        let [a, b, c, last] = peer.octets();
        let first = last - last % BLOCK;
        (0..BLOCK).map(|it| first + it).filter(|it| *it != last).map(|it| [a, b, c, it].into()).collect()
    }

    fn run(&self) {
        let mut block = self.block().into_iter().cycle();
        let peers: BTreeSet<IpAddr> = self.peers.iter().flat_map(|peer| peer.addresses.clone()).collect();
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            self.round(&peers, &mut block);
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let_pass(PERIOD.saturating_sub(began.elapsed()));
            let took_us = u64::try_from(began.elapsed().as_micros()).unwrap();
            self.longest_us.fetch_max(took_us, Ordering::Relaxed);
        }
    }

    fn round(&self, peers: &BTreeSet<IpAddr>, block: &mut impl Iterator<Item = IpAddr>) {
        let subjects = self.subjects();
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
    pub fn start(peers: Vec<Socket>) -> Self {
        let shared = Arc::new(Shared {
            peers,
            subjects: Mutex::default(),
            leaked: Mutex::default(),
            controls: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let worker = Arc::clone(&shared);
        let thread = Some(std::thread::spawn(move || worker.run()));
        Self { shared, thread, began: Instant::now() }
    }

    pub fn add(&self, subject: Socket) {
        self.shared.subjects().push(subject);
    }

    /// Replaces the addresses of a subject.
    pub fn learn(&self, name: &str, addresses: &[String]) {
        let mut subjects = self.shared.subjects();
        let subject = subjects.iter_mut().find(|subject| subject.name == name).unwrap();
        subject.addresses = parsed(addresses);
    }

    /// Waits until many more packets between the peers have arrived.
    fn goes_on(&self) {
        let wanted = self.shared.controls.load(Ordering::Relaxed) + 200;
        eventually(TIMEOUT, || self.shared.controls.load(Ordering::Relaxed) >= wanted);
    }

    #[track_caller]
    pub fn assert_is_tight(&self, when: &str) {
        self.goes_on();
        let leaked = self.shared.leaked().clone();
        assert!(leaked.is_empty(), "{when}: {} packets passed, such as {:?}", leaked.len(), leaked.first());
    }

    /// How long packets passed that were denied, since `began`; they do not any more.
    pub fn gap(&self, began: Instant) -> Duration {
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

    /// Waits until packets of all subjects arrive at all peers, and packets for each of them: the probes see what they look for. No policy denies anything any more.
    pub fn assert_sees_all(&self) {
        eventually(TIMEOUT, || {
            let seen: BTreeSet<String> = self.shared.leaked().iter().map(|(_, what)| what.clone()).collect();
            let subjects = self.shared.subjects();
            subjects.iter().all(|subject| {
                let arrives =
                    |to: &Socket| seen.contains(&format!("{} to {}", subject.addresses[0], to.name));
                self.shared.peers.iter().all(arrives)
                    && seen.iter().any(|it| it.ends_with(&format!(" to {}", subject.name)))
            })
        });
    }

    pub fn report(&self) {
        let Shared { sent, rounds, controls, longest_us, .. } = &*self.shared;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mean_ms = self.began.elapsed().as_secs_f64() * 1e3 / number(rounds).max(1) as f64;
        println!(
            "{} pods sent {} datagrams in {} rounds of {mean_ms:.2} ms, at most {:.1} ms; {} datagrams arrived that are allowed",
            self.shared.subjects().len(),
            number(sent),
            number(rounds),
            number(longest_us) as f64 / 1e3,
            number(controls)
        );
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        assert!(ended || std::thread::panicking(), "the thread of the prober panicked");
    }
}
