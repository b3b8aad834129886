//! Who gets a seat, who has to give one up, and what is counted and logged of that. It does no I/O.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::connection::Seat;
use crate::peer::Peer;

/// What a listener allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The listener, in metrics and log lines.
    pub name: &'static str,
    /// Connections at a time.
    pub connections: usize,
    /// Of these for one peer.
    pub per_peer: usize,
    /// Who may connect.
    pub allowed: Allowed,
    /// How many bytes make a peer one that means to talk to us, as the preface of HTTP/2; 0 where requests say it themselves.
    pub greeting_bytes: usize,
    /// How long a peer may take until its greeting, or its request's head, is complete.
    pub greeting_timeout: Duration,
    /// How long a peer may send nothing while no request of it is in progress; none: as long as it likes, until another needs the seat.
    pub idle_timeout: Option<Duration>,
}

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Whoever can reach the socket.
    Anyone,
    /// Root, and the user that we run as.
    RootAndOwnUser,
}

/// Why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not one of the users that may connect.
    User,
    /// The peer has all its seats, and each has a request in progress.
    PeerShare,
    /// All seats are taken, and each has a request in progress.
    Full,
    /// It waited while another connection needed its seat.
    Displaced,
    /// Its greeting or request was not complete in time.
    Greeting,
    /// It was idle for too long.
    Idle,
    /// It did not take what was sent to it.
    Stalled,
}

/// The seats of one listener; shared by whoever accepts and whoever counts.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    seats: Mutex<Seats>,
    /// A seat is free, or may be had from one who waits.
    freed: Notify,
    closed: [AtomicU64; Reason::ALL.len()],
    last_line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    peer: Peer,
    activity: Arc<Activity>,
    displace: oneshot::Sender<()>,
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<Doing>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Doing {
    /// Requests in progress.
    pub requests: usize,
    /// The greeting is complete.
    pub greeted: bool,
    /// Requests were answered.
    pub answered: bool,
    /// Bytes came since the last answer.
    pub heard: bool,
    /// When the last bytes came, or the last request ended.
    pub since: Instant,
}

/// A request in progress; while there is one, the connection keeps its seat.
#[derive(Debug)]
pub struct Busy(Arc<Activity>, Arc<Admission>);

/// What the log was last told.
#[derive(Debug, Default)]
struct Line {
    at: Option<Instant>,
    /// Connections since then that the log was not told of.
    unsaid: u64,
}

/// Of log lines about connections: a peer that tries a thousand times a second must not fill the log, and the metric counts every one.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

// === impl Reason ===

impl Reason {
    /// Every one.
    pub const ALL: [Self; 7] =
        [Self::User, Self::PeerShare, Self::Full, Self::Displaced, Self::Greeting, Self::Idle, Self::Stalled];

