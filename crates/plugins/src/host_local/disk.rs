//! The directory of a network, shared with the Go plugin: one file for each allocated address,
//! `last_reserved_ip.<set>`, and `lock`, which both plugins take with flock(2) before they read or
//! write (cni-runtime.md section 5.1).
//!
//! A file is written completely under another name and then renamed, so that an existing file
//! always names its holder. An empty file was left by a Go plugin that was killed, or whose machine
//! lost power, between creating and writing it; since both happen under the lock, the holder of the
//! lock may reuse it. Nothing is flushed: after a power failure no container exists that could hold
//! an address.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use russet_cni_spec::{CniError, Target};
use russet_linux::FileLock;
use russet_linux::file::replace_unsynced;

/// A network's directory, locked.
#[derive(Debug)]
pub struct NetworkDir {
    dir: PathBuf,
    _lock: FileLock,
}

/// An address file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAddress {
    pub address: IpAddr,
    pub holder: Holder,
    name: String,
}

/// The holder of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// None: the file is empty.
    None,
    /// A container; old plugins recorded no interface.
    Container(String),
    /// An interface of a container.
    Interface(String, String),
}

/// Thousands of plugins may queue for one lock (plugins#561), and runtimes give up after one to
/// four minutes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(40);
/// Files of the directory that are no addresses.
const LAST_PREFIX: &str = "last_reserved_ip.";
const LOCK: &str = "lock";
/// A file is written under this name before it is renamed. Only the holder of the lock writes it.
const UNFINISHED: &str = ".russet-unfinished";
/// The largest file that is read: a container ID is not longer than a file name.
const CONTENT_MAX_BYTES: u64 = 4096;

// === impl NetworkDir ===

impl NetworkDir {
    /// Locks the directory, and creates it if necessary.
    pub fn open(dir: PathBuf) -> Result<Self, CniError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&dir)
            .map_err(|error| io_error("make", &dir, error))?;
        Self::lock(dir)
    }

    /// Locks the directory; `None` if it does not exist, so that no address is held.
    pub fn open_existing(dir: PathBuf) -> Result<Option<Self>, CniError> {
        match fs::metadata(&dir) {
            Ok(_) => Self::lock(dir).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("look at", &dir, error)),
        }
    }

    fn lock(dir: PathBuf) -> Result<Self, CniError> {
        let locked = FileLock::exclusive(dir.join(LOCK), Instant::now() + LOCK_TIMEOUT);
        let lock = locked.map_err(|error| {
            let msg = "host-local: the network's lock cannot be had";
            if error.is_timeout() { CniError::try_again_later(msg, error) } else { CniError::io(msg, error) }
        })?;
        Ok(Self { dir, _lock: lock })
    }

    /// All addresses that have a file.
    pub fn held(&self) -> Result<Vec<HeldAddress>, CniError> {
        let failed = |error| io_error("list", &self.dir, error);
        let mut held = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
            let Ok(address) = name.parse::<IpAddr>() else { continue };
            let Some(holder) = self.holder(&name)? else { continue };
            held.push(HeldAddress { address: address.to_canonical(), holder, name });
        }
        Ok(held)
    }

    /// `None` if the file does not exist.
    fn holder(&self, name: &str) -> Result<Option<Holder>, CniError> {
        let path = self.dir.join(name);
        match read(&path) {
            Ok(text) => Ok(Some(Holder::parse(&text))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", &path, error)),
        }
    }

    /// The address that the set allocated last. An unreadable file only means that the search
    /// starts at the beginning of the range.
    pub fn last(&self, set: usize) -> Option<IpAddr> {
        let text = read(&self.dir.join(format!("{LAST_PREFIX}{set}"))).ok()?;
        text.trim().parse::<IpAddr>().ok().map(|address| address.to_canonical())
    }

    /// Allocates a free address to the target, and records that `set` allocated it last.
    pub fn reserve(&self, address: IpAddr, set: usize, target: &Target) -> Result<(), CniError> {
        // First, so that a failure loses no address.
        self.put(&format!("{LAST_PREFIX}{set}"), &address.to_string())?;
        self.put(&address.to_string(), &content(target))
    }

    /// Releases addresses. Continues after an error, and returns the first one.
    pub fn release<'h>(&self, held: impl IntoIterator<Item = &'h HeldAddress>) -> Result<(), CniError> {
        let mut outcome = Ok(());
        for HeldAddress { name, .. } in held {
            outcome = outcome.and(self.remove(name));
        }
        outcome
    }

    /// Releases an address that was just reserved.
    pub fn unreserve(&self, address: IpAddr) -> Result<(), CniError> {
        self.remove(&address.to_string())
    }

    fn put(&self, name: &str, content: &str) -> Result<(), CniError> {
        let (unfinished, path) = (self.dir.join(UNFINISHED), self.dir.join(name));
        replace_unsynced(&path, &unfinished, content.as_bytes())
            .map_err(|error| io_error("write", &path, error))
    }

    fn remove(&self, name: &str) -> Result<(), CniError> {
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", &path, error)),
            _ => Ok(()),
        }
    }
}

// === impl HeldAddress ===

impl HeldAddress {
    /// The addresses that are held.
    pub fn taken(held: &[Self]) -> BTreeSet<IpAddr> {
        held.iter().filter(|held| held.holder != Holder::None).map(|held| held.address).collect()
    }

    /// The addresses that the target holds. Files without an interface, written by old plugins,
    /// count only if no file names the target's interface.
    pub fn of_target<'h>(held: &'h [Self], target: &Target) -> Vec<&'h Self> {
        let (id, ifname) = (target.id.container.as_str(), target.id.ifname.as_str());
        let exact = |held: &&Self| matches!(&held.holder, Holder::Interface(c, i) if c == id && i == ifname);
        let found: Vec<&Self> = held.iter().filter(exact).collect();
        if !found.is_empty() {
            return found;
        }
        held.iter().filter(|held| matches!(&held.holder, Holder::Container(c) if c == id)).collect()
    }
}

// === impl Holder ===

impl Holder {
    fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.split_once('\n') {
            Some((id, ifname)) => Self::Interface(id.trim_end().to_owned(), ifname.trim_start().to_owned()),
            None if text.is_empty() => Self::None,
            None => Self::Container(text.to_owned()),
        }
    }
}

/// Without a final newline, like the Go plugin.
fn content(target: &Target) -> String {
    format!("{}\r\n{}", target.id.container, target.id.ifname)
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(CONTENT_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn io_error(operation: &str, path: &Path, error: io::Error) -> CniError {
    CniError::io(format!("host-local: {operation} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_content_names_the_holder() {
        // cni-runtime.md section 5.1; old plugins wrote the container alone
        let interface = Holder::Interface("abc".to_owned(), "eth0".to_owned());
        for text in ["abc\r\neth0", "abc\neth0", " abc\r\neth0\r\n"] {
            assert_eq!(Holder::parse(text), interface, "{text:?}");
        }
        assert_eq!(Holder::parse("abc"), Holder::Container("abc".to_owned()));
        for text in ["", "\n", " \r\n"] {
            assert_eq!(Holder::parse(text), Holder::None, "{text:?}");
        }
    }
}
