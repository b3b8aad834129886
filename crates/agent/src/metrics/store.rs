//! Metrics of the store: the duration of its answers, the time until changes are in the kernel, and
//! the time since it last answered.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::latency;

/// Upper bounds of the buckets for requests to the store, in seconds: the embedded one answers reads in microseconds, a busy etcd in seconds.
const BUCKETS_S: [f64; 15] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// The store as the agent sees it. Clones share the numbers.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    requests: Family<Request, Histogram>,
    events: Counter,
    lag: Histogram,
    heard: Arc<Heard>,
}

/// An operation of the store, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    op: &'static str,
    outcome: &'static str,
}

/// When the store last answered or sent an event.
#[derive(Debug)]
struct Heard {
    began: Instant,
    /// Milliseconds since `began`.
    last_ms: AtomicU64,
    /// When a request was answered last, and how long that took.
    answer: Mutex<Option<(Instant, Duration)>>,
}

/// The time since then, computed at each scrape.
#[derive(Debug)]
struct Silence(Arc<Heard>);

/// One request in progress. A request that is dropped before its answer counts as abandoned.
pub struct Clock<'m> {
    metrics: &'m StoreMetrics,
    op: &'static str,
    began: Instant,
    outcome: &'static str,
}

// === impl StoreMetrics ===

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            requests: Family::new_with_constructor(|| Histogram::new(BUCKETS_S)),
            events: Counter::default(),
            lag: latency(),
            heard: Arc::new(Heard {
                began: Instant::now(),
                last_ms: AtomicU64::new(0),
                answer: Mutex::default(),
            }),
        }
    }
}

impl StoreMetrics {
    /// Starts to measure a request.
    pub fn clock(&self, op: &'static str) -> Clock<'_> {
        Clock { metrics: self, op, began: Instant::now(), outcome: "abandoned" }
    }

    /// How long the last answered request took, and how long ago that was. Not of watches.
    pub fn last_answer(&self) -> Option<(Duration, Duration)> {
        let answer = *self.heard.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.map(|(at, took)| (took, at.elapsed()))
    }

    /// The time since the store answered or sent an event.
    pub fn silence(&self) -> Duration {
        self.heard.since()
    }

    /// Counts an event of a watch.
    pub fn event_received(&self) {
        self.events.inc();
        self.heard.now();
    }

    /// Records the time from an event until it was in the kernel.
    pub fn reconciled(&self, after: Duration) {
        self.lag.observe(after.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "store_request_seconds",
            "Time of a request to the agent's own store, by operation and outcome; a watch's is until it is open",
            self.requests.clone(),
        );
        registry.register(
            "store_watch_events",
            "Changes received from watches of the store",
            self.events.clone(),
        );
        registry.register(
            "store_watch_lag_seconds",
            "Time from receiving a change until the kernel matched it",
            self.lag.clone(),
        );
        registry.register_collector(Box::new(Silence(Arc::clone(&self.heard))));
    }

    /// Number of requests with this outcome.
    #[cfg(test)]
    pub fn count(&self, op: &'static str, outcome: &'static str) -> u64 {
        super::count_of(&self.requests.get_or_create(&Request { op, outcome }).clone())
    }
}

// === impl Heard ===

impl Heard {
    fn now(&self) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(ms, Ordering::Relaxed);
    }

    fn since(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

// === impl Silence ===

impl Collector for Silence {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let silence = ConstGauge::new(self.0.since().as_secs_f64());
        let help = "Time since the store answered or sent a change; it is probed at least every 10 s";
        let metric = encoder.encode_descriptor("store_silence_seconds", help, None, silence.metric_type())?;
        silence.encode(metric)
    }
}

// === impl Clock ===

impl Clock<'_> {
    /// Ends the request. `heard`: the store sent an answer.
    pub fn ended(mut self, outcome: &'static str, heard: bool) {
        self.outcome = outcome;
        if heard {
            self.metrics.heard.now();
            if !matches!(self.op, "watch" | "follow") {
                let answer = Some((Instant::now(), self.began.elapsed()));
                *self.metrics.heard.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
            }
        }
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        let request = Request { op: self.op, outcome: self.outcome };
        self.metrics.requests.get_or_create(&request).observe(self.began.elapsed().as_secs_f64());
    }
}
