//! Keeps the fast path (`russet_overlay::fast_path`) as the kernel's own path is: has its maps follow
//! interfaces, routes and neighbours, and raises the epoch of flows when another program changes
//! rules or routes. The thread `policies` raises it for decisions, before and after they take effect.
//!
//! [`Signal`] is called by the thread `drift`, which listens to the kernel's events. The work is done
//! by a thread of its own, so that ADDs and repairs do not wait for it. What it does is shown by [`View`].

mod accounts;
mod pauses;
mod served;
mod view;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_attach::Pair;
use russet_attach::naming::is_doomed;
use russet_linux::bpf::{BpfError, Way};
use russet_linux::probe::{self, Feature};
use russet_linux::sysctl;
use russet_netlink::{
    Change, Event, FdbTable, NeighbourState, NetlinkError, Route, RouteKind, RouteLookup, Socket,
};
use russet_overlay::ROUTE_PROTOCOL;
use russet_overlay::fast_path::{
    Applied, FastPath, FastPathMode, FlowEpoch, KernelPath, content, remove_leftovers,
};

use crate::health::{Condition, Readiness};
use crate::metrics::FastPathMetrics;

pub(crate) use accounts::{Accounts, Origin, Share};
pub use pauses::{PAUSE_MAX, PAUSE_PATH, PauseReport, PauseRequest};
pub use served::{ASKED_MAX, FAST_PATH_PATH, FastPathReport, FastPathRequest, InterfaceTraffic};
pub(crate) use view::View;
pub use view::{Ends, Packets, Path, Taken};

/// What the thread is notified of. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    epoch: FlowEpoch,
    shared: Arc<(Mutex<Dirty>, Condvar)>,
    view: View,
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
    /// The node is not ready without it.
    is_required: bool,
    is_active: bool,
    waiting: Waiting,
}

/// Programs that are to be attached once pods' interfaces are quiet.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    /// When pods' interfaces changed last.
    changed: Option<Instant>,
    /// Since when there are such programs.
    since: Option<Instant>,
}

/// When the maps are compared next, without a change before.
enum Next {
    After(Duration),
    /// Programs are left to be attached.
    Attach,
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

/// The environment variable by which a kernel is treated as one without netkit pairs.
const NETKIT: &str = "RUSSET_NETKIT";
/// The subject of remarks at `/readyz?verbose`.
const SUBJECT: &str = "fast path";
/// How long pods' interfaces have to be unchanged before the maps follow them: an ADD changes them a dozen times.
const QUIET: Duration = Duration::from_millis(50);
/// At most so long does a stream of ADDs and DELs delay that.
const QUIET_MAX: Duration = Duration::from_millis(500);
/// Everything is compared so often, also for what has no event, such as other programs at a link.
const RESYNC: Duration = Duration::from_secs(60);
/// Comparisons have this part of a processor: they pause so many times as long as they took.
const PAUSE_FACTOR: u32 = 10;
/// The same while programs are attached, for which each interface in work has to wait.
const ATTACH_PAUSE_FACTOR: u32 = 4;
/// So many programs are attached before such a pause.
const ATTACHED_AT_ONCE: usize = 4;
/// How long pods' interfaces have to be unchanged before programs are attached, so that ADDs and DELs that follow
/// each other do not wait for them. Until then the kernel's path carries a new pod's packets.
const ATTACH_QUIET: Duration = Duration::from_secs(1);
/// At most so long does a stream of ADDs and DELs delay that.
const ATTACH_QUIET_MAX: Duration = Duration::from_secs(10);
/// The pause after an error.
const RETRY: Duration = Duration::from_secs(5);
/// Connection tracking then accepts what follows a part of a connection that it has not seen.
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// Its limits for connections with unacknowledged data, and for others.
const UNACKNOWLEDGED_S: &str = "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged";
const ESTABLISHED_S: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";
/// Everything is compared so often until connections are tracked.
const UNTRACKED_RESYNC: Duration = Duration::from_secs(1);
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
    let view = signal.view.clone();
    view.begin(mode, None);
    metrics.show_from(view.clone(), signal.epoch.clone());
    clear();
    if mode == FastPathMode::Off {
        return Ok(());
    }
    let is_required = mode == FastPathMode::Require;
    let opened =
        FastPath::load(Way::probe(), &signal.epoch).map_err(FastPathError::from).and_then(|fast_path| {
            view.begin(mode, Some(fast_path.observer()?));
            Ok((fast_path, Socket::route()?))
        });
    let (fast_path, socket) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!(%error, "the kernel's path carries all packets: the fast path cannot be loaded");
            view.show_off(&error.to_string());
            show_off(readiness, is_required, &error.to_string());
            return Ok(());
        }
    };
    if is_required {
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
        is_required,
        is_active: false,
        waiting: Waiting::default(),
    };
    std::thread::Builder::new().name("fast-path".to_owned()).spawn(move || follower.run()).map(drop)
}

