//! Reads members of a configuration one by one, so that an error names the wrong member.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use russet_cni_spec::{CniError, Overrides};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// An object and its path in the configuration. An absent object reads as an empty one, and `null`
/// as absent.
pub(super) struct Fields<'a> {
    path: String,
    object: Option<&'a Map<String, Value>>,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(super) fn new(path: &str, object: &'a Map<String, Value>) -> Self {
        Self { path: path.to_owned(), object: Some(object) }
    }

    pub(super) fn object(&self, key: &str) -> Result<Self, CniError> {
        let object = match self.get(key) {
            None => None,
            Some(Value::Object(object)) => Some(object),
            Some(other) => return Err(self.wrong(key, format!("an object is wanted, not {}", kind(other)))),
        };
        Ok(Self { path: self.path_of(key), object })
    }

    pub(super) fn objects(&self, key: &str) -> Result<Vec<Map<String, Value>>, CniError> {
        Ok(self.read(key)?.unwrap_or_default())
    }

    /// A text; an empty one counts as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, CniError> {
        Ok(self.read(key)?.filter(|text: &String| !text.is_empty()))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, CniError> {
        Ok(self.read(key)?.unwrap_or_default())
    }

    /// A path. Relative paths are refused, because the runtime's working directory is not known.
    pub(super) fn path(&self, key: &str) -> Result<Option<PathBuf>, CniError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let path = PathBuf::from(&text);
        if path.is_absolute() {
            return Ok(Some(path));
        }
        Err(self.wrong(key, format!("an absolute path is wanted, not {text:?}")))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, CniError> {
        Ok(self.read(key)?.unwrap_or_default())
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, CniError> {
        self.read(key)
    }

    pub(super) fn number(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, CniError> {
        let Some(value) = self.integer(key)? else { return Ok(None) };
        let number = u32::try_from(value).ok().filter(|number| range.contains(number));
        let wrong =
            || self.wrong(key, format!("{value} is not between {} and {}", range.start(), range.end()));
        number.map(Some).ok_or_else(wrong)
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, CniError> {
        self.read(key)
    }

    pub(super) fn to_map(&self) -> Map<String, Value> {
        self.object.cloned().unwrap_or_default()
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object?.get(key).filter(|value| !value.is_null())
    }

    fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, CniError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        serde_json::from_value(value.clone()).map(Some).map_err(|error| self.wrong(key, error.to_string()))
    }

    pub(super) fn wrong(&self, key: &str, reason: String) -> CniError {
        CniError::invalid_config(format!("{} cannot be used", self.path_of(key)), reason)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Selects one of three sources: a variable with Calico's prefix, then the configuration, then the
/// bare variable (calico-ipam.md section 4.1).
pub(super) fn choose(overrides: &Overrides, name: &str, given: Option<String>) -> Option<String> {
    let prefixed = overrides.prefixed(name).map(str::to_owned);
    prefixed.or(given).or_else(|| overrides.bare(name).map(str::to_owned))
}

/// The same for a path.
pub(super) fn choose_path(overrides: &Overrides, name: &str, given: Option<PathBuf>) -> Option<PathBuf> {
    let prefixed = overrides.prefixed(name).map(PathBuf::from);
    prefixed.or(given).or_else(|| overrides.bare(name).map(PathBuf::from))
}
