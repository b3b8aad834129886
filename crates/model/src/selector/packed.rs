//! Selectors in few bytes, for programs that keep many and seldom ask them: a parsed one of three conditions takes
//! about 500 bytes in 10 allocations, a packed one about 90 in one.
//!
//! A condition is a byte for its operator and its texts, each behind its length; a list is its length and its
//! members. Only what [`Selector::pack`] wrote is read; it never leaves the process.

use std::collections::BTreeSet;

use super::{Expr, Selector};
use crate::packed::{pack_number, pack_text, take_byte, take_number, take_text};

/// What the label's value is asked for.
type Value<'f, 'v> = &'f dyn Fn(&str) -> Option<&'v str>;

const ALL: u8 = 0;
const GLOBAL: u8 = 1;
const HAS: u8 = 2;
const EQUALS: u8 = 3;
const NOT_EQUALS: u8 = 4;
const CONTAINS: u8 = 5;
const STARTS_WITH: u8 = 6;
const ENDS_WITH: u8 = 7;
const IN: u8 = 8;
const NOT_IN: u8 = 9;
const NOT: u8 = 10;
const AND: u8 = 11;
const OR: u8 = 12;

impl Selector {
    /// Appends it. Equal selectors give equal bytes, different ones different bytes.
    pub fn pack(&self, bytes: &mut Vec<u8>) {
        self.0.pack(bytes);
    }

    /// Takes a packed selector from the front of `bytes`; `None` if there is none.
    pub fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        Expr::unpack(bytes).map(Self)
    }

    /// Whether the packed selector at the front of `bytes` selects something whose labels `value` returns; takes it
    /// from there. `None` if there is none.
    pub fn packed_matches<'v>(bytes: &mut &[u8], value: Value<'_, 'v>) -> Option<bool> {
        matches(bytes, value, true)
    }

    /// Calls `found` with every label that decides whether it matches; with some of them more than once.
    pub fn each_label<'a>(&'a self, found: &mut dyn FnMut(&'a str)) {
        self.0.each_label(found);
    }
}

impl Expr {
    fn pack(&self, bytes: &mut Vec<u8>) {
        let mut texts = |operator: u8, texts: &[&str]| {
            bytes.push(operator);
            texts.iter().for_each(|text| pack_text(text, bytes));
        };
        match self {
            Self::All => texts(ALL, &[]),
            Self::Global => texts(GLOBAL, &[]),
            Self::Has(label) => texts(HAS, &[label]),
            Self::Equals(label, text) => texts(EQUALS, &[label, text]),
            Self::NotEquals(label, text) => texts(NOT_EQUALS, &[label, text]),
            Self::Contains(label, text) => texts(CONTAINS, &[label, text]),
            Self::StartsWith(label, text) => texts(STARTS_WITH, &[label, text]),
            Self::EndsWith(label, text) => texts(ENDS_WITH, &[label, text]),
            Self::In(label, set) => {
                texts(IN, &[label]);
                pack_set(set, bytes);
            }
            Self::NotIn(label, set) => {
                texts(NOT_IN, &[label]);
                pack_set(set, bytes);
            }
            Self::Not(inner) => {
                texts(NOT, &[]);
                inner.pack(bytes);
            }
            Self::And(parts) => pack_parts(AND, parts, bytes),
            Self::Or(parts) => pack_parts(OR, parts, bytes),
        }
    }

    /// The recursion is as deep as that of the selector which was packed.
    fn unpack(bytes: &mut &[u8]) -> Option<Self> {
        let operator = take_byte(bytes)?;
        let mut text = || take_text(bytes).map(str::to_owned);
        Some(match operator {
            ALL => Self::All,
            GLOBAL => Self::Global,
            HAS => Self::Has(text()?),
            EQUALS => Self::Equals(text()?, text()?),
            NOT_EQUALS => Self::NotEquals(text()?, text()?),
            CONTAINS => Self::Contains(text()?, text()?),
            STARTS_WITH => Self::StartsWith(text()?, text()?),
            ENDS_WITH => Self::EndsWith(text()?, text()?),
            IN => Self::In(text()?, unpack_set(bytes)?),
            NOT_IN => Self::NotIn(text()?, unpack_set(bytes)?),
            NOT => Self::Not(Box::new(Self::unpack(bytes)?)),
            AND => Self::And(unpack_parts(bytes)?),
            OR => Self::Or(unpack_parts(bytes)?),
            _ => return None,
        })
    }

    fn each_label<'a>(&'a self, found: &mut dyn FnMut(&'a str)) {
        match self {
            Self::All | Self::Global => {}
            Self::Has(label)
            | Self::Equals(label, _)
            | Self::NotEquals(label, _)
            | Self::Contains(label, _)
            | Self::StartsWith(label, _)
            | Self::EndsWith(label, _)
            | Self::In(label, _)
            | Self::NotIn(label, _) => found(label),
            Self::Not(inner) => inner.each_label(found),
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.each_label(found)),
        }
    }
}

