//! Decides which probe is sent when, and what its answer or its absence means. Pure: time, random
//! tokens and arrivals are arguments. `thread` sends and receives.
//!
//! Each slot of the [`Rotation`] has a turn once in each interval, one after the other, so the probes
//! of a node are spread evenly. A turn sends one small echo in each family; a large one while the
//! largest packet that arrives is looked for; and one to the node's own address while the other path
//! fails.

mod packet_size;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::{Family, NodeName};
use russet_linux::echo::{Answer, Arrival, EchoId, PathError, TOKEN_BYTES, packet_min_bytes};

use super::ProbeSettings;
use super::encapsulated::{self, Encapsulated, Ends, PeerKey};
use super::rotation::{Rotation, Stay};
use super::targets::{Path, Target, Targets};
use packet_size::PacketSize;

pub use packet_size::Fits;

/// The state of all probes of a node.
#[derive(Debug)]
pub struct Prober {
    settings: ProbeSettings,
    targets: Arc<Targets>,
    rotation: Rotation,
    states: BTreeMap<(NodeName, Family), State>,
    /// Which paths have carried a packet of the largest size, and when, by node: hashes of both, for nodes that have no
    /// state now.
    proven: BTreeMap<u64, (u64, Instant)>,
    hasher: RandomState,
    next_slot: usize,
    next_at: Instant,
    identifier: u16,
    sequence: u16,
    in_flight: VecDeque<InFlight>,
    /// Nodes whose state or reason may be another than before.
    changed: Vec<(NodeName, Family)>,
    /// Outcomes of small probes that were not counted yet.
    outcomes: Vec<Option<Duration>>,
}

/// A probe to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sending {
    pub source: IpAddr,
    pub to: IpAddr,
    pub id: EchoId,
    pub packet_bytes: usize,
}