/// What the interfaces of new pods are: netkit pairs where the fast path has a program there and the kernel has them,
/// unless `RUSSET_NETKIT=off` is in the environment.
pub(crate) fn pair(mode: FastPathMode) -> Pair {
    let is_wanted = || std::env::var_os(NETKIT).is_none_or(|value| value != "off");
    if mode == FastPathMode::Off || !is_wanted() || Way::probe() != Way::Tcx {
        return Pair::Veth;
    }
    match probe::supports(Feature::Netkit) {
        Ok(true) => {
            tracing::info!("the interfaces of new pods are netkit pairs");
            Pair::Netkit
        }
        Ok(false) => Pair::Veth,
        Err(error) => {
            tracing::warn!(%error, "the interfaces of new pods are veths");
            Pair::Veth
        }
    }
}

/// Removes what an agent has left that was killed, and which does nothing any more.
fn clear() {
    match Socket::route().and_then(|mut socket| remove_leftovers(&mut socket)) {
        Ok(0) => {}
        Ok(filters) => tracing::info!(filters, "filters of an earlier agent's fast path removed"),
        Err(error) => tracing::warn!(%error, "look for filters of an earlier agent's fast path"),
    }
}

/// Says why the fast path carries nothing.
fn show_off(readiness: &Readiness, is_required: bool, reason: &str) {
    readiness.remark(SUBJECT, Some(format!("off: {reason}")));
    if is_required {
        readiness.unmet(Condition::FastPath, reason);
    }
}

// === impl Signal ===

impl Signal {
    /// Has every flow be decided again by the kernel's path. To be called before and after a change by
    /// which something may be allowed no longer.
    pub fn raise(&self) {
        self.or_break(self.epoch.raise());
    }

    /// What is seen of the fast path.
    pub(crate) const fn view(&self) -> &View {
        &self.view
    }

    /// What is wanted of pods' interfaces has changed.
    fn pods_changed(&self) {
        self.mark(Dirty::PODS);
    }

    /// Whether pods' interfaces may have the fast path's programs.
    pub fn is_loaded(&self) -> bool {
        self.epoch.is_started()
    }

    /// A fast path whose flows cannot be ended is ended as a whole.
    fn or_break(&self, done: Result<(), BpfError>) {
        if let Err(error) = done {
            tracing::error!(%error, "the fast path is switched off: flows cannot be decided again");
            self.deaf();
        }
    }

    /// Takes an event of rtnetlink.
    pub fn heard(&self, event: &Event) {
        match event {
            Event::Overrun => self.lost(),
            Event::Set(change) | Event::Gone(change) => self.mark(Dirty::of(change)),
        }
    }

    /// Events may have been lost.
    pub fn lost(&self) {
        self.mark(Dirty::EVERYTHING);
    }

    /// Without events of nf_tables nothing is carried.
    pub fn deaf(&self) {
        self.mark(Dirty { is_broken: true, ..Dirty::default() });
    }

    /// Notes what may have changed. Until the maps have followed, flows to other nodes might go astray, so that they are
    /// suspended in the same moment.
    fn mark(&self, dirty: Dirty) {
        if !dirty.is_any() {
            return;
        }
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.and(dirty);
        if dirty.nodes && self.epoch.suspend().is_err() {
            state.is_broken = true;
        }
        changed.notify_one();
    }

