//! Label selectors: `zone == "a" && !has(gpu)` (calico-cni.md section 4P.5). Pools choose nodes and namespaces with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

mod parse;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Expr);

/// Text that is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid selector at byte {at}: {problem}")]
pub struct SelectorError {
    /// The position, in bytes from the start.
    pub at: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expr {
    All,
    Global,
    Has(String),
    Equals(String, String),
    NotEquals(String, String),
    Contains(String, String),
    StartsWith(String, String),
    EndsWith(String, String),
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

// === impl Selector ===

impl Selector {
    /// Parses a selector; empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Self)
    }

    /// Whether something with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }

    /// Whether `global()` occurs, which is allowed only in a few places of a policy.
    pub fn mentions_global(&self) -> bool {
        self.0.mentions_global()
    }
}

impl std::str::FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

/// The canonical text, from which peers derive IDs.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

// === impl Expr ===

// Recursion is bounded: the parser refuses what nests deeper than its limit.
impl Expr {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let is =
            |label: &String, test: &dyn Fn(&str) -> bool| labels.get(label).is_some_and(|value| test(value));
        match self {
            Self::All | Self::Global => true,
            Self::Has(label) => labels.contains_key(label),
            Self::Equals(label, text) => is(label, &|value| value == text),
            Self::NotEquals(label, text) => !is(label, &|value| value == text),
            Self::Contains(label, text) => is(label, &|value| value.contains(text.as_str())),
            Self::StartsWith(label, text) => is(label, &|value| value.starts_with(text.as_str())),
            Self::EndsWith(label, text) => is(label, &|value| value.ends_with(text.as_str())),
            Self::In(label, set) => is(label, &|value| set.contains(value)),
            Self::NotIn(label, set) => !is(label, &|value| set.contains(value)),
            Self::Not(inner) => !inner.matches(labels),
            Self::And(parts) => parts.iter().all(|part| part.matches(labels)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(labels)),
        }
    }

    fn mentions_global(&self) -> bool {
        match self {
            Self::Global => true,
            Self::Not(inner) => inner.mentions_global(),
            Self::And(parts) | Self::Or(parts) => parts.iter().any(Self::mentions_global),
            _ => false,
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all()"),
            Self::Global => f.write_str("global()"),
            Self::Has(label) => write!(f, "has({label})"),
            Self::Equals(label, text) => write!(f, "{label} == {}", quoted(text)),
            Self::NotEquals(label, text) => write!(f, "{label} != {}", quoted(text)),
            Self::Contains(label, text) => write!(f, "{label} contains {}", quoted(text)),
            Self::StartsWith(label, text) => write!(f, "{label} starts with {}", quoted(text)),
            Self::EndsWith(label, text) => write!(f, "{label} ends with {}", quoted(text)),
            Self::In(label, set) => write!(f, "{label} in {}", braced(set)),
            Self::NotIn(label, set) => write!(f, "{label} not in {}", braced(set)),
            Self::Not(inner) => write!(f, "!{inner}"),
            Self::And(parts) => joined(f, parts, " && "),
            Self::Or(parts) => joined(f, parts, " || "),
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, parts: &[Expr], operator: &str) -> fmt::Result {
    f.write_str("(")?;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(operator)?;
        }
        fmt::Display::fmt(part, f)?;
    }
    f.write_str(")")
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('"') { '\'' } else { '"' };
    format!("{quote}{text}{quote}")
}

