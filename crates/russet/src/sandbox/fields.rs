//! Reads the members of a manifest's objects one by one: an invalid one is a problem with its path,
//! and one that the caller does not read causes a warning, since it has no effect.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::names::NameRule;
use crate::resources::nearest;

/// Problems and warnings.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What makes the manifest unusable.
    pub problems: Vec<String>,
    /// Members that have no effect here.
    pub warnings: Vec<String>,
}

/// An object of the manifest.
pub(super) struct Fields<'f> {
    at: String,
    members: Map<String, Value>,
    known: Vec<&'static str>,
    findings: &'f mut Findings,
}

/// How much of an invalid value a message shows.
const SHOWN_CHARS: usize = 60;

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

// === impl Findings ===

impl Findings {
    pub(super) fn problem(&mut self, at: &str, text: &str) {
        self.problems.push(format!("{at}: {text}"));
    }

    pub(super) fn warning(&mut self, at: &str, text: &str) {
        self.warnings.push(format!("{at}: {text}"));
    }

    fn wrong(&mut self, at: &str, wanted: &str, value: &Value) {
        let shown: String = value.to_string().chars().take(SHOWN_CHARS).collect();
        self.problem(at, &format!("{wanted} is wanted, not {shown}"));
    }
}

// === impl Fields ===

impl<'f> Fields<'f> {
    pub(super) fn new(
        at: impl Into<String>,
        members: Map<String, Value>,
        findings: &'f mut Findings,
    ) -> Self {
        Self { at: at.into(), members, known: Vec::new(), findings }
    }

    pub(super) fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Null means absent, as in Kubernetes.
    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.members.shift_remove(name).filter(|value| !value.is_null())
    }

    fn wrong(&mut self, name: &str, wanted: &str, value: &Value) {
        let path = self.path(name);
        self.findings.wrong(&path, wanted, value);
    }

    pub(super) fn problem(&mut self, name: &str, text: &str) {
        let path = self.path(name);
        self.findings.problem(&path, text);
    }

    /// Reports a required member that is missing, unless it was already reported as invalid.
    pub(super) fn missing(&mut self, name: &str, text: &str) {
        let begin = format!("{}: ", self.path(name));
        if !self.findings.problems.iter().any(|problem| problem.starts_with(&begin)) {
            self.problem(name, text);
        }
    }

    /// A text that follows a rule of Kubernetes for names. An invalid one is reported, and returned
    /// all the same.
    pub(super) fn name(&mut self, name: &'static str, rule: NameRule) -> Option<String> {
        let text = self.text(name)?;
        self.check_name(name, &text, rule);
        Some(text)
    }

    /// Reports what is wrong with the name in the member `name`.
    pub(super) fn check_name(&mut self, name: &str, text: &str, rule: NameRule) {
        if !text.is_empty() && !rule.allows(text) {
            self.problem(name, &format!("{rule} is wanted, not {:?}", shortened(text)));
        }
    }

    pub(super) fn warning(&mut self, name: &str, text: &str) {
        let path = self.path(name);
        self.findings.warning(&path, text);
    }

    /// Drops members that Kubernetes uses and Russet does not, without a warning.
    pub(super) fn ignore(&mut self, names: &[&'static str]) {
        for name in names {
            self.take(name);
        }
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong(name, "a string", &other);
                None
            }
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        match self.take(name) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(other) => {
                self.wrong(name, "true or false", &other);
                false
            }
        }
    }

    /// A port, or None if it is 0 or absent.
    pub(super) fn port(&mut self, name: &'static str) -> Option<u16> {
        let value = self.take(name)?;
        match value.as_u64().map(u16::try_from) {
            Some(Ok(port)) => Some(port).filter(|port| *port != 0),
            _ => {
                self.wrong(name, "a port from 1 to 65535", &value);
                None
            }
        }
    }

    /// A text, parsed as `T`.
    pub(super) fn parsed<T: std::str::FromStr>(&mut self, name: &'static str, wanted: &str) -> Option<T> {
        let text = self.text(name).filter(|text| !text.is_empty())?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.wrong(name, wanted, &Value::String(text));
        }
        parsed
    }

    pub(super) fn texts(&mut self, name: &'static str) -> Vec<String> {
        let items = self.list(name);
        let mut texts = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            match item {
                Value::String(text) => texts.push(text),
                other => self.wrong(&format!("{name}[{index}]"), "a string", &other),
            }
        }
        texts
    }

    /// An object whose values are strings.
    pub(super) fn labels(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (key, value) in self.members_of(name).unwrap_or_default() {
            self.check_name(name, &key, NameRule::Key);
            match value {
                Value::String(text) => drop(labels.insert(key, text)),
                other => self.wrong(&format!("{name}.{key}"), "a string (in quotes, if need be)", &other),
            }
        }
        labels
    }

    /// The result of `read` for the object, if it exists.
    pub(super) fn object<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'_>) -> T,
    ) -> Option<T> {
        let members = self.members_of(name)?;
        let path = self.path(name);
        let mut fields = Fields::new(path, members, self.findings);
        let made = read(&mut fields);
        fields.finish();
        Some(made)
    }

    /// The result of `read` for each object of a list.
    pub(super) fn objects<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Fields<'_>) -> T,
    ) -> Vec<T> {
        let mut made = Vec::new();
        for (index, item) in self.list(name).into_iter().enumerate() {
            let place = format!("{name}[{index}]");
            match item {
                Value::Object(members) => {
                    let mut fields = Fields::new(self.path(&place), members, self.findings);
                    made.push(read(&mut fields));
                    fields.finish();
                }
                other => self.wrong(&place, "an object", &other),
            }
        }
        made
    }

    fn members_of(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        match self.take(name)? {
            Value::Object(members) => Some(members),
            other => {
                self.wrong(name, "an object", &other);
                None
            }
        }
    }

    fn list(&mut self, name: &'static str) -> Vec<Value> {
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.wrong(name, "a list", &other);
                Vec::new()
            }
        }
    }

    /// Warns of all members that were not read.
    pub(super) fn finish(mut self) {
        for name in std::mem::take(&mut self.members).into_iter().map(|(name, _)| name) {
            let text = match nearest(&name, self.known.iter().copied()) {
                Some(near) => format!("has no effect here; did you mean {near}?"),
                None => "has no effect here".to_owned(),
            };
            self.warning(&name, &text);
        }
    }
}
