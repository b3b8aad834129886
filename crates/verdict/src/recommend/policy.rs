//! The documents, with a comment for each rule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::IpNet;
use russet_model::time::rfc3339;
use serde_json::{Map, Value, json};

use super::nets::{Known, cover};
use super::plan::{Allowed, Class, Service, Stat, listed};
use super::workloads::{Labels, Workload, Workloads, text};
use crate::ir::{Direction, Protocol};

/// The DNS server of the cluster, by the labels that all distributions give it.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
const DNS: [Service; 2] = [(Protocol::TCP, 53), (Protocol::UDP, 53)];
/// The label of a namespace with its name.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";
/// The name of a policy is this, a part of a label, and eight digits: at most 63 bytes.
const NAME_FRONT: &str = "recommended";
const NAME_PART_MAX: usize = 40;
/// Labels of other owners that a comment shows.
const VARIANTS_SHOWN: usize = 2;

/// A NetworkPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommended {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
    /// Its `podSelector`.
    pub selector: Value,
    /// What a reader should know.
    pub comments: Vec<String>,
    /// Its rules, if it isolates in this direction.
    pub ingress: Option<Vec<Rule>>,
    /// The same for what the pods begin.
    pub egress: Option<Vec<Rule>>,
}

/// A rule of a NetworkPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// As it is written.
    pub body: Value,
    /// The flows for which it is, and what to check.
    pub comments: Vec<String>,
}

// === impl Recommended ===

impl Recommended {
    /// The document, as `kubectl apply` takes it.
    pub fn document(&self) -> Value {
        let mut spec = Map::from_iter([("podSelector".to_owned(), self.selector.clone())]);
        let mut types = Vec::new();
        for (word, member, rules) in
            [("Ingress", "ingress", &self.ingress), ("Egress", "egress", &self.egress)]
        {
            if let Some(rules) = rules {
                types.push(word);
                spec.insert(member.to_owned(), rules.iter().map(|rule| rule.body.clone()).collect());
            }
        }
        spec.insert("policyTypes".to_owned(), json!(types));
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": self.name, "namespace": *self.namespace},
            "spec": spec,
        })
    }

    /// The rules of both directions, with the names of their lists and their places.
    pub fn rules(&self) -> impl Iterator<Item = (&'static str, usize, &Rule)> {
        let both = [("ingress", &self.ingress), ("egress", &self.egress)];
        both.into_iter().flat_map(|(member, rules)| {
            let rules = rules.iter().flatten().enumerate();
            rules.map(move |(index, rule)| (member, index, rule))
        })
    }
}

// === impl Rule ===

impl Rule {
    fn new(
        direction: Direction,
        peers: Vec<Value>,
        services: &BTreeSet<Service>,
        comments: Vec<String>,
    ) -> Self {
        let member = if direction == Direction::Ingress { "from" } else { "to" };
        let body = [(member.to_owned(), Value::Array(peers)), ("ports".to_owned(), ports(services))];
        Self { body: Value::from_iter(body), comments }
    }

    /// The number of its peers.
    pub(super) fn prefixes(&self) -> usize {
        ["from", "to"].iter().filter_map(|it| self.body.get(it)?.as_array()).map(Vec::len).sum()
    }
}

fn ports(services: &BTreeSet<Service>) -> Value {
    services.iter().map(|(of, port)| json!({"protocol": protocol(*of), "port": port})).collect()
}

/// The name of a protocol, if a NetworkPolicy can name it.
pub(super) fn protocol(protocol: Protocol) -> Option<&'static str> {
    let known = [(Protocol::TCP, "TCP"), (Protocol::UDP, "UDP"), (Protocol::SCTP, "SCTP")];
    known.into_iter().find(|(number, _)| *number == protocol).map(|(_, name)| name)
}

/// The name of the policy for the workload with these labels: it depends on nothing else, so that a second
/// run replaces the policies of the first one.
pub(super) fn name(labels: &Labels) -> String {
    let preferred = ["app.kubernetes.io/instance", "app.kubernetes.io/name", "app", "k8s-app"];
    let value = preferred.into_iter().find_map(|key| labels.get(key)).or_else(|| labels.values().next());
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let part: String = value.map_or("", |value| &**value).chars().map(letter).take(NAME_PART_MAX).collect();
    let part = part.trim_matches('-');
    let front = if part.is_empty() { NAME_FRONT.to_owned() } else { format!("{NAME_FRONT}-{part}") };
    format!("{front}-{:08x}", hash(&text(labels)))
}

/// FNV-1a: labels of one namespace with the same value of the preferred one get different names. Two with the
/// same hash do, too, by a number.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What a reader should know of the selector.
pub(super) fn comments(workload: &Workload) -> Vec<String> {
    let mut comments = Vec::new();
    let count = workload.variants.len();
    if count > 1 {
        let shown = workload.variants.iter().take(VARIANTS_SHOWN).map(text).collect::<Vec<_>>().join(" and ");
        comments.push(format!(
            "check: pods with {count} sets of labels are selected, and each may do what any of them did: {shown}"
        ));
    }
    if !workload.absent.is_empty() {
        comments.push("other pods have these labels, too: matchExpressions leaves them out".to_owned());
    }
    comments
}

