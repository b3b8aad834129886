//! The settings of the node's last agent, in `/run/russet/settings.toml` and a copy in
//! `/var/lib/russet`.
//!
//! The agent writes both before it serves a request, under the node's lock. Plugins that work
//! without an agent use only them, and the node's other commands use them unless a flag or a
//! variable is set. Two stores on one node would assign one address to two pods. Secrets are not
//! recorded, only the paths of their files.

use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use russet_addr::NodeName;
use russet_agent::{Config, DEFAULT_HEALTH, DefaultPools, EtcdSettings, Paths, StoreLocation};
use russet_linux::file::{FileError, private_dir, write_atomic};

use super::store::{PASSWORD_PLACE, Sources, location};
use super::{Disagreement, File, Origin, SettingsError, calicoctl};
use crate::cli::store::LocationArgs;
use crate::cli::{NodeArgs, PoolArg};

/// Grows when a key changes its meaning.
const SCHEMA: i64 = 1;
/// Larger than any record; a larger file is refused.
const SIZE_MAX_BYTES: u64 = 64 * 1024;
const HEADING: &str = "# Written by `russet agent` at its start. Plugins without an agent and other commands of this node use it; do not edit it.\n";
/// The settings on which pods' addresses depend: agents that differ in one of these would assign
/// them differently.
const IDENTITY: [&str; 4] = ["store", "node_name", "calico", "openshift"];

/// The settings that an agent records.
#[derive(Debug, Default)]
pub struct Effective {
    settings: toml::Table,
    origins: toml::Table,
    /// The place of etcd's password, if that is a variable of this process: no other process can read it there.
    password_variable: Option<String>,
}

/// The settings that an agent recorded.
pub struct Recorded {
    file: File,
    origins: toml::Table,
    /// The store, without the password.
    pub store: StoreLocation,
    pub node_name: NodeName,
}

/// The state of the last agent's records.
pub struct Records {
    pub known: Option<Recorded>,
    /// Why the settings are uncertain, if they are.
    pub doubt: Option<Doubt>,
}

/// Why the settings of the last agent are uncertain.
#[derive(Debug, thiserror::Error)]
pub enum Doubt {
    /// A record is unusable.
    #[error(
        "{path}, where the node's agent records its settings, cannot be used: {reason}; start the agent, which writes it anew"
    )]
    Unusable { path: String, reason: String },
    /// The record of this boot and the one that survives boots differ.
    #[error(
        "{first} and {second} record different settings of the node's agent ({key}); start the agent, which writes both anew"
    )]
    Differ {
        /// This boot's record.
        first: String,
        /// The copy.
        second: String,
        /// The first key in which they differ.
        key: &'static str,
    },
    /// An agent without records ran: one of an earlier version.
    #[error(
        "an agent has run on this node ({journal} is there) and has not recorded its settings; start it again, in this version"
    )]
    Unrecorded {
        /// The journal of that agent.
        journal: String,
    },
}

/// Why an agent could not record its settings.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("make {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("record the agent's settings, without which plugins could use another store: {0}")]
    File(#[from] FileError),
    /// A record of other settings could be neither replaced nor removed.
    #[error("{} records settings of an earlier agent and can be neither replaced nor removed: {source}", path.display())]
    Stale { path: PathBuf, source: std::io::Error },
}

/// Reads the records.
pub fn look(paths: &Paths) -> Records {
    let places = [paths.settings_record(), paths.settings_record_copy()];
    let [run, copy] = places.map(|path| {
        let read = Recorded::read(&path);
        read.map_err(|reason| Doubt::Unusable { path: path.display().to_string(), reason })
    });
    let journal = paths.journal_file();
    match (run, copy) {
        (Ok(Some(run)), Ok(Some(copy))) => {
            let doubt = run.difference(&copy);
            Records { known: Some(run), doubt }
        }
        (Ok(Some(known)), Ok(None)) | (Ok(None), Ok(Some(known))) => {
            Records { known: Some(known), doubt: None }
        }
        (Ok(known), Err(doubt)) | (Err(doubt), Ok(known)) => Records { known, doubt: Some(doubt) },
        (Err(doubt), Err(_)) => Records { known: None, doubt: Some(doubt) },
        (Ok(None), Ok(None)) if journal.exists() => {
            let doubt = Doubt::Unrecorded { journal: journal.display().to_string() };
            Records { known: None, doubt: Some(doubt) }
        }
        (Ok(None), Ok(None)) => Records { known: None, doubt: None },
    }
}

