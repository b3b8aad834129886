//! JSON decoding and encoding, member by member: every error names the position, unknown members
//! keep their order, and the encoded bytes are those of Go's encoder. Used by every type of this
//! crate.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};

/// Unknown members, kept so that rewriting a record loses nothing (calico-ipam.md section 1.10).
pub type Extra = Map<String, Value>;

/// Bytes that do not match their key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}{at}: {problem}", if at.is_empty() { "" } else { " at " })]
pub struct DecodeError {
    /// The kind of record: `block`, `pool`.
    pub what: &'static str,
    /// The member: `allocations[3]`, `spec.cidr`. Empty for the value as a whole.
    pub at: String,
    /// What is wrong there.
    pub problem: String,
}

/// The members of one object, removed one by one; the rest is [`Extra`].
pub(crate) struct Fields {
    what: &'static str,
    at: String,
    members: Map<String, Value>,
}

/// An object being written, in the order of the calls.
#[derive(Default)]
pub(crate) struct Object(Map<String, Value>);

/// Writes strings as Go's `encoding/json` does: `<`, `>`, `&` and the two line separators are escaped.
struct GoFormatter;

/// Limit of the part of a refused value that an error repeats.
const SHOWN_MAX_CHARS: usize = 60;
/// Limit of an error's position and of its reason: either may repeat stored text.
const ERROR_MAX_CHARS: usize = 300;

/// Encodes as Go does, compactly.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, GoFormatter);
    // A `Value` has string keys only and the sink is memory: neither can fail.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok());
    bytes
}

fn shown(value: &Value) -> String {
    cut(value.to_string(), SHOWN_MAX_CHARS)
}

fn cut(text: String, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

// === impl Fields ===

impl Fields {
    /// Parses `bytes`, which must hold one object.
    pub(crate) fn parse(what: &'static str, bytes: &[u8]) -> Result<Self, DecodeError> {
        let value = serde_json::from_slice(bytes).map_err(|error| DecodeError {
            what,
            at: String::new(),
            problem: format!("not JSON: {error}"),
        })?;
        match value {
            Value::Object(members) => Ok(Self { what, at: String::new(), members }),
            other => {
                let problem = format!("an object is wanted, not {}", shown(&other));
                Err(DecodeError { what, at: String::new(), problem })
            }
        }
    }

    /// The rest, once all known members are removed.
    pub(crate) fn rest(self) -> Extra {
        self.members
    }

    /// An error at member `name`.
    pub(crate) fn error(&self, name: &str, problem: impl Into<String>) -> DecodeError {
        let (at, problem) = (cut(self.path(name), ERROR_MAX_CHARS), cut(problem.into(), ERROR_MAX_CHARS));
        DecodeError { what: self.what, at, problem }
    }

    fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    fn wanted(&self, name: &str, wanted: &str, value: &Value) -> DecodeError {
        self.error(name, format!("{wanted} is wanted, not {}", shown(value)))
    }

    /// A member that is neither missing nor null.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.members.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, DecodeError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wanted(name, "a string", &other)),
        }
    }

    /// A string of at most `max` bytes.
    pub(crate) fn short_string(&mut self, name: &str, max: usize) -> Result<Option<String>, DecodeError> {
        match self.string(name)? {
            Some(text) if text.len() > max => Err(self.too_long(name, text.len(), max)),
            text => Ok(text),
        }
    }

    /// A [`string_map`](Self::string_map) whose keys and values have at most `max` bytes.
    pub(crate) fn short_string_map(
        &mut self,
        name: &str,
        max: usize,
    ) -> Result<Option<BTreeMap<String, String>>, DecodeError> {
        let map = self.string_map(name)?;
        let longest = map.iter().flatten().map(|(key, value)| key.len().max(value.len())).max();
        match longest.filter(|longest| *longest > max) {
            Some(longest) => Err(self.too_long(name, longest, max)),
            None => Ok(map),
        }
    }

    fn too_long(&self, name: &str, found: usize, max: usize) -> DecodeError {
        self.error(name, format!("a text of {found} bytes; at most {max} are accepted"))
    }

    /// A string of a type of its own; an empty one counts as missing.
    pub(crate) fn text<T>(&mut self, name: &str) -> Result<Option<T>, DecodeError>
    where
        T: FromStr<Err: Display>,
    {
        match self.string(name)?.filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(value) => Ok(Some(value)),
                Err(error) => {
                    Err(self.error(name, format!("{}: {error}", shown(&Value::String(text.clone())))))
                }
            },
        }
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, DecodeError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wanted(name, "true or false", &other)),
        }
    }

    /// A plain unsigned integer: Go refuses `1.0` and `1e3`, and so do we.
    pub(crate) fn unsigned(&mut self, name: &str) -> Result<Option<u64>, DecodeError> {
        match self.value(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wanted(name, "an unsigned integer", &value)),
            },
        }
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, DecodeError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wanted(name, "an array", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, DecodeError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(members)) => {
                Ok(Some(Fields { what: self.what, at: self.path(name), members }))
            }
            Some(other) => Err(self.wanted(name, "an object", &other)),
        }
    }

    /// An array of objects.
    pub(crate) fn objects(&mut self, name: &str) -> Result<Option<Vec<Fields>>, DecodeError> {
        let Some(items) = self.array(name)? else { return Ok(None) };
        let one = |(index, item): (usize, Value)| match item {
            Value::Object(members) => {
                Ok(Fields { what: self.what, at: format!("{}[{index}]", self.path(name)), members })
            }
            other => Err(self.wanted(&format!("{name}[{index}]"), "an object", &other)),
        };
        items.into_iter().enumerate().map(one).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn strings(&mut self, name: &str) -> Result<Vec<String>, DecodeError> {
        let items = self.array(name)?.unwrap_or_default();
        let one = |(index, item): (usize, Value)| match item {
            Value::String(text) => Ok(text),
            other => Err(self.wanted(&format!("{name}[{index}]"), "a string", &other)),
        };
        items.into_iter().enumerate().map(one).collect()
    }

    /// An object of strings; none when missing or null. A null inside reads as the empty string, as in Go.
    pub(crate) fn string_map(&mut self, name: &str) -> Result<Option<BTreeMap<String, String>>, DecodeError> {
        let Some(fields) = self.object(name)? else { return Ok(None) };
        let mut map = BTreeMap::new();
        for (key, value) in fields.members {
            let text = match value {
                Value::String(text) => text,
                Value::Null => String::new(),
                other => return Err(self.wanted(&format!("{name}.{key}"), "a string", &other)),
            };
            map.insert(key, text);
        }
        Ok(Some(map))
    }

    /// An object of unsigned integers; none when missing or null.
    pub(crate) fn number_map(&mut self, name: &str) -> Result<Option<BTreeMap<String, u64>>, DecodeError> {
        let Some(fields) = self.object(name)? else { return Ok(None) };
        let mut map = BTreeMap::new();
        for (key, value) in fields.members {
            let Some(number) = value.as_u64() else {
                return Err(self.wanted(&format!("{name}.{key}"), "an unsigned integer", &value));
            };
            map.insert(key, number);
        }
        Ok(Some(map))
    }
}

