//! The parent: starts a cluster and processes, kills members, and checks the result.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_ipam::{Allocator, SystemClock};
use russet_model::{IpPool, IpPoolSpec, Prefix};
use russet_store::sim::Rng;
use russet_store::{Record, Store};
use russet_store_etcd::Etcd;
use russet_testkit::etcd::{Cluster, Member};

use crate::expected_owners::{ExpectedOwners, Tally};
use crate::ownership_check;
use crate::worker::{POOL_V4, POOL_V6};

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

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decides what each process tries.
    pub seed: u64,
    /// How many processes.
    pub processes: u64,
    /// How many operations all of them do together.
    pub operations: u64,
    /// The longest pause before an operation. With 60, 5,000 operations by 20 processes last 30 s to a minute: long enough for several kills.
    pub pause_ms: u64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
    #[error("the location of the cluster: {0}")]
    Location(#[from] russet_store_etcd::SettingsError),
    #[error("create the pools: {0}")]
    Pools(#[from] russet_ipam::IpamError),
    #[error("read the store: {0}")]
    Store(#[from] russet_store::StoreError),
    #[error("process {0} failed; the end of its log:\n{1}")]
    Process(u64, String),
    #[error("{} faults, seed {seed}:\n{}", faults.len(), faults.join("\n"))]
    Faults { seed: u64, faults: Vec<String> },
}

/// A process and where it writes.
struct Worker {
    number: u64,
    child: Child,
    expected_owners: PathBuf,
    log: PathBuf,
}

/// Kills one member after another; at most one is away at a time, so that a majority stays.
struct Killer {
    chance: Rng,
    next: Instant,
    away: Option<(usize, Instant)>,
    kills: u64,
    leaders: u64,
}

/// Runs the swarm; prints what happened.
pub async fn run(options: &Options) -> Result<(), Failed> {
    println!("seed {}", options.seed);
    let mut cluster = Cluster::start(MEMBERS, "http", |_| Vec::new(), Vec::new());
    let store = Rc::new(Etcd::connect(cluster.location().parse()?)?);
    create_pools(store.clone()).await?;
    let directory = tempfile::tempdir().map_err(|error| Failed::Io("make a directory", error))?;
    let began = Instant::now();
    let mut workers = start(options, &cluster.location(), directory.path())?;
    let mut killer = Killer::new(options.seed, began);
    // Dropping what is left ends it, on every way out.
    while workers.iter_mut().any(Worker::runs) {
        killer.look(&mut cluster);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    killer.finish(&mut cluster);
    let elapsed = began.elapsed();
    let expected_owners = workers.iter_mut().map(Worker::expected_owners).collect::<Result<Vec<_>, _>>()?;
    let records = records(&store).await?;
    let faults = ownership_check::faults(&records, &expected_owners);
    let mut total = Tally::default();
    expected_owners.iter().for_each(|expected_owners| total += expected_owners.tally);
    let owned: usize = expected_owners
        .iter()
        .flat_map(|expected_owners| expected_owners.owned.values())
        .map(|set| set.len())
        .sum();
    println!(
        "{} processes, {} operations in {:.1} s: {total}; {} members killed, {} of them the leader; {owned} addresses owned at the end",
        options.processes,
        options.operations,
        elapsed.as_secs_f64(),
        killer.kills,
        killer.leaders,
    );
    if faults.is_empty() {
        return Ok(());
    }
    Err(Failed::Faults { seed: options.seed, faults: explained(faults, &workers) })
}

async fn create_pools(store: Rc<Etcd>) -> Result<(), Failed> {
    let allocator = Allocator::new(store, Rc::new(SystemClock));
    for (name, cidr, block_size) in [("v4", POOL_V4.into(), BLOCK_V4), ("v6", POOL_V6.into(), BLOCK_V6)] {
        let mut spec = IpPoolSpec::new(cidr);
        spec.block_size = Some(block_size);
        allocator.create_pool(IpPool::new(name, spec)).await?;
    }
    Ok(())
}

fn start(options: &Options, location: &str, directory: &Path) -> Result<Vec<Worker>, Failed> {
    let own = std::env::current_exe().map_err(|error| Failed::Io("find this program", error))?;
    let each = options.operations.div_ceil(options.processes.max(1));
    let spawn = |number: u64| {
        let (expected_owners, log) =
            (directory.join(format!("{number}.json")), directory.join(format!("{number}.log")));
        let count = each.min(options.operations.saturating_sub(number * each));
        let mut command = Command::new(&own);
        command.args(["worker", location]);
        command.args([options.seed, number, count, options.pause_ms].map(|number| number.to_string()));
        command.arg(&expected_owners).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).map_err(|error| Failed::Io("create a log", error))?);
        let child = command.spawn().map_err(|error| Failed::Io("start a process", error))?;
        Ok(Worker { number, child, expected_owners, log })
    };
    (0..options.processes).map(spawn).collect()
}

/// Pools and everything of the allocator, the latter at one revision.
async fn records(store: &Etcd) -> Result<Vec<Record>, Failed> {
    let mut records = store.list(&Prefix::pools()).await?.records;
    records.extend(store.list(&Prefix::from_stored("/calico/ipam/v2/")).await?.records);
    Ok(records)
}

/// The faults, and the log lines of the processes about the addresses and handles in the first of
/// them.
fn explained(mut faults: Vec<String>, workers: &[Worker]) -> Vec<String> {
    let first = faults.first().cloned().unwrap_or_default();
    let words: Vec<&str> = first.split([' ', ':', ',']).filter(|word| word.contains(['.', ':'])).collect();
    let logs = workers
        .iter()
        .map(|worker| (worker.number, std::fs::read_to_string(&worker.log).unwrap_or_default()));
    for (number, log) in logs {
        let telling = log.lines().filter(|line| words.iter().any(|word| line.contains(word)));
        faults.extend(telling.take(LINES_MAX).map(|line| format!("  process {number}: {line}")));
    }
    faults
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self { seed: u64::from(now.subsec_nanos()), processes: 20, operations: 5_000, pause_ms: 60 }
    }
}

// === impl Worker ===

impl Worker {
    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its record, once it has ended successfully.
    fn expected_owners(&mut self) -> Result<ExpectedOwners, Failed> {
        let status = self.child.wait().map_err(|error| Failed::Io("wait for a process", error))?;
        match ExpectedOwners::read(&self.expected_owners) {
            Ok(expected_owners) if status.success() => Ok(expected_owners),
            _ => {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
                Err(Failed::Process(self.number, end))
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended already, unless the parent failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl Killer ===

impl Killer {
    fn new(seed: u64, now: Instant) -> Self {
        Self {
            chance: Rng::new(seed ^ 0x6b69_6c6c),
            next: now + KILL_EVERY,
            away: None,
            kills: 0,
            leaders: 0,
        }
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
        let anyone = self.chance.below(MEMBERS as u64) as usize;
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
