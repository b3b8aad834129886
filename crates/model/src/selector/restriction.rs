//! What a selector needs, so that an index visits only selectors that may match.

use super::{Expr, Selector};

/// A label that everything has that a selector matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restriction<'a> {
    /// The label, with any value.
    Has(&'a str),
    /// The label, with one of these values; of none, the selector matches nothing.
    OneOf(&'a str, Vec<&'a str>),
}

impl Selector {
    /// All restrictions that are easily seen; each of them holds for all that the selector matches.
    pub fn restrictions(&self) -> Vec<Restriction<'_>> {
        let mut found = Vec::new();
        self.0.restrictions(&mut found);
        found
    }
}

impl Expr {
    fn restrictions<'a>(&'a self, found: &mut Vec<Restriction<'a>>) {
        match self {
            Self::Has(label)
            | Self::Contains(label, _)
            | Self::StartsWith(label, _)
            | Self::EndsWith(label, _) => found.push(Restriction::Has(label)),
            Self::Equals(label, value) => found.push(Restriction::OneOf(label, vec![value])),
            Self::In(label, values) => {
                found.push(Restriction::OneOf(label, values.iter().map(String::as_str).collect()));
            }
            Self::And(parts) => parts.iter().for_each(|part| part.restrictions(found)),
            Self::All | Self::Global | Self::NotEquals(..) | Self::NotIn(..) | Self::Not(_) | Self::Or(_) => {
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conjunction_has_the_restrictions_of_its_parts() {
        let selector =
            Selector::parse("a == 'x' && (has(b) && c in {'y', 'z'}) && !has(d) && e != 'q'").unwrap();
        assert_eq!(
            selector.restrictions(),
            [
                Restriction::OneOf("a", vec!["x"]),
                Restriction::Has("b"),
                Restriction::OneOf("c", vec!["y", "z"])
            ]
        );
    }

    #[test]
    fn what_matches_without_a_label_has_no_restriction() {
        for text in ["all()", "a != 'x'", "a not in {'x'}", "!has(a)", "a == 'x' || b == 'y'"] {
            assert_eq!(Selector::parse(text).unwrap().restrictions(), [], "{text}");
        }
    }
}
