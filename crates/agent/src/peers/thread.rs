//! The thread that sends probes and receives their answers. It decides nothing: [`super::prober`] does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use russet_addr::{Family, NodeName};
use russet_linux::echo::EchoSocket;
use russet_linux::random::random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::encapsulated::{Counters, Own};
use super::prober::{Reached, Sending, State};
use super::reason::{self, Facts, Traffic};
use super::report::{PeerState, PeersReport};
use super::targets::{Path, Targets};
use super::{Observers, Shared};
use crate::controllers::Controllers;
use crate::drift::lock;
use crate::health::Condition;

struct ProbeThread {
    shared: Arc<Mutex<Shared>>,
    controllers: Controllers,
    observers: Observers,
    targets: Arc<Targets>,
    /// The targets are others than when the last report was made.
    is_stale: bool,
    /// By the address from which they send: of the tunnel devices, and of the node itself.
    sockets: BTreeMap<IpAddr, EchoSocket>,
    /// What was logged last about each node that has problems.
    logged: BTreeMap<(NodeName, Family), PeerState>,
    lines: LogLines,
    closed: Closed,
    /// The tunnel devices' counters at an earlier look, and when that was.
    traffic: BTreeMap<&'static str, (Instant, Traffic)>,
    /// Encapsulated packets of nodes that do not answer.
    counters: Counters,
}

/// What keeps this node from all others, as it was found last.
#[derive(Default)]
struct Closed {
    at: Option<Instant>,
    lines: Vec<String>,
}

/// Limits the log lines of a time in which many nodes change.
#[derive(Default)]
struct LogLines {
    since: Option<Instant>,
    written: u32,
    suppressed: u32,
}

/// The longest wait: new targets are seen after it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Messages that are read from one socket before the next one. A flood of forged answers must not keep the
/// thread from sending; what does not fit into the receive buffer is dropped by the kernel.
const RECEIVE_MAX: usize = 128;
/// The rest after a socket had so many.
const FLOOD_REST: Duration = Duration::from_millis(100);
/// How long the result of the search for foreign rules is used: there may be many rules.
const CLOSED_AGE: Duration = Duration::from_secs(10);
/// Counters are compared over at least this long.
const TRAFFIC_AGE: Duration = Duration::from_secs(10);
/// Log lines in each [`LINES_TIME`]: the loss of a rack.
const LINES_MAX: u32 = 20;
const LINES_TIME: Duration = Duration::from_secs(60);

const NO_RAW_SOCKETS: &str = "the agent may not open raw sockets: give it the capability CAP_NET_RAW";

pub fn start(shared: Arc<Mutex<Shared>>, controllers: Controllers, observers: Observers) -> io::Result<()> {
    let mut thread = ProbeThread {
        shared,
        controllers,
        observers,
        targets: Arc::default(),
        is_stale: false,
        sockets: BTreeMap::new(),
        logged: BTreeMap::new(),
        lines: LogLines::default(),
        closed: Closed::default(),
        traffic: BTreeMap::new(),
        counters: Counters::default(),
    };
    let run = move || {
        loop {
            thread.step();
        }
    };
    std::thread::Builder::new().name("peer-probes".to_owned()).spawn(run)?;
    Ok(())
}

// === impl ProbeThread ===

impl ProbeThread {
    /// Sends what is due, waits for answers or for the next probe, and reports what has changed.
    fn step(&mut self) {
        self.follow_targets();
        let sendings = lock(&self.shared).prober.due(Instant::now(), random);
        for sending in &sendings {
            self.send(sending);
        }
        let next = lock(&self.shared).prober.next_at();
        let wait = next.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let flooded = self.receive(wait);
        self.report();
        if flooded {
            pause(FLOOD_REST);
        }
    }

    fn follow_targets(&mut self) {
        let targets = self.controllers.peer_targets();
        if Arc::ptr_eq(&targets, &self.targets) {
            return;
        }
        let sources = targets.sources();
        self.sockets.retain(|source, _| sources.contains(source));
        self.logged.retain(|(name, _), _| targets.peer(name).is_some());
        lock(&self.shared).prober.set_targets(&targets);
        self.targets = targets;
        self.is_stale = true;
    }

