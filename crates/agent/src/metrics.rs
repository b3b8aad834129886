//! The agent's metrics. Names are `russet_<subsystem>_<noun>_<unit>`.

mod drift;
mod fast_path;
mod listeners;
mod peers;
mod policies;
mod pools;
mod readiness;
mod store;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use russet_journal::JournalMetrics;
#[cfg(test)]
use russet_plugins::Stage;
use russet_plugins::stages::Spent;

use crate::health::Readiness;

pub use drift::DriftMetrics;
pub use fast_path::FastPathMetrics;
pub use listeners::Listeners;
pub use peers::PeerMetrics;
pub use policies::{Policed, PolicyMetrics};
pub use pools::{Claims, Fill, PoolMetrics};
pub use store::StoreMetrics;

/// Upper bounds of the buckets for durations of milliseconds, in seconds.
const LATENCY_BUCKETS_S: [f64; 12] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// The same for durations that may be microseconds.
const STAGE_BUCKETS_S: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0];

/// Prefix of our metrics. Those of the process have the names that all Prometheus clients use.
const PREFIX: &str = "russet";

/// All metrics. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// CNI requests by verb and outcome.
    pub requests: Family<Request, Counter>,
    /// How long CNI requests took.
    pub request_seconds: Family<Verb, Histogram>,
    /// The time that CNI requests spent in each stage.
    pub stage_seconds: Family<StageOf, Histogram>,
    /// Kernel objects that a reconciliation had to change, by kind.
    pub changes: Family<Kind, Counter>,
    /// Published facts of other nodes that this node refuses to program.
    pub refusals: Gauge,
    /// Reconciliations with an error.
    pub reconcile_errors: Counter,
    /// How long reconciliations took.
    pub reconcile_seconds: Histogram,
    /// Interfaces of deleted pods that were removed.
    pub reaped: Counter,
    /// Nodes known, with this one.
    pub nodes: Gauge,
    /// Leaks that were repaired, by kind.
    pub repaired: Family<Kind, Counter>,
    /// Leak repair rounds without a result, because something could not be read.
    pub void_repairs: Counter,
    /// Packets that the guards against forged packets dropped, by guard.
    pub guard_drops: Family<Kind, Counter>,
    pub drift: DriftMetrics,
    pub store: StoreMetrics,
    pub pools: PoolMetrics,
    pub policies: PolicyMetrics,
    pub peers: PeerMetrics,
    pub fast_path: FastPathMetrics,
    /// Connection slots of the agent's sockets.
    pub listeners: Listeners,
    pub journal: JournalMetrics,
    /// Operations of an earlier agent, by how they ended.
    pub recoveries: Family<Kind, Counter>,
}

/// A CNI verb.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Verb {
    /// `ADD`, `DEL`, ...
    pub verb: &'static str,
}

/// A CNI verb and one stage of its work.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StageOf {
    pub verb: &'static str,
    /// `turn`, `address`, ...
    pub stage: &'static str,
}

/// A CNI verb and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Request {
    pub verb: &'static str,
    /// `0`, or the CNI error code.
    pub code: u32,
}

/// A kind of kernel object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    /// `route`, `neighbour`, ...
    pub kind: String,
}

// === impl Metrics ===