    /// What may have changed, and how often flows had been suspended then. Waits at least until `earliest`, and at most until
    /// `latest`, and until pods' interfaces are quiet.
    fn wait(&self, earliest: Instant, latest: Instant) -> (Dirty, u64) {
        let (state, changed) = &*self.shared;
        let mut dirty = state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut quiet_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let is_due = dirty.nodes || now >= latest || quiet_at.is_some_and(|at| now >= at);
            if dirty.is_broken || (is_due && now >= earliest) {
                return (std::mem::take(&mut *dirty), self.epoch.state().suspensions);
            }
            let (had_pods, until) = match (now < earliest, dirty.pods) {
                (true, pods) => (pods, earliest),
                (false, true) => (true, quiet_at.unwrap_or(latest).min(now + QUIET)),
                (false, false) => (false, latest),
            };
            if dirty.pods {
                quiet_at.get_or_insert(now + QUIET_MAX);
            }
            let (next, waited) =
                changed.wait_timeout(dirty, until - now).unwrap_or_else(PoisonError::into_inner);
            dirty = next;
            if had_pods && waited.timed_out() {
                quiet_at = Some(Instant::now());
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

/// A route of Russet's to one address on a link.
fn is_to_a_pod(route: &Route) -> bool {
    route.kind == RouteKind::Unicast
        && route.protocol == ROUTE_PROTOCOL
        && route.gateway.is_none()
        && route.multipath.is_empty()
        && route.dst.prefix_len() == route.dst.max_prefix_len()
}

/// Has connection tracking keep connections of which it sees a part only. False if nothing is tracked yet.
fn keep_connections() -> Result<bool, sysctl::SysctlError> {
    let keep = || {
        sysctl::write_if_different(LIBERAL, "1")?;
        // Of a connection that the fast path carries, it may never see what acknowledges the last data.
        sysctl::write_if_different(UNACKNOWLEDGED_S, &sysctl::read(ESTABLISHED_S)?)
    };
    match keep() {
        Err(error) if error.is_missing() => Ok(false),
        kept => kept.map(|_| true),
    }
}

// === impl Waiting ===

impl Waiting {
    /// How long programs may not be attached yet.
    fn quiet_in(self, now: Instant) -> Duration {
        let left = |from: Instant, span| (from + span).saturating_duration_since(now);
        let quiet = self.changed.map_or(Duration::ZERO, |changed| left(changed, ATTACH_QUIET));
        self.since.map_or(quiet, |since| quiet.min(left(since, ATTACH_QUIET_MAX)))
    }
}

// === impl Follower ===

impl Follower {
    fn run(mut self) {
        let (mut dirty, mut suspensions) = (Dirty::EVERYTHING, self.signal.epoch.state().suspensions);
        loop {
            if dirty.is_broken {
                // Dropped with this thread: all programs are detached.
                self.stand_still("changes that end flows are not noticed");
                return;
            }
            // Also at the regular comparison, for what had no event.
            if dirty.underlay || !(dirty.is_any() || self.waiting.since.is_some()) {
                self.underlay.clear();
            }
            let (began, next) = (Instant::now(), self.follow(suspensions));
            let (earliest, latest) = match next {
                Ok(Next::Attach) => (began.elapsed() * ATTACH_PAUSE_FACTOR, Duration::ZERO),
                Ok(Next::After(span)) => (began.elapsed() * PAUSE_FACTOR, span),
                Err(error) => {
                    self.signal.or_break(self.signal.epoch.suspend());
                    tracing::warn!(%error, "the kernel's path carries all packets until the fast path follows it again");
                    self.stand_still(&error.to_string());
                    (RETRY, RETRY)
                }
            };
            let now = Instant::now();
            // The end of a pause is followed at once.
            let latest = match self.signal.view.pauses().next_end() {
                Some(end) => latest.min(end.saturating_duration_since(now)),
                None => latest,
            };
            (dirty, suspensions) = self.signal.wait(now + earliest, now + latest.max(earliest));
            if dirty.pods {
                self.waiting.changed = Some(Instant::now());
            }
        }
    }

    fn follow(&mut self, suspensions: u64) -> Result<Next, FastPathError> {
        let kernel = KernelPath::read(self.fast_path.way(), &mut self.socket, &mut self.underlay)?;
        let mut content = content(&kernel, HOST_PREFIX, ROUTE_PROTOCOL);
        let (paused, version) = self.signal.view.pauses().wanted(Instant::now());
        content.pause(&paused);
        let is_tracked = content.endpoints.is_empty() || keep_connections()?;
        let quiet_in = self.waiting.quiet_in(Instant::now());
        let attached_max = if quiet_in.is_zero() { ATTACHED_AT_ONCE } else { 0 };
        let applied = self.fast_path.apply(content, attached_max)?;
        self.signal.epoch.resume(suspensions)?;
        self.report(&applied);
        self.signal.view.pauses().followed(version);
        self.waiting.since =
            (applied.unattached > 0).then(|| self.waiting.since.unwrap_or_else(Instant::now));
        Ok(match (applied.unattached, is_tracked) {
            (0, true) => Next::After(RESYNC),
            (0, false) => Next::After(UNTRACKED_RESYNC),
            _ if quiet_in.is_zero() => Next::Attach,
            _ => Next::After(quiet_in),
        })
    }

    fn stand_still(&self, reason: &str) {
        show_off(&self.readiness, self.is_required, reason);
        self.signal.view.show_off(reason);
        self.metrics.show(None);
    }

    fn report(&mut self, applied: &Applied) {
        if self.is_required {
            self.readiness.met(Condition::FastPath);
        }
        if let Some(reason) = &applied.failed {
            tracing::debug!(reason, "a program of the fast path is not attached");
        }
        let content = self.fast_path.content();
        let is_active = applied.attached > 0;
        if is_active != std::mem::replace(&mut self.is_active, is_active) {
            match is_active {
                true => tracing::info!("the fast path carries known flows"),
                false => tracing::info!("no pod is on the fast path"),
            }
        }
        let remark = match (content.left_out.len(), applied.shared.len()) {
            (0, 0) => applied.failed.as_ref().map(|reason| format!("not at all interfaces: {reason}")),
            (limited, shared) => Some(format!(
                "not at {} interfaces: {limited} have queueing disciplines or filters, {shared} programs of others",
                limited + shared
            )),
        };
        self.readiness.remark(SUBJECT, remark);
        self.metrics.show(Some(content));
        self.signal.view.show(content, applied);
    }
}

#[cfg(test)]
mod tests;
