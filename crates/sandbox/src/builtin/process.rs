//! The recorded process that holds a sandbox: its pid and its start time, and the boot in which
//! they are valid.

use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use russet_linux::host::boot_id;
use russet_linux::namespaces;
use russet_linux::process::ProcessIdentity;
use serde::{Deserialize, Serialize};

/// The contents of `RUN/engine/ID/process`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    boot_id: String,
    pid: u32,
    started_ticks: u64,
    /// Which of its namespaces were made for it. Empty in records of versions that did not write
    /// it.
    #[serde(default)]
    own: Kinds,
}

/// Kinds of namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kinds {
    network: bool,
    ipc: bool,
    uts: bool,
}

const FILE: &str = "process";
const NEW_FILE: &str = ".process.new";

// === impl Record ===

impl Record {
    /// The record of a live process with these kinds of namespaces of its own.
    pub(crate) fn for_process(pid: u32, own: namespaces::NamespaceKinds) -> io::Result<Self> {
        let identity = ProcessIdentity::of(pid)?.ok_or_else(|| io::Error::other("it has ended already"))?;
        let own = Kinds { network: own.network, ipc: own.ipc, uts: own.uts };
        Ok(Self { boot_id: boot_id()?, pid, started_ticks: identity.started_ticks, own })
    }

    /// The kinds of its own namespaces, by their names in `/proc/PID/ns`.
    pub(super) fn own(&self) -> Vec<&'static str> {
        let kinds = [(self.own.network, "net"), (self.own.ipc, "ipc"), (self.own.uts, "uts")];
        kinds.into_iter().filter(|(is_own, _)| *is_own).map(|(_, kind)| kind).collect()
    }

    /// Writes it atomically. Not synced: it is meaningless after a loss of power.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        russet_linux::file::replace_unsynced(&dir.join(FILE), &dir.join(NEW_FILE), &bytes)
    }

    /// The record, if there is one. An unreadable record is the result of a loss of power, and
    /// counts as none.
    pub(crate) fn read(dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(dir.join(FILE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The process, alive or not, if it is one of this boot.
    pub(super) fn identity(&self) -> io::Result<Option<ProcessIdentity>> {
        let identity = ProcessIdentity { pid: self.pid, started_ticks: self.started_ticks };
        Ok((self.boot_id == boot_id()?).then_some(identity))
    }

    /// The process, if it lives.
    pub(super) fn living(&self) -> io::Result<Option<ProcessIdentity>> {
        let Some(identity) = self.identity()? else { return Ok(None) };
        Ok(identity.is_alive()?.then_some(identity))
    }
}

/// Makes a directory that must not exist yet, for root only.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)
}

/// The names in a directory; empty if it does not exist.
pub(super) fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_boot_identifies_no_process() {
        // cni-runtime.md appendix A.5: the identity of the boot is stored with each record
        let dir = tempfile::tempdir().unwrap();
        let record = Record::for_process(std::process::id(), namespaces::NamespaceKinds::default()).unwrap();
        record.write(dir.path()).unwrap();
        let read = Record::read(dir.path()).unwrap().unwrap();
        assert_eq!(read, record);
        assert_eq!(read.living().unwrap().map(|it| it.pid), Some(std::process::id()));
        let earlier = Record { boot_id: "another".to_owned(), ..record.clone() };
        assert_eq!(earlier.living().unwrap(), None);
        let other = Record { started_ticks: record.started_ticks + 1, ..record };
        assert_eq!(other.living().unwrap(), None, "the number was given again");
    }

    #[test]
    fn half_a_record_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), None);
        std::fs::write(dir.path().join(FILE), "{\"boot_id\":").unwrap();
        assert_eq!(Record::read(dir.path()).unwrap(), None);
    }
}
