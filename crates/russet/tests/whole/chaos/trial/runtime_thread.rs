//! A thread of a trial: a runtime that executes the plan with a few pods of one node, while
//! processes are killed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::let_pass;
use serde_json::json;

use super::event_log::EventLog;
use super::plan::{Afterwards, Op, SLOTS, Step};
use super::tracked_node::{PodState, TrackedNode};
use super::watcher::Seen;
use crate::chaos::RECOVERY;
use crate::chaos::kernel;
use crate::chaos::owners::Owners;
use crate::chaos::store_records::StoreRecords;
use crate::chaos::worker::Alive;
use crate::node::{Answer, TestPod};

/// PodState that the threads of a trial share.
pub struct Arena {
    pub owners: Owners,
    pub events: EventLog,
    /// Operations that have started.
    pub started: AtomicUsize,
    /// The plan's progress: one more than the number of the latest operation that has started.
    /// Power cuts skip some.
    pub reached: AtomicUsize,
    /// Requests that were answered, and those that succeeded.
    pub answers: AtomicUsize,
    pub successes: AtomicUsize,
    /// Plugins that were killed before their answer, and those that were to be killed and were too
    /// fast: another is killed instead.
    pub killed: AtomicUsize,
    pub owed: AtomicUsize,
    /// What the watcher has checked.
    pub seen: Seen,
    /// No further operation may start.
    pub over: AtomicBool,
}

pub struct RuntimeThread<'a> {
    arena: &'a Arena,
    node: &'a TrackedNode,
    slots: &'a mut [Option<TestPod>; SLOTS],
    step: Step,
    /// A plugin of this step is still to be killed.
    due: AtomicBool,
}

/// The code for a request that cannot be served now and may be repeated.
const TRY_AGAIN_LATER: u64 = 11;
/// The interval between DELs that are repeated until success.
const RETRY: Duration = Duration::from_millis(30);

// === impl Arena ===