    /// As a label.
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
    /// All seats are free.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (closed, last_line) = (Default::default(), Mutex::default());
        Arc::new(Self { limits, seats: Mutex::default(), freed: Notify::new(), closed, last_line })
    }

    /// What is allowed.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Connections that have a seat now.
    pub fn connections(&self) -> usize {
        self.seats().taken.len()
    }

    /// Connections that were refused or closed for this reason.
    pub fn closed(&self, reason: Reason) -> u64 {
        self.closed.get(reason as usize).map_or(0, |closed| closed.load(Ordering::Relaxed))
    }

    pub(crate) fn freed(&self) -> &Notify {
        &self.freed
    }

    /// A seat for a connection of `peer`, if need be that of a connection that waits: one of the peer's own where the peer has its share, one of the peer
    /// with the most connections where all seats are taken.
    pub(crate) fn admit(self: &Arc<Self>, peer: Peer) -> Result<Seat, Reason> {
        if self.limits.allowed == Allowed::RootAndOwnUser && !peer.is_root_or_own_user() {
            return Err(Reason::User);
        }
        let mut seats = self.seats();
        if seats.of(peer) >= self.limits.per_peer {
            let own = seats.longest_waiting(|taken| taken.peer == peer);
            self.displace(&mut seats, own.ok_or(Reason::PeerShare)?);
        }
        if seats.taken.len() >= self.limits.connections {
            let most = seats.most_connected_waiting().ok_or(Reason::Full)?;
            let its = seats.longest_waiting(|taken| taken.peer == most);
            self.displace(&mut seats, its.ok_or(Reason::Full)?);
        }
        let id = seats.next;
        seats.next += 1;
        let (displace, displaced) = oneshot::channel();
        let activity = Arc::new(Activity::new(self.limits.greeting_bytes == 0));
        seats.taken.insert(id, Taken { peer, activity: Arc::clone(&activity), displace });
        Ok(Seat::new(id, peer, activity, displaced, Arc::clone(self)))
    }

    fn displace(&self, seats: &mut Seats, id: u64) {
        if let Some(Taken { peer, displace, .. }) = seats.taken.remove(&id) {
            // It may be gone by itself meanwhile.
            let _ = displace.send(());
            self.count(peer, Reason::Displaced);
        }
    }

    pub(crate) fn leave(&self, id: u64) {
        self.seats().taken.remove(&id);
        self.freed.notify_waiters();
    }

    /// Counts a connection that was refused or closed, and logs it if the last line is long enough ago.
    pub(crate) fn count(&self, peer: Peer, reason: Reason) {
        if let Some(closed) = self.closed.get(reason as usize) {
            closed.fetch_add(1, Ordering::Relaxed);
        }
        let now = Instant::now();
        let mut line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.at.is_some_and(|at| now - at < LINE_INTERVAL) {
            line.unsaid += 1;
            return;
        }
        let more = std::mem::replace(&mut *line, Line { at: Some(now), unsaid: 0 }).unsaid;
        let (listener, reason) = (self.limits.name, reason.name());
        tracing::warn!(listener, reason, %peer, more_since_last_line = more, "a connection was refused or closed");
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Seats ===

impl Seats {
    fn of(&self, peer: Peer) -> usize {
        self.taken.values().filter(|taken| taken.peer == peer).count()
    }

    /// Those that have not greeted go first.
    fn longest_waiting(&self, counts: impl Fn(&Taken) -> bool) -> Option<u64> {
        let waiting = self.taken.iter().filter(|(_, taken)| counts(taken) && taken.activity.is_waiting());
        let first = waiting.min_by_key(|(_, taken)| {
            let doing = taken.activity.now();
            (doing.greeted, doing.since)
        });
        first.map(|(id, _)| *id)
    }

    fn most_connected_waiting(&self) -> Option<Peer> {
        let mut counts: BTreeMap<Peer, usize> = BTreeMap::new();
        self.taken.values().for_each(|taken| *counts.entry(taken.peer).or_default() += 1);
        let waiting = self.taken.values().filter(|taken| taken.activity.is_waiting());
        waiting.map(|taken| taken.peer).max_by_key(|peer| counts.get(peer))
    }
}

// === impl Doing ===

impl Doing {
    /// Whether it was answered, and has said nothing since.
    pub fn rests(self) -> bool {
        self.answered && !self.heard && self.requests == 0
    }
}

// === impl Activity ===

impl Activity {
    fn new(greeted: bool) -> Self {
        let since = Instant::now();
        Self(Mutex::new(Doing { requests: 0, greeted, answered: false, heard: false, since }))
    }

    pub fn now(&self) -> Doing {
        *self.lock()
    }

    pub fn heard(&self, greeted: bool) {
        let mut doing = self.lock();
        doing.greeted |= greeted;
        doing.heard = true;
        doing.since = Instant::now();
    }

    fn is_waiting(&self) -> bool {
        self.lock().requests == 0
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
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
        let mut doing = self.0.lock();
        doing.requests = doing.requests.saturating_sub(1);
        (doing.answered, doing.heard) = (true, false);
        doing.since = Instant::now();
        drop(doing);
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
    async fn a_peer_with_its_share_gives_up_its_own_longest_waiting_connection() {
        let admission = admission(8, 2);
        let mut first = admission.admit(peer(1)).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut second = admission.admit(peer(1)).unwrap();
        let other = admission.admit(peer(2)).unwrap();
        let _third = admission.admit(peer(1)).unwrap();
        assert!(first.is_displaced() && !second.is_displaced());
        assert_eq!((admission.connections(), admission.closed(Reason::Displaced)), (3, 1));
        drop((first, other));
        assert_eq!(admission.connections(), 2, "a displaced connection has no seat to give back");
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_seats_are_taken_the_peer_with_the_most_connections_gives_one_up() {
        let admission = admission(4, 3);
        let mut few = admission.admit(peer(1)).unwrap();
        let mut many: Vec<Seat> = (0..3).map(|_| admission.admit(peer(2)).unwrap()).collect();
        let _new = admission.admit(peer(3)).unwrap();
        assert!(!few.is_displaced(), "it waited longer, and is one of few");
        assert_eq!(many.iter_mut().map(Seat::is_displaced).filter(|displaced| *displaced).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_progress_is_never_closed_for_another() {
        let admission = admission(2, 2);
        let seats: Vec<Seat> = (0..2).map(|_| admission.admit(peer(1)).unwrap()).collect();
        let busy: Vec<Busy> = seats.iter().map(Seat::busy).collect();
        assert_eq!(admission.admit(peer(1)).map(drop).unwrap_err(), Reason::PeerShare);
        assert_eq!(admission.admit(peer(2)).map(drop).unwrap_err(), Reason::Full);
        drop(busy);
        assert!(admission.admit(peer(2)).is_ok());
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
