//! Pauses of the fast path: packets of a pod, or to and from a node, take the kernel's path for a while, so that a
//! capture sees them at every device. Each has an end that its owner moves on, so that none outlives a
//! command that was killed by more than [`PAUSE_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use russet_overlay::fast_path::Paused;
use serde::{Deserialize, Serialize};

/// Path on the agent's socket.
pub const PAUSE_PATH: &str = "/v1/fast-path/pause";
/// The longest time until a pause has to be asked for again.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Begins a pause, moves its end on, or ends it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PauseRequest {
    /// Any number by which its owner names the pause.
    pub id: u64,
    /// Indexes of pods' host ends, and of tunnels' devices.
    pub interfaces: BTreeSet<u32>,
    /// The outer addresses of nodes.
    pub peers: BTreeSet<IpAddr>,
    /// How long from now on, in milliseconds; 0 ends it.
    pub for_ms: u64,
}

/// The answer, once it is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseReport {
    /// [`Self::SCHEMA`].
    pub schema: u32,
    /// Whether there is a fast path on this node to be paused.
    pub is_on: bool,
}

/// The pauses, and how far the maps have followed them.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    state: Mutex<State>,
    followed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    current: BTreeMap<u64, (Paused, Instant)>,
    /// Grows with each change of what is paused.
    version: u64,
    /// The version that the maps have.
    applied: u64,
}

/// More captures at a time are refused.
const PAUSES_MAX: usize = 64;
/// A capture has a handful of interfaces, or the addresses of one node.
const MEMBERS_MAX: usize = 64;

// === impl PauseReport ===

impl PauseReport {
    pub const SCHEMA: u32 = 1;
}

// === impl Pauses ===

impl Pauses {
    /// Takes a request. The version to wait for, if it changes what is paused.
    pub(super) fn take(&self, request: &PauseRequest, now: Instant) -> Result<Option<u64>, String> {
        let mut state = self.state();
        if request.for_ms == 0 {
            return Ok(state.current.remove(&request.id).map(|_| state.grow()));
        }
        let until = now + Duration::from_millis(request.for_ms).min(PAUSE_MAX);
        let paused = Paused { interfaces: request.interfaces.clone(), peers: request.peers.clone() };
        if let Some((known, end)) = state.current.get_mut(&request.id)
            && *known == paused
            && *end > now
        {
            *end = until;
            return Ok(None);
        }
        if paused.interfaces.len() + paused.peers.len() > MEMBERS_MAX {
            return Err(format!("a pause has at most {MEMBERS_MAX} interfaces and nodes"));
        }
        if state.current.len() >= PAUSES_MAX && !state.current.contains_key(&request.id) {
            return Err(format!("the fast path is paused for {PAUSES_MAX} captures already"));
        }
        state.current.insert(request.id, (paused, until));
        Ok(Some(state.grow()))
    }

    /// What is to be paused now, and its version.
    pub(super) fn wanted(&self, now: Instant) -> (Paused, u64) {
        let mut state = self.state();
        let before = state.current.len();
        state.current.retain(|_, (_, until)| *until > now);
        if state.current.len() != before {
            state.grow();
        }
        let mut all = Paused::default();
        for (paused, _) in state.current.values() {
            all.interfaces.extend(&paused.interfaces);
            all.peers.extend(&paused.peers);
        }
        (all, state.version)
    }

    /// When the next pause ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.state().current.values().map(|(_, until)| *until).min()
    }

    /// The maps have what this version wants.
    pub(super) fn followed(&self, version: u64) {
        self.state().applied = version;
        self.followed.notify_all();
    }

    /// Waits for that; false if it takes too long.
    pub(super) fn wait(&self, version: u64, limit: Duration) -> bool {
        let waited = self.followed.wait_timeout_while(self.state(), limit, |state| state.applied < version);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn grow(&mut self) -> u64 {
        self.version += 1;
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, interface: u32, for_ms: u64) -> PauseRequest {
        PauseRequest { id, interfaces: [interface].into(), peers: BTreeSet::new(), for_ms }
    }

    fn paused(pauses: &Pauses, now: Instant) -> Vec<u32> {
        pauses.wanted(now).0.interfaces.into_iter().collect()
    }

    #[test]
    fn a_pause_that_is_not_renewed_ends_and_none_is_longer_than_the_limit() {
        let (pauses, now) = (Pauses::default(), Instant::now());
        let after = |span: Duration| now + span;
        let first = pauses.take(&request(1, 7, 10_000), now).unwrap();
        let second = pauses.take(&request(2, 8, u64::MAX), now).unwrap();
        assert!(first.is_some() && second > first);
        assert_eq!(paused(&pauses, now), [7, 8]);
        assert_eq!(pauses.next_end(), Some(after(Duration::from_secs(10))));
        // Moved on, nothing changes.
        let later = after(Duration::from_secs(6));
        assert_eq!(pauses.take(&request(1, 7, 10_000), later), Ok(None));
        assert_eq!(paused(&pauses, after(Duration::from_secs(15))), [7, 8]);
        assert_eq!(paused(&pauses, after(Duration::from_secs(16))), [8]);
        assert_eq!(paused(&pauses, after(PAUSE_MAX)), [0; 0]);
        assert_eq!(pauses.next_end(), None);
        // One that has ended begins again.
        assert!(pauses.take(&request(1, 7, 10_000), after(PAUSE_MAX)).unwrap().is_some());
    }

    #[test]
    fn two_captures_of_one_pod_do_not_end_each_other() {
        let (pauses, now) = (Pauses::default(), Instant::now());
        pauses.take(&request(1, 7, 1000), now).unwrap();
        pauses.take(&request(2, 7, 1000), now).unwrap();
        assert!(pauses.take(&request(1, 7, 0), now).unwrap().is_some());
        assert_eq!(paused(&pauses, now), [7]);
        assert_eq!(pauses.take(&request(1, 7, 0), now), Ok(None), "it has ended already");
        assert!(pauses.take(&request(2, 7, 0), now).unwrap().is_some());
        assert_eq!(paused(&pauses, now), [0; 0]);
    }

    #[test]
    fn limits_hold_and_the_maps_are_waited_for() {
        let (pauses, now) = (Pauses::default(), Instant::now());
        let many = PauseRequest { interfaces: (0..1000).collect(), ..request(1, 1, 1000) };
        assert!(pauses.take(&many, now).unwrap_err().contains("at most 64 interfaces"));
        for id in 0..PAUSES_MAX as u64 {
            pauses.take(&request(id, 7, 1000), now).unwrap();
        }
        assert!(pauses.take(&request(u64::MAX, 7, 1000), now).unwrap_err().contains("64 captures"));
        let (_, version) = pauses.wanted(now);
        assert!(!pauses.wait(version, Duration::ZERO));
        pauses.followed(version);
        assert!(pauses.wait(version, Duration::ZERO));
    }
}
