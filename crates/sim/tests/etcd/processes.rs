//! Many processes assign and release addresses in one real etcd cluster, whose members are killed
//! one after another; at the end no address may have two owners (docs/testing.md).
//!
//! The simulator generates every interleaving that a model of a store allows; this test shows the
//! same rules on the real one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};

use russet_ipam::{Allocator, SystemClock};
use russet_model::{IpPool, IpPoolSpec, Prefix};
use russet_store::sim::Rng;
use russet_store::{Record, Store};
use russet_store_etcd::Etcd;
use russet_testkit::Process;
use russet_testkit::etcd::{Cluster, Member};

use crate::expected_owners::{ExpectedOwners, Tally};
use crate::ownership_check;
use crate::worker::{self, POOL_V4, POOL_V6};

/// How many members there are.
const MEMBERS: usize = 3;
/// From one kill to the next.
const KILL_EVERY: Duration = Duration::from_secs(5);
/// How long a member is down.
const AWAY: Duration = Duration::from_millis(2_500);
/// The interval at which the children are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Prefix lengths of blocks: small ones, so that many are claimed, emptied and borrowed from.
const BLOCK_V4: u8 = 28;
const BLOCK_V6: u8 = 124;
/// How many lines of the children's logs are printed with a fault.
const LINES_MAX: usize = 40;
const PROCESSES: u64 = 20;
/// Operations of all processes together, unless [`OPERATIONS_VARIABLE`] says otherwise.
const OPERATIONS: u64 = 5_000;
/// The longest pause before an operation. So 5,000 operations by 20 processes last 30 s to a
/// minute: long enough for several kills.
const PAUSE_MS: u64 = 60;

/// Decides what each process tries, not when: the same seed need not meet the same race.
const SEED_VARIABLE: &str = "RUSSET_SEED";
const OPERATIONS_VARIABLE: &str = "RUSSET_OPERATIONS";
/// The arguments of a child, which is this test again.
const WORKER_VARIABLE: &str = "RUSSET_TEST_WORKER";
const NAME: &str = "processes::twenty_processes_on_one_etcd_whose_members_are_killed_share_no_address";

/// A process and where it writes.
struct Worker {
    number: u64,
    process: Process,
    expected_owners: PathBuf,
    log: PathBuf,
}

