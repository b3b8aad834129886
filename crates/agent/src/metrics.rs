//! What the agent counts; names are `russet_<subsystem>_<noun>_<unit>`.

mod drift;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use drift::DriftMetrics;

/// Upper bounds of the buckets for what takes milliseconds, in seconds.
const LATENCY_BUCKETS_S: [f64; 12] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// What our metrics' names begin with; those of the process have the names that every program gives them.
const PREFIX: &str = "russet";

/// Every metric; clones share the same numbers.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// CNI requests by verb and outcome.
    pub requests: Family<Request, Counter>,
    /// How long CNI requests took.
    pub request_seconds: Family<Verb, Histogram>,
    /// Kernel objects that a reconciliation had to change, by kind.
    pub changes: Family<Kind, Counter>,
    /// What other nodes publish and this one refuses to program.
    pub refusals: Gauge,
    /// Reconciliations that met an error.
    pub reconcile_errors: Counter,
    /// How long reconciliations took.
    pub reconcile_seconds: Histogram,
    /// Interfaces of deleted pods that were removed.
    pub reaped: Counter,
    /// Nodes known, with this one.
    pub nodes: Gauge,
    /// Leaks that were repaired, by kind.
    pub repaired: Family<Kind, Counter>,
    /// Looks for leaks that counted for nothing, because something could not be read.
    pub void_repairs: Counter,
    /// What others changed of ours in the kernel.
    pub drift: DriftMetrics,
    /// Bytes of the journal that are used.
    pub journal_bytes: Gauge,
    /// Records in the journal.
    pub journal_records: Gauge,
    /// Attempts to write the journal that failed.
    pub journal_write_failures: Counter,
    /// What an agent's earlier life had begun, by what became of it.
    pub recoveries: Family<Kind, Counter>,
}

/// A CNI verb.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Verb {
    /// `ADD`, `DEL`, ...
    pub verb: String,
}

/// A CNI verb and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Request {
    /// `ADD`, `DEL`, ...
    pub verb: String,
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
    /// Metrics, and the registry that prints them.
    pub fn new() -> (Self, Registry) {
        let metrics = Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(latency),
            changes: Family::default(),
            refusals: Gauge::default(),
            reconcile_errors: Counter::default(),
            reconcile_seconds: latency(),
            reaped: Counter::default(),
            nodes: Gauge::default(),
            repaired: Family::default(),
            void_repairs: Counter::default(),
            drift: DriftMetrics::default(),
            journal_bytes: Gauge::default(),
            journal_records: Gauge::default(),
            journal_write_failures: Counter::default(),
            recoveries: Family::default(),
        };
        let mut all = Registry::default();
        all.register_collector(Box::new(russet_health::Process::starting()));
        metrics.register(all.sub_registry_with_prefix(PREFIX));
        (metrics, all)
    }

    fn register(&self, registry: &mut Registry) {
        let it = self;
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the agent", build);
        registry.register("cni_requests", "CNI requests by verb and error code", it.requests.clone());
        registry.register("cni_request_seconds", "Time from request to answer", it.request_seconds.clone());
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
        it.drift.register(registry);
        it.register_journal(registry);
    }

    fn register_journal(&self, registry: &mut Registry) {
        registry.register("journal_bytes", "Used bytes of the journal", self.journal_bytes.clone());
        registry.register("journal_records", "Records in the journal", self.journal_records.clone());
        let failures = self.journal_write_failures.clone();
        registry.register("journal_write_failures", "Attempts to write the journal that failed", failures);
        let help = "Operations that were finished or undone later, by kind";
        registry.register("journal_recoveries", help, self.recoveries.clone());
    }

    /// Counts what became of an operation of an earlier life, or of one that this life could not end at once.
    pub fn recovered(&self, kind: &str) {
        self.recoveries.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// Counts one request.
    pub fn request(&self, verb: &str, code: u32, seconds: f64) {
        self.requests.get_or_create(&Request { verb: verb.to_owned(), code }).inc();
        self.request_seconds.get_or_create(&Verb { verb: verb.to_owned() }).observe(seconds);
    }
}

fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS_S)
}
