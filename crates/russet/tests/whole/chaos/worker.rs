//! One worker thread: a runtime that manages a few pods of one node while processes are killed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use russet_linux::NetNs;

use super::owners::Owners;
use super::site::Site;
use crate::node::{Answer, TestPod};
use russet_testkit::Random;

/// PodState that the workers of all nodes share.
#[derive(Default)]
pub struct SharedLoad {
    pub owners: Owners,
    /// Set to stop the workers.
    pub over: AtomicBool,
    /// How many plugins must still be killed.
    pub orders: AtomicUsize,
    /// Plugins that ended by themselves.
    pub answers: AtomicUsize,
    /// Those of them that succeeded.
    pub successes: AtomicUsize,
}

/// A running pod.
#[derive(Clone)]
pub struct Alive {
    pub pod: TestPod,
    pub addresses: Vec<String>,
    /// The interface's name on the node.
    pub host_end: String,
}

/// The pods of a worker after its end.
#[derive(Default)]
pub struct Remaining {
    pub alive: Vec<Alive>,
    /// Pods that need another DEL: their ADD or DEL failed, or was killed.
    pub dead: Vec<TestPod>,
    /// Pods that the runtime does not know any more, as after its own crash. Only GC can find them.
    pub forgotten: Vec<TestPod>,
}

/// The maximum of running pods per worker.
const ALIVE_MAX: usize = 5;
/// The longest time from a plugin's start until it is killed: somewhat more than most take.
const KILL_WITHIN: Duration = Duration::from_millis(40);

// === impl SharedLoad ===

impl SharedLoad {
    /// Runs a plugin, and kills it if a kill is ordered.
    fn call(&self, site: &Site, verb: &str, pod: &TestPod, random: &mut Random) -> Option<Answer> {
        let take = |orders: usize| orders.checked_sub(1);
        let ordered = self.orders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        let answer = site.call(verb, pod, ordered.then(|| random.delay(KILL_WITHIN)));
        if let Some(answer) = &answer {
            self.answers.fetch_add(1, Ordering::Relaxed);
            self.successes.fetch_add(usize::from(answer.status == 0), Ordering::Relaxed);
        }
        answer
    }
}

// === impl Alive ===

impl Alive {
    pub fn of(pod: TestPod, answer: &Answer) -> Self {
        let host_end = answer.result()["interfaces"][0]["name"].as_str().unwrap().to_owned();
        Self { pod, addresses: answer.addresses(), host_end }
    }

    pub fn netns(&self) -> NetNs {
        NetNs::open_named(&self.pod.netns_name).unwrap()
    }
}

// === impl Remaining ===

impl Remaining {
    /// Adds and deletes pods until the stop.
    pub fn by(load: &SharedLoad, site: &Site, mut random: Random) -> Self {
        let mut left = Self::default();
        while !load.over.load(Ordering::Relaxed) {
            if left.alive.len() < ALIVE_MAX && !random.once_in(left.alive.len() + 1) || left.alive.is_empty()
            {
                left.add(load, site, &mut random);
            } else {
                let index = random.below(left.alive.len());
                let alive = left.alive.swap_remove(index);
                // From here on another pod may have the address, even if the plugin is killed.
                load.owners.give_up(&alive);
                match random.once_in(6) {
                    true => left.forget(alive.pod),
                    false => left.del(load, site, alive.pod, &mut random),
                }
            }
        }
        left
    }

    fn add(&mut self, load: &SharedLoad, site: &Site, random: &mut Random) {
        let pod = site.new_pod();
        // Some runtimes retry with the same container.
        for _ in 0..2 {
            if let Some(answer) = load.call(site, "ADD", &pod, random).filter(|answer| answer.status == 0) {
                let alive = Alive::of(pod, &answer);
                load.owners.claim(&alive);
                self.alive.push(alive);
                return;
            }
            if !random.once_in(3) {
                break;
            }
        }
        match random.below(6) {
            0..2 => self.forget(pod),
            2 => self.dead.push(pod),
            _ => self.del(load, site, pod, random),
        }
    }

    /// A machine that crashes: the namespace is gone, and no DEL follows.
    fn forget(&mut self, pod: TestPod) {
        NetNs::delete_named(&pod.netns_name).unwrap();
        self.forgotten.push(pod);
    }

    fn del(&mut self, load: &SharedLoad, site: &Site, pod: TestPod, random: &mut Random) {
        let gone = random.once_in(4);
        if gone {
            NetNs::delete_named(&pod.netns_name).unwrap();
        }
        let done = load.call(site, "DEL", &pod, random).is_some_and(|answer| answer.status == 0);
        if !gone && done {
            NetNs::delete_named(&pod.netns_name).unwrap();
        }
        if !done && gone && random.once_in(4) {
            self.forgotten.push(pod);
        } else if !done {
            self.dead.push(pod);
        }
    }
}