/// Records an agent's settings; only for the process that has the node's lock. The copy is written
/// first: a start that is interrupted in between keeps the record of the agent that served last.
pub fn keep(paths: &Paths, effective: &Effective) -> Result<(), RecordError> {
    let before = look(paths);
    if let Some(before) = &before.known {
        before.log_changes(effective, paths);
    }
    if let Some(doubt) = &before.doubt {
        tracing::info!(%doubt, "settings are recorded anew");
    }
    let (text, copy, run) = (effective.to_toml(), paths.settings_record_copy(), paths.settings_record());
    for dir in [paths.state_dir(), paths.run_dir()] {
        private_dir(&dir).map_err(|source| RecordError::Directory { path: dir, source })?;
    }
    replace(&copy, &text)?;
    if let Err(error) = replace(&run, &text) {
        // The copy is enough, once the other record is removed.
        match std::fs::remove_file(&run) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(RecordError::Stale { path: run, source });
            }
            _ => {
                tracing::warn!(%error, copy = %copy.display(), "settings are recorded only where they survive a boot")
            }
        }
    }
    tracing::info!(
        store = effective.text("store"),
        store_from = effective.origin("store"),
        node = effective.text("node_name"),
        node_from = effective.origin("node_name"),
        record = %run.display(),
        "settings recorded"
    );
    Ok(())
}

/// Writes the file only if it differs: a restart on a full disk needs no space.
fn replace(path: &Path, text: &str) -> Result<(), FileError> {
    if Recorded::read(path).is_ok_and(|known| known.is_some())
        && std::fs::read_to_string(path).is_ok_and(|known| known == text)
    {
        return Ok(());
    }
    write_atomic(path, text.as_bytes())
}

// === impl Effective ===

impl Effective {
    /// Records a setting and its source.
    pub fn set(&mut self, key: &str, value: impl Into<toml::Value>, origin: &Origin) {
        self.settings.insert(key.to_owned(), value.into());
        self.origins.insert(key.to_owned(), origin.to_string().into());
    }

    /// Where etcd's password is, if plugins and commands without this process cannot have it from there.
    pub fn password_variable(&self) -> Option<&str> {
        self.password_variable.as_deref()
    }

    /// Notes a credential of the store; its place only if it is a password.
    pub fn set_credential(&mut self, key: &str, value: String, origin: &Origin) {
        if key == PASSWORD_PLACE && origin.is_variable_of_calicoctl() {
            self.password_variable = Some(value.clone());
        }
        self.set(key, value, origin);
    }

    fn text(&self, key: &str) -> &str {
        self.settings.get(key).and_then(toml::Value::as_str).unwrap_or_default()
    }

    fn origin(&self, key: &str) -> &str {
        self.origins.get(key).and_then(toml::Value::as_str).unwrap_or_default()
    }

    fn to_toml(&self) -> String {
        let mut table = self.settings.clone();
        table.insert("schema".to_owned(), SCHEMA.into());
        table.insert("origin".to_owned(), self.origins.clone().into());
        format!("{HEADING}{table}")
    }
}

// === impl Recorded ===

