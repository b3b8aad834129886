//! What OpenShift's EgressNetworkPolicies do with flows, compared with this node's kernel.

use std::net::{IpAddr, Ipv4Addr};

use russet_model::openshift::Namespace;
use russet_openshift::data_path::HeldPod;
use russet_openshift::tenants::Override;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Protocol;

use super::report::{KernelVerdict, Report};
use crate::command::policy::datastore::{Datastore, pod_name};
use crate::command::policy::egress::EgressPolicies;

/// The port of DNS, to which no policy closes the node itself.
const DNS_PORT: u16 = 53;

/// Whether an address is that of a pod that OpenShift's server has attached on this node.
pub fn is_pod(data: &Datastore, address: IpAddr) -> bool {
    data.egress.as_ref().is_some_and(|egress| pod_at(egress, address).is_some())
}

/// Whether NetworkPolicies are enforced on that pod.
pub fn is_policed(data: &Datastore, address: IpAddr) -> bool {
    data.egress.as_ref().is_some_and(EgressPolicies::with_network_policies) && is_pod(data, address)
}

fn pod_at(egress: &EgressPolicies, address: IpAddr) -> Option<&HeldPod> {
    match address {
        IpAddr::V4(address) => egress.held.as_ref()?.pod_at(address),
        IpAddr::V6(_) => None,
    }
}

/// Reports why all egress of a namespace is denied, and compares the kernel with what the policies deny.
pub fn explain(data: &Datastore, flows: &[Flow], report: &mut Report) {
    let Some(egress) = &data.egress else { return };
    for address in flows.iter().flat_map(|flow| [flow.source, flow.destination]) {
        if let Some(pod) = pod_at(egress, address) {
            pod_of_node(data, egress, pod, report);
        }
    }
    let nets = egress.cluster_nets();
    for flow in flows.iter().filter(|flow| !nets.iter().any(|net| net.contains(&flow.destination))) {
        let Some((_, endpoint)) = data.cluster.snapshot.workload_at(flow.source) else { continue };
        let namespace = endpoint.namespace.as_deref().unwrap_or_default();
        let Ok(namespace) = Namespace::new(namespace) else { continue };
        findings(egress, &namespace, report);
        if let (Some(pod), IpAddr::V4(destination)) = (pod_at(egress, flow.source), flow.destination) {
            compare(data, egress, (pod, &pod_name(endpoint)), (flow, destination), report);
        }
    }
}

fn pod_of_node(data: &Datastore, egress: &EgressPolicies, pod: &HeldPod, report: &mut Report) {
    let (address, veth) = (pod.port.address, &pod.port.host_veth);
    let endpoint = data.cluster.snapshot.workload_at(address.into());
    let name = endpoint.map_or_else(|| address.to_string(), |(_, endpoint)| pod_name(endpoint));
    let id =
        |netid: Option<_>| netid.map_or_else(|| "no network ID".to_owned(), |id| format!("network ID {id}"));
    let (held, wanted) = (pod.port.netid, egress.netid(&pod.port.namespace));
    report.fact(format!("{name} is on this node, behind {veth}, with {}", id(held)));
    if !egress.with_network_policies() {
        report.note(
            "openshift",
            "of policies only EgressNetworkPolicies are enforced on pods of OpenShift's server, and whether two network IDs reach each other is not judged here".to_owned(),
        );
    } else if held.is_some() && !pod.port.is_open {
        let text = format!(
            "network IDs still keep {name} apart from pods of other namespaces: policies are not in force on this node"
        );
        report.finding("openshift", text);
    }
    if held != wanted {
        let namespace = &pod.port.namespace;
        report.finding(
            "drift",
            format!(
                "{veth} of {name} has {} in ip russet-sdn, and namespace {namespace} has {}",
                id(held),
                id(wanted)
            ),
        );
    } else if held.is_none() {
        report.finding(
            "egress",
            format!("namespace {} has no network ID: nothing of {name} passes", pod.port.namespace),
        );
    }
}

/// What makes the rules of a namespace's policies not count as they are written.
fn findings(egress: &EgressPolicies, namespace: &Namespace, report: &mut Report) {
    for found in egress.overrides_of(namespace) {
        match found {
            Override::Global(_) => report.note("egress", found.to_string()),
            Override::Shared(..) | Override::Several(_) => report.finding("egress", found.to_string()),
        }
    }
    let policies = egress.policies.iter().filter(|((of, _), _)| of == namespace);
    policies.flat_map(|(_, problems)| problems).for_each(|problem| report.finding("egress", problem.clone()));
    let names = egress.names_of(namespace.as_str());
    for (name, why) in names.iter().filter_map(|name| egress.unresolved.get_key_value(name)) {
        let text = format!(
            "{name} has no address ({why}): a rule that allows it allows nothing, and one that denies it denies everything"
        );
        report.finding("egress", text);
    }
    if let Some(why) = &egress.unenforced
        && egress.policies.keys().any(|(of, _)| of == namespace)
    {
        report.finding("egress", format!("EgressNetworkPolicies are not enforced here: {why}"));
    }
}

/// Compares what the kernel denies to a pod with what the agent would.
fn compare(
    data: &Datastore,
    egress: &EgressPolicies,
    (pod, name): (&HeldPod, &str),
    (flow, destination): (&Flow, Ipv4Addr),
    report: &mut Report,
) {
    let Some(netid) = pod.port.netid else { return };
    let is_dns = [Protocol::TCP, Protocol::UDP].contains(&flow.protocol) && flow.destination_port == DNS_PORT;
    let own = data.node.as_ref().and_then(|node| egress.address_of(node));
    if egress.unenforced.is_some() || is_dns && own == Some(flow.destination) {
        return;
    }
    let range =
        pod.denied.ranges().iter().find(|range| range.first <= destination && destination <= range.last);
    let why = match range {
        Some(range) => format!("{}-{} of network ID {netid} in ip russet-sdn", range.first, range.last),
        None => format!("no range of network ID {netid} in ip russet-sdn"),
    };
    let Some(wanted) = egress.denies(netid, destination) else { return };
    let (end, allowed, agrees) = (format!("egress of {name}"), range.is_none(), range.is_some() == wanted);
    let kernel = if allowed { "allows" } else { "denies" };
    if !agrees && !egress.names_of(pod.port.namespace.as_str()).is_empty() {
        report.note(
            "egress",
            format!(
                "{end}: the kernel {kernel} {destination}: the agent has resolved the names at another time"
            ),
        );
    } else if !agrees {
        let policies = if wanted { "deny" } else { "allow" };
        report.finding("drift", format!("{end}: the kernel {kernel} {destination} ({why}), and the EgressNetworkPolicies {policies} it"));
    }
    report.kernel.push(KernelVerdict { end, allowed, agrees, why });
}
