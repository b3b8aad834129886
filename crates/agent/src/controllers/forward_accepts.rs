//! Accepts forwarded packets of pods where another program drops them: Docker, ufw and firewalld
//! do, and an accept in a table of ours would not help (calico-cni.md section 5.2, oracle 76).
//! `overlay`'s firewall adds marked accepts to their chains. A dedicated thread waits for changes
//! of other programs and restores accepts that they removed. It touches nothing else, so it never
//! works on the same objects as the other controllers. Used by `controllers`.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use russet_addr::IpNet;
use russet_overlay::firewall::{Firewall, FirewallReport, Order, Wanted, maintain};

use crate::drift::lock;

/// The pools whose packets are accepted. Once started, the thread runs as long as the process.
#[derive(Debug, Default)]
pub struct ForwardAccepts {
    /// None before the first pool is set.
    order: Mutex<Option<Arc<Mutex<Order>>>>,
}

/// Interval of checking legacy iptables, which sends no events, where it has rules.
const RESYNC: Duration = Duration::from_secs(10);
/// The thread only runs netlink requests.
const STACK_BYTES: usize = 256 * 1024;

// === impl ForwardAccepts ===

impl ForwardAccepts {
    /// Sets the pools. An empty list withdraws all accepts.
    pub fn set_pools(&self, networks: impl IntoIterator<Item = IpNet>) {
        let mut networks: Vec<IpNet> = networks.into_iter().collect();
        networks.sort();
        networks.dedup();
        let wanted = Wanted { networks, forward: true, ..Wanted::default() };
        let new = Order { wanted, resync: RESYNC };
        let mut order = lock(&self.order);
        match &*order {
            Some(order) => *lock(order) = new,
            // Even without pools, because an earlier agent may have left accepts.
            None => *order = start(new),
        }
    }
}

/// Starts the thread in the process's own network namespace. None if that fails; the next call
/// tries again.
fn start(order: Order) -> Option<Arc<Mutex<Order>>> {
    let shared = Arc::new(Mutex::new(order));
    let order = Arc::clone(&shared);
    let run = move || {
        let (mut firewall, mut logged) = (opened(Firewall::exceptions, RESYNC), Vec::new());
        maintain(&mut firewall, &order, |report| log_report(report, &mut logged))
    };
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

/// Logs repairs, and each lasting failure once.
fn log_report(report: &FirewallReport, logged: &mut Vec<String>) {
    for repair in &report.repaired {
        let by = report.culprit.as_ref().map(ToString::to_string);
        tracing::info!(%repair, after = by.as_deref().unwrap_or("an unknown program"), "forwarded packets of pods are accepted");
    }
    for error in report.new_failures(logged) {
        tracing::warn!(%error, "other programs may drop packets of pods to other nodes");
    }
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
