//! Settings: flag, then `RUSSET_*` variable, then the settings file, then the default (ARCHITECTURE.md, "Names and places"). For every program but the agent, the settings that the node's last agent used
//! ([`recorded`]) come between variable and file; for a plugin without an agent they come first.

mod calicoctl;
mod openshift;
mod origin;
pub mod recorded;
mod store;

use std::path::{Path, PathBuf};

use clap::Args as _;
use russet_addr::{NameError, NodeName};
use russet_agent::repair::{DEFAULT_CACHE, DEFAULT_GRACE};
use russet_agent::{
    Config, DEFAULT_HEALTH, DefaultPools, EtcdSettingsError, IpamMode, Paths, PeerSettings, ProbeSettings,
    StoreLocation,
};

use crate::cli::given::Variables;
use crate::cli::peers::{PROBED_RANGE, PeerArgs, PeerProbing};
use crate::cli::repair::RepairArgs;
use crate::cli::span::LeakRepair;
use crate::cli::store::StoreChoice;
use crate::cli::ui::UiAddress;
use crate::cli::{AgentArgs, LogFormat, NodeArgs, PoolArg};
use crate::output;
use origin::Origin;
use recorded::{Doubt, Effective, Recorded};
use store::{CalicoctlSource, Sources, StoreSetting, location};

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file exists and cannot be read.
    #[error("read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    /// The file is not TOML.
    #[error("parse {path}: {source}")]
    Syntax { path: String, source: Box<toml::de::Error> },
    #[error("{path}: unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        path: String,
        key: String,
        /// The most similar known key.
        nearest: String,
    },
    /// A value of the wrong type.
    #[error("{path}: key `{key}`: {reason}")]
    Value { path: String, key: &'static str, reason: String },
    /// A setting of etcd with a store that is not etcd.
    #[error("{0} is set, and the store is not etcd; give --store etcd:URL")]
    NotEtcd(&'static str),
    /// The settings of etcd contradict each other.
    #[error(transparent)]
    Etcd(#[from] EtcdSettingsError),
    /// A password would be readable on the network.
    #[error(
        "etcd's user and password would go to {0} in clear text: use https, or allow it with --allow-plaintext-credentials"
    )]
    Plaintext(String),
    /// The settings of OpenShift's network are invalid.
    #[error("{reason}")]
    Openshift { reason: String },
    /// calicoctl's configuration names no usable datastore.
    #[error("{place}: {reason}")]
    Calicoctl {
        /// The file, or the variable.
        place: String,
        reason: String,
    },
    /// In place of Calico the store is the cluster's datastore, and no setting names it.
    #[error(
        "in Calico's place the store is the cluster's datastore, and nothing names it: give --store etcd:URL or kubernetes:FILE (or RUSSET_STORE, or store in {file}), or \
         configure calicoctl on this node ({calicoctl}, or ETCD_ENDPOINTS)"
    )]
    NoCalicoStore {
        file: String,
        /// calicoctl's file.
        calicoctl: String,
    },
    /// The last agent's settings are unknown.
    #[error(transparent)]
    Doubt(#[from] Doubt),
    /// A setting differs from the last agent's.
    #[error(transparent)]
    Disagree(Box<Disagreement>),
    /// The current settings cannot be read, so a difference cannot be ruled out.
    #[error(
        "the last agent's settings are in {path}; whether others were set since cannot be seen: {source}; start the agent, or correct that"
    )]
    Unseen {
        /// The record of the last agent.
        path: String,
        source: Box<SettingsError>,
    },
    /// The host name is not a valid node name.
    #[error("this host's name cannot be a node name: {0}; give one with --node-name")]
    HostName(#[from] NameError),
}

