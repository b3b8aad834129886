//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::answers::Answer;
use super::kinds::Kind;

/// What a list or watch returns of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// The identifier of the kind.
    pub(crate) id: String,
    /// Empty: all.
    pub(crate) namespace: String,
    labels: Vec<Condition>,
    fields: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone)]
enum Condition {
    Is(String, String),
    IsNot(String, String),
    Exists(String),
    Missing(String),
}

/// The fields by which objects can be selected, as JSON pointers.
const FIELDS: [(&str, &str); 3] = [
    ("metadata.name", "/metadata/name"),
    ("metadata.namespace", "/metadata/namespace"),
    ("spec.nodeName", "/spec/nodeName"),
];

// === impl Selection ===

impl Selection {
    pub(crate) fn of(
        kind: Kind,
        namespace: &str,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, Answer> {
        let parts = |text: Option<&str>| -> Vec<String> {
            text.iter()
                .flat_map(|text| text.split(','))
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let fields = parts(fields).iter().map(|part| field(kind, part)).collect::<Result<_, _>>()?;
        let labels = parts(labels).iter().map(|part| Condition::of(part)).collect();
        Ok(Self { id: kind.id(), namespace: namespace.to_owned(), labels, fields })
    }

    /// Whether an object of the kind is selected.
    pub(crate) fn holds(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        (self.namespace.is_empty() || metadata["namespace"] == self.namespace)
            && self.labels.iter().all(|condition| condition.holds(&metadata["labels"]))
            && self.fields.iter().all(|(pointer, wanted)| {
                object.pointer(pointer).and_then(Value::as_str).unwrap_or_default() == wanted
            })
    }
}

fn field(kind: Kind, part: &str) -> Result<(&'static str, String), Answer> {
    let (name, value) = part.split_once("==").or(part.split_once('=')).unwrap_or((part, ""));
    let known = FIELDS.iter().find(|(field, _)| *field == name);
    let known = known.filter(|(field, _)| *field != "spec.nodeName" || kind.plural == "pods");
    match known {
        Some((_, pointer)) => Ok((pointer, value.to_owned())),
        None => Err(Answer::bad_request(&format!("field label not supported: {name}"))),
    }
}

// === impl Condition ===

impl Condition {
    fn of(part: &str) -> Self {
        if let Some(name) = part.strip_prefix('!') {
            return Self::Missing(name.to_owned());
        }
        if let Some((name, value)) = part.split_once("!=") {
            return Self::IsNot(name.to_owned(), value.to_owned());
        }
        match part.split_once("==").or(part.split_once('=')) {
            Some((name, value)) => Self::Is(name.to_owned(), value.to_owned()),
            None => Self::Exists(part.to_owned()),
        }
    }

    fn holds(&self, labels: &Value) -> bool {
        let has = |name: &str| labels.get(name).and_then(Value::as_str);
        match self {
            Self::Is(name, value) => has(name) == Some(value),
            Self::IsNot(name, value) => has(name) != Some(value),
            Self::Exists(name) => has(name).is_some(),
            Self::Missing(name) => has(name).is_none(),
        }
    }
}