/// What is known of one family of one node.
#[derive(Debug)]
pub struct State {
    pub target: Target,
    pub reached: Reached,
    /// How long the last answer took.
    pub rtt: Option<Duration>,
    /// The outcomes of the last probes, the newest last; true: answered.
    outcomes: VecDeque<bool>,
    lost_in_row: u32,
    /// Probes since the node got its slot.
    in_slot: u32,
    size: PacketSize,
    /// Whether the node's own address answers, while its other path does not.
    pub underlay: Option<bool>,
    /// The last error that a machine on the path, or this machine's kernel, gave while probes fail.
    pub error: Option<SendError>,
    /// The encapsulated packets that were counted while it did not answer, once it was for long enough.
    pub encapsulated: Option<Encapsulated>,
    /// Why it does not answer, as far as known.
    pub reason: Option<String>,
    /// When the last probe was answered or lost.
    pub at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reached {
    /// Not decided yet.
    Unknown,
    Yes,
    No,
}

/// Why a probe did not arrive, where a machine reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    Path(PathError),
    /// The kernel refused to send it, with this error number.
    Own(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The usual small probe.
    Reach,
    /// A large one.
    Size(u32),
    /// To the node's own address.
    Underlay,
}

#[derive(Debug)]
struct InFlight {
    id: EchoId,
    to: IpAddr,
    name: NodeName,
    family: Family,
    purpose: Purpose,
    sent: Instant,
    packet_bytes: usize,
}

/// So many lost probes in a row make a node unreachable, and so many are sent at least before it gives up its slot.
pub const LOST_MAX: u32 = 3;
/// The outcomes that are kept for the loss.
pub const OUTCOMES_MAX: usize = 20;
/// Counters say something after this time, and after two intervals: each end has sent something then.
const COUNTED_MIN: Duration = Duration::from_secs(10);
/// An answer that takes longer counts as lost; less if the interval is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// After this a path that carried the largest packet is tried again: a network between the nodes may change unnoticed.
const PROOF_MAX_AGE: Duration = Duration::from_secs(3600);
/// Unreachable nodes without a slot whose state is kept: a rack, and more than a report shows.
const UNREACHABLE_MAX: usize = 256;

// === impl Prober ===

impl Prober {
    pub fn new(settings: ProbeSettings, seed: u64, identifier: u16, now: Instant) -> Self {
        Self {
            rotation: Rotation::new(settings.at_a_time, seed),
            settings,
            targets: Arc::default(),
            states: BTreeMap::new(),
            proven: BTreeMap::new(),
            hasher: RandomState::new(),
            next_slot: 0,
            next_at: now,
            identifier,
            sequence: 0,
            in_flight: VecDeque::new(),
            changed: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Sets what exists. What is known of unchanged targets stays.
    pub fn set_targets(&mut self, targets: &Arc<Targets>) {
        self.targets = Arc::clone(targets);
        self.rotation.set(targets.peers.iter().map(|peer| &peer.name));
        let is_same = |(name, family): &(NodeName, Family), state: &mut State| {
            targets.peer(name).and_then(|peer| peer.target(*family)) == Some(&state.target)
        };
        self.states.retain(is_same);
        let live = |probe: &InFlight| self.states.contains_key(&(probe.name.clone(), probe.family));
        self.in_flight.retain(live);
        if self.proven.len() > targets.peers.len().saturating_mul(2) {
            // Some are of nodes that have gone, and cannot be distinguished: all are proven anew, one after the other.
            self.proven.clear();
        }
    }

    pub fn targets(&self) -> &Arc<Targets> {
        &self.targets
    }

    pub fn settings(&self) -> ProbeSettings {
        self.settings
    }

    /// The identifier of all probes.
    pub fn identifier(&self) -> u16 {
        self.identifier
    }

    /// Whether there are more nodes than are probed at a time.
    pub fn rotates(&self) -> bool {
        self.rotation.rotates()
    }

    /// When [`Self::due`] has something to do next.
    pub fn next_at(&self) -> Instant {
        let timeout = self.timeout();
        let lost = self.in_flight.front().map(|probe| probe.sent + timeout);
        lost.map_or(self.next_at, |lost| lost.min(self.next_at))
    }

    /// What is known, by node and family.
    pub fn states(&self) -> impl Iterator<Item = (&NodeName, Family, &State)> {
        self.states.iter().map(|((name, family), state)| (name, *family, state))
    }

    pub fn state_mut(&mut self, name: &NodeName, family: Family) -> Option<&mut State> {
        self.states.get_mut(&(name.clone(), family))
    }

    /// The nodes that do not answer through the tunnel, of those that are probed now: both ends then send something in each
    /// interval. At most [`encapsulated::PEERS_MAX`].
    pub fn uncertain(&self) -> BTreeMap<PeerKey, Ends> {
        let probed: BTreeSet<&NodeName> = self.rotation.probed().collect();
        let silent = self.states.iter().filter(|((name, _), state)| {
            state.reached == Reached::No && state.target.path == Path::Tunnel && probed.contains(name)
        });
        let ends = silent.filter_map(|(key, state)| {
            Some((key.clone(), Ends { underlay: state.target.underlay?, tunnel: state.target.address }))
        });
        ends.take(encapsulated::PEERS_MAX).collect()
    }

    /// Sets what was counted for those that have been counted for long enough.
    pub fn set_encapsulated(&mut self, counted: &BTreeMap<PeerKey, Encapsulated>) {
        let least = COUNTED_MIN.max(self.settings.interval * 2).as_secs();
        for (key, state) in &mut self.states {
            state.encapsulated = counted.get(key).copied().filter(|counted| counted.for_s >= least);
        }
    }

    /// Nodes whose state may have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<(NodeName, Family)> {
        std::mem::take(&mut self.changed)
    }

    /// The outcomes of small probes since the last call: how long the answer took, or none.
    pub fn take_outcomes(&mut self) -> Vec<Option<Duration>> {
        std::mem::take(&mut self.outcomes)
    }

    /// Counts what is lost by now, and returns what is to be sent now. A thread that was late sends each
    /// probe once, and no burst.
    pub fn due(&mut self, now: Instant, mut token: impl FnMut() -> [u8; TOKEN_BYTES]) -> Vec<Sending> {
        self.expire(now);
        if now < self.next_at {
            return Vec::new();
        }
        let tick = self.settings.interval / u32::try_from(self.rotation.len()).unwrap_or(1).max(1);
        self.next_at = (self.next_at + tick).max(now);
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % self.rotation.len();
        let states = &self.states;
        let Some(name) = self.rotation.turn(slot, |name| stay(states, name)).cloned() else {
            return Vec::new();
        };
        let mut sendings = Vec::new();
        for family in Family::BOTH {
            self.probe(&name, family, now, &mut token, &mut sendings);
        }
        self.forget();
        sendings
    }

    /// The probes of one turn of one family.
    fn probe(
        &mut self,
        name: &NodeName,
        family: Family,
        now: Instant,
        token: &mut impl FnMut() -> [u8; TOKEN_BYTES],
        sendings: &mut Vec<Sending>,
    ) {
        let targets = Arc::clone(&self.targets);
        let Some(own) = targets.own(family) else { return };
        let Some(target) = targets.peer(name).and_then(|peer| peer.target(family)) else { return };
        let max = own.packet_max_bytes(target.path);
        let proof = self.proven.get(&self.hasher.hash_one((name, family)));
        let is_proven = proof.is_some_and(|(path, at)| {
            *path == self.hasher.hash_one((target, max)) && now.saturating_duration_since(*at) < PROOF_MAX_AGE
        });
        let state = self.states.entry((name.clone(), family)).or_insert_with(|| State::new(*target, max));
        state.size.set(max, is_proven);
        state.in_slot += 1;
        let small = packet_min_bytes(family);
        let mut wanted = vec![(Purpose::Reach, target.path, target.address, small)];
        if let Some(bytes) = state.next_size() {
            wanted.push((Purpose::Size(bytes), target.path, target.address, bytes as usize));
        }
        if state.lost_in_row >= 1
            && target.path != Path::Underlay
            && let Some(address) = target.underlay
        {
            wanted.push((Purpose::Underlay, Path::Underlay, address, small));
        }
        for (purpose, path, to, packet_bytes) in wanted {
            let Some(source) = own.source(path) else { continue };
            self.sequence = self.sequence.wrapping_add(1);
            let id = EchoId { identifier: self.identifier, sequence: self.sequence, token: token() };
            sendings.push(Sending { source, to, id, packet_bytes });
            let (name, sent) = (name.clone(), now);
            self.in_flight.push_back(InFlight { id, to, name, family, purpose, sent, packet_bytes });
        }
    }

    /// An arrival. False if it answers none of our probes.
    pub fn arrived(&mut self, arrival: &Arrival, now: Instant) -> bool {
        let Some((id, answer)) = arrival.answer else { return false };
        let Some(place) = self.in_flight.iter().position(|probe| probe.id == id) else { return false };
        match answer {
            Answer::Echo { packet_bytes } => {
                let Some(probe) = self.in_flight.get(place) else { return false };
                // An answer from elsewhere or of another size proves nothing about the path.
                if probe.to != arrival.from || probe.packet_bytes != packet_bytes {
                    return false;
                }
                let Some(probe) = self.in_flight.remove(place) else { return false };
                let rtt = now.saturating_duration_since(probe.sent);
                self.ended(&probe, Ok(rtt), now);
            }
            // The machine that sends it has seen the probe. It only explains a loss, and cannot cause one.
            Answer::Error(error) => {
                let Some(probe) = self.in_flight.get(place) else { return false };
                let (name, family, purpose) = (probe.name.clone(), probe.family, probe.purpose);
                if let Some(state) = self.state_mut(&name, family)
                    && purpose == Purpose::Reach
                {
                    state.error = Some(SendError::Path(error));
                }
            }
        }
        true
    }

    /// The kernel refused to send a probe.
    pub fn refused(&mut self, id: &EchoId, errno: i32, now: Instant) {
        let Some(place) = self.in_flight.iter().position(|probe| probe.id == *id) else { return };
        let Some(probe) = self.in_flight.remove(place) else { return };
        if let Some(state) = self.state_mut(&probe.name, probe.family)
            && probe.purpose == Purpose::Reach
        {
            state.error = Some(SendError::Own(errno));
        }
        self.ended(&probe, Err(()), now);
    }

    /// A probe could not be sent for a reason that has nothing to do with its path.
    pub fn withdraw(&mut self, id: &EchoId) {
        self.in_flight.retain(|probe| probe.id != *id);
    }

    fn timeout(&self) -> Duration {
        ANSWER_TIMEOUT.min(self.settings.interval)
    }

    fn expire(&mut self, now: Instant) {
        let timeout = self.timeout();
        while self.in_flight.front().is_some_and(|probe| probe.sent + timeout <= now)
            && let Some(probe) = self.in_flight.pop_front()
        {
            self.ended(&probe, Err(()), now);
        }
    }

    /// A probe was answered or lost.
    fn ended(&mut self, probe: &InFlight, outcome: Result<Duration, ()>, now: Instant) {
        let key = (probe.name.clone(), probe.family);
        let Some(state) = self.states.get_mut(&key) else { return };
        let before = (state.reached, state.underlay, state.size.fits());
        match probe.purpose {
            Purpose::Reach => {
                self.outcomes.push(outcome.ok());
                state.reach(outcome, now);
            }
            Purpose::Underlay => state.underlay = Some(outcome.is_ok()),
            Purpose::Size(bytes) if outcome.is_ok() || state.is_answering() => {
                state.size.tried(bytes, outcome.is_ok());
            }
            Purpose::Size(_) => {}
        }
        let subject = self.hasher.hash_one((&key.0, key.1));
        match (state.size.fits(), probe.purpose) {
            (Fits::All, Purpose::Size(_)) => {
                let path = self.hasher.hash_one((&state.target, state.size.max_bytes()));
                self.proven.insert(subject, (path, now));
            }
            (Fits::All, _) => {}
            _ => drop(self.proven.remove(&subject)),
        }
        let is_lost = probe.purpose == Purpose::Reach && outcome.is_err();
        if before != (state.reached, state.underlay, state.size.fits())
            || (is_lost && state.reached == Reached::No)
        {
            self.changed.push(key);
        }
    }

    /// Forgets nodes without a slot, except those that did not answer.
    fn forget(&mut self) {
        let (rotation, mut kept) = (&self.rotation, 0);
        self.states.retain(|(name, _), state| {
            if rotation.probed().any(|probed| probed == name) {
                return true;
            }
            // At its next turn it is judged anew.
            state.in_slot = 0;
            kept += usize::from(state.reached == Reached::No);
            state.reached == Reached::No && kept <= UNREACHABLE_MAX
        });
    }
}

/// Whether a node's slot is free for another one.
fn stay(states: &BTreeMap<(NodeName, Family), State>, name: &NodeName) -> Stay {
    let mut known = Family::BOTH.iter().filter_map(|family| states.get(&(name.clone(), *family))).peekable();
    if known.peek().is_none() {
        return Stay::Settled;
    }
    known.fold(Stay::Settled, |so_far, state| match (so_far, state.stay()) {
        (Stay::Undecided, _) | (_, Stay::Undecided) => Stay::Undecided,
        (Stay::Unreachable, _) | (_, Stay::Unreachable) => Stay::Unreachable,
        _ => Stay::Settled,
    })
}

// === impl State ===

impl State {
    pub(super) fn new(target: Target, max_bytes: u32) -> Self {
        Self {
            target,
            reached: Reached::Unknown,
            rtt: None,
            outcomes: VecDeque::new(),
            lost_in_row: 0,
            in_slot: 0,
            size: PacketSize::new(max_bytes),
            underlay: None,
            error: None,
            encapsulated: None,
            reason: None,
            at: None,
        }
    }

