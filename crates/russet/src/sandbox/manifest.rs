//! Converts a Kubernetes Pod manifest to a sandbox's configuration: network, names and kernel
//! parameters, as kubelet's `generatePodSandboxConfig` does (cni-runtime.md section 3.1). Other
//! members have no effect, and cause warnings.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use russet_sandbox::{Config, HostAlias, Metadata, PortMapping, Protocol};
use serde_json::Value;

use super::dns::{self, Cluster};
use super::fields::{Fields, Findings};
use super::names::NameRule;
use crate::resources::{DocumentError, values};

/// A valid manifest.
#[derive(Debug)]
pub struct Manifest {
    pub config: Config,
    /// Members of the manifest that have no effect.
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It contains no pod, or several.
    #[error("{file}: one document is wanted, a Pod, and there are {found}")]
    NotOne { file: String, found: usize },
    #[error("{origin}: {}", problems.join("; "))]
    Wrong { origin: String, problems: Vec<String> },
}

/// The namespace of a manifest that names none.
const DEFAULT_NAMESPACE: &str = "default";
/// The limit of a DNS label: kubelet truncates a pod's name to it for the host name.
const HOSTNAME_MAX_BYTES: usize = 63;

/// Reads the only pod of a file, `-` being standard input. `node` is the text of the node's
/// resolv.conf.
pub fn read(file: &Path, cluster: &Cluster, node: &str) -> Result<Manifest, ManifestError> {
    let mut found = values(file)?;
    match (found.pop(), found.len()) {
        (Some((origin, value)), 0) => parse(origin, value, cluster, node),
        (last, others) => {
            let found = others + usize::from(last.is_some());
            Err(ManifestError::NotOne { file: file.display().to_string(), found })
        }
    }
}

fn parse(origin: String, value: Value, cluster: &Cluster, node: &str) -> Result<Manifest, ManifestError> {
    let mut findings = Findings::default();
    let config = match value {
        Value::Object(members) => {
            let mut fields = Fields::new("", members, &mut findings);
            let read = pod(&mut fields);
            fields.finish();
            let config = read.into_config(cluster, node, &mut findings);
            findings.add_rules(&config);
            config
        }
        _ => {
            findings.problem("document", "an object is wanted: apiVersion, kind, metadata and spec");
            Config::default()
        }
    };
    let Findings { problems, warnings } = findings;
    if problems.is_empty() {
        Ok(Manifest { config, warnings })
    } else {
        Err(ManifestError::Wrong { origin, problems })
    }
}

/// The members of a manifest from which a field of the configuration is made. If one of them has a problem already, the
/// rule of the field would only repeat it.
fn places(field: &str) -> &[&str] {
    match field {
        "hostname" => &["spec.hostname", "metadata.name"],
        "dns" | "dns.searches" | "dns.options" => &["spec.dns"],
        "port_mappings" => &["spec.containers"],
        "host_aliases" => &["spec.hostAliases"],
        "sysctls" => &["spec.securityContext"],
        "labels and annotations" => &["metadata.labels", "metadata.annotations"],
        "metadata.name" => &["metadata.name"],
        "metadata.namespace" => &["metadata.namespace"],
        "metadata.uid" => &["metadata.uid"],
        _ => &[],
    }
}

impl Findings {
    /// Adds the broken rules of the whole configuration to the problems of its members, each once.
    fn add_rules(&mut self, config: &Config) {
        let members = self.problems.len();
        for error in config.problems() {
            let is_known =
                |place: &&str| self.problems[..members].iter().any(|problem| problem.starts_with(*place));
            if !places(error.field).iter().any(is_known) {
                self.problems.push(error.to_string());
            }
        }
    }
}

/// The members that were read, before they are combined.
#[derive(Default)]
struct Pod {
    metadata: Metadata,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: Spec,
}

#[derive(Default)]
struct Spec {
    hostname: Option<String>,
    host: [bool; 3],
    policy: Option<dns::Policy>,
    dns: Option<dns::DnsConfig>,
    aliases: Vec<HostAlias>,
    sysctls: BTreeMap<String, String>,
    ports: Vec<PortMapping>,
}

fn pod(fields: &mut Fields<'_>) -> Pod {
    for (name, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
        match fields.text(name) {
            Some(text) if text == wanted => {}
            Some(text) => fields.problem(name, &format!("{wanted} is wanted, not {text:.60?}")),
            None => fields.missing(name, &format!("{wanted} is wanted")),
        }
    }
    fields.ignore(&["status"]);
    let mut pod = fields.object("metadata", metadata).unwrap_or_default();
    if pod.metadata.name.is_empty() {
        fields.missing("metadata.name", "is wanted");
    }
    pod.spec = fields.object("spec", spec).unwrap_or_default();
    pod
}

fn metadata(fields: &mut Fields<'_>) -> Pod {
    // A cluster adds these to running pods.
    fields.ignore(&[
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "managedFields",
        "ownerReferences",
        "selfLink",
    ]);
    let name = fields.name("name", NameRule::Subdomain).unwrap_or_default();
    let namespace = fields.name("namespace", NameRule::Label).filter(|it| !it.is_empty());
    let uid = fields.text("uid").unwrap_or_default();
    let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let labels = fields.labels("labels");
    for (key, value) in &labels {
        fields.check_name(&format!("labels.{key}"), value, NameRule::LabelValue);
    }
    Pod {
        metadata: Metadata { name, namespace, uid, attempt: 0 },
        labels,
        annotations: fields.labels("annotations"),
        spec: Spec::default(),
    }
}

