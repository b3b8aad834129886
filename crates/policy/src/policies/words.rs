//! Words and identities as the numbers that the kernel's maps hold. Pure.

use russet_nft::{KeyPart, Value};
use russet_verdict::table::{Identity, Verdict, Word};

/// The port of the source decides, but by a list that is not known: everything is denied.
pub(super) const WIDE: Word = Word { verdict: Verdict::Wide, log: false };
/// The bits that the numbers of lists of ranges of source ports have, and no other number has.
pub(super) const LISTS: u32 = 0xffff_8000;
/// Above all identities, so that no key has a word in an identity's place.
const FIRST: u32 = 0xffff_0001;
const EACH: [Word; 5] = [
    Word::ALLOW,
    Word::DENY,
    Word { verdict: Verdict::Allow, log: true },
    Word { verdict: Verdict::Deny, log: true },
    WIDE,
];

/// The classid of a word: the place in `EACH`.
pub(crate) fn number(word: Word) -> u32 {
    FIRST
        + match (word.verdict, word.log) {
            (Verdict::Allow, false) => 0,
            (Verdict::Deny, false) => 1,
            (Verdict::Allow, true) => 2,
            (Verdict::Deny, true) => 3,
            (Verdict::Wide, _) => 4,
        }
}

/// The word of a map's value.
pub(super) fn word(value: Option<&Value>) -> Option<Word> {
    if list(value).is_some() {
        return Some(WIDE);
    }
    EACH.get(usize::try_from(data(value)?.checked_sub(FIRST)?).ok()?).copied()
}

/// The number of the list that a map's value is.
pub(super) fn list(value: Option<&Value>) -> Option<u32> {
    data(value).filter(|number| number & LISTS == LISTS)
}

/// The identity of a map's value.
pub(super) fn identity(value: Option<&Value>) -> Option<Identity> {
    Identity::new(data(value)?)
}

/// The number of a key's part.
pub(super) fn class_id(part: &KeyPart) -> Option<u32> {
    Some(u32::from_ne_bytes(part.bytes().0.try_into().ok()?))
}

fn data(value: Option<&Value>) -> Option<u32> {
    match value? {
        Value::Data(bytes) => Some(u32::from_ne_bytes(bytes.as_slice().try_into().ok()?)),
        Value::Verdict(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_and_is_no_identity() {
        for word in EACH {
            let value = Value::Data(number(word).to_ne_bytes().to_vec());
            assert_eq!(super::word(Some(&value)), Some(word));
            assert_eq!(identity(Some(&value)), None);
        }
        assert_eq!(number(Word { verdict: Verdict::Wide, log: true }), number(WIDE));
        let value = |number: u32| Value::Data(number.to_ne_bytes().to_vec());
        for number in [0, Identity::FIRST, FIRST + 5, LISTS - 1] {
            assert_eq!(word(Some(&value(number))), None);
            assert_eq!(list(Some(&value(number))), None);
        }
        for number in [LISTS, u32::MAX] {
            assert_eq!(word(Some(&value(number))), Some(WIDE));
            assert_eq!(list(Some(&value(number))), Some(number));
            assert_eq!(identity(Some(&value(number))), None);
        }
    }
}