    /// The largest packet that arrives.
    pub fn fits(&self) -> Fits {
        self.size.fits()
    }

    /// The size of pods' largest packets.
    pub fn max_bytes(&self) -> u32 {
        self.size.max_bytes()
    }

    /// Lost probes, and all, of the last ones.
    pub fn loss(&self) -> (u32, u32) {
        let lost = self.outcomes.iter().filter(|answered| !**answered).count();
        (u32::try_from(lost).unwrap_or(u32::MAX), u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX))
    }

    /// Whether the last small probe was answered: only then does a lost large one say something about size.
    fn is_answering(&self) -> bool {
        self.reached == Reached::Yes && self.lost_in_row == 0
    }

    fn next_size(&mut self) -> Option<u32> {
        if self.is_answering() { self.size.next() } else { None }
    }

    fn reach(&mut self, outcome: Result<Duration, ()>, now: Instant) {
        self.outcomes.push_back(outcome.is_ok());
        if self.outcomes.len() > OUTCOMES_MAX {
            self.outcomes.pop_front();
        }
        self.at = Some(now);
        match outcome {
            Ok(rtt) => {
                if self.reached == Reached::No {
                    // What has been repaired may have another size.
                    self.size = PacketSize::new(self.size.max_bytes());
                }
                (self.reached, self.rtt, self.lost_in_row) = (Reached::Yes, Some(rtt), 0);
                (self.underlay, self.error, self.reason, self.encapsulated) = (None, None, None, None);
            }
            Err(()) => {
                self.lost_in_row = self.lost_in_row.saturating_add(1);
                if self.lost_in_row >= LOST_MAX {
                    (self.reached, self.rtt) = (Reached::No, None);
                }
            }
        }
    }

    fn stay(&self) -> Stay {
        match self.reached {
            _ if self.in_slot < LOST_MAX => Stay::Undecided,
            Reached::No => Stay::Unreachable,
            Reached::Unknown => Stay::Undecided,
            Reached::Yes if self.lost_in_row > 0 || self.size.is_searching() => Stay::Undecided,
            Reached::Yes => Stay::Settled,
        }
    }
}

#[cfg(test)]
mod tests;
