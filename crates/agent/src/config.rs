//! What an agent needs to know, and where it keeps its things (ARCHITECTURE.md, "Names and places").

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use russet_addr::{IfName, NodeName};
use russet_health::Address as HealthAddress;
use russet_model::{EncapMode, IpPoolSpec};
use russet_store_etcd::{LOCATION_SCHEME, Settings as EtcdSettings};

/// Everything that can be set for an agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where files and sockets live.
    pub paths: Paths,
    /// This node's name, as every peer spells it.
    pub node_name: NodeName,
    /// The datastore.
    pub store: StoreLocation,
    /// The interface whose addresses other nodes use; by default the one with the default route.
    pub interface: Option<IfName>,
    /// The node stands in Calico's place: pools and settings are the cluster's, routes are marked as Felix marks its own, and a running
    /// Felix or BIRD is left alone.
    pub calico: bool,
    /// Pools to create in a store that has none; in Calico's place none is ever created.
    pub pools: DefaultPools,
    /// MTU of pods; by default the underlay's less the encapsulation's overhead.
    pub mtu_bytes: Option<u32>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    pub health: HealthAddress,
    /// DEL removes the pod's interface before it answers, instead of leaving that to the reaper.
    pub sync_delete: bool,
    /// How often leaks are looked for, and how long a leak waits for the second look; none: never, unless somebody asks.
    pub leak_repair: Option<Duration>,
    /// Where the node's container runtimes keep what they have attached.
    pub cni_caches: Vec<PathBuf>,
    /// The node stands in the place of one of openshift-sdn's, too.
    pub openshift: Option<crate::openshift::Settings>,
}

/// Which datastore to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// The store file of this machine, owned by the agent.
    Embedded,
    /// A store that another process of this machine owns, by its socket.
    Unix(PathBuf),
    /// An etcd v3 cluster.
    Etcd(Box<EtcdSettings>),
}

/// The pools that a fresh store gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultPools {
    /// IPv4 pool; none: no IPv4.
    pub ipv4: Option<IpNet>,
    /// IPv6 pool; none: no IPv6.
    pub ipv6: Option<IpNet>,
    /// How packets between nodes are carried.
    pub encapsulation: Encapsulation,
}

/// How packets between nodes are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// VXLAN between all nodes.
    Vxlan,
    /// VXLAN between subnets, plain routes inside one.
    CrossSubnet,
    /// Plain routes; the underlay must let pods' addresses pass.
    None,
}

/// A value that a setting does not take.
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
        /// What was given.
        pool: IpNet,
        /// The prefix length of its blocks.
        block: u8,
    },
    /// There is a list of what it takes.
    #[error("invalid {setting} {value:?}: {allowed} is wanted")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        allowed: &'static str,
    },
    /// An etcd that cannot be named like this.
    #[error("invalid store: {0}")]
    Etcd(#[from] russet_store_etcd::SettingsError),
}

/// Places below a root directory; the root is `/` except in tests, demos and several nodes on one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

/// Where health and metrics are served unless told otherwise.
pub const DEFAULT_HEALTH: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9471);

// === impl StoreLocation ===

impl FromStr for StoreLocation {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let error = || SettingError::Value {
            setting: "store",
            value: text.to_owned(),
            allowed: "`embedded`, `unix:` and the absolute path of a store's socket, or `etcd:` and the URLs of etcd's members",
        };
        if text.starts_with(LOCATION_SCHEME) {
            return Ok(Self::Etcd(Box::new(text.parse()?)));
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
    /// The `vxlanMode` of pools that are carried so.
    pub const fn vxlan_mode(self) -> EncapMode {
        match self {
            Self::Vxlan => EncapMode::Always,
            Self::CrossSubnet => EncapMode::CrossSubnet,
            Self::None => EncapMode::Never,
        }
    }
}

// === impl DefaultPools ===

impl DefaultPools {
    /// A pool that has no room for one block, of which addresses are taken.
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
    /// Places below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Sockets and locks, gone after a reboot; mode 0700.
    pub fn run_dir(&self) -> PathBuf {
        self.root.join("run/russet")
    }

    /// What survives a reboot.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("var/lib/russet")
    }

    /// The agent's CNI socket.
    pub fn cni_socket(&self) -> PathBuf {
        self.run_dir().join("cni.sock")
    }

    /// Where the agent always serves health and metrics, for root: an address may be taken.
    pub fn health_socket(&self) -> PathBuf {
        self.run_dir().join("health.sock")
    }

    /// Held by the agent for its life; plugins that work without one share it.
    pub fn node_lock(&self) -> PathBuf {
        self.run_dir().join("node.lock")
    }

    /// Held by an agent that waits for the node, and by nobody else for longer than it takes to pass.
    pub fn gate_lock(&self) -> PathBuf {
        self.run_dir().join("gate.lock")
    }

    /// What the agent has begun and what is attached, of this boot.
    pub fn journal_file(&self) -> PathBuf {
        self.run_dir().join("journal")
    }

    /// Where containers and pods have their locks while plugins work on them without an agent.
    pub fn subject_locks(&self) -> PathBuf {
        self.run_dir().join("locks")
    }

    /// The pod MTU that the agent last computed, for plugins that work without it.
    pub fn mtu_file(&self) -> PathBuf {
        self.run_dir().join("mtu")
    }

    /// This node's name, where Calico's programs agree upon it.
    pub fn calico_nodename_file(&self) -> PathBuf {
        self.root.join("var/lib/calico/nodename")
    }

    /// Where Calico's plugin looks whether a pod's endpoint is set up.
    pub fn calico_endpoint_status_dir(&self) -> PathBuf {
        self.root.join("var/run/calico/endpoint-status")
    }

    /// The pod MTU, where Calico's plugin looks for it.
    pub fn calico_mtu_file(&self) -> PathBuf {
        self.root.join("var/lib/calico/mtu")
    }

    /// Who had which address when.
    pub fn history_file(&self) -> PathBuf {
        self.state_dir().join("history")
    }

    /// The socket at which the embedded store's owner serves it.
    pub fn store_socket(&self) -> PathBuf {
        self.state_dir().join("store.sock")
    }

    /// Where CNI configurations are looked up.
    pub fn conflist_dir(&self) -> PathBuf {
        self.root.join("etc/cni/net.d")
    }

    /// The settings file.
    pub fn settings_file(&self) -> PathBuf {
        self.root.join("etc/russet/russet.toml")
    }

    /// The settings that the last agent of this boot worked with, for plugins without an agent and for other commands.
    pub fn settings_record(&self) -> PathBuf {
        self.run_dir().join("settings.toml")
    }

    /// The same, for the time after a boot and before its first agent.
    pub fn settings_record_copy(&self) -> PathBuf {
        self.state_dir().join("settings.toml")
    }

    /// Whether this machine has an embedded store. Opening one that is not there would make it.
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
        for text in
            ["embedded", "unix:/run/russet/store.sock", "etcd:http://10.0.0.1:2379,http://[fd00::1]:2379"]
        {
            assert_eq!(text.parse::<StoreLocation>().unwrap().to_string(), text);
        }
        let error = "etcd".parse::<StoreLocation>().unwrap_err().to_string();
        assert!(error.contains("`embedded`, `unix:`"), "{error}");
    }
}
