//! One process: random operations, and a record of its addresses that it keeps as a plugin would.
//! After an assign with an unknown outcome it looks up its handle's addresses, or releases the
//! handle until that succeeds; a release is repeated until it succeeds.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_addr::{IpNet, Ipv4Net, Ipv6Net, NodeName};
use russet_ipam::{Allocator, Backoff, IpamError, ReleaseOptions, Request, SystemClock, delay};
use russet_model::HandleId;
use russet_store::BoxFuture;
use russet_store::sim::Rng;
use russet_store_etcd::Etcd;

use crate::expected_owners::ExpectedOwners;
use crate::observed::{Counts, Observed};

/// Twice as many addresses as all processes together want, in 64 blocks each: nodes claim, empty and borrow blocks.
pub const POOL_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 22);
pub const POOL_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 0), 118);
/// Fixed addresses at the end of each pool: few, so that many processes request the same.
const FIXED: u64 = 24;
/// Nodes of the cluster: most have two or three processes, as an agent beside a plugin, or an agent beside its predecessor.
const NODES: u64 = 8;
/// Most pods that one process has at a time.
const PODS_MAX: usize = 25;
/// How long the agent caches pools and settings.
const CACHE_AGE: Duration = Duration::from_secs(10);
/// Longest time for one operation with all its retries; elections take seconds, not minutes.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(90);

/// The parent's arguments.
pub struct Options {
    pub location: String,
    pub seed: u64,
    pub number: u64,
    pub operations: u64,
    pub pause_ms: u64,
    pub file: PathBuf,
}

struct Worker {
    options: Options,
    allocator: Allocator,
    counts: Rc<Counts>,
    node: NodeName,
    rng: Rng,
    expected_owners: ExpectedOwners,
    pods: u64,
}

/// Pauses between attempts, as the agent does.
struct Pause(std::cell::RefCell<Rng>);

impl Backoff for Pause {
    fn wait(&self, attempt: u32) -> BoxFuture<'_, ()> {
        let random = self.0.borrow_mut().next_u64();
        Box::pin(tokio::time::sleep(delay(attempt, random)))
    }
}

/// Does its operations and writes down what it believes.
pub async fn run(options: Options) {
    let mut worker = Worker::new(options);
    for _ in 0..worker.options.operations {
        let pause = worker.rng.below(worker.options.pause_ms + 1);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        worker.operation().await;
    }
    let tally = &mut worker.expected_owners.tally;
    (tally.commits_unknown, tally.races_lost) = (worker.counts.unknown.get(), worker.counts.lost_races.get());
    worker.expected_owners.write(&worker.options.file).unwrap();
}

// === impl Options ===

impl Options {
    /// `LOCATION SEED NUMBER OPERATIONS PAUSE_MS FILE`.
    pub fn parse(arguments: &str) -> Self {
        let words: Vec<&str> = arguments.split(' ').collect();
        let [location, numbers @ .., file] = words.as_slice() else { panic!("{arguments}") };
        let [seed, number, operations, pause_ms] = [0, 1, 2, 3].map(|at| numbers[at].parse().unwrap());
        Self { location: (*location).to_owned(), seed, number, operations, pause_ms, file: file.into() }
    }
}

// === impl Worker ===

impl Worker {
    fn new(options: Options) -> Self {
        let store = Rc::new(Observed::new(Etcd::connect(options.location.parse().unwrap()).unwrap()));
        let counts = store.counts.clone();
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(options.number);
        let pause = Rc::new(Pause(Rng::new(!seed).into()));
        let allocator = Allocator::new(store, Rc::new(SystemClock)).with_backoff(pause);
        // Every other one remembers, as agents do; the others are plugins and commands.
        let allocator =
            if options.number.is_multiple_of(2) { allocator } else { allocator.with_cache(CACHE_AGE) };
        let node = NodeName::new(format!("node-{}", options.number % NODES)).unwrap();
        let rng = Rng::new(seed);
        let expected_owners = ExpectedOwners::default();
        Self { options, allocator, counts, node, rng, expected_owners, pods: 0 }
    }

    async fn operation(&mut self) {
        let pods = self.expected_owners.owned.len();
        let drawn = self.rng.below(100);
        match drawn {
            _ if pods >= PODS_MAX => self.release_handle().await,
            0..40 => self.assign(None).await,
            40..55 => {
                let address = self.fixed();
                self.assign(Some(address)).await
            }
            _ if pods == 0 => self.assign(None).await,
            55..60 => self.repeat().await,
            60..80 => self.release_handle().await,
            _ => self.release_address().await,
        }
    }

    /// One of the addresses that everybody wants.
    fn fixed(&mut self) -> IpAddr {
        let number = self.rng.below(FIXED);
        match self.rng.below(2) {
            0 => IpAddr::V4(Ipv4Addr::from(u32::from(POOL_V4.broadcast()) - number as u32)),
            _ => IpAddr::V6(Ipv6Addr::from(u128::from(POOL_V6.broadcast()) - u128::from(number))),
        }
    }

    // === assigning ===

    async fn assign(&mut self, fixed: Option<IpAddr>) {
        self.pods += 1;
        let handle = HandleId::new(format!("load.{}-{}", self.options.number, self.pods)).unwrap();
        let (v4, v6) = [(1, 0), (1, 1), (0, 1), (1, 1)][self.rng.below(4) as usize];
        let request = Request { v4, v6, ..self.request(&handle) };
        let result = match fixed {
            Some(address) => self.allocator.assign_ip(&request, address).await,
            None => self.allocator.auto_assign(&request).await,
        };
        match result {
            Ok(assigned) => {
                self.expected_owners.tally.assigned += 1;
                self.own(&handle, &assigned.addresses);
            }
            Err(error @ IpamError::AlreadyAssigned { .. }) if fixed.is_some() => {
                self.note(&handle, &format!("refused: {error}"));
                self.expected_owners.tally.taken += 1;
            }
            Err(error) => self.after_failure(&handle, error).await,
        }
    }

