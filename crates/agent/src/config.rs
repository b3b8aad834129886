//! The agent's settings and the paths of its files (ARCHITECTURE.md, "Names and places").

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use russet_addr::{IfName, NodeName};
use russet_http::health::Address as HealthAddress;
use russet_model::{EncapMode, IpPoolSpec};
use russet_overlay::fast_path::FastPathMode;
use russet_store_etcd::{LOCATION_SCHEME, Settings as EtcdSettings};
use russet_store_kube::Location as KubeLocation;

use crate::announce::Annotate;
use crate::big_tcp::BigTcpMode;
use crate::peers::PeerSettings;

#[derive(Debug, Clone)]
pub struct Config {
    pub paths: Paths,
    /// This node's name, with the same spelling as on every other node.
    pub node_name: NodeName,
    pub store: StoreLocation,
    /// The interface whose addresses other nodes use; by default the one with the default route.
    pub interface: Option<IfName>,
    /// The agent replaces Calico's. Pools and settings come from the cluster, routes carry the
    /// protocol that Felix uses, and a running Felix or BIRD keeps its routes.
    pub calico: bool,
    /// Pools to create in a store without any. With `calico`, none is ever created.
    pub pools: DefaultPools,
    /// MTU of pods; by default the underlay's less the encapsulation's overhead.
    pub mtu_bytes: Option<u32>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    pub health: HealthAddress,
    /// Where the page for a browser is served besides the health socket, behind a token; always an address of this machine only.
    pub ui: Option<SocketAddr>,
    /// DEL removes the pod's interface before it answers, instead of leaving it to the reaper.
    pub sync_delete: bool,
    /// Interval of the leak repair, and the time between the two looks of one round. None: only on
    /// request.
    pub leak_repair: Option<Duration>,
    /// Directories of the container runtimes' CNI caches.
    pub cni_caches: Vec<PathBuf>,
    /// Where pods' addresses come from.
    pub ipam: IpamMode,
    /// Whether the native plugin's pods are annotated, with a store in the Kubernetes API.
    pub annotate: Annotate,
    /// Whether the cluster's network policies are enforced.
    pub policies: PolicyMode,
    /// Whether packets of known flows take the fast path. Never in Calico's place.
    pub fast_path: FastPathMode,
    /// Whether packets of pods may be larger than 64 KiB inside the kernel. Never in Calico's place.
    pub big_tcp: BigTcpMode,
    /// The conflist that a ready agent installs for the runtime, with a store in the Kubernetes API.
    pub conflist: Option<PathBuf>,
    /// The kubeconfig of Calico's plugins, which an agent in Calico's place keeps.
    pub calico_kubeconfig: Option<PathBuf>,
    /// What is done about other nodes' reachability.
    pub peers: PeerSettings,
    /// Settings of the OpenShift server, on a node that replaces openshift-sdn.
    pub openshift: Option<russet_openshift::Settings>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// The store file of this machine, owned by the agent.
    Embedded,
    /// A store that another process of this machine owns, by its socket.
    Unix(PathBuf),
    Etcd(Box<EtcdSettings>),
    /// Calico's data in the Kubernetes API.
    Kubernetes(KubeLocation),
}

/// Where the native plugin's addresses come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IpamMode {
    /// Blocks of pools, in the store.
    #[default]
    Pools,
    /// The `spec.podCIDRs` of this node, with a store in the Kubernetes API.
    Node,
}

/// Whether network policies are enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyMode {
    /// Not in Calico's place, where Felix enforces them.
    #[default]
    On,
    Off,
}

/// The pools that a new store gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultPools {
    /// IPv4 pool; none: no IPv4.
    pub ipv4: Option<IpNet>,
    /// IPv6 pool; none: no IPv6.
    pub ipv6: Option<IpNet>,
    pub encapsulation: Encapsulation,
}

/// How packets between nodes are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// VXLAN between all nodes.
    Vxlan,
    /// VXLAN between subnets, plain routes inside a subnet.
    CrossSubnet,
    /// Plain routes. The underlay must forward packets with pods' addresses.
    None,
}

