//! Reads JSON member by member. Every problem names the member.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use russet_addr::{IpNet, NodeName};
use serde_json::{Map, Value};

use crate::ir::{PolicyId, PolicyKind, Problem};

/// How many problems are kept for one object: an object can have one in each of 100,000 members.
const PROBLEMS_MAX: usize = 100;
/// How much of a value or a path a problem repeats.
const SHOWN_MAX_CHARS: usize = 100;

/// A value in a document, and where it is.
#[derive(Debug, Clone)]
pub(super) struct At<'a> {
    value: &'a Value,
    path: String,
}

/// The problems of one object, in the order of its members.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

/// The names of an object.
#[derive(Debug, Clone)]
pub(super) struct Metadata<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    at: At<'a>,
}

// === impl At ===

impl<'a> At<'a> {
    /// The document itself.
    pub fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// A member that is neither missing nor null. What is not an object has none.
    pub fn member(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Some(Self { value, path })
    }

    pub fn problem(&self, text: impl Display) -> Problem {
        Problem { path: cut(&self.path).into(), text: text.to_string().into() }
    }

    /// A problem of a member, which may be missing.
    pub fn problem_of(&self, name: &str, text: impl Display) -> Problem {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Problem { path: cut(&path).into(), text: text.to_string().into() }
    }

    fn wanted(&self, what: &str) -> Problem {
        self.problem(format!("{what} is wanted, not {}", cut(&self.value.to_string())))
    }

    pub fn object(&self) -> Result<&'a Map<String, Value>, Problem> {
        self.value.as_object().ok_or_else(|| self.wanted("an object"))
    }

    /// The members of an object that are not null.
    pub fn members(&self) -> Result<Vec<(&'a str, Self)>, Problem> {
        let members = self.object()?.keys();
        Ok(members.filter_map(|name| Some((name.as_str(), self.member(name)?))).collect())
    }

    /// Refuses what is not an object, and members that are not known: they may say when it counts.
    pub fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.members()?.into_iter().find(|(name, _)| !known.contains(name)) {
            Some((_, member)) => Err(member.problem("this member is not known")),
            None => Ok(()),
        }
    }

    pub fn text(&self) -> Result<&'a str, Problem> {
        self.value.as_str().ok_or_else(|| self.wanted("a string"))
    }

    pub fn flag(&self) -> Result<bool, Problem> {
        self.value.as_bool().ok_or_else(|| self.wanted("true or false"))
    }

    pub fn number(&self) -> Option<f64> {
        self.value.as_f64()
    }

    /// A whole number from `first` to `last`.
    pub fn whole<T: TryFrom<u64> + PartialOrd + Display>(&self, first: T, last: T) -> Result<T, Problem> {
        let number = self.value.as_u64().and_then(|number| T::try_from(number).ok());
        number
            .filter(|number| *number >= first && *number <= last)
            .ok_or_else(|| self.wanted(&format!("a number from {first} to {last}")))
    }

    pub fn is_text(&self) -> bool {
        self.value.is_string()
    }

    pub fn items(&self) -> Result<Vec<Self>, Problem> {
        let items = self.value.as_array().ok_or_else(|| self.wanted("a list"))?;
        let item = |(index, value)| Self { value, path: format!("{}[{index}]", self.path) };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// A list member; a missing one is empty.
    pub fn list(&self, name: &str) -> Result<Vec<Self>, Problem> {
        self.member(name).map_or_else(|| Ok(Vec::new()), |member| member.items())
    }

    /// A member of text; an empty one counts as missing, as in Go.
    pub fn opt_text(&self, name: &str) -> Result<Option<&'a str>, Problem> {
        let text = self.member(name).map(|member| member.text()).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// A member of true or false; a missing one is false.
    pub fn opt_flag(&self, name: &str) -> Result<bool, Problem> {
        self.member(name).map_or(Ok(false), |member| member.flag())
    }

    /// Text of a type of its own.
    pub fn parse<T: FromStr<Err: Display>>(&self) -> Result<T, Problem> {
        let text = self.text()?;
        text.parse().map_err(|error| self.problem(format!("{:?}: {error}", cut(text))))
    }

    /// A prefix, whose host bits do not count.
    pub fn net(&self) -> Result<IpNet, Problem> {
        self.parse::<IpNet>().map(|net| net.trunc())
    }

    /// A prefix, or an address, which is the prefix of itself.
    pub fn net_or_address(&self) -> Result<IpNet, Problem> {
        match self.text()?.parse::<std::net::IpAddr>() {
            Ok(address) => Ok(address.into()),
            Err(_) => self.net(),
        }
    }

    /// A member that is a map of texts; a missing one is empty.
    pub fn labels(&self, name: &str) -> Result<BTreeMap<Arc<str>, Arc<str>>, Problem> {
        let Some(member) = self.member(name) else { return Ok(BTreeMap::new()) };
        let one = |(key, value): (&str, Self)| Ok((Arc::from(key), Arc::from(value.text()?)));
        member.members()?.into_iter().map(one).collect()
    }

    /// Its `apiVersion` and `kind`, or those that the list says in which it is.
    pub fn kind<'b>(&self, list: Option<(&'b str, &'b str)>) -> Result<(&'b str, &'b str), Problem>
    where
        'a: 'b,
    {
        let (api, kind) = (self.opt_text("apiVersion")?, self.opt_text("kind")?);
        let (of_api, of_kind) = list.unzip();
        let both = api.or(of_api).zip(kind.or(of_kind));
        both.ok_or_else(|| self.problem("apiVersion and kind are wanted"))
    }

    /// The names of an object, which must have one.
    pub fn metadata(&self) -> Result<Metadata<'a>, Problem> {
        let missing = || self.problem_of("metadata.name", "it is missing");
        let at = self.member("metadata").ok_or_else(missing)?;
        let name = at.opt_text("name")?.ok_or_else(missing)?;
        Ok(Metadata { name, namespace: at.opt_text("namespace")?, at })
    }
}

