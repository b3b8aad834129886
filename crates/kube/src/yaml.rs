//! YAML as Kubernetes' tools read and write it: kubeconfig files, manifests, files of resources.
//!
//! Types follow YAML 1.2: `yes` and `012` are strings. Merge keys are expanded. Duplicate names and unknown tags are errors, and so is
//! anything that would cost far more memory than its text.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Options, RenderOptions, Spanned, UserMessageFormatter};

/// Levels of lists and mappings. Kubernetes' objects have about 20; without optimisation each level takes some 20 KiB of a 2 MiB stack.
const MAX_DEPTH: usize = 64;
/// Values in a file: more than 16 MiB of resources have.
const MAX_VALUES: usize = 2_000_000;
/// Values that aliases and merge keys may add, so that a short text cannot become a large one.
const MAX_REPEATED_VALUES: usize = 100_000;
/// Documents in a file.
const MAX_DOCUMENTS: usize = 100_000;
/// Whole numbers from here on, and below `i64::MIN`, arrive rounded.
const ROUNDED_FROM: f64 = 18_446_744_073_709_551_616.0;

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Which one, from 1; documents without content count.
    pub number: usize,
    /// Its content.
    pub value: Value,
}

/// Why a text cannot be read as YAML, or as what is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    message: String,
    line: Option<(u64, u64)>,
    document: usize,
}

/// A value with the checks that JSON's own type leaves out.
struct Json(Value);

struct JsonVisitor;

/// A name that the members do not have yet. The parser compares keys as YAML does, where `1` and `"1"` differ.
struct NewName<'a>(&'a Map<String, Value>);

/// Reads every document of a text. Those without content are left out.
pub fn documents(text: &[u8]) -> Result<Vec<Document>, YamlError> {
    let values: Vec<Spanned<Json>> = serde_saphyr::from_slice_multiple_with_options(text, options())
        .map_err(|error| YamlError::new(&error, text))?;
    let document = |Spanned { value: Json(value), referenced, .. }: Spanned<Json>| Document {
        number: document_at(text, referenced.line()),
        value,
    };
    Ok(values.into_iter().map(document).collect())
}

/// Reads a text of one document. A number or a boolean serves where a string is wanted, as in Kubernetes' own reader.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, YamlError> {
    serde_saphyr::from_slice_with_options(text, options()).map_err(|error| YamlError::new(&error, text))
}

/// Writes a value in block style, with the newline at its end. Strings that any reader takes for something else are quoted.
pub fn to_string(value: &impl Serialize) -> Result<String, YamlError> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options).map_err(|error| YamlError {
        message: error.to_string(),
        line: None,
        document: 1,
    })
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            max_events: 2 * MAX_VALUES,
            max_documents: MAX_DOCUMENTS,
            max_recorded_anchor_events: MAX_REPEATED_VALUES,
            // A file with one anchor and a hundred resources that use it is no attack; the limits of repeated values count.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED_VALUES },
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        ignore_binary_tag_for_string: true,
        reject_unsupported_tags: true,
        reject_tagged_field_names: true,
        // An excerpt may be a token; messages here are of one line.
        with_snippet: false,
    }
}

/// The document that a line belongs to: the parser counts lines, and leaves empty documents out.
fn document_at(text: &[u8], line: u64) -> usize {
    let lines = usize::try_from(line).unwrap_or(usize::MAX);
    let (mut number, mut is_open) = (0, false);
    for line in text.split(|byte| *byte == b'\n').take(lines) {
        let marks = |mark: &[u8]| {
            line.strip_prefix(mark).is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
        };
        let is_start = marks(b"---");
        let is_content = !matches!(line.trim_ascii().first(), None | Some(b'#' | b'%'));
        if marks(b"...") {
            is_open = false;
        } else if is_start || (is_content && !is_open) {
            number += 1;
            is_open = true;
        }
    }
    number.max(1)
}

// === impl YamlError ===