/// Kills one member after another; at most one is away at a time, so that a majority stays.
struct Killer {
    rng: Rng,
    next: Instant,
    away: Option<(usize, Instant)>,
    kills: u64,
    leaders: u64,
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn twenty_processes_on_one_etcd_whose_members_are_killed_share_no_address() {
    // ARCHITECTURE.md, invariants 1 and 2; the seed is printed, and RUSSET_SEED repeats it.
    if let Ok(arguments) = std::env::var(WORKER_VARIABLE) {
        return worker::run(worker::Options::parse(&arguments)).await;
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = number(SEED_VARIABLE).unwrap_or(u64::from(now.subsec_nanos()));
    let operations = number(OPERATIONS_VARIABLE).unwrap_or(OPERATIONS);
    println!("seed {seed}");
    let mut cluster = Cluster::start(MEMBERS, "http", |_| Vec::new(), Vec::new());
    let store = Rc::new(Etcd::connect(cluster.location().parse().unwrap()).unwrap());
    create_pools(store.clone()).await;
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut workers: Vec<Worker> = (0..PROCESSES)
        .map(|number| Worker::start(number, seed, operations, &cluster.location(), directory.path()))
        .collect();
    let mut killer = Killer::new(seed, began);
    while workers.iter_mut().any(|worker| worker.process.has_ended().is_none()) {
        killer.look(&mut cluster);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    killer.finish(&mut cluster);
    let elapsed = began.elapsed();
    let expected_owners: Vec<_> = workers.iter_mut().map(Worker::expected_owners).collect();
    let mut total = Tally::default();
    expected_owners.iter().for_each(|expected_owners| total += expected_owners.tally);
    let owned: usize =
        expected_owners.iter().flat_map(|owners| owners.owned.values()).map(|set| set.len()).sum();
    println!(
        "{PROCESSES} processes, {operations} operations in {:.1} s: {total}; {} members killed, {} of them the \
         leader; {owned} addresses owned at the end",
        elapsed.as_secs_f64(),
        killer.kills,
        killer.leaders,
    );
    let faults = ownership_check::faults(&records(&store).await, &expected_owners);
    assert!(
        faults.is_empty(),
        "{} faults, seed {seed}:\n{}",
        faults.len(),
        explained(faults, &workers).join("\n")
    );
    assert!(killer.kills >= 4, "a run in which little was killed proves little");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| u64::from_str(&text).expect(variable))
}

async fn create_pools(store: Rc<Etcd>) {
    let allocator = Allocator::new(store, Rc::new(SystemClock));
    for (name, cidr, block_size) in [("v4", POOL_V4.into(), BLOCK_V4), ("v6", POOL_V6.into(), BLOCK_V6)] {
        let mut spec = IpPoolSpec::new(cidr);
        spec.block_size = Some(block_size);
        allocator.create_pool(IpPool::new(name, spec)).await.unwrap();
    }
}

/// Pools and everything of the allocator, the latter at one revision.
async fn records(store: &Etcd) -> Vec<Record> {
    let mut records = store.list(&Prefix::pools()).await.unwrap().records;
    records.extend(store.list(&Prefix::from_stored("/calico/ipam/v2/")).await.unwrap().records);
    records
}

/// The faults, and the log lines of the processes about the addresses and handles in the first of
/// them.
fn explained(mut faults: Vec<String>, workers: &[Worker]) -> Vec<String> {
    let first = faults[0].clone();
    let words: Vec<&str> = first.split([' ', ':', ',']).filter(|word| word.contains(['.', ':'])).collect();
    for worker in workers {
        let log = worker.log();
        let telling = log.lines().filter(|line| words.iter().any(|word| line.contains(word)));
        faults.extend(telling.take(LINES_MAX).map(|line| format!("  process {}: {line}", worker.number)));
    }
    faults
}

// === impl Worker ===

impl Worker {
    fn start(number: u64, seed: u64, operations: u64, location: &str, directory: &Path) -> Self {
        let path = |ending: &str| directory.join(format!("{number}.{ending}"));
        let (expected_owners, log) = (path("json"), path("log"));
        let each = operations.div_ceil(PROCESSES);
        let count = each.min(operations.saturating_sub(number * each));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--include-ignored", "--nocapture"]);
        let file = expected_owners.display();
        command.env(WORKER_VARIABLE, format!("{location} {seed} {number} {count} {PAUSE_MS} {file}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Self { number, process: Process::start(&mut command), expected_owners, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its record, once it has ended successfully.
    fn expected_owners(&mut self) -> ExpectedOwners {
        let status = self.process.wait().unwrap();
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
        assert!(status.success(), "process {} failed; the end of its log:\n{end}", self.number);
        ExpectedOwners::read(&self.expected_owners).unwrap()
    }
}

// === impl Killer ===

impl Killer {
    fn new(seed: u64, now: Instant) -> Self {
        Self { rng: Rng::new(seed ^ 0x6b69_6c6c), next: now + KILL_EVERY, away: None, kills: 0, leaders: 0 }
    }

    /// Kills or brings back a member when it is time.
    fn look(&mut self, cluster: &mut Cluster) {
        let now = Instant::now();
        match self.away {
            Some((member, until)) if now >= until => {
                cluster.members[member].start();
                self.away = None;
            }
            None if now >= self.next => {
                // It must serve again before the next one is killed.
                cluster.wait();
                self.kill(cluster);
            }
            _ => {}
        }
    }

    /// Every other time the leader, else anyone.
    fn kill(&mut self, cluster: &mut Cluster) {
        let leader = cluster.members.iter().position(leads);
        let anyone = self.rng.below(MEMBERS as u64) as usize;
        let member = leader.filter(|_| self.kills.is_multiple_of(2)).unwrap_or(anyone);
        cluster.members[member].kill();
        self.kills += 1;
        self.leaders += u64::from(leader == Some(member));
        let now = Instant::now();
        self.away = Some((member, now + AWAY));
        self.next = now + KILL_EVERY;
    }

    fn finish(&mut self, cluster: &mut Cluster) {
        if let Some((member, _)) = self.away.take() {
            cluster.members[member].start();
        }
        cluster.wait();
    }
}

/// Whether a member says that it leads.
fn leads(member: &Member) -> bool {
    let Some(status) = member.try_etcdctl(&["endpoint", "status", "--write-out=json"]) else { return false };
    let Ok(status) = serde_json::from_str::<serde_json::Value>(&status) else { return false };
    let status = &status[0]["Status"];
    !status["leader"].is_null() && status["leader"] == status["header"]["member_id"]
}
