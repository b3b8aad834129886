//! Accepts forwarded packets of pods where another program drops them: Docker, ufw and firewalld
//! do, and an accept in a table of ours would not help (calico-cni.md section 5.2, oracle 76).
//! `overlay`'s firewall adds marked accepts to their chains. A dedicated thread waits for changes
//! of other programs and restores accepts that they removed. It touches nothing else, so it never
//! works on the same objects as the loop that keeps routes and tunnels, which calls this module.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_overlay::firewall::{Firewall, FirewallError, FirewallReport, Wanted};

/// The pools whose packets are accepted. Once started, the thread runs as long as the process.
#[derive(Debug, Default)]
pub struct ForwardAccepts {
    /// None before the first pool is set.
    wanted: Mutex<Option<Arc<Mutex<Wanted>>>>,
}

/// Shortest interval between two repairs, for a program that removes the accepts again and again.
const REPAIR_PAUSE: Duration = Duration::from_millis(200);
/// Longest time until changed pools take effect.
const POOLS_SEEN: Duration = Duration::from_secs(1);
/// Interval of checking legacy iptables, which sends no events, where it has rules.
const LOOK: Duration = Duration::from_secs(10);
/// The thread only runs netlink requests.
const STACK_BYTES: usize = 256 * 1024;

// === impl ForwardAccepts ===

impl ForwardAccepts {
    /// Sets the pools. An empty list withdraws all accepts.
    pub fn set_pools(&self, networks: impl IntoIterator<Item = IpNet>) {
        let mut networks: Vec<IpNet> = networks.into_iter().collect();
        networks.sort();
        networks.dedup();
        let now = Wanted { networks, forward: true, ..Wanted::default() };
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        match &*wanted {
            Some(wanted) => *wanted.lock().unwrap_or_else(PoisonError::into_inner) = now,
            // Even without pools, because an earlier agent may have left accepts.
            None => *wanted = start(now),
        }
    }
}

/// Starts the thread in the process's own network namespace. None if that fails; the next call
/// tries again.
fn start(wanted: Wanted) -> Option<Arc<Mutex<Wanted>>> {
    let shared = Arc::new(Mutex::new(wanted));
    let orders = Arc::clone(&shared);
    let run = move || keep(&mut opened(Firewall::exceptions, LOOK), &orders);
    let spawned =
        thread::Builder::new().name("forward_accepts".to_owned()).stack_size(STACK_BYTES).spawn(run);
    match spawned {
        Ok(_runs_for_ever) => Some(shared),
        Err(error) => {
            tracing::warn!(%error, "the thread for forward accepts cannot be started");
            None
        }
    }
}

/// Opens the firewall, with any number of attempts: what the kernel or a module lacks now may exist
/// later. Logs the first failure only.
fn opened<T, E: Display>(open: impl Fn() -> Result<T, E>, pause: Duration) -> T {
    let mut logged = false;
    loop {
        match open() {
            Ok(firewall) => return firewall,
            Err(error) if !logged => {
                tracing::warn!(%error, "the firewall cannot be opened: where other programs drop forwarded packets, pods have no connection");
                logged = true;
            }
            Err(error) => tracing::debug!(%error, "open the firewall"),
        }
        thread::park_timeout(pause);
    }
}

fn keep(firewall: &mut Firewall, orders: &Mutex<Wanted>) {
    let current = || orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut logged = Vec::new();
    loop {
        let wanted = current();
        let applied = Instant::now();
        log_report(&firewall.apply(&wanted), &mut logged);
        let heard = loop {
            match firewall.changed(POOLS_SEEN) {
                Ok(true) => break Ok(()),
                Ok(false) if current() != wanted || applied.elapsed() >= LOOK => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
        };
        pause(heard, applied);
    }
}

fn pause(heard: Result<(), FirewallError>, applied: Instant) {
    let rest = match heard {
        Ok(()) => REPAIR_PAUSE.saturating_sub(applied.elapsed()),
        Err(error) => {
            tracing::warn!(%error, "changes of the firewall cannot be read");
            LOOK
        }
    };
    thread::park_timeout(rest);
}

/// Logs repairs, and each lasting failure once.
fn log_report(report: &FirewallReport, logged: &mut Vec<String>) {
    for repair in &report.repaired {
        let by = report.culprit.as_ref().map(ToString::to_string);
        tracing::info!(%repair, after = by.as_deref().unwrap_or("an unknown program"), "forwarded packets of pods are accepted");
    }
    let failed: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
    for error in failed.iter().filter(|error| !logged.contains(error)) {
        tracing::warn!(%error, "other programs may drop packets of pods to other nodes");
    }
    *logged = failed;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn opening_the_firewall_is_retried() {
        let tries = Cell::new(0);
        let open = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { Err("no nf_tables yet") } else { Ok(tries.get()) }
        };
        assert_eq!(opened(open, Duration::ZERO), 4);
    }
}