impl Metrics {
    /// The metrics, and the registry that encodes them.
    pub fn new() -> (Self, Registry) {
        let metrics = Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(latency),
            stage_seconds: Family::new_with_constructor(stage),
            changes: Family::default(),
            refusals: Gauge::default(),
            reconcile_errors: Counter::default(),
            reconcile_seconds: latency(),
            reaped: Counter::default(),
            nodes: Gauge::default(),
            repaired: Family::default(),
            void_repairs: Counter::default(),
            guard_drops: Family::default(),
            drift: DriftMetrics::default(),
            store: StoreMetrics::default(),
            pools: PoolMetrics::default(),
            policies: PolicyMetrics::default(),
            peers: PeerMetrics::default(),
            fast_path: FastPathMetrics::default(),
            listeners: Listeners::new(),
            journal: JournalMetrics::default(),
            recoveries: Family::default(),
        };
        let mut all = Registry::default();
        all.register_collector(Box::new(russet_http::health::Process::starting()));
        metrics.register(all.sub_registry_with_prefix(PREFIX));
        (metrics, all)
    }

    /// The same, with a registry that also encodes readiness: all that an agent exports.
    pub fn with_readiness(readiness: &Readiness) -> (Self, Registry) {
        let (metrics, mut all) = Self::new();
        let conditions = readiness::Conditions(readiness.clone());
        all.sub_registry_with_prefix(PREFIX).register_collector(Box::new(conditions));
        (metrics, all)
    }

    fn register(&self, registry: &mut Registry) {
        let it = self;
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the agent", build);
        registry.register("cni_requests", "CNI requests by verb and error code", it.requests.clone());
        registry.register("cni_request_seconds", "Time from request to answer", it.request_seconds.clone());
        registry.register(
            "cni_stage_seconds",
            "Time of a request in each stage that it entered, by verb; stages do not overlap",
            it.stage_seconds.clone(),
        );
        registry.register("overlay_changes", "Kernel objects changed, by kind", it.changes.clone());
        registry.register("overlay_refusals", "Published facts that are not programmed", it.refusals.clone());
        registry.register(
            "overlay_reconcile_errors",
            "Reconciliations that met an error",
            it.reconcile_errors.clone(),
        );
        registry.register(
            "overlay_reconcile_seconds",
            "Time of a reconciliation",
            it.reconcile_seconds.clone(),
        );
        registry.register("attach_reaped_links", "Interfaces of deleted pods removed", it.reaped.clone());
        registry.register("ipam_repaired", "Leaks repaired, by kind", it.repaired.clone());
        registry.register(
            "ipam_void_repairs",
            "Looks for leaks that counted for nothing",
            it.void_repairs.clone(),
        );
        registry.register("overlay_nodes", "Nodes known, with this one", it.nodes.clone());
        registry.register(
            "guard_drops",
            "Packets of pods and other machines that the guards dropped, by guard",
            it.guard_drops.clone(),
        );
        it.drift.register(registry);
        it.store.register(registry);
        it.pools.register(registry);
        it.policies.register(registry);
        it.peers.register(registry);
        it.fast_path.register(registry);
        registry.register_collector(Box::new(it.listeners.collector()));
        it.journal.register(registry);
        let help = "Operations that were finished or undone later, by kind";
        registry.register("journal_recoveries", help, it.recoveries.clone());
    }

    /// Counts how an operation ended that an earlier agent, or this one, could not end at once.
    pub fn recovered(&self, kind: &str) {
        self.recoveries.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// Counts one request.
    pub fn request(&self, verb: &'static str, code: u32, spent: &Spent) {
        self.requests.get_or_create(&Request { verb, code }).inc();
        self.request_seconds.get_or_create(&Verb { verb }).observe(spent.total.as_secs_f64());
        self.stages(verb, spent);
    }

    /// Counts the stages only; for work that is done after the answer.
    pub fn stages(&self, verb: &'static str, spent: &Spent) {
        for (stage, time) in spent.stages() {
            let stage = StageOf { verb, stage: stage.as_str() };
            self.stage_seconds.get_or_create(&stage).observe(time.as_secs_f64());
        }
    }

    /// How many requests entered a stage.
    #[cfg(test)]
    pub fn stages_of(&self, verb: &'static str, stage: Stage) -> u64 {
        count_of(&self.stage_seconds.get_or_create(&StageOf { verb, stage: stage.as_str() }).clone())
    }
}

/// How many observations a histogram has.
#[cfg(test)]
fn count_of(histogram: &Histogram) -> u64 {
    let mut registry = Registry::default();
    registry.register("it", "", histogram.clone());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text.lines().find_map(|line| line.strip_prefix("it_count ")?.parse().ok()).unwrap()
}

fn stage() -> Histogram {
    Histogram::new(STAGE_BUCKETS_S)
}

fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS_S)
}

#[cfg(test)]
mod tests;