/// A setting that differs from the last agent's.
#[derive(Debug, thiserror::Error)]
#[error(
    "the last agent of this node worked with {key} {recorded} (from {from}, recorded in {path}), and {place} says {said}: start the agent, or make \
     {place} say {recorded}"
)]
pub struct Disagreement {
    pub key: &'static str,
    /// The current value.
    pub said: String,
    /// The current value's source.
    pub place: String,
    /// The agent's value.
    pub recorded: String,
    /// The source of the agent's value.
    pub from: String,
    /// The record.
    pub path: String,
}

#[derive(Debug, Clone)]
pub struct Logging {
    /// A level, or a filter in the syntax of `tracing`.
    pub level: String,
    pub format: LogFormat,
}

/// The settings file's contents, with valid keys.
pub struct File {
    path: String,
    table: toml::Table,
}

/// The configuration of calicoctl, below a root.
pub const CALICOCTL_FILE: &str = calicoctl::CONFIG_FILE;
/// The allowed MTU of pods.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 1280..=65535;

/// Settings of an agent, and the part of them that it records.
pub fn agent(args: AgentArgs) -> Result<(Config, Logging, Effective), SettingsError> {
    let file = File::read(&Paths::new(&args.node.root).settings_file())?;
    let health =
        args.health_address.map_or_else(|| file.parsed("health_address"), |given| Ok(Some(given)))?;
    let conflist = or_file(args.conflist, &file, "conflist")?;
    let sync_delete = args.sync_delete || file.flag("sync_delete")?;
    let leak_repair = match or_file(args.leaks.leak_repair, &file, "leak_repair")? {
        Some(LeakRepair::Off) => None,
        Some(LeakRepair::Every(span)) => Some(span.0),
        Some(LeakRepair::On) | None => Some(DEFAULT_GRACE),
    };
    let variables = args.node.variables.clone();
    let openshift_origin = origin("openshift", args.openshift.openshift, &variables, &file);
    let kubeconfig_given = args.openshift.openshift_kubeconfig.is_some();
    let openshift = openshift::read(args.openshift, &file)?;
    let own_pools = openshift.is_none();
    let (mut config, logging, mut effective) = node_with(args.node, &file, own_pools)?;
    effective.set("openshift", openshift.is_some(), &openshift_origin);
    if let Some(path) = openshift.as_ref().and_then(|it| it.kubeconfig.as_ref()) {
        let from = origin("openshift_kubeconfig", kubeconfig_given, &variables, &file);
        effective.set("openshift_kubeconfig", absolute(path).display().to_string(), &from);
    }
    config.openshift = openshift;
    let caches_given = args.leaks.caches.cni_cache_dirs;
    let caches_origin = origin("cni_cache_dirs", !caches_given.is_empty(), &variables, &file);
    config.cni_caches = caches(&config.paths, caches_given, &file)?;
    let dirs: Vec<toml::Value> =
        config.cni_caches.iter().map(|dir| absolute(dir).display().to_string().into()).collect();
    effective.set("cni_cache_dirs", dirs, &caches_origin);
    config.health = health.unwrap_or(DEFAULT_HEALTH.into());
    config.ui = or_file(args.ui_address, &file, "ui_address")?.map(|ui: UiAddress| ui.0);
    config.sync_delete = sync_delete;
    config.conflist = conflist;
    config.leak_repair = leak_repair;
    config.peers = peer_settings(args.peers, &file)?;
    Ok((config, logging, effective))
}

fn peer_settings(args: PeerArgs, file: &File) -> Result<PeerSettings, SettingsError> {
    let defaults = ProbeSettings::default();
    let wanted = or_file(args.peer_probes, file, "peer_probes")?.unwrap_or_default();
    let interval = or_file(args.peer_probe_interval, file, "peer_probe_interval")?;
    let at_a_time = match args.peers_at_a_time {
        Some(count) => Some(count),
        None => file.integer("peers_at_a_time", PROBED_RANGE)?,
    };
    let probes = (wanted == PeerProbing::On).then(|| ProbeSettings {
        interval: interval.map_or(defaults.interval, |span| span.0),
        at_a_time: at_a_time.and_then(|count| usize::try_from(count).ok()).unwrap_or(defaults.at_a_time),
    });
    let gates_readiness = args.ready_needs_peers || file.flag("ready_needs_peers")?;
    Ok(PeerSettings { probes, gates_readiness })
}