/// A setting with an invalid value.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The pool is smaller than a block.
    #[error(
        "{setting} {pool} has no room for a block of addresses, which is a /{block}: give a prefix of at most /{block}, or create the pool \
         with a smaller `blockSize` by `russet apply`"
    )]
    SmallPool {
        /// The setting.
        setting: &'static str,
        /// The given value.
        pool: IpNet,
        /// The prefix length of its blocks.
        block: u8,
    },
    /// The value is not one of the allowed ones.
    #[error("invalid {setting} {value:?}: it must be {allowed}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Only Kubernetes gives nodes ranges of their own.
    #[error(
        "--ipam node takes addresses of the Node's podCIDRs: it needs the native plugin and a store in the Kubernetes API (--store kubernetes:in-cluster \
         or kubernetes:KUBECONFIG), and the store is {store}"
    )]
    NoPodCidrs {
        /// The store.
        store: String,
    },
    /// The URLs of etcd are invalid.
    #[error("invalid store: {0}")]
    Etcd(#[from] russet_store_etcd::SettingsError),
}

/// Paths below a root directory. The root is `/` except in tests, demos, and with several nodes on
/// one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

/// Where health and metrics are served by default.
pub const DEFAULT_HEALTH: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9471);

// === impl Config ===

impl Config {
    /// The error for a source of addresses that the store does not have.
    pub(crate) fn ipam_fault(&self) -> Option<SettingError> {
        let has_ranges = matches!(self.store, StoreLocation::Kubernetes(_)) && !self.calico;
        let is_fault = self.ipam == IpamMode::Node && !has_ranges;
        is_fault.then(|| SettingError::NoPodCidrs { store: self.store.to_string() })
    }
}

// === impl StoreLocation ===

impl FromStr for StoreLocation {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let error = || SettingError::Value {
            setting: "store",
            value: text.to_owned(),
            allowed: "`embedded`, `unix:` and the absolute path of a store's socket, `etcd:` and the URLs of etcd's members, `kubernetes:` \
                      and the absolute path of a kubeconfig, or `kubernetes:in-cluster`",
        };
        if text.starts_with(LOCATION_SCHEME) {
            return Ok(Self::Etcd(Box::new(text.parse()?)));
        }
        if let Ok(location) = text.parse() {
            return Ok(Self::Kubernetes(location));
        }
        match text.strip_prefix("unix:") {
            None if text == "embedded" => Ok(Self::Embedded),
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Etcd(settings) => write!(f, "{LOCATION_SCHEME}{}", settings.endpoints.join(",")),
            Self::Kubernetes(location) => location.fmt(f),
        }
    }
}

// === impl Encapsulation ===

impl FromStr for Encapsulation {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "vxlan" => Ok(Self::Vxlan),
            "cross-subnet" => Ok(Self::CrossSubnet),
            "none" => Ok(Self::None),
            _ => Err(SettingError::Value {
                setting: "encapsulation",
                value: text.to_owned(),
                allowed: "`vxlan`, `cross-subnet` or `none`",
            }),
        }
    }
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vxlan => "vxlan",
            Self::CrossSubnet => "cross-subnet",
            Self::None => "none",
        })
    }
}

// === impl Encapsulation ===

impl Encapsulation {
    /// The `vxlanMode` of pools with this encapsulation.
    pub const fn vxlan_mode(self) -> EncapMode {
        match self {
            Self::Vxlan => EncapMode::Always,
            Self::CrossSubnet => EncapMode::CrossSubnet,
            Self::None => EncapMode::Never,
        }
    }
}

// === impl IpamMode ===

impl FromStr for IpamMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "pools" => Ok(Self::Pools),
            "node" => Ok(Self::Node),
            _ => Err(SettingError::Value {
                setting: "ipam",
                value: text.to_owned(),
                allowed: "`pools` or `node`",
            }),
        }
    }
}

impl fmt::Display for IpamMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pools => "pools",
            Self::Node => "node",
        })
    }
}

// === impl PolicyMode ===

impl FromStr for PolicyMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(SettingError::Value {
                setting: "policies",
                value: text.to_owned(),
                allowed: "`on` or `off`",
            }),
        }
    }
}

impl fmt::Display for PolicyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

// === impl DefaultPools ===

impl DefaultPools {
    /// The error for a pool that has no room for one block.
    pub(crate) fn fault(&self) -> Option<SettingError> {
        let settings = [("--ipv4-pool", self.ipv4), ("--ipv6-pool", self.ipv6)];
        settings.into_iter().find_map(|(setting, pool)| {
            let pool = pool?;
            let block = IpPoolSpec::new(pool).block_prefix_len();
            (pool.prefix_len() > block).then_some(SettingError::SmallPool { setting, pool, block })
        })
    }
}

impl Default for DefaultPools {
    fn default() -> Self {
        let net = |text: &str| text.parse().ok();
        Self {
            ipv4: net("10.244.0.0/16"),
            ipv6: net("fd72:7573:7365::/48"),
            encapsulation: Encapsulation::Vxlan,
        }
    }
}

// === impl Paths ===

