//! Selectors over effective labels (calico-cni.md sections 4P.3, 4P.4 and 4P.6).

use std::collections::BTreeMap;
use std::sync::Arc;

use russet_model::{Selector, SelectorError};

use super::read::At;
use crate::ir::Problem;

/// The label of everything that is in a namespace; its value is the namespace's name.
pub(crate) const NAMESPACE: &str = "projectcalico.org/namespace";
/// The label of workloads.
pub(super) const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";
/// The value of [`ORCHESTRATOR`] for pods of Kubernetes.
pub(super) const KUBERNETES: &str = "k8s";
/// The label of pods that have a service account; its value is the account's name.
pub(super) const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";
/// Before the keys of a namespace's labels.
pub(super) const NAMESPACE_PREFIX: &str = "pcns.";
/// Before the keys of a service account's labels.
pub(super) const SERVICE_ACCOUNT_PREFIX: &str = "pcsa.";

/// What Kubernetes' label selector wants, one selector for each label and expression; all of them
/// must match. Labels come first, in the order of their keys. What cannot be read is one problem.
pub(super) fn requirements(selector: &At<'_>, prefix: &str) -> Vec<Result<Selector, Problem>> {
    if let Err(problem) = selector.only(&["matchLabels", "matchExpressions"]) {
        return vec![Err(problem)];
    }
    let label = |(key, value): (String, At<'_>)| {
        let value_text = value.text()?;
        Selector::equals(&key, value_text).map_err(|error| value.problem(error.problem))
    };
    let labels = selector.member("matchLabels").map_or_else(|| Ok(Vec::new()), |labels| labels.members());
    let mut all: Vec<_> = match labels {
        Err(problem) => vec![Err(problem)],
        Ok(mut labels) => {
            labels.sort_by_key(|(key, _)| *key);
            labels.into_iter().map(|(key, value)| label((format!("{prefix}{key}"), value))).collect()
        }
    };
    match selector.list("matchExpressions") {
        Err(problem) => all.push(Err(problem)),
        Ok(list) => all.extend(list.iter().map(|at| expression(at, prefix))),
    }
    all
}

fn expression(at: &At<'_>, prefix: &str) -> Result<Selector, Problem> {
    at.only(&["key", "operator", "values"])?;
    let key = at.opt_text("key")?.ok_or_else(|| at.problem("it has no key"))?;
    let label = format!("{prefix}{key}");
    let values: Vec<&str> = at.list("values")?.iter().map(|value| value.text()).collect::<Result<_, _>>()?;
    let selector = match (at.opt_text("operator")?.unwrap_or_default(), values.is_empty()) {
        ("In", false) => Selector::is_in(&label, values),
        ("NotIn", false) => Selector::not_in(&label, values),
        ("Exists", true) => Selector::has(&label),
        ("DoesNotExist", true) => Selector::has(&label).map(Selector::negated),
        ("In" | "NotIn", true) => return Err(at.problem("it needs values")),
        ("Exists" | "DoesNotExist", false) => return Err(at.problem("it cannot have values")),
        (other, _) => return Err(at.problem(format!("the operator {other:?} is not known"))),
    };
    selector.map_err(|error| at.problem(error.problem))
}

/// A whole label selector, with keys prefixed.
pub(super) fn label_selector(at: &At<'_>, prefix: &str) -> Result<Selector, Problem> {
    Ok(Selector::and(requirements(at, prefix).into_iter().collect::<Result<Vec<_>, _>>()?))
}

/// Pods that match one selector, of namespaces that match another; of `own`, if there is no
/// selector for namespaces.
pub(super) fn pods(
    at: &At<'_>,
    own: Option<&str>,
    namespaces: Option<&At<'_>>,
    pods: Option<&At<'_>>,
) -> Result<Selector, Problem> {
    let refused = |error: SelectorError| at.problem(error.problem);
    let namespaces = match (namespaces, own) {
        (Some(selector), _) => match requirements(selector, NAMESPACE_PREFIX) {
            none if none.is_empty() => Selector::has(NAMESPACE).map_err(refused)?,
            some => Selector::and(some.into_iter().collect::<Result<Vec<_>, _>>()?),
        },
        (None, Some(own)) => in_namespace(own).map_err(refused)?,
        (None, None) => Selector::has(NAMESPACE).map_err(refused)?,
    };
    let mut wanted = vec![kubernetes().map_err(refused)?];
    for requirement in pods.map(|selector| requirements(selector, "")).unwrap_or_default() {
        wanted.push(requirement?);
    }
    Ok(Selector::and([namespaces, Selector::and(wanted)]))
}

/// What is in a namespace.
pub(super) fn in_namespace(namespace: &str) -> Result<Selector, SelectorError> {
    Selector::equals(NAMESPACE, namespace)
}

/// Pods of Kubernetes.
pub(super) fn kubernetes() -> Result<Selector, SelectorError> {
    Selector::equals(ORCHESTRATOR, KUBERNETES)
}

/// Namespaces that a selector of Calico's text form selects. `all()` is everything in a namespace,
/// `global()` everything that is in none.
pub(super) fn of_namespaces(selector: &Selector) -> Selector {
    selector.prefixed(NAMESPACE_PREFIX, Some(NAMESPACE))
}

/// Service accounts that a selector of Calico's text form selects. In the subject of a policy of no namespace,
/// `all()` is what has one; elsewhere it is everything, as in Go.
pub(super) fn of_service_accounts(selector: &Selector, in_global_subject: bool) -> Selector {
    selector.prefixed(SERVICE_ACCOUNT_PREFIX, in_global_subject.then_some(SERVICE_ACCOUNT))
}

/// An endpoint's own labels. Keys with the prefixes of profiles would pretend to be a namespace's.
pub(super) fn own(mut labels: BTreeMap<Arc<str>, Arc<str>>) -> BTreeMap<Arc<str>, Arc<str>> {
    labels.retain(|key, _| !key.starts_with(NAMESPACE_PREFIX) && !key.starts_with(SERVICE_ACCOUNT_PREFIX));
    labels
}

/// The profile of a namespace.
pub(super) fn namespace_profile(namespace: &str) -> Arc<str> {
    format!("kns.{namespace}").into()
}

/// The profile of a service account.
pub(super) fn account_profile(namespace: &str, account: &str) -> Arc<str> {
    format!("ksa.{namespace}.{account}").into()
}
