//! Namespaces and service accounts become profiles, pods endpoints (kubernetes.md sections 1.8 and
//! 1.9).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::ir::{Action, Problem, Profile, Rule};
use crate::translate::labels::{
    KUBERNETES, NAMESPACE, NAMESPACE_PREFIX, ORCHESTRATOR, SERVICE_ACCOUNT, SERVICE_ACCOUNT_PREFIX,
};
use crate::translate::read::{At, Metadata, Problems};
use crate::translate::{labels, ports};
use crate::world::{Endpoint, EndpointKind, NamedPort, Node};

/// The label that every namespace has in Kubernetes; its value is the name.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";
/// The label with the name that Calico adds to namespaces and service accounts.
const CALICO_NAME: &str = "projectcalico.org/name";
/// Names of service accounts from this length on do not become labels.
const ACCOUNT_LABEL_END: usize = 63;
/// Addresses that the plugin or the cloud wrote, for pods whose status has none yet.
const ADDRESS_ANNOTATIONS: [&str; 3] =
    ["cni.projectcalico.org/podIPs", "cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"];

/// A namespace: the profile `kns.NAME`, which allows everything.
pub(in crate::translate) fn namespace(document: &At<'_>) -> Result<Profile, Problem> {
    let metadata = document.metadata()?;
    let mut own = metadata.labels()?;
    own.entry(METADATA_NAME.into()).or_insert_with(|| metadata.name.into());
    let name: Arc<str> = labels::namespace_profile(metadata.name);
    let allow = || vec![Rule::any(Action::Allow, Arc::clone(&name))];
    let labels = prefixed(&own, NAMESPACE_PREFIX, metadata.name);
    Ok(Profile { ingress: allow(), egress: allow(), labels })
}

/// A service account: the profile `ksa.NAMESPACE.NAME`, which has no rules.
pub(in crate::translate) fn service_account(document: &At<'_>) -> Result<Profile, Problem> {
    let metadata = document.metadata()?;
    let labels = prefixed(&metadata.labels()?, SERVICE_ACCOUNT_PREFIX, metadata.name);
    Ok(Profile { labels, ..Profile::default() })
}

fn prefixed(own: &BTreeMap<Arc<str>, Arc<str>>, prefix: &str, name: &str) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut labels: BTreeMap<Arc<str>, Arc<str>> =
        own.iter().map(|(key, value)| (format!("{prefix}{key}").into(), Arc::clone(value))).collect();
    labels.insert(format!("{prefix}{CALICO_NAME}").into(), name.into());
    labels
}

/// A pod. `None` has no identity: it has no node yet, it has finished, or it uses the network of its node.
/// Its addresses are those that the API server knows.
pub(in crate::translate) fn pod(
    document: &At<'_>,
    problems: &mut Problems,
) -> Result<Option<Endpoint>, Problem> {
    let metadata = document.metadata()?;
    let namespace = metadata.wanted_namespace()?;
    let Some(spec) = document.member("spec") else { return Ok(None) };
    let Some(node) = spec.opt_text("nodeName")? else { return Ok(None) };
    if spec.opt_flag("hostNetwork")? || is_finished(document, &metadata) {
        return Ok(None);
    }
    let account = spec.opt_text("serviceAccountName")?;
    let mut profiles = vec![labels::namespace_profile(namespace)];
    profiles.extend(account.map(|account| labels::account_profile(namespace, account)));
    let mut labels = labels::own(metadata.labels()?);
    labels.insert(NAMESPACE.into(), namespace.into());
    labels.insert(ORCHESTRATOR.into(), KUBERNETES.into());
    if let Some(account) = account.filter(|account| account.len() < ACCOUNT_LABEL_END) {
        labels.insert(SERVICE_ACCOUNT.into(), account.into());
    }
    Ok(Some(Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(namespace.into()),
        name: metadata.name.into(),
        node: node.into(),
        addresses: addresses(document, &metadata, problems),
        labels,
        profiles,
        ports: named_ports(&spec, problems),
        local: None,
        age: metadata.age(),
    }))
}

/// Whether the pod's addresses may already belong to another one.
fn is_finished(document: &At<'_>, metadata: &Metadata<'_>) -> bool {
    let phase = document.member("status").and_then(|status| status.opt_text("phase").ok().flatten());
    let released = |annotation| metadata.annotation(annotation) == Some("");
    matches!(phase, Some("Succeeded" | "Failed" | "Completed"))
        || metadata.is_deleted()
            && (released("cni.projectcalico.org/podIP") || released("vpc.amazonaws.com/pod-ips"))
}

fn addresses(document: &At<'_>, metadata: &Metadata<'_>, problems: &mut Problems) -> BTreeSet<IpAddr> {
    let address = |at: &At<'_>| at.net_or_address().map(|net| net.addr());
    let mut found = BTreeSet::new();
    if let Some(status) = document.member("status") {
        for at in problems.keep_or_default(status.list("podIPs")) {
            found.extend(at.member("ip").and_then(|ip| problems.keep(address(&ip))));
        }
        if found.is_empty() {
            found.extend(status.member("podIP").and_then(|ip| problems.keep(address(&ip))));
        }
    }
    for annotation in ADDRESS_ANNOTATIONS {
        if !found.is_empty() {
            break;
        }
        let texts = metadata.annotation(annotation).into_iter().flat_map(|list| list.split(','));
        found.extend(texts.filter_map(|text| {
            let text = text.split_once('/').map_or(text, |(address, _)| address);
            text.trim().parse::<IpAddr>().ok()
        }));
    }
    found
}

/// The named ports of all containers. Init containers may be sidecars, which serve all the time.
fn named_ports(spec: &At<'_>, problems: &mut Problems) -> Vec<NamedPort> {
    let mut named = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for container in problems.keep_or_default(spec.list(list)) {
            for at in problems.keep_or_default(container.list("ports")) {
                named.extend(problems.keep(named_port(&at)).flatten());
            }
        }
    }
    named.into_iter().collect()
}

fn named_port(at: &At<'_>) -> Result<Option<NamedPort>, Problem> {
    let Some(name) = at.opt_text("name")? else { return Ok(None) };
    let number = at.member("containerPort").ok_or_else(|| at.problem_of("containerPort", "it is missing"))?;
    let protocol = ports::kubernetes_protocol(at)?;
    Ok(Some(NamedPort { name: name.into(), protocol, port: ports::number(&number)? }))
}

/// A node with all addresses of its status; those that are names are left out.
pub(in crate::translate) fn node(document: &At<'_>) -> Result<Node, Problem> {
    let addresses =
        document.member("status").map_or_else(|| Ok(Vec::new()), |status| status.list("addresses"))?;
    let address = |at: &At<'_>| at.opt_text("address").ok().flatten()?.parse::<IpAddr>().ok();
    Ok(Node {
        addresses: addresses.iter().filter_map(address).collect(),
        labels: document.metadata()?.labels()?,
    })
}

#[cfg(test)]
mod tests;