    fn request(&self, handle: &HandleId) -> Request {
        Request::pod(self.node.clone(), handle.clone())
            .with("interface", "eth0")
            .with("pod", handle.to_string())
    }

    /// The plugin's rule: whether something is held is asked of the store; or a DEL follows, as runtimes do after a failed ADD.
    async fn after_failure(&mut self, handle: &HandleId, error: IpamError) {
        self.expect("assign", &error);
        self.note(handle, &format!("failed: {error}"));
        if self.rng.below(2) == 0 {
            return self.release_until_answered(handle).await;
        }
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let held = loop {
            match self.allocator.ips_by_handle(handle).await {
                Ok(held) => break held,
                Err(error) => self.retry("look up", handle, error, deadline),
            }
        };
        let addresses: Vec<IpNet> = held.iter().map(|held| IpNet::from(held.address)).collect();
        self.own(handle, &addresses);
    }

    /// A second ADD of the same pod gives it what it has.
    async fn repeat(&mut self) {
        let Some((handle, addresses)) = self.random_pod() else { return };
        let count = |v4: bool| addresses.iter().filter(|address| address.is_ipv4() == v4).count() as u32;
        let request = Request { v4: count(true), v6: count(false), ..self.request(&handle) };
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let assigned = loop {
            match self.allocator.auto_assign(&request).await {
                Ok(assigned) => break assigned,
                Err(error) => self.retry("repeat", &handle, error, deadline),
            }
        };
        self.expected_owners.tally.repeated += 1;
        let given: BTreeSet<IpAddr> = assigned.addresses.iter().map(IpNet::addr).collect();
        assert_eq!(given, addresses, "{handle}: a repeated ADD gives other addresses");
    }

    // === releasing ===

    async fn release_handle(&mut self) {
        let Some((handle, _)) = self.random_pod() else { return };
        self.expected_owners.tally.released += 1;
        self.release_until_answered(&handle).await
    }

    async fn release_until_answered(&mut self, handle: &HandleId) {
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        loop {
            match self.allocator.release_by_handle(handle, None).await {
                Ok(released) => {
                    self.note(handle, &format!("released {:?}", released.addresses));
                    self.expected_owners.owned.remove(handle.as_str());
                    return;
                }
                Err(error) => self.retry("release", handle, error, deadline),
            }
        }
    }

    async fn release_address(&mut self) {
        let Some((handle, addresses)) = self.random_pod() else { return };
        let Some(&address) = addresses.iter().nth(self.rng.below(addresses.len() as u64) as usize) else {
            return self.release_until_answered(&handle).await;
        };
        self.expected_owners.tally.released += 1;
        let options = ReleaseOptions { address, handle: Some(handle.clone()), sequence_number: None };
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let mut doubt = false;
        loop {
            match self.allocator.release_ips(std::slice::from_ref(&options)).await {
                Ok(released) => {
                    self.note(&handle, &format!("gave back {address}: {released:?}"));
                    break;
                }
                // The first try had worked, and another process has the address by now.
                Err(IpamError::BadHandle { .. }) if doubt => break,
                Err(error) => {
                    self.retry("give back", &handle, error, deadline);
                    doubt = true;
                }
            }
        }
        let left = self.expected_owners.owned.get_mut(handle.as_str());
        if left.is_some_and(|left| left.remove(&address) && left.is_empty()) {
            self.expected_owners.owned.remove(handle.as_str());
        }
    }

    // === memory ===

    fn random_pod(&mut self) -> Option<(HandleId, BTreeSet<IpAddr>)> {
        let pods = self.expected_owners.owned.len() as u64;
        let index = if pods == 0 { 0 } else { self.rng.below(pods) };
        let (handle, addresses) = self.expected_owners.owned.iter().nth(index as usize)?;
        Some((HandleId::new(handle.clone()).ok()?, addresses.clone()))
    }

    fn own(&mut self, handle: &HandleId, addresses: &[IpNet]) {
        self.note(handle, &format!("has {addresses:?}"));
        if !addresses.is_empty() {
            self.expected_owners
                .owned
                .insert(handle.to_string(), addresses.iter().map(IpNet::addr).collect());
        }
    }

    /// A log line for the analysis of a fault.
    fn note(&self, handle: &HandleId, what: &str) {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        eprintln!("{}.{:06} {} {handle} {what}", now.as_secs(), now.subsec_micros(), self.node);
    }

    /// Counts an error that a living cluster may give; any other ends the run.
    fn expect(&mut self, operation: &str, error: &IpamError) {
        match error {
            IpamError::Store { source, .. } if source.outcome_unknown() => {
                self.expected_owners.tally.unknown += 1
            }
            IpamError::Store { source, .. } if source.retryable() => {
                self.expected_owners.tally.unavailable += 1
            }
            IpamError::Contended { .. } => self.expected_owners.tally.unavailable += 1,
            error => panic!("{operation}: {error}"),
        }
    }

    /// After a failure of what must be repeated.
    fn retry(&mut self, operation: &str, handle: &HandleId, error: IpamError, deadline: Instant) {
        self.expect(operation, &error);
        self.note(handle, &format!("{operation} failed: {error}"));
        let timeout = OPERATION_TIMEOUT;
        assert!(Instant::now() < deadline, "{operation} {handle}: no answer within {timeout:?}: {error}");
    }
}