/// The rules of a direction.
pub(super) fn rules(
    direction: Direction,
    allowed: &Allowed,
    subject: &Workload,
    all: &Workloads,
    known: &Known,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let is_server = direction == Direction::Ingress && has_dns(subject);
    let mut dns = Stat::default();
    for (place, (services, stat)) in &allowed.workloads {
        let Some(peer) = all.all.get(*place) else { continue };
        let mut services = services.clone();
        if is_server || direction == Direction::Egress && is_dns(peer) {
            let count = services.len();
            services.retain(|service| !DNS.contains(service));
            dns = if services.len() < count { dns.with(*stat) } else { dns };
        }
        if !services.is_empty() {
            let peers = vec![selected(peer, subject)];
            rules.push(Rule::new(direction, peers, &services, vec![seen(stat)]));
        }
    }
    let mut merged: BTreeMap<(Class, Vec<IpNet>), Merged> = BTreeMap::new();
    for ((class, service), (addresses, stat)) in &allowed.addresses {
        if is_server && DNS.contains(service) {
            dns = dns.with(*stat);
            continue;
        }
        let seen: BTreeSet<IpAddr> = addresses.keys().copied().collect();
        let nets: Vec<IpNet> = match class {
            // Their neighbours are pods and nodes of which nothing was seen.
            Class::Pod | Class::Node => seen.iter().copied().map(IpNet::from).collect(),
            Class::Outside => cover(&seen, known),
        };
        // A rule without peers would be for all.
        if nets.is_empty() {
            continue;
        }
        let rule = merged.entry((*class, nets)).or_default();
        rule.services.insert(*service);
        rule.stat = rule.stat.with(*stat);
        rule.names.extend(addresses.values().cloned());
    }
    for ((class, nets), Merged { services, stat, names }) in merged {
        let comments = vec![seen(&stat), check(direction, class, &nets, names)];
        let peers = nets.iter().map(|net| json!({"ipBlock": {"cidr": net}})).collect();
        rules.push(Rule::new(direction, peers, &services, comments));
    }
    match direction {
        Direction::Egress => rules.push(dns_rule(&dns)),
        Direction::Ingress if is_server => rules.push(server_rule(&dns)),
        Direction::Ingress => {}
    }
    rules
}

/// Rules for the same addresses are one.
#[derive(Default)]
struct Merged {
    services: BTreeSet<Service>,
    stat: Stat,
    names: BTreeSet<String>,
}

fn selected(peer: &Workload, subject: &Workload) -> Value {
    let pods = peer.selector();
    if peer.namespace == subject.namespace {
        // The policy's own namespace is meant, also in a datastore that has no labels of namespaces.
        return json!({ "podSelector": pods });
    }
    json!({"podSelector": pods, "namespaceSelector": {"matchLabels": {METADATA_NAME: *peer.namespace}}})
}

/// Whether all pods of a workload are servers of the cluster's DNS.
fn is_dns(workload: &Workload) -> bool {
    *workload.namespace == *DNS_NAMESPACE && workload.variants.iter().all(has_dns_label)
}

/// Whether any of them is.
pub(super) fn has_dns(workload: &Workload) -> bool {
    *workload.namespace == *DNS_NAMESPACE && workload.variants.iter().any(has_dns_label)
}

fn has_dns_label(labels: &Labels) -> bool {
    labels.get(DNS_LABEL.0).is_some_and(|value| **value == *DNS_LABEL.1)
}

fn dns_rule(stat: &Stat) -> Rule {
    let (key, value) = DNS_LABEL;
    let peer = json!({
        "podSelector": {"matchLabels": {key: value}},
        "namespaceSelector": {"matchLabels": {METADATA_NAME: DNS_NAMESPACE}},
    });
    let comment = format!("DNS, which is always allowed; {}", seen_of_dns(stat));
    Rule::new(Direction::Egress, vec![peer], &DNS.into(), vec![comment])
}

/// The rule of the servers, without `from`: all pods and nodes ask them, and not only those that were seen.
fn server_rule(stat: &Stat) -> Rule {
    let comment = format!("DNS of the cluster, which is allowed from everywhere; {}", seen_of_dns(stat));
    Rule { body: json!({ "ports": ports(&DNS.into()) }), comments: vec![comment] }
}

fn seen_of_dns(stat: &Stat) -> String {
    if stat.flows == 0 { "none was seen".to_owned() } else { seen(stat) }
}

fn seen(stat: &Stat) -> String {
    let times = stat
        .times
        .map(|(first, last)| format!(", first seen {}, last seen {}", rfc3339(first), rfc3339(last)));
    format!("flows: {}, connections: {}{}", stat.flows, stat.connections, times.unwrap_or_default())
}

/// What is to be checked of a rule with addresses.
fn check(direction: Direction, class: Class, nets: &[IpNet], names: BTreeSet<String>) -> String {
    let count = names.len();
    match (class, direction) {
        (Class::Pod, _) => {
            format!("check: pods without a label that lasts, whose addresses change: {}", listed(names))
        }
        (Class::Node, Direction::Ingress) => format!(
            "check: addresses of nodes, behind which clients of NodePorts or masqueraded sources may be hidden: {}",
            listed(names)
        ),
        (Class::Node, Direction::Egress) => {
            format!("check: nodes, or pods with their networks: {}", listed(names))
        }
        (Class::Outside, _) if nets.iter().any(|net| net.prefix_len() < net.max_prefix_len()) => {
            format!("check: prefixes that cover {count} addresses outside of the cluster")
        }
        (Class::Outside, _) => "check: addresses outside of the cluster".to_owned(),
    }
}
