//! Policy sets for truth tables, generated from the features of policies (policy.md section 6.2).
//!
//! Each case is a choice of one value for each feature. [`cases`] first covers each pair of values
//! of two features, and then draws at random. A case has documents, as users write them, and a
//! change of the state in which they are.

mod cluster;
mod documents;

use serde_json::Value;

use crate::flow::Flow;
use crate::translate::Translator;
use crate::world::Update;

pub use cluster::{Host, NAMESPACES, PODS, cluster, hosts, pod, probes};

/// A feature: its name and its values.
pub type Feature = (&'static str, &'static [&'static str]);

/// What may differ between two cases.
pub const FEATURES: [Feature; 7] = [
    ("subject", &["all", "labels", "expressions", "none"]),
    ("directions", &["ingress", "egress", "both", "absent"]),
    ("peers", &["absent", "empty", "pod", "namespace", "both", "ip-block", "except", "two"]),
    ("ports", &["absent", "number", "range", "name", "protocol", "two"]),
    ("second", &["none", "overlap", "conflict"]),
    ("tiers", documents::TIERS),
    ("change", &["create", "change-rule", "label-pod", "label-namespace", "add-pod", "remove-pod", "delete"]),
];

/// A policy set: for each feature the place of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case([usize; FEATURES.len()]);

/// A change of the state of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A document is created or replaced.
    Apply(Value),
    /// The object of a document is deleted.
    Delete(Value),
    /// Something of the cluster changes.
    World(Update),
}

/// A state of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// What leads to it from the state before, or from nothing.
    pub updates: Vec<Update>,
    /// The documents that are in force.
    pub documents: Vec<Value>,
}

/// Draws a number below its argument.
pub type Draw<'a> = &'a mut dyn FnMut(usize) -> usize;

/// Cases that cover each pair of values of two features, and random ones up to `count`. All differ.
pub fn cases(count: usize, draw: Draw<'_>) -> Vec<Case> {
    let mut found = pairwise(draw);
    let all: usize = FEATURES.iter().map(|(_, values)| values.len()).product();
    while found.len() < count.min(all) {
        let case = Case(FEATURES.map(|(_, values)| draw(values.len())));
        if !found.contains(&case) {
            found.push(case);
        }
    }
    found
}

/// Every flow between two ends, with its name: each probe between each two addresses of one family.
pub fn flows() -> Vec<(String, Flow)> {
    let mut found = Vec::new();
    for (from, to) in hosts().iter().flat_map(|from| hosts().into_iter().map(move |to| (from.clone(), to))) {
        for probe in probes() {
            let between = |source| to.addresses.iter().filter_map(move |to| probe.flow(source, *to));
            let name = format!("{} -> {} {probe}", from.name, to.name);
            found.extend(from.addresses.iter().copied().flat_map(between).map(|flow| (name.clone(), flow)));
        }
    }
    found
}

/// A pair of values of two features.
type Pair = ((usize, usize), (usize, usize));

/// Covers each pair, greedily: of some random cases that contain a pair not yet covered, the one with
/// most such pairs is next.
fn pairwise(draw: Draw<'_>) -> Vec<Case> {
    /// More would make fewer cases, and take longer.
    const CANDIDATES: usize = 20;
    let mut left: std::collections::BTreeSet<Pair> = all_pairs().collect();
    let mut found = Vec::new();
    while let Some((one, other)) = left.first().copied() {
        let candidates = (0..CANDIDATES).map(|_| {
            let mut case = Case(FEATURES.map(|(_, values)| draw(values.len())));
            for (feature, value) in [one, other] {
                if let Some(choice) = case.0.get_mut(feature) {
                    *choice = value;
                }
            }
            case
        });
        let new = |case: &Case| case.pairs().filter(|pair| left.contains(pair)).count();
        let Some(best) = candidates.max_by_key(new) else { break };
        best.pairs().for_each(|pair| _ = left.remove(&pair));
        found.push(best);
    }
    found
}

fn all_pairs() -> impl Iterator<Item = Pair> {
    let values = |feature: usize| 0..FEATURES.get(feature).map_or(0, |(_, values)| values.len());
    let pairs = (0..FEATURES.len()).flat_map(|one| (one + 1..FEATURES.len()).map(move |other| (one, other)));
    pairs.flat_map(move |(one, other)| {
        values(one).flat_map(move |a| values(other).map(move |b| ((one, a), (other, b))))
    })
}

// === impl Case ===

impl Case {
    /// The value of a feature.
    fn value(&self, feature: &str) -> &'static str {
        let choices = FEATURES.iter().zip(self.0);
        let found = choices.into_iter().find(|((name, _), _)| *name == feature);
        found.and_then(|((_, values), choice)| values.get(choice)).copied().unwrap_or_default()
    }

    fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        let choices = || self.0.into_iter().enumerate();
        choices().flat_map(move |one| choices().skip(one.0 + 1).map(move |other| (one, other)))
    }

    /// Its documents.
    pub fn documents(&self) -> Vec<Value> {
        let mut found = vec![self.policy(self.value("ports"))];
        found.extend(self.second());
        found.extend(documents::of_tiers(self.value("tiers")));
        found
    }

    /// What then changes.
    pub fn changes(&self) -> Vec<Change> {
        cluster::changes(self.value("change"), &|ports| self.policy(ports))
    }

    /// Its states: the cluster with the documents, and then one after each change.
    pub fn states(&self) -> Vec<State> {
        let mut translator = Translator::default();
        let mut documents = self.documents();
        let mut updates = cluster();
        documents.iter().for_each(|document| updates.extend(translator.put(document).updates));
        let mut states = vec![State { updates, documents: documents.clone() }];
        let is_other = |one: &Value, other: &Value| {
            ["kind", "metadata"].iter().any(|member| one.get(member) != other.get(member))
        };
        for change in self.changes() {
            let updates = match change {
                Change::World(update) => vec![update],
                Change::Apply(document) => {
                    documents.retain(|it| is_other(it, &document));
                    let updates = translator.put(&document).updates;
                    documents.push(document);
                    updates
                }
                Change::Delete(document) => {
                    documents.retain(|it| is_other(it, &document));
                    translator.remove(&document).updates
                }
            };
            states.push(State { updates, documents: documents.clone() });
        }
        states
    }
}

/// Such as `subject=all directions=both ...`.
impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (feature, _)) in FEATURES.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{feature}={}", self.value(feature))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