impl Recorded {
    /// None if the file does not exist; an error if this version cannot read it as a record.
    fn read(path: &Path) -> Result<Option<Self>, String> {
        let mut file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        trusted(&metadata)?;
        let mut text = String::new();
        file.by_ref().take(SIZE_MAX_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
        Self::parse(path.display().to_string(), &text).map(Some)
    }

    fn parse(path: String, text: &str) -> Result<Self, String> {
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        match table.remove("schema") {
            Some(toml::Value::Integer(SCHEMA)) => {}
            Some(other) => return Err(format!("its schema is {other}, this version reads {SCHEMA}")),
            None => return Err("it has no schema, so it was not written by an agent".to_owned()),
        }
        let origins = match table.remove("origin") {
            Some(toml::Value::Table(origins)) => origins,
            _ => toml::Table::new(),
        };
        let file = File { path, table };
        let wanted = |key: &'static str| format!("it has no {key}");
        let failed = |error: SettingsError| error.to_string();
        let store = file.parsed("store").map_err(failed)?.ok_or_else(|| wanted("store"))?;
        let node_name = file.parsed("node_name").map_err(failed)?.ok_or_else(|| wanted("node_name"))?;
        let recorded = Self { file, origins, store, node_name };
        // Fails now, and not only when the settings are used.
        recorded.config_with(Paths::new("/"), recorded.store.clone()).map_err(failed)?;
        Ok(recorded)
    }

    /// On a node in OpenShift's place, the access to the Kubernetes API that its agent has, if any.
    pub fn openshift(&self) -> Result<Option<Option<PathBuf>>, SettingsError> {
        let kubeconfig = self.file.parsed::<String>("openshift_kubeconfig")?.map(Into::into);
        Ok(self.file.flag("openshift")?.then_some(kubeconfig))
    }

    /// Path of the record.
    pub fn path(&self) -> &str {
        &self.file.path
    }

    /// The settings as a settings file, which supplies what no other source sets.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The origin of a setting: the agent's own source, and this record.
    pub fn origin(&self, key: &str) -> Origin {
        Origin::Recorded { from: self.from(key), path: self.file.path.clone() }
    }

    fn from(&self, key: &str) -> String {
        self.origins.get(key).and_then(toml::Value::as_str).unwrap_or("an agent").to_owned()
    }

    /// The settings of a plugin without an agent: the record alone.
    pub fn config(&self, paths: Paths) -> Result<Config, SettingsError> {
        let read = || calicoctl::read(paths.root(), |name| std::env::var(name).ok());
        let sources = Sources { recorded: Some(self), calicoctl: Some(&read), ..Sources::default() };
        let chosen = location(&LocationArgs::default(), sources)?;
        self.config_with(paths, chosen.location)
    }

    fn config_with(&self, paths: Paths, store: StoreLocation) -> Result<Config, SettingsError> {
        let (file, defaults) = (&self.file, DefaultPools::default());
        let pool = |key| Ok::<_, SettingsError>(file.parsed::<PoolArg>(key)?.and_then(|pool| pool.0));
        let pools = DefaultPools {
            ipv4: pool("ipv4_pool")?,
            ipv6: pool("ipv6_pool")?,
            encapsulation: file.parsed("encapsulation")?.unwrap_or(defaults.encapsulation),
        };
        Ok(Config {
            paths,
            store,
            node_name: self.node_name.clone(),
            calico: file.flag("calico")?,
            interface: file.parsed("interface")?,
            pools,
            mtu_bytes: file.integer("mtu", super::MTU_RANGE)?,
            health: DEFAULT_HEALTH.into(),
            ui: None,
            sync_delete: true,
            leak_repair: None,
            cni_caches: file.paths("cni_cache_dirs")?.unwrap_or_default(),
            ipam: file.parsed("ipam")?.unwrap_or_default(),
            annotate: file.parsed("annotate")?.unwrap_or_default(),
            policies: file.parsed("policies")?.unwrap_or_default(),
            fast_path: file.parsed("fast_path")?.unwrap_or_default(),
            big_tcp: file.parsed("big_tcp")?.unwrap_or_default(),
            conflist: None,
            calico_kubeconfig: file.parsed("calico_kubeconfig")?,
            peers: Default::default(),
            openshift: None,
        })
    }

    /// Fails if the arguments, the variables or the settings file differ in the store, this node's
    /// name, or the replaced network (Calico, OpenShift).
    pub fn agrees_with(&self, args: &NodeArgs, file: &File) -> Result<(), SettingsError> {
        let disagrees = |key: &'static str, said: String, place: Origin| {
            let recorded = self.file.table.get(key).map(shown).unwrap_or_default();
            let (path, from) = (self.file.path.clone(), self.from(key));
            let place = place.to_string();
            let disagreement = Disagreement { key, said, place, recorded, from, path };
            Err(SettingsError::Disagree(Box::new(disagreement)))
        };
        let in_file = || Origin::File(file.path.clone());
        let given = args
            .location
            .store
            .clone()
            .map(|store| (store, Origin::given("store", &args.location.variables)));
        let stores = given.into_iter().chain(file.parsed("store")?.map(|store| (store, in_file())));
        for (store, place) in stores {
            if !is_same(&store, &self.store) {
                return disagrees("store", store.to_string(), place);
            }
        }
        let given = args.node_name.clone().map(|name| (name, Origin::given("node_name", &args.variables)));
        let names = given.into_iter().chain(file.parsed("node_name")?.map(|name| (name, in_file())));
        for (name, place) in names {
            if name != self.node_name {
                return disagrees("node_name", name.to_string(), place);
            }
        }
        for (key, said, place) in modes(args, file)? {
            if said != self.file.flag(key)? {
                return disagrees(key, said.to_string(), place);
            }
        }
        Ok(())
    }

