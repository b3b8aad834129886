//! Looks at pods all the time that a trial takes: what must be there is in the store and in the pod, and files stay within their bounds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use russet_testkit::let_pass;

use super::files;
use super::player::Arena;
use super::ward::Ward;
use crate::chaos::books::Books;
use crate::chaos::kernel;

/// Between two looks: each starts a few programs, and the processors are for the storm.
const PAUSE: Duration = Duration::from_millis(300);

/// What was looked at.
#[derive(Default)]
pub struct Seen {
    /// Pods whose addresses were compared with the store's.
    pub in_store: AtomicUsize,
    /// Pods that were looked into.
    pub in_pods: AtomicUsize,
}

// === impl Seen ===

impl Seen {
    /// Until the trial is over.
    pub fn watch(&self, arena: &Arena, wards: &[Ward]) {
        for round in 0.. {
            if arena.is_over() {
                return;
            }
            let ward = &wards[round % wards.len()];
            self.look(ward, round);
            files::assert_bounded(&ward.site);
            let_pass(PAUSE);
        }
    }

    fn look(&self, ward: &Ward, round: usize) {
        let before = ward.alive();
        // While its owner is away the store tells nothing, and opening it would be in the plugins' way.
        let books = ward.site.is_ready().then(|| Books::read(&ward.site)).and_then(Result::ok);
        let nth = if before.is_empty() { None } else { before.get(round / 2 % before.len()) };
        let inside = nth.map(|(alive, _)| kernel::faults_inside(alive));
        // Only what was to be there all the time says anything.
        let still = ward.alive();
        let still = |container: &str| still.iter().any(|(alive, _)| alive.pod.container == container);
        for (alive, _) in before.iter().filter(|(alive, _)| still(&alive.pod.container)) {
            let Some(books) = &books else { break };
            let wanted = alive.addresses.iter().map(String::as_str).collect();
            assert_eq!(books.addresses(&alive.pod.container), wanted, "{} in the store", alive.pod.container);
            self.in_store.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some((alive, _)), Some(inside)) = (nth, inside)
            && still(&alive.pod.container)
        {
            assert_eq!(inside, Vec::<String>::new());
            self.in_pods.fetch_add(1, Ordering::Relaxed);
        }
    }
}
