//! The state of the machine for one check: the kernel's links, routes and addresses in every
//! namespace, and the runtimes' caches. Only reads. If a part cannot be read, the check has no
//! result; a part that disappears meanwhile does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use russet_addr::Family;
use russet_linux::{NetNs, NetNsError, NetNsId};
use russet_netlink::{NetlinkError, Route, RouteKind, Socket};
use russet_runtime::CacheError;

use super::liveness::Machine;
use super::unheld::PodLink;

/// A part of the machine that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("read the node's network: {0}")]
    Netlink(#[from] NetlinkError),
    /// A namespace that may belong to a pod.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    #[error("look for network namespaces in {}: {source}", path.display())]
    Namespaces { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The network namespace of the first process.
const INIT: &str = "/proc/1/ns/net";
/// The machine's first PID namespace (`PROC_PID_INIT_INO` of linux/proc_ns.h).
const INIT_PIDS: &str = "pid:[4026531836]";

/// Prefix of the host ends of plugin `russet`.
const NATIVE_PREFIX: &str = "russ";

/// Reads the machine. Blocks for about a millisecond for each namespace.
pub fn look(caches: &[PathBuf]) -> Result<Machine, MachineError> {
    let mut machine = Machine::default();
    let mut socket = Socket::route()?;
    machine.owned = russet_attach::list(&mut socket)?;
    machine.links = machine.owned.iter().map(|link| link.owner.clone()).collect();
    for family in Family::BOTH {
        machine.routes.extend(socket.routes(family)?.iter().filter_map(host_route));
    }
    machine.own = socket.addresses()?.iter().map(|address| address.net.addr()).collect();
    let Namespaces { found, inhabited, unseen, hidden } = namespaces()?;
    (machine.namespaces, machine.unseen) = (found.len(), unseen);
    machine.sees_processes = hidden == 0 && sees_all_processes()?;
    let own = NetNs::current()?.id();
    for (id, namespace) in &found {
        // A netlink socket belongs to the namespace in which it was opened.
        let read = || Socket::route().and_then(|mut it| Ok((it.addresses()?, it.links()?)));
        let (addresses, links) = namespace.with(read)??;
        let path = namespace.path();
        machine.interfaces.extend(addresses.iter().map(|address| (address.net.addr(), path.to_owned())));
        if *id != own && inhabited.contains(id) {
            // It does not matter whether the index belongs to the node or to another namespace: an
            // extra entry only keeps an attachment.
            machine.inhabited.extend(links.iter().filter_map(|link| Some((link.link?, link.index))));
        }
    }
    for cache in caches {
        machine.cached.extend(russet_runtime::attached(cache)?);
    }
    Ok(machine)
}

/// The pods of plugin `russet` on this node: each address with a route to one of their host ends.
/// The addresses of other plugins' pods may belong to another IPAM plugin.
pub(super) fn pods() -> Result<BTreeMap<IpAddr, PodLink>, MachineError> {
    let mut socket = Socket::route()?;
    let mut links = russet_attach::list(&mut socket)?;
    links.retain(|link| !link.doomed && link.name.starts_with(NATIVE_PREFIX));
    let mut pods = BTreeMap::new();
    if links.is_empty() {
        return Ok(pods);
    }
    for family in Family::BOTH {
        for route in socket.routes(family)? {
            let link = links.iter().find(|link| route.oif == Some(link.ifindex));
            if let (Some(link), Some(address)) = (link, host_route(&route)) {
                pods.insert(address, PodLink { name: link.name.clone(), owner: link.owner.clone() });
            }
        }
    }
    Ok(pods)
}

pub(super) fn own_addresses() -> Result<BTreeSet<IpAddr>, MachineError> {
    Ok(Socket::route()?.addresses()?.iter().map(|address| address.net.addr()).collect())
}

/// The address of a host route, if packets for it are forwarded.
fn host_route(route: &Route) -> Option<IpAddr> {
    let nowhere = matches!(
        route.kind,
        RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw
    );
    (route.dst.prefix_len() == route.dst.max_prefix_len() && !nowhere).then(|| route.dst.addr())
}

#[derive(Default)]
struct Namespaces {
    found: BTreeMap<NetNsId, NetNs>,
    /// Those with a process.
    inhabited: BTreeSet<NetNsId>,
    /// Number of processes that could not be read.
    unseen: usize,
    /// Those of them that may be a pod's, which excludes processes in the machine's first
    /// namespace.
    hidden: usize,
}

/// Every network namespace that is visible to this process: those of processes, and those that are
/// only mounted; and the number of processes that could not be read. Those have more privileges
/// than this process, or this process is not root. A pod's namespace is mounted where the runtime
/// asked us to open it, so it is among the others.
fn namespaces() -> Result<Namespaces, MachineError> {
    let Namespaces { mut found, mut inhabited, mut unseen, mut hidden } = Namespaces::default();
    for path in processes()? {
        match NetNs::open(&path) {
            Ok(namespace) => {
                inhabited.insert(namespace.id());
                found.entry(namespace.id()).or_insert(namespace);
            }
            Err(error) if error.is_gone() || has_exited(&error) => {}
            Err(error) if error_is(&error, ErrorKind::PermissionDenied) => {
                unseen += 1;
                hidden += usize::from(path != Path::new(INIT));
            }
            Err(error) => return Err(error.into()),
        }
    }
    for path in mounts()? {
        match NetNs::open(&path) {
            Ok(namespace) => _ = found.entry(namespace.id()).or_insert(namespace),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Namespaces { found, inhabited, unseen, hidden })
}

/// Whether `/proc` shows the processes of the whole machine, and not only those of a container
/// around this process.
fn sees_all_processes() -> Result<bool, MachineError> {
    let path = Path::new("/proc/self/ns/pid");
    let namespace =
        std::fs::read_link(path).map_err(|source| MachineError::Namespaces { path: path.into(), source })?;
    Ok(namespace.as_os_str() == INIT_PIDS)
}

fn processes() -> Result<Vec<PathBuf>, MachineError> {
    let failed = |source| MachineError::Namespaces { path: "/proc".into(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            paths.push(entry.path().join("ns/net"));
        }
    }
    Ok(paths)
}

fn error_is(error: &NetNsError, kind: ErrorKind) -> bool {
    matches!(error, NetNsError::Io { source, .. } if source.kind() == kind)
}

/// A process that exits while it is read: its file exists and then has no process.
fn has_exited(error: &NetNsError) -> bool {
    const ESRCH: i32 = 3;
    matches!(error, NetNsError::Io { source, .. } if source.raw_os_error() == Some(ESRCH))
}

fn mounts() -> Result<Vec<PathBuf>, MachineError> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let read =
        std::fs::read(path).map_err(|source| MachineError::Namespaces { path: path.into(), source })?;
    Ok(read.split(|byte| *byte == b'\n').filter_map(mounted_namespace).collect())
}

/// The mount point in a line of mountinfo, if a network namespace is mounted there
/// (proc_pid_mountinfo(5)).
fn mounted_namespace(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    root.starts_with(b"net:[").then(|| OsString::from_vec(unescaped(point)).into())
}

/// Blanks and backslashes in mount points are written as three octal digits.
fn unescaped(point: &[u8]) -> Vec<u8> {
    let mut parts = point.split(|byte| *byte == b'\\');
    let mut text = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(byte);
                text.extend_from_slice(&part[3..]);
            }
            None => {
                text.push(b'\\');
                text.extend_from_slice(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_namespaces_are_found_at_any_path() {
        let line = "612 25 0:4 net:[4026532288] /run/net\\040ns/a\\134b rw shared:300 - nsfs nsfs rw";
        assert_eq!(mounted_namespace(line.as_bytes()), Some("/run/net ns/a\\b".into()));
        for other in [
            "612 25 0:4 mnt:[4026532288] /run/m rw - nsfs nsfs rw",
            "25 1 254:0 / / rw - ext4 /dev/vda rw",
            "",
        ] {
            assert_eq!(mounted_namespace(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn host_routes_that_forward_packets_are_evidence() {
        let route = |dst: &str, kind| host_route(&Route { kind, ..Route::new(dst.parse().unwrap()) });
        assert!(route("10.1.0.7/32", RouteKind::Unicast).is_some());
        assert!(route("fd00::7/128", RouteKind::Local).is_some());
        assert!(route("10.1.0.0/26", RouteKind::Unicast).is_none());
        for kind in [RouteKind::Blackhole, RouteKind::Unreachable, RouteKind::Prohibit, RouteKind::Throw] {
            assert!(route("10.1.0.7/32", kind).is_none(), "{kind:?}");
        }
    }
}
