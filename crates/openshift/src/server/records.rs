//! The sandboxes that the server works on or has attached, for its next start: an address is
//! allocated only after its sandbox has a record, so that everything that a killed agent left can
//! be undone. The records are kept below `/run`, because no sandbox outlives the boot. Addresses
//! do, which is why the boot ID is written beside them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use russet_addr::ContainerId;
use russet_linux::file::write_atomic;
use russet_linux::host::boot_id;

use super::request::Pod;

/// The records of one node.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    boot: PathBuf,
}

/// When the allocated addresses were allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// A server of ours allocated them in an earlier boot, so none is in use.
    Earlier,
    /// They may be in use.
    This,
}

const DIR: &str = "openshift-pods";
const BOOT: &str = "openshift-boot";
/// A record is a path and two names.
const RECORD_MAX_BYTES: u64 = 64 * 1024;

// === impl Records ===

impl Records {
    /// Sandboxes in `run_dir`, which a reboot removes, and the boot ID in `state_dir`.
    pub fn new(run_dir: &Path, state_dir: &Path) -> Self {
        Self { dir: run_dir.join(DIR), boot: state_dir.join(BOOT) }
    }

    /// Whether a server of ours ever allocated addresses on this node.
    pub fn were_ever_kept(&self) -> bool {
        self.boot.exists()
    }

    /// Returns in which boot addresses were allocated last, and records the current boot.
    pub fn boot(&self) -> io::Result<Boot> {
        let now = boot_id()?;
        let seen = match fs::read_to_string(&self.boot) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match seen {
            Some(seen) if seen == now.trim() => return Ok(Boot::This),
            Some(seen) if !seen.is_empty() => return Ok(Boot::Earlier),
            // Unknown: a stock server may have allocated them to pods that run.
            _ => {}
        }
        self.settle_boot()?;
        Ok(Boot::This)
    }

    /// To be called when everything of the earlier boot is removed.
    pub fn settle_boot(&self) -> io::Result<()> {
        if let Some(dir) = self.boot.parent() {
            fs::create_dir_all(dir)?;
        }
        write_atomic(&self.boot, boot_id()?.trim().as_bytes()).map_err(io::Error::other)
    }

    /// Records that a sandbox is worked on. Not synced, because the record is lost at reboot
    /// anyway.
    pub fn put(&self, pod: &Pod) -> io::Result<()> {
        russet_linux::file::private_dir(&self.dir)?;
        let (path, unfinished) = (self.path(&pod.sandbox), self.dir.join(format!(".{}", pod.sandbox)));
        let text = format!("{}\n{}\n{}\n", pod.netns, pod.namespace, pod.name);
        russet_linux::file::replace_unsynced(&path, &unfinished, text.as_bytes())
    }

    /// Whether anything was begun for a sandbox. True if that cannot be determined.
    pub fn has(&self, sandbox: &ContainerId) -> bool {
        self.path(sandbox).try_exists().unwrap_or(true)
    }

    /// Removes the record of a sandbox.
    pub fn remove(&self, sandbox: &ContainerId) -> io::Result<()> {
        match fs::remove_file(self.path(sandbox)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All records. One that cannot be read has only its sandbox's ID.
    pub fn all(&self) -> io::Result<Vec<Pod>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut pods = Vec::new();
        for entry in entries {
            let entry = entry?;
            let sandbox = entry.file_name().into_string().ok().and_then(|name| ContainerId::new(name).ok());
            let Some(sandbox) = sandbox else { continue };
            let text = read(&entry.path()).unwrap_or_default();
            let mut lines = text.lines().map(str::to_owned);
            let mut next = || lines.next().unwrap_or_default();
            pods.push(Pod { netns: next(), namespace: next(), name: next(), sandbox });
        }
        Ok(pods)
    }

    fn path(&self, sandbox: &ContainerId) -> PathBuf {
        self.dir.join(sandbox.as_str())
    }
}

/// The namespace and the name of each sandbox's pod, for verbs that name pods.
pub fn recorded_pods(
    run_dir: &Path,
    state_dir: &Path,
) -> io::Result<BTreeMap<ContainerId, (String, String)>> {
    let pods = Records::new(run_dir, state_dir).all()?;
    let named = pods.into_iter().filter(|pod| !pod.name.is_empty());
    Ok(named.map(|pod| (pod.sandbox, (pod.namespace, pod.name))).collect())
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    fs::File::open(path)?.take(RECORD_MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records_below(root: &Path) -> Records {
        Records::new(&root.join("run/russet"), &root.join("var/lib/russet"))
    }

    #[test]
    fn records_are_read_by_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let records = records_below(root.path());
        assert_eq!(records.all().unwrap(), []);
        let pod = |id: &str| Pod {
            sandbox: ContainerId::new(id).unwrap(),
            netns: "/run/netns/a".to_owned(),
            namespace: "ns1".to_owned(),
            name: "web".to_owned(),
        };
        records.put(&pod("a")).unwrap();
        records.put(&pod("b")).unwrap();
        records.remove(&pod("b").sandbox).unwrap();
        records.remove(&pod("b").sandbox).unwrap();
        assert_eq!(records.all().unwrap(), [pod("a")]);
        fs::write(records.path(&pod("a").sandbox), b"\xff").unwrap();
        fs::write(records.dir.join(".c"), "half").unwrap();
        let found = records.all().unwrap();
        assert_eq!((found.len(), found[0].sandbox.as_str(), found[0].netns.as_str()), (1, "a", ""));
    }

    #[test]
    fn addresses_count_as_of_an_earlier_boot_only_if_that_is_known() {
        // cni-runtime.md appendix A.5: node reboot
        let root = tempfile::tempdir().unwrap();
        let records = records_below(root.path());
        assert_eq!(records.boot().unwrap(), Boot::This, "a stock server's pods may be running");
        assert_eq!(records.boot().unwrap(), Boot::This);
        fs::write(&records.boot, "another boot\n").unwrap();
        assert_eq!(records.boot().unwrap(), Boot::Earlier);
        assert_eq!(records.boot().unwrap(), Boot::Earlier, "until what it left is gone");
        records.settle_boot().unwrap();
        assert_eq!(records.boot().unwrap(), Boot::This);
    }
}
