//! `/metrics` and `/readyz` of `russet cri`; docs/metrics.md lists the metrics.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::{Sandboxes, State};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use russet_http::health::{Process, Ready};
use tonic::Code;

use crate::cri::service::Runtime;

/// Metrics of calls; clones share the same numbers.
#[derive(Debug, Clone)]
pub struct Calls {
    answered: Family<Answered, Counter>,
    seconds: Family<Call, Histogram>,
    under_way: Family<Call, Gauge>,
}

/// A call in progress, until this is dropped.
pub struct UnderWay {
    calls: Calls,
    call: &'static str,
    began: Instant,
}

/// The labels of a finished call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    call: &'static str,
    code: String,
}

/// The labels of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

/// Whether pods can be attached, as in the answer to Status.
#[derive(Clone)]
pub struct Network {
    runtime: Arc<Runtime>,
    /// Why health is not served at its address.
    unserved: Arc<Mutex<Option<String>>>,
}

/// The number of sandboxes, counted at each scrape.
struct Count(Arc<Sandboxes>);

/// The served calls. Other names come from clients, and are counted as one.
const SERVED: [&str; 12] = [
    "Version",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "UpdateRuntimeConfig",
    "Status",
    "GetContainerEvents",
    "RuntimeConfig",
];
const OTHER: &str = "other";
/// The prefix of our metrics.
pub const PREFIX: &str = "russet";
/// Upper bounds of the buckets, in seconds: a list takes less than a millisecond, a sandbox some, a
/// plugin that hangs a minute.
const BUCKETS_S: [f64; 12] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0];

// === impl Calls ===

impl Calls {
    /// All numbers are 0.
    pub fn new() -> Self {
        let seconds = Family::new_with_constructor(latency as fn() -> Histogram);
        Self { answered: Family::default(), seconds, under_way: Family::default() }
    }

    /// A call has arrived.
    pub fn started(&self, name: &str) -> UnderWay {
        let call = SERVED.into_iter().find(|served| *served == name).unwrap_or(OTHER);
        self.under_way.get_or_create(&Call { call }).inc();
        UnderWay { calls: self.clone(), call, began: Instant::now() }
    }

    /// The registry of all metrics of a server.
    pub fn registry(&self, sandboxes: &Arc<Sandboxes>) -> Registry {
        let mut all = Registry::default();
        all.register_collector(Box::new(Process::starting()));
        sandboxes.metrics().register(&mut all);
        let ours = all.sub_registry_with_prefix(PREFIX);
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        ours.register("build", "The version of the server", build);
        ours.register("cri_requests", "Calls that were answered, by name and code", self.answered.clone());
        ours.register("cri_request_seconds", "Time from call to answer", self.seconds.clone());
        let help = "Calls that were neither answered nor given up by their callers";
        ours.register("cri_requests_under_way", help, self.under_way.clone());
        ours.register_collector(Box::new(Count(Arc::clone(sandboxes))));
        all
    }
}

// === impl UnderWay ===

impl UnderWay {
    /// The call was answered, or its stream has started. If this is dropped without it, the client
    /// has left.
    pub fn answered(self, code: Code) {
        // gRPC's names of the codes: OK, and the others as they are.
        let code = if code == Code::Ok { "OK".to_owned() } else { format!("{code:?}") };
        let Self { calls, call, began } = &self;
        calls.answered.get_or_create(&Answered { call, code }).inc();
        calls.seconds.get_or_create(&Call { call }).observe(began.elapsed().as_secs_f64());
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.calls.under_way.get_or_create(&Call { call: self.call }).dec();
    }
}

fn latency() -> Histogram {
    Histogram::new(BUCKETS_S)
}

// === impl Count ===

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Count")
    }
}

impl Collector for Count {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Sandboxes, by their state at the last check";
        let kind = ConstGauge::new(0_u64).metric_type();
        let mut encoder = encoder.encode_descriptor("sandbox_sandboxes", help, None, kind)?;
        for (state, name) in [(State::Ready, "ready"), (State::NotReady, "not_ready")] {
            let count = ConstGauge::new(self.0.count(state) as u64);
            count.encode(encoder.encode_family(&[("state", name)])?)?;
        }
        Ok(())
    }
}

// === impl Network ===

impl Network {
    /// As `runtime` has it.
    pub fn of(runtime: Arc<Runtime>) -> Self {
        Self { runtime, unserved: Arc::default() }
    }

    async fn network(&self) -> Option<String> {
        self.runtime.network().await.err().map(|why| format!("network: {why}"))
    }

