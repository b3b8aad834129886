//! The flannel daemon that runs on this node: it is found by its name among the processes of this
//! network namespace, and asked to end. In a container this needs the host's PID namespace. Called
//! by `takeover`, and by `run` at an ordinary start, which warns of it.

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
    /// Its name, as `ps` shows it.
    pub name: String,
    /// Refers to the process itself, because its ID may be reused.
    handle: OwnedFd,
}

/// Prefixes of the names of flannel's executables and of ours: `flanneld-0.28.9` is one, too.
const FLANNELD: &str = "flanneld";
const RUSSET: &str = "russet";
/// Arguments of a process that is not a daemon: it prints docker's options, or runs a check.
const NO_DAEMON: [&str; 2] = ["docker-opts", "takeover-check"];
/// Wait for a daemon to end after each signal. v0.20.0 hangs on a first signal right after its
/// start, and a second one kills it.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A daemon that survives two signals will not end.
const SIGNALS: u32 = 2;

// === impl Predecessor ===

impl Predecessor {
    /// All running daemons.
    pub fn all() -> Result<Vec<Self>, TakeoverError> {
        let failed = |what| move |source| TakeoverError::Processes { what, source };
        let ours =
            namespace(Path::new("/proc/thread-self")).map_err(failed("read this process's namespace"))?;
        let entries = fs::read_dir("/proc").map_err(failed("list processes"))?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut found = Vec::new();
        for pid in pids.filter(|pid| *pid != std::process::id()) {
            let Some(name) = flanneld(pid, ours) else { continue };
            let handle = match Pid::from_raw(pid.cast_signed()).map(|it| pidfd_open(it, PidfdFlags::empty()))
            {
                Some(Ok(handle)) => handle,
                None | Some(Err(Errno::SRCH)) => continue,
                Some(Err(errno)) => {
                    return Err(TakeoverError::Processes { what: "open a process", source: errno.into() });
                }
            };
            // Checked again after opening the handle, because the ID may have been reused.
            if flanneld(pid, ours).is_some() {
                found.push(Self { pid, name, handle });
            }
        }
        Ok(found)
    }

    /// Sends one or two signals and waits until the process has ended. Blocks.
    pub fn end(&self) -> Result<(), TakeoverError> {
        let failed = |source| TakeoverError::Processes { what: "end flanneld", source };
        for _ in 0..SIGNALS {
            match pidfd_send_signal(&self.handle, Signal::TERM) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(()),
                Err(errno) => return Err(failed(errno.into())),
            }
            if process::has_ended(&self.handle, SIGNAL_TIMEOUT).map_err(failed)? {
                return Ok(());
            }
        }
        Err(TakeoverError::Stays(self.pid))
    }
}

/// The name of a process that is a flannel daemon in our network namespace. Zombies do not count.
fn flanneld(pid: u32, ours: (u64, u64)) -> Option<String> {
    let process = Path::new("/proc").join(pid.to_string());
    let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let comm = text(read("comm").trim_ascii_end());
    let exe = fs::read_link(process.join("exe")).ok();
    let exe = exe.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let words: Vec<String> = read("cmdline").split(|byte| *byte == 0).map(text).collect();
    // A zombie has no namespaces.
    let here = || namespace(&process).is_ok_and(|namespace| namespace == ours);
    (is_daemon(&comm, exe.as_deref(), &words) && here()).then(|| comm.escape_debug().to_string())
}

/// Whether a process is a flannel daemon: by its kernel name, which has at most 15 bytes, the name
/// of its executable, which may be unreadable, and its command line.
fn is_daemon(comm: &str, exe: Option<&str>, words: &[String]) -> bool {
    // A script called `flanneld-...` is a process of its interpreter.
    let flannels = comm == FLANNELD || exe.unwrap_or(comm).starts_with(FLANNELD);
    let ours = comm.starts_with(RUSSET) || exe.is_some_and(|exe| exe.starts_with(RUSSET));
    let daemon = flannels || ours && words.get(1).is_some_and(|verb| verb == FLANNELD);
    let other = |word: &String| {
        let word = word.trim_start_matches('-');
        NO_DAEMON.contains(&word.split_once('=').map_or(word, |(name, _)| name))
    };
    daemon && !words.iter().skip(1).any(other)
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
    fn this_process_is_not_its_own_predecessor() {
        let ours = namespace(Path::new("/proc/thread-self")).unwrap();
        assert_eq!(flanneld(std::process::id(), ours), None);
        assert!(Predecessor::all().unwrap().iter().all(|it| it.pid != std::process::id()));
    }

    #[test]
    fn a_daemon_is_recognised_by_the_prefix_of_its_name() {
        let is = |comm: &str, exe: &str, line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            is_daemon(comm, Some(exe).filter(|exe| !exe.is_empty()), &words)
        };
        for (comm, exe, line) in [
            ("flanneld", "flanneld", "/opt/bin/flanneld -iface=eth0"),
            ("flanneld-0.28.9", "flanneld-0.28.9", "/opt/flanneld-0.28.9 -ip-masq"),
            ("flanneld-v0.28.", "flanneld-v0.28.9-amd64", "/opt/flanneld-v0.28.9-amd64"),
            ("flanneld-0.28.9", "", "/opt/flanneld-0.28.9"),
            ("kube-flannel", "flanneld (deleted)", "kube-flannel"),
            ("russet", "russet", "russet flanneld -iface=eth0"),
            ("russet-1.2", "russet-1.2", "/opt/russet-1.2 flanneld"),
            ("flanneld", "russet", "flanneld -takeover"),
        ] {
            assert!(is(comm, exe, line), "{comm} {exe} {line}");
        }
        for (comm, exe, line) in [
            ("russet", "russet", "russet agent"),
            ("tail", "tail", "tail -f flanneld.log"),
            ("flanneld-start.", "bash", "/bin/bash /opt/flanneld-start.sh"),
            ("flannel", "flannel", "/opt/cni/bin/flannel"),
            ("russet", "russet", "russet flanneld --takeover-check=true"),
            ("russet", "russet", "russet flanneld docker-opts -i"),
            ("flanneld", "russet", "flanneld docker-opts"),
        ] {
            assert!(!is(comm, exe, line), "{comm} {exe} {line}");
        }
    }
}