// === impl Object ===

impl Object {
    pub(crate) fn put(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Writes the member only if there is a value.
    pub(crate) fn put_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.put(name, value),
            None => self,
        }
    }

    /// Writes the member only if there is a value, as its text.
    pub(crate) fn put_text(self, name: &str, value: Option<impl Display>) -> Self {
        self.put_some(name, value.map(|value| value.to_string()))
    }

    /// Writes the member only if the string is not empty.
    pub(crate) fn put_string(self, name: &str, value: &str) -> Self {
        if value.is_empty() { self } else { self.put(name, value) }
    }

    /// Writes the member only if it is true.
    pub(crate) fn put_true(self, name: &str, value: bool) -> Self {
        if value { self.put(name, true) } else { self }
    }

    /// Writes the member only if it is not zero.
    pub(crate) fn put_nonzero(self, name: &str, value: u64) -> Self {
        if value == 0 { self } else { self.put(name, value) }
    }

    /// Writes the member only if the list is not empty.
    pub(crate) fn put_list<T: Display>(self, name: &str, items: &[T]) -> Self {
        if items.is_empty() {
            return self;
        }
        self.put(name, items.iter().map(|item| Value::String(item.to_string())).collect::<Vec<_>>())
    }

    /// Writes the member only if the map is not empty.
    pub(crate) fn put_map(self, name: &str, map: &BTreeMap<String, String>) -> Self {
        if map.is_empty() { self } else { self.put(name, string_map(map)) }
    }

    /// Adds the members that were unknown when the record was decoded, and ends the object.
    pub(crate) fn finish(mut self, extra: &Extra) -> Value {
        for (name, value) in extra {
            if !self.0.contains_key(name) {
                self.0.insert(name.clone(), value.clone());
            }
        }
        Value::Object(self.0)
    }
}

pub(crate) fn string_map(map: &BTreeMap<String, String>) -> Value {
    Value::Object(map.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect())
}

pub(crate) fn number_map(map: &BTreeMap<String, u64>) -> Value {
    Value::Object(map.iter().map(|(key, value)| (key.clone(), Value::from(*value))).collect())
}

// === impl GoFormatter ===

impl serde_json::ser::Formatter for GoFormatter {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        let is_escaped = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        for part in fragment.split_inclusive(is_escaped) {
            match part.chars().next_back().filter(|last| is_escaped(*last)) {
                Some(last) => {
                    writer.write_all(part.strip_suffix(last).unwrap_or_default().as_bytes())?;
                    write!(writer, "\\u{:04x}", u32::from(last))?;
                }
                None => writer.write_all(part.as_bytes())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_go_does() {
        let value = Value::from("a<b>&\u{2028}\"\n\u{1}é");
        assert_eq!(
            String::from_utf8(encode(&value)).unwrap(),
            "\"a\\u003cb\\u003e\\u0026\\u2028\\\"\\n\\u0001é\""
        );
    }

    #[test]
    fn an_error_says_where() {
        let mut fields = Fields::parse("pool", br#"{"spec":{"cidr":7}}"#).unwrap();
        let error = fields.object("spec").unwrap().unwrap().string("cidr").unwrap_err();
        assert_eq!(error.to_string(), "pool at spec.cidr: a string is wanted, not 7");
        let error = Fields::parse("pool", b"[1]").err().unwrap();
        assert_eq!(error.to_string(), "pool: an object is wanted, not [1]");
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_crash() {
        assert!(Fields::parse("block", "[".repeat(100_000).as_bytes()).is_err());
    }
}
