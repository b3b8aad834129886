//! Files of resources: YAML or JSON, several documents in a file, lists of resources in a document.

use std::io::Read;
use std::path::Path;

use russet_kube::yaml::{self, YamlError};
use serde_json::{Map, Value};

use super::fields::nearest;
use super::{Kind, Problems, Refused};
use crate::cli::unknown::instead_of_kind;
use crate::output::{progress, visible};

/// One resource as it was written.
#[derive(Debug)]
pub struct Document {
    /// Its position: file, document, item.
    pub origin: String,
    pub kind: Kind,
    pub members: Map<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    /// Larger than any file of resources.
    #[error("{0} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge(String),
    /// The text is not YAML.
    #[error("{origin}: {source}")]
    Yaml {
        /// Which document.
        origin: String,
        /// What is wrong.
        source: YamlError,
    },
    /// YAML, and no resource of ours.
    #[error("{origin}: {problem}")]
    NoResource { origin: String, problem: String },
}

/// The file name that means standard input.
const STDIN: &str = "-";
/// Enough for thousands of resources; rejects a mistaken path.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// How to handle a resource of a kind that Russet does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownKinds {
    /// Refuse the file.
    Refuse,
    /// Leave out the resource, with a line on standard error.
    Skip,
}

/// Reads every resource of a file, `-` being standard input, in order.
pub fn read(file: &Path, unknown: UnknownKinds) -> Result<Vec<Document>, DocumentError> {
    let mut found = Vec::new();
    for (origin, value) in values(file)? {
        resources(origin, value, unknown, &mut found)?;
    }
    Ok(found)
}

/// Reads every document of a file, with its position; leaves out empty ones.
pub fn values(file: &Path) -> Result<Vec<(String, Value)>, DocumentError> {
    let is_stdin = file.as_os_str() == STDIN;
    let name = if is_stdin { "standard input".to_owned() } else { file.display().to_string() };
    let text =
        if is_stdin { bounded(std::io::stdin().lock()) } else { std::fs::File::open(file).and_then(bounded) };
    let text = text.map_err(|source| DocumentError::Read { file: name.clone(), source })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(DocumentError::TooLarge(name));
    }
    documents(&name, &text)
}

fn bounded(input: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn documents(name: &str, text: &[u8]) -> Result<Vec<(String, Value)>, DocumentError> {
    let origin = |number: usize| format!("{name}, document {number}");
    let found = yaml::documents(text)
        .map_err(|source| DocumentError::Yaml { origin: origin(source.document()), source })?;
    // Three dashes at the end of a file begin a document without anything in it.
    let found = found.into_iter().filter(|document| !document.value.is_null());
    Ok(found.map(|document| (origin(document.number), document.value)).collect())
}

/// A document is a resource, or a list of resources.
fn resources(
    origin: String,
    value: Value,
    unknown: UnknownKinds,
    found: &mut Vec<Document>,
) -> Result<(), DocumentError> {
    let wrong = |problem: String| DocumentError::NoResource { origin: origin.clone(), problem };
    let members = match value {
        Value::Object(members) => members,
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                resources(format!("{origin}, item {}", index + 1), item, unknown, found)?;
            }
            return Ok(());
        }
        _ => return Err(wrong("a resource is wanted: kind, apiVersion, metadata and spec".to_owned())),
    };
    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let kind = text("kind").to_owned();
    if let Some(of) = kind.strip_suffix("List") {
        if !of.is_empty() && Kind::named(of).next().is_none() {
            return unknown.decide(&origin, of);
        }
        let mut members = members;
        let Some(Value::Array(items)) = members.remove("items") else {
            return Err(wrong(format!("a {kind} needs items")));
        };
        for (index, item) in items.into_iter().enumerate() {
            resources(format!("{origin}, item {}", index + 1), item, unknown, found)?;
        }
        return Ok(());
    }
    let named: Vec<Kind> = Kind::named(&kind).collect();
    if named.is_empty() {
        return unknown.decide(&origin, &kind);
    }
    let version = text("apiVersion");
    let Some(of) = named.iter().find(|kind| kind.resource().document().0 == version) else {
        let wanted: Vec<&str> = named.iter().map(|kind| kind.resource().document().0).collect();
        return Err(wrong(format!("apiVersion: {} is wanted, not {version:.60?}", wanted.join(" or "))));
    };
    found.push(Document { origin, kind: *of, members });
    Ok(())
}

fn unknown_kind(kind: &str) -> String {
    if let Some(instead) = instead_of_kind(&kind.to_lowercase()) {
        return format!("kind: {kind:.60?} is not known: {instead}");
    }
    let known = Kind::ALL.map(|kind| kind.resource().document().1);
    match nearest(kind, known.into_iter()) {
        Some(near) => format!("kind: {kind:.60?} is not known; did you mean {near}?"),
        None => format!("kind: {kind:.60?} is none of {}", known.join(", ")),
    }
}

