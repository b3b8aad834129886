//! What `russet flanneld` has left under flannel's names: devices, rules and files.
//!
//! They carry no mark, because flannel's daemon and plugin know them by their names. They are Russet's where there are routes with the protocol of
//! Russet's daemon, or its guards, which flannel's daemon has not; where no flannel daemon of either kind runs; and where no route of another
//! program leads through a device of these names, as flannel's routes do once its daemon works again.

use std::path::{Path, PathBuf};

use russet_addr::Family;
use russet_attach::marked::{FLANNEL_ROUTE_PROTOCOL, MarkedObjects};
use russet_flanneld::Predecessor;
use russet_netlink::{NetlinkError, Route, Socket};
use russet_overlay::firewall::{self, Mode};

use super::{LookError, below};

/// What is left.
#[derive(Debug, Default)]
pub struct Flannel {
    /// A daemon that runs, with its name: everything is in use.
    pub daemon: Option<(u32, String)>,
    /// Index and name of each device.
    pub devices: Vec<(u32, String)>,
    /// Where masquerade and forward rules are.
    pub rules: Vec<Mode>,
    /// Subnet and key, and their directory if it has nothing else.
    pub files: Vec<PathBuf>,
}

/// The prefix of the tables with the daemon's guards.
const GUARDS: &str = "russet-flannel-";
/// Devices: `flannel.1`, `flannel-v6.1`, `flannel.ipip`, `flannel-wg`, `flannel-wg-v6`. The daemon itself removes `flannel0`.
const DEVICES: [&str; 3] = ["flannel.", "flannel-v6.", "flannel-wg"];
/// What the daemon writes, below the root.
const DIRECTORY: &str = "run/flannel";
const FILES: [&str; 2] = ["subnet.env", "wgkey"];

// === impl Flannel ===

impl Flannel {
    /// Reads it; nothing is found where nothing shows that it is Russet's.
    pub fn look(root: &Path, marked: &MarkedObjects, host: &mut Socket) -> Result<Self, LookError> {
        if !has_evidence(marked) {
            return Ok(Self::default());
        }
        let daemons = Predecessor::all().map_err(|error| LookError::Flannel(error.to_string()))?;
        if let Some(daemon) = daemons.first() {
            return Ok(Self { daemon: Some((daemon.pid, daemon.name.clone())), ..Self::default() });
        }
        let all = marked.link_names.iter().map(|(ifindex, name)| (*ifindex, name.clone()));
        let all: Vec<_> = all.filter(|(_, name)| is_device(name)).collect();
        let routes = routes(host)?;
        let is_foreign =
            |(ifindex, _): &(u32, String)| routes.iter().any(|route| is_foreign(route, *ifindex));
        if all.iter().any(is_foreign) {
            // Rules and files are those of the program that has the routes.
            let devices = all.into_iter().filter(|device| !is_foreign(device)).collect();
            return Ok(Self { devices, ..Self::default() });
        }
        let rules = firewall::survey().map_err(|error| LookError::Flannel(error.to_string()))?;
        Ok(Self { daemon: None, devices: all, rules, files: files(root) })
    }

    /// Whether a route stays, because a daemon uses it.
    pub fn uses(&self, route: &Route) -> bool {
        self.daemon.is_some() && route.protocol == FLANNEL_ROUTE_PROTOCOL
    }

    /// Whether a table stays, for the same reason.
    pub fn uses_table(&self, name: &str) -> bool {
        self.daemon.is_some() && name.starts_with(GUARDS)
    }
}

/// Whether Russet's daemon has worked here.
fn has_evidence(marked: &MarkedObjects) -> bool {
    marked.routes.iter().any(|route| route.protocol == FLANNEL_ROUTE_PROTOCOL)
        || marked.tables.iter().any(|table| table.name.starts_with(GUARDS))
}

fn is_device(name: &str) -> bool {
    DEVICES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether another program than Russet and the kernel routes through a device.
fn is_foreign(route: &Route, ifindex: u32) -> bool {
    route.oif == Some(ifindex) && ![Route::PROTOCOL_KERNEL, FLANNEL_ROUTE_PROTOCOL].contains(&route.protocol)
}

fn routes(host: &mut Socket) -> Result<Vec<Route>, NetlinkError> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        match host.routes(family) {
            Err(error) if error.is_unsupported() => {}
            routes => all.extend(routes?),
        }
    }
    Ok(all)
}

fn files(root: &Path) -> Vec<PathBuf> {
    let directory = root.join(DIRECTORY);
    let all = below(&directory);
    let is_ours = |path: &PathBuf| FILES.iter().any(|name| *path == directory.join(name));
    match all.iter().all(|path| is_ours(path) || *path == directory) {
        true => all,
        false => all.into_iter().filter(is_ours).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flannels_devices_and_files_are_meant() {
        for name in ["flannel.1", "flannel-v6.4096", "flannel.ipip", "flannel-wg", "flannel-wg-v6"] {
            assert!(is_device(name), "{name}");
        }
        for name in ["flannel0", "cni0", "vxlan.calico", "eth0"] {
            assert!(!is_device(name), "{name}");
        }
        let root = tempfile::tempdir().unwrap();
        assert!(files(root.path()).is_empty());
        let directory = root.path().join(DIRECTORY);
        std::fs::create_dir_all(&directory).unwrap();
        for name in FILES {
            std::fs::write(directory.join(name), "").unwrap();
        }
        let both = FILES.map(|name| directory.join(name));
        assert_eq!(files(root.path()), [&both[..], std::slice::from_ref(&directory)].concat());
        std::fs::write(directory.join("foreign"), "").unwrap();
        assert_eq!(files(root.path()), both);
    }
}
