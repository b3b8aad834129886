//! Keeps the firewall as it should be: a thread of its own that applies what is wanted, then waits for somebody else's hand and repairs
//! within a second, and looks again at every `iptables-resync` (flannel.md section 7). Started by the daemon once the subnet is known.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_overlay::firewall::{Culprit, Firewall, FirewallError, Mode, Report, Wanted};
use tokio::sync::oneshot;

use crate::flags::{FirewallKind, Options};
use crate::health::Status;
use crate::subnet_env::SubnetEnv;

/// The thread's orders, which may change.
pub struct Guard {
    order: Arc<Mutex<Order>>,
}

/// What the firewall is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Where the rules go; fixed from the start.
    pub mode: Mode,
    /// What they are made from.
    pub wanted: Wanted,
    /// What an earlier daemon of this node made them from.
    pub previous: Wanted,
    /// The pause between looks when nobody changes anything.
    pub resync: Duration,
}

/// What is told, and to whom.
struct Log {
    status: Arc<Status>,
    /// The failures of the last look.
    told: Vec<String>,
    fights: Fights,
}

/// Notices that another process undoes the repairs.
#[derive(Debug, Default)]
struct Fights {
    /// When rules were repaired lately, the newest last.
    repairs: VecDeque<Instant>,
    /// When that was warned of.
    warned: Option<Instant>,
}

/// Why there is nobody who keeps the firewall.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] FirewallError),
    /// There is no thread for it.
    #[error("start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread panicked before the rules were there.
    #[error("its thread ended early")]
    Broken,
}

/// So many repairs within this time are another process's work: a flannel daemon restores its own rules every 5 s.
const FIGHT_REPAIRS: usize = 4;
const FIGHT_WINDOW: Duration = Duration::from_secs(60);
/// The warning comes again after this long.
const FIGHT_SILENCE: Duration = Duration::from_secs(600);
/// Somebody who removes our rules again and again is answered this often at most.
const REPAIR_PAUSE: Duration = Duration::from_millis(200);
/// Orders that change are seen after this long at the latest.
const ORDERS_SEEN: Duration = Duration::from_secs(1);
/// Netlink and rules; nothing deep.
const STACK_BYTES: usize = 256 * 1024;

// === impl Order ===

impl Order {
    /// From the flags, the network, this node's subnets and what its last `subnet.env` said.
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
}

fn nets(v4: Option<IpNet>, v6: Option<IpNet>) -> Vec<IpNet> {
    v4.into_iter().chain(v6).collect()
}

// === impl Guard ===

impl Guard {
    /// Opens the firewall in the process's namespace and applies the order; then the thread goes on for as long as the process. Answers once
    /// the rules are there. Rules that are refused are logged and tried again; a firewall that cannot be opened is an error.
    pub async fn start(order: Order, status: Arc<Status>) -> Result<Self, GuardError> {
        let shared = Arc::new(Mutex::new(order.clone()));
        let (tell, applied) = oneshot::channel();
        let orders = Arc::clone(&shared);
        let run = move || match Firewall::open(order.mode) {
            Ok(mut firewall) => {
                let mut log = Log { status, told: Vec::new(), fights: Fights::default() };
                log.note(&firewall.apply(&order.wanted), "a rule is set");
                // Whoever asked may have given up. What an earlier daemon left is looked for afterwards: that may take programs of iptables.
                let _ = tell.send(Ok(()));
                log.note(&firewall.recycle(&order.previous), "a rule of an earlier network is removed");
                watch(&mut firewall, order, &orders, &mut log);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = thread::Builder::new().name("firewall".to_owned()).stack_size(STACK_BYTES);
        let _runs_for_ever = thread.spawn(run).map_err(GuardError::Thread)?;
        applied.await.map_err(|_panic| GuardError::Broken)??;
        Ok(Self { order: shared })
    }

    /// Gives a new order.
    pub fn change(&mut self, order: Order) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = order;
    }
}

fn watch(firewall: &mut Firewall, mut order: Order, orders: &Mutex<Order>, log: &mut Log) {
    loop {
        let began = Instant::now();
        let mut due = false;
        while !due && began.elapsed() < order.resync {
            due = match firewall.changed(ORDERS_SEEN.min(order.resync)) {
                Ok(changed) => changed,
                Err(error) => {
                    tracing::warn!(%error, "listen to changes of the firewall");
                    thread::park_timeout(REPAIR_PAUSE);
                    true
                }
            };
            let now = orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
            due |= now != order;
            order = now;
        }
        let report = firewall.apply(&order.wanted);
        log.note(&report, "a rule is repaired");
        log.note_fight(&report, Instant::now());
        if !report.repaired.is_empty() {
            log.status.rules_repaired.notify_one();
        }
        thread::park_timeout(REPAIR_PAUSE.saturating_sub(began.elapsed()));
    }
}

// === impl Log ===

impl Log {
    /// Tells of every repair, and of a failure when it is new: what cannot be mended would be told of at each look.
    fn note(&mut self, report: &Report, what: &str) {
        for repair in &report.repaired {
            self.status.repairs.fetch_add(1, Ordering::Relaxed);
            match &report.culprit {
                Some(Culprit { process, pid }) => {
                    tracing::info!(%repair, after = process.escape_debug().to_string(), pid, "{what}");
                }
                None => tracing::info!(%repair, "{what}"),
            }
        }
        let failed: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
        for error in &failed {
            self.status.failures.fetch_add(1, Ordering::Relaxed);
            if !self.told.contains(error) {
                tracing::warn!(error, "the firewall is not as it should be");
            }
        }
        self.told = failed;
    }

    /// Warns where repairs are undone again and again.
    fn note_fight(&mut self, report: &Report, now: Instant) {
        if report.repaired.is_empty() || !self.fights.repaired(now) {
            return;
        }
        let last = report.culprit.as_ref().map_or_else(
            || "unknown".to_owned(),
            |Culprit { process, pid }| format!("{} ({pid})", process.escape_debug()),
        );
        tracing::warn!(
            changed_by = last,
            "another process changes the rules again and again; is it a second flannel daemon on this node? Stop it: the two undo each other's rules"
        );
    }
}

// === impl Fights ===

impl Fights {
    /// Notes a repair; whether it is time to warn.
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
    fn repairs_that_are_undone_again_and_again_are_warned_of_once() {
        let (mut fights, start) = (Fights::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let warned: Vec<u64> = (0..130).map(|round| round * 5).filter(|s| fights.repaired(at(*s))).collect();
        assert_eq!(warned, [15, 615]);
        let mut rare = Fights::default();
        assert!(!(0..10).any(|round| rare.repaired(at(round * 30))));
    }
}
