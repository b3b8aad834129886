//! The result cache: attachments and their configurations, for the DEL that comes days later.
//!
//! The files are those of Go's libcni, read and written both ways (cni-runtime.md section 2.4).

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use russet_addr::{ContainerId, IfName, NetworkName};
use russet_cni_spec::{CniResult, ConfigError, ConfigList, Version, base64};
use russet_linux::file::{PRIVATE, create_exclusive};
use russet_linux::process::ProcessIdentity;
use serde_json::{Map, Value, json};

use crate::Attachment;

mod attached;

pub use attached::{Attached, CacheError, attached};

/// The cache's directory.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
}

/// One attachment at the time when its ADD succeeded.
#[derive(Debug, Clone)]
pub struct CacheEntry {
    pub network: NetworkName,
    /// The attachment and its arguments. The namespace is empty in files of older runtimes.
    pub attachment: Attachment,
    /// The configuration at that time; empty in files of the oldest form.
    pub config: Vec<u8>,
    result: Value,
}

/// The result of [`Runtime::del_cached`](crate::Runtime::del_cached) for a container. Both lists
/// are empty if the container is unknown.
#[derive(Debug, Clone, Default)]
pub struct Detached {
    /// The entries that were detached.
    pub entries: Vec<CacheEntry>,
    /// Files with this container's name whose contents cannot be used for a DEL.
    pub unreadable: Vec<PathBuf>,
}

/// Why an entry cannot be used.
pub(crate) enum Unusable {
    /// There is none.
    Absent,
    /// There is one, of another attachment with the same file name.
    Foreign,
    /// There is one, and it is invalid for this reason.
    Corrupt(String),
}

/// A result with its configuration and arguments, several times over.
const FILE_MAX_BYTES: u64 = 8 * 1024 * 1024;
/// Distinguishes Go's format from the older one.
const KIND: &str = "cniCacheV1";

// === impl Cache ===

impl Cache {
    pub(crate) fn new(cache_dir: &Path) -> Self {
        Self { dir: cache_dir.join("results") }
    }

