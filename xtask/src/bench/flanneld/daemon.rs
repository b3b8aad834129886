//! A running `russet flanneld`, observed from outside: by its file, by /proc, and by its node's
//! kernel.

use std::ffi::CString;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use crate::bench::proc;
use crate::error::{Error, Result};
use crate::process;

/// The daemon; it ends when this value is dropped.
pub struct Daemon {
    process: Child,
    node: String,
    /// Just before it was started.
    pub begun: Instant,
    /// From then until `subnet.env` was there.
    pub ready: Duration,
    /// Its output.
    pub log: PathBuf,
    /// Prefixes in the node's main table besides those of leases.
    others: usize,
}

/// The interface and the address that [`Cluster::node`](crate::bench::calico::cluster::Cluster::node) gives to a node.
const ADDRESS_OF_NODE_0: u8 = 11;

// === impl Daemon ===

impl Daemon {
    /// Starts it in the calling thread's namespace, which is that of node `number`, and waits for its file.
    pub fn start(
        binary: &Path,
        directory: &Path,
        number: usize,
        etcd: &str,
        limit: Duration,
    ) -> Result<Self> {
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let log = directory.join("flanneld.log");
        let output = File::create(&log).map_err(Error::io(format!("create {}", log.display())))?;
        let address = usize::from(ADDRESS_OF_NODE_0) + number;
        let mut command = Command::new(binary);
        command.args(["flanneld", "--ip-masq", &format!("--etcd-endpoints={etcd}")]);
        command.arg(format!("--iface=198.51.100.{address}"));
        let file = directory.join("subnet.env");
        command.arg(format!("--subnet-file={}", file.display()));
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let appears = Appears::in_directory(directory)?;
        let before = proc::prefixes("thread-self")?;
        let begun = Instant::now();
        let process = command.spawn().map_err(Error::io(process::shown(&command)))?;
        let node = format!("node{number}");
        let mut daemon = Self { process, node, begun, ready: Duration::ZERO, log, others: before };
        if !appears.wait(&file, limit)? {
            return Err(Error::Found(format!("no {}: see {}", file.display(), daemon.log.display())));
        }
        daemon.ready = begun.elapsed();
        // The node's own address on the device, which is there when the file is.
        daemon.others += 1;
        Ok(daemon)
    }

    /// How many leases have a route, by the kernel's own count; a millisecond's work.
    pub fn routes(&self) -> Result<usize> {
        let all = proc::prefixes(&self.process.id().to_string())?;
        Ok(all.saturating_sub(self.others))
    }

    /// Routes through the device, neighbours and forwarding entries, one by one.
    pub fn programmed(&self) -> Result<[usize; 3]> {
        let device = ["dev", "flannel.1"];
        let lines = |program: &str, words: &[&str], counts: fn(&str) -> bool| {
            let mut command = Command::new(program);
            command.args(["-n", self.node.as_str()]).args(words).args(device);
            let output = process::output(&mut command)?;
            Ok::<_, Error>(String::from_utf8_lossy(&output).lines().filter(|line| counts(line)).count())
        };
        Ok([
            lines("ip", &["route", "show"], |line| line.contains(" via "))?,
            lines("ip", &["neigh", "show"], |line| line.contains(" PERMANENT"))?,
            lines("bridge", &["fdb", "show"], |line| line.contains(" dst "))?,
        ])
    }

    /// A line of /proc/PID/status, in MB of a million bytes.
    pub fn memory(&self, name: &str) -> Result<f64> {
        proc::memory(self.process.id(), name)
    }

    /// Processor time of all its threads so far.
    pub fn cpu(&self) -> Result<Duration> {
        proc::cpu(self.process.id())
    }

    /// Ends it, and its node's device, which would slow the others' samples down.
    pub fn stop(self) -> Result<()> {
        let node = self.node.clone();
        drop(self);
        process::output(Command::new("ip").args(["-n", &node, "link", "delete", "flannel.1"])).map(drop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself; its exit status is irrelevant.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for a file to come into a directory.
struct Appears {
    events: OwnedFd,
}

// === impl Appears ===

impl Appears {
    fn in_directory(directory: &Path) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| Error::Io {
            operation: format!("watch {}", directory.display()),
            source: errno.into(),
        };
        let path = CString::new(directory.as_os_str().as_encoded_bytes());
        let path = path.map_err(|_| Error::Found(format!("{} holds a zero", directory.display())))?;
        let events = inotify::init(inotify::CreateFlags::CLOEXEC).map_err(failed)?;
        inotify::add_watch(&events, path, inotify::WatchFlags::MOVED_TO).map_err(failed)?;
        Ok(Self { events })
    }

    /// Whether `file` is there within `limit`.
    fn wait(&self, file: &Path, limit: Duration) -> Result<bool> {
        let failed = |errno: rustix::io::Errno| Error::Io {
            operation: format!("wait for {}", file.display()),
            source: errno.into(),
        };
        let begun = Instant::now();
        while !file.exists() {
            let left = limit.saturating_sub(begun.elapsed());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut ready = [PollFd::new(&self.events, PollFlags::IN)];
            if poll(&mut ready, Some(&left)).map_err(failed)? == 0 {
                return Ok(false);
            }
            let mut buffer = [MaybeUninit::uninit(); 4096];
            inotify::Reader::new(&self.events, &mut buffer).next().map_err(failed)?;
        }
        Ok(true)
    }
}
