//! Measures where the time of a request goes: one timeline for each request, divided into
//! consecutive stages. The code that serves a request starts the timeline ([`Stages::record`]) and
//! reads it at the end; plugins and the wiring enter stages. Outside a request, entering a stage
//! has no effect.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_cni_spec::relay::Timing;
use russet_cni_spec::table;

tokio::task_local! {
    /// The timeline of the request that this task or thread works for.
    static TIMELINE: Stages;
}

/// Stages of a request. Time in none of them, such as parsing the configuration and encoding the
/// answer, counts only in the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The request waits for other requests for its container, its pod or the whole node.
    Turn,
    /// The journal is written.
    Journal,
    /// Addresses are selected and committed.
    Address,
    /// The request waits for one of the few permits for kernel work.
    Place,
    /// The kernel works on interfaces, routes and rules.
    Wiring,
    /// The interface waits for its verdict.
    Gate,
    /// Records of Calico and Kubernetes are read and written.
    Endpoint,
    /// Addresses are released.
    Release,
    /// The request waits until Felix reports that the pod's policy is in place.
    Policy,
}

/// The timeline of one request. Clones share it.
#[derive(Debug, Clone)]
pub struct Stages(Arc<Mutex<Timeline>>);

#[derive(Debug)]
struct Timeline {
    started: Instant,
    now: Option<Stage>,
    /// When `now` was entered.
    since: Instant,
    spent: [Option<Duration>; Stage::ALL.len()],
}

/// Time that a request has spent.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// Since the request started.
    pub total: Duration,
    stages: [Option<Duration>; Stage::ALL.len()],
}

/// Keeps a stage entered until it is dropped; then the previous stage continues.
#[must_use = "the stage ends at once"]
pub struct StageGuard(Option<(Stages, Option<Stage>)>);

/// Enters a stage of the request that this task or thread works for.
pub fn enter(stage: Stage) -> StageGuard {
    let timeline = current();
    StageGuard(timeline.map(|timeline| {
        let before = timeline.switch_to(Some(stage));
        (timeline, before)
    }))
}

/// Runs `work` as a stage.
pub async fn during<T>(stage: Stage, work: impl Future<Output = T>) -> T {
    let _entered = enter(stage);
    work.await
}

/// The timeline of this task's request, to be passed to a thread that works for it.
pub(crate) fn current() -> Option<Stages> {
    TIMELINE.try_with(Clone::clone).ok()
}

/// Runs `work` on this thread, on the timeline of a request.
pub(crate) fn with_timeline<T>(timeline: Option<Stages>, work: impl FnOnce() -> T) -> T {
    match timeline {
        Some(timeline) => TIMELINE.sync_scope(timeline, work),
        None => work(),
    }
}

// === impl Stage ===

impl Stage {
    /// All stages, roughly in the order of an ADD.
    pub const ALL: [Stage; 9] = [
        Self::Turn,
        Self::Journal,
        Self::Address,
        Self::Place,
        Self::Wiring,
        Self::Gate,
        Self::Endpoint,
        Self::Release,
        Self::Policy,
    ];

    /// Its name in metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Journal => "journal",
            Self::Address => "address",
            Self::Place => "place",
            Self::Wiring => "wiring",
            Self::Gate => "gate",
            Self::Endpoint => "endpoint",
            Self::Release => "release",
            Self::Policy => "policy",
        }
    }
}

// === impl Stages ===

impl Stages {
    /// Starts a timeline, in no stage.
    pub fn begin() -> Self {
        let now = Instant::now();
        let spent = [None; Stage::ALL.len()];
        Self(Arc::new(Mutex::new(Timeline { started: now, now: None, since: now, spent })))
    }

    /// Runs `request` on this timeline.
    pub async fn record<T>(&self, request: impl Future<Output = T>) -> T {
        TIMELINE.scope(self.clone(), request).await
    }

    /// The time spent so far.
    pub fn spent(&self) -> Spent {
        let now = self.switch_to(None);
        self.switch_to(now);
        let timeline = self.timeline();
        Spent { total: timeline.since.duration_since(timeline.started), stages: timeline.spent }
    }

