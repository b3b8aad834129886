//! Validates a resource: the rules that all kinds share (calico-cni.md section 2.2.2, calico-ipam.md section 1.8; libcalico-go's validator).

use std::collections::BTreeMap;
use std::fmt;

use russet_model::{Metadata, Resource, Selector};
use russet_store::Revision;
use serde_json::Value;

use super::{Definition, Document, fields};
use crate::output::visible;

/// All problems of one resource.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Problems(Vec<String>);

/// A resource that must not be stored.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {subject}: {problems}")]
pub struct Refused {
    pub origin: String,
    /// `IPPool/default`.
    pub subject: String,
    pub problems: Problems,
}

/// The limit of a DNS subdomain.
const NAME_MAX_BYTES: usize = 253;
/// Kubernetes' limit for a label's value and for its name after the prefix.
const LABEL_MAX_BYTES: usize = 63;
/// The limit for all annotations of an object together.
const ANNOTATIONS_MAX_BYTES: usize = 256 << 10;

/// Converts a document to a valid resource, and the revision that it names.
pub fn prepare<S: Definition>(document: &Document) -> Result<(Resource<S>, Option<Revision>), Refused> {
    let mut problems = Problems::default();
    fields::check(&document.members, S::FIELDS, S::STATUS, &mut problems);
    let revision = document.metadata("resourceVersion").filter(|text| !text.is_empty());
    let number = revision.as_deref().map(str::parse);
    problems.unless(
        !matches!(number, Some(Err(_))),
        "metadata.resourceVersion",
        "it is no revision of this store",
    );
    // Decoding would repeat the problems found so far, in worse words.
    if !problems.is_empty() {
        return Err(document.refused(problems));
    }
    let bytes = Value::Object(document.members.clone()).to_string();
    let mut resource = match Resource::<S>::decode(bytes.as_bytes()) {
        Ok(resource) => resource,
        Err(error) => {
            problems.add(&error.at, &error.problem);
            return Err(document.refused(problems));
        }
    };
    S::check(&mut resource, &mut problems);
    metadata::<S>(&resource.metadata, &mut problems);
    match problems.is_empty() {
        true => Ok((resource, number.and_then(Result::ok).map(Revision))),
        false => Err(document.refused(problems)),
    }
}

/// Checks names, labels and annotations.
fn metadata<S: Definition>(metadata: &Metadata, problems: &mut Problems) {
    let wants_namespace = S::KIND.namespaced();
    match &metadata.namespace {
        Some(namespace) if wants_namespace => {
            problems.unless(is_name(namespace), "metadata.namespace", NAME_RULE)
        }
        Some(_) => problems.add("metadata.namespace", &format!("a {} has no namespace", S::KIND.kind())),
        None => {}
    }
    problems.unless(is_name(&metadata.name), "metadata.name", NAME_RULE);
    for (name, value) in &metadata.labels {
        let at = format!("metadata.labels.{name}");
        problems.unless(is_qualified(name), &at, "it is no name of a label");
        problems.unless(
            is_label_value(value),
            &at,
            "a value has at most 63 letters, digits, '-', '_' and '.'",
        );
    }
    let size: usize = metadata.annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    problems.unless(
        size <= ANNOTATIONS_MAX_BYTES,
        "metadata.annotations",
        "they have more than 256 KiB together",
    );
}

const NAME_RULE: &str = "it must consist of lower case letters, digits, '-' and '.', begin and end with a letter or a digit, and have at \
                         most 253 characters";

/// Whether it is a DNS subdomain, as all names of resources are.
pub fn is_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| plain(*first) && plain(*last))
            && bytes.iter().all(|c| plain(*c) || *c == b'-')
    };
    name.len() <= NAME_MAX_BYTES && name.split('.').all(label)
}

/// Whether it is a qualified name: `app`, `example.org/app`.
pub fn is_qualified(name: &str) -> bool {
    match name.split_once('/') {
        Some((prefix, name)) => is_name(prefix) && !name.is_empty() && is_label_value(name),
        None => !name.is_empty() && is_label_value(name),
    }
}

/// Whether it has up to 63 characters that begin and end with a letter or a digit; may be empty.
pub fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let inner = |c: &u8| c.is_ascii_alphanumeric() || b"-_.".contains(c);
    let ends = [bytes.first(), bytes.last()].into_iter().flatten().all(u8::is_ascii_alphanumeric);
    bytes.len() <= LABEL_MAX_BYTES && ends && bytes.iter().all(inner)
}

// === impl Problems ===

impl Problems {
    /// Adds a problem. Escapes control characters of the file's text in it.
    pub fn add(&mut self, at: &str, what: &str) {
        self.0.push(visible(&format!("{at}: {what}")));
    }

    /// Adds a problem unless `good`.
    pub fn unless(&mut self, good: bool, at: &str, what: &str) {
        if !good {
            self.add(at, what);
        }
    }

    /// Adds a problem if a selector cannot be parsed, or uses `global()`, which is valid in
    /// policies only.
    pub fn selector(&mut self, text: &str, at: &str) {
        match Selector::parse(text) {
            Err(error) => self.add(at, &error.to_string()),
            Ok(selector) => self.unless(!selector.mentions_global(), at, "global() means nothing here"),
        }
    }

    /// Checks names and values that endpoints inherit as labels.
    pub fn labels(&mut self, labels: &BTreeMap<String, String>, at: &str) {
        for (name, value) in labels {
            let good = is_qualified(name) && is_label_value(value);
            self.unless(good, &format!("{at}.{name}"), "it is no label");
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_file_are_escaped() {
        let mut problems = Problems::default();
        problems.add("spec.\u{1b}[2J", "there is no such field");
        assert_eq!(problems.to_string(), "spec.\\u{1b}[2J: there is no such field");
    }

    #[test]
    fn names_are_dns_subdomains() {
        for name in
            ["p", "default-ipv4-ippool", "kns.shop", "worker--1-k8s-web--0-eth0", "ip-10-0-0-1.ec2.internal"]
        {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "P", "-a", "a-", "a..b", "a/b", "a_b", ".a", &"a".repeat(254)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn labels_are_kubernetes_labels() {
        for name in ["app", "projectcalico.org/namespace", "a_b.C"] {
            assert!(is_qualified(name), "{name}");
        }
        for name in ["", "/a", "a/", "a/b/c", "UPPER.org/a", &"a".repeat(64), "-a"] {
            assert!(!is_qualified(name), "{name}");
        }
        assert!(
            is_label_value("") && is_label_value("a.b_c-1") && !is_label_value("a b") && !is_label_value("-")
        );
    }
}