    /// Ambiguous, since all three names may contain `-`: the fields inside decide.
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
        let temporary = self.dir.join(temporary_name(std::process::id(), serial));
        let written = create_exclusive(&temporary, PRIVATE);
        let renamed = written
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, path));
        if renamed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        renamed.and_then(|()| File::open(&self.dir)?.sync_all())
    }

    /// The entry of an attachment to the network of this name, whatever its configuration is now.
    pub(crate) fn find(&self, network: &NetworkName, attachment: &Attachment) -> Option<CacheEntry> {
        let (container_id, ifname) = (&attachment.container_id, &attachment.ifname);
        let entry = CacheEntry::of_file(&self.path(network, container_id, ifname)).ok()?;
        let is_it = entry.network == *network
            && entry.attachment.container_id == *container_id
            && entry.attachment.ifname == *ifname;
        is_it.then_some(entry)
    }

    pub(crate) fn read(&self, list: &ConfigList, attachment: &Attachment) -> Result<CacheEntry, Unusable> {
        let value = read_file(&self.path_for(list, attachment))?;
        if value.is_object() && value.get("kind").is_none() {
            // The oldest form: the bare result.
            return Ok(CacheEntry::of(list, attachment, value));
        }
        let entry = CacheEntry::decode(value).map_err(|problem| Unusable::Corrupt(problem.into()))?;
        let same = entry.network == list.name
            && entry.attachment.container_id == attachment.container_id
            && entry.attachment.ifname == attachment.ifname;
        if same { Ok(entry) } else { Err(Unusable::Foreign) }
    }

    pub(crate) fn remove(&self, list: &ConfigList, attachment: &Attachment) {
        let _ = fs::remove_file(self.path_for(list, attachment));
    }

    /// Every readable entry, of every network.
    pub(crate) fn entries(&self) -> Vec<CacheEntry> {
        self.paths(|_| true).iter().filter_map(|path| CacheEntry::of_file(path).ok()).collect()
    }

    /// Every readable entry of this container, and the unreadable files that may be its entries.
    pub(crate) fn entries_of(&self, container_id: &ContainerId) -> (Vec<CacheEntry>, Vec<PathBuf>) {
        let part = format!("-{container_id}-");
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        for path in self.paths(|name| name.contains(&part)) {
            match CacheEntry::of_file(&path) {
                Ok(entry) if entry.attachment.container_id == *container_id => entries.push(entry),
                // It was deleted meanwhile, or belongs to a container whose name contains this one.
                Ok(_) | Err(Unusable::Absent | Unusable::Foreign) => {}
                Err(Unusable::Corrupt(_)) => unreadable.push(path),
            }
        }
        (entries, unreadable)
    }

    /// Removes half-written files of dead writers. Files of live writers stay, and so do other
    /// runtimes', which have other names.
    pub(crate) fn tidy(&self) {
        for file in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let writer = writer_of(&file.file_name().to_string_lossy());
            if writer.is_some_and(|pid| matches!(ProcessIdentity::of(pid), Ok(None))) {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    fn paths(&self, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        // Files whose names start with a dot are half-written, and no entries.
        let wanted = |name: &str| !name.starts_with('.') && wanted(name);
        let files = files.filter(|file| wanted(&file.file_name().to_string_lossy()));
        let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
        paths.sort();
        paths
    }
}

/// The name of a file until it is complete.
fn temporary_name(writer: u32, serial: u64) -> String {
    format!(".{writer}.{serial}.tmp")
}

/// The process that writes, or wrote, a file with such a name.
fn writer_of(name: &str) -> Option<u32> {
    let (writer, serial) = name.strip_prefix('.')?.strip_suffix(".tmp")?.split_once('.')?;
    let writer = writer.parse().ok()?;
    (name == temporary_name(writer, serial.parse().ok()?)).then_some(writer)
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

    /// Parses a cache file of any runtime; returns the reason if it is invalid. The oldest form, a
    /// bare result, does not name its attachment, and is no entry by itself.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::decode(value).map_err(str::to_owned)
    }

    fn of_file(path: &Path) -> Result<Self, Unusable> {
        Self::decode(read_file(path)?).map_err(|problem| Unusable::Corrupt(problem.into()))
    }

    fn decode(value: Value) -> Result<Self, &'static str> {
        let Value::Object(object) = value else { return Err("it is no JSON object") };
        Self::of_object(object).ok_or("members are missing")
    }

    fn of_object(mut object: Map<String, Value>) -> Option<Self> {
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

    /// The configuration list of the attachment.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_half_written_files_of_dead_writers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        cache.tidy();
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let (dead, alive) = (dead.id(), std::process::id());
        let stays = [
            temporary_name(alive, 0),
            format!(".{dead}.tmp"),
            format!(".{dead}.0.tmp~"),
            format!(".0{dead}.0.tmp"),
            format!("net-{dead}.0.tmp"),
        ];
        fs::create_dir(&cache.dir).unwrap();
        for name in stays.iter().cloned().chain([0, 17].map(|serial| temporary_name(dead, serial))) {
            fs::write(cache.dir.join(name), "{").unwrap();
        }
        cache.tidy();
        let left =
            fs::read_dir(&cache.dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let left: std::collections::BTreeSet<String> = left.collect();
        assert_eq!(left, stays.into_iter().collect());
    }

    #[test]
    fn a_link_in_the_place_of_a_temporary_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        fs::create_dir(&cache.dir).unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "kept").unwrap();
        // Serials of this process are counted from 0; other tests may have taken some.
        for serial in 0..1000 {
            let temporary = cache.dir.join(temporary_name(std::process::id(), serial));
            std::os::unix::fs::symlink(&target, temporary).unwrap();
        }
        cache.replace(&cache.dir.join("entry"), b"{}").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        assert_eq!(fs::read(cache.dir.join("entry")).unwrap(), b"{}");
    }
}