// === impl Metadata ===

impl<'a> Metadata<'a> {
    /// The namespace of an object that must have one.
    pub fn wanted_namespace(&self) -> Result<&'a str, Problem> {
        self.namespace.ok_or_else(|| self.at.problem_of("namespace", "it is missing"))
    }

    /// The name as that of a node.
    pub fn node_name(&self) -> Result<NodeName, Problem> {
        NodeName::new(self.name).map_err(|error| self.at.problem_of("name", error))
    }

    pub fn labels(&self) -> Result<BTreeMap<Arc<str>, Arc<str>>, Problem> {
        self.at.labels("labels")
    }

    /// An annotation, if there is one of this name that is text.
    pub fn annotation(&self, name: &str) -> Option<&'a str> {
        self.at.member("annotations")?.member(name)?.text().ok()
    }

    pub fn is_deleted(&self) -> bool {
        self.at.member("deletionTimestamp").is_some()
    }

    /// A number that grows with the time of creation: microseconds since 1970; 0 if it is unknown.
    pub fn age(&self) -> u64 {
        let text = self.at.opt_text("creationTimestamp").ok().flatten();
        let time = text.and_then(russet_model::time::parse_rfc3339);
        let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        since.and_then(|since| u64::try_from(since.as_micros()).ok()).unwrap_or(0)
    }
}

// === impl Problems ===

impl Problems {
    pub fn push(&mut self, problem: Problem) {
        if self.0.len() < PROBLEMS_MAX {
            self.0.push(problem);
        }
    }

    /// The value, or nothing and one problem more.
    pub fn keep<T>(&mut self, read: Result<T, Problem>) -> Option<T> {
        read.map_err(|problem| self.push(problem)).ok()
    }

    /// The value, or its default and one problem more.
    pub fn keep_or_default<T: Default>(&mut self, read: Result<T, Problem>) -> T {
        self.keep(read).unwrap_or_default()
    }

    pub fn finish(self) -> Vec<Problem> {
        self.0
    }
}

/// The ID of a policy with these names.
pub(super) fn policy_id(kind: PolicyKind, metadata: &Metadata<'_>) -> Result<PolicyId, Problem> {
    let namespace = match kind.enforced() {
        PolicyKind::KubernetesNetworkPolicy | PolicyKind::NetworkPolicy => {
            Some(metadata.wanted_namespace()?.into())
        }
        _ => None,
    };
    Ok(PolicyId { kind, namespace, name: metadata.name.into() })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