    fn health(&self) -> Option<String> {
        let unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        unserved.as_ref().map(|why| format!("health: {why}"))
    }
}

impl Ready for Network {
    async fn reason(&self) -> Option<String> {
        self.network().await.or_else(|| self.health())
    }

    async fn verbose(&self) -> String {
        let line = |name: &str, reason: Option<String>| match reason {
            None => format!("[+] {name}\n"),
            Some(reason) => format!("[-] {reason}\n"),
        };
        line("network", self.network().await) + &line("health", self.health())
    }

    fn served(&self, problem: Option<&str>) {
        *self.unserved.lock().unwrap_or_else(PoisonError::into_inner) = problem.map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::time::Duration;

    use crate::{Builtin, Metrics, Operation, Options};
    use russet_runtime::{ConfigDir, Runtime as Chains};

    use super::*;

    /// Whether a metric belongs to this server, in documents that are about the agent, too.
    fn is_ours(name: &str) -> bool {
        name.starts_with("russet_sandbox_") || name.starts_with("russet_cri_")
    }

    fn file(path: &str) -> String {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
    }

    /// The output of a server with a value for every labelled metric: kinds by the names that
    /// queries use.
    fn printed() -> BTreeMap<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let sandboxes = Sandboxes::open(Options {
            state_dir: dir.path().join("state"),
            run_dir: dir.path().join("run"),
            engine: Box::new(Builtin::new(dir.path().join("run"))),
            runtime: Chains::new(Vec::new(), dir.path().join("cache")),
            networks: Box::new(ConfigDir::new(dir.path())),
            metrics: Metrics::new(),
            lock_timeout: Duration::ZERO,
            on_waiting: |_| (),
        });
        let (sandboxes, calls) = (Arc::new(sandboxes.unwrap()), Calls::new());
        let metrics = sandboxes.metrics();
        let operation = Operation { operation: "set_up_pod" };
        metrics.operations.get_or_create(&operation).inc();
        metrics.errors.get_or_create(&operation).inc();
        metrics.seconds.get_or_create(&operation).observe(1.0);
        calls.started("Version").answered(Code::Ok);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &calls.registry(&sandboxes)).unwrap();
        assert!(text.contains("russet_sandbox_sandboxes{state=\"ready\"} 0\n"), "{text}");
        assert!(text.contains("russet_cri_requests_total{call=\"Version\",code=\"OK\"} 1\n"), "{text}");
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let ending = |kind: &str| if kind == "counter" { "_total" } else { "" };
        kinds.map(|(name, kind)| (format!("{name}{}", ending(kind)), kind.to_owned())).collect()
    }

    #[test]
    fn every_metric_of_ours_is_documented_and_every_documented_one_exists() {
        let row = |line: &str| {
            let cells: Vec<String> =
                line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
            let name = cells.first()?.trim_matches('`').to_owned();
            is_ours(&name).then(|| (name, cells[1].clone()))
        };
        let documented: BTreeMap<_, _> = file("docs/metrics.md").lines().filter_map(row).collect();
        let printed = printed();
        let ours = printed.iter().filter(|(name, _)| is_ours(name));
        assert_eq!(documented, ours.map(|(name, kind)| (name.clone(), kind.clone())).collect());
        assert!(printed.contains_key("process_resident_memory_bytes"), "{printed:?}");
    }

    #[test]
    fn dashboard_and_alerts_use_only_printed_metrics() {
        let printed = printed();
        let is_printed = |name: &str| {
            let histogram = |ending| name.strip_suffix(ending).and_then(|name| printed.get(name));
            printed.contains_key(name)
                || ["_bucket", "_count", "_sum"].into_iter().any(|it| histogram(it).is_some())
        };
        for path in ["packaging/grafana/russet-node.json", "packaging/prometheus/russet.rules.yaml"] {
            let text = file(path);
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let names: BTreeSet<&str> = words.filter(|word| is_ours(word)).collect();
            assert!(names.len() > 1, "{path}: {names:?}");
            assert!(names.iter().all(|name| is_printed(name)), "{path}: {names:?}");
        }
    }

    #[test]
    fn unknown_call_names_share_one_label() {
        let calls = Calls::new();
        for name in ["Version", "BakeContainer", "x\"} 1", "CreateContainer"] {
            calls.started(name).answered(Code::Unimplemented);
        }
        let mut registry = Registry::default();
        registry.register("it", "It", calls.answered.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("it_total{call=\"other\",code=\"Unimplemented\"} 3\n"), "{text}");
        assert!(text.contains("it_total{call=\"Version\",code=\"Unimplemented\"} 1\n"), "{text}");
    }
}
