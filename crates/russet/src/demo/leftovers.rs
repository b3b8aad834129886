//! Leftovers of a demo: recorded while it runs, so that the next demo can remove them after a kill.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_linux::process::{ProcessIdentity, has_ended};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, pidfd_send_signal};

use super::DemoError;
use super::lab::{DIR, NAMESPACE_PREFIX};

/// A running demo holds this lock; it is beside the directory, because the directory is removed.
const LOCK: &str = "/run/russet-demo.lock";
/// How long SIGKILL may take on a busy machine.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// One demo at a time: the names of its namespaces are fixed.
pub fn lock() -> Result<fs::File, DemoError> {
    let failed = |source| DemoError::io(format!("lock {LOCK}"), source);
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(LOCK)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DemoError::Refused(format!(
            "another demo is running (it holds {LOCK}); wait for it, or end it with Ctrl-C"
        ))),
        Err(error) => Err(failed(error.into())),
    }
}

fn kept_marker() -> PathBuf {
    Path::new(DIR).join("kept")
}

fn processes_file() -> PathBuf {
    Path::new(DIR).join("processes")
}

/// Makes the demo's directory, for root only.
pub fn create_dir() -> Result<(), DemoError> {
    let create = fs::DirBuilder::new().mode(0o700).recursive(true).create(DIR);
    create.map_err(|source| DemoError::io(format!("create {DIR}"), source))
}

/// Records that the demo must stay.
pub fn mark_kept() -> Result<(), DemoError> {
    let marker = kept_marker();
    fs::write(&marker, "").map_err(|source| DemoError::io(format!("write {}", marker.display()), source))
}

/// Fails if a kept demo exists; only `--clean` removes one.
pub fn refuse_if_kept() -> Result<(), DemoError> {
    if kept_marker().exists() {
        return Err(DemoError::Refused(
            "a kept demo is there; remove it first with `russet demo --clean`".to_owned(),
        ));
    }
    Ok(())
}

/// Records a child, so that another process can find it again.
pub fn record_process(pid: u32) -> Result<(), DemoError> {
    let path = processes_file();
    let failed = |source| DemoError::io(format!("write {}", path.display()), source);
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
    let identity = ProcessIdentity::of(pid).map_err(failed)?;
    identity.map_or(Ok(()), |of| writeln!(file, "{} {}", of.pid, of.started_ticks).map_err(failed))
}

/// Removes processes, namespaces and files of an earlier demo. Returns true if there were any.
pub fn remove() -> Result<bool, DemoError> {
    let processes = end_processes();
    let namespaces = delete_namespaces()?;
    super::datastore::release_borrowed()?;
    let files = match fs::remove_dir_all(DIR) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(source) => return Err(DemoError::io(format!("remove {DIR}"), source)),
    };
    Ok(processes || namespaces || files)
}

/// Kills the recorded processes, if their pids are still theirs, and waits until they have ended.
fn end_processes() -> bool {
    let recorded = fs::read_to_string(processes_file()).unwrap_or_default();
    let recorded = recorded.lines().filter_map(|line| {
        let (pid, started_ticks) = line.split_once(' ')?;
        Some(ProcessIdentity { pid: pid.parse().ok()?, started_ticks: started_ticks.parse().ok()? })
    });
    let held: Vec<OwnedFd> = recorded.filter_map(|process| process.hold().ok().flatten()).collect();
    for pidfd in &held {
        // At worst it has ended already.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
    for pidfd in &held {
        // Namespaces and files are removed even if the process does not end in time.
        let _ = has_ended(pidfd, DEATH_TIMEOUT);
    }
    !held.is_empty()
}

fn delete_namespaces() -> Result<bool, DemoError> {
    let entries = match fs::read_dir("/run/netns") {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(DemoError::io("read /run/netns", source)),
    };
    let mut any = false;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(NAMESPACE_PREFIX) {
            russet_linux::NetNs::delete_named(&name)
                .map_err(|e| DemoError::step(format!("delete namespace {name}"), e))?;
            any = true;
        }
    }
    Ok(any)
}
