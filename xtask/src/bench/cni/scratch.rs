//! The benchmark's own node: a network and a mount namespace (made by `unshare`, before we were started), an uplink
//! with a default route, and named namespaces that no other process of the machine sees.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::process;

/// The node in whose namespaces we run.
pub struct Node {
    _private: (),
}

/// A pod's network namespace, before a plugin has seen it.
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`.
    pub netns: PathBuf,
    /// Different for all sandboxes that exist at the same time.
    pub number: u32,
}

const SET_UP: &[&[&str]] = &[
    // A /run of our own, so that `ip netns` keeps its names where nobody else looks; and a /sys of this namespace.
    &["mount", "-t", "tmpfs", "-o", "mode=0755", "russet-bench", "/run"],
    &["mount", "-t", "sysfs", "russet-bench", "/sys"],
    &["ip", "link", "set", "lo", "up"],
    &["ip", "netns", "add", OUTSIDE],
    &["ip", "link", "add", "uplink0", "type", "veth", "peer", "name", "uplink0", "netns", OUTSIDE],
    &["ip", "address", "add", "192.0.2.1/24", "dev", "uplink0"],
    &["ip", "link", "set", "uplink0", "up"],
    &["ip", "-n", OUTSIDE, "link", "set", "uplink0", "up"],
    &["ip", "route", "add", "default", "via", "192.0.2.254"],
];

/// The other end of the node's uplink.
const OUTSIDE: &str = "outside";
/// A namespace that is removed last, with a link into ours: when that link is gone, so are the others' devices.
const SENTINEL: &str = "sentinel";
const SENTINEL_LINK: &str = "sentinel0";
const DRAIN_LINK: &str = "drain0";
/// Removing 230 namespaces took 0.3 s here; a kernel that serves others at the same time takes longer.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
/// How often [`until`] looks: often enough to cost a benchmark nothing, seldom enough to leave it the cores.
const LOOK: Duration = Duration::from_millis(5);

// === impl Node ===

impl Node {
    /// Turns the fresh namespaces into a node.
    pub fn set_up() -> Result<Self> {
        for words in SET_UP {
            process::output(Command::new(words[0]).args(&words[1..]))?;
        }
        let forwarding = "/proc/sys/net/ipv4/ip_forward";
        fs::write(forwarding, "1").map_err(Error::io(format!("write {forwarding}")))?;
        Ok(Self { _private: () })
    }

    /// Makes `count` namespaces, all by one `ip`.
    pub fn sandboxes(&self, label: &str, count: usize, first: u32) -> Result<Vec<Sandbox>> {
        let sandbox = |number: u32| {
            let container = format!("bench-{label}-{number}");
            Sandbox { netns: PathBuf::from("/run/netns").join(&container), container, number }
        };
        let sandboxes: Vec<Sandbox> = (first..).take(count).map(sandbox).collect();
        ip_batch(sandboxes.iter().map(|sandbox| format!("netns add {}", sandbox.container)))?;
        Ok(sandboxes)
    }

    /// Waits until the kernel has done what earlier deletions left to it: a link is off the lists long before its
    /// last RCU barrier, barriers queue up, and deleting one more link waits for them all.
    pub fn drain(&self) -> Result<()> {
        let lines = [
            format!("link add {DRAIN_LINK} type veth peer name drain1"),
            format!("link delete {DRAIN_LINK}"),
        ];
        ip_batch(lines.into_iter())
    }

    /// Removes them, and waits until the kernel has done so.
    pub fn remove(&self, sandboxes: &[Sandbox]) -> Result<()> {
        let sentinel = [
            format!("netns add {SENTINEL}"),
            format!("link add {SENTINEL_LINK} type veth peer name eth0 netns {SENTINEL}"),
        ];
        ip_batch(sentinel.into_iter())?;
        let names = sandboxes.iter().map(|sandbox| sandbox.container.as_str());
        ip_batch(names.chain([SENTINEL]).map(|name| format!("netns delete {name}")))?;
        let link = format!("/sys/class/net/{SENTINEL_LINK}");
        match until(REMOVAL_LIMIT, || Ok(!fs::exists(&link).unwrap_or(false)))? {
            true => Ok(()),
            false => Err(Error::Found("the kernel does not get done removing namespaces".to_owned())),
        }
    }
}

fn ip_batch(lines: impl Iterator<Item = String>) -> Result<()> {
    let failed = || Error::io("ip -batch");
    let mut ip = Command::new("ip");
    ip.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = ip.spawn().map_err(failed())?;
    if let Some(mut stdin) = child.stdin.take() {
        lines
            .map(|line| line + "\n")
            .try_for_each(|line| stdin.write_all(line.as_bytes()))
            .map_err(failed())?;
    }
    let status = child.wait().map_err(failed())?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Program { command: "ip -batch -".to_owned(), why: status.to_string() }),
    }
}

/// Looks until `done` holds or the limit has passed; whether it holds.
pub fn until(limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let began = Instant::now();
    while !done()? {
        if began.elapsed() >= limit {
            return Ok(false);
        }
        rest();
    }
    Ok(true)
}

#[expect(
    clippy::disallowed_methods,
    reason = "other processes' work gives this one no event; `until` has the deadline"
)]
fn rest() {
    std::thread::sleep(LOOK);
}
