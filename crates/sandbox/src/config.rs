//! The configuration of a sandbox, requested by kubelet or a person (cni-runtime.md section 3.1,
//! `generatePodSandboxConfig`).

mod valid;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use valid::ConfigError;

/// The configuration of a sandbox. [`Config::validate`] checks it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The pod, and the attempt.
    pub metadata: Metadata,
    /// The host name inside; empty for the node's own, which host network always has.
    #[serde(default)]
    pub hostname: String,
    /// Where containers log; made with mode 0755 before anything else. None for a pod without containers' logs.
    #[serde(default)]
    pub log_directory: Option<PathBuf>,
    /// What resolv.conf says; none for the node's own.
    #[serde(default)]
    pub dns: Option<Dns>,
    /// Ports of the pod, some of which are the node's, too.
    #[serde(default)]
    pub port_mappings: Vec<PortMapping>,
    /// For filters.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// For plugins and clients.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The pod lives in the node's network: no namespace, no attachment.
    #[serde(default)]
    pub host_network: bool,
    /// The pod shares the node's IPC objects.
    #[serde(default)]
    pub host_ipc: bool,
    /// The pod sees the node's processes.
    #[serde(default)]
    pub host_pid: bool,
    /// Kernel parameters of the pod's own namespaces.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// kubelet's control group of the pod; empty for none.
    #[serde(default)]
    pub cgroup_parent: String,
    /// Additional lines for its hosts file.
    #[serde(default)]
    pub host_aliases: Vec<HostAlias>,
    /// The runtime class; empty for the default.
    #[serde(default)]
    pub runtime_handler: String,
}

/// The pod of a sandbox. All four together are its name, which is unique at any time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    #[serde(default)]
    pub namespace: String,
    /// The pod's UID.
    #[serde(default)]
    pub uid: String,
    /// How many sandboxes the pod had before this one.
    #[serde(default)]
    pub attempt: u32,
}

/// What resolv.conf says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dns {
    /// Addresses of name servers.
    #[serde(default)]
    pub servers: Vec<IpAddr>,
    /// Domains that short names are looked for in.
    #[serde(default)]
    pub searches: Vec<String>,
    /// As in `ndots:5`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// A port of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortMapping {
    /// TCP, UDP or SCTP.
    #[serde(default)]
    pub protocol: Protocol,
    /// The pod's port.
    pub container_port: u16,
    /// The node's port; 0 for none.
    #[serde(default)]
    pub host_port: u16,
    /// The node's address; none for all.
    #[serde(default)]
    pub host_ip: Option<IpAddr>,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

/// A line for the hosts file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostAlias {
    /// The address.
    pub ip: IpAddr,
    /// Its names.
    pub hostnames: Vec<String>,
}

// === impl Metadata ===

impl Metadata {
    /// `name_namespace_uid_attempt`: what is reserved while the sandbox exists.
    pub fn reserved_name(&self) -> String {
        let Self { name, namespace, uid, attempt } = self;
        format!("{name}_{namespace}_{uid}_{attempt}")
    }

    /// `name_namespace`: the key of the lock that serialises operations on one pod.
    pub fn pod_key(&self) -> String {
        format!("{}_{}", self.name, self.namespace)
    }
}

// === impl Dns ===

impl Dns {
    /// Whether it is empty, so that the node's own resolv.conf is used.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.searches.is_empty() && self.options.is_empty()
    }

    /// The lines of a resolv.conf, in a stable order: servers, domains, options (cni-runtime.md
    /// section 3.1).
    pub fn resolv_conf(&self) -> String {
        let mut text: String = self.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        for (key, words) in [("search", &self.searches), ("options", &self.options)] {
            if !words.is_empty() {
                text += &format!("{key} {}\n", words.join(" "));
            }
        }
        text
    }
}

// === impl Protocol ===

impl Protocol {
    /// In the spelling for plugins.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}