impl YamlError {
    fn new(error: &serde_saphyr::Error, text: &[u8]) -> Self {
        let line = error.location().map(|at| (at.line(), at.column()));
        let message = error.render_with_options(RenderOptions::new(&UserMessageFormatter));
        Self { message, line, document: line.map_or(1, |(line, _)| document_at(text, line)) }
    }

    /// Line and column, from 1, where they are known.
    pub fn position(&self) -> Option<(u64, u64)> {
        self.line
    }

    /// The document in which it was found, from 1.
    pub fn document(&self) -> usize {
        self.document
    }
}

// === impl Json ===

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON has, too")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json(Value::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Json, E> {
        let exact = (i64::MIN as f64..ROUNDED_FROM).contains(&number) && number != i64::MIN as f64;
        let number = Number::from_f64(number).filter(|_| exact);
        number.map(|number| Json(Value::Number(number))).ok_or_else(|| {
            E::custom("this number does not fit into 64 bits; write it in quotes if it is meant as text")
        })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Json, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json(Value::String(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(Json(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Json(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut values = Map::new();
        while let Some(name) = members.next_key_seed(NewName(&values))? {
            let Json(value) = members.next_value()?;
            values.insert(name, value);
        }
        Ok(Json(Value::Object(values)))
    }
}

// === impl NewName ===

impl<'de> DeserializeSeed<'de> for NewName<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NewName<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<String, E> {
        self.visit_string(name.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, name: String) -> Result<String, E> {
        if self.0.contains_key(&name) {
            return Err(E::custom(format!("duplicate member {name:.60?}")));
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(text: &str) -> Vec<(usize, Value)> {
        let found = documents(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        found.into_iter().map(|document| (document.number, document.value)).collect()
    }

    fn value(text: &str) -> Value {
        let [(1, value)] = &values(text)[..] else { panic!("{text}") };
        value.clone()
    }

    fn error(text: &str) -> YamlError {
        documents(text.as_bytes()).map(|found| format!("{found:.300?}")).unwrap_err()
    }

    #[test]
    fn documents_are_counted_with_those_that_are_empty() {
        for (text, numbers) in [
            ("", &[][..]),
            ("# nothing\n", &[]),
            ("a: 1", &[1]),
            ("---\na: 1\n---\n# empty\n---\n- b\n---\n", &[1, 3]),
            ("%YAML 1.2\n---\na: 1\n", &[1]),
            ("a: 1\n--- {b: 1}\n---\tc\n", &[1, 2, 3]),
            ("# comment\n\na: |\n ---\n  ...\n---\n--- x", &[1, 3]),
            ("---\r\na: 1\r\n---\r\nb: 1\r\n", &[1, 2]),
            ("a: 1\n...\n# comment\nb: 2\n...\n---\nc: 3\n", &[1, 2, 3]),
            ("---\n---\n...\na: 1\n", &[3]),
        ] {
            let found: Vec<usize> = values(text).into_iter().map(|(number, _)| number).collect();
            assert_eq!(found, numbers, "{text:?}");
        }
        assert_eq!(error("a: 1\n---\n---\nb: [\n").document(), 3);
    }

    #[test]
    fn scalars_have_the_types_of_yaml_1_2() {
        for (text, wanted) in [
            ("yes", json!("yes")),
            ("[on, y, No]", json!(["on", "y", "No"])),
            ("[true, False]", json!([true, false])),
            ("[~, null, Null, nUll]", json!([null, null, null, "nUll"])),
            ("[012, 1_000, 1:30, 2001-01-01]", json!(["012", "1_000", "1:30", "2001-01-01"])),
            ("[-3, +7, 0x1f, 0o17, .5, 1e3]", json!([-3, 7, 31, 15, 0.5, 1000.0])),
            ("[18446744073709551615, -9223372036854775808]", json!([u64::MAX, i64::MIN])),
            ("[!!str 3, !!int \"3\", !!binary aGk=]", json!(["3", 3, "aGk="])),
            ("{1: a, true: b, 1.5: c}", json!({"1": "a", "true": "b", "1.5": "c"})),
            ("{\n\t\"a\": [\"\\u00e9\\n\"]\n}", json!({"a": ["é\n"]})),
            ("\u{feff}a: >-\n  x\n  y\n", json!({"a": "x y"})),
        ] {
            assert_eq!(value(text), wanted, "{text}");
        }
    }

    #[test]
    fn members_of_a_mapping_win_over_merged_ones() {
        let text = "x: &x {b: 1, c: 1}\ny: {<<: [*x, {d: 3, b: 4}], c: 2}\n";
        assert_eq!(value(text)["y"], json!({"b": 1, "c": 2, "d": 3}));
    }

    #[test]
    fn what_has_no_clear_meaning_is_refused_with_its_position() {
        for (text, position, reason) in [
            ("a: 1\na: 2", (2, 1), "duplicate"),
            ("1: a\n\"1\": b", (2, 1), "duplicate member \"1\""),
            ("a: !secret x", (1, 12), "unsupported tag `!secret`"),
            ("!secret a: x", (1, 9), "unsupported tag `!secret`"),
            ("a: 18446744073709551616", (1, 4), "64 bits"),
            ("a: -9223372036854775809", (1, 4), "64 bits"),
            ("a: .inf", (1, 4), "not a finite number"),
            ("~: x", (1, 1), "null"),
            ("[a]: x", (1, 1), "expected string"),
            ("a: *b", (1, 4), "unknown"),
            ("a: &a [*a]", (1, 8), "ecursive"),
            ("a: {<<: 3}", (1, 9), "merge"),
            ("a: [1", (1, 4), "unclosed"),
            ("a:\n\t- b", (2, 2), "tabs"),
        ] {
            let error = error(text);
            assert!(error.to_string().contains(reason), "{text}: {error}");
            assert_eq!(error.position(), Some(position), "{text}: {error}");
            let (line, column) = position;
            assert!(error.to_string().contains(&format!("line {line}, column {column}")), "{text}: {error}");
        }
        assert!(documents(b"a: \xff").unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn texts_that_grow_or_nest_without_bound_are_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(documents(nested(MAX_DEPTH).as_bytes()).is_ok());
        let blocks =
            |depth: usize| (0..depth).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>();
        assert!(documents(blocks(MAX_DEPTH).as_bytes()).is_ok());
        for text in [nested(MAX_DEPTH + 1), nested(1 << 20), blocks(MAX_DEPTH + 1), "- ".repeat(1 << 20)] {
            assert!(error(&text).position().is_some());
        }
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        let mut merges = "a0: &a0 {x0: 1}\n".to_owned();
        for level in 1..20 {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
            merges.push_str(&format!("a{level}: &a{level} {{<<: [{below}], x{level}: 1}}\n"));
        }
        for text in [bomb, merges] {
            assert!(error(&text).to_string().contains("too large"), "{}", error(&text));
        }
        let one_anchor = format!("- &a {{b: c}}\n{}", "- *a\n".repeat(1000));
        assert_eq!(value(&one_anchor)[1000], json!({"b": "c"}));
    }

    #[test]
    fn what_is_written_is_read_back_and_looks_like_a_manifest() {
        let strings = [
            "1", "true", "~", "", "no", "0x1f", "- x", "a: b", "#x", " x", "é", "\u{7}", "0755", "*x", "'q'",
        ];
        let whole = json!({
            "kind": "IPPool",
            "spec": {"cidr": "10.0.0.0/16", "n": u64::MAX, "empty": {}, "text": "a\nb\n", "long": "word ".repeat(40)},
            "items": [{"a": 1, "b": [[1, 2]]}, strings, null, 1.5],
            "1": {"x: y": true},
        });
        let text = to_string(&whole).unwrap();
        assert!(text.starts_with("kind: IPPool\nspec:\n  cidr: 10.0.0.0/16\n"), "{text}");
        assert!(text.contains("\nitems:\n- a: 1\n  b:\n  - - 1\n"), "{text}");
        assert!(text.contains("\n  text: |\n    a\n    b\n"), "{text}");
        assert_eq!(value(&text), whole);
    }
}