/// Settings of a plugin that works without an agent. On a node that ever had an agent, they are
/// that agent's. An ADD is refused while another source differs; other verbs use the record, so
/// that pods can be deleted.
pub fn direct(args: NodeArgs, is_add: bool) -> Result<Config, SettingsError> {
    let paths = Paths::new(&args.root);
    let records = recorded::look(&paths);
    let Some(known) = records.known else {
        return match records.doubt {
            Some(doubt) if is_add || matches!(doubt, Doubt::Unusable { .. }) => Err(doubt.into()),
            _ => {
                let file = File::read(&paths.settings_file())?;
                let (config, _, _) = node_with(args, &file, true)?;
                Ok(Config { sync_delete: true, ..config })
            }
        };
    };
    if is_add {
        if let Some(doubt) = records.doubt {
            return Err(doubt.into());
        }
        let agreed = File::read(&paths.settings_file()).and_then(|file| known.agrees_with(&args, &file));
        agreed.map_err(|error| match error {
            SettingsError::Disagree(_) => error,
            other => SettingsError::Unseen { path: known.path().to_owned(), source: Box::new(other) },
        })?;
    }
    known.config(paths)
}

/// The store that a command uses.
pub struct Chosen {
    /// The node's files.
    pub paths: Paths,
    pub location: StoreLocation,
    /// A description of the store and of the setting that names it.
    pub why: String,
}

/// The inputs of a repair of this node.
pub struct RepairPlace {
    pub chosen: Chosen,
    pub node: NodeName,
    /// The runtimes' result caches.
    pub caches: Vec<PathBuf>,
}

/// Settings of a repair without an agent.
pub fn repair(choice: StoreChoice, args: &RepairArgs) -> Result<RepairPlace, SettingsError> {
    let chosen = store(choice)?;
    let (recorded, file) = below(&chosen.paths)?;
    let given = args.node_name.clone().map(|name| (name, Origin::Flag("node_name")));
    let (node, _) = name_of(&chosen.paths, recorded.as_ref(), &file, given, file.flag("calico")?)?;
    let file = recorded.as_ref().map_or(&file, Recorded::file);
    let caches = caches(&chosen.paths, args.caches.cni_cache_dirs.clone(), file)?;
    Ok(RepairPlace { chosen, node, caches })
}

fn caches(paths: &Paths, given: Vec<PathBuf>, file: &File) -> Result<Vec<PathBuf>, SettingsError> {
    if !given.is_empty() {
        return Ok(given);
    }
    let set = file.paths("cni_cache_dirs")?;
    Ok(set.unwrap_or_else(|| vec![paths.root().join(DEFAULT_CACHE)]))
}

/// The store of a node, for a command that uses it.
pub fn store(choice: StoreChoice) -> Result<Chosen, SettingsError> {
    let chosen = cluster_store(choice)?;
    match node_ranges(&chosen.paths, &chosen.location)? {
        Some(origin) => {
            let why = format!(
                "embedded in {}, which has the addresses of this node's podCIDRs ({origin})",
                chosen.paths.state_dir().display()
            );
            Ok(Chosen { location: StoreLocation::Embedded, why, ..chosen })
        }
        None => Ok(chosen),
    }
}

/// Whether the settings file can be read. The next agent needs it, and an ADD without an agent does.
pub fn check_file(paths: &Paths) -> Result<(), SettingsError> {
    File::read(&paths.settings_file()).map(drop)
}

