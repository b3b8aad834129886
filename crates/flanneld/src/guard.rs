//! Maintains the firewall on a thread of its own: applies the wanted rules, repairs changes by
//! other programs within a second, and compares everything again each `iptables-resync` (flannel.md
//! section 7). Started by the daemon once the subnet is known.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::firewall::{
    self, Culprit, Firewall, FirewallError, FirewallReport, Mode, Wanted, maintain,
};
use tokio::sync::oneshot;

use crate::flags::{FirewallKind, Options};
use crate::health::Status;
use crate::subnet_env::SubnetEnv;

/// The thread and its orders, which may change.
pub struct Guard {
    order: Arc<Mutex<firewall::Order>>,
}

/// The wanted state of the firewall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The rules' backend; fixed from the start.
    pub mode: Mode,
    /// The inputs of the rules.
    pub wanted: Wanted,
    /// The inputs of an earlier daemon's rules.
    pub previous: Wanted,
    /// The interval between comparisons without an event.
    pub resync: Duration,
}

/// Logs repairs and failures.
struct Log {
    status: Arc<Status>,
    /// The failures of the last comparison.
    notified: Vec<String>,
    fights: Fights,
}

/// Detects that another process undoes the repairs.
#[derive(Debug, Default)]
struct Fights {
    /// Times of recent repairs, oldest first.
    repairs: VecDeque<Instant>,
    /// When the last warning was logged.
    warned: Option<Instant>,
}

/// Why the firewall is not maintained.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] FirewallError),
    #[error("start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread panicked before the rules were applied.
    #[error("its thread ended early")]
    Broken,
}

/// This many repairs within the window mean that another process undoes them: a flannel daemon
/// restores its own rules every 5 s.
const FIGHT_REPAIRS: usize = 4;
const FIGHT_WINDOW: Duration = Duration::from_secs(60);
/// Interval between warnings.
const FIGHT_SILENCE: Duration = Duration::from_secs(600);
/// The thread uses netlink and rules only, with shallow stacks.
const STACK_BYTES: usize = 256 * 1024;

// === impl Order ===

impl Order {
    /// Builds the order from the flags, the network, this node's subnets and its last `subnet.env`.
    pub fn new(options: &Options, config: &NetworkConfig, own: &SubnetKey, before: &SubnetEnv) -> Self {
        let mode = match options.firewall() {
            FirewallKind::Nft => Mode::Nft,
            FirewallKind::Iptables => Mode::Iptables,
        };
        let wanted = Wanted {
            networks: nets(config.v4().map(IpNet::V4), config.v6().map(IpNet::V6)),
            own: own.subnets().collect(),
            masquerade: options.ip_masq,
            random_fully: !options.fully_random_disable,
            forward: options.forward_rules,
        };
        let previous = Wanted {
            networks: nets(before.network.map(IpNet::V4), before.ipv6_network.map(IpNet::V6)),
            own: nets(before.subnet.map(IpNet::V4), before.ipv6_subnet.map(IpNet::V6)),
            ..wanted.clone()
        };
        Self { mode, wanted, previous, resync: options.resync() }
    }

    fn maintained(&self) -> firewall::Order {
        firewall::Order { wanted: self.wanted.clone(), resync: self.resync }
    }
}

fn nets(v4: Option<IpNet>, v6: Option<IpNet>) -> Vec<IpNet> {
    v4.into_iter().chain(v6).collect()
}

// === impl Guard ===

impl Guard {
    /// Opens the firewall in the process's namespace and applies the order; the thread then runs as
    /// long as the process. Returns once the rules are applied. Refused rules are logged and tried
    /// again; a firewall that cannot be opened is an error.
    pub async fn start(order: Order, status: Arc<Status>) -> Result<Self, GuardError> {
        let shared = Arc::new(Mutex::new(order.maintained()));
        let (sender, applied) = oneshot::channel();
        let orders = Arc::clone(&shared);
        let run = move || match Firewall::open(order.mode) {
            Ok(mut firewall) => {
                let mut log = Log { status, notified: Vec::new(), fights: Fights::default() };
                log.log_report(&firewall.apply(&order.wanted), "a rule is set");
                // The receiver is gone if the caller gave up. Rules of an earlier daemon are
                // removed last, because that may need iptables programs.
                let _ = sender.send(Ok(()));
                log.log_report(&firewall.recycle(&order.previous), "a rule of an earlier network is removed");
                maintain(&mut firewall, &orders, |report| log.log_repairs(report))
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = thread::Builder::new().name("firewall".to_owned()).stack_size(STACK_BYTES);
        let _runs_for_ever = thread.spawn(run).map_err(GuardError::Thread)?;
        applied.await.map_err(|_panic| GuardError::Broken)??;
        Ok(Self { order: shared })
    }

    /// Replaces the order.
    pub fn change(&mut self, order: Order) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = order.maintained();
    }
}

// === impl Log ===

impl Log {
    fn log_repairs(&mut self, report: &FirewallReport) {
        self.log_report(report, "a rule is repaired");
        self.warn_of_fight(report, Instant::now());
        if !report.repaired.is_empty() {
            self.status.rules_repaired.notify_one();
        }
    }

    /// Logs every repair, and a failure only when it is new: a permanent one would be logged at
    /// each comparison.
    fn log_report(&mut self, report: &FirewallReport, what: &str) {
        for repair in &report.repaired {
            self.status.repairs.fetch_add(1, Ordering::Relaxed);
            match &report.culprit {
                Some(Culprit { process, pid }) => {
                    tracing::info!(%repair, after = process.escape_debug().to_string(), pid, "{what}");
                }
                None => tracing::info!(%repair, "{what}"),
            }
        }
        self.status.failures.fetch_add(report.failed.len() as u64, Ordering::Relaxed);
        for error in report.new_failures(&mut self.notified) {
            tracing::warn!(error, "repair the firewall");
        }
    }

    /// Warns when repairs are undone repeatedly.
    fn warn_of_fight(&mut self, report: &FirewallReport, now: Instant) {
        if report.repaired.is_empty() || !self.fights.repaired(now) {
            return;
        }
        let last = report.culprit.as_ref().map_or_else(
            || "unknown".to_owned(),
            |Culprit { process, pid }| format!("{} ({pid})", process.escape_debug()),
        );
        tracing::warn!(
            changed_by = last,
            "another process keeps changing the rules; if it is a second flannel daemon on this node, stop it: the two undo each other's rules"
        );
    }
}

// === impl Fights ===

impl Fights {
    /// Records a repair; returns whether to warn.
    fn repaired(&mut self, now: Instant) -> bool {
        self.repairs.push_back(now);
        while self.repairs.len() > FIGHT_REPAIRS {
            self.repairs.pop_front();
        }
        let first = self.repairs.front().copied().unwrap_or(now);
        let often = self.repairs.len() == FIGHT_REPAIRS && now.duration_since(first) <= FIGHT_WINDOW;
        let silent = self.warned.is_none_or(|warned| now.duration_since(warned) >= FIGHT_SILENCE);
        let warn = often && silent;
        if warn {
            self.warned = Some(now);
        }
        warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_that_are_undone_repeatedly_cause_one_warning() {
        let (mut fights, start) = (Fights::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let warned: Vec<u64> = (0..130).map(|round| round * 5).filter(|s| fights.repaired(at(*s))).collect();
        assert_eq!(warned, [15, 615]);
        let mut rare = Fights::default();
        assert!(!(0..10).any(|round| rare.repaired(at(round * 30))));
    }
}
