//! Checks pods during the whole trial: live ones are in the store and have their interface, and
//! files stay within their limits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use russet_testkit::let_pass;

use super::files;
use super::runtime_thread::Arena;
use super::tracked_node::TrackedNode;
use crate::chaos::kernel;
use crate::chaos::store_records::StoreRecords;

/// The interval of the checks: each starts a few programs, and the CPUs are needed for the load.
const PAUSE: Duration = Duration::from_millis(300);

/// The number of checks.
#[derive(Default)]
pub struct Seen {
    /// Pods whose addresses were compared with the store's.
    pub in_store: AtomicUsize,
    /// Pods whose namespaces were checked.
    pub in_pods: AtomicUsize,
}

// === impl Seen ===

impl Seen {
    /// Until the trial is over.
    pub fn watch(&self, arena: &Arena, nodes: &[TrackedNode]) {
        for round in 0.. {
            if arena.is_over() {
                return;
            }
            let node = &nodes[round % nodes.len()];
            self.look(node, round);
            files::assert_bounded(&node.site);
            let_pass(PAUSE);
        }
    }

    fn look(&self, node: &TrackedNode, round: usize) {
        let before = node.alive();
        // While its owner is not running, the store cannot be read, and opening it would block the
        // plugins.
        let records = node.site.is_ready().then(|| StoreRecords::read(&node.site)).and_then(Result::ok);
        let nth = if before.is_empty() { None } else { before.get(round / 2 % before.len()) };
        let inside = nth.map(|(alive, _)| kernel::faults_inside(alive));
        // Only pods that were live all the time count.
        let still = node.alive();
        let still = |container: &str| still.iter().any(|(alive, _)| alive.pod.container == container);
        for (alive, _) in before.iter().filter(|(alive, _)| still(&alive.pod.container)) {
            let Some(records) = &records else { break };
            let wanted = alive.addresses.iter().map(String::as_str).collect();
            assert_eq!(
                records.addresses(&alive.pod.container),
                wanted,
                "{} in the store",
                alive.pod.container
            );
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
