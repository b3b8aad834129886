//! Keeps the firewall as ordered: the loop of the threads of `flanneld` and of the agent's forward
//! accepts.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Firewall, FirewallReport, Wanted};

/// What is to be maintained. It may change at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The inputs of the rules.
    pub wanted: Wanted,
    /// The interval between comparisons without an event: legacy iptables sends none.
    pub resync: Duration,
}

/// Minimum pause between repairs, when another program removes our rules repeatedly.
const REPAIR_PAUSE: Duration = Duration::from_millis(200);
/// A changed order takes effect after this time at the latest.
const ORDER_SEEN: Duration = Duration::from_secs(1);

/// Applies the order, again after each change of it or of the ruleset, and reports each result and
/// each failure to read changes. Blocks for ever.
pub fn maintain(
    firewall: &mut Firewall,
    order: &Mutex<Order>,
    mut on_report: impl FnMut(&FirewallReport),
) -> ! {
    let current = || order.lock().unwrap_or_else(PoisonError::into_inner).clone();
    loop {
        let (order, began) = (current(), Instant::now());
        on_report(&firewall.apply(&order.wanted));
        while began.elapsed() < order.resync {
            match firewall.changed(ORDER_SEEN.min(order.resync)) {
                Ok(false) if current() == order => {}
                Ok(_) => break,
                Err(error) => {
                    on_report(&FirewallReport { failed: vec![error], ..FirewallReport::default() });
                    thread::park_timeout(order.resync);
                }
            }
        }
        thread::park_timeout(REPAIR_PAUSE.saturating_sub(began.elapsed()));
    }
}

// === impl FirewallReport ===

impl FirewallReport {
    /// The failures that `known` does not have, which has those of this report then: a lasting one
    /// is logged once.
    pub fn new_failures(&self, known: &mut Vec<String>) -> Vec<String> {
        let failed: Vec<String> = self.failed.iter().map(ToString::to_string).collect();
        let new = failed.iter().filter(|error| !known.contains(error)).cloned().collect();
        *known = failed;
        new
    }
}
