//! OpenShift's EgressNetworkPolicies among the cluster's policies. They are asked after all others.

use russet_model::openshift::Namespace;
use russet_openshift::tenants::Override;
use russet_verdict::world::{EgressPeer, Endpoint, EndpointKind};

use super::{Enforced, Row, Shown};
use crate::command::policy::datastore::{Datastore, pod_name};
use crate::command::policy::egress::EgressPolicies;

/// The policies, by namespace and name.
pub fn rows(data: &Datastore) -> impl Iterator<Item = Row> {
    data.egress.iter().flat_map(|egress| {
        let policies = egress.policies.iter();
        policies.map(|((namespace, name), problems)| row(data, egress, (namespace, name.as_str()), problems))
    })
}

fn row(
    data: &Datastore,
    egress: &EgressPolicies,
    (namespace, name): (&Namespace, &str),
    problems: &[String],
) -> Row {
    let own = data.node.as_ref().map(|node| node.as_str());
    let mut reasons: Vec<String> = egress.unenforced.clone().into_iter().collect();
    let is_global = egress.overrides_of(namespace).any(|it| matches!(it, Override::Global(_)));
    reasons.extend(egress.overrides_of(namespace).map(ToString::to_string));
    let enforced = match reasons.as_slice() {
        _ if is_global || egress.unenforced.is_some() => Enforced::No,
        [] if problems.is_empty() => Enforced::Yes,
        _ => Enforced::Partly,
    };
    reasons.extend(problems.iter().cloned());
    let pods = pods(data, namespace.as_str()).count();
    Row {
        kind: "EgressNetworkPolicy",
        namespace: Some(namespace.to_string()),
        name: name.to_owned(),
        tier: String::new(),
        order: None,
        selector: format!("projectcalico.org/namespace == \"{namespace}\""),
        directions: vec!["egress"],
        pods,
        pods_here: self::pods(data, namespace.as_str()).filter(|it| Some(&*it.node) == own).count(),
        enforced,
        reasons,
    }
}

/// The pods of a namespace.
fn pods<'a>(data: &'a Datastore, namespace: &'a str) -> impl Iterator<Item = &'a Endpoint> {
    let all = data.cluster.snapshot.endpoints.values().map(|endpoint| &**endpoint);
    all.filter(move |it| it.kind == EndpointKind::Workload && it.namespace.as_deref() == Some(namespace))
}

/// A policy with its pods, and its rules as they are enforced.
pub fn shown(data: &Datastore, row: Row) -> Shown {
    let namespace = row.namespace.clone().unwrap_or_default();
    let firewalls = &data.cluster.snapshot.egress_firewalls;
    let firewall = firewalls.get(&(namespace.as_str().into(), row.name.as_str().into()));
    let rules = firewall.iter().flat_map(|firewall| &firewall.rules);
    let egress = rules.map(|(allow, peer)| line(*allow, peer)).collect();
    let selected = pods(data, &namespace).map(pod_name).collect();
    Shown { policy: row, selected, ingress: Vec::new(), egress }
}

fn line(allow: bool, peer: &EgressPeer) -> String {
    let action = if allow { "Allow" } else { "Deny" };
    match peer {
        EgressPeer::Net(net) => format!("{action} to {net}"),
        EgressPeer::Name(name, addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let addresses = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(",") };
            format!("{action} to {name} ({addresses})")
        }
    }
}
