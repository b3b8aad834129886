//! Russet as it runs on a node: an agent with the embedded store, called through `russet-cni`.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::bench::cni::direct::write_settings;
use crate::bench::cni::scratch::until;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::cni::{AGENT, AGENT_BRIDGE};
use crate::error::{Error, Result};
use crate::process;

/// An agent as a subject of this benchmark.
pub struct Agent {
    name: &'static str,
    running: Running,
    plugin: PathBuf,
    config: String,
}

/// A running agent; it ends with this value.
pub struct Running {
    process: Child,
}

/// The group of links that a DEL has left to the agent (DESIGN section 10).
const DOOMED_GROUP: &str = "7273";
/// Opening a fresh store and claiming a block takes milliseconds; a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The agent deletes the group at once; slower than this is a bug, and would disturb the next sample.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

// === impl Agent ===

impl Agent {
    pub fn start(binaries: &Binaries, root: &Path) -> Result<Self> {
        write_settings(root, "10.244.0.0/16")?;
        let running = Running::start(binaries, root, &["--node-name", "bench"])?;
        let config = json!({
            "cniVersion": "1.0.0", "name": "bench", "type": "russet", "agent_socket": socket(root),
        });
        Ok(Self { name: AGENT, running, plugin: binaries.russet_cni.clone(), config: config.to_string() })
    }

    /// Our own `bridge` and `host-local`, with what the Go ones are given.
    pub fn bridge(binaries: &Binaries, root: &Path) -> Result<Self> {
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
        Ok(Self { name: AGENT_BRIDGE, running, plugin: bin.join("bridge"), config: config.to_string() })
    }
}

// === impl Running ===

impl Running {
    /// Starts it, with its files below `root`, and waits until it answers.
    pub fn start(binaries: &Binaries, root: &Path, arguments: &[&str]) -> Result<Self> {
        let socket = socket(root);
        let log_path = root.join("agent.log");
        let log = File::create(&log_path).map_err(Error::io(format!("create {}", log_path.display())))?;
        let output = log.try_clone().map_err(Error::io("duplicate the log's descriptor"))?;
        let mut command = Command::new(&binaries.russet);
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

    /// Waits until the links are gone that a DEL left to it.
    pub fn settle(&self) -> Result<()> {
        let mut list = Command::new("ip");
        list.args(["-oneline", "link", "show", "group", DOOMED_GROUP]);
        match until(SETTLE_LIMIT, || Ok(process::output(&mut list)?.is_empty()))? {
            true => Ok(()),
            false => Err(Error::Found("the agent does not delete the links that DEL left to it".to_owned())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        process::kill_tree(self.process.id());
        // It was killed; how it ended tells nothing.
        let _ = self.process.wait();
    }
}

impl Subject for Agent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn plugin(&self) -> &Path {
        &self.plugin
    }

    fn config(&self) -> &str {
        &self.config
    }

    fn settle(&self) -> Result<()> {
        self.running.settle()
    }
}

/// Where the agent of `root` answers plugins.
pub fn socket(root: &Path) -> PathBuf {
    root.join("run/russet/cni.sock")
}
