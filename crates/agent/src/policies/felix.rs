//! Follows whether a Felix runs on this node (policy.md section 3.4). While its rules are in force, this
//! agent enforces nothing. Once it has been gone for a while and this agent's decisions are in force, what
//! it left in the kernel is removed.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use russet_overlay::firewall::{felix_filters, remove_felix};

use super::{Policies, Request};
use crate::route_daemons;

/// What of Felix is on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Felix {
    /// It does not run.
    #[default]
    Absent,
    /// It runs, and its rules are not in force yet.
    Starting,
    /// It runs, and its rules are in force.
    Filtering,
}

/// What the looks so far have shown.
#[derive(Debug)]
struct Seen {
    felix: Felix,
    /// Looks in a row at which its rules were in force.
    filtering: u32,
    /// When it was there last; at the start that is not known.
    last: Instant,
    /// Its leftovers were removed, or there were none.
    is_clean: bool,
}

/// Interval of the looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Felix writes the rules of IPv4 before those of IPv6: they count from the second look on.
const LOOKS: u32 = 2;
/// A Felix that is being upgraded is away for this long.
const GRACE: Duration = Duration::from_secs(30);
/// `PROC_PID_INIT_INO`, the inode of the host's PID namespace (linux/proc_ns.h).
const HOST_PIDS: u64 = 0xEFFF_FFFC;

/// Starts the thread that looks.
pub fn start(policies: Policies) -> std::io::Result<()> {
    let mut seen = Seen::new(Instant::now());
    let follow = move || {
        loop {
            look(&policies, &mut seen);
        }
    };
    std::thread::Builder::new().name("felix".to_owned()).spawn(follow)?;
    Ok(())
}

/// Looks once, and waits for the next time.
#[expect(clippy::disallowed_methods, reason = "the kernel sends no event for the start of a program")]
fn look(policies: &Policies, seen: &mut Seen) {
    let runs = route_daemons::has_felix();
    let filters = runs
        && felix_filters().unwrap_or_else(|error| {
            tracing::debug!(%error, "it is not known whether Felix's rules are in force");
            false
        });
    let before = seen.felix;
    if seen.look(runs, filters, Instant::now()) != before {
        policies.request(Request::Felix(seen.felix));
    }
    if seen.is_removal_due(Instant::now()) {
        seen.is_clean = remove(policies);
    }
    std::thread::sleep(INTERVAL);
}

/// Removes what Felix left. False if that has to be tried again.
fn remove(policies: &Policies) -> bool {
    // Without the host's PID namespace a Felix that runs is not seen.
    let sees_all = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|it| it.ino() == HOST_PIDS);
    let may = || *policies.shared.in_force.borrow() && !route_daemons::has_calico_node();
    // Pods of Calico's plugins that are not decided have what it left for them.
    if !sees_all || !may() || !policies.shared.calico_decided.load(Ordering::Acquire) {
        return false;
    }
    match remove_felix(&may) {
        Ok(false) => may(),
        Ok(true) => {
            tracing::info!(
                "Felix has ended, and this agent's decisions are in force: its chains are removed"
            );
            // What was not allowed any more is left for the next look.
            false
        }
        Err(error) => {
            tracing::debug!(%error, "Felix's chains could not be removed");
            false
        }
    }
}

// === impl Seen ===

impl Seen {
    const fn new(now: Instant) -> Self {
        Self { felix: Felix::Absent, filtering: 0, last: now, is_clean: false }
    }

    /// Takes the result of a look.
    fn look(&mut self, runs: bool, filters: bool, now: Instant) -> Felix {
        self.filtering = if runs && filters { self.filtering.saturating_add(1) } else { 0 };
        if runs {
            (self.last, self.is_clean) = (now, false);
        }
        self.felix = match runs {
            false => Felix::Absent,
            true if self.filtering >= LOOKS => Felix::Filtering,
            true => Felix::Starting,
        };
        self.felix
    }

    fn is_removal_due(&self, now: Instant) -> bool {
        self.felix == Felix::Absent && !self.is_clean && now.saturating_duration_since(self.last) >= GRACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn felix_counts_once_its_rules_stay_in_force_and_leaves_something_only_long_after_its_end() {
        let start = Instant::now();
        let mut seen = Seen::new(start);
        assert_eq!(seen.look(false, false, start), Felix::Absent);
        assert!(!seen.is_removal_due(start), "it may be away for a moment");
        let looks = [(true, false), (true, true), (true, true), (true, false), (true, true), (true, true)];
        let found = looks.map(|(runs, filters)| seen.look(runs, filters, start));
        use Felix::{Filtering, Starting};
        assert_eq!(found, [Starting, Starting, Filtering, Starting, Starting, Filtering]);
        let later = start + GRACE;
        assert!(!seen.is_removal_due(later), "it runs");
        assert_eq!(seen.look(true, true, later), Filtering);
        assert_eq!(seen.look(false, false, later), Felix::Absent);
        assert!(!seen.is_removal_due(later + GRACE - INTERVAL));
        assert!(seen.is_removal_due(later + GRACE));
        seen.is_clean = true;
        assert!(!seen.is_removal_due(later + GRACE));
        assert_eq!(seen.look(true, false, later), Starting);
        seen.look(false, false, later);
        assert!(seen.is_removal_due(later + GRACE), "it was there again");
    }
}
