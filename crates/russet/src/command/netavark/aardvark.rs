//! Names of containers in aardvark-dns, netavark's name server. netavark maintains its files for networks of its own drivers only, so the entries of
//! Russet's networks are written here: in the same format, under the same lock, with the same signal.
//!
//! aardvark-dns needs an address of the node for each network. netavark's networks have that of their bridge; Russet's get a link-local one, which is
//! made local by a route, with Russet's protocol, in the kernel's table of local addresses.

use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use russet_addr::{Family, host_net};
use russet_attach::ROUTE_PROTOCOL;
use russet_linux::lock::{FileLock, LockError};
use russet_linux::{file, process};
use russet_netlink::{Batch, BatchError, NetlinkError, Route, RouteFilter, RouteKind, Scope, Socket};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::names::{self, Entry};

/// aardvark-dns on this node.
#[derive(Debug)]
pub struct Aardvark {
    /// Its files, one for each network.
    dir: PathBuf,
    /// The directory of the lock.
    above: PathBuf,
    program: PathBuf,
    /// systemd runs here, and is asked to start the server outside the caller's control group.
    with_systemd: bool,
}

/// Why names could not be entered or removed.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    #[error("{what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("aardvark-dns: {0}")]
    Lock(#[from] LockError),
    #[error("give aardvark-dns the address {address}: {source}")]
    Route { address: Ipv4Addr, source: BatchError },
    #[error("read the node's local addresses: {0}")]
    Netlink(#[from] NetlinkError),
    #[error("every address of {range} is used by another network of aardvark-dns; disable DNS for this one", range = names::RANGE)]
    Full,
    #[error("start {}: {source}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("{} has not started within {} s", program.display(), START_TIMEOUT.as_secs())]
    Slow { program: PathBuf },
    #[error("{} ended with {status}: {said}", program.display())]
    Ended { program: PathBuf, status: std::process::ExitStatus, said: String },
    #[error("notify aardvark-dns: {0}")]
    Notify(io::Error),
}

/// Where podman looks for its helpers, in this order.
const PROGRAM_DIRS: [&str; 4] =
    ["usr/local/libexec/podman", "usr/local/lib/podman", "usr/libexec/podman", "usr/lib/podman"];
const PROGRAM: &str = "aardvark-dns";
/// Where podman, as root, has netavark's files.
const NETWORKS: &str = "run/containers/networks";
/// In the server's directory.
pub const PID_FILE: &str = "aardvark.pid";
/// netavark holds it for a few milliseconds.
const LOCK: &str = "aardvark.lock";
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The parent process of the server ends as soon as the server listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A line has about 100 bytes, and a node some hundred containers.
const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// What is shown of the server's last words.
const SAID_MAX_BYTES: u64 = 1024;
/// systemd runs if it exists, sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

// === impl Aardvark ===

impl Aardvark {
    /// The one below this root; None if it is not installed.
    pub fn find(root: &Path) -> Option<Self> {
        let program =
            PROGRAM_DIRS.iter().map(|dir| root.join(dir).join(PROGRAM)).find(|path| path.is_file())?;
        let above = root.join(NETWORKS);
        let with_systemd = root == Path::new("/") && Path::new(SYSTEMD).exists();
        Some(Self { dir: above.join(PROGRAM), above, program, with_systemd })
    }

    /// Enters a container's names, and returns the address at which its network's server listens. Entries of an earlier setup are replaced.
    pub fn enter(&self, network: &str, servers: &[IpAddr], entry: &Entry<'_>) -> Result<Ipv4Addr, DnsError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| DnsError::File { what, path, source }
        };
        fs::create_dir_all(&self.dir).map_err(failed("make", &self.dir))?;
        let lock = self.lock()?;
        let path = self.dir.join(network);
        let found = read(&path).map_err(failed("read", &path))?;
        let mut host = Socket::route()?;
        let listen = match found.as_deref().and_then(names::listens_at) {
            Some(listen) => listen,
            None => names::choose(network, &self.taken(&mut host)?).ok_or(DnsError::Full)?,
        };
        // The server ends if it cannot bind an address, so the address is first.
        let mut batch = Batch::new();
        batch.replace_route(&local(listen));
        host.execute(&batch).map_err(|source| DnsError::Route { address: listen, source })?;
        let text = names::with(found.as_deref(), listen, servers, entry);
        self.replace(&path, &text).map_err(failed("write", &path))?;
        drop(lock);
        if !self.notify()? {
            self.start()?;
        }
        Ok(listen)
    }

    /// Removes a container's names, and with the last of a network its address. Succeeds if there are none.
    pub fn remove(&self, network: &str, container: &str) -> Result<(), DnsError> {
        let path = self.dir.join(network);
        let failed = |what| {
            let path = path.clone();
            move |source| DnsError::File { what, path, source }
        };
        if !path.is_file() {
            return Ok(());
        }
        let lock = self.lock()?;
        let Some(found) = read(&path).map_err(failed("read"))? else { return Ok(()) };
        let Some(listen) = names::listens_at(&found) else { return Ok(()) };
        let left = names::without(&found, container);
        match &left {
            Some(text) if *text == found => return Ok(()),
            Some(text) => self.replace(&path, text).map_err(failed("write"))?,
            None => fs::remove_file(&path).map_err(failed("remove"))?,
        }
        drop(lock);
        // Without networks it ends by itself.
        self.notify()?;
        if left.is_none() {
            let mut batch = Batch::new();
            batch.delete_route(&local(listen));
            match Socket::route()?.execute(&batch) {
                Err(source) if !source.is_not_found() => {
                    return Err(DnsError::Route { address: listen, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<FileLock, DnsError> {
        Ok(FileLock::exclusive(self.above.join(LOCK), Instant::now() + LOCK_TIMEOUT)?)
    }

    /// The addresses that another network's server has, or the node itself.
    fn taken(&self, host: &mut Socket) -> Result<Vec<Ipv4Addr>, DnsError> {
        let mut taken = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            taken.extend(read(&entry.path()).ok().flatten().as_deref().and_then(names::listens_at));
        }
        let filter = RouteFilter { table: Some(Route::LOCAL), ..RouteFilter::default() };
        for route in host.routes_where(Family::V4, filter)? {
            match route.dst.addr() {
                // Routes of ours without a file are left by a container that was not torn down.
                IpAddr::V4(address) if route.protocol != ROUTE_PROTOCOL => taken.push(address),
                _ => {}
            }
        }
        Ok(taken)
    }

    /// Writes a file of the server's directory through the one above it: the server reads every file of its own.
    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let temporary = self.above.join(format!("russet-{}.tmp", std::process::id()));
        file::replace_unsynced(path, &temporary, text.as_bytes())
    }

    /// Makes a running server read its files again; returns whether there is one. The process with its ID may be another one by now.
    fn notify(&self) -> Result<bool, DnsError> {
        let Some(pid) =
            read(&self.dir.join(PID_FILE)).ok().flatten().and_then(|text| text.trim().parse().ok())
        else {
            return Ok(false);
        };
        let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) else {
            return Ok(false);
        };
        let Ok(server) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        if fs::read_to_string(proc.join("comm")).is_ok_and(|name| name.trim_end() != PROGRAM) {
            return Ok(false);
        }
        let there = fs::read_link(proc.join("ns/net")).ok();
        if there.is_some() && there != fs::read_link("/proc/self/ns/net").ok() {
            crate::output::progress(&format!(
                "warning: aardvark-dns (process {}) is in another network namespace, so that it answers no container of this one",
                pid.as_raw_nonzero()
            ));
        }
        match pidfd_send_signal(&server, Signal::HUP) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(errno) => Err(DnsError::Notify(errno.into())),
        }
    }

    /// Starts the server as netavark does, and waits until it listens.
    fn start(&self) -> Result<(), DnsError> {
        let failed = |source| DnsError::Start { program: self.program.clone(), source };
        // The server keeps what it inherits, so that a pipe would never end.
        let said = rustix::fs::memfd_create("aardvark-dns", rustix::fs::MemfdFlags::CLOEXEC);
        let said: fs::File = said.map_err(|errno| failed(errno.into()))?.into();
        let mut command =
            Command::new(if self.with_systemd { Path::new("systemd-run") } else { &self.program });
        if self.with_systemd {
            command.args(["-q", "--scope"]).arg(&self.program);
        }
        command.arg("--config").arg(&self.dir).args(["-p", "53", "run"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(said.try_clone().map_err(failed)?).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let started = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::Other.into());
        let started = started.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)).map_err(failed)?;
        if !process::has_ended(started, START_TIMEOUT).map_err(failed)? {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(DnsError::Slow { program: self.program.clone() });
        }
        let status = child.wait().map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        Err(DnsError::Ended { program: self.program.clone(), status, said: last_words(said) })
    }
}

fn last_words(mut said: fs::File) -> String {
    let mut bytes = Vec::new();
    let _ = io::Seek::rewind(&mut said).and_then(|()| said.take(SAID_MAX_BYTES).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    crate::output::visible(text.trim())
}

/// A file's text; None if there is none.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = String::new();
    file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {FILE_MAX_BYTES} bytes")));
    }
    Ok(Some(text))
}

/// The route that makes an address one of the node's. `russet owned` lists it by its protocol.
fn local(address: Ipv4Addr) -> Route {
    /// `lo` is the first interface of every namespace.
    const LOOPBACK: u32 = 1;
    Route {
        kind: RouteKind::Local,
        table: Route::LOCAL,
        scope: Scope::Host,
        protocol: ROUTE_PROTOCOL,
        oif: Some(LOOPBACK),
        ..Route::new(host_net(IpAddr::V4(address)))
    }
}