/// The store of the whole cluster, for a command that asks about pods and nodes, and not about the
/// addresses that this machine gives.
pub fn cluster_store(choice: StoreChoice) -> Result<Chosen, SettingsError> {
    let paths = Paths::new(choice.root);
    let calicoctl = || calicoctl::read(paths.root(), |name| std::env::var(name).ok());
    let setting = if choice.location.store.is_some() {
        // Neither the record nor the file can be a reason to refuse a store that an argument names.
        let recorded = recorded::look(&paths).known;
        let file = File::read(&paths.settings_file());
        let file = if recorded.is_some() { file.ok() } else { Some(file?) };
        let sources =
            Sources { recorded: recorded.as_ref(), file: file.as_ref(), calicoctl: Some(&calicoctl) };
        location(&choice.location, sources)?
    } else {
        let (recorded, file) = below(&paths)?;
        let is_named = recorded.is_some() || file.has("store");
        let own = !is_named && paths.has_embedded_store();
        if own && let Ok(Some(other)) = calicoctl() {
            let names = StoreLocation::Etcd(Box::new(other.settings));
            output::progress(&format!(
                "note: {} names {names}; this node has a store of its own, which is used unless --store says otherwise",
                other.origin
            ));
        }
        let calicoctl: Option<CalicoctlSource<'_>> = if own { None } else { Some(&calicoctl) };
        location(&choice.location, Sources { recorded: recorded.as_ref(), file: Some(&file), calicoctl })?
    };
    let why = match &setting.location {
        StoreLocation::Embedded => {
            format!("embedded in {} ({})", paths.state_dir().display(), setting.origin)
        }
        other => format!("{other} ({})", setting.origin),
    };
    Ok(Chosen { paths, location: setting.location, why })
}

/// The origin of the setting by which the agent of this node gives addresses of the Node's podCIDRs, if it does and this is its store: its records are
/// this machine's then.
fn node_ranges(paths: &Paths, location: &StoreLocation) -> Result<Option<Origin>, SettingsError> {
    let Some(known) = recorded::look(paths).known else { return Ok(None) };
    let is_node = known.file().parsed::<IpamMode>("ipam")? == Some(IpamMode::Node);
    Ok((is_node && recorded::is_same(location, &known.store)).then(|| known.origin("ipam")))
}

/// The sources below flags and variables: the agent's record and the settings file. With a record
/// the file does not count.
fn below(paths: &Paths) -> Result<(Option<Recorded>, File), SettingsError> {
    let records = recorded::look(paths);
    match (records.known, records.doubt) {
        (Some(known), _) => Ok((Some(known), File::empty())),
        (None, Some(doubt @ Doubt::Unusable { .. })) => Err(doubt.into()),
        (None, _) => Ok((None, File::read(&paths.settings_file())?)),
    }
}

/// This node's name, for a command that needs it.
pub fn node_name(paths: &Paths) -> Result<NodeName, SettingsError> {
    let (recorded, file) = below(paths)?;
    Ok(name_of(paths, recorded.as_ref(), &file, None, file.flag("calico")?)?.0)
}

fn name_of(
    paths: &Paths,
    recorded: Option<&Recorded>,
    file: &File,
    given: Option<(NodeName, Origin)>,
    calico: bool,
) -> Result<(NodeName, Origin), SettingsError> {
    if let Some(given) = given {
        return Ok(given);
    }
    let set = std::env::var("RUSSET_NODE_NAME").ok().and_then(|name| NodeName::new(name).ok());
    if let Some(name) = set {
        return Ok((name, Origin::Variable("node_name")));
    }
    if let Some(recorded) = recorded {
        return Ok((recorded.node_name.clone(), recorded.origin("node_name")));
    }
    if let Some(name) = file.parsed("node_name")? {
        return Ok((name, Origin::File(file.path.clone())));
    }
    if let Some(name) = calicos_name(paths).filter(|_| calico) {
        return Ok((name, Origin::File(paths.calico_nodename_file().display().to_string())));
    }
    host_name().map(|name| (name, Origin::Default)).map_err(SettingsError::HostName)
}

