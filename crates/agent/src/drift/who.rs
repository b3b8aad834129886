//! Which process made a change, as far as that can be determined. For nf_tables the kernel says it.
//! For most of rtnetlink it gives the port of the requesting socket, which is usually the process
//! ID in some PID namespace: the process is read at once, because it may be about to exit, and
//! later it is checked whether the socket really belongs to it. For forwarding entries and sysctls
//! there is no information. Used by `kernel_events` and `log`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A process that made a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The process ID.
    pub pid: u32,
    /// Its name; none if it had exited before it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its command line, as far as it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whether this is certain: the kernel says so, or the requesting socket belongs to the
    /// process. Otherwise only the number is certain, in a PID namespace that may be another one.
    pub certain: bool,
}

/// The processes that requested changes, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct Traces(BTreeMap<Source, Who>);

/// What the kernel said about the source of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Port(u32),
    Process(u32),
}

/// Processes that are listed for one repair.
const TRACES_MAX: usize = 8;
/// The kernel's limit of process IDs (`PID_MAX_LIMIT`). The kernel chooses higher ports at random.
const PID_MAX: u32 = 4 << 20;
/// Command lines are cut off here.
const COMMAND_MAX_CHARS: usize = 160;
/// Processes that are checked for a socket. Checking more would take longer than the answer is
/// worth.
const PROCESSES_MAX: usize = 4096;

// === impl Traces ===

impl Traces {
    /// Notes the port of the requesting socket; 0 is the kernel.
    pub fn port(&mut self, port: u32) {
        if port == 0 || self.0.len() >= TRACES_MAX || self.0.contains_key(&Source::Port(port)) {
            return;
        }
        let (process, command) = if port < PID_MAX { (name(port), command(port)) } else { (None, None) };
        self.0.insert(Source::Port(port), Who { pid: port, process, command, certain: false });
    }

    /// Notes the process that committed, as the kernel reports it.
    pub fn process(&mut self, pid: u32, process: &str) {
        if self.0.len() >= TRACES_MAX || self.0.contains_key(&Source::Process(pid)) {
            return;
        }
        // The kernel uses the first PID namespace; ours may be another one.
        let here = name(pid).is_some_and(|name| name == process);
        let command = if here { command(pid) } else { None };
        let who = Who { pid, process: Some(process.to_owned()), command, certain: true };
        self.0.insert(Source::Process(pid), who);
    }

    /// Adds what was noted later.
    pub fn join(&mut self, later: Self) {
        for (source, who) in later.0 {
            if self.0.len() < TRACES_MAX {
                self.0.entry(source).or_insert(who);
            }
        }
    }

    /// Checks which sockets belong to which processes. This takes a while, so it comes after the
    /// repair.
    pub fn resolve(self) -> Vec<Who> {
        let sockets = if self.0.keys().any(|source| matches!(source, Source::Port(_))) {
            sockets()
        } else {
            BTreeMap::new()
        };
        let resolved = self.0.into_iter().filter_map(|(source, who)| match source {
            Source::Process(_) => Some(who),
            Source::Port(port) => resolved(who, sockets.get(&port).copied(), port),
        });
        resolved.collect()
    }
}

/// The process that owns the socket with this inode. If the socket is gone, the process whose ID is
/// the port is the likely one.
fn resolved(who: Who, inode: Option<u64>, port: u32) -> Option<Who> {
    let Some(inode) = inode else { return (port < PID_MAX).then_some(who) };
    if who.process.is_some() && holds(port, inode) {
        return Some(Who { certain: true, ..who });
    }
    match owner(inode) {
        Some(pid) => Some(Who { pid, process: name(pid), command: command(pid), certain: true }),
        None => (port < PID_MAX).then_some(Who { process: None, command: None, ..who }),
    }
}

/// The route sockets of this thread's network namespace: inodes by port.
fn sockets() -> BTreeMap<u32, u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap_or_default();
    parse_sockets(&text)
}

/// `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`; protocol 0 is rtnetlink.
fn parse_sockets(text: &str) -> BTreeMap<u32, u64> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let route = words.next()? == "0";
        let port = words.next()?.parse().ok()?;
        let inode = words.last()?.parse().ok()?;
        route.then_some((port, inode))
    };
    text.lines().filter_map(line).collect()
}

fn owner(inode: u64) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.take(PROCESSES_MAX).find(|pid| holds(*pid, inode))
}

fn holds(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&wanted)))
}

fn name(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// The words of the command line. Empty for kernel threads and exited processes.
fn command(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    let words: String = words.trim_end().chars().take(COMMAND_MAX_CHARS).collect();
    (!words.is_empty()).then_some(words)
}

// === impl Who ===

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some(process) => write!(f, "{process} (pid {}", self.pid)?,
            None => write!(f, "a process (pid {}, it has ended", self.pid)?,
        }
        if let Some(command) = &self.command {
            write!(f, ": {command}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_sockets_is_read() {
        let text = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                    0000000000000000 0   4711       00000000 0        0        0     2        0        8123\n\
                    0000000000000000 12  4712       00000000 0        0        0     2        0        8124\n\
                    0000000000000000 0   4294963199 00000551 0        0        0     2        0        8125\n\
                    half a line\n";
        assert_eq!(parse_sockets(text), BTreeMap::from([(4711, 8123), (4_294_963_199, 8125)]));
    }

    #[test]
    fn our_own_process_is_known_by_its_number() {
        let mut traces = Traces::default();
        traces.port(0);
        traces.port(std::process::id());
        traces.port(std::process::id());
        let who = traces.resolve();
        assert_eq!(who.len(), 1);
        assert_eq!(who[0].process, name(std::process::id()));
        assert!(who[0].command.is_some(), "{who:?}");
    }

    #[test]
    fn a_port_without_a_process_is_not_attributed() {
        let mut traces = Traces::default();
        traces.port(u32::MAX - 1);
        assert_eq!(traces.resolve(), Vec::new());
    }

    #[test]
    fn the_number_of_noted_processes_is_bounded() {
        let mut traces = Traces::default();
        (0..100).for_each(|pid| traces.process(pid, "nft"));
        let who = traces.resolve();
        assert_eq!(who.len(), TRACES_MAX);
        assert_eq!(who[0].to_string(), "nft (pid 0)");
    }
}
