//! Russet as it runs on a node: an agent with the embedded store, called through `russet-cni`.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::bench::cni::AGENT_BRIDGE;
use crate::bench::cni::crowd;
use crate::bench::cni::direct::write_settings;
use crate::bench::cni::scratch::until;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::ipam::SYNC_DELAY_US;
use crate::bench::ipam::etcd::{self, Etcd};
use crate::bench::proc;
use crate::error::{Error, Result};
use crate::process;

/// Where an agent keeps addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Embedded,
    /// On a disk with slow syncs.
    SlowEmbedded,
    /// An etcd of its own on the node's loopback.
    Etcd,
    SlowEtcd,
    /// [`Etcd`](Self::Etcd) in which a peer claims thousands of blocks.
    CrowdedEtcd,
}

/// A running agent; it ends when this value is dropped.
pub struct Running {
    process: Child,
}

/// The group of links that a DEL has left to the agent (ARCHITECTURE.md, "Names and places").
const DOOMED_GROUP: &str = "7273";
/// The prefix of their names.
const DOOMED_NAME: &str = "rsx";
/// Opening a fresh store and claiming a block takes milliseconds; a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The agent deletes the group at once; slower than this is a bug, and would disturb the next sample.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// The node's own loopback, so the ports are free.
const ETCD: &str = "127.0.0.1";
const ETCD_PORTS: [u16; 2] = [2379, 2380];

// === impl Running ===

impl Running {
    /// Starts it, with its files below `root`, and waits until it answers.
    pub fn start(binaries: &Binaries, root: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_under(Command::new(&binaries.russet), root, arguments)
    }

    /// The same with slow syncs.
    fn start_slow(binaries: &Binaries, root: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = etcd::slow_syncs(SYNC_DELAY_US);
        command.arg(&binaries.russet);
        Self::start_under(command, root, arguments)
    }

    fn start_under(mut command: Command, root: &Path, arguments: &[&str]) -> Result<Self> {
        let socket = socket(root);
        let log_path = root.join("agent.log");
        let log = File::create(&log_path).map_err(Error::io(format!("create {}", log_path.display())))?;
        let output = log.try_clone().map_err(Error::io("duplicate the log's descriptor"))?;
        command.args(["agent", "--root"]).arg(root).args(arguments);
        command.stdin(Stdio::null()).stdout(output).stderr(log);
        let process = command.spawn().map_err(Error::io(process::shown(&command)))?;
        let agent = Self { process };
        match until(START_LIMIT, || Ok(UnixStream::connect(&socket).is_ok()))? {
            true => Ok(agent),
            false => {
                let log = fs::read_to_string(&log_path).unwrap_or_default();
                Err(Error::Found(format!("{} does not answer:\n{log}", socket.display())))
            }
        }
    }

    /// A line of /proc/PID/status, in MB of a million bytes.
    pub fn memory(&self, name: &str) -> Result<f64> {
        proc::memory(self.process.id(), name)
    }

    /// Processor time of all its threads so far.
    pub fn cpu(&self) -> Result<Duration> {
        proc::cpu(self.process.id())
    }

    /// Waits until the links are gone that a DEL left to it.
    pub fn settle(&self) -> Result<()> {
        match until(SETTLE_LIMIT, Self::is_settled)? {
            true => Ok(()),
            false => Err(Error::Found("the agent does not delete the links that DEL left to it".to_owned())),
        }
    }
}

impl Running {
    /// Whether such links are still listed in the calling thread's namespace. The kernel is not made to wait for, as `ip` does: it lists links while it deletes others.
    pub fn has_doomed() -> Result<bool> {
        let file = "/proc/thread-self/net/dev";
        let devices = fs::read_to_string(file).map_err(Error::io(format!("read {file}")))?;
        Ok(devices.lines().any(|line| line.trim_start().starts_with(DOOMED_NAME)))
    }

    /// Whether no such link is in the calling thread's namespace, and none is being deleted.
    fn is_settled() -> Result<bool> {
        let mut list = Command::new("ip");
        list.args(["-oneline", "link", "show", "group", DOOMED_GROUP]);
        Ok(process::output(&mut list)?.is_empty())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        process::kill_tree(self.process.id());
        // It was killed; its exit status is irrelevant.
        let _ = self.process.wait();
    }
}

// === impl Store ===

impl Store {
    fn etcd(self, root: &Path) -> Result<Option<Etcd>> {
        let delay = match self {
            Self::Embedded | Self::SlowEmbedded => return Ok(None),
            Self::Etcd | Self::CrowdedEtcd => None,
            Self::SlowEtcd => Some(SYNC_DELAY_US),
        };
        let etcd = Etcd::start(&root.join("etcd"), ETCD, ETCD_PORTS, delay)?;
        if !until(START_LIMIT, || Ok(TcpStream::connect((ETCD, ETCD_PORTS[0])).is_ok()))? {
            return Err(Error::Found(format!("{} does not answer", etcd.url)));
        }
        if self == Self::CrowdedEtcd {
            crowd::write(&etcd.url)?;
        }
        Ok(Some(etcd))
    }
}

/// Starts an agent in the calling thread's namespace.
pub fn start(name: &'static str, binaries: &Binaries, root: &Path, store: Store) -> Result<Subject> {
    write_settings(root, "10.244.0.0/16")?;
    let etcd = store.etcd(root)?;
    let location = etcd.as_ref().map_or_else(|| "embedded".to_owned(), |etcd| format!("etcd:{}", etcd.url));
    let arguments = ["--node-name", "bench", "--store", &location];
    let running = match store {
        Store::SlowEmbedded => Running::start_slow(binaries, root, &arguments)?,
        _ => Running::start(binaries, root, &arguments)?,
    };
    let config = json!({
        "cniVersion": "1.1.0", "name": "bench", "type": "russet", "agent_socket": socket(root),
    });
    Ok(Subject { agent: Some(running), etcd, ..Subject::new(name, &binaries.russet_cni, &config) })
}

/// Our own `bridge` and `host-local`, with what the Go ones are given.
pub fn bridge(binaries: &Binaries, root: &Path) -> Result<Subject> {
    write_settings(root, "10.246.0.0/16")?;
    let running = Running::start(binaries, root, &["--node-name", "bench"])?;
    let bin = root.join("bin");
    let linked = fs::create_dir_all(&bin).and_then(|()| {
        ["bridge", "host-local"].iter().try_for_each(|name| symlink(&binaries.russet_cni, bin.join(name)))
    });
    linked.map_err(Error::io(format!("link plugins in {}", bin.display())))?;
    let config = json!({
        "cniVersion": "1.0.0", "name": "bench-bridge", "type": "bridge", "agent_socket": socket(root),
        "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{ "subnet": "10.253.0.0/16" }]],
            "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": root.join("networks")},
    });
    Ok(Subject { agent: Some(running), ..Subject::new(AGENT_BRIDGE, &bin.join("bridge"), &config) })
}

/// Where the agent of `root` answers plugins.
pub fn socket(root: &Path) -> PathBuf {
    root.join("run/russet/cni.sock")
}