/// A path that is valid in a process with another working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The source of one of the agent's settings: its flag or variable, the file, or the default.
fn origin(key: &'static str, is_given: bool, variables: &Variables, file: &File) -> Origin {
    match is_given {
        true => Origin::given(key, variables),
        false if file.has(key) => Origin::File(file.path.clone()),
        false => Origin::Default,
    }
}

/// `own_pools`: whether a fresh store gets default pools for Russet's own plugin.
fn node_with(
    args: NodeArgs,
    file: &File,
    own_pools: bool,
) -> Result<(Config, Logging, Effective), SettingsError> {
    let mut effective = Effective::default();
    let from = |key, is_given| origin(key, is_given, &args.variables, file);
    let pools = pools(&args, file, own_pools)?;
    let shown = |pool: Option<ipnet::IpNet>| pool.map_or_else(|| "none".to_owned(), |pool| pool.to_string());
    effective.set("ipv4_pool", shown(pools.ipv4), &from("ipv4_pool", args.ipv4_pool.is_some()));
    effective.set("ipv6_pool", shown(pools.ipv6), &from("ipv6_pool", args.ipv6_pool.is_some()));
    let encapsulation_from = from("encapsulation", args.encapsulation.is_some());
    effective.set("encapsulation", pools.encapsulation.to_string(), &encapsulation_from);
    let paths = Paths::new(&args.root);
    let root_from = from("root", args.root != Path::new("/"));
    effective.set("root", absolute(&args.root).display().to_string(), &root_from);
    let calico = args.calico || file.flag("calico")?;
    effective.set("calico", calico, &from("calico", args.calico));
    let given = args.node_name.clone().map(|name| (name, Origin::given("node_name", &args.variables)));
    let (node_name, name_from) = name_of(&paths, None, file, given, calico)?;
    effective.set("node_name", node_name.as_str(), &name_from);
    let mtu = args.mtu.map_or_else(|| file.integer("mtu", MTU_RANGE), |mtu| Ok(Some(mtu)))?;
    if let Some(mtu) = mtu {
        effective.set("mtu", i64::from(mtu), &from("mtu", args.mtu.is_some()));
    }
    let interface = or_file(args.interface.clone(), file, "interface")?;
    if let Some(interface) = &interface {
        effective.set("interface", interface.as_str(), &from("interface", args.interface.is_some()));
    }
    let ipam = word("ipam", args.ipam, (file, &args.variables, &mut effective))?;
    let annotate = word("annotate", args.annotate, (file, &args.variables, &mut effective))?;
    let policies = word("policies", args.policies, (file, &args.variables, &mut effective))?;
    let fast_path = word("fast_path", args.fast_path, (file, &args.variables, &mut effective))?;
    let big_tcp = word("big_tcp", args.big_tcp, (file, &args.variables, &mut effective))?;
    let calico_kubeconfig = or_file(args.calico_kubeconfig.clone(), file, "calico_kubeconfig")?;
    if let Some(path) = &calico_kubeconfig {
        let from = from("calico_kubeconfig", args.calico_kubeconfig.is_some());
        effective.set("calico_kubeconfig", absolute(path).display().to_string(), &from);
    }
    let store = own_store(&args, file, &paths, calico)?;
    effective.set("store", store.location.to_string(), &store.origin);
    for (key, value, from) in store.credentials {
        effective.set_credential(key, value, &from);
    }
    let config = Config {
        paths,
        node_name,
        calico,
        store: store.location,
        interface,
        pools,
        mtu_bytes: mtu,
        health: DEFAULT_HEALTH.into(),
        ui: None,
        sync_delete: false,
        leak_repair: None,
        cni_caches: Vec::new(),
        ipam,
        annotate,
        policies,
        fast_path,
        big_tcp,
        conflist: None,
        calico_kubeconfig,
        peers: Default::default(),
        openshift: None,
    };
    Ok((config, logging(args, file)?, effective))
}

