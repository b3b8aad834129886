//! Decides whether to poll for more packets. A poll that finds none costs a system call, which adds
//! to the latency of a single packet; skipping one delays gathering a burst.

/// The results of the last polls.
#[derive(Debug, Default)]
pub(super) struct PollBackoff {
    misses: u32,
    turns: u32,
}

/// Consecutive empty polls after which most are skipped.
const EMPTY_POLLS_MAX: u32 = 4;
/// Of those, one in this many is still made, so that a burst is noticed by its eighth packet.
const POLL_INTERVAL: u32 = 8;

// === impl PollBackoff ===

impl PollBackoff {
    /// Whether to poll now.
    pub(super) fn should_poll(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.misses < EMPTY_POLLS_MAX || self.turns.is_multiple_of(POLL_INTERVAL)
    }

    /// Records whether the poll found a packet.
    pub(super) fn record(&mut self, more: bool) {
        self.misses = if more { 0 } else { self.misses.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_polls_become_rare_and_a_packet_makes_them_common_again() {
        let mut backoff = PollBackoff::default();
        let looks = |backoff: &mut PollBackoff, turns: u32| {
            let looked = (0..turns).filter(|_| backoff.should_poll());
            looked.map(|_| 1).sum::<u32>()
        };
        (0..EMPTY_POLLS_MAX).for_each(|_| backoff.record(false));
        assert_eq!(looks(&mut backoff, 80), 10);
        backoff.record(true);
        assert_eq!(looks(&mut backoff, 80), 80);
    }
}