    /// The first key in which both differ.
    fn difference(&self, copy: &Self) -> Option<Doubt> {
        let differs = |key: &&str| self.file.table.get(*key) != copy.file.table.get(*key);
        let key = IDENTITY.into_iter().find(differs)?;
        Some(Doubt::Differ { first: self.file.path.clone(), second: copy.file.path.clone(), key })
    }

    /// Logs what a starting agent changes. Attached pods have addresses that another store does not
    /// know.
    fn log_changes(&self, effective: &Effective, paths: &Paths) {
        let before = &self.file.table;
        let is_changed = |key: &str| before.get(key) != effective.settings.get(key);
        for key in IDENTITY.into_iter().filter(|key| is_changed(key)) {
            let (was, is) = (before.get(key).map(shown), effective.settings.get(key).map(shown));
            let (was, is) = (was.unwrap_or_default(), is.unwrap_or_default());
            tracing::info!(
                setting = key,
                was,
                was_from = self.from(key),
                is,
                is_from = effective.origin(key),
                "the last agent of this node had another setting"
            );
        }
        let is_moved = ["store", "node_name"].into_iter().any(is_changed);
        let attached = russet_journal::view(&paths.journal_file())
            .ok()
            .flatten()
            .map_or(0, |view| view.attachments.len());
        if is_moved && attached > 0 {
            tracing::warn!(
                attached,
                store_was = self.text("store"),
                node_was = self.text("node_name"),
                "pods of this node have addresses that are recorded there and not where this agent looks: it may give them to others; delete these pods, \
                 or start the agent with the store and the name that it had"
            );
        }
    }

    fn text(&self, key: &str) -> &str {
        self.file.table.get(key).and_then(toml::Value::as_str).unwrap_or_default()
    }
}

/// Refuses a record that another user can write, since it could name another store.
fn trusted(metadata: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != own {
        return Err(format!("it belongs to user {}, not to root", metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(format!("its mode is {:o}: others than root can write it", metadata.mode() & 0o7777));
    }
    Ok(())
}

/// Whether two locations lead to one store. The user and the certificates do not matter.
pub fn is_same(one: &StoreLocation, other: &StoreLocation) -> bool {
    let members = |settings: &EtcdSettings| {
        let mut endpoints = settings.endpoints.clone();
        endpoints.sort();
        endpoints
    };
    match (one, other) {
        (StoreLocation::Etcd(one), StoreLocation::Etcd(other)) => members(one) == members(other),
        _ => one == other,
    }
}

/// The modes (Calico, OpenShift) in the arguments, the variables and the settings file.
fn modes(args: &NodeArgs, file: &File) -> Result<Vec<(&'static str, bool, Origin)>, SettingsError> {
    let mut modes = Vec::new();
    if args.calico || args.variables.contains("calico") {
        modes.push(("calico", args.calico, Origin::given("calico", &args.variables)));
    }
    // Plugins have no argument for this one.
    if let Ok(text) = std::env::var("RUSSET_OPENSHIFT") {
        modes.push(("openshift", is_true(&text), Origin::Variable("openshift")));
    }
    for key in ["calico", "openshift"].into_iter().filter(|key| file.has(key)) {
        modes.push((key, file.flag(key)?, Origin::File(file.path.clone())));
    }
    Ok(modes)
}

/// The values that clap accepts as true in a variable.
fn is_true(text: &str) -> bool {
    !matches!(text.to_lowercase().as_str(), "" | "n" | "no" | "f" | "false" | "off" | "0")
}

fn shown(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
