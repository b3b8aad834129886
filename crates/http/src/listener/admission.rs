//! Assigns connection slots, displaces waiting connections, and counts and logs refusals. It does
//! no I/O.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::listener::connection::Slot;
use crate::listener::peer::Peer;

/// The limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The listener's name in metrics and log lines.
    pub name: &'static str,
    /// Limit of connections.
    pub connections: usize,
    /// Limit of connections of one peer.
    pub per_peer: usize,
    /// The peers that may connect.
    pub allowed: Allowed,
    /// Number of bytes that identify a peer of the right protocol, like the preface of HTTP/2; 0 if
    /// each request identifies itself.
    pub greeting_bytes: usize,
    /// How long a peer may take to send its greeting, or its request's head.
    pub greeting_timeout: Duration,
    /// How long a peer may send nothing while it has no request in progress. None: until another
    /// connection needs the slot.
    pub idle_timeout: Option<Duration>,
}

/// The peers that may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Every peer that can reach the socket.
    Anyone,
    /// Root, and the user of this process.
    RootAndOwnUser,
}

/// Why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its user may not connect.
    User,
    /// The peer uses all its slots, and each has a request in progress.
    PeerShare,
    /// All slots are in use, and each has a request in progress.
    Full,
    /// It waited while another connection needed its slot.
    Displaced,
    /// Its greeting or request was not complete in time.
    Greeting,
    /// It was idle for too long.
    Idle,
    /// It did not read what was sent to it.
    Stalled,
}

/// The slots of one listener, shared by the acceptor and the metrics.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    slots: Mutex<Slots>,
    /// A slot is free, or a waiting connection can be displaced.
    freed: Notify,
    closed: [AtomicU64; Reason::ALL.len()],
    last_line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    used: BTreeMap<u64, UsedSlot>,
}

#[derive(Debug)]
struct UsedSlot {
    peer: Peer,
    activity: Arc<Activity>,
    displace: oneshot::Sender<()>,
}

/// The activity of a connection.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<ActivityState>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct ActivityState {
    /// Requests in progress.
    pub requests: usize,
    /// The greeting is complete.
    pub greeted: bool,
    /// Requests were answered.
    pub answered: bool,
    /// Bytes arrived since the last answer.
    pub heard: bool,
    /// When the last bytes arrived, or the last request ended.
    pub since: Instant,
}

/// A request in progress. Until it ends, the connection cannot be displaced.
#[derive(Debug)]
pub struct Busy(Arc<Activity>, Arc<Admission>);

/// The last log line.
#[derive(Debug, Default)]
struct Line {
    at: Option<Instant>,
    /// Connections since then that were not logged.
    suppressed: u64,
}

/// Interval of log lines about connections: a peer that tries a thousand times a second must not
/// fill the log, and the metric counts every one.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

// === impl Reason ===

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 7] =
        [Self::User, Self::PeerShare, Self::Full, Self::Displaced, Self::Greeting, Self::Idle, Self::Stalled];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::PeerShare => "peer_share",
            Self::Full => "full",
            Self::Displaced => "displaced",
            Self::Greeting => "greeting",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
        }
    }
}

// === impl Admission ===