/// The store of an agent, or of a plugin on a node that never had one. In place of Calico it is the
/// cluster's store, from calicoctl's configuration if no setting names it.
fn own_store(
    args: &NodeArgs,
    file: &File,
    paths: &Paths,
    calico: bool,
) -> Result<StoreSetting, SettingsError> {
    let read = || calicoctl::read(paths.root(), |name| std::env::var(name).ok());
    let calicoctl: Option<CalicoctlSource<'_>> = if calico { Some(&read) } else { None };
    let store = location(&args.location, Sources { recorded: None, file: Some(file), calicoctl })?;
    if calico && store.origin == Origin::Default {
        let shown = |path: PathBuf| path.display().to_string();
        return Err(SettingsError::NoCalicoStore {
            file: shown(paths.settings_file()),
            calicoctl: shown(paths.root().join(calicoctl::CONFIG_FILE)),
        });
    }
    Ok(store)
}

fn pools(args: &NodeArgs, file: &File, own_pools: bool) -> Result<DefaultPools, SettingsError> {
    let mut defaults = DefaultPools::default();
    if !own_pools {
        (defaults.ipv4, defaults.ipv6) = (None, None);
    }
    let pool = |given: Option<PoolArg>, key, default| -> Result<_, SettingsError> {
        match given {
            Some(given) => Ok(given.0),
            None => Ok(file.parsed::<PoolArg>(key)?.map_or(default, |pool| pool.0)),
        }
    };
    Ok(DefaultPools {
        ipv4: pool(args.ipv4_pool, "ipv4_pool", defaults.ipv4)?,
        ipv6: pool(args.ipv6_pool, "ipv6_pool", defaults.ipv6)?,
        encapsulation: or_file(args.encapsulation, file, "encapsulation")?.unwrap_or(defaults.encapsulation),
    })
}

fn logging(args: NodeArgs, file: &File) -> Result<Logging, SettingsError> {
    let format = match args.log_format {
        Some(format) => format,
        None => file
            .choice("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?
            .unwrap_or(LogFormat::Text),
    };
    let level = or_file(args.log_level, file, "log_level")?.unwrap_or_else(|| "info".to_owned());
    Ok(Logging { level, format })
}

/// A setting that is a word, from the arguments, the file, or by default; and where it is from.
fn word<T>(
    key: &'static str,
    given: Option<T>,
    (file, variables, effective): (&File, &Variables, &mut Effective),
) -> Result<T, SettingsError>
where
    T: std::str::FromStr + std::fmt::Display + Default,
    T::Err: std::fmt::Display,
{
    let from = origin(key, given.is_some(), variables, file);
    let value = or_file(given, file, key)?.unwrap_or_default();
    effective.set(key, value.to_string(), &from);
    Ok(value)
}

fn or_file<T>(given: Option<T>, file: &File, key: &'static str) -> Result<Option<T>, SettingsError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    given.map_or_else(|| file.parsed(key), |given| Ok(Some(given)))
}

/// The name that Calico's programs on this node use.
fn calicos_name(paths: &Paths) -> Option<NodeName> {
    NodeName::new(std::fs::read_to_string(paths.calico_nodename_file()).ok()?.trim()).ok()
}

/// The host's name, trimmed and in lower case, as Calico takes it (calico-cni.md section 1.6).
fn host_name() -> Result<NodeName, NameError> {
    let name = rustix::system::uname();
    NodeName::new(name.nodename().to_string_lossy().trim().to_lowercase())
}

// === impl File ===

impl File {
    fn empty() -> Self {
        Self { path: String::new(), table: toml::Table::new() }
    }

    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn read(path: &Path) -> Result<Self, SettingsError> {
        let shown = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(SettingsError::Read { path: shown, source }),
        };
        Self::parse(shown, &text)
    }

    fn parse(path: String, text: &str) -> Result<Self, SettingsError> {
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(source) => return Err(SettingsError::Syntax { path, source: Box::new(source) }),
        };
        let known = if table.is_empty() { Vec::new() } else { keys() };
        match table.keys().find(|key| !known.contains(key)) {
            Some(key) => {
                let nearest = known.into_iter().min_by_key(|known| distance(known, key)).unwrap_or_default();
                Err(SettingsError::UnknownKey { path, key: key.clone(), nearest })
            }
            None => Ok(Self { path, table }),
        }
    }

    fn parsed<T>(&self, key: &'static str) -> Result<Option<T>, SettingsError>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        match self.table.get(key) {
            None => Ok(None),
            Some(toml::Value::String(text)) => {
                text.parse().map(Some).map_err(|e: T::Err| self.bad(key, e.to_string()))
            }
            Some(other) => Err(self.bad(key, format!("a string is wanted, not a {}", other.type_str()))),
        }
    }

    fn paths(&self, key: &'static str) -> Result<Option<Vec<PathBuf>>, SettingsError> {
        let wanted = || self.bad(key, "a list of strings is wanted".to_owned());
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let items = value.as_array().ok_or_else(wanted)?.iter();
        items.map(|item| item.as_str().map(PathBuf::from)).collect::<Option<_>>().map(Some).ok_or_else(wanted)
    }

    fn flag(&self, key: &'static str) -> Result<bool, SettingsError> {
        match self.table.get(key) {
            None => Ok(false),
            Some(toml::Value::Boolean(value)) => Ok(*value),
            Some(other) => Err(self.bad(key, format!("true or false is wanted, not a {}", other.type_str()))),
        }
    }

    fn integer(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>, SettingsError> {
        let wanted =
            || self.bad(key, format!("a number from {} to {} is wanted", range.start(), range.end()));
        match self.table.get(key) {
            None => Ok(None),
            Some(value) => {
                let value = value.as_integer().and_then(|value| u32::try_from(value).ok());
                value.filter(|value| range.contains(value)).map(Some).ok_or_else(wanted)
            }
        }
    }

    fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<Option<T>, SettingsError> {
        let Some(text) = self.parsed::<String>(key)? else { return Ok(None) };
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        let names = || choices.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
        found.map(Some).ok_or_else(|| self.bad(key, format!("{} is wanted, not {text:?}", names())))
    }

    fn bad(&self, key: &'static str, reason: String) -> SettingsError {
        SettingsError::Value { path: self.path.clone(), key, reason }
    }
}

