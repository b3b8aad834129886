//! Simulated replicas with clocks that differ, pauses, and lost answers: no two may write at once.

use std::time::UNIX_EPOCH;

use russet_sync::Rng;

use super::*;

const MS: Duration = Duration::from_millis(1);
/// How long a write may take: ten seconds, less what the simulated clocks differ in the time of a lease.
const WRITE: Duration = Duration::from_secs(9);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A lease in a server that compares revisions.
struct Stored {
    lease: Option<Lease>,
    revision: u64,
}

impl Stored {
    /// A guarded write.
    fn write(&mut self, read: Option<&(Lease, u64)>, holder: &str) -> Option<Lease> {
        if read.map_or(0, |(_, revision)| *revision) != self.revision {
            return None;
        }
        let mut lease = read.map_or_else(|| Lease::new("ns", "it"), |(lease, _)| lease.clone());
        // Renewals differ in their times only; clocks of replicas may tell any.
        lease.renew(holder, Timing::default().lease, UNIX_EPOCH + MS * u32::try_from(self.revision).unwrap());
        self.revision += 1;
        self.lease = Some(lease.clone());
        Some(lease)
    }

    fn read(&self) -> Option<(Lease, u64)> {
        Some((self.lease.clone()?, self.revision))
    }
}

struct Replica {
    election: Election,
    /// Its clock's start, and its speed in thousandths of the true time.
    offset: Duration,
    speed: u32,
    known: Option<(Lease, u64)>,
    next_try: Duration,
    paused_until: Duration,
}

impl Replica {
    fn now(&self, time: Duration) -> Duration {
        self.offset + time * self.speed / 1000
    }

    fn may_write(&self, time: Duration) -> bool {
        let now = self.now(time);
        self.election.left(now).is_some() && self.election.writes_until().is_some_and(|until| now < until)
    }

    /// One attempt to take or to renew, as the candidate's loop makes it.
    fn attempt(&mut self, stored: &mut Stored, time: Duration, answer_is_lost: bool) {
        let now = self.now(time);
        if self.election.left(now).is_none() {
            self.election.lost();
            self.known = stored.read();
            if self.election.observe(self.known.as_ref().map(|(lease, _)| lease), now) == Turn::Wait {
                return;
            }
        }
        let written = stored.write(self.known.as_ref(), self.election.identity());
        match written {
            Some(lease) if !answer_is_lost => {
                self.election.written(&lease, now);
                self.known = Some((lease, stored.revision));
            }
            Some(_) => self.known = stored.read(),
            None => {
                self.known = stored.read();
                let holder = self.known.as_ref().map(|(lease, _)| lease.holder().to_owned());
                if holder.as_deref() != Some(self.election.identity()) {
                    self.election.lost();
                }
            }
        }
    }
}

/// A run of ten minutes in steps of 50 ms; the number of changes of the leader.
fn run(seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let mut stored = Stored { lease: None, revision: 0 };
    let mut replicas: Vec<Replica> = (0..3)
        .map(|n| Replica {
            election: Election::new(format!("r{n}"), Timing::default()),
            offset: seconds(rng.below(100_000)),
            // A twentieth faster or slower than the true time, far more than clocks of machines.
            speed: 950 + u32::try_from(rng.below(100)).unwrap(),
            known: None,
            next_try: Duration::ZERO,
            paused_until: Duration::ZERO,
        })
        .collect();
    // When each replica began a write last.
    let mut last_write: Vec<Option<Duration>> = vec![None; replicas.len()];
    let (mut leader, mut changes) = (None, 0);
    let mut time = Duration::ZERO;
    while time < seconds(600) {
        time += 50 * MS;
        for n in 0..replicas.len() {
            let replica = &mut replicas[n];
            if time < replica.paused_until {
                continue;
            }
            if rng.below(2_000) == 0 {
                replica.paused_until = time + seconds(rng.below(40));
                continue;
            }
            if replica.may_write(time) {
                let other = (0..last_write.len()).filter(|other| *other != n);
                let other = other.filter_map(|other| last_write[other]).max();
                let ended = other.is_none_or(|began| time >= began + WRITE);
                assert!(ended, "seed {seed}: r{n} writes at {time:?}, another began one at {other:?}");
                last_write[n] = Some(time);
                changes += usize::from(leader.replace(n) != Some(n));
            }
            if time >= replica.next_try {
                replica.next_try = time + seconds(2) + MS * u32::try_from(rng.below(2_000)).unwrap();
                let is_lost = rng.below(20) == 0;
                replica.attempt(&mut stored, time, is_lost);
            }
        }
    }
    changes
}

#[test]
fn no_two_replicas_write_at_once_whatever_their_clocks_and_pauses() {
    let changes: usize = (0..40).map(run).sum();
    assert!(changes > 80, "only {changes} changes of the leader were tried");
}

#[test]
fn a_replica_waits_for_as_long_as_it_has_itself_seen_the_lease_unchanged() {
    let timing = Timing::default();
    let mut election = Election::new("me".to_owned(), timing);
    assert_eq!(election.observe(None, seconds(0)), Turn::Take);
    let mut lease = Lease::new("ns", "it");
    // A holder whose clock is decades behind.
    lease.renew("other", timing.lease, UNIX_EPOCH);
    for (at, turn) in [(1_000, Turn::Wait), (1_014, Turn::Wait), (1_015, Turn::Take)] {
        assert_eq!(election.observe(Some(&lease), seconds(at)), turn, "{at}");
    }
    lease.renew("other", timing.lease, UNIX_EPOCH + seconds(1));
    assert_eq!(election.observe(Some(&lease), seconds(1_016)), Turn::Wait);
    // An operator's annotation is no renewal.
    lease.annotate("russet.dev/gc-accepted", Some("[]".to_owned()));
    assert_eq!(election.observe(Some(&lease), seconds(1_031)), Turn::Take);
    lease.renew("", timing.lease, UNIX_EPOCH + seconds(2));
    assert_eq!(election.observe(Some(&lease), seconds(1_031)), Turn::Take, "it was released");
}

#[test]
fn a_leader_that_cannot_renew_stops_to_write_before_it_stops_to_lead_and_before_others_begin() {
    let timing = Timing::default();
    let mut election = Election::new("me".to_owned(), timing);
    assert_eq!(election.left(seconds(0)), None);
    let mut lease = Lease::new("ns", "it");
    lease.renew("me", timing.lease, UNIX_EPOCH);
    election.written(&lease, seconds(100));
    assert_eq!(election.writes_until(), Some(seconds(105)));
    assert_eq!(election.left(seconds(109)), Some(seconds(1)));
    assert_eq!(election.left(seconds(110)), None);
    election.lost();
    assert_eq!((election.left(seconds(101)), election.writes_until()), (None, None));
}

#[test]
fn times_that_cannot_work_are_refused() {
    let timing = Timing::default();
    assert_eq!(timing.refused(), None);
    let wrong = [
        Timing { lease: Duration::from_millis(1500), ..timing },
        Timing { renew_deadline: seconds(15), ..timing },
        Timing { retry: seconds(5), ..timing },
    ];
    assert!(wrong.iter().all(|timing| timing.refused().is_some()));
}