// === impl UnknownKinds ===

impl UnknownKinds {
    fn decide(self, origin: &str, kind: &str) -> Result<(), DocumentError> {
        // An object without a kind is a mistake, and not another program's resource.
        if self == Self::Refuse || kind.is_empty() {
            return Err(DocumentError::NoResource { origin: origin.to_owned(), problem: unknown_kind(kind) });
        }
        progress(&visible(&format!("{origin}: kind {kind:.60?} is skipped: Russet does not have it")));
        Ok(())
    }
}

// === impl Document ===

impl Document {
    /// A string or number of its metadata.
    pub fn metadata(&self, name: &str) -> Option<String> {
        match self.members.get("metadata")?.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The subject of messages: `IPPool/default`.
    pub fn subject(&self) -> String {
        let (kind, name) = (self.kind.resource(), self.metadata("name").unwrap_or_default());
        visible(&match self.metadata("namespace").filter(|_| kind.namespaced()) {
            Some(namespace) => format!("{}/{namespace}/{name}", kind.kind()),
            None => format!("{}/{name}", kind.kind()),
        })
    }

    /// The error for a document with these problems.
    pub fn refused(&self, problems: Problems) -> Refused {
        Refused { origin: self.origin.clone(), subject: self.subject(), problems }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_with(text: &str, unknown: UnknownKinds) -> Result<Vec<Document>, String> {
        let mut found = Vec::new();
        let mut read = || {
            let documents = documents("f.yaml", text.as_bytes())?;
            let mut add = |(origin, value)| resources(origin, value, unknown, &mut found);
            documents.into_iter().try_for_each(&mut add)
        };
        read().map_err(|error: DocumentError| error.to_string())?;
        Ok(found)
    }

    fn parsed(text: &str) -> Result<Vec<Document>, String> {
        parsed_with(text, UnknownKinds::Refuse)
    }

    const POOL: &str =
        "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.0.0.0/16}\n";

    #[test]
    fn files_contain_documents_and_documents_contain_lists() {
        let list = "apiVersion: projectcalico.org/v3\nkind: NodeList\nmetadata: {}\nitems:\n- {apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n}}\n";
        let found = parsed(&format!(
            "---\n{POOL}---\n# nothing\n---\n{list}---\n[{}]\n",
            r#"{"kind":"Profile","apiVersion":"projectcalico.org/v3"}"#
        ));
        let found = found.unwrap();
        let kinds: Vec<Kind> = found.iter().map(|document| document.kind).collect();
        assert_eq!(kinds, [Kind::Pool, Kind::Node, Kind::Profile]);
        assert_eq!(found[1].origin, "f.yaml, document 3, item 1");
        assert!(parsed("").unwrap().is_empty());
    }

    #[test]
    fn invalid_resources_are_refused_with_their_position() {
        for (text, problem) in [
            ("kind: IPool", "did you mean IPPool?"),
            ("kind: BGPConfiguration", "Russet does not speak BGP"),
            ("kind: Gadget", "is none of IPPool"),
            ("kind: BGPPeerList\nitems: []", "Russet does not speak BGP"),
            ("apiVersion: v1\nkind: IPPool", "projectcalico.org/v3 is wanted, not \"v1\""),
            ("hello", "a resource is wanted"),
            ("kind: IPPoolList", "needs items"),
            ("kind: [", "document 1"),
            ("{kind: IPPool, kind: Node}", "duplicate"),
            ("kind: !secret x", "tag `!secret`"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with("f.yaml, document 1") && error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn resources_of_unknown_kinds_are_skipped_on_request_and_mistakes_are_not() {
        let all = format!(
            "{POOL}---\nkind: BGPPeer\napiVersion: projectcalico.org/v3\n---\nkind: BGPPeerList\nitems: []\n"
        );
        assert!(parsed(&all).is_err());
        let found = parsed_with(&all, UnknownKinds::Skip).unwrap();
        assert_eq!(found.iter().map(|document| document.kind).collect::<Vec<_>>(), [Kind::Pool]);
        assert!(parsed_with("metadata: {name: x}", UnknownKinds::Skip).is_err());
        assert!(parsed_with("apiVersion: v1\nkind: IPPool", UnknownKinds::Skip).is_err());
    }

    #[test]
    fn excessive_yaml_aliases_are_refused() {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert!(parsed(&text).is_err());
    }

    #[test]
    fn anchors_merges_and_large_numbers_are_parsed() {
        let text = "x: &x {b: 1}\nkind: IPPool\napiVersion: projectcalico.org/v3\nspec: {<<: *x, n: 18446744073709551615, 1: y}\n";
        let found = parsed(text).unwrap();
        let spec = serde_json::json!({ "n": u64::MAX, "1": "y", "b": 1 });
        assert_eq!(found[0].members["spec"], spec);
    }
}
