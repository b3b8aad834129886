//! The result cache: what was attached with which configuration, for the DEL that comes days later.
//!
//! The files are those of Go's libcni, read and written both ways (cni-runtime.md section 2.4).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use russet_addr::{ContainerId, IfName, NetworkName};
use russet_cni_spec::{CniResult, ConfigError, ConfigList, Version, base64};
use serde_json::{Map, Value, json};

use crate::Attachment;

mod attached;

pub use attached::{Attached, AttachedOwner, CacheError, attached};

/// The cache's directory.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
}

/// One attachment, as it was when ADD succeeded.
#[derive(Debug, Clone)]
pub struct CacheEntry {
    /// The network.
    pub network: NetworkName,
    /// What was attached, and with which arguments. The namespace is empty in files of older runtimes.
    pub attachment: Attachment,
    /// The configuration at that time; empty in files of the oldest form.
    pub config: Vec<u8>,
    result: Value,
}

/// Why an entry cannot be used.
pub(crate) enum Unusable {
    /// There is none.
    Absent,
    /// There is one, of another attachment whose file name is the same.
    Foreign,
    /// There is one, and this is wrong with it.
    Corrupt(String),
}

/// A result with its configuration and arguments, several times over.
const FILE_MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Tells Go's format from the older one.
const KIND: &str = "cniCacheV1";

// === impl Cache ===

impl Cache {
    pub(crate) fn new(cache_dir: &Path) -> Self {
        Self { dir: cache_dir.join("results") }
    }

    /// Ambiguous, since all three names may hold `-`: the fields inside decide.
    pub(crate) fn path(&self, network: &NetworkName, container_id: &ContainerId, ifname: &IfName) -> PathBuf {
        self.dir.join(format!("{network}-{container_id}-{ifname}"))
    }

    fn path_for(&self, list: &ConfigList, attachment: &Attachment) -> PathBuf {
        self.path(&list.name, &attachment.container_id, &attachment.ifname)
    }

    /// Writes the entry, so that a power loss leaves the old file or the new one, never an empty one.
    pub(crate) fn write(
        &self,
        list: &ConfigList,
        attachment: &Attachment,
        result: &CniResult,
    ) -> Result<(), (PathBuf, io::Error)> {
        let path = self.path_for(list, attachment);
        let args: Vec<[&str; 2]> =
            attachment.args.iter().map(|(key, value)| [key.as_str(), value.as_str()]).collect();
        let document = json!({
            "kind": KIND,
            "containerId": attachment.container_id.as_str(),
            "config": base64::encode(&list.bytes),
            "ifName": attachment.ifname.as_str(),
            "networkName": list.name.as_str(),
            "netns": attachment.netns.to_string_lossy(),
            "cniArgs": args,
            "capabilityArgs": attachment.capability_args,
            "result": result.to_value(),
        });
        self.replace(&path, document.to_string().as_bytes()).map_err(|error| (path, error))
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let serial = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = self.dir.join(format!(".{}.{serial}.tmp", std::process::id()));
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let renamed = written
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, path));
        if renamed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        renamed.and_then(|()| File::open(&self.dir)?.sync_all())
    }

    pub(crate) fn read(&self, list: &ConfigList, attachment: &Attachment) -> Result<CacheEntry, Unusable> {
        let entry = read_file(&self.path_for(list, attachment))?;
        let object = match entry {
            Value::Object(object) if object.get("kind").is_none() => {
                // The oldest form: the bare result.
                return Ok(CacheEntry::of(list, attachment, Value::Object(object)));
            }
            Value::Object(object) => object,
            _ => return Err(Unusable::Corrupt("it is no JSON object".into())),
        };
        let entry =
            CacheEntry::decode(object).ok_or_else(|| Unusable::Corrupt("members are missing".into()))?;
        let same = entry.network == list.name
            && entry.attachment.container_id == attachment.container_id
            && entry.attachment.ifname == attachment.ifname;
        if same { Ok(entry) } else { Err(Unusable::Foreign) }
    }

    pub(crate) fn remove(&self, list: &ConfigList, attachment: &Attachment) {
        let _ = fs::remove_file(self.path_for(list, attachment));
    }

    /// Every entry that can be read, of every network.
    pub(crate) fn entries(&self) -> Vec<CacheEntry> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
        paths.sort();
        let object = |path: PathBuf| match read_file(&path) {
            Ok(Value::Object(object)) => CacheEntry::decode(object),
            _ => None,
        };
        paths.into_iter().filter_map(object).collect()
    }
}

fn read_file(path: &Path) -> Result<Value, Unusable> {
    let corrupt = |error: &dyn std::fmt::Display| Unusable::Corrupt(format!("{}: {error}", path.display()));
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Unusable::Absent),
        opened => opened.map_err(|error| corrupt(&error))?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(|error| corrupt(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| corrupt(&error))
}

// === impl CacheEntry ===

impl CacheEntry {
    fn of(list: &ConfigList, attachment: &Attachment, result: Value) -> Self {
        let attachment = attachment.clone();
        Self { network: list.name.clone(), attachment, config: list.bytes.clone(), result }
    }

    fn decode(mut object: Map<String, Value>) -> Option<Self> {
        if object.get("kind")?.as_str()? != KIND {
            return None;
        }
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let pair =
            |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
        let container_id = text("containerId").parse().ok()?;
        let mut attachment = Attachment::new(container_id, text("netns"), text("ifName").parse().ok()?);
        attachment.args =
            object.get("cniArgs").and_then(Value::as_array).into_iter().flatten().filter_map(pair).collect();
        let network = text("networkName").parse().ok()?;
        let config = base64::decode(text("config")).ok()?;
        if let Some(Value::Object(capability_args)) = object.remove("capabilityArgs") {
            attachment.capability_args = capability_args;
        }
        Some(Self { network, attachment, config, result: object.remove("result").unwrap_or_default() })
    }

    /// The list that the attachment was made with.
    pub fn list(&self) -> Result<ConfigList, ConfigError> {
        ConfigList::parse(&self.config)?.require_plugins()
    }

    /// The result, in the version of today's configuration.
    pub fn result(&self, version: Version) -> Result<CniResult, russet_cni_spec::ResultError> {
        let result = CniResult::from_value(&self.result, version)?;
        result.validate()?;
        result.convert(version)
    }
}
