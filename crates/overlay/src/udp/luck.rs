//! Decides whether to poll for more packets. A poll that finds none costs a system call, which adds
//! to the latency of a single packet; skipping one delays gathering a burst.

/// The results of the last polls.
#[derive(Debug, Default)]
pub(super) struct Luck {
    misses: u32,
    turns: u32,
}

/// Consecutive empty polls after which most are skipped.
const PATIENCE: u32 = 4;
/// Of those, one in this many is still made, so that a burst is noticed by its eighth packet.
const SELDOM: u32 = 8;

// === impl Luck ===

impl Luck {
    /// Whether to poll now.
    pub(super) fn tries(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.misses < PATIENCE || self.turns.is_multiple_of(SELDOM)
    }

    /// Records whether the poll found a packet.
    pub(super) fn found(&mut self, more: bool) {
        self.misses = if more { 0 } else { self.misses.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_polls_become_rare_and_a_packet_makes_them_common_again() {
        let mut luck = Luck::default();
        let looks = |luck: &mut Luck, turns: u32| {
            let looked = (0..turns).filter(|_| luck.tries());
            looked.map(|_| 1).sum::<u32>()
        };
        (0..PATIENCE).for_each(|_| luck.found(false));
        assert_eq!(looks(&mut luck, 80), 10);
        luck.found(true);
        assert_eq!(looks(&mut luck, 80), 80);
    }
}
