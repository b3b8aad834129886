//! Label selectors: `zone == "a" && !has(gpu)` (calico-cni.md section 4P.5). Pools choose nodes and namespaces with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

mod packed;
mod parse;
mod restriction;

pub use restriction::Restriction;

/// A parsed selector. Their order has no meaning, but is always the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

    /// Selects everything.
    pub fn all() -> Self {
        Self(Expr::All)
    }

    /// Selects what has the label.
    pub fn has(label: &str) -> Result<Self, SelectorError> {
        Ok(Self(Expr::Has(parse::checked_label(label)?)))
    }

    /// Selects what has the label with this value.
    pub fn equals(label: &str, value: &str) -> Result<Self, SelectorError> {
        Ok(Self(Expr::Equals(parse::checked_label(label)?, parse::checked_value(value)?)))
    }

    /// Selects what has the label with one of these values.
    pub fn is_in<'a>(label: &str, values: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectorError> {
        let set = values.into_iter().map(parse::checked_value).collect::<Result<_, _>>()?;
        Ok(Self(Expr::In(parse::checked_label(label)?, set)))
    }

    /// Selects what does not have the label, or has it with another value.
    pub fn not_in<'a>(label: &str, values: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectorError> {
        let set = values.into_iter().map(parse::checked_value).collect::<Result<_, _>>()?;
        Ok(Self(Expr::NotIn(parse::checked_label(label)?, set)))
    }

    /// Selects what this one does not.
    pub fn negated(self) -> Self {
        Self(Expr::Not(Box::new(self.0)))
    }

    /// Selects what all of these select; of none, everything.
    pub fn and(parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Expr> = parts.into_iter().map(|part| part.0).collect();
        Self(if parts.is_empty() { Expr::All } else { parse::one_or(parts, Expr::And) })
    }

    /// The same selector over labels whose keys have a prefix. With a marker, `all()` becomes
    /// `has(marker)` and `global()` its negation, because only what has the label `marker` has such
    /// labels at all (calico-cni.md section 4P.3).
    pub fn prefixed(&self, prefix: &str, marker: Option<&str>) -> Self {
        Self(self.0.prefixed(prefix, marker))
    }

    /// Whether something with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(&|label| labels.get(label).map(String::as_str))
    }

    /// Whether something is selected whose labels `value` returns.
    pub fn matches_with<'a>(&self, value: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        self.0.matches(value)
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
    fn matches<'a>(&self, value: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        let is = |label: &str, test: &dyn Fn(&str) -> bool| value(label).is_some_and(test);
        match self {
            Self::All | Self::Global => true,
            Self::Has(label) => value(label).is_some(),
            Self::Equals(label, text) => is(label, &|value| value == text),
            Self::NotEquals(label, text) => !is(label, &|value| value == text),
            Self::Contains(label, text) => is(label, &|value| value.contains(text.as_str())),
            Self::StartsWith(label, text) => is(label, &|value| value.starts_with(text.as_str())),
            Self::EndsWith(label, text) => is(label, &|value| value.ends_with(text.as_str())),
            Self::In(label, set) => is(label, &|value| set.contains(value)),
            Self::NotIn(label, set) => !is(label, &|value| set.contains(value)),
            Self::Not(inner) => !inner.matches(value),
            Self::And(parts) => parts.iter().all(|part| part.matches(value)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(value)),
        }
    }

    fn prefixed(&self, prefix: &str, marker: Option<&str>) -> Self {
        let key = |label: &String| format!("{prefix}{label}");
        let each = |parts: &[Self]| parts.iter().map(|part| part.prefixed(prefix, marker)).collect();
        let marked = |marker: &str| Self::Has(marker.to_owned());
        match self {
            Self::All => marker.map_or(Self::All, marked),
            Self::Global => marker.map_or(Self::Global, |marker| Self::Not(Box::new(marked(marker)))),
            Self::Has(label) => Self::Has(key(label)),
            Self::Equals(label, text) => Self::Equals(key(label), text.clone()),
            Self::NotEquals(label, text) => Self::NotEquals(key(label), text.clone()),
            Self::Contains(label, text) => Self::Contains(key(label), text.clone()),
            Self::StartsWith(label, text) => Self::StartsWith(key(label), text.clone()),
            Self::EndsWith(label, text) => Self::EndsWith(key(label), text.clone()),
            Self::In(label, set) => Self::In(key(label), set.clone()),
            Self::NotIn(label, set) => Self::NotIn(key(label), set.clone()),
            Self::Not(inner) => Self::Not(Box::new(inner.prefixed(prefix, marker))),
            Self::And(parts) => Self::And(each(parts)),
            Self::Or(parts) => Self::Or(each(parts)),
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
    fn more_vectors_of_calico() {
        // policy.md section 1.5
        assert!(Selector::parse("a in {'b',}").is_ok());
        for text in ["a in {,}", "has (a)", "has(a)\n", "has(a) &&\nhas(b)"] {
            assert!(Selector::parse(text).is_err(), "{text:?}");
        }
        for (text, canonical) in [
            ("! ! ! has(x)", "!!!has(x)"),
            ("has(a) || has(b) && has(c)", "(has(a) || (has(b) && has(c)))"),
            ("a in { }", "a in {}"),
            ("!a=='b'", "!a == \"b\""),
            ("global( )", "global()"),
            ("a startswith 'x'", "a starts with \"x\""),
        ] {
            assert_eq!(Selector::parse(text).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn constructed_selectors_equal_parsed_ones() {
        let built = Selector::and([
            Selector::equals("o", "k8s").unwrap(),
            Selector::is_in("a", ["y", "x"]).unwrap(),
            Selector::not_in("b", ["z"]).unwrap(),
            Selector::has("c").unwrap().negated(),
        ]);
        assert_eq!(
            built,
            Selector::parse("o == 'k8s' && a in {'x','y'} && b not in {'z'} && !has(c)").unwrap()
        );
        assert_eq!(Selector::and([]), Selector::all());
        assert_eq!(Selector::and([Selector::has("a").unwrap()]), Selector::parse("has(a)").unwrap());
    }

    #[test]
    fn what_the_text_form_cannot_say_is_not_constructed() {
        assert!(Selector::has("a b").is_err() && Selector::has("").is_err());
        assert!(Selector::has(&"a".repeat(513)).is_err());
        assert!(Selector::equals("a", "both ' and \"").is_err());
        assert!(Selector::equals("a", "only '").is_ok());
    }

    #[test]
    fn prefixes_reach_every_label_and_all_becomes_a_label() {
        let prefixed = |text: &str| Selector::parse(text).unwrap().prefixed("pcns.", Some("m")).to_string();
        assert_eq!(
            prefixed("a == 'x' && (!has(b) || c in {'y'})"),
            r#"(pcns.a == "x" && (!has(pcns.b) || pcns.c in {"y"}))"#
        );
        assert_eq!(prefixed("all() || global()"), "(has(m) || !has(m))");
        assert_eq!(
            prefixed("a contains 'x' || a starts with 'x' || a ends with 'x' || a != 'x' || a not in {'x'}")
                .matches("pcns.a")
                .count(),
            5
        );
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
