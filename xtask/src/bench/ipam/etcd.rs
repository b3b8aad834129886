//! A real etcd of the benchmark's own: one member on loopback, its files on a real disk, its syncs slowed down if wished.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::statfs;

use crate::error::{Error, Result};
use crate::process;

/// A running member; it ends when this value is dropped.
pub struct Etcd {
    process: Child,
    /// Where clients find it.
    pub url: String,
}

/// Where ports are looked for: below those that the kernel gives to connections.
const PORTS: std::ops::Range<u16> = 12_000..32_000;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Refuses a directory in memory: a sync costs nothing there.
pub fn refuse_memory(directory: &Path) -> Result<()> {
    let failed = |errno: rustix::io::Errno| Error::Io {
        operation: format!("statfs {}", directory.display()),
        source: errno.into(),
    };
    let kind = statfs(directory).map_err(failed)?.f_type;
    match MEMORY.contains(&kind) {
        false => Ok(()),
        true => Err(Error::Found(format!(
            "{} is in memory, where syncs cost nothing: set CARGO_TARGET_DIR to a disk",
            directory.display()
        ))),
    }
}

// === impl Etcd ===

impl Etcd {
    /// Starts a member on an address of this machine with its files in `directory`; each of its syncs takes `sync_delay_us` longer. It serves a moment later.
    pub fn start(directory: &Path, host: &str, ports: [u16; 2], sync_delay_us: Option<u64>) -> Result<Self> {
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let log_path = directory.join("etcd.log");
        let log = File::create(&log_path).map_err(Error::io(format!("create {}", log_path.display())))?;
        let [client, peer] = ports.map(|port| format!("http://{host}:{port}"));
        let mut command = slowed(sync_delay_us);
        command.arg("--data-dir").arg(directory.join("data"));
        command.args(["--name=bench", "--logger=zap", "--log-level=error"]);
        command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
        command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
        command.arg(format!("--initial-cluster=bench={peer}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().map_err(Error::io(process::shown(&command)))?;
        Ok(Self { process, url: client })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // With strace, etcd is its child.
        process::kill_tree(self.process.id());
        // It was killed; its exit status is irrelevant.
        let _ = self.process.wait();
    }
}

/// `etcd`, or `etcd` with slow syncs.
fn slowed(sync_delay_us: Option<u64>) -> Command {
    let Some(delay_us) = sync_delay_us else { return Command::new("etcd") };
    let mut slow = slow_syncs(delay_us);
    slow.arg("etcd");
    slow
}

/// A strace, for a program that is still to be named, that stops nothing but syncs (that is what the filter in the kernel is for) and holds each back when
/// it is done.
pub fn slow_syncs(delay_us: u64) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e"]);
    strace.arg(format!("inject=fdatasync,fsync:delay_exit={delay_us}"));
    strace
}

/// Free ports for a client and a peer address of two members.
pub fn free_ports() -> Result<[[u16; 2]; 2]> {
    let offset = (std::process::id() % u32::from(PORTS.end - PORTS.start)) as u16;
    let candidates = (PORTS.start + offset..PORTS.end).chain(PORTS.start..PORTS.start + offset);
    // All stay bound until all are found, so that they differ.
    let found: Vec<(u16, TcpListener)> = candidates
        .filter_map(|port| Some((port, TcpListener::bind(("127.0.0.1", port)).ok()?)))
        .take(4)
        .collect();
    match found.iter().map(|(port, _)| *port).collect::<Vec<_>>().as_slice() {
        &[a, b, c, d] => Ok([[a, b], [c, d]]),
        _ => Err(Error::Found(format!("no four free ports in {PORTS:?}"))),
    }
}
