//! The built-in engine: a pause process of Russet in new network, IPC and UTS namespaces, and a
//! `/dev/shm` of its own. No image, no other daemon.
//!
//! Everything that it makes is found by the sandbox's ID below the run directory, after a death at
//! any step:
//!
//! | path | contents |
//! |---|---|
//! | `RUN/engine/ID/` | made first and removed last: while it exists, there is something to remove
//! |
//! | `RUN/engine/ID/shm` | a tmpfs of 64 MiB, unless the IPC namespace is the node's |
//! | `RUN/engine/ID/ipc` | the IPC namespace, mounted, if it is the sandbox's own and the network
//! is not |
//! | `RUN/engine/ID/process` | the process that holds the sandbox; written before that process
//! continues |
//! | `RUN/engine/ID/cgroup` | the control group of that process, if one was requested |
//! | `RUN/engine/ID/entered` | exists once a program was started inside, so that stopping looks for
//! such |
//! | `RUN/netns/ID` | the network namespace, mounted, unless it is the node's |

mod cgroup;
mod enter;
pub(crate) mod ipc;
pub(crate) mod members;
mod process;
pub(crate) mod shm;

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_linux::NetNs;
use russet_linux::namespaces::{self, NamespaceKinds};
use russet_linux::pause::{self, Paused};
use russet_linux::process::ProcessIdentity;

use crate::{Config, Engine, EngineError, EngineState, Made, SandboxId, sysctls};

pub use enter::EnterError;

pub(crate) use process::Record;

use members::Members;

/// The engine. It keeps nothing in memory: several processes may use the same directory.
#[derive(Debug, Clone)]
pub struct Builtin {
    run: PathBuf,
}

/// The pause process ends on SIGTERM at once, as soon as it is scheduled.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(10);
/// kubelet's value for pause processes: the OOM killer takes containers first, which can be
/// restarted.
const OOM_SCORE_ADJ: &str = "-998";

// === impl Builtin ===

impl Builtin {
    /// The engine of a run directory (`/run/russet/sandbox`), which a reboot clears.
    pub fn new(run: impl Into<PathBuf>) -> Self {
        Self { run: run.into() }
    }

    fn dirs(&self) -> PathBuf {
        self.run.join("engine")
    }

    pub(crate) fn dir(&self, id: &SandboxId) -> PathBuf {
        self.dirs().join(id.as_str())
    }

    pub(crate) fn netns_dir(&self) -> PathBuf {
        self.run.join("netns")
    }

    pub(crate) fn netns(&self, id: &SandboxId) -> PathBuf {
        self.netns_dir().join(id.as_str())
    }

    fn make(&self, id: &SandboxId, config: &Config) -> Result<Made, EngineError> {
        let sysctls = sysctls::plan(config).map_err(|error| failed("check sysctls of", id, error))?;
        let dir = self.dir(id);
        if !config.host_ipc {
            shm::mount(&dir).map_err(|error| failed("mount /dev/shm of", id, error))?;
        }
        let kinds = NamespaceKinds {
            network: !config.host_network,
            ipc: !config.host_ipc,
            uts: !config.host_network,
        };
        let inside = || {
            if kinds.uts && !config.hostname.is_empty() {
                let set = rustix::system::sethostname(config.hostname.as_bytes());
                set.map_err(|error| failed("set the host name of", id, io::Error::from(error)))?;
            }
            for (name, value) in &sysctls {
                let set = russet_linux::sysctl::write(name, value);
                set.map_err(|error| failed("set up", id, error))?;
            }
            if kinds.network {
                let named = NetNs::name_current_in(&self.netns_dir(), id.as_str());
                named.map_err(|error| failed("mount the network namespace of", id, error))?;
            }
            if kinds.ipc && !kinds.network {
                ipc::mount(&dir, "thread-self")
                    .map_err(|error| failed("mount the IPC namespace of", id, error))?;
            }
            let subject = CString::new(id.as_str()).map_err(|error| failed("name", id, error))?;
            pause::start(&subject).map_err(|error| failed("start the process of", id, error))
        };
        let started = namespaces::in_new(kinds, || Ok(inside()));
        let paused = started.map_err(|error| failed("make namespaces of", id, error))??;
        let pid = paused.pid();
        cgroup::join(&dir, id, &config.cgroup_parent, pid)?;
        self.settle(id, paused, kinds).map_err(|error| failed("record the process of", id, error))?;
        Ok(Made { netns: kinds.network.then(|| self.netns(id)), pid: Some(pid), resolv_conf: None })
    }

