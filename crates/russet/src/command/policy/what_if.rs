//! `russet policy what-if`: which pairs of pods would change if policies were applied or deleted.

use std::process::ExitCode;

use russet_verdict::explain::Probe;
use russet_verdict::ir::PolicyId;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::what_if::{ChangedPair, PAIRS_MAX, changed_pairs};
use russet_verdict::world::{EndpointKey, Update};
use serde::Serialize;
use serde_json::json;

use super::datastore::{Datastore, pod_name};
use super::files::{add_namespace, documents};
use crate::cli::policy::WhatIfArgs;
use crate::command::place::Place;
use crate::command::{Failure, PROBLEMS};
use crate::output;

/// A pair of pods and a port whose verdict would change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Changed {
    from: String,
    to: String,
    port: String,
    /// What it would be; it is the opposite now.
    allowed: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WhatIfError {
    /// No policy is called so.
    #[error("no policy is {0:?}: give KIND/NAME or KIND/NAMESPACE/NAME; see `russet policy ls`")]
    Unknown(String),
    /// Too many pairs would have to be judged.
    #[error(
        "{0} pods make more pairs than are judged at once ({PAIRS_MAX}); judge a part of the cluster with `russet explain -f`"
    )]
    TooMany(usize),
}

/// With more endpoints the answer may take longer than a second.
const QUIET_MAX: usize = 400;
/// More changes are counted, and not printed as text.
const SHOWN_MAX: usize = 200;

/// Prints the pairs that would change; exits with 3 if there are any.
pub async fn run(args: WhatIfArgs) -> Result<ExitCode, Failure> {
    let place = Place::open_cluster(args.place).await?;
    let data = Datastore::read(&place).await?;
    data.notes.iter().for_each(|note| output::progress(&output::visible(note)));
    let mut after = data.cluster.clone();
    after.problems.clear();
    for (origin, mut document) in documents(&args.files)? {
        add_namespace(&mut document);
        after.put(&origin, &document);
    }
    if !place.is_kubernetes {
        let problems = after.close_unlisted();
        after.problems.extend(problems);
    }
    delete(&mut after.snapshot, &args.delete)?;
    let (before, after_snapshot) = (&data.cluster.snapshot, &after.snapshot);
    let endpoints = after_snapshot.endpoints.len();
    if endpoints > QUIET_MAX {
        output::progress(&format!(
            "comparing what {endpoints} endpoints may do before and after; at most half a minute"
        ));
    }
    let changed = differences(before, after_snapshot, &args.ports)?;
    let notes = [staged_note(after_snapshot), egress_note(before, after_snapshot)].concat();
    let json = json!({"schema": 1, "changes": changed, "problems": after.problems, "notes": notes});
    output::print_as(args.output.format, &json, || text(&changed, &after.problems, &notes));
    Ok(if changed.is_empty() && after.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(PROBLEMS)
    })
}

/// Deletes the policies with these names.
pub(super) fn delete(snapshot: &mut Snapshot, names: &[String]) -> Result<(), WhatIfError> {
    for name in names {
        let id = named(snapshot, name).ok_or_else(|| WhatIfError::Unknown(name.clone()))?;
        snapshot.apply(Update::Policy(id, None));
    }
    Ok(())
}

fn text(changed: &[Changed], problems: &[String], notes: &[String]) -> String {
    let row = |it: &Changed| {
        let word = if it.allowed { "would be allowed" } else { "would be denied" };
        vec![it.from.clone(), it.to.clone(), it.port.clone(), word.to_owned()]
    };
    let rows: Vec<Vec<String>> = changed.iter().take(SHOWN_MAX).map(row).collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text.push_str(&output::table(&["FROM", "TO", "PORT", "CHANGE"], &rows));
    }
    if changed.len() > SHOWN_MAX {
        text.push_str(&format!("and {} more; -o json has all\n", changed.len() - SHOWN_MAX));
    }
    let opened = changed.iter().filter(|it| it.allowed).count();
    let lines = problems
        .iter()
        .map(|it| format!("problem: {it}"))
        .chain(notes.iter().map(|it| format!("note: {it}")));
    lines.for_each(|line| text.push_str(&(output::visible(&line) + "\n")));
    text + &format!("{opened} would be allowed, {} would be denied\n", changed.len() - opened)
}

/// Staged policies change nothing by themselves.
fn staged_note(after: &Snapshot) -> Vec<String> {
    let staged = after.policies.values().filter(|policy| policy.staged.is_some()).count();
    if staged == 0 { Vec::new() } else { vec![format!("{staged} policies are staged, and change nothing")] }
}

/// What OpenShift's policies deny is outside of the cluster, where there are no pods to make pairs of.
fn egress_note(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let is_same = before.egress_firewalls == after.egress_firewalls;
    let text = "EgressNetworkPolicies would change; they are about addresses outside of the cluster, which are not compared: `russet explain POD ADDRESS -f FILE` judges them";
    if is_same { Vec::new() } else { vec![text.to_owned()] }
}

