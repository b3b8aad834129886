//! The table of decisions: what changes of it cost, and how large it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_linux::NetNs;
use russet_policy::{Decisions, Policies, PolicySettings};
use russet_verdict::engine::Engine;
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::scale::{Cost, Scale};
use russet_verdict::table::{Delta, Identity, Key, Part, Word};
use russet_verdict::world::Update;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::overlay::stage::Stage;
use crate::policy::packets::{self, Way};
use crate::policy::percentile;
use crate::{BoxError, Result};

/// Local addresses of a table that is made by hand.
const PODS: usize = 100;

/// What changes in `churn`, and how often in a second.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Ports of any policies of the cluster.
    Policies,
    /// Ports of policies that select pods of this node.
    Active,
    /// Labels of pods of other nodes.
    Pods,
}

// === impl Kind ===

impl Kind {
    fn update(self, round: u32) -> Update {
        match self {
            Self::Policies => Scale::LARGE.policy_change(round, false),
            Self::Active => Scale::LARGE.policy_change(round, true),
            Self::Pods => Scale::LARGE.pod_change(round),
        }
    }

    fn per_second(self) -> u32 {
        match self {
            Self::Policies | Self::Active => 100,
            Self::Pods => 50,
        }
    }
}

impl FromStr for Kind {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "policies" => Self::Policies,
            "active" => Self::Active,
            "pods" => Self::Pods,
            _ => return Err(format!("no kind of changes {text:?}").into()),
        })
    }
}

/// A table in a namespace of its own.
fn empty() -> Result<Policies> {
    Ok(NetNs::create_unnamed()?.with(|| Policies::open(PolicySettings::default()))??)
}

/// Everything of the large cluster decided and in force.
fn filled() -> Result<(Engine, Policies)> {
    let (mut engine, mut policies) = (Engine::default(), empty()?);
    Scale::LARGE.updates().into_iter().for_each(|update| engine.apply(update));
    policies.apply(&engine.flush(), &BTreeSet::new(), Instant::now())?;
    Ok((engine, policies))
}

/// The times of changes from the update until the kernel has taken it.
pub fn changes() -> Result<Vec<Cost>> {
    let (mut policies, begun) = (empty()?, Instant::now());
    let mut failure = None;
    let mut take = |delta: &Delta| {
        let done = policies.apply(delta, &BTreeSet::new(), Instant::now());
        failure = failure.take().or(done.err());
    };
    let (_, costs) = Scale::LARGE.measure_with(&mut || begun.elapsed(), &mut take);
    failure.map_or(Ok(costs), |error| Err(error.into()))
}

/// So many decisions: each of the local addresses has the same number of peers.
fn decisions(count: usize) -> Result<Decisions> {
    let mut decisions = Decisions::default();
    let address =
        |first: u32, number: usize| Ok::<_, BoxError>(Ipv4Addr::from(first + u32::try_from(number)?));
    for number in 0..count.div_ceil(PODS) {
        let peer = Identity::new(Identity::FIRST + u32::try_from(number)?).ok_or("no such identity")?;
        let net = IpNet::from(IpAddr::V4(address(11 << 24, number)?));
        decisions.identities.insert(net, peer);
        for pod in 0..PODS {
            let local = IpAddr::V4(address(10 << 24, pod)?);
            // Every other one is for a port; a peer with any decision has one for everything.
            let part = if number % 2 == 0 { Part::All } else { Part::Port(Protocol::TCP, 80) };
            decisions.decisions.insert(Key { direction: Direction::Ingress, local, peer, part }, Word::ALLOW);
        }
    }
    for pod in 0..PODS {
        decisions.defaults.insert((Direction::Ingress, address(10 << 24, pod)?.into()), Word::DENY);
    }
    Ok(decisions)
}

/// The time of the first load, from the decisions until the kernel has all of them.
pub fn load(count: usize) -> Result<Value> {
    let (mut policies, wanted) = (empty()?, decisions(count)?);
    let begun = Instant::now();
    let report = policies.restore(wanted, begun)?;
    Ok(json!({ "ms": begun.elapsed().as_secs_f64() * 1e3, "elements": report.elements }))
}

/// The time of a transaction that changes one decision among so many, from the change until the kernel has taken it.
pub fn flip(count: usize) -> Result<Value> {
    /// As many as there are of each change in `changes`.
    const ROUNDS: usize = 200;
    let (mut policies, wanted) = (empty()?, decisions(count)?);
    let keys: Vec<Key> = wanted.decisions.keys().step_by(count.div_ceil(ROUNDS)).copied().collect();
    policies.restore(wanted, Instant::now())?;
    let mut times = Vec::new();
    for key in keys {
        let flip = Delta { decisions: [(key, Some(Word::DENY))].into(), ..Delta::default() };
        let began = Instant::now();
        let elements = policies.apply(&flip, &BTreeSet::new(), began)?.elements;
        times.push(began.elapsed().as_secs_f64() * 1e6);
        // The old value goes and the new one comes.
        if elements != 2 {
            return Err(format!("{elements} elements were written for one decision").into());
        }
    }
    let p50 = percentile(&mut times, 50);
    Ok(json!({ "p50_us": p50, "p99_us": percentile(&mut times, 99), "flips": times.len() }))
}

