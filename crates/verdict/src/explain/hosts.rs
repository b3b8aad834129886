//! Host endpoints that decide about a flow besides the policies of its ends. Those of a node that is an end are judged,
//! if they agree; the others that may decide are named: which interfaces a packet passes is known only on the nodes
//! themselves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::evaluator::{self, EndTrace, Trace};
use crate::flow::Flow;
use crate::ir::{Direction, HostUse, Protocol};
use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKind};

/// More host endpoints are counted, and not named.
const SHOWN_MAX: usize = 5;
/// The interface of a host endpoint that is all interfaces which are not of workloads.
const ALL_INTERFACES: &str = "*";
/// The usual ports of VXLAN and of Linux's own default, which flannel keeps.
const TUNNEL_PORTS: [u16; 2] = [4789, 8472];
/// IP in IP and IPv6 in IP.
const ENCAPSULATIONS: [u8; 2] = [4, 41];

/// The nodes of pods that no endpoint describes, by their addresses.
pub type OtherPods = BTreeMap<IpAddr, Arc<str>>;

/// Who has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    /// A pod of this node.
    Pod(&'a str),
    /// This node itself.
    Node(&'a str),
    /// Nothing that is known.
    Outside,
}

/// Judges the ends of a flow that are nodes, where it is the same whichever interface the packet passes. Returns the
/// names of these nodes.
pub(super) fn judge(snapshot: &Snapshot, others: &OtherPods, trace: &mut Trace) -> Vec<String> {
    let flow = trace.flow;
    let [from, to] = [flow.source, flow.destination].map(|address| Place::of(snapshot, others, address));
    let mut judged = Vec::new();
    for (end, place, other) in [(&mut trace.egress, from, to), (&mut trace.ingress, to, from)] {
        let Place::Node(node) = place else { continue };
        // What a node and its own pods send each other passes no interface of the node.
        if other.is_at(node) || always_passes(&flow) {
            continue;
        }
        if let Some(found) = judged_by_each(snapshot, node, end.direction, &flow) {
            *end = found;
            judged.push(node.to_owned());
        }
    }
    judged
}

/// What the host endpoints of a node say of a packet of its own processes; `None` if it has none, or they say different
/// things. Without one for all interfaces there may be one that none of them guards.
fn judged_by_each(snapshot: &Snapshot, node: &str, direction: Direction, flow: &Flow) -> Option<EndTrace> {
    let hosts = snapshot.endpoints.iter().map(|(key, host)| (key, &**host));
    let hosts = hosts.filter(|(_, host)| host.kind != EndpointKind::Workload && *host.node == *node);
    let (mut first, mut is_everywhere) = (None::<EndTrace>, false);
    for (key, host) in hosts {
        is_everywhere |= interface(host) == ALL_INTERFACES;
        let found = evaluator::judge_local(snapshot, (key, host), direction, flow);
        if first.as_ref().is_some_and(|first| first.allowed != found.allowed) {
            return None;
        }
        first.get_or_insert(found);
    }
    first.filter(|found| found.allowed || is_everywhere)
}

/// What no host endpoint is asked about, or may not be: tunnels, of which only a node knows the ports, and messages of
/// IPv6 neighbours and multicast listeners.
fn always_passes(flow: &Flow) -> bool {
    match flow.protocol {
        Protocol::ICMPV6 => matches!(flow.destination_port.to_be_bytes(), [130..=136 | 143, _]),
        Protocol::UDP => TUNNEL_PORTS.contains(&flow.destination_port),
        protocol => ENCAPSULATIONS.contains(&protocol.0),
    }
}

/// Names the host endpoints that may decide about a flow, too, and are not among the judged ones of these nodes.
pub(super) fn note(
    snapshot: &Snapshot,
    flow: &Flow,
    others: &OtherPods,
    judged: &[String],
) -> Option<String> {
    let hosts = snapshot.endpoints.values().filter(|it| it.kind != EndpointKind::Workload);
    let hosts = hosts.filter(|host| !judged.iter().any(|node| **node == *host.node));
    let [from, to] = [flow.source, flow.destination].map(|address| Place::of(snapshot, others, address));
    let found: Vec<&Arc<Endpoint>> = hosts.filter(|host| may_decide(snapshot, host, from, to)).collect();
    let mut names: Vec<String> = found.iter().take(SHOWN_MAX).map(|host| name(host)).collect();
    if found.len() > SHOWN_MAX {
        names.push(format!("{} more", found.len() - SHOWN_MAX));
    }
    (!names.is_empty()).then(|| {
        format!(
            "host endpoints may decide about this flow, too, and are not judged here: {}; \
             `russet flows --denied` on their nodes shows what they deny",
            names.join(", ")
        )
    })
}

/// Whether a host endpoint is about packets between two places. What comes to the node itself or from it is denied
/// unless a policy allows it; what passes through it, only by policies that are about that.
fn may_decide(snapshot: &Snapshot, host: &Endpoint, from: Place<'_>, to: Place<'_>) -> bool {
    let node = &*host.node;
    match (from.is_at(node), to.is_at(node)) {
        (false, false) => false,
        // These packets pass no interface of the node but a bridge of pods.
        (true, true) => {
            let both_pods = [from, to].iter().all(|place| matches!(place, Place::Pod(_)));
            both_pods && interface(host) == ALL_INTERFACES && is_about_forwarded(snapshot, host)
        }
        (true, false) => from == Place::Node(node) || is_about_forwarded(snapshot, host),
        (false, true) => to == Place::Node(node) || is_about_forwarded(snapshot, host),
    }
}

/// Whether a policy for more than the node's own processes selects a host endpoint.
fn is_about_forwarded(snapshot: &Snapshot, host: &Endpoint) -> bool {
    let in_force = snapshot.policies.values().filter(|policy| policy.staged.is_none());
    let mut policies = in_force.filter(|policy| policy.host_use != HostUse::Normal);
    policies.any(|policy| snapshot.selects(&policy.subject, host))
}

fn interface(host: &Endpoint) -> &str {
    match &host.kind {
        EndpointKind::Host { interface } => interface,
        EndpointKind::Workload => "",
    }
}

fn name(host: &Endpoint) -> String {
    let which = match interface(host) {
        "" => "by its expectedIPs".to_owned(),
        ALL_INTERFACES => "all interfaces".to_owned(),
        interface => format!("interface {interface}"),
    };
    format!("HostEndpoint {} of node {} ({which})", host.name, host.node)
}

// === impl Place ===

impl<'a> Place<'a> {
    fn of(snapshot: &'a Snapshot, others: &'a OtherPods, address: IpAddr) -> Self {
        let pod = snapshot.workload_at(address).map(|(_, pod)| &pod.node);
        if let Some(node) = pod.or_else(|| others.get(&address)) {
            return Self::Pod(node);
        }
        if snapshot.config.own_addresses.contains(&address) {
            return Self::Node(&snapshot.config.node);
        }
        let node = snapshot.nodes.iter().find(|(_, node)| node.addresses.contains(&address));
        // Files may have host endpoints and no nodes.
        let expected = || snapshot.endpoints_at(address).next().map(|host| &*host.node);
        node.map(|(name, _)| name.as_str()).or_else(expected).map_or(Self::Outside, Self::Node)
    }

    fn is_at(self, node: &str) -> bool {
        matches!(self, Self::Pod(of) | Self::Node(of) if of == node)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Explanation, Peer, Probe};
    use super::*;
    use crate::generate::cluster;
    use crate::translate;

    fn calico(kind: &str, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind,
            "metadata": {"name": name, "labels": {"host": name}}, "spec": spec})
    }

    fn host(node: &str, interface: &str) -> Value {
        let name = format!("{node}-host");
        calico("HostEndpoint", &name, &json!({"node": node, "interfaceName": interface}))
    }

    fn policy(member: &str) -> Value {
        calico("GlobalNetworkPolicy", "p", &json!({"selector": "has(host)", member: true, "ingress": []}))
    }

    /// The note about a flow. The pods x/a and x/c are on node n1, and x/b is on n2.
    fn noted(documents: &[Value], from: &str, to: &str) -> Option<String> {
        let mut snapshot = Snapshot::default();
        cluster().into_iter().for_each(|update| snapshot.apply(update));
        for document in documents {
            let updates = translate::document(document).unwrap().updates;
            updates.into_iter().for_each(|update| snapshot.apply(update));
        }
        let address = |text: &str| text.parse::<Peer>().unwrap().addresses(&snapshot).unwrap()[0];
        let flow = "80".parse::<Probe>().unwrap().flow(address(from), address(to)).unwrap();
        let mut trace = evaluator::ask(&snapshot, &flow);
        let judged = judge(&snapshot, &OtherPods::new(), &mut trace);
        note(&snapshot, &flow, &OtherPods::new(), &judged)
    }

    #[test]
    fn the_host_endpoints_of_both_nodes_are_named_if_a_policy_is_about_forwarded_packets() {
        let hosts = [host("n1", "eth0"), host("n2", "*"), host("n9", "*")];
        for member in ["applyOnForward", "preDNAT", "doNotTrack"] {
            let note = noted(&[&hosts[..], &[policy(member)]].concat(), "x/a", "x/b").unwrap();
            let wanted = "HostEndpoint n1-host of node n1 (interface eth0), HostEndpoint n2-host of node n2 (all interfaces); `russet flows";
            assert!(note.contains(wanted), "{member}: {note}");
        }
        assert_eq!(noted(&hosts, "x/a", "x/b"), None, "no policy: forwarded packets pass");
        let normal = calico("GlobalNetworkPolicy", "p", &json!({"selector": "has(host)"}));
        assert_eq!(noted(&[&hosts[..], &[normal]].concat(), "x/a", "x/b"), None, "of the node's own packets");
        let mut other = policy("applyOnForward");
        other["spec"]["selector"] = "host == 'n9-host'".into();
        assert_eq!(noted(&[&hosts[..], &[other]].concat(), "x/a", "x/b"), None, "it selects neither");
        let outside = noted(&[&hosts[..], &[policy("preDNAT")]].concat(), "world", "x/b").unwrap();
        assert!(outside.contains("n2-host") && !outside.contains("n1-host"), "{outside}");
    }

    #[test]
    fn a_node_that_is_an_end_is_guarded_without_a_policy() {
        let hosts = [host("n1", "eth0"), host("n2", "")];
        let note = noted(&hosts, "x/a", "node:n2").unwrap();
        assert!(note.contains("HostEndpoint n2-host of node n2 (by its expectedIPs)"), "{note}");
        assert!(!note.contains("n1-host"), "{note}");
        let note = noted(&hosts, "node:n1", "world").unwrap();
        assert!(note.contains("n1-host") && !note.contains("n2-host"), "{note}");
        for (from, to) in [("x/a", "node:n1"), ("node:n1", "x/a"), ("x/a", "x/c")] {
            let documents = [&hosts[..], &[policy("applyOnForward")]].concat();
            assert_eq!(noted(&documents, from, to), None, "{from} -> {to}: no interface of the node");
        }
    }

    /// The verdicts of source and destination, and whether host endpoints are noted.
    fn explained(documents: &[Value], from: &str, to: &str, probe: &str) -> (bool, bool, bool) {
        let mut snapshot = Snapshot::default();
        cluster().into_iter().for_each(|update| snapshot.apply(update));
        for document in documents {
            let updates = translate::document(document).unwrap().updates;
            updates.into_iter().for_each(|update| snapshot.apply(update));
        }
        let address = |text: &str| text.parse::<Peer>().unwrap().addresses(&snapshot).unwrap()[0];
        let flow = probe.parse::<Probe>().unwrap().flow(address(from), address(to)).unwrap();
        let found = Explanation::new(&snapshot, &flow);
        let is_noted = found.notes.iter().any(|note| note.contains("host endpoints may decide"));
        (found.trace.egress.allowed, found.trace.ingress.allowed, is_noted)
    }

    #[test]
    fn a_node_that_is_an_end_is_judged_by_its_host_endpoint_for_all_interfaces() {
        let rules = json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}]);
        let open = calico("GlobalNetworkPolicy", "p", &json!({"selector": "has(host)", "ingress": rules}));
        let hosts = [host("n1", "*"), open];
        let to = |documents: &[Value], from: &str, probe: &str| explained(documents, from, "node:n1", probe);
        for from in ["world", "x/b", "node:n2"] {
            assert_eq!(to(&hosts, from, "80"), (true, true, false), "{from}");
            assert_eq!(to(&hosts, from, "81"), (true, false, false), "{from}");
        }
        assert_eq!(to(&hosts, "world", "22"), (true, true, false), "a failsafe port");
        assert_eq!(to(&hosts, "x/a", "81"), (true, true, false), "its own pod");
        assert!(to(&hosts, "world", "4789/udp").1, "a tunnel");
        // No policy is about what it sends.
        assert_eq!(explained(&hosts, "node:n1", "world", "80"), (false, true, false));
        assert_eq!(explained(&hosts, "node:n1", "world", "6443"), (true, true, false));
        assert_eq!(explained(&hosts, "node:n1", "x/a", "80"), (true, true, false));
        // Failsafe ports of the cluster.
        let ports = json!({"failsafeInboundHostPorts": [{"port": 81}]});
        let felix = [&hosts[..], &[calico("FelixConfiguration", "default", &ports)]].concat();
        assert_eq!([to(&felix, "world", "81").1, to(&felix, "world", "22").1], [true, false]);
        // Before the translation, and untracked.
        let deny = |member: &str| {
            let spec = json!({"selector": "has(host)", member: true, "applyOnForward": true, "order": 1,
                "ingress": [{"action": "Deny", "protocol": "TCP", "destination": {"ports": [80]}}]});
            [&hosts[..], &[calico("GlobalNetworkPolicy", "early", &spec)]].concat()
        };
        for member in ["preDNAT", "doNotTrack"] {
            assert!(!to(&deny(member), "world", "80").1, "{member}");
            assert!(!to(&deny(member), "world", "81").1, "{member}: as before");
        }
        let spec = json!({"selector": "has(host)", "doNotTrack": true, "applyOnForward": true,
            "ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [81]}}]});
        let untracked = [&hosts[..], &[calico("GlobalNetworkPolicy", "early", &spec)]].concat();
        assert!(to(&untracked, "world", "81").1, "nothing else is asked");
    }

    #[test]
    fn host_endpoints_of_a_node_that_do_not_agree_are_noted_and_not_judged() {
        let named = |interface: &str| {
            let spec = json!({"node": "n1", "interfaceName": interface, "profiles": ["projectcalico-default-allow"]});
            calico("HostEndpoint", "named", &spec)
        };
        let to = |documents: &[Value]| explained(documents, "world", "node:n1", "80");
        assert_eq!(to(&[host("n1", "eth0")]), (true, true, true), "another interface has none");
        assert_eq!(to(&[host("n1", "*"), named("eth0")]), (true, true, true));
        assert_eq!(to(&[named("eth0")]), (true, true, false), "each interface allows");
        assert_eq!(to(&[host("n1", "*"), host("n2", "*")]), (true, false, false), "n2 is no end");
        let [eth0, all] = ["eth0", "*"].map(|interface| {
            calico("HostEndpoint", interface, &json!({"node": "n1", "interfaceName": interface}))
        });
        assert_eq!(to(&[eth0, all]), (true, false, false), "both deny");
    }

    #[test]
    fn the_text_names_the_host_endpoint_that_denies() {
        let mut snapshot = Snapshot::default();
        cluster().into_iter().for_each(|update| snapshot.apply(update));
        let updates = translate::document(&host("n1", "*")).unwrap().updates;
        updates.into_iter().for_each(|update| snapshot.apply(update));
        let address = |text: &str| text.parse::<Peer>().unwrap().addresses(&snapshot).unwrap()[0];
        let flow = "80".parse::<Probe>().unwrap().flow(address("world"), address("node:n1")).unwrap();
        let found = Explanation::new(&snapshot, &flow);
        let why = "HostEndpoint n1-host: no policy selects it; no rule of its profiles allows it";
        let text = found.to_string();
        assert!(text.contains("DENIED ingress of node:n1\n") && text.contains(why), "{text}");
        assert_eq!(found.to_json()["directions"][1]["end"], why);
    }

    #[test]
    fn a_pod_that_no_endpoint_describes_is_on_the_node_that_is_known_otherwise() {
        let mut snapshot = Snapshot::default();
        for document in [host("n2", "*"), policy("applyOnForward")] {
            let updates = translate::document(&document).unwrap().updates;
            updates.into_iter().for_each(|update| snapshot.apply(update));
        }
        let [source, destination] = ["10.1.0.1", "10.1.0.2"].map(|text| text.parse().unwrap());
        let flow = "80".parse::<Probe>().unwrap().flow(source, destination).unwrap();
        assert_eq!(note(&snapshot, &flow, &OtherPods::new(), &[]), None);
        let others = OtherPods::from([(destination, "n2".into())]);
        assert!(note(&snapshot, &flow, &others, &[]).unwrap().contains("n2-host"));
    }

    #[test]
    fn a_host_endpoint_for_all_interfaces_is_also_about_a_bridge_of_pods() {
        let documents = [host("n1", "*"), policy("applyOnForward")];
        assert!(noted(&documents, "x/a", "x/c").is_some());
        assert_eq!(noted(&documents[..1], "x/a", "x/c"), None);
    }

    #[test]
    fn an_address_that_only_a_host_endpoint_expects_is_its_node() {
        let spec = json!({"node": "n7", "interfaceName": "eth0", "expectedIPs": ["192.0.2.7"]});
        let note = noted(&[calico("HostEndpoint", "h7", &spec)], "x/a", "192.0.2.7").unwrap();
        assert!(note.contains("HostEndpoint h7 of node n7"), "{note}");
    }

    #[test]
    fn of_many_host_endpoints_the_first_are_named() {
        let hosts: Vec<Value> = (0..8)
            .map(|at| {
                let spec = json!({"node": "n1", "interfaceName": format!("eth{at}")});
                calico("HostEndpoint", &format!("h{at}"), &spec)
            })
            .collect();
        let note = noted(&hosts, "world", "node:n1").unwrap();
        assert!(note.contains("HostEndpoint h4 ") && note.contains(", 3 more;"), "{note}");
        assert!(!note.contains("HostEndpoint h5 "), "{note}");
    }
}
