//! Where handles' records are: a sample of the names that the blocks have, so that the store can be asked for several equal parts of them at a time.

use russet_model::{HandleId, Key};

/// Names that are kept at most: 3 MB of usual ones.
const SAMPLES_MAX: usize = 32_768;
/// To begin with, one name of so many is kept.
const FIRST_RATE: u64 = 64;

/// The sample.
#[derive(Debug)]
pub(super) struct Marks {
    /// One handle of so many is kept, a power of two: those whose hash it divides.
    rate: u64,
    kept: Vec<(u64, Box<str>)>,
}

// === impl Marks ===

impl Marks {
    /// Takes note of a handle's name.
    pub(super) fn note(&mut self, hash: u64, name: &str) {
        let last = self.kept.last().map(|(hash, _)| *hash);
        if !hash.is_multiple_of(self.rate) || last == Some(hash) || !HandleId::is_valid(name) {
            return;
        }
        self.kept.push((hash, name.into()));
        if self.kept.len() > SAMPLES_MAX {
            self.rate *= 2;
            self.kept.retain(|(hash, _)| hash.is_multiple_of(self.rate));
        }
    }

    /// Keys in order, with about `every` handles between two.
    pub(super) fn keys(&self, every: usize) -> Vec<Key> {
        let mut names: Vec<&str> = self.kept.iter().map(|(_, name)| &**name).collect();
        names.sort_unstable();
        names.dedup();
        let step = every / usize::try_from(self.rate).unwrap_or(every).max(1);
        let chosen = names.into_iter().step_by(step.max(1)).skip(1);
        chosen.filter_map(|name| HandleId::new(name).ok()).map(|id| Key::handle(&id)).collect()
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self { rate: FIRST_RATE, kept: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn marks_are_in_order_and_cut_the_handles_into_equal_parts() {
        let hasher = RandomState::new();
        let mut marks = Marks::default();
        let mut names: Vec<String> =
            (0..300_000_u64).map(|n| format!("net.{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
        for name in &names {
            marks.note(hasher.hash_one(name.as_str()), name);
        }
        names.sort_unstable();
        let places: Vec<usize> = marks
            .keys(8192)
            .iter()
            .map(|key| names.binary_search_by(|name| name.as_str().cmp(key.handle_name().unwrap())).unwrap())
            .collect();
        assert!((30..45).contains(&places.len()), "{places:?}");
        assert!(places.is_sorted() && places.windows(2).all(|two| two[1] - two[0] < 2 * 8192), "{places:?}");
    }

    #[test]
    fn however_many_names_there_are_few_are_kept_and_none_that_is_no_key() {
        let mut marks = Marks { rate: 1, ..Marks::default() };
        marks.note(4, "with/slash");
        assert_eq!(marks.kept, []);
        for n in 0..100_000_u64 {
            marks.note(n, &format!("net.{n:06}"));
        }
        assert!(marks.kept.len() <= SAMPLES_MAX && marks.rate == 4, "{}", marks.kept.len());
        assert_eq!(marks.keys(100_000).len(), 0);
        assert!(marks.keys(1).len() > 20_000);
    }
}