fn spec(fields: &mut Fields<'_>) -> Spec {
    let policy = "ClusterFirst, ClusterFirstWithHostNet, Default or None";
    Spec {
        hostname: fields.name("hostname", NameRule::Label).filter(|it| !it.is_empty()),
        host: [fields.flag("hostNetwork"), fields.flag("hostIPC"), fields.flag("hostPID")],
        policy: fields.parsed("dnsPolicy", policy),
        dns: fields.object("dnsConfig", dns::config),
        aliases: fields.objects("hostAliases", alias).into_iter().flatten().collect(),
        sysctls: fields.object("securityContext", sysctls).unwrap_or_default(),
        ports: ports(fields),
    }
}

fn alias(fields: &mut Fields<'_>) -> Option<HostAlias> {
    let ip = fields.parsed("ip", "an IP address");
    let hostnames = fields.texts("hostnames");
    for (index, name) in hostnames.iter().enumerate() {
        fields.check_name(&format!("hostnames[{index}]"), name, NameRule::Subdomain);
    }
    if ip.is_none() {
        fields.missing("ip", "an IP address is wanted");
    }
    Some(HostAlias { ip: ip?, hostnames })
}

fn sysctls(fields: &mut Fields<'_>) -> BTreeMap<String, String> {
    let sysctl = |fields: &mut Fields<'_>| {
        let (name, value) = (fields.text("name"), fields.text("value"));
        for (member, given) in [("name", &name), ("value", &value)] {
            if given.is_none() {
                fields.missing(member, "is wanted");
            }
        }
        Some((name?, value?))
    };
    let mut all = BTreeMap::new();
    for (name, value) in fields.objects("sysctls", sysctl).into_iter().flatten() {
        if all.insert(name.clone(), value).is_some() {
            fields.problem("sysctls", &format!("{name:?} is there twice"));
        }
    }
    all
}

/// Of containers only the ports count: Russet starts none.
fn ports(fields: &mut Fields<'_>) -> Vec<PortMapping> {
    let container = |fields: &mut Fields<'_>| {
        fields.ignore(&["name"]);
        fields.objects("ports", port).into_iter().flatten().collect::<Vec<_>>()
    };
    let ports: Vec<PortMapping> = fields.objects("containers", container).into_iter().flatten().collect();
    let mut taken = HashSet::new();
    for port in ports.iter().filter(|port| port.host_port != 0) {
        if !taken.insert((port.host_port, port.protocol.as_str(), port.host_ip)) {
            let text = format!("host port {} ({}) is there twice", port.host_port, port.protocol.as_str());
            fields.problem("containers", &text);
        }
    }
    ports
}

fn port(fields: &mut Fields<'_>) -> Option<PortMapping> {
    fields.ignore(&["name"]);
    let (container, host) = (fields.port("containerPort"), fields.port("hostPort"));
    let protocol = match fields.text("protocol").as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(other) => {
            fields.problem("protocol", &format!("TCP, UDP or SCTP is wanted, not {other:.60?}"));
            Protocol::Tcp
        }
    };
    let host_ip = fields.parsed("hostIP", "an IP address");
    if container.is_none() {
        fields.missing("containerPort", "a port from 1 to 65535 is wanted");
    }
    Some(PortMapping { protocol, container_port: container?, host_port: host.unwrap_or(0), host_ip })
}

// === impl Pod ===

impl Pod {
    fn into_config(self, cluster: &Cluster, node: &str, findings: &mut Findings) -> Config {
        let Self { metadata, labels, annotations, spec } = self;
        let [host_network, host_ipc, host_pid] = spec.host;
        let of = (metadata.namespace.as_str(), host_network);
        let dns = dns::resolve(spec.policy, spec.dns, of, cluster, node, findings);
        let hostname = match (host_network, spec.hostname) {
            (true, Some(_)) => {
                findings.warning("spec.hostname", "has no effect with hostNetwork");
                String::new()
            }
            (true, None) => String::new(),
            (false, hostname) => hostname.unwrap_or_else(|| hostname_of(&metadata.name)),
        };
        if host_network && spec.ports.iter().any(|port| port.host_port != 0) {
            findings.warning("spec.containers", "host ports need no mapping with hostNetwork");
        }
        let port_mappings = if host_network { Vec::new() } else { spec.ports };
        let (host_aliases, sysctls) = (spec.aliases, spec.sysctls);
        Config {
            metadata,
            hostname,
            dns,
            port_mappings,
            labels,
            annotations,
            host_network,
            host_ipc,
            host_pid,
            sysctls,
            host_aliases,
            ..Config::default()
        }
    }
}

/// Truncates like kubelet.
fn hostname_of(name: &str) -> String {
    let end = name
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= HOSTNAME_MAX_BYTES)
        .last();
    name[..end.unwrap_or(0)].trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests;
