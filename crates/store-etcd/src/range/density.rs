//! Guesses where the next keys are from those of a page, for `Parts`.

use super::{directory_end, is_before};
use crate::proto::mvccpb::KeyValue;

/// Digits of a number; more would not fit into 128 bits.
const DIGITS: usize = 18;
/// How many bytes before the first difference are part of the number, so that it can carry into
/// them.
const CARRY: usize = 4;

/// The distance between keys of a page, as numbers whose digits are the bytes that occur in the
/// page: names consist of few different bytes, and with 256 digits most numbers would not be names.
#[derive(Debug)]
pub(super) struct Density {
    /// The common prefix of all keys here.
    common: Vec<u8>,
    alphabet: Vec<u8>,
    last: u128,
    /// The distance from the page's first key to its last, and the number of records between.
    way: u128,
    records: u128,
    /// The end of the directory that contains all its keys; the guess is valid up to there.
    end: Option<Vec<u8>>,
}

// === impl Density ===

impl Density {
    /// `None` if the page is not enough for a guess, for example a single record.
    pub(super) fn of(page: &[KeyValue]) -> Option<Self> {
        let (first, last) = (&page.first()?.key, &page.last()?.key);
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let depth = |key: &[u8]| key.iter().filter(|byte| **byte == b'/').count();
        // Directories with a few records each, such as the nodes' claims, are alike if they are
        // siblings.
        let end = match directory_end(last) {
            end if end == directory_end(first) => end,
            _ if depth(first) == depth(last) => directory_end(last.get(..common)?),
            _ => return None,
        };
        let mut occurs = [false; 256];
        let rests = page.iter().flat_map(|kv| kv.key.iter().skip(common));
        for byte in rests {
            if let Some(occurs) = occurs.get_mut(usize::from(*byte)) {
                *occurs = true;
            }
        }
        let alphabet: Vec<u8> =
            (0..=u8::MAX).zip(occurs).filter_map(|(byte, occurs)| occurs.then_some(byte)).collect();
        if alphabet.len() < 2 {
            return None;
        }
        let known = |byte: &&u8| occurs.get(usize::from(**byte)) == Some(&true);
        let from = common - last.get(..common)?.iter().rev().take_while(known).take(CARRY).count();
        let records = u128::try_from(page.len()).ok()?;
        let mut density =
            Self { common: last.get(..from)?.to_vec(), alphabet, last: 0, way: 0, records, end };
        density.last = density.number(last)?;
        density.way = density.last.checked_sub(density.number(first)?)?;
        Some(density)
    }

    fn number(&self, key: &[u8]) -> Option<u128> {
        let base = u128::try_from(self.alphabet.len()).ok()?;
        let rank =
            |byte: &u8| u128::try_from(self.alphabet.partition_point(|known| known < byte)).unwrap_or(0);
        let digits = key.get(self.common.len()..)?.iter().map(rank).chain(std::iter::repeat(0)).take(DIGITS);
        digits.into_iter().try_fold(0_u128, |sum, digit| sum.checked_mul(base)?.checked_add(digit))
    }

    /// Whether the guess is valid for keys from `start` on, that is, they are in the page's
    /// directory.
    pub(super) fn covers(&self, start: &[u8]) -> bool {
        start.starts_with(&self.common) && self.end.as_ref().is_none_or(|end| is_before(start, end))
    }

    /// A key that should have `records` keys between it and `start`, which is covered. `None` if
    /// there is no such key.
    pub(super) fn behind(&self, start: &[u8], records: usize) -> Option<Vec<u8>> {
        let base = u128::try_from(self.alphabet.len()).ok()?;
        let way = self.way.checked_mul(u128::try_from(records).ok()?)? / self.records;
        let mut rest = self.number(start)?.checked_add(way)?;
        let mut digits = [0; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit = *self.alphabet.get(usize::try_from(rest % base).ok()?)?;
            rest /= base;
        }
        let guess = [&self.common[..], &digits].concat();
        (rest == 0 && *guess > *start).then_some(guess)
    }

    /// The end of the range for which the guess is valid.
    pub(super) fn end(&self) -> Option<Vec<u8>> {
        self.end.clone()
    }
}
