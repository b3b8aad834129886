//! Keeps the fast path (`russet_overlay::fast_path`) as the kernel's own path is: has its maps follow
//! interfaces, routes and neighbours, and raises the epoch of flows when another program changes
//! rules or routes. The thread `policies` raises it for decisions, before and after they take effect.
//!
//! [`Signal`] is called by the thread `drift`, which listens to the kernel's events. The work is done
//! by a thread of its own, so that ADDs and repairs do not wait for it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_attach::naming::is_doomed;
use russet_linux::bpf::BpfError;
use russet_linux::sysctl;
use russet_netlink::{Change, Event, FdbTable, NeighbourState, NetlinkError, Route, RouteLookup, Socket};
use russet_overlay::ROUTE_PROTOCOL;
use russet_overlay::fast_path::{Applied, Content, FastPath, FlowEpoch, KernelPath, content};

use crate::config::SettingError;
use crate::health::{Condition, Readiness};
use crate::metrics::FastPathMetrics;

/// Whether packets of known flows take the fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FastPathMode {
    #[default]
    Off,
    /// Where the kernel can.
    Auto,
    /// The node is not ready without it.
    Require,
}

/// What the thread is notified of. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    epoch: FlowEpoch,
    shared: Arc<(Mutex<Dirty>, Condvar)>,
}

/// What may have changed since the maps were written.
#[derive(Debug, Clone, Copy, Default)]
struct Dirty {
    /// Where packets to other nodes go.
    nodes: bool,
    /// Pods' interfaces.
    pods: bool,
    /// Routes to the tunnels' other ends.
    underlay: bool,
    /// The epoch could not be raised.
    is_broken: bool,
}

/// The state of the thread.
struct Follower {
    fast_path: FastPath,
    signal: Signal,
    socket: Socket,
    underlay: BTreeMap<IpAddr, RouteLookup>,
    metrics: FastPathMetrics,
    readiness: Readiness,
    is_active: bool,
}

/// An error of the thread's work.
#[derive(Debug, thiserror::Error)]
enum FastPathError {
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Sysctl(#[from] sysctl::SysctlError),
}

/// The subject of remarks at `/readyz?verbose`.
const SUBJECT: &str = "fast path";
/// How long pods' interfaces have to be unchanged before their programs are attached: an ADD changes
/// them a dozen times.
const QUIET: Duration = Duration::from_millis(50);
/// At most so long does a stream of ADDs and DELs delay that.
const QUIET_MAX: Duration = Duration::from_millis(500);
/// Everything is compared so often, also for what has no event, such as other programs at a link.
const RESYNC: Duration = Duration::from_secs(60);
/// Comparisons have this part of a processor: they pause so many times as long as they took.
const PAUSE_FACTOR: u32 = 10;
/// The pause after an error.
const RETRY: Duration = Duration::from_secs(5);
/// Connection tracking then accepts what follows a part of a connection that it has not seen.
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// The prefix of the names of pods' host ends.
const HOST_PREFIX: &str = russet_policy::PREFIX;

/// Loads the fast path and starts the thread that keeps it, if `mode` wants it. Where the kernel
/// refuses, the kernel's own path carries everything.
pub fn start(
    mode: FastPathMode,
    signal: &Signal,
    metrics: FastPathMetrics,
    readiness: &Readiness,
) -> std::io::Result<()> {
    if mode == FastPathMode::Off {
        return Ok(());
    }
    let opened = FastPath::load(&signal.epoch).map_err(FastPathError::from).and_then(|fast_path| {
        metrics.count_by(fast_path.counter()?);
        Ok((fast_path, Socket::route()?))
    });
    let (fast_path, socket) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!(%error, "the kernel's path carries all packets: the fast path cannot be loaded");
            readiness.remark(SUBJECT, Some(format!("off: {error}")));
            if mode == FastPathMode::Require {
                readiness.unmet(Condition::FastPath, error);
            }
            return Ok(());
        }
    };
    if mode == FastPathMode::Require {
        readiness.met(Condition::FastPath);
    }
    let (signal, readiness) = (signal.clone(), readiness.clone());
    let follower = Follower {
        fast_path,
        signal,
        socket,
        underlay: BTreeMap::new(),
        metrics,
        readiness,
        is_active: false,
    };
    std::thread::Builder::new().name("fast-path".to_owned()).spawn(move || follower.run()).map(drop)
}

