//! Where the time of a request goes: one line of time for each request, cut into stages that follow each other. Whoever carries a request out starts
//! the line ([`Stages::of`]) and reads it at the end; plugins and the wiring say when they enter a stage, wherever they are called from. Without a
//! line, as for work that is no request's, that does nothing.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_cni_spec::relay::Timing;

tokio::task_local! {
    /// The line of the request that this task, or this thread, works for.
    static LINE: Stages;
}

/// What a request may spend its time on. What is none of these is only in the total: reading the configuration, making the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It waits for other requests for its container, its pod or the whole node.
    Turn,
    /// What is about to happen, and what happened, is written down.
    Journal,
    /// Addresses are found and taken, with the commit.
    Address,
    /// It waits for one of the few places at the kernel.
    Place,
    /// The kernel works on interfaces, routes and rules.
    Wiring,
    /// The interface waits for its verdict.
    Gate,
    /// Calico's records and Kubernetes' are read and written.
    Endpoint,
    /// Addresses are given back.
    Release,
    /// Felix's word is waited for that the policy of a pod is in place.
    Policy,
}

/// The line of time of one request. Clones share it.
#[derive(Debug, Clone)]
pub struct Stages(Arc<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    began: Instant,
    now: Option<Stage>,
    /// Since when it is in `now`.
    since: Instant,
    spent: [Option<Duration>; Stage::ALL.len()],
}

/// What a request has spent.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// From its beginning.
    pub total: Duration,
    stages: [Option<Duration>; Stage::ALL.len()],
}

/// A stage that lasts as long as this is kept; then the one before goes on.
#[must_use = "the stage ends at once"]
pub(crate) struct Entered(Option<(Stages, Option<Stage>)>);

/// Enters a stage of the request that this task or thread works for.
pub(crate) fn enter(stage: Stage) -> Entered {
    let line = current();
    Entered(line.map(|line| {
        let before = line.turn_to(Some(stage));
        (line, before)
    }))
}

/// `work` as a stage.
pub async fn during<T>(stage: Stage, work: impl Future<Output = T>) -> T {
    let _entered = enter(stage);
    work.await
}

/// The line of this task's request, for a thread that works for it.
pub(crate) fn current() -> Option<Stages> {
    LINE.try_with(Clone::clone).ok()
}

/// Does `work` on this thread for the request of `line`.
pub(crate) fn on_behalf<T>(line: Option<Stages>, work: impl FnOnce() -> T) -> T {
    match line {
        Some(line) => LINE.sync_scope(line, work),
        None => work(),
    }
}

// === impl Stage ===

impl Stage {
    /// All, about in the order in which an ADD comes to them.
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
    /// A line that begins now, in no stage.
    pub fn begin() -> Self {
        let now = Instant::now();
        let spent = [None; Stage::ALL.len()];
        Self(Arc::new(Mutex::new(Line { began: now, now: None, since: now, spent })))
    }

    /// Carries `request` out on this line.
    pub async fn of<T>(&self, request: impl Future<Output = T>) -> T {
        LINE.scope(self.clone(), request).await
    }

    /// What was spent up to now.
    pub fn spent(&self) -> Spent {
        let now = self.turn_to(None);
        self.turn_to(now);
        let line = self.line();
        Spent { total: line.since.duration_since(line.began), stages: line.spent }
    }

    /// Ends the stage that it is in, and gives that.
    fn turn_to(&self, stage: Option<Stage>) -> Option<Stage> {
        let now = Instant::now();
        let mut line = self.line();
        let past = now.saturating_duration_since(line.since);
        if let Some(before) = line.now {
            *line.spent[before as usize].get_or_insert_default() += past;
        }
        line.since = line.since.max(now);
        std::mem::replace(&mut line.now, stage)
    }

    fn line(&self) -> std::sync::MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Spent ===

impl Spent {
    /// The stages that were entered.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, Duration)> + '_ {
        Stage::ALL.into_iter().filter_map(|stage| Some((stage, self.stages[stage as usize]?)))
    }

    /// The same for the answer of `plugin`'s request.
    pub fn timing(&self, plugin: &str) -> Timing {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let stages = self.stages().map(|(stage, time)| (stage.as_str().to_owned(), us(time)));
        // Only names that we know: it is the caller who gave this one.
        let plugin = crate::NAMES.into_iter().find(|name| *name == plugin).unwrap_or("-");
        Timing { plugin: plugin.to_owned(), total_us: us(self.total), stages: stages.collect() }
    }
}

// === impl Entered ===

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some((line, before)) = self.0.take() {
            line.turn_to(before);
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
    fn stages_never_add_up_to_more_than_the_total_however_they_are_nested() {
        let stages = Stages::begin();
        let work = stages.of(async {
            during(Stage::Address, async {
                tokio::time::sleep(TICK).await;
                // An IPAM plugin that wires, and a request that does two things at once.
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
    fn a_thread_that_works_for_a_request_adds_to_its_line() {
        let stages = Stages::begin();
        runtime().block_on(stages.of(during(Stage::Wiring, async {
            let line = current();
            let gate = || drop(enter(Stage::Gate));
            tokio::task::spawn_blocking(move || on_behalf(line, gate)).await.unwrap();
        })));
        assert_eq!(names(&stages.spent()), ["wiring", "gate"]);
    }

    #[test]
    fn work_of_no_request_has_no_stages() {
        let stages = Stages::begin();
        runtime().block_on(during(Stage::Wiring, std::future::ready(())));
        assert_eq!(names(&stages.spent()), [""; 0]);
    }

    #[test]
    fn a_stage_under_way_counts_and_goes_on() {
        let stages = Stages::begin();
        stages.turn_to(Some(Stage::Turn));
        let first = stages.spent();
        assert_eq!(names(&first), ["turn"]);
        assert_eq!(stages.turn_to(None), Some(Stage::Turn));
        assert!(stages.spent().total >= first.total);
    }

    #[test]
    fn a_plugin_that_nobody_knows_has_no_name() {
        assert_eq!(Stages::begin().spent().timing("\u{1b}[2J").plugin, "-");
        assert_eq!(Stages::begin().spent().timing("bridge").plugin, "bridge");
    }

    #[test]
    fn every_stage_has_its_place() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }
}