impl Arena {
    pub fn new(name: &str) -> Self {
        Self {
            owners: Owners::default(),
            events: EventLog::new(name),
            started: AtomicUsize::new(0),
            reached: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            successes: AtomicUsize::new(0),
            killed: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            seen: Seen::default(),
            over: AtomicBool::new(false),
        }
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

// === impl RuntimeThread ===

impl<'a> RuntimeThread<'a> {
    /// Executes all steps, or those that start before the trial is over.
    pub fn play(
        arena: &'a Arena,
        node: &'a TrackedNode,
        slots: &'a mut [Option<TestPod>; SLOTS],
        steps: &[Step],
    ) {
        let Some(first) = steps.first() else { return };
        let mut thread = Self { arena, node, slots, step: *first, due: AtomicBool::new(false) };
        for step in steps {
            if arena.is_over() {
                return;
            }
            arena.started.fetch_add(1, Ordering::Relaxed);
            arena.reached.fetch_max(step.number + 1, Ordering::Relaxed);
            thread.step = *step;
            thread.due.store(step.killed_after.is_some(), Ordering::Relaxed);
            thread.perform();
            if thread.due.load(Ordering::Relaxed) {
                arena.owed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn perform(&mut self) {
        let node = self.node;
        let quiet = (self.step.op != Op::Gc).then(|| node.quiet.read().unwrap());
        let present = self.slots[self.step.slot].clone();
        match (self.step.op, present) {
            (Op::Gc, _) => self.gc(),
            (Op::DelOfUnknown, _) => self.del_of_nobody(),
            (Op::DelInAdd, _) => self.del_in_add(),
            // The plan cannot know which ADDs were killed: an operation on a missing pod starts
            // with an ADD.
            (_, None) => self.add(),
            (Op::Add | Op::AddAgain, Some(pod)) => self.add_again(pod),
            (Op::Check, Some(pod)) => self.check(&pod),
            (Op::Del, Some(pod)) => drop(self.del(pod)),
            (Op::DelTwice, Some(pod)) => {
                if self.del(pod.clone()) {
                    self.ask("DEL", &pod, None);
                }
            }
            (Op::DelWithoutNetns, Some(pod)) => {
                self.give_up(&pod);
                remove_netns(&pod);
                self.del(pod);
            }
            (Op::Forget, Some(pod)) => self.forget(pod, false),
            (Op::ForgetRunning, Some(pod)) => self.forget(pod, true),
        }
        drop(quiet);
    }

    /// One request, killed if this step says so. Returns None if it was.
    fn ask(&self, verb: &str, pod: &TestPod, killed_after: Option<Duration>) -> Option<Answer> {
        self.ask_with(verb, pod, json!({}), killed_after)
    }

    fn ask_with(
        &self,
        verb: &str,
        pod: &TestPod,
        extra: serde_json::Value,
        killed_after: Option<Duration>,
    ) -> Option<Answer> {
        let began = Instant::now();
        let answer = self.node.site.call_with(verb, pod, extra, killed_after);
        if killed_after.is_some() && answer.is_some() {
            self.arena.owed.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = match &answer {
            None => format!("killed after {killed_after:?}"),
            Some(answer) if answer.status == 0 => answer.stdout.replace('\n', " "),
            Some(answer) => format!("{} {}", answer.status, answer.stdout.replace('\n', " ")),
        };
        self.note(verb, pod, &format!("{:.0?} {outcome}", began.elapsed()));
        self.counted(answer)
    }

    /// When this step's plugin is killed: by the plan, or in place of one that had ended by then.
    fn killed_after(&self) -> Option<Duration> {
        self.due.store(false, Ordering::Relaxed);
        let take = |owed: usize| owed.checked_sub(1);
        let inherits = || self.arena.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.step.killed_after.or_else(|| inherits().then_some(self.step.gap / 2))
    }

    fn note(&self, verb: &str, pod: &TestPod, outcome: &str) {
        let Step { number, op, slot, .. } = self.step;
        let (container, netns) = (&pod.container[..12], &pod.netns_name);
        let node = self.node.site.node.netns_name();
        self.arena
            .events
            .note(format_args!("#{number} {node}/{slot} {op:?}: {verb} {container} {netns}: {outcome}"));
    }

    /// A refusal must be one after which a runtime may retry.
    fn counted(&self, answer: Option<Answer>) -> Option<Answer> {
        let Some(answer) = answer else {
            self.arena.killed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.arena.answers.fetch_add(1, Ordering::Relaxed);
        match answer.status {
            0 => _ = self.arena.successes.fetch_add(1, Ordering::Relaxed),
            _ if self.node.is_dark() => {}
            _ => assert_eq!(answer.code(), TRY_AGAIN_LATER, "#{}: {answer:?}", self.step.number),
        }
        Some(answer)
    }

    fn add(&mut self) {
        let pod = self.node.site.new_pod();
        self.slots[self.step.slot] = Some(pod.clone());
        self.try_add(pod, None);
    }

    fn try_add(&mut self, pod: TestPod, before: Option<Alive>) {
        self.node.set(&pod, PodState::Maybe);
        let answer = self.ask("ADD", &pod, self.killed_after()).filter(|answer| answer.status == 0);
        let Some(answer) = answer else { return self.after_failure(pod, true) };
        let alive = Alive::of(pod.clone(), &answer);
        if let Some(before) = before {
            assert_eq!(
                (&alive.addresses, &alive.host_end),
                (&before.addresses, &before.host_end),
                "#{}: ADD repeated for {} gave another answer",
                self.step.number,
                pod.container
            );
        }
        self.arena.owners.claim(&alive);
        self.node.set(&pod, PodState::There(alive, answer.result()));
    }

    fn state(&self, pod: &TestPod) -> PodState {
        self.node.get(&pod.container).expect("a slot's pod is known").state
    }

    fn add_again(&mut self, pod: TestPod) {
        let before = self.give_up(&pod);
        self.try_add(pod, before);
    }

    /// From here on another pod may have the addresses; returns the pod's entry.
    fn give_up(&self, pod: &TestPod) -> Option<Alive> {
        match self.state(pod) {
            PodState::There(alive, _) => {
                self.arena.owners.give_up(&alive);
                self.node.set(pod, PodState::Maybe);
                Some(alive)
            }
            _ => None,
        }
    }

    fn check(&self, pod: &TestPod) {
        let PodState::There(_, result) = self.state(pod) else { return };
        self.ask_with("CHECK", pod, json!({"prevResult": result}), self.killed_after());
    }

    /// Returns true when it is gone.
    fn del(&mut self, pod: TestPod) -> bool {
        self.give_up(&pod);
        let answer = self.ask("DEL", &pod, self.killed_after());
        if answer.is_some_and(|answer| answer.status == 0) {
            self.deleted(&pod);
            return true;
        }
        self.after_failure(pod, self.step.op != Op::DelWithoutNetns);
        false
    }

    fn deleted(&mut self, pod: &TestPod) {
        let left = kernel::left_inside(pod);
        assert!(left.is_empty(), "#{}: DEL of {} left {left:?} in it", self.step.number, pod.container);
        remove_netns(pod);
        self.node.gone(pod);
        self.slots[self.step.slot].take_if(|present| present.container == pod.container);
    }

    fn after_failure(&mut self, pod: TestPod, has_netns: bool) {
        match self.step.afterwards {
            Afterwards::Again if has_netns => {}
            Afterwards::Now => self.del_until_done(&pod),
            Afterwards::Never => self.forget(pod, false),
            Afterwards::Again | Afterwards::Later => {
                self.slots[self.step.slot] = None;
                self.node.set(&pod, PodState::Dead);
            }
        }
    }

    /// Deletes a pod as a runtime must. None of these DELs is killed, and one must succeed in the
    /// end.
    fn del_until_done(&mut self, pod: &TestPod) {
        let began = Instant::now();
        while self.ask("DEL", pod, None).is_none_or(|answer| answer.status != 0) {
            if self.arena.is_over() {
                return;
            }
            assert!(began.elapsed() < RECOVERY, "#{}: {} cannot be deleted", self.step.number, pod.container);
            let_pass(RETRY);
        }
        self.deleted(pod);
    }

    fn forget(&mut self, pod: TestPod, running: bool) {
        self.give_up(&pod);
        self.slots[self.step.slot] = None;
        self.node.set(&pod, PodState::Forgotten);
        if !running {
            remove_netns(&pod);
        }
        self.note("forgotten", &pod, "");
    }

    fn del_of_nobody(&mut self) {
        let pod = self.node.site.new_pod();
        self.node.set(&pod, PodState::Maybe);
        self.ask("DEL", &pod, self.killed_after());
        self.del_until_done(&pod);
    }

    /// Either may come first, and either may be killed; the DEL after both counts.
    fn del_in_add(&mut self) {
        let pod = self.node.site.new_pod();
        self.node.set(&pod, PodState::Maybe);
        let this = &*self;
        std::thread::scope(|scope| {
            let add = scope.spawn(|| this.ask("ADD", &pod, this.killed_after()));
            let_pass(this.step.gap);
            this.ask("DEL", &pod, None);
            add.join().unwrap();
        });
        self.del_until_done(&pod);
    }

    fn gc(&mut self) {
        let _quiet = self.node.quiet.write().unwrap();
        let valid = self.node.valid();
        let forgotten = self.node.those(|state| matches!(state, PodState::Forgotten));
        let killed_after = self.killed_after();
        let answer = self.node.site.gc(&valid.iter().collect::<Vec<_>>(), killed_after);
        if killed_after.is_some() && answer.is_some() {
            self.arena.owed.fetch_add(1, Ordering::Relaxed);
        }
        let node = self.node.site.node.netns_name();
        let outcome = format!("{} of {} valid: {answer:?}", valid.len(), valid.len() + forgotten.len());
        self.arena.events.note(format_args!("#{} {node} GC: {outcome}", self.step.number));
        if self.counted(answer).is_none_or(|answer| answer.status != 0) {
            return;
        }
        // The store may be unreachable by now; then the next comparison detects it.
        if let Ok(records) = StoreRecords::read(&self.node.site) {
            for pod in &forgotten {
                let left = records.addresses(&pod.container);
                assert!(left.is_empty(), "#{}: GC left {left:?} of {}", self.step.number, pod.container);
            }
        }
        for pod in forgotten {
            remove_netns(&pod);
            self.node.gone(&pod);
        }
    }
}

/// A missing namespace is fine.
pub fn remove_netns(pod: &TestPod) {
    let _ = NetNs::delete_named(&pod.netns_name);
}