/// Changes at even distances: the processor time of this process meanwhile, and the times from a change
/// until the kernel has taken it.
pub fn churn(kind: Kind, lasts: Duration) -> Result<Value> {
    let (mut engine, mut policies) = filled()?;
    let pause = Duration::from_secs(1) / kind.per_second();
    let (mut times, mut round, mut elements) = (Vec::new(), 0, 0);
    let (begun, before) = (Instant::now(), processor_time());
    while begun.elapsed() < lasts {
        round += 1;
        let update = kind.update(round);
        let began = Instant::now();
        engine.apply(update);
        elements += policies.apply(&engine.flush(), &BTreeSet::new(), began)?.elements;
        times.push(began.elapsed().as_secs_f64() * 1e6);
        wait_until(begun + pause * round);
    }
    let share = (processor_time() - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let p99 = percentile(&mut times, 99);
    Ok(json!({ "cpu_percent": share * 100.0, "p99_us": p99, "changes": round, "elements": elements }))
}

/// Advances the epoch often enough that the marks of all connections are swept, with so many of them.
pub fn recheck(count: usize) -> Result<Value> {
    /// A sweep is due after 128 epochs.
    const EPOCHS: u32 = 130;
    let stage = packets::set(Way::Many)?;
    let host = &stage.nodes[1].host;
    let flows = flows(&stage, count)?;
    let mut policies = host.with(|| Policies::open(PolicySettings::default()))??;
    let tightens = Delta { tightens: true, ..Delta::default() };
    let mut times = Vec::new();
    let mut now = Instant::now();
    let before = processor_time();
    for _ in 0..EPOCHS {
        // The table waits between two epochs; what is measured is not the wait.
        now += Duration::from_secs(1);
        let began = Instant::now();
        if !host.with(|| policies.apply(&tightens, &BTreeSet::new(), now))??.advanced {
            return Err("the epoch did not advance".into());
        }
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = (processor_time() - before).as_secs_f64() * 1e3;
    let longest = times.iter().copied().fold(0.0, f64::max);
    Ok(json!({ "flows": flows, "p50_ms": percentile(&mut times, 50), "longest_ms": longest, "cpu_ms": cpu }))
}

/// Begins connections to the pod of the second node; how many its node tracks.
fn flows(stage: &Stage, count: usize) -> Result<usize> {
    const SOCKETS: usize = 10;
    let (from, _, address) = stage.ends();
    let _inside = from.enter()?;
    for _ in 0..SOCKETS {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        for port in 1..=count / SOCKETS {
            // A port where nothing listens is refused, at the next call.
            let to = SocketAddrV4::new(address, u16::try_from(1024 + port)?);
            let _ = socket.send_to(&[0], to);
        }
    }
    let read = || fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
    Ok(stage.nodes[1].host.with(read)??.trim().parse()?)
}

/// The memory of the engine, and of everything that an agent keeps of decisions.
pub fn memory() -> Result<Value> {
    let at_first = anonymous_mb()?;
    let mut engine = Engine::default();
    Scale::LARGE.updates().into_iter().for_each(|update| engine.apply(update));
    let delta = engine.flush();
    russet_linux::memory::trim_heap();
    let of_engine = anonymous_mb()? - at_first;
    // The agent keeps what it wants beside what the kernel has.
    let mut wanted = Decisions::default();
    wanted.apply(&delta, &BTreeSet::new());
    let mut policies = empty()?;
    policies.apply(&delta, &BTreeSet::new(), Instant::now())?;
    drop(delta);
    russet_linux::memory::trim_heap();
    let usage = engine.usage();
    let count = (policies.current().decisions.len(), wanted.decisions.len());
    Ok(json!({
        "engine_mb": of_engine, "tables_mb": anonymous_mb()? - at_first - of_engine,
        "process_mb": anonymous_mb()?, "decisions": count.0.max(count.1), "policies": usage.policies,
    }))
}

/// What so many decisions take in the kernel.
pub fn elements(count: usize) -> Result<Value> {
    let (mut policies, wanted) = (empty()?, decisions(count)?);
    let (before, begun) = (kernel_mb()?, Instant::now());
    policies.restore(wanted, begun)?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    Ok(json!({ "kernel_mb": kernel_mb()? - before, "ms": took }))
}

fn anonymous_mb() -> Result<f64> {
    field_mb("/proc/self/status", "RssAnon:")
}

/// Memory of the kernel's allocators, of all users.
fn kernel_mb() -> Result<f64> {
    let file = "/proc/meminfo";
    Ok(field_mb(file, "SUnreclaim:")? + field_mb(file, "VmallocUsed:")?)
}

/// A line of a file of /proc, in MB of a million bytes.
fn field_mb(file: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(file)?;
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once(char::is_whitespace)).collect();
    let kib = fields.get(name).and_then(|value| value.trim().strip_suffix(" kB"));
    let kib: f64 = kib.ok_or_else(|| format!("{file} has no {name}"))?.trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Of this process, the kernel's work for it included.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[expect(clippy::disallowed_methods, reason = "changes come at a rate, and no event causes them")]
fn wait_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}
