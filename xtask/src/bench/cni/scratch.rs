//! The benchmark's own world: a network and a mount namespace (made by `unshare`, before this
//! process was started), in it a node for each implementation, and pods' namespaces that no other
//! process of the machine sees.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Result};
use crate::process;

/// The namespaces in which we were started; the outside of every node.
pub struct World {
    netns: File,
}

/// A node's network namespace. Each implementation has its own, because the others would pay for what one leaves
/// there: on a shared one, Go's DEL took 40 ms instead of 20 once our agent had run. IPv6 forwarding is suspected, not shown.
pub struct Node {
    netns: File,
}

/// A pod's network namespace, before a plugin has seen it.
#[derive(Clone)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`.
    pub netns: PathBuf,
    /// Different for all sandboxes that exist at the same time.
    pub number: u32,
}

const SET_UP: &[&str] = &[
    // A /run of our own, so that `ip netns` keeps its names out of sight of other programs; and a /sys of this namespace.
    "mount -t tmpfs -o mode=0755 russet-bench /run",
    "mount -t sysfs russet-bench /sys",
    "ip link set lo up",
];

/// Run in the world's namespace; `N` is the node's name.
const SET_UP_NODE: &[&str] = &[
    "ip netns add N",
    "ip link add N type veth peer name uplink0 netns N",
    "ip link set N up",
    "ip -n N link set lo up",
    "ip -n N address add 192.0.2.1/24 dev uplink0",
    "ip -n N link set uplink0 up",
    "ip -n N route add default via 192.0.2.254",
];

/// Where `ip netns` keeps names.
const NETNS_DIR: &str = "/run/netns";
/// A namespace that is removed last, with a link into ours: when that link is gone, so are the others' devices.
const SENTINEL: &str = "sentinel";
const SENTINEL_LINK: &str = "sentinel0";
const DRAIN_LINK: &str = "drain0";
/// Removing 230 namespaces took 0.3 s here; a kernel that serves others at the same time takes longer.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
/// How often [`until`] looks: often enough to cost a benchmark nothing, seldom enough to leave it the cores.
const LOOK: Duration = Duration::from_millis(5);

// === impl World ===

impl World {
    /// Turns the fresh namespaces into a world.
    pub fn set_up() -> Result<Self> {
        run_all(SET_UP, "")?;
        Ok(Self { netns: open(Path::new("/proc/thread-self/ns/net"))? })
    }

    /// Adds a node.
    pub fn node(&self, name: &str) -> Result<Node> {
        run_all(SET_UP_NODE, name)?;
        let node = Node { netns: open(&Path::new(NETNS_DIR).join(name))? };
        node.inside(|| {
            let forwarding = "/proc/sys/net/ipv4/ip_forward";
            fs::write(forwarding, "1").map_err(Error::io(format!("write {forwarding}")))
        })?;
        self.enter()?;
        Ok(node)
    }

    /// Takes the calling thread out of any node.
    pub fn enter(&self) -> Result<()> {
        enter(&self.netns)
    }

    /// Makes `count` namespaces, all by one `ip`.
    pub fn sandboxes(&self, label: &str, count: usize, first: u32) -> Result<Vec<Sandbox>> {
        let sandbox = |number: u32| {
            let container = format!("bench-{label}-{number}");
            Sandbox { netns: Path::new(NETNS_DIR).join(&container), container, number }
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
        self.enter()?;
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

// === impl Node ===

impl Node {
    /// Does something in the node's namespace; the calling thread, and what it starts later, stays there.
    pub fn inside<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        enter(&self.netns)?;
        body()
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(Error::io(format!("open {}", path.display())))
}

fn enter(netns: &File) -> Result<()> {
    let entered = move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network));
    entered.map_err(|errno| Error::Io {
        operation: "enter a network namespace".to_owned(),
        source: errno.into(),
    })
}

/// Runs programs; their words are parted by spaces, and `N` stands for `name`.
fn run_all(commands: &[&str], name: &str) -> Result<()> {
    for command in commands {
        let mut words = command.split(' ').map(|word| if word == "N" { name } else { word });
        let program = words.next().unwrap_or_default();
        process::output(Command::new(program).args(words))?;
    }
    Ok(())
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
