//! Samples of handle names in the blocks, so that the store can be asked for several parts of the
//! handles of equal size at a time.

use russet_model::{HandleId, Key};

/// Limit of sampled names: 3 MB of usual ones.
const SAMPLES_MAX: usize = 32_768;
/// Initially, one of this many names is sampled.
const FIRST_RATE: u64 = 64;

/// The sample.
#[derive(Debug)]
pub(super) struct Marks {
    /// One of this many handles is sampled, a power of two: those whose hash it divides.
    rate: u64,
    samples: Vec<(u64, Box<str>)>,
}

// === impl Marks ===

impl Marks {
    /// Offers a handle's name to the sample.
    pub(super) fn note(&mut self, hash: u64, name: &str) {
        let last = self.samples.last().map(|(hash, _)| *hash);
        if !hash.is_multiple_of(self.rate) || last == Some(hash) || !HandleId::is_valid(name) {
            return;
        }
        self.samples.push((hash, name.into()));
        if self.samples.len() > SAMPLES_MAX {
            self.rate *= 2;
            self.samples.retain(|(hash, _)| hash.is_multiple_of(self.rate));
        }
    }

    /// Keys in order, with about `every` handles between two.
    pub(super) fn keys(&self, every: usize) -> Vec<Key> {
        let mut names: Vec<&str> = self.samples.iter().map(|(_, name)| &**name).collect();
        names.sort_unstable();
        names.dedup();
        let step = every / usize::try_from(self.rate).unwrap_or(every).max(1);
        let chosen = names.into_iter().step_by(step.max(1)).skip(1);
        chosen.filter_map(|name| HandleId::new(name).ok()).map(|id| Key::handle(&id)).collect()
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self { rate: FIRST_RATE, samples: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn marks_are_in_order_and_divide_the_handles_into_equal_parts() {
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
    fn the_sample_is_bounded_and_has_only_valid_keys() {
        let mut marks = Marks { rate: 1, ..Marks::default() };
        marks.note(4, "with/slash");
        assert_eq!(marks.samples, []);
        for n in 0..100_000_u64 {
            marks.note(n, &format!("net.{n:06}"));
        }
        assert!(marks.samples.len() <= SAMPLES_MAX && marks.rate == 4, "{}", marks.samples.len());
        assert_eq!(marks.keys(100_000).len(), 0);
        assert!(marks.keys(1).len() > 20_000);
    }
}