    fn send(&mut self, sending: &Sending) {
        if let Err(error) = self.open(sending.source) {
            let mut shared = lock(&self.shared);
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    if shared.fault.replace(NO_RAW_SOCKETS.to_owned()).is_none() {
                        tracing::warn!(%error, "other nodes cannot be probed: {NO_RAW_SOCKETS}");
                    }
                    shared.prober.withdraw(&sending.id);
                }
                // The address is not there: the tunnel device has gone, or the underlay has changed.
                _ => shared.prober.refused(&sending.id, error.raw_os_error().unwrap_or(0), Instant::now()),
            }
            return;
        }
        let Some(socket) = self.sockets.get(&sending.source) else { return };
        let sent = socket.send(sending.to, &sending.id, sending.packet_bytes);
        let mut shared = lock(&self.shared);
        shared.fault = None;
        if let Err(error) = sent {
            shared.prober.refused(&sending.id, error.raw_os_error().unwrap_or(0), Instant::now());
        }
    }

    fn open(&mut self, source: IpAddr) -> io::Result<()> {
        if let Entry::Vacant(place) = self.sockets.entry(source) {
            let identifier = lock(&self.shared).prober.identifier();
            place.insert(EchoSocket::bind(source, identifier)?);
        }
        Ok(())
    }

    /// Reads what arrives until `wait` is over or something has arrived. True if there is more than anybody but a
    /// flood sends.
    fn receive(&mut self, wait: Duration) -> bool {
        let readable = readable(self.sockets.values(), wait);
        let mut flooded = false;
        let now = Instant::now();
        for (socket, _) in self.sockets.values().zip(readable).filter(|(_, readable)| *readable) {
            let mut read = 0;
            while read < RECEIVE_MAX {
                match socket.receive() {
                    Ok(Some(arrival)) => {
                        read += 1;
                        let is_ours = lock(&self.shared).prober.arrived(&arrival, now);
                        if !is_ours {
                            self.observers.metrics.foreign.inc();
                        }
                    }
                    // An error that was pending is taken by this.
                    Ok(None) | Err(_) => break,
                }
            }
            flooded |= read == RECEIVE_MAX;
        }
        flooded
    }

    /// Explains and logs what has changed, and updates metrics and readiness.
    fn report(&mut self) {
        let (changed, outcomes) = {
            let mut shared = lock(&self.shared);
            (shared.prober.take_changed(), shared.prober.take_outcomes())
        };
        self.observers.metrics.count(&outcomes);
        if changed.is_empty() && outcomes.is_empty() && !self.is_stale {
            return;
        }
        self.is_stale = false;
        self.count();
        for (name, family) in changed {
            self.explain(&name, family);
            self.log(name, family);
        }
        let report = PeersReport::new(&lock(&self.shared).prober, Instant::now());
        let all = !lock(&self.shared).prober.rotates();
        self.observers.metrics.set(&report, all);
        self.gate(&report);
    }

    /// Counts encapsulated packets of nodes that do not answer, while there are any.
    fn count(&mut self) {
        let tunnels = Family::BOTH.into_iter().filter_map(|family| {
            let own = self.targets.own(family)?;
            Some((family, own.source(Path::Tunnel)?))
        });
        let own = Own { port: self.targets.port, tunnels: tunnels.collect() };
        let (wanted, now) = (lock(&self.shared).prober.uncertain(), Instant::now());
        self.counters.follow(&own, &wanted, now);
        let counted = self.counters.look(now);
        lock(&self.shared).prober.set_encapsulated(&counted);
    }

    /// Finds out why a node does not answer.
    fn explain(&mut self, name: &NodeName, family: Family) {
        let Some(target) = self.unreachable_target(name, family) else { return };
        let targets = Arc::clone(&self.targets);
        let Some(own) = targets.own(family) else { return };
        let mut facts = match Facts::look(&target, own, &targets) {
            Ok(facts) => facts,
            Err(error) => {
                tracing::debug!(%error, "what the kernel knows of a path cannot be read");
                return;
            }
        };
        if target.path == Path::Tunnel {
            facts.traffic = own.device.and_then(|device| self.traffic_of(device));
            facts.closed = self.closed();
        }
        let mut shared = lock(&self.shared);
        if let Some(state) = shared.prober.state_mut(name, family) {
            state.reason = Some(reason::unreachable(state, &facts, targets.port));
        }
    }

    fn unreachable_target(&self, name: &NodeName, family: Family) -> Option<super::targets::Target> {
        let mut shared = lock(&self.shared);
        let state = shared.prober.state_mut(name, family)?;
        (state.reached == Reached::No).then_some(state.target)
    }

    fn closed(&mut self) -> Vec<String> {
        if self.closed.at.is_none_or(|at| at.elapsed() >= CLOSED_AGE) {
            self.closed.lines = self.controllers.underlay_faults().unwrap_or_default();
            self.closed.at = Some(Instant::now());
        }
        self.closed.lines.clone()
    }

    /// What a device has sent and received since a look that was long enough ago.
    fn traffic_of(&mut self, device: &'static str) -> Option<Traffic> {
        let now = reason::traffic(&reason::device_counters().ok()?, device)?;
        let (at, before) = *self.traffic.entry(device).or_insert((Instant::now(), now));
        if at.elapsed() < TRAFFIC_AGE {
            return None;
        }
        self.traffic.insert(device, (Instant::now(), now));
        Some(Traffic {
            sent: now.sent.saturating_sub(before.sent),
            received: now.received.saturating_sub(before.received),
        })
    }

    /// One line for each change of a node's state.
    fn log(&mut self, name: NodeName, family: Family) {
        let mut shared = lock(&self.shared);
        let Some(state) = shared.prober.state_mut(&name, family) else { return };
        let is = PeerState::of(state);
        let small = self.targets.own(family).and_then(|own| reason::small(state, own));
        let reason = state.reason.clone().or(small).unwrap_or_default();
        let State { target, .. } = state;
        let (path, probed) = (target.path.as_str(), target.address);
        let key = (name, family);
        let was = match is {
            PeerState::Reachable | PeerState::Unknown => self.logged.remove(&key),
            PeerState::Unreachable | PeerState::SmallPacketsOnly => self.logged.insert(key.clone(), is),
        };
        // A node that answers from the beginning, or that is not judged yet, is no news.
        if was == Some(is) || (was.is_none() && matches!(is, PeerState::Reachable | PeerState::Unknown)) {
            return;
        }
        let Some(suppressed) = self.lines.permit(Instant::now()) else { return };
        let node = key.0.as_str();
        match is {
            PeerState::Reachable | PeerState::Unknown => {
                tracing::info!(node, path, %probed, suppressed, "the node is reached again");
            }
            PeerState::Unreachable => {
                tracing::warn!(node, path, %probed, suppressed, reason, "the node is not reached");
            }
            PeerState::SmallPacketsOnly => {
                tracing::warn!(node, path, %probed, suppressed, reason, "large packets do not reach the node");
            }
        }
    }

    /// A node that none of the others answers is cut off itself.
    fn gate(&self, report: &PeersReport) {
        if !self.observers.gates_readiness {
            return;
        }
        let readiness = &self.observers.readiness;
        if report.counts.reaches_none() {
            let first = report.peers.first().and_then(|peer| peer.reason.clone()).unwrap_or_default();
            let count = report.counts.unreachable;
            readiness.unmet(Condition::Peers, format!("none of {count} probed nodes answers: {first}"));
        } else {
            readiness.met(Condition::Peers);
        }
    }
}

/// Which of the sockets are readable, after at most `wait`.
fn readable<'s>(sockets: impl Iterator<Item = &'s EchoSocket>, wait: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    // A signal ends the wait early, which does no harm.
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; polled.len()],
    }
}

fn pause(length: Duration) {
    readable(std::iter::empty(), length);
}

// === impl LogLines ===

impl LogLines {
    /// None if the line is one too many; otherwise how many were left out before it.
    fn permit(&mut self, now: Instant) -> Option<u32> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LINES_TIME) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_many_nodes_at_once_does_not_flood_the_log() {
        let (mut lines, now) = (LogLines::default(), Instant::now());
        let written = (0..1000).filter(|_| lines.permit(now).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(lines.permit(now + LINES_TIME), Some(1000 - LINES_MAX));
        assert_eq!(lines.permit(now + LINES_TIME), Some(0));
    }
}
