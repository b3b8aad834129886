//! Objects as Go's `encoding/json` decodes them into a struct: names in any case, the last one that
//! is not null counts, unknown ones are ignored, and a value of another type is an error. Used by
//! the configuration and by the leases' values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::DecodeError;

/// Most characters of a refused value that an error repeats.
const SHOWN_MAX_CHARS: usize = 60;

/// The members of one object in their order, each as it was written.
pub(super) struct Members {
    what: &'static str,
    members: Vec<(String, Box<RawValue>)>,
}

struct Raw(Vec<(String, Box<RawValue>)>);

/// Equal as Go's decoder takes names to be equal: the long s and the Kelvin sign fold to ASCII, too.
pub(super) fn same_name(a: &str, b: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    a.chars().map(fold).eq(b.chars().map(fold))
}

/// Text as Go decodes it: invalid UTF-8 becomes U+FFFD.
pub(super) fn text_of(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

// === impl Members ===

impl Members {
    /// Parses `text`, which must hold one object, or null for an empty one.
    pub(super) fn parse(what: &'static str, text: &str) -> Result<Self, DecodeError> {
        let error = |problem| DecodeError { what, at: String::new(), problem };
        if text.trim_matches([' ', '\t', '\r', '\n']) == "null" {
            return Ok(Self { what, members: Vec::new() });
        }
        let Raw(members) =
            serde_json::from_str(text).map_err(|e| error(format!("not a JSON object: {e}")))?;
        Ok(Self { what, members })
    }

    /// The last member of that name that is not null, as it was written.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        let named = self.members.iter().rev().filter(|(known, _)| same_name(known, name));
        named.map(|(_, value)| value.get()).find(|value| *value != "null")
    }

    /// The last member of that name even if it is null: for what Go keeps raw.
    pub(super) fn last(&self, name: &str) -> Option<&str> {
        let named = self.members.iter().rev().find(|(known, _)| same_name(known, name));
        named.map(|(_, value)| value.get())
    }

    /// An error at member `name`.
    pub(super) fn error(&self, name: &str, problem: impl Into<String>) -> DecodeError {
        DecodeError { what: self.what, at: name.to_owned(), problem: problem.into() }
    }

    fn wanted(&self, name: &str, wanted: &str, raw: &str) -> DecodeError {
        self.error(name, format!("{wanted} is wanted, not {}", shown(raw)))
    }

    pub(super) fn bool(&self, name: &str) -> Result<Option<bool>, DecodeError> {
        match self.raw(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(raw) => Err(self.wanted(name, "true or false", raw)),
        }
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<String>, DecodeError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw).map(Some).map_err(|_| self.wanted(name, "a string", raw))
    }

    /// A whole number that is not negative; `24.0` and `"24"` are none.
    pub(super) fn unsigned(&self, name: &str) -> Result<Option<u64>, DecodeError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        raw.parse().map(Some).map_err(|_| self.wanted(name, "a whole number from 0", raw))
    }

    /// A string of a type of its own; an empty one counts as missing.
    pub(super) fn text<T>(&self, name: &str) -> Result<Option<T>, DecodeError>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        match self.string(name)?.filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => {
                let parsed =
                    text.parse().map_err(|e: T::Err| self.error(name, format!("{e}: {:?}", shown(&text))));
                parsed.map(Some)
            }
        }
    }

    /// All members as values. Of those with one and the same name the last counts that is not null.
    pub(super) fn values(&self) -> Result<Map<String, Value>, DecodeError> {
        let mut values = Map::new();
        for (name, raw) in &self.members {
            let value =
                serde_json::from_str(raw.get()).map_err(|e| self.error(name, format!("not JSON: {e}")))?;
            if !(values.contains_key(name) && matches!(value, Value::Null)) {
                values.shift_remove(name);
                values.insert(name.clone(), value);
            }
        }
        Ok(values)
    }
}

// === impl Raw ===

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taker;
        impl<'de> Visitor<'de> for Taker {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Raw(members))
            }
        }
        deserializer.deserialize_map(Taker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_in_any_case_and_the_last_value_that_is_not_null_counts() {
        let text =
            r#"{"SubnetLen":24,"subnetlen":25,"SUBNETLEN":null,"\u017fubnetMin":"x","other":[1,{"a":2}]}"#;
        let members = Members::parse("test", text).unwrap();
        assert_eq!(members.unsigned("SubnetLen").unwrap(), Some(25));
        assert_eq!(members.string("SubnetMin").unwrap().as_deref(), Some("x"));
        assert_eq!(members.last("SubnetLen"), Some("null"));
    }

    #[test]
    fn a_value_of_another_type_is_an_error_that_names_the_member() {
        let members = Members::parse("test", r#"{"a":"24","b":24.0,"c":-1,"d":1,"e":[]}"#).unwrap();
        for name in ["a", "b", "c"] {
            let error = members.unsigned(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("test at {name}: ")), "{error}");
        }
        assert!(members.bool("d").is_err() && members.string("d").is_err() && members.string("e").is_err());
        assert!(Members::parse("test", "[]").is_err() && Members::parse("test", "{} x").is_err());
        assert!(Members::parse("test", " null\n").unwrap().members.is_empty());
    }
}
