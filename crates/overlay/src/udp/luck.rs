//! Whether it pays to look for more. A look that finds nothing costs a system call, which a packet that comes alone feels in its latency; one that is
//! left out costs a burst its gathering.

/// What the last looks have found.
#[derive(Debug, Default)]
pub(super) struct Luck {
    misses: u32,
    turns: u32,
}

/// Fruitless looks in a row after which most are left out.
const PATIENCE: u32 = 4;
/// Of those, every so manyth is taken still: a burst is noticed by its eighth packet.
const SELDOM: u32 = 8;

// === impl Luck ===

impl Luck {
    /// Whether to look now.
    pub(super) fn tries(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.misses < PATIENCE || self.turns.is_multiple_of(SELDOM)
    }

    /// Whether the look found something.
    pub(super) fn found(&mut self, more: bool) {
        self.misses = if more { 0 } else { self.misses.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fruitless_looks_become_rare_and_a_find_makes_them_common_again() {
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
