//! Typed access to the members of a JSON object, with errors that name the member.
//!
//! Results and configurations are decoded by this and not by derived code: other programs'
//! documents are lenient in ways that derives cannot express (null for absent, -1 for unset), and
//! the executable stays small.

use std::str::FromStr;

use serde_json::{Map, Value};

/// A JSON object.
pub(crate) type Object = Map<String, Value>;

/// A member of a JSON document is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct FieldError {
    /// The path, as in `ips[0].address`.
    pub path: String,
    /// What is wrong, and the value.
    pub problem: String,
}

/// Longest piece of a refused value that an error repeats.
const SHOWN_MAX_CHARS: usize = 80;

// === impl FieldError ===

impl FieldError {
    pub(crate) fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }

    fn wanted(key: &str, wanted: &str, found: &Value) -> Self {
        let text: String = found.to_string().chars().take(SHOWN_MAX_CHARS).collect();
        Self::new(key, format!("{wanted} is wanted, found {text}"))
    }

    /// The same error with the enclosing member `parent` in front.
    pub(crate) fn within(mut self, parent: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{parent}{dot}{}", self.path);
        self
    }
}

/// The member, unless it is absent or null.
pub(crate) fn present<'a>(object: &'a Object, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// The member as text; absent and null read as "".
pub(crate) fn text<'a>(object: &'a Object, key: &str) -> Result<&'a str, FieldError> {
    match present(object, key) {
        None => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| FieldError::wanted(key, "text", value)),
    }
}

/// The member parsed from its text; absent, null and "" are none.
pub(crate) fn parsed<T: FromStr>(object: &Object, key: &str, wanted: &str) -> Result<Option<T>, FieldError> {
    match text(object, key)? {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| FieldError::wanted(key, wanted, &text.into())),
    }
}

/// The member as a whole number that fits 32 bits.
pub(crate) fn number(object: &Object, key: &str) -> Result<Option<u32>, FieldError> {
    let read = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    present(object, key)
        .map(|value| read(value).ok_or_else(|| FieldError::wanted(key, "a whole number below 2^32", value)))
        .transpose()
}

/// The member as an object.
pub(crate) fn object<'a>(object: &'a Object, key: &str) -> Result<Option<&'a Object>, FieldError> {
    present(object, key)
        .map(|value| value.as_object().ok_or_else(|| FieldError::wanted(key, "an object", value)))
        .transpose()
}

/// The member as an array; absent and null read as empty.
pub(crate) fn array<'a>(object: &'a Object, key: &str) -> Result<&'a [Value], FieldError> {
    match present(object, key) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(FieldError::wanted(key, "an array", other)),
    }
}

/// Each element of the array `key`, read by `read`; elements must be objects.
pub(crate) fn objects<T>(
    object: &Object,
    key: &str,
    read: impl Fn(&Object) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    let element = |(index, value): (usize, &Value)| {
        let place = format!("{key}[{index}]");
        let object = value.as_object().ok_or_else(|| FieldError::wanted(&place, "an object", value))?;
        read(object).map_err(|error| error.within(&place))
    };
    array(object, key)?.iter().enumerate().map(element).collect()
}

/// The member as a list of texts.
pub(crate) fn texts(object: &Object, key: &str) -> Result<Vec<String>, FieldError> {
    let element = |(index, value): (usize, &Value)| {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| FieldError::wanted(&format!("{key}[{index}]"), "text", value))
    };
    array(object, key)?.iter().enumerate().map(element).collect()
}

/// The member as a boolean; absent and null read as false.
pub(crate) fn boolean(object: &Object, key: &str) -> Result<bool, FieldError> {
    match present(object, key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(FieldError::wanted(key, "true or false", other)),
    }
}

/// The member as a boolean, or as the text "true" or "false" in any case, as libcni reads a list's switches.
pub(crate) fn switch(object: &Object, key: &str) -> Result<bool, FieldError> {
    match present(object, key) {
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => boolean(object, key),
    }
}
