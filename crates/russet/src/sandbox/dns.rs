//! A pod's resolv.conf, derived from `dnsPolicy` and `dnsConfig` as kubelet does it.

use std::net::IpAddr;

use russet_sandbox::Dns;

use super::fields::{Fields, Findings};

/// kubelet's settings for the cluster's DNS.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// `--cluster-dns`.
    pub servers: Vec<IpAddr>,
    /// `--cluster-domain`.
    pub domain: String,
}

/// `spec.dnsPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    ClusterFirst,
    ClusterFirstWithHostNet,
    Default,
    None,
}

/// `spec.dnsConfig`.
#[derive(Debug, Default)]
pub(super) struct DnsConfig {
    servers: Vec<IpAddr>,
    searches: Vec<String>,
    options: Vec<String>,
}

/// The limit of resolvers (`MAXNS` of resolv.h); kubelet drops more, too.
const SERVERS_MAX: usize = 3;
/// The limit of kubelet and the API.
const SEARCHES_MAX: usize = 32;
const SEARCHES_MAX_CHARS: usize = 2048;
/// With it `web.ns1` is resolved below the cluster's domains first.
const CLUSTER_OPTION: &str = "ndots:5";

/// The contents of a pod's resolv.conf; None for the node's own. `node` is the text of the node's
/// file.
pub(super) fn resolve(
    policy: Option<Policy>,
    config: Option<DnsConfig>,
    pod: (&str, bool),
    cluster: &Cluster,
    node: &str,
    findings: &mut Findings,
) -> Option<Dns> {
    let (namespace, host_network) = pod;
    let wants_cluster = match policy {
        None | Some(Policy::ClusterFirst) => !host_network,
        Some(Policy::ClusterFirstWithHostNet) => true,
        Some(Policy::Default | Policy::None) => false,
    };
    if wants_cluster && cluster.servers.is_empty() && policy.is_some() {
        let text = "no --cluster-dns is given: the node's resolv.conf is taken, as with Default";
        findings.warning("spec.dnsPolicy", text);
    }
    let mut dns = if policy == Some(Policy::None) {
        if config.as_ref().is_none_or(|config| config.servers.is_empty()) {
            findings.problem("spec.dnsConfig.nameservers", "at least one is wanted with dnsPolicy None");
        }
        Dns::default()
    } else if wants_cluster && !cluster.servers.is_empty() {
        of_cluster(cluster, namespace, node)
    } else if config.is_none() {
        return None;
    } else {
        of_node(node)
    };
    merge(&mut dns, config.unwrap_or_default());
    limit(&mut dns, findings);
    Some(dns)
}

pub(super) fn config(fields: &mut Fields<'_>) -> DnsConfig {
    let mut servers = Vec::new();
    for (index, text) in fields.texts("nameservers").into_iter().enumerate() {
        match text.parse() {
            Ok(server) => servers.push(server),
            Err(_) => fields.problem(&format!("nameservers[{index}]"), "an IP address is wanted"),
        }
    }
    let searches = fields.texts("searches");
    let option = |option: &mut Fields<'_>| match (option.text("name"), option.text("value")) {
        (Some(name), None) => Some(name),
        (Some(name), Some(value)) => Some(format!("{name}:{value}")),
        (None, _) => {
            option.problem("name", "is wanted");
            None
        }
    };
    let options = fields.objects("options", option).into_iter().flatten().collect();
    DnsConfig { servers, searches, options }
}

fn of_cluster(cluster: &Cluster, namespace: &str, node: &str) -> Dns {
    let domain = &cluster.domain;
    let mut searches = match domain.as_str() {
        "" => Vec::new(),
        _ => vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()],
    };
    add(&mut searches, of_node(node).searches);
    Dns { servers: cluster.servers.clone(), searches, options: vec![CLUSTER_OPTION.to_owned()] }
}

