//! The flannel daemon that runs on this node: found by its name among the processes of this network namespace, and asked to end. In a container that takes the
//! host's process namespace.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use russet_linux::process;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::TakeoverError;

/// A running daemon.
#[derive(Debug)]
pub struct Predecessor {
    /// Its process ID.
    pub pid: u32,
    /// The process itself: a number may be another one's by the time that it is used.
    handle: OwnedFd,
}

/// The names under which the kernel knows flannel's daemon, and ours.
const FLANNELD: &str = "flanneld";
const RUSSET: &str = "russet";
/// How long a daemon may take for each of its signals. v0.20.0 hangs on a first one that comes right after its start, and the second one kills it.
const PATIENCE: Duration = Duration::from_secs(5);
/// After two of them nothing that can end is left.
const SIGNALS: u32 = 2;

// === impl Predecessor ===

impl Predecessor {
    /// All that there are.
    pub fn all() -> Result<Vec<Self>, TakeoverError> {
        let failed = |what| move |source| TakeoverError::Processes { what, source };
        let ours =
            namespace(Path::new("/proc/thread-self")).map_err(failed("read this process's namespace"))?;
        let entries = fs::read_dir("/proc").map_err(failed("list processes"))?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut found = Vec::new();
        for pid in pids.filter(|pid| *pid != std::process::id()) {
            if !is_flanneld(pid, ours) {
                continue;
            }
            let handle = match Pid::from_raw(pid.cast_signed()).map(|it| pidfd_open(it, PidfdFlags::empty()))
            {
                Some(Ok(handle)) => handle,
                None | Some(Err(Errno::SRCH)) => continue,
                Some(Err(errno)) => {
                    return Err(TakeoverError::Processes { what: "open a process", source: errno.into() });
                }
            };
            // Only what is still there now is what the handle stands for.
            if is_flanneld(pid, ours) {
                found.push(Self { pid, handle });
            }
        }
        Ok(found)
    }

    /// Asks it to end, twice if need be, and waits until it has. Blocks.
    pub fn end(&self) -> Result<(), TakeoverError> {
        let failed = |source| TakeoverError::Processes { what: "end flanneld", source };
        for _ in 0..SIGNALS {
            match pidfd_send_signal(&self.handle, Signal::TERM) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(()),
                Err(errno) => return Err(failed(errno.into())),
            }
            if process::has_ended(&self.handle, PATIENCE).map_err(failed)? {
                return Ok(());
            }
        }
        Err(TakeoverError::Stays(self.pid))
    }
}

/// Whether a process is a flannel daemon that works on our network. One that has ended and was not waited for is none.
fn is_flanneld(pid: u32, ours: (u64, u64)) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
    let name = read("comm");
    let named = match name.trim_ascii_end() {
        name if name == FLANNELD.as_bytes() => true,
        name if name == RUSSET.as_bytes() => {
            read("cmdline").split(|byte| *byte == 0).nth(1) == Some(FLANNELD.as_bytes())
        }
        _ => false,
    };
    // A zombie has no namespaces any more.
    named && namespace(&process).is_ok_and(|namespace| namespace == ours)
}

/// The device and inode of a process's network namespace.
fn namespace(process: &Path) -> std::io::Result<(u64, u64)> {
    let namespace = fs::metadata(process.join("ns/net"))?;
    Ok((namespace.dev(), namespace.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_nobodys_predecessor() {
        let ours = namespace(Path::new("/proc/thread-self")).unwrap();
        assert!(!is_flanneld(std::process::id(), ours));
        assert!(Predecessor::all().unwrap().iter().all(|it| it.pid != std::process::id()));
    }
}