// === impl FastPathMode ===

impl FromStr for FastPathMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            _ => Err(SettingError::Value {
                setting: "fast path",
                value: text.to_owned(),
                allowed: "`off`, `auto` or `require`",
            }),
        }
    }
}

impl fmt::Display for FastPathMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Require => "require",
        })
    }
}

// === impl Signal ===

impl Signal {
    /// Has every flow be decided again by the kernel's path. To be called before and after a change by
    /// which something may be allowed no longer.
    pub fn raise(&self) {
        self.or_break(self.epoch.raise());
    }

    /// A fast path whose flows cannot be ended is ended as a whole.
    fn or_break(&self, done: Result<(), BpfError>) {
        if let Err(error) = done {
            tracing::error!(%error, "the fast path is switched off: flows cannot be decided again");
            self.mark(Dirty { is_broken: true, ..Dirty::default() });
        }
    }

    /// Takes an event of rtnetlink.
    pub fn heard(&self, event: &Event) {
        let dirty = match event {
            Event::Overrun => Dirty::EVERYTHING,
            Event::Set(change) | Event::Gone(change) => Dirty::of(change),
        };
        if dirty.nodes {
            self.or_break(self.epoch.suspend());
        }
        self.mark(dirty);
    }

    /// Another program has changed rules of nf_tables, or may have.
    pub fn rules_changed(&self) {
        self.raise();
    }

    fn mark(&self, dirty: Dirty) {
        if !dirty.is_any() {
            return;
        }
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.and(dirty);
        changed.notify_one();
    }

    /// What may have changed, at the latest at `due`. Waits until pods' interfaces are quiet; routes do not wait.
    fn wait(&self, due: Instant) -> Dirty {
        let (state, changed) = &*self.shared;
        let mut dirty = state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if dirty.nodes || dirty.is_broken || now >= due || latest.is_some_and(|at| now >= at) {
                return std::mem::take(&mut *dirty);
            }
            let mut pause = due - now;
            if dirty.pods {
                let latest = *latest.get_or_insert(now + QUIET_MAX);
                pause = pause.min(QUIET).min(latest - now);
            }
            let is_waiting_for_quiet = dirty.pods;
            let (next, waited) = changed.wait_timeout(dirty, pause).unwrap_or_else(PoisonError::into_inner);
            dirty = next;
            if is_waiting_for_quiet && waited.timed_out() {
                return std::mem::take(&mut *dirty);
            }
        }
    }
}

// === impl Dirty ===

impl Dirty {
    const EVERYTHING: Self = Self { nodes: true, pods: true, underlay: true, is_broken: false };

    /// What a change of the kernel's tables concerns.
    fn of(change: &Change) -> Self {
        let nodes = Self { nodes: true, ..Self::default() };
        match change {
            Change::Link(link) if link.name.starts_with(HOST_PREFIX) || is_doomed(&link.name) => Self::PODS,
            // An own address that takes packets has a route in the local table.
            Change::Address(_) => Self { underlay: true, ..Self::PODS },
            Change::Link(_) | Change::Rule(_) => Self::EVERYTHING,
            // The kernel's path forwards nothing then.
            Change::Conf(conf) if conf.forwarding == Some(false) => Self::EVERYTHING,
            // Every link that is set up gets such routes.
            Change::Route(route) if is_of_a_link(&route.dst) => Self::default(),
            Change::Route(route) if is_to_a_pod(route) => Self::PODS,
            // Routes to pods of other nodes lead through the tunnel, and not the tunnel through them.
            Change::Route(route) if route.protocol == ROUTE_PROTOCOL => nodes,
            Change::Route(_) => Self::EVERYTHING,
            Change::Qdisc(_) => Self::PODS,
            Change::Neighbour(neighbour) if neighbour.state == NeighbourState::Permanent => Self::PODS,
            Change::Fdb(entry) if entry.permanent && entry.table == FdbTable::Device => nodes,
            Change::Neighbour(_) | Change::Fdb(_) | Change::Conf(_) => Self::default(),
        }
    }