/// Parses a file by resolv.conf(5): of several `search` lines the last one counts.
fn of_node(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            // An address with a zone is on the node's link: the pod has no such interface.
            Some("nameserver") => {
                dns.servers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()))
            }
            Some("search") => dns.searches = words.map(str::to_owned).collect(),
            Some("options") => add(&mut dns.options, words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

fn merge(dns: &mut Dns, config: DnsConfig) {
    add(&mut dns.servers, config.servers);
    add(&mut dns.searches, config.searches);
    for option in config.options {
        let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
        dns.options.retain(|other| name(other) != name(&option));
        dns.options.push(option);
    }
}

fn limit(dns: &mut Dns, findings: &mut Findings) {
    let (servers, searches) = (dns.servers.len(), dns.searches.len());
    dns.servers.truncate(SERVERS_MAX);
    dns.searches.truncate(SEARCHES_MAX);
    while dns.searches.iter().map(|domain| domain.len() + 1).sum::<usize>() > SEARCHES_MAX_CHARS + 1 {
        dns.searches.pop();
    }
    if dns.servers.len() < servers {
        findings.warning(
            "DNS servers",
            &format!("{servers}, of which resolvers read the first {SERVERS_MAX} alone"),
        );
    }
    if dns.searches.len() < searches {
        findings
            .warning("DNS searches", &format!("{searches}, of which the first {} fit", dns.searches.len()));
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "ClusterFirst" => Ok(Self::ClusterFirst),
            "ClusterFirstWithHostNet" => Ok(Self::ClusterFirstWithHostNet),
            "Default" => Ok(Self::Default),
            "None" => Ok(Self::None),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "# made by hand\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nsearch old\nsearch corp.example lan\noptions edns0\n";

    fn cluster() -> Cluster {
        Cluster { servers: vec!["10.96.0.10".parse().unwrap()], domain: "cluster.local".to_owned() }
    }

    fn of(policy: Option<Policy>, config: Option<DnsConfig>, host_network: bool) -> (Option<Dns>, Findings) {
        let mut findings = Findings::default();
        let dns = resolve(policy, config, ("ns1", host_network), &cluster(), NODE, &mut findings);
        (dns, findings)
    }

    fn some_config() -> Option<DnsConfig> {
        let searches = vec!["corp.example".to_owned(), "mine".to_owned()];
        let options = vec!["ndots:2".to_owned(), "single-request".to_owned()];
        Some(DnsConfig { servers: vec!["192.0.2.99".parse().unwrap()], searches, options })
    }

    #[test]
    fn a_cluster_pod_searches_its_namespace_first() {
        // cni-runtime.md section 3.1, the DNS config of generatePodSandboxConfig
        let dns = of(None, None, false).0.unwrap();
        assert_eq!(dns.servers, cluster().servers);
        let searches = ["ns1.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example", "lan"];
        assert_eq!(dns.searches, searches);
        assert_eq!(dns.options, ["ndots:5"]);
        assert_eq!(of(Some(Policy::ClusterFirstWithHostNet), None, true).0, Some(dns));
    }

    #[test]
    fn the_nodes_file_is_used_without_cluster_dns() {
        assert_eq!(of(Some(Policy::Default), None, false).0, None);
        assert_eq!(of(None, None, true).0, None);
        let mut findings = Findings::default();
        let none = Cluster::default();
        assert_eq!(resolve(None, None, ("ns1", false), &none, NODE, &mut findings), None);
        assert!(findings.warnings.is_empty());
        assert_eq!(
            resolve(Some(Policy::ClusterFirst), None, ("ns1", false), &none, NODE, &mut findings),
            None
        );
        assert!(findings.warnings[0].contains("--cluster-dns"), "{findings:?}");
    }

    #[test]
    fn a_config_is_added_and_its_options_win() {
        let dns = of(Some(Policy::Default), some_config(), false).0.unwrap();
        assert_eq!(
            dns.servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["192.0.2.53", "192.0.2.99"]
        );
        assert_eq!(dns.searches, ["corp.example", "lan", "mine"]);
        assert_eq!(dns.options, ["edns0", "ndots:2", "single-request"]);
        let dns = of(None, some_config(), false).0.unwrap();
        assert_eq!(dns.options, ["ndots:2", "single-request"]);
    }

    #[test]
    fn policy_none_uses_only_the_config_which_must_name_a_server() {
        let dns = of(Some(Policy::None), some_config(), false).0.unwrap();
        assert_eq!(dns.searches, ["corp.example", "mine"]);
        let findings = of(Some(Policy::None), None, false).1;
        assert!(findings.problems[0].contains("at least one is wanted"), "{findings:?}");
    }

    #[test]
    fn entries_above_the_resolvers_limits_are_dropped_with_a_warning() {
        let servers = (1..=5).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        let searches = (0..40).map(|number| format!("{number}.{}", "x".repeat(80))).collect();
        let (dns, findings) =
            of(Some(Policy::None), Some(DnsConfig { servers, searches, options: vec![] }), false);
        let dns = dns.unwrap();
        assert_eq!((dns.servers.len(), dns.searches.len()), (3, 24));
        assert_eq!(findings.warnings.len(), 2);
    }
}
