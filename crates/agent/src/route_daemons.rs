//! Detects other programs that keep this node's routes: a running Felix or BIRD (calico-cni.md
//! section 4.1). Felix deletes every route of its protocol that it does not know; two such programs
//! would undo each other's changes forever. So the agent in Calico's place stands aside as long as
//! one of them runs.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process that keeps routes in our network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteDaemon {
    pub pid: u32,
    /// The program's name.
    pub name: &'static str,
}

/// The route daemons that were found. The loop checks this before each change to the kernel.
#[derive(Debug, Default)]
pub struct RouteDaemonDetector {
    current: RefCell<Option<RouteDaemon>>,
    last_seen: Cell<Option<Instant>>,
    /// The processes were read at least once.
    looked: Cell<bool>,
}

/// The name for Felix in logs.
const FELIX: &str = "Felix";
/// A Felix that is being upgraded is away for this long; taking over for a moment would help no
/// pod.
const GRACE: Duration = Duration::from_secs(30);

// === impl RouteDaemonDetector ===

impl RouteDaemonDetector {
    /// Whether Felix runs, which enforces policy.
    pub fn has_felix(&self) -> bool {
        self.current.borrow().as_ref().is_some_and(|route_daemon| route_daemon.name == FELIX)
    }

    /// Whether it is known that Felix does not run.
    pub fn is_without_felix(&self) -> bool {
        self.looked.get() && !self.has_felix()
    }

    /// Takes the result of [`find`]; true if the agent has to stand aside.
    pub fn seen(&self, found: Option<RouteDaemon>, now: Instant) -> bool {
        self.looked.set(true);
        let mut current = self.current.borrow_mut();
        if let Some(route_daemon) = found {
            self.last_seen.set(Some(now));
            if current.as_ref() != Some(&route_daemon) {
                tracing::warn!(
                    program = route_daemon.name,
                    pid = route_daemon.pid,
                    "another program keeps this node's routes; the agent leaves them to it"
                );
                *current = Some(route_daemon);
            }
            return true;
        }
        let grace = self.last_seen.get().is_some_and(|seen| now < seen + GRACE);
        if !grace && let Some(route_daemon) = current.take() {
            tracing::info!(
                program = route_daemon.name,
                pid = route_daemon.pid,
                "it is gone; the agent keeps this node's routes"
            );
        }
        grace
    }
}

/// Whether any part of calico-node runs on this node.
pub fn has_calico_node() -> bool {
    processes().any(|(_, path)| {
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        matches!(name.trim_end(), "calico-node" | "calico-felix")
    })
}

/// Reads the processes that are visible to this one. In a container, that requires the host's PID
/// namespace.
pub fn find() -> Option<RouteDaemon> {
    all().next()
}

/// Whether Felix runs on this node.
pub fn has_felix() -> bool {
    all().any(|found| found.name == FELIX)
}

fn all() -> impl Iterator<Item = RouteDaemon> {
    processes().filter_map(|(pid, path)| Some(RouteDaemon { pid, name: role(&path)? }))
}

/// The processes in our network namespace, with their directories.
fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let ours = namespace(Path::new("/proc/thread-self"));
    let processes = fs::read_dir("/proc").ok().filter(|_| ours.is_some());
    processes.into_iter().flatten().flatten().filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (namespace(&entry.path()) == ours).then_some((pid, entry.path()))
    })
}

/// The role of a process, by its program's name and arguments; the kernel keeps 15 bytes of the
/// name.
fn role(process: &Path) -> Option<&'static str> {
    let name = fs::read_to_string(process.join("comm")).ok()?;
    match name.trim_end() {
        "calico-felix" => Some(FELIX),
        "bird" | "bird6" => Some("BIRD"),
        // One program with many roles.
        "calico-node" => {
            let arguments = fs::read(process.join("cmdline")).ok()?;
            arguments.split(|byte| *byte == 0).any(|argument| argument == b"-felix").then_some(FELIX)
        }
        _ => None,
    }
}

/// The device and inode of a process's network namespace.
fn namespace(process: &Path) -> Option<(u64, u64)> {
    let namespace = fs::metadata(process.join("ns/net")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_stands_aside_while_a_route_daemon_runs_and_for_the_grace_period() {
        let route_daemons = RouteDaemonDetector::default();
        let start = Instant::now();
        let felix = || Some(RouteDaemon { pid: 7, name: "Felix" });
        assert!(!route_daemons.seen(None, start));
        assert!(route_daemons.seen(felix(), start));
        assert!(route_daemons.seen(None, start + GRACE - Duration::from_secs(1)));
        assert_eq!(*route_daemons.current.borrow(), felix());
        assert!(!route_daemons.seen(None, start + GRACE));
        assert_eq!(*route_daemons.current.borrow(), None);
        assert!(route_daemons.seen(felix(), start + GRACE));
    }

    #[test]
    fn this_process_is_no_route_daemon() {
        assert_eq!(role(Path::new("/proc/self")), None);
    }
}
