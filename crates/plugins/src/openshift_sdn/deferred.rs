//! DELs that could not be sent because the server was down. The runtime has deleted the pod; the
//! next request that finds the server running sends the DEL, and an ADD for the same interface
//! sends it first. The DELs are stored below `/run`, because the state that they free does not
//! survive a reboot either.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use russet_cni_spec::CniError;
use russet_cni_spec::relay::RelayRequest;
use russet_linux::FileLock;
use russet_linux::file::write_atomic_with_mode;
use russet_wiring::Target;

use super::server::{RequestFailure, Server};

/// The directory of deferred DELs.
pub struct SavedDels {
    dir: PathBuf,
}

const DIR: &str = "run/russet/openshift-sdn";
const LOCK: &str = ".lock";
/// More pods than any node has; beyond it the runtime has to repeat its DEL.
const SAVED_MAX: usize = 4096;
/// How many saved DELs of other pods a request sends, and the time limit for that: its own caller
/// waits.
const SENT_AT_ONCE_MAX: usize = 16;
const SENDING_MAX: Duration = Duration::from_secs(2);
/// How long an ADD waits for another request that is sending saved DELs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

// === impl SavedDels ===

impl SavedDels {
    /// The directory of the machine whose files lie below `root`.
    pub fn below(root: &Path) -> Self {
        Self { dir: root.join(DIR) }
    }

    /// Saves a DEL for later.
    pub fn save(&self, target: &Target, body: &[u8]) -> Result<(), CniError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|error| failed("make", &self.dir, error))?;
        if self.names()?.len() >= SAVED_MAX {
            let details = format!("{SAVED_MAX} others wait for it already");
            return Err(CniError::try_again_later("the OpenShift SDN network process is down", details));
        }
        let path = self.path(target);
        write_atomic_with_mode(&path, body, 0o600)
            .map_err(|error| CniError::io(format!("keep the DEL in {}", path.display()), error))
    }

    /// Removes a saved DEL that has been executed meanwhile.
    pub fn forget(&self, target: &Target) -> Result<(), CniError> {
        remove(&self.path(target))
    }

    /// Sends the DEL that was saved for the target's names, before the names are used again.
    pub fn send_own(&self, server: &Server, target: &Target, end: Instant) -> Result<(), CniError> {
        let path = self.path(target);
        if !path.exists() {
            return Ok(());
        }
        let wait = Instant::now() + LOCK_TIMEOUT;
        let locked = FileLock::exclusive(self.dir.join(LOCK), wait.min(end));
        let _lock = locked
            .map_err(|error| CniError::try_again_later("an earlier DEL is still in progress", error))?;
        match self.send(server, &path, end).map_err(RequestFailure::into_error) {
            Ok(()) => Ok(()),
            Err(mut error) => {
                error.msg = format!("an earlier DEL of this interface cannot be finished: {}", error.msg);
                Err(error)
            }
        }
    }

    /// Sends a few saved DELs after the server has answered. Those that fail are tried again by the
    /// next request.
    pub fn send_some(&self, server: &Server) {
        let Ok(names) = self.names() else { return };
        if names.is_empty() {
            return;
        }
        let end = Instant::now() + SENDING_MAX;
        let Ok(Some(_lock)) = FileLock::try_exclusive(self.dir.join(LOCK)) else { return };
        for name in names.iter().take(SENT_AT_ONCE_MAX) {
            let Err(request_failure) = self.send(server, &self.dir.join(name), end) else { continue };
            tracing::warn!(error = %request_failure.error(), name, "a deferred DEL waits on");
            // A refused DEL does not hold up those behind it.
            if matches!(request_failure, RequestFailure::NoListener(_)) || Instant::now() >= end {
                return;
            }
        }
    }

    fn send(&self, server: &Server, path: &Path, end: Instant) -> Result<(), RequestFailure> {
        let body = match read(path) {
            Ok(body) => body,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(RequestFailure::Failed(failed("read", path, error))),
        };
        server.send(&body, end)?;
        remove(path).map_err(RequestFailure::Failed)
    }

    fn names(&self) -> Result<Vec<String>, CniError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("list", &self.dir, error)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // Skips the lock and unfinished files.
        Ok(names.filter(|name| !name.starts_with('.')).collect())
    }

    /// Neither container IDs nor interface names contain a slash, and an ID begins with a letter or
    /// a digit.
    fn path(&self, target: &Target) -> PathBuf {
        self.dir.join(format!("{}+{}", target.id.container, target.id.ifname))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let limit = u64::try_from(RelayRequest::MAX_BYTES).unwrap_or(u64::MAX);
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove(path: &Path) -> Result<(), CniError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

fn failed(operation: &str, path: &Path, error: io::Error) -> CniError {
    CniError::io(format!("{operation} {}", path.display()), error)
}