    const PODS: Self = Self { pods: true, nodes: false, underlay: false, is_broken: false };

    fn is_any(self) -> bool {
        self.nodes || self.pods || self.underlay || self.is_broken
    }

    fn and(self, other: Self) -> Self {
        Self {
            nodes: self.nodes || other.nodes,
            pods: self.pods || other.pods,
            underlay: self.underlay || other.underlay,
            is_broken: self.is_broken || other.is_broken,
        }
    }
}

/// Link-local or multicast addresses, which no packet between pods has.
fn is_of_a_link(dst: &IpNet) -> bool {
    match dst {
        IpNet::V4(net) => net.addr().is_link_local() || net.addr().is_multicast(),
        IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
    }
}

/// A route to one address on a link.
fn is_to_a_pod(route: &Route) -> bool {
    route.gateway.is_none()
        && route.multipath.is_empty()
        && route.dst.prefix_len() == route.dst.max_prefix_len()
}

// === impl Follower ===

impl Follower {
    fn run(mut self) {
        let mut dirty = Dirty::EVERYTHING;
        loop {
            if dirty.is_broken {
                // Dropped with this thread: all programs are detached.
                self.readiness.remark(SUBJECT, Some("off: flows cannot be decided again".to_owned()));
                self.metrics.show(None);
                return;
            }
            if dirty.underlay {
                self.underlay.clear();
            }
            let began = Instant::now();
            let next = match self.follow() {
                Ok(()) => {
                    self.pause(began.elapsed() * PAUSE_FACTOR);
                    RESYNC
                }
                Err(error) => {
                    self.signal.or_break(self.signal.epoch.suspend());
                    tracing::warn!(%error, "the kernel's path carries all packets until the fast path follows it again");
                    self.readiness.remark(SUBJECT, Some(format!("off: {error}")));
                    self.metrics.show(None);
                    RETRY
                }
            };
            dirty = self.signal.wait(Instant::now() + next);
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is waited for: the thread leaves the processor to others"
    )]
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn follow(&mut self) -> Result<(), FastPathError> {
        let suspensions = self.signal.epoch.suspensions();
        let wanted = self.read()?;
        let applied = self.fast_path.apply(wanted)?;
        self.signal.epoch.resume(suspensions)?;
        self.report(&applied);
        Ok(())
    }

    fn read(&mut self) -> Result<Content, FastPathError> {
        let kernel = KernelPath::read(&mut self.socket, &mut self.underlay)?;
        let content = content(&kernel, HOST_PREFIX, ROUTE_PROTOCOL);
        if content.endpoints.is_empty() {
            return Ok(content);
        }
        match sysctl::write_if_different(LIBERAL, "1") {
            // Nothing is tracked on this node.
            Err(error) if error.is_missing() => {}
            written => _ = written?,
        }
        Ok(content)
    }

    fn report(&mut self, applied: &Applied) {
        if let Some(reason) = &applied.failed {
            tracing::debug!(reason, "a program of the fast path is not attached");
        }
        let content = self.fast_path.content();
        let is_active = !content.hooks.is_empty();
        if is_active != std::mem::replace(&mut self.is_active, is_active) {
            match is_active {
                true => tracing::info!("the fast path carries known flows"),
                false => tracing::info!("no pod is on the fast path"),
            }
        }
        let remark = match (content.left_out.len(), applied.shared.len()) {
            (0, 0) => None,
            (limited, shared) => Some(format!(
                "not at {} interfaces: {limited} have queueing disciplines or filters, {shared} programs of others",
                limited + shared
            )),
        };
        self.readiness.remark(SUBJECT, remark);
        self.metrics.show(Some(content));
    }
}

#[cfg(test)]
mod tests;