/// Every key of the settings file: the names of the agent's arguments. The root is none of them,
/// because the file is below it.
pub fn keys() -> Vec<String> {
    let agent = AgentArgs::augment_args(clap::Command::new("agent"));
    let names = agent.get_arguments().map(|argument| argument.get_id().to_string());
    names.filter(|name| name != "root").collect()
}

/// Levenshtein distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use russet_agent::Secret;

    use super::*;
    use crate::cli::store::LocationArgs;

    fn file(text: &str) -> Result<File, SettingsError> {
        File::parse("russet.toml".to_owned(), text)
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let error = file("interfaces = 'eth0'").err().unwrap().to_string();
        assert_eq!(error, "russet.toml: unknown key `interfaces`; did you mean `interface`?");
    }

    #[test]
    fn the_settings_of_packages_set_nothing_and_name_known_keys() {
        let text = include_str!("../../../packaging/russet.toml");
        assert!(file(text).unwrap().table.is_empty());
        let is_setting = |line: &&str| {
            line.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' ') && !rest.is_empty())
        };
        let settings: Vec<&str> = text.lines().filter(is_setting).map(|line| &line[1..]).collect();
        let table = file(&settings.join("\n")).unwrap().table;
        assert!(table.len() == settings.len() && table.len() > 10, "{table:?}");
    }

    #[test]
    fn the_keys_of_the_file_are_the_agents_arguments_without_the_root() {
        let keys = keys();
        for key in
            ["node_name", "store", "etcd_ca_file", "leak_repair", "cni_cache_dirs", "openshift_platform"]
        {
            assert!(keys.iter().any(|known| known == key), "{key}: {keys:?}");
        }
        assert!(!keys.iter().any(|key| ["root", "help", "variables"].contains(&key.as_str())), "{keys:?}");
        // The page's table has the same ones in its third column.
        let page = include_str!("../../../docs/configuration.md").replace("\\|", "/");
        let rows = page.lines().filter(|line| line.starts_with("| `--"));
        let mut documented: Vec<&str> =
            rows.filter_map(|row| row.split('|').nth(3)?.split('`').nth(1)).collect();
        let mut known: Vec<&str> = keys.iter().map(String::as_str).collect();
        documented.sort_unstable();
        known.sort_unstable();
        assert_eq!(documented, known);
    }

    #[test]
    fn etcd_gets_its_certificates_and_its_user_from_wherever_they_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("password");
        std::fs::write(&secret, "opensesame\n").unwrap();
        let text = format!(
            "store = 'etcd:https://a,https://b'\netcd_ca_file = '/ca'\netcd_username = 'russet'\netcd_password_file = '{}'",
            secret.display()
        );
        let args = LocationArgs { etcd_ca_file: Some("/other-ca".into()), ..LocationArgs::default() };
        let file = file(&text).unwrap();
        let found = location(&args, Sources { file: Some(&file), ..Sources::default() }).unwrap();
        let StoreLocation::Etcd(settings) = found.location else { panic!() };
        assert_eq!(settings.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(settings.ca, Some("/other-ca".into()));
        assert_eq!(settings.username.as_deref(), Some("russet"));
        assert_eq!(settings.password, Some(Secret::new("opensesame")));
    }

    #[test]
    fn a_password_does_not_go_to_another_machine_over_http_unless_that_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("password");
        std::fs::write(&secret, "opensesame\n").unwrap();
        let of = |store: &str, args: LocationArgs, more: &str| {
            let text = format!(
                "store = 'etcd:{store}'\netcd_username = 'russet'\netcd_password_file = '{}'\n{more}",
                secret.display()
            );
            let file = file(&text).unwrap();
            location(&args, Sources { file: Some(&file), ..Sources::default() }).map(drop)
        };
        let other = "http://127.0.0.1,http://10.0.0.1";
        let refused = of(other, LocationArgs::default(), "").unwrap_err().to_string();
        assert!(refused.contains("http://10.0.0.1:2379 in clear text"), "{refused}");
        assert!(!refused.contains("opensesame"), "{refused}");
        let allowed = LocationArgs { allow_plaintext_credentials: true, ..LocationArgs::default() };
        of(other, allowed, "").unwrap();
        of(other, LocationArgs::default(), "allow_plaintext_credentials = true").unwrap();
        of("http://127.0.0.1", LocationArgs::default(), "").unwrap();
    }

    #[test]
    fn settings_of_etcd_for_another_store_are_refused() {
        let of = |text: &str| {
            let file = file(text).unwrap();
            let found =
                location(&LocationArgs::default(), Sources { file: Some(&file), ..Sources::default() });
            found.err().unwrap().to_string()
        };
        assert!(
            of("etcd_username = 'russet'").starts_with("etcd_username is set, and the store is not etcd")
        );
        assert!(
            of("store = 'etcd:http://a'\netcd_cert_file = '/c'").contains("`cert` and `key` go together")
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_names_the_key() {
        let file = file("mtu = 70000\nstore = 3\nlog_format = 'xml'").unwrap();
        let errors = [
            file.integer("mtu", 1280..=65535).unwrap_err().to_string(),
            file.parsed::<StoreLocation>("store").unwrap_err().to_string(),
            file.choice("log_format", &[("text", 1), ("json", 2)]).unwrap_err().to_string(),
        ];
        assert_eq!(errors[0], "russet.toml: key `mtu`: a number from 1280 to 65535 is wanted");
        assert_eq!(errors[1], "russet.toml: key `store`: a string is wanted, not a integer");
        assert_eq!(errors[2], "russet.toml: key `log_format`: `text` or `json` is wanted, not \"xml\"");
    }
}
