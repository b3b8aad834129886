//! One thread of the storm: what a runtime does with a few pods of one node, whatever happens around it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use russet_linux::NetNs;

use super::owners::Owners;
use super::site::Site;
use crate::node::{Answer, TestPod};
use russet_testkit::Random;

/// What the lanes of all nodes have in common.
#[derive(Default)]
pub struct Storm {
    pub owners: Owners,
    /// Set when it is time to stop.
    pub over: AtomicBool,
    /// So many plugins are to be killed.
    pub orders: AtomicUsize,
    /// Plugins that ended by themselves.
    pub answers: AtomicUsize,
    /// And those among them that did what they were asked for.
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

/// What a lane leaves behind.
#[derive(Default)]
pub struct Left {
    pub alive: Vec<Alive>,
    /// Pods that are to be deleted once more: an ADD or DEL of theirs failed, or was killed.
    pub dead: Vec<TestPod>,
    /// Pods of which the runtime knows nothing any more, as after a crash of its own. Only GC can find them.
    pub forgotten: Vec<TestPod>,
}

/// A lane's running pods are at most this many.
const ALIVE_MAX: usize = 5;
/// The longest time from a plugin's start to its being killed: somewhat more than most take.
const KILL_WITHIN: Duration = Duration::from_millis(40);

// === impl Storm ===

impl Storm {
    /// Runs a plugin, which is killed if that is ordered.
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

// === impl Left ===

impl Left {
    /// Starts and deletes pods until the storm is over.
    pub fn by(storm: &Storm, site: &Site, mut random: Random) -> Self {
        let mut left = Self::default();
        while !storm.over.load(Ordering::Relaxed) {
            if left.alive.len() < ALIVE_MAX && !random.once_in(left.alive.len() + 1) || left.alive.is_empty()
            {
                left.add(storm, site, &mut random);
            } else {
                let index = random.below(left.alive.len());
                let alive = left.alive.swap_remove(index);
                // From here on the address may be another's, even if the plugin is killed.
                storm.owners.give_up(&alive);
                match random.once_in(6) {
                    true => left.forget(alive.pod),
                    false => left.del(storm, site, alive.pod, &mut random),
                }
            }
        }
        left
    }

    fn add(&mut self, storm: &Storm, site: &Site, random: &mut Random) {
        let pod = site.new_pod();
        // Some runtimes try the same container again.
        for _ in 0..2 {
            if let Some(answer) = storm.call(site, "ADD", &pod, random).filter(|answer| answer.status == 0) {
                let alive = Alive::of(pod, &answer);
                storm.owners.claim(&alive);
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
            _ => self.del(storm, site, pod, random),
        }
    }

    /// What a machine does that goes down without a word: there is no namespace any more, and nobody deletes the pod.
    fn forget(&mut self, pod: TestPod) {
        NetNs::delete_named(&pod.netns_name).unwrap();
        self.forgotten.push(pod);
    }

    fn del(&mut self, storm: &Storm, site: &Site, pod: TestPod, random: &mut Random) {
        let gone = random.once_in(4);
        if gone {
            NetNs::delete_named(&pod.netns_name).unwrap();
        }
        let done = storm.call(site, "DEL", &pod, random).is_some_and(|answer| answer.status == 0);
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