    /// Enters `stage` and returns the previous one.
    fn switch_to(&self, stage: Option<Stage>) -> Option<Stage> {
        let now = Instant::now();
        let mut timeline = self.timeline();
        let past = now.saturating_duration_since(timeline.since);
        if let Some(before) = timeline.now {
            *timeline.spent[before as usize].get_or_insert_default() += past;
        }
        timeline.since = timeline.since.max(now);
        std::mem::replace(&mut timeline.now, stage)
    }

    fn timeline(&self) -> std::sync::MutexGuard<'_, Timeline> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Spent ===

impl Spent {
    /// The stages that were entered.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, Duration)> + '_ {
        Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.stages[stage as usize]?)))
    }

    /// The same for the answer to a request of `plugin`.
    pub fn timing(&self, plugin: &str) -> Timing {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let stages = self.stages().map(|(stage, time)| (stage.as_str().to_owned(), us(time)));
        // The caller chose this name: only known names are accepted, so that metrics stay bounded.
        let plugin = table::find(plugin).map_or("-", |plugin| plugin.name);
        Timing { plugin: plugin.to_owned(), total_us: us(self.total), stages: stages.collect() }
    }
}

// === impl StageGuard ===

impl Drop for StageGuard {
    fn drop(&mut self) {
        if let Some((timeline, before)) = self.0.take() {
            timeline.switch_to(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(5);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn names(spent: &Spent) -> Vec<&'static str> {
        spent.stages().map(|(stage, _)| stage.as_str()).collect()
    }

    #[test]
    fn nested_stages_never_add_up_to_more_than_the_total() {
        let stages = Stages::begin();
        let work = stages.record(async {
            during(Stage::Address, async {
                tokio::time::sleep(TICK).await;
                // An IPAM plugin that wires an interface, and a request that does two things at
                // once.
                let wiring = during(Stage::Wiring, tokio::time::sleep(TICK));
                let journal = during(Stage::Journal, tokio::time::sleep(TICK * 2));
                tokio::join!(wiring, journal);
            })
            .await;
            during(Stage::Address, tokio::time::sleep(TICK)).await;
        });
        runtime().block_on(work);
        let spent = stages.spent();
        assert_eq!(names(&spent), ["journal", "address", "wiring"]);
        let sum: Duration = spent.stages().map(|(_, time)| time).sum();
        assert!(sum <= spent.total && sum >= TICK * 4, "{spent:?}");
        let timing = spent.timing("russet");
        assert!(timing.stages.iter().map(|(_, us)| us).sum::<u64>() <= timing.total_us, "{timing:?}");
    }

    #[test]
    fn a_blocking_thread_records_stages_of_its_request() {
        let stages = Stages::begin();
        runtime().block_on(stages.record(during(Stage::Wiring, async {
            let timeline = current();
            let gate = || drop(enter(Stage::Gate));
            tokio::task::spawn_blocking(move || with_timeline(timeline, gate)).await.unwrap();
        })));
        assert_eq!(names(&stages.spent()), ["wiring", "gate"]);
    }

    #[test]
    fn work_outside_a_request_records_no_stages() {
        let stages = Stages::begin();
        runtime().block_on(during(Stage::Wiring, std::future::ready(())));
        assert_eq!(names(&stages.spent()), [""; 0]);
    }

    #[test]
    fn reading_the_time_does_not_end_the_current_stage() {
        let stages = Stages::begin();
        stages.switch_to(Some(Stage::Turn));
        let first = stages.spent();
        assert_eq!(names(&first), ["turn"]);
        assert_eq!(stages.switch_to(None), Some(Stage::Turn));
        assert!(stages.spent().total >= first.total);
    }

    #[test]
    fn an_unknown_plugin_name_is_not_reported() {
        assert_eq!(Stages::begin().spent().timing("\u{1b}[2J").plugin, "-");
        assert_eq!(Stages::begin().spent().timing("bridge").plugin, "bridge");
    }

    #[test]
    fn stage_numbers_are_indexes_of_all() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }
}