    /// From here on the process lives independently of this one.
    fn settle(&self, id: &SandboxId, paused: Paused, own: NamespaceKinds) -> io::Result<()> {
        protect(paused.pid());
        Record::for_process(paused.pid(), own)?.write(&self.dir(id))?;
        paused.release()
    }

    /// Ends the processes and releases what they held. Tries every step, even if an earlier one
    /// failed, with one exception: programs inside are found by the names of the sandbox's
    /// namespaces, so these stay while there are any.
    fn take_down(&self, id: &SandboxId) -> Result<(), EngineError> {
        // This reaps a process that has died by itself.
        let end = |holder: Option<ProcessIdentity>| {
            let ended = holder.map_or(Ok(()), |process| process.end(END_TIMEOUT));
            ended.map_err(|error| failed("end the process of", id, error))
        };
        self.take_down_by(id, end)
    }

    /// The same, with another way to end the holding process, whether it still lives or not.
    pub(crate) fn take_down_by(
        &self,
        id: &SandboxId,
        end: impl FnOnce(Option<ProcessIdentity>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let dir = self.dir(id);
        let record = Record::read(&dir).map_err(|error| failed("read the record of", id, error))?;
        let holder = record.as_ref().map(Record::identity).transpose();
        let holder = holder.map_err(|error| failed("look for the process of", id, error))?.flatten();
        let own = record.as_ref().map(Record::own).unwrap_or_default();
        let members = Members::find(&dir, &self.netns(id), holder, &own);
        let ended = end(holder);
        let left = cgroup::leave(&dir);
        let emptied = members.end(&dir).map_err(|error| failed("end programs in", id, error));
        let unnamed = emptied.and_then(|()| self.unname(id, &dir));
        let unmounted = shm::unmount(&dir).map_err(|error| failed("unmount /dev/shm of", id, error));
        ended.and(left).and(unnamed).and(unmounted)
    }

    fn unname(&self, id: &SandboxId, dir: &Path) -> Result<(), EngineError> {
        let network = NetNs::delete_named_in(&self.netns_dir(), id.as_str())
            .map_err(|error| failed("unmount the network namespace of", id, error));
        let ipc = ipc::unmount(dir).map_err(|error| failed("unmount the IPC namespace of", id, error));
        network.map(drop).and(ipc)
    }

    /// The directory that exists as long as there is something to remove.
    pub(crate) fn make_dir(&self, id: &SandboxId) -> Result<(), EngineError> {
        let made = std::fs::create_dir_all(self.dirs()).and_then(|()| process::create_private(&self.dir(id)));
        made.map_err(|error| failed("make the directory of", id, error))
    }

    pub(crate) fn remove_dir(&self, id: &SandboxId) -> Result<(), EngineError> {
        match std::fs::remove_dir_all(self.dir(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove the directory of", id, error))
            }
            _ => Ok(()),
        }
    }
}

impl Engine for Builtin {
    fn name(&self) -> &'static str {
        "built-in"
    }

    fn create(&self, id: &SandboxId, config: &Config, _dir: &Path) -> Result<Made, EngineError> {
        self.make_dir(id)?;
        let made = self.make(id, config);
        if made.is_err() {
            // The first error is the cause; `list` finds what this leaves.
            let _ = self.remove(id);
        }
        made
    }

    fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.take_down(id)
    }

    fn remove(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.take_down(id)?;
        self.remove_dir(id)
    }

    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError> {
        let dir = self.dir(id);
        let record = Record::read(&dir).map_err(|error| failed("read the record of", id, error))?;
        let Some(record) = record else {
            let there = dir.exists() || self.netns(id).exists();
            return Ok(if there { EngineState::Stopped } else { EngineState::Gone });
        };
        let living = record.living().map_err(|error| failed("look for the process of", id, error))?;
        Ok(living.map_or(EngineState::Stopped, |process| EngineState::Running { pid: Some(process.pid) }))
    }

    fn list(&self) -> Result<Vec<SandboxId>, EngineError> {
        let mut found = Vec::new();
        for dir in [self.dirs(), self.netns_dir()] {
            let names = process::names_in(&dir);
            let names = names.map_err(|error| EngineError::new("list", dir.display().to_string(), error))?;
            found.extend(names.iter().filter_map(|name| name.parse::<SandboxId>().ok()));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// Only a process that may raise its own score can lower another's; a sandbox without the score
/// works, too.
pub(crate) fn protect(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE_ADJ);
}

pub(crate) fn failed(
    operation: &'static str,
    id: &SandboxId,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> EngineError {
    EngineError::new(operation, format!("sandbox {id}"), source)
}

#[cfg(test)]
mod tests;