impl Admission {
    /// An admission with all slots free.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (closed, last_line) = (Default::default(), Mutex::default());
        Arc::new(Self { limits, slots: Mutex::default(), freed: Notify::new(), closed, last_line })
    }

    /// The limits of the listener.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of connections with a slot.
    pub fn connections(&self) -> usize {
        self.slots().used.len()
    }

    /// Number of connections that were refused or closed for this reason.
    pub fn closed(&self, reason: Reason) -> u64 {
        self.closed.get(reason as usize).map_or(0, |closed| closed.load(Ordering::Relaxed))
    }

    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// Gets a slot for a connection of `peer`, if necessary by displacing a waiting connection: one
    /// of the peer's own if it uses its share, or one of the peer with the most connections if all
    /// slots are in use.
    pub(crate) fn admit(self: &Arc<Self>, peer: Peer) -> Result<Slot, Reason> {
        if self.limits.allowed == Allowed::RootAndOwnUser && !peer.is_root_or_own_user() {
            return Err(Reason::User);
        }
        let mut slots = self.slots();
        if slots.of(peer) >= self.limits.per_peer {
            let own = slots.longest_waiting(|used| used.peer == peer);
            self.displace(&mut slots, own.ok_or(Reason::PeerShare)?);
        }
        if slots.used.len() >= self.limits.connections {
            let most = slots.most_connected_waiting().ok_or(Reason::Full)?;
            let its = slots.longest_waiting(|used| used.peer == most);
            self.displace(&mut slots, its.ok_or(Reason::Full)?);
        }
        let id = slots.next;
        slots.next += 1;
        let (displace, displaced) = oneshot::channel();
        let activity = Arc::new(Activity::new(self.limits.greeting_bytes == 0));
        slots.used.insert(id, UsedSlot { peer, activity: Arc::clone(&activity), displace });
        Ok(Slot::new(id, peer, activity, displaced, Arc::clone(self)))
    }

    fn displace(&self, slots: &mut Slots, id: u64) {
        if let Some(UsedSlot { peer, displace, .. }) = slots.used.remove(&id) {
            // It may have ended meanwhile.
            let _ = displace.send(());
            self.count(peer, Reason::Displaced);
        }
    }

    pub(crate) fn leave(&self, id: u64) {
        self.slots().used.remove(&id);
        self.freed.notify_waiters();
    }

    /// Counts a refused or closed connection, and logs it if the last line is old enough.
    pub(crate) fn count(&self, peer: Peer, reason: Reason) {
        if let Some(closed) = self.closed.get(reason as usize) {
            closed.fetch_add(1, Ordering::Relaxed);
        }
        let now = Instant::now();
        let mut line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.at.is_some_and(|at| now - at < LINE_INTERVAL) {
            line.suppressed += 1;
            return;
        }
        let more = std::mem::replace(&mut *line, Line { at: Some(now), suppressed: 0 }).suppressed;
        let (listener, reason) = (self.limits.name, reason.name());
        tracing::warn!(listener, reason, %peer, more_since_last_line = more, "a connection was refused or closed");
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Slots ===

impl Slots {
    fn of(&self, peer: Peer) -> usize {
        self.used.values().filter(|used| used.peer == peer).count()
    }

    /// Connections without a greeting come first.
    fn longest_waiting(&self, counts: impl Fn(&UsedSlot) -> bool) -> Option<u64> {
        let waiting = self.used.iter().filter(|(_, used)| counts(used) && used.activity.is_waiting());
        let first = waiting.min_by_key(|(_, used)| {
            let state = used.activity.now();
            (state.greeted, state.since)
        });
        first.map(|(id, _)| *id)
    }

    fn most_connected_waiting(&self) -> Option<Peer> {
        let mut counts: BTreeMap<Peer, usize> = BTreeMap::new();
        self.used.values().for_each(|used| *counts.entry(used.peer).or_default() += 1);
        let waiting = self.used.values().filter(|used| used.activity.is_waiting());
        waiting.map(|used| used.peer).max_by_key(|peer| counts.get(peer))
    }
}

// === impl ActivityState ===

impl ActivityState {
    /// Whether its last request was answered, and nothing arrived since.
    pub fn rests(self) -> bool {
        self.answered && !self.heard && self.requests == 0
    }
}

// === impl Activity ===

impl Activity {
    fn new(greeted: bool) -> Self {
        let since = Instant::now();
        Self(Mutex::new(ActivityState { requests: 0, greeted, answered: false, heard: false, since }))
    }

    pub fn now(&self) -> ActivityState {
        *self.lock()
    }

    pub fn heard(&self, greeted: bool) {
        let mut state = self.lock();
        state.greeted |= greeted;
        state.heard = true;
        state.since = Instant::now();
    }

    fn is_waiting(&self) -> bool {
        self.lock().requests == 0
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Busy ===

impl Busy {
    pub(crate) fn begin(activity: &Arc<Activity>, admission: &Arc<Admission>) -> Self {
        activity.lock().requests += 1;
        Self(Arc::clone(activity), Arc::clone(admission))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests = state.requests.saturating_sub(1);
        (state.answered, state.heard) = (true, false);
        state.since = Instant::now();
        drop(state);
        self.1.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections: usize, per_peer: usize) -> Arc<Admission> {
        Admission::new(Limits {
            name: "test",
            connections,
            per_peer,
            allowed: Allowed::Anyone,
            greeting_bytes: 0,
            greeting_timeout: Duration::from_secs(5),
            idle_timeout: None,
        })
    }

    fn peer(pid: u32) -> Peer {
        Peer::Process { pid, uid: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_at_its_limit_loses_its_own_longest_waiting_connection() {
        let admission = admission(8, 2);
        let mut first = admission.admit(peer(1)).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut second = admission.admit(peer(1)).unwrap();
        let other = admission.admit(peer(2)).unwrap();
        let _third = admission.admit(peer(1)).unwrap();
        assert!(first.is_displaced() && !second.is_displaced());
        assert_eq!((admission.connections(), admission.closed(Reason::Displaced)), (3, 1));
        drop((first, other));
        assert_eq!(admission.connections(), 2, "a displaced connection has no slot to release");
    }

    #[tokio::test(start_paused = true)]
    async fn with_all_slots_in_use_the_peer_with_the_most_connections_loses_one() {
        let admission = admission(4, 3);
        let mut few = admission.admit(peer(1)).unwrap();
        let mut many: Vec<Slot> = (0..3).map(|_| admission.admit(peer(2)).unwrap()).collect();
        let _new = admission.admit(peer(3)).unwrap();
        assert!(!few.is_displaced(), "it waited longer, and is one of few");
        assert_eq!(many.iter_mut().map(Slot::is_displaced).filter(|displaced| *displaced).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_progress_is_never_closed_for_another() {
        let admission = admission(2, 2);
        let slots: Vec<Slot> = (0..2).map(|_| admission.admit(peer(1)).unwrap()).collect();
        let busy: Vec<Busy> = slots.iter().map(Slot::busy).collect();
        assert_eq!(admission.admit(peer(1)).map(drop).unwrap_err(), Reason::PeerShare);
        assert_eq!(admission.admit(peer(2)).map(drop).unwrap_err(), Reason::Full);
        drop(busy);
        assert!(admission.admit(peer(2)).is_ok());
    }

    /// The field `more_since_last_line` of each line that is logged.
    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u64>>>);

    impl tracing::field::Visit for LogLines {
        fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
            assert_eq!(field.name(), "more_since_last_line");
            self.0.lock().unwrap().push(value);
        }

        fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn std::fmt::Debug) {}
    }

    impl tracing::Subscriber for LogLines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn refused_connections_are_logged_once_in_ten_seconds_with_their_number() {
        let lines = LogLines::default();
        let _scope = tracing::subscriber::set_default(lines.clone());
        let admission = admission(1, 1);
        let slot = admission.admit(peer(1)).unwrap();
        let _busy = slot.busy();
        let refuse = |times: usize| {
            for _ in 0..times {
                admission.count(peer(2), admission.admit(peer(2)).map(drop).unwrap_err());
            }
        };
        refuse(100);
        assert_eq!(*lines.0.lock().unwrap(), [0]);
        tokio::time::advance(LINE_INTERVAL).await;
        refuse(100);
        assert_eq!(*lines.0.lock().unwrap(), [0, 99]);
        assert_eq!(admission.closed(Reason::Full), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn other_users_are_refused_where_only_root_may_connect() {
        let limits = Limits { allowed: Allowed::RootAndOwnUser, ..*admission(2, 2).limits() };
        let admission = Admission::new(limits);
        let own = rustix::process::geteuid().as_raw();
        let of = |uid| admission.admit(Peer::Process { pid: 7, uid }).map(drop);
        assert_eq!((of(0), of(own), of(own + 1)), (Ok(()), Ok(()), Err(Reason::User)));
    }
}
