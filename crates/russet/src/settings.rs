//! Settings: flag, then `RUSSET_*` variable, then the settings file, then the default (DESIGN section 10).

mod openshift;

use std::path::{Path, PathBuf};

use russet_addr::{NameError, NodeName};
use russet_agent::repair::{DEFAULT_CACHE, DEFAULT_GRACE};
use russet_agent::{
    Config, DEFAULT_HEALTH, DefaultPools, EtcdSettings, EtcdSettingsError, Paths, Secret, StoreLocation,
};

use crate::cli::repair::{CacheArgs, RepairArgs};
use crate::cli::span::LeakRepair;
use crate::cli::store::{LocationArgs, StoreChoice};
use crate::cli::{AgentArgs, LogFormat, NodeArgs, PoolArg};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file is there and cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("parse {path}: {source}")]
    Syntax {
        /// The file.
        path: String,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A key that means nothing.
    #[error("{path}: unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The known key that looks most like it.
        nearest: &'static str,
    },
    /// A value of the wrong kind.
    #[error("{path}: key `{key}`: {reason}")]
    Value {
        /// The file.
        path: String,
        /// The key.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Something is set about etcd, and the store is another one.
    #[error("{0} is set, and the store is not etcd; give --store etcd:URL")]
    NotEtcd(&'static str),
    /// What is set about etcd does not fit together.
    #[error(transparent)]
    Etcd(#[from] EtcdSettingsError),
    /// OpenShift's network cannot be as it is set.
    #[error("{reason}")]
    Openshift {
        /// What is wrong.
        reason: String,
    },
    /// The host has a name that cannot be a node's.
    #[error("this host's name cannot be a node name: {0}; give one with --node-name")]
    HostName(#[from] NameError),
}

/// How and how much to log.
#[derive(Debug, Clone)]
pub struct Logging {
    /// A level, or a filter as `tracing` has it.
    pub level: String,
    /// The form.
    pub format: LogFormat,
}

/// Every key of the settings file; the names are those of the flags.
const KEYS: [&str; 28] = [
    "calico",
    "cni_cache_dirs",
    "encapsulation",
    "etcd_ca_file",
    "etcd_cert_file",
    "etcd_key_file",
    "etcd_password_file",
    "etcd_server_name",
    "etcd_username",
    "health_address",
    "interface",
    "ipv4_pool",
    "ipv6_pool",
    "leak_repair",
    "log_format",
    "log_level",
    "mtu",
    "node_name",
    "openshift",
    "openshift_cluster_network",
    "openshift_host_prefix",
    "openshift_kubeconfig",
    "openshift_platform",
    "openshift_routable_mtu",
    "openshift_service_network",
    "openshift_trust_annotations",
    "store",
    "sync_delete",
];

/// The settings file's contents, its keys known to be good.
struct File {
    path: String,
    table: toml::Table,
}

/// Settings of an agent.
pub fn agent(args: AgentArgs) -> Result<(Config, Logging), SettingsError> {
    let file = File::read(&Paths::new(&args.node.root).settings_file())?;
    let health =
        args.health_address.map_or_else(|| file.parsed("health_address"), |given| Ok(Some(given)))?;
    let sync_delete = args.sync_delete || file.flag("sync_delete")?;
    let leak_repair = match or_file(args.leaks.leak_repair, &file, "leak_repair")? {
        Some(LeakRepair::Off) => None,
        Some(LeakRepair::Every(span)) => Some(span.0),
        Some(LeakRepair::On) | None => Some(DEFAULT_GRACE),
    };
    let openshift = openshift::read(args.openshift, &file)?;
    let own_pools = openshift.is_none();
    let (mut config, logging) = node_with(args.node, &file, own_pools)?;
    config.openshift = openshift;
    config.cni_caches = caches(&config.paths, args.leaks.caches, &file)?;
    config.health = health.unwrap_or(DEFAULT_HEALTH);
    config.sync_delete = sync_delete;
    config.leak_repair = leak_repair;
    Ok((config, logging))
}

/// Settings of a plugin that works without an agent.
pub fn direct(args: NodeArgs) -> Result<(Config, Logging), SettingsError> {
    let file = File::read(&Paths::new(&args.root).settings_file())?;
    let (mut config, logging) = node_with(args, &file, true)?;
    config.sync_delete = true;
    Ok((config, logging))
}

/// What a repair of this node works on.
pub struct RepairPlace {
    /// The node's files.
    pub paths: Paths,
    /// Its store.
    pub store: StoreLocation,
    /// Its name.
    pub node: NodeName,
    /// Its runtimes' caches.
    pub caches: Vec<PathBuf>,
}

/// Settings of a repair without an agent; the file's and the defaults are an agent's.
pub fn repair(choice: StoreChoice, args: &RepairArgs) -> Result<RepairPlace, SettingsError> {
    let paths = Paths::new(choice.root);
    let file = File::read(&paths.settings_file())?;
    let store = location(choice.location, &file)?;
    let node = name_of(&paths, &file, args.node_name.clone(), file.flag("calico")?)?;
    let caches = caches(&paths, CacheArgs { cni_cache_dirs: args.caches.cni_cache_dirs.clone() }, &file)?;
    Ok(RepairPlace { paths, store, node, caches })
}

fn caches(paths: &Paths, given: CacheArgs, file: &File) -> Result<Vec<PathBuf>, SettingsError> {
    if !given.cni_cache_dirs.is_empty() {
        return Ok(given.cni_cache_dirs);
    }
    let set = file.paths("cni_cache_dirs")?;
    Ok(set.unwrap_or_else(|| vec![paths.root().join(DEFAULT_CACHE)]))
}

/// The store of a node, for whoever looks at it.
pub fn store(choice: StoreChoice) -> Result<(Paths, StoreLocation), SettingsError> {
    let paths = Paths::new(choice.root);
    let file = File::read(&paths.settings_file())?;
    let location = location(choice.location, &file)?;
    Ok((paths, location))
}

/// This node's name, for whoever asks about it.
pub fn node_name(paths: &Paths) -> Result<NodeName, SettingsError> {
    let file = File::read(&paths.settings_file())?;
    name_of(paths, &file, None, file.flag("calico")?)
}

fn name_of(
    paths: &Paths,
    file: &File,
    given: Option<NodeName>,
    calico: bool,
) -> Result<NodeName, SettingsError> {
    let set = std::env::var("RUSSET_NODE_NAME").ok().and_then(|name| NodeName::new(name).ok());
    match or_file(given.or(set), file, "node_name")? {
        Some(name) => Ok(name),
        None => Ok(calicos_name(paths).filter(|_| calico).map_or_else(host_name, Ok)?),
    }
}

fn location(args: LocationArgs, file: &File) -> Result<StoreLocation, SettingsError> {
    let ca = or_file(args.etcd_ca_file, file, "etcd_ca_file")?;
    let cert = or_file(args.etcd_cert_file, file, "etcd_cert_file")?;
    let key = or_file(args.etcd_key_file, file, "etcd_key_file")?;
    let server_name = or_file(args.etcd_server_name, file, "etcd_server_name")?;
    let username = or_file(args.etcd_username, file, "etcd_username")?;
    let password_file = or_file(args.etcd_password_file, file, "etcd_password_file")?;
    let given = [
        ("etcd_ca_file", ca.is_some()),
        ("etcd_cert_file", cert.is_some()),
        ("etcd_key_file", key.is_some()),
        ("etcd_server_name", server_name.is_some()),
        ("etcd_username", username.is_some()),
        ("etcd_password_file", password_file.is_some()),
    ];
    match or_file(args.store, file, "store")?.unwrap_or(StoreLocation::Embedded) {
        StoreLocation::Etcd(settings) => {
            let password = password_file.map(password).transpose()?;
            let settings = EtcdSettings { ca, cert, key, server_name, username, password, ..*settings };
            settings.check()?;
            Ok(StoreLocation::Etcd(Box::new(settings)))
        }
        other => match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(SettingsError::NotEtcd(name)),
            None => Ok(other),
        },
    }
}

fn password(path: PathBuf) -> Result<Secret, SettingsError> {
    let text = std::fs::read_to_string(&path)
        .map_err(|source| SettingsError::Read { path: path.display().to_string(), source })?;
    Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
}

/// `own_pools`: whether a fresh store gets pools for our own plugin that nobody asked for.
fn node_with(args: NodeArgs, file: &File, own_pools: bool) -> Result<(Config, Logging), SettingsError> {
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
    let pools = DefaultPools {
        ipv4: pool(args.ipv4_pool, "ipv4_pool", defaults.ipv4)?,
        ipv6: pool(args.ipv6_pool, "ipv6_pool", defaults.ipv6)?,
        encapsulation: or_file(args.encapsulation, file, "encapsulation")?.unwrap_or(defaults.encapsulation),
    };
    let paths = Paths::new(args.root);
    let calico = args.calico || file.flag("calico")?;
    let node_name = name_of(&paths, file, args.node_name, calico)?;
    let mtu = match args.mtu {
        Some(mtu) => Some(mtu),
        None => file.integer("mtu", 1280..=65535)?,
    };
    let log_format = match args.log_format {
        Some(format) => format,
        None => file
            .choice("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?
            .unwrap_or(LogFormat::Text),
    };
    let logging = Logging {
        level: or_file(args.log_level, file, "log_level")?.unwrap_or_else(|| "info".to_owned()),
        format: log_format,
    };
    let config = Config {
        paths,
        node_name,
        calico,
        store: location(args.location, file)?,
        interface: or_file(args.interface, file, "interface")?,
        pools,
        mtu_bytes: mtu,
        health: DEFAULT_HEALTH,
        sync_delete: false,
        leak_repair: None,
        cni_caches: Vec::new(),
        openshift: None,
    };
    Ok((config, logging))
}

fn or_file<T>(given: Option<T>, file: &File, key: &'static str) -> Result<Option<T>, SettingsError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    given.map_or_else(|| file.parsed(key), |given| Ok(Some(given)))
}

/// The name that Calico's programs on this node agreed upon.
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
        match table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            Some(key) => Err(SettingsError::UnknownKey { path, key: key.clone(), nearest: nearest(key) }),
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

/// The known key with the smallest edit distance to `key`.
fn nearest(key: &str) -> &'static str {
    KEYS.into_iter().min_by_key(|known| distance(known, key)).unwrap_or(KEYS[0])
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
    use super::*;

    fn file(text: &str) -> Result<File, SettingsError> {
        File::parse("russet.toml".to_owned(), text)
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        let error = file("interfaces = 'eth0'").err().unwrap().to_string();
        assert_eq!(error, "russet.toml: unknown key `interfaces`; did you mean `interface`?");
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
        let StoreLocation::Etcd(settings) = location(args, &file(&text).unwrap()).unwrap() else { panic!() };
        assert_eq!(settings.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(settings.ca, Some("/other-ca".into()));
        assert_eq!(settings.username.as_deref(), Some("russet"));
        assert_eq!(settings.password, Some(Secret::new("opensesame")));
    }

    #[test]
    fn settings_of_etcd_for_another_store_are_refused() {
        let of =
            |text: &str| location(LocationArgs::default(), &file(text).unwrap()).unwrap_err().to_string();
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
