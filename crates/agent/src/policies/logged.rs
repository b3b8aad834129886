//! Reads the packets that the table of decisions logs, and counts those that it drops. The thread of
//! decisions names them.

use std::time::{Duration, Instant};

use russet_nft::{Nft, PacketLog};
use russet_policy::{DeniedPackets, LOG_GROUP, LoggedFlow, PolicyError};

use super::Policies;
use crate::flows::Packets;
use crate::metrics::PolicyMetrics;

/// The thread's state.
struct Reader {
    policies: Policies,
    metrics: PolicyMetrics,
    log: Option<PacketLog>,
    /// Why the group cannot be read, as it was logged last.
    reported: Option<String>,
    counters: Counters,
    /// When the counters are read next.
    count_at: Instant,
    /// How many lost packets of the log are counted already.
    lost: u64,
}

/// The counters of the rules of the tables of decisions and of host endpoints, which begin again when rules are written
/// anew.
#[derive(Debug, Default)]
struct Counters {
    seen: [Option<DeniedPackets>; 2],
    total: Packets,
}

/// How often the counters are read.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// The pause before another attempt to read the group.
const RETRY: Duration = Duration::from_secs(30);
/// As many packets are handed over together.
const TOGETHER_MAX: usize = 64;

/// Starts the thread. What cannot be read is no reason not to decide.
pub fn start(policies: Policies, metrics: PolicyMetrics) -> std::io::Result<()> {
    let mut reader = Reader {
        policies,
        metrics,
        log: None,
        reported: None,
        counters: Counters::default(),
        count_at: Instant::now() + COUNT_EVERY,
        lost: 0,
    };
    let follow = move || {
        // Nothing is denied yet that this agent decides.
        reader.count();
        loop {
            reader.follow();
        }
    };
    std::thread::Builder::new().name("policy-log".to_owned()).spawn(follow)?;
    Ok(())
}

// === impl Reader ===

impl Reader {
    /// Hands over the next packets, and counts if it is time.
    fn follow(&mut self) {
        if let Err(reason) = self.read() {
            if self.reported.as_ref() != Some(&reason) {
                tracing::warn!(group = LOG_GROUP, %reason, "denied packets are counted and not named");
                self.reported = Some(reason.clone());
            }
            self.policies.shared.flows.set_unread(Some(reason));
            self.log = None;
            self.lost = 0;
            rest();
        }
        if self.count_at <= Instant::now() {
            self.count_at = Instant::now() + COUNT_EVERY;
            self.count();
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let failed = |error| format!("group {LOG_GROUP} of nfnetlink_log cannot be read: {error}");
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let log = none.insert(PacketLog::open(LOG_GROUP).map_err(failed)?);
                self.policies.shared.flows.set_unread(None);
                self.reported = None;
                log
            }
        };
        let mut flows = Vec::new();
        let mut wait = COUNT_EVERY;
        while flows.len() < TOGETHER_MAX
            && let Some(packet) = log.next(wait).map_err(failed)?
        {
            wait = Duration::ZERO;
            flows.extend(LoggedFlow::read(&packet));
        }
        let lost = log.lost() - self.lost;
        self.lost = log.lost();
        self.lose(lost);
        if !flows.is_empty() {
            let refused = self.policies.name(flows);
            self.lose(refused);
        }
        Ok(())
    }

    fn lose(&mut self, packets: u64) {
        self.counters.total.lost += packets;
        self.metrics.lost.inc_by(packets);
    }

    fn count(&mut self) {
        let read = Nft::open()
            .map_err(PolicyError::from)
            .and_then(|mut nft| Ok([DeniedPackets::read(&mut nft)?, DeniedPackets::read_hosts(&mut nft)?]));
        match read {
            Ok(packets) => {
                let new = self.counters.add(packets);
                self.metrics.denied.inc_by(new.denied);
                self.metrics.suppressed.inc_by(new.suppressed);
                self.policies.shared.flows.count(self.counters.total);
            }
            Err(error) => tracing::debug!(%error, "denied packets are not counted for a moment"),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a group that another program reads has no event for the end of that"
)]
fn rest() {
    std::thread::sleep(RETRY);
}

// === impl Counters ===

impl Counters {
    /// Adds what has been counted since the last time. What was counted before the first time is not
    /// this agent's.
    fn add(&mut self, tables: [DeniedPackets; 2]) -> Packets {
        let mut sum = Packets::default();
        for (seen, now) in self.seen.iter_mut().zip(tables) {
            let seen = seen.replace(now).unwrap_or(now);
            let is_anew = now.dropped < seen.dropped || now.logged < seen.logged;
            let before = if is_anew { DeniedPackets::default() } else { seen };
            let new =
                DeniedPackets { dropped: now.dropped - before.dropped, logged: now.logged - before.logged };
            sum.denied += new.dropped;
            sum.suppressed += new.suppressed();
        }
        self.total.denied += sum.denied;
        self.total.suppressed += sum.suppressed;
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_when_the_rules_begin_again_at_zero() {
        let mut counters = Counters::default();
        let packets = |dropped, logged| DeniedPackets { dropped, logged };
        // The other table goes with the last host endpoint, and says nothing of this one then.
        let mut both = Counters::default();
        both.add([packets(10, 10), packets(0, 0)]);
        both.add([packets(10, 10), packets(7, 5)]);
        both.add([packets(11, 11), packets(0, 0)]);
        assert_eq!((both.total.denied, both.total.suppressed), (8, 2));
        for (now, total) in [
            // Of an earlier agent.
            (packets(1000, 100), (0, 0)),
            (packets(1100, 120), (100, 80)),
            (packets(1100, 120), (100, 80)),
            // The table was written anew.
            (packets(30, 30), (130, 80)),
            (packets(0, 0), (130, 80)),
            (packets(50, 10), (180, 120)),
        ] {
            counters.add([now, DeniedPackets::default()]);
            assert_eq!((counters.total.denied, counters.total.suppressed), total, "{now:?}");
        }
    }
}