/// The answer counts only if it `counts`: else the bytes are only passed over.
fn matches<'v>(bytes: &mut &[u8], value: Value<'_, 'v>, counts: bool) -> Option<bool> {
    let operator = take_byte(bytes)?;
    Some(match operator {
        ALL | GLOBAL => true,
        NOT => !matches(bytes, value, counts)?,
        AND | OR => {
            let (parts, decides) = (take_number(bytes)?, operator == OR);
            let mut answer = !decides;
            for _ in 0..parts {
                let is_open = answer != decides;
                let found = matches(bytes, value, counts && is_open)?;
                answer = if is_open { found } else { answer };
            }
            answer
        }
        HAS..=NOT_IN => {
            let label = take_text(bytes)?;
            let value = if counts { value(label) } else { None };
            matches_value(operator, value, bytes)?
        }
        _ => return None,
    })
}

/// Whether a value fits what follows a label.
fn matches_value(operator: u8, value: Option<&str>, bytes: &mut &[u8]) -> Option<bool> {
    if operator == HAS {
        return Some(value.is_some());
    }
    if matches!(operator, IN | NOT_IN) {
        let mut is_in = false;
        for _ in 0..take_number(bytes)? {
            is_in |= Some(take_text(bytes)?) == value;
        }
        return Some(is_in == (operator == IN));
    }
    let text = take_text(bytes)?;
    let is = |test: fn(&str, &str) -> bool| value.is_some_and(|value| test(value, text));
    Some(match operator {
        EQUALS => value == Some(text),
        NOT_EQUALS => value != Some(text),
        CONTAINS => is(|value, text| value.contains(text)),
        STARTS_WITH => is(|value, text| value.starts_with(text)),
        ENDS_WITH => is(|value, text| value.ends_with(text)),
        _ => return None,
    })
}

fn pack_parts(operator: u8, parts: &[Expr], bytes: &mut Vec<u8>) {
    bytes.push(operator);
    pack_number(parts.len(), bytes);
    parts.iter().for_each(|part| part.pack(bytes));
}

fn unpack_parts(bytes: &mut &[u8]) -> Option<Vec<Expr>> {
    let count = take_number(bytes)?;
    (0..count).map(|_| Expr::unpack(bytes)).collect()
}

fn pack_set(set: &BTreeSet<String>, bytes: &mut Vec<u8>) {
    pack_number(set.len(), bytes);
    set.iter().for_each(|text| pack_text(text, bytes));
}

fn unpack_set(bytes: &mut &[u8]) -> Option<BTreeSet<String>> {
    let count = take_number(bytes)?;
    (0..count).map(|_| take_text(bytes).map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SELECTORS: [&str; 18] = [
        "all()",
        "global()",
        "has(a)",
        "!has(a)",
        "a == 'x'",
        "a != 'x'",
        "a contains 'y'",
        "a starts with 'x'",
        "a ends with 'y'",
        "a in {'x', 'xy', ''}",
        "a not in {'x'}",
        "a in {}",
        "a == 'x' && b == 'y' && has(c)",
        "a == 'x' || (b == 'y' && !(c == 'z' || has(d))) || global()",
        "!(a == 'x' && all()) && (has(b) || b not in {'y', 'z'})",
        "(a == 'x' || has(b)) && (has(c) || c != 'z') && !has(d)",
        "!!!has(a)",
        "a == 'ein langer Wert mit Umlauten: \u{e4}\u{f6}\u{fc}'",
    ];

    #[test]
    fn a_packed_selector_is_the_same_and_matches_the_same() {
        let values = [None, Some("x"), Some("y"), Some("xy"), Some("")];
        let mut packed = BTreeMap::new();
        for text in SELECTORS {
            let selector = Selector::parse(text).unwrap();
            let mut bytes = Vec::new();
            selector.pack(&mut bytes);
            // What follows is left.
            let length = bytes.len();
            bytes.push(7);
            let mut rest = bytes.as_slice();
            assert_eq!(Selector::unpack(&mut rest), Some(selector.clone()), "{text}");
            assert_eq!(rest, [7], "{text}");
            for number in 0..5_usize.pow(4) {
                let value = |label: &str| {
                    let place = ["a", "b", "c", "d"].iter().position(|it| *it == label)?;
                    values[number / 5_usize.pow(place as u32) % 5]
                };
                let mut rest = bytes.as_slice();
                let found = Selector::packed_matches(&mut rest, &value);
                assert_eq!(found, Some(selector.matches_with(&value)), "{text} with number {number}");
                assert_eq!(rest, [7], "{text}");
            }
            bytes.truncate(length);
            assert_eq!(packed.insert(bytes, text), None, "{text} has the bytes of another one");
        }
    }

    #[test]
    fn what_is_cut_off_is_nothing() {
        for text in SELECTORS {
            let mut bytes = Vec::new();
            Selector::parse(text).unwrap().pack(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(Selector::unpack(&mut &bytes[..end]), None, "{text} until {end}");
                assert_eq!(
                    Selector::packed_matches(&mut &bytes[..end], &|_| None),
                    None,
                    "{text} until {end}"
                );
            }
        }
        assert_eq!(Selector::unpack(&mut [200].as_slice()), None);
        assert_eq!(Selector::packed_matches(&mut [200].as_slice(), &|_| None), None);
    }

    #[test]
    fn every_label_of_a_selector_is_named() {
        let text = "a == 'x' && !(has(b) || c in {'y'}) && d not in {'z'} && e != 'w' && f contains 'v'";
        let selector = Selector::parse(text).unwrap();
        let mut labels = Vec::new();
        selector.each_label(&mut |label| labels.push(label));
        assert_eq!(labels, ["a", "b", "c", "d", "e", "f"]);
    }
}