fn braced(set: &BTreeSet<String>) -> String {
    let members: Vec<String> = set.iter().map(|text| quoted(text)).collect();
    format!("{{{}}}", members.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn selects(text: &str, pairs: &[(&str, &str)]) -> bool {
        Selector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).matches(&labels(pairs))
    }

    #[test]
    fn every_operator_matches_as_the_table_says() {
        // calico-cni.md section 4P.5
        let cases = [
            ("", true, true),
            (" all( ) ", true, true),
            ("a == 'xyz'", true, false),
            ("a != \"xyz\"", false, true),
            ("a != \"q\"", true, true),
            ("has( a )", true, false),
            ("!has(a)", false, true),
            ("!!has(a)", true, false),
            ("a contains 'y'", true, false),
            ("a starts with 'xy'", true, false),
            ("a startswith 'xy'", true, false),
            ("a ends with 'yz'", true, false),
            ("a endswith 'xy'", false, false),
            ("a in { 'q', 'xyz', }", true, false),
            ("a in {}", false, false),
            ("a not in {'q'}", true, true),
            ("a notin {'xyz'}", false, true),
            ("a=='q'||a=='xyz'&&has(a)", true, false),
            ("(a == 'xyz' || has(a)) && !a == 'q'", true, false),
            ("a\t==\t'xyz'", true, false),
        ];
        for (text, with, without) in cases {
            assert_eq!(selects(text, &[("a", "xyz")]), with, "{text} with a");
            assert_eq!(selects(text, &[("b", "1")]), without, "{text} without a");
        }
    }

    #[test]
    fn and_binds_tighter_than_or() {
        assert!(selects("has(a) || has(b) && has(c)", &[("a", "")]));
        assert!(!selects("(has(a) || has(b)) && has(c)", &[("a", "")]));
    }

    #[test]
    fn oracle_78_what_is_missing_is_not_equal_and_in_no_set() {
        // calico-cni.md section 5.2
        assert!(selects("a != \"a\"", &[]));
        assert!(selects("!a in {\"a\"}", &[("a", "b")]));
        assert!(selects("a notin {\"x\"}", &[]));
    }

    #[test]
    fn oracle_79_empty_sets_and_values_are_what_they_say() {
        // calico-cni.md section 5.2
        assert!(!selects("a in {}", &[("a", "")]) && !selects("a in {}", &[]));
        assert!(selects("has(a)", &[("a", "")]));
        assert!(!selects("a == \"\"", &[]) && selects("a == \"\"", &[("a", "")]));
    }

    #[test]
    fn oracle_80_and_binds_before_or() {
        // calico-cni.md section 5.2
        assert!(selects("a == 'x' && b == 'y' || c == 'z'", &[("c", "z")]));
    }

    #[test]
    fn words_of_the_grammar_may_be_labels() {
        for text in ["all == 'x'", "in in {'x'}", "not not in {'y'}", "has == 'x'", "a.b/c-d_e == 'x'"] {
            let label = text.split(' ').next().unwrap();
            assert!(selects(text, &[(label, "x")]), "{text}");
        }
    }

    #[test]
    fn the_canonical_text_is_calicos_and_parses_again() {
        // calico-cni.md section 4P.5, vectors
        let cases = [
            ("!(has(b)||!has(a))", "!(has(b) || !has(a))"),
            ("!( a=='b' && ! c!='d')", "!(a == \"b\" && !c != \"d\")"),
            ("app == 'db'", "app == \"db\""),
            ("", "all()"),
            ("((has(red)))", "has(red)"),
            ("a in {'z','b','z'}", "a in {\"b\", \"z\"}"),
            ("a == '\"'", "a == '\"'"),
        ];
        for (text, canonical) in cases {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(selector.to_string(), canonical);
            assert_eq!(Selector::parse(canonical).unwrap(), selector);
        }
    }

    #[test]
    fn rubbish_is_refused_and_the_place_is_named() {
        for text in [
            "a",
            "a ==",
            "a == b",
            "a == 'b",
            "has()",
            "has(a",
            "(has(a)",
            "has(a))",
            "a in 'b'",
            "a in {'b' 'c'}",
            "a in {,}",
            "&& has(a)",
            "has(a) &&",
            "a = 'b'",
            "!",
            "a starts 'x'",
            "all()all()",
            "é == 'x'",
        ] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
        assert_eq!(Selector::parse("a == b").unwrap_err().at, 5);
        assert!(Selector::parse(&format!("has({})", "a".repeat(513))).is_err());
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_overflow_the_stack() {
        for text in ["(".repeat(200_000), "!".repeat(200_000), format!("{}has(a)", "!(".repeat(150_000))] {
            assert!(Selector::parse(&text).is_err());
        }
        let fair = format!("{}has(a){}", "(".repeat(50), ")".repeat(50));
        assert!(selects(&fair, &[("a", "")]));
    }
}