/// The policy with a name such as `GlobalNetworkPolicy/deny` or `NetworkPolicy/shop/db-in`. A
/// NetworkPolicy may be Kubernetes' or Calico's; the first one that exists is meant.
fn named(snapshot: &Snapshot, text: &str) -> Option<PolicyId> {
    let (kind, rest) = text.split_once('/')?;
    let (namespace, name) = rest.rsplit_once('/').map_or((None, rest), |(of, name)| (Some(of), name));
    let is_it = |id: &&PolicyId| {
        let kinds = [id.kind.name(), id.kind.name().trim_start_matches("Kubernetes")];
        kinds.iter().any(|it| it.eq_ignore_ascii_case(kind)) && id.namespace.as_deref() == namespace
    };
    let mut all = snapshot.policies.iter().filter(|(id, _)| is_it(id));
    all.find(|(id, policy)| *id.name == *name || *policy.name == *name).map(|(id, _)| id.clone())
}

/// The pairs whose verdict differs between two states of a cluster.
fn differences(before: &Snapshot, after: &Snapshot, ports: &[Probe]) -> Result<Vec<Changed>, WhatIfError> {
    let pairs = changed_pairs(before, after, ports).map_err(|error| WhatIfError::TooMany(error.pods))?;
    let name =
        |key: &EndpointKey| after.endpoints.get(key).map_or_else(|| key.0.to_string(), |it| pod_name(it));
    let mut changed: Vec<_> = pairs
        .into_iter()
        .map(|ChangedPair { from, to, probe, allowed }| Changed {
            from: name(&from),
            to: name(&to),
            port: probe.to_string(),
            allowed,
        })
        .collect();
    changed.sort();
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use russet_verdict::evaluator;
    use serde_json::Value;

    use super::super::files::Cluster;
    use super::*;

    const PODS: [(&str, &str); 5] = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("z", "a")];

    fn pod((namespace, name): (&str, &str), last: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"pod": name}},
            "spec": {"nodeName": "n1", "serviceAccountName": "default",
                     "containers": [{"ports": [{"name": "web", "containerPort": 80}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": format!("10.0.0.{last}")}]}})
    }

    fn policy(name: &str, namespace: &str, spec: Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::empty();
        PODS.into_iter().zip(1..).for_each(|(name, last)| cluster.put("", &pod(name, last)));
        let from = |selector: Value| json!([{"from": [{"podSelector": selector}], "ports": [{"port": 80}]}]);
        let policies = [
            policy("deny", "x", json!({"podSelector": {}, "policyTypes": ["Ingress"]})),
            policy(
                "b",
                "x",
                json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": from(json!({}))}),
            ),
            policy("out", "y", json!({"podSelector": {}, "policyTypes": ["Egress"]})),
            policy("b", "y", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "egress": [{}]})),
            policy("unused", "z", json!({"podSelector": {"matchLabels": {"pod": "c"}}})),
        ];
        policies.iter().for_each(|policy| cluster.put("", policy));
        cluster.add_namespaces();
        cluster
    }

    /// Every pair is judged, whatever changed.
    fn brute_force(before: &Snapshot, after: &Snapshot) -> BTreeSet<(String, String, String, bool)> {
        let mut changed = BTreeSet::new();
        for (to, destination) in PODS.into_iter().zip(1..) {
            for (from, source) in PODS.into_iter().zip(1..).filter(|(_, source)| *source != destination) {
                for probe in ["tcp/80", "icmp"] {
                    let [source, target] =
                        [source, destination].map(|it| format!("10.0.0.{it}").parse().unwrap());
                    let flow = probe.parse::<Probe>().unwrap().flow(source, target).unwrap();
                    let allowed = [before, after].map(|it| evaluator::ask(it, &flow).allowed());
                    if allowed[0] != allowed[1] {
                        let name = |(namespace, name): (&str, &str)| format!("{namespace}/{name}");
                        changed.insert((name(from), name(to), probe.to_owned(), allowed[1]));
                    }
                }
            }
        }
        changed
    }

    #[test]
    fn p133_the_changed_pairs_are_those_of_brute_force_for_each_policy_applied_and_removed() {
        // policy.md P133
        let with = cluster().snapshot;
        let mut total = 0;
        for id in with.policies.keys() {
            let mut without = with.clone();
            without.apply(Update::Policy(id.clone(), None));
            for (before, after) in [(&with, &without), (&without, &with)] {
                let found = differences(before, after, &[]).unwrap();
                let found: BTreeSet<_> =
                    found.into_iter().map(|it| (it.from, it.to, it.port, it.allowed)).collect();
                assert_eq!(found, brute_force(before, after), "{id}");
                total += found.len();
            }
        }
        assert!(total > 0);
    }

    #[test]
    fn a_policy_is_named_by_kind_namespace_and_name() {
        let snapshot = cluster().snapshot;
        let found = |text| named(&snapshot, text).map(|id| id.to_string());
        assert!(found("NetworkPolicy/x/b").is_some());
        assert_eq!(found("networkpolicy/x/b"), found("KubernetesNetworkPolicy/x/b"));
        assert_ne!(found("NetworkPolicy/x/b"), found("NetworkPolicy/y/b"));
        for unknown in ["NetworkPolicy/x/c", "GlobalNetworkPolicy/x/b", "NetworkPolicy/b", "b", ""] {
            assert_eq!(found(unknown), None, "{unknown}");
        }
    }
}