impl Paths {
    /// The paths below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A command of Russet for the node with these paths, for messages: without `--root` it would be
    /// about another node of this machine.
    pub fn command(&self, words: &str) -> String {
        match self.root == Path::new("/") {
            true => format!("russet {words}"),
            false => format!("russet {words} --root {}", self.root.display()),
        }
    }

    /// The directory of sockets and locks, gone after a reboot; mode 0700.
    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run/russet")
    }

    /// The directory of what survives a reboot.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/russet")
    }

    pub fn cni_socket(&self) -> PathBuf {
        self.run_dir().join("cni.sock")
    }

    /// The socket on which root can always read health and metrics, even if the configured address
    /// is taken.
    pub fn health_socket(&self) -> PathBuf {
        self.run_dir().join("health.sock")
    }

    /// The address of the agent's page with its token, for root, while the agent serves it elsewhere than on the health socket.
    pub fn ui_url_file(&self) -> PathBuf {
        self.run_dir().join("ui-url")
    }

    /// A lock that the agent holds while it runs. Plugins that work without an agent share it.
    pub fn node_lock(&self) -> PathBuf {
        self.run_dir().join("node.lock")
    }

    /// A lock that an agent holds while it waits for the node lock. Every other process holds it
    /// only to pass through.
    pub fn gate_lock(&self) -> PathBuf {
        self.run_dir().join("gate.lock")
    }

    /// The journal of this boot: operations and attachments.
    pub fn journal_file(&self) -> PathBuf {
        self.run_dir().join("journal")
    }

    /// The directory of the per-container and per-pod locks of plugins that work without an agent.
    pub fn subject_locks(&self) -> PathBuf {
        self.run_dir().join("locks")
    }

    /// The pod MTU that the agent computed last, for plugins that work without it.
    pub fn mtu_file(&self) -> PathBuf {
        self.run_dir().join("mtu")
    }

    /// The file in which Calico's programs keep this node's name.
    pub fn calico_nodename_file(&self) -> PathBuf {
        self.root.join("var/lib/calico/nodename")
    }

    /// The directory in which Calico's plugin checks whether a pod's endpoint is set up.
    pub fn calico_endpoint_status_dir(&self) -> PathBuf {
        self.root.join("var/run/calico/endpoint-status")
    }

    /// The file from which Calico's plugin reads the pod MTU.
    pub fn calico_mtu_file(&self) -> PathBuf {
        self.root.join("var/lib/calico/mtu")
    }

    /// The history of addresses and their pods.
    pub fn history_file(&self) -> PathBuf {
        self.state_dir().join("history")
    }

    /// The file that an agent keeps while policies are in force.
    pub fn policies_marker(&self) -> PathBuf {
        self.state_dir().join("policies-in-force")
    }

    /// A lock for plugins without an agent that change the table of decisions.
    pub fn policies_lock(&self) -> PathBuf {
        self.run_dir().join("policies.lock")
    }

    /// The socket on which the owner of the embedded store serves it.
    pub fn store_socket(&self) -> PathBuf {
        self.state_dir().join("store.sock")
    }

    /// The directory of CNI configurations.
    pub fn conflist_dir(&self) -> PathBuf {
        self.root.join("etc/cni/net.d")
    }

    pub fn settings_file(&self) -> PathBuf {
        self.root.join("etc/russet/russet.toml")
    }

    /// The settings of the last agent of this boot, for plugins without an agent and for other
    /// commands.
    pub fn settings_record(&self) -> PathBuf {
        self.run_dir().join("settings.toml")
    }

    /// The same settings, for the time between a boot and its first agent.
    pub fn settings_record_copy(&self) -> PathBuf {
        self.state_dir().join("settings.toml")
    }

    /// Whether this machine has an embedded store. (Opening a missing one would create it.)
    pub fn has_embedded_store(&self) -> bool {
        [russet_store::STORE_FILE, russet_store::SOCKET_FILE]
            .iter()
            .any(|file| self.state_dir().join(file).exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_location_reads_back_as_written() {
        for text in [
            "embedded",
            "unix:/run/russet/store.sock",
            "etcd:http://10.0.0.1:2379,http://[fd00::1]:2379",
            "kubernetes:/root/.kube/config",
            "kubernetes:in-cluster",
        ] {
            assert_eq!(text.parse::<StoreLocation>().unwrap().to_string(), text);
        }
        assert!(
            "kubernetes:config".parse::<StoreLocation>().is_err(),
            "a relative path depends on the directory"
        );
        let error = "etcd".parse::<StoreLocation>().unwrap_err().to_string();
        assert!(error.contains("`embedded`, `unix:`"), "{error}");
    }
}
