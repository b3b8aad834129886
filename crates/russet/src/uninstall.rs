//! Removes everything of Russet from this node. [`plan`] is pure and orders what [`crate::owned`]
//! found; [`carry_out`] executes one step. A missing object counts as removed, so the next
//! uninstall completes an interrupted one.

mod node_object;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use russet_attach::marked::{self, Mark};
use russet_attach::nat::NatError;
use russet_linux::bpf::{LinkFilter, remove_filter};
use russet_netlink::{Address, NetlinkError, Route, Socket};
use russet_nft::Table;
use russet_overlay::firewall::{Firewall, FirewallError, FirewallReport, Mode};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Serialize, Serializer};

use crate::install::RECORD;
use crate::owned::{Inventory, describe};
pub use node_object::{NodeObject, NodeObjectError};

/// One object to remove.
#[derive(Debug, Clone)]
pub enum Step {
    /// A file, socket or empty directory.
    File(PathBuf),
    /// A foreign file, to be restored.
    Restore {
        /// Its path now.
        saved: PathBuf,
        /// Its original path.
        path: PathBuf,
    },
    /// Marks on the node's object in the Kubernetes API.
    NodeObject(Arc<NodeObject>),
    /// A link, with its entries.
    Link {
        ifindex: u32,
        name: String,
        /// Russet's mark on it; the link stays if it has another by then.
        mark: Mark,
        /// The number of neighbour and FDB entries on it.
        entries: usize,
    },
    /// A device of `russet flanneld`, which has no mark.
    FlannelDevice { ifindex: u32, name: String },
    /// The rules of `russet flanneld` in flannel's tables or chains.
    FlannelRules(Mode),
    /// A route, and the description of its destination.
    Route(Route, String),
    /// An address at which other nodes probe this one.
    Address(Address),
    /// A filter of the fast path at a link of this name.
    Filter(LinkFilter, String),
    /// Accept rules in foreign chains.
    Exceptions(usize),
    /// A table of nf_tables.
    Table(Table),
}

/// The optional parts of an uninstall.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Attached pods lose their interfaces.
    pub pods: bool,
    /// The state is removed, too: the embedded store with its addresses, the history.
    pub state: bool,
    /// The node's object in the Kubernetes API loses Russet's marks, too.
    pub node_object: Option<Arc<NodeObject>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A link or route.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A table.
    #[error(transparent)]
    Nat(#[from] NatError),
    /// Foreign chains.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// The node's object.
    #[error(transparent)]
    NodeObject(#[from] NodeObjectError),
    #[error("{operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// The steps in order: first the files that make runtimes start pods, then the node's object, then routes and links, then
/// the rules that filter packets, and other files last. The manifest is removed after the files
/// that it lists, and then the locks that prevent others from starting, with their directories.
pub fn plan(inventory: &Inventory, reach: &Options) -> Vec<Step> {
    let files = &inventory.files;
    let file = |path: &PathBuf| Step::File(path.clone());
    let mut steps: Vec<Step> = files.conflists.iter().map(file).collect();
    steps.extend(reach.node_object.iter().cloned().map(Step::NodeObject));
    let pods: Vec<u32> = inventory.pods().map(|link| link.ifindex).collect();
    let stays = |ifindex: u32| !reach.pods && pods.contains(&ifindex);
    // Before the routes and tables that show whose these are.
    let flannel = &inventory.flannel;
    steps.extend(flannel.files.iter().map(file));
    steps.extend(flannel.rules.iter().copied().map(Step::FlannelRules));
    let routes = inventory.kernel.routes.iter().filter(|route| !route.oif.is_some_and(stays));
    let routes = routes.filter(|route| !flannel.uses(route));
    let names = &inventory.kernel.link_names;
    steps.extend(routes.map(|route| Step::Route(route.clone(), describe(route, names))));
    steps.extend(inventory.kernel.addresses.iter().cloned().map(Step::Address));
    for filter in &inventory.filters {
        let link = names.get(&filter.ifindex).cloned();
        steps.push(Step::Filter(filter.clone(), link.unwrap_or_else(|| filter.ifindex.to_string())));
    }
    for link in inventory.kernel.links.iter().filter(|link| !stays(link.ifindex)) {
        let entries = link.fdb.len() + link.neighbours.len();
        let (name, mark) = (link.name.clone(), link.mark.clone());
        steps.push(Step::Link { ifindex: link.ifindex, name, mark, entries });
    }
    for (ifindex, name) in &flannel.devices {
        steps.push(Step::FlannelDevice { ifindex: *ifindex, name: name.clone() });
    }
    if !inventory.exceptions.is_empty() || inventory.legacy_iptables {
        steps.push(Step::Exceptions(inventory.exceptions.len()));
    }
    let tables = inventory.kernel.tables.iter().filter(|table| !flannel.uses_table(&table.name));
    steps.extend(tables.cloned().map(Step::Table));
    steps.extend(files.units.iter().chain(&files.programs).map(file));
    for (saved, path) in &files.saved {
        steps.push(Step::Restore { saved: saved.clone(), path: path.clone() });
    }
    let (locks, run): (Vec<_>, Vec<_>) = files.run.iter().partition(|path| is_lock(path) || is_dir(path));
    steps.extend(run.into_iter().map(file));
    // Without the manifest, the next run would not know what an interrupted uninstall has left.
    let is_record = |path: &&PathBuf| path.file_name().is_some_and(|name| name == RECORD);
    let (record, state): (Vec<_>, Vec<_>) = files.state.iter().partition(|path| is_record(path));
    let (dirs, state): (Vec<_>, Vec<_>) = state.into_iter().partition(|path| is_dir(path));
    let gone = |path: &&PathBuf| reach.state || is_socket(path);
    steps.extend(state.into_iter().filter(gone).map(file));
    steps.extend(record.into_iter().map(file));
    steps.extend(dirs.into_iter().filter(|_| reach.state).map(file));
    steps.extend(locks.into_iter().map(file));
    // In a pod the directories of the node are mounted, and cannot be removed from within.
    steps.retain(|step| !matches!(step, Step::File(path) if files.mounted.contains(path)));
    steps
}

/// The node's lock, a socket's, or a sandbox keeper's.
fn is_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b"lock"))
}

fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_dir())
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket())
}

/// Executes one step.
pub fn carry_out(step: &Step) -> Result<(), StepError> {
    match step {
        Step::File(path) => remove(path),
        Step::Restore { saved, path } => match fs::rename(saved, path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StepError::Io { operation: "restore", path: path.clone(), source })
            }
            _ => Ok(()),
        },
        Step::NodeObject(object) => Ok(object.clean()?),
        Step::Link { ifindex, mark, .. } => Ok(marked::remove_link(&mut Socket::route()?, *ifindex, mark)?),
        Step::FlannelDevice { ifindex, name } => {
            Ok(marked::remove_named(&mut Socket::route()?, *ifindex, name)?)
        }
        Step::FlannelRules(mode) => first_failure(Firewall::open(*mode)?.withdraw()),
        Step::Route(route, _) => Ok(marked::remove_route(&mut Socket::route()?, route)?),
        Step::Address(address) => Ok(marked::remove_address(&mut Socket::route()?, address)?),
        Step::Filter(filter, _) => Ok(remove_filter(&mut Socket::route()?, filter).map(drop)?),
        Step::Exceptions(_) => first_failure(Firewall::exceptions()?.withdraw()),
        Step::Table(table) => Ok(marked::remove_table(table)?),
    }
}

fn first_failure(report: FirewallReport) -> Result<(), StepError> {
    report.failed.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}

fn remove(path: &Path) -> Result<(), StepError> {
    let again = || if is_dir(path) { fs::remove_dir(path) } else { fs::remove_file(path) };
    let removed = match again() {
        // If sandboxes' namespaces were named there, a mount remains.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && is_dir(path) => {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            unmount(path, flags).map_err(io::Error::from).and_then(|()| again())
        }
        removed => removed,
    };
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StepError::Io { operation: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

// === impl Step ===

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::File(path) => write!(f, "remove {}", path.display()),
            Step::Restore { saved, path } => {
                write!(f, "put {} back as {}", saved.display(), path.display())
            }
            Step::NodeObject(object) => {
                write!(f, "remove Russet's condition, taint, annotations and lease of node {}", object.name)
            }
            Step::Link { name, mark, entries: 0, .. } => write!(f, "delete link {name} ({mark})"),
            Step::Link { name, mark, entries, .. } => {
                write!(f, "delete link {name} ({mark}) with {entries} entries on it")
            }
            Step::FlannelDevice { name, .. } => write!(f, "delete link {name} (of russet flanneld)"),
            Step::FlannelRules(Mode::Nft) => {
                f.write_str("delete tables ip flannel-ipv4 and ip6 flannel-ipv6 (of russet flanneld)")
            }
            Step::FlannelRules(Mode::Iptables) => {
                f.write_str("delete flannel's rules from iptables (of russet flanneld)")
            }
            Step::Route(route, path) => write!(f, "delete route {} {path}", route.dst),
            Step::Address(address) => {
                write!(f, "delete address {}, at which other nodes probe this one", address.net)
            }
            Step::Filter(filter, link) => write!(f, "delete filter {} from link {link}", filter.program),
            Step::Exceptions(0) => {
                f.write_str("delete Russet's rules from chains of legacy iptables, if there are any")
            }
            Step::Exceptions(count) => write!(f, "delete {count} of Russet's rules from foreign chains"),
            Step::Table(table) => write!(f, "delete table {table}"),
        }
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned;

    #[test]
    fn configuration_is_removed_first_and_the_manifest_last_before_the_locks() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let program = make("opt/cni/bin/russet");
        let before = make("opt/cni/bin/loopback.before-russet");
        make("etc/cni/net.d/10-russet.conflist");
        make("etc/russet/russet.toml");
        make("run/russet/mtu");
        make("run/russet/cri/lock");
        make("run/russet/node.lock");
        make("var/lib/russet/store.redb");
        let record = make("var/lib/russet/installed.json");
        let text = serde_json::json!({"schema": 1, "files": [program],
            "saved": [{"path": root.path().join("opt/cni/bin/loopback"), "saved": before}]});
        fs::write(&record, text.to_string()).unwrap();

        let words = |reach: &Options| {
            let steps = plan(&owned::look(root.path(), false).unwrap(), reach);
            let words = steps.iter().map(|step| step.to_string().replace(root.path().to_str().unwrap(), ""));
            (words.collect::<Vec<_>>(), steps)
        };
        let conflist_to_mtu = [
            "remove /etc/cni/net.d/10-russet.conflist",
            "remove /opt/cni/bin/russet",
            "put /opt/cni/bin/loopback.before-russet back as /opt/cni/bin/loopback",
            "remove /run/russet/mtu",
        ];
        // Until then no program can start.
        let locks = ["cri/lock", "cri", "node.lock", ""];
        let locks = locks.map(|it| format!("remove /run/russet/{it}").trim_end_matches('/').to_owned());
        let keeping = words(&Options::default()).0;
        assert_eq!(keeping[..4], conflist_to_mtu);
        assert_eq!(keeping[4], "remove /var/lib/russet/installed.json");
        assert_eq!(keeping[5..], locks);
        let purge = Options { state: true, ..Options::default() };
        let (all, steps) = words(&purge);
        assert_eq!(all[..4], conflist_to_mtu);
        let state = ["store.redb", "installed.json", ""].map(|it| format!("remove /var/lib/russet/{it}"));
        assert_eq!(all[4..7], state.map(|it| it.trim_end_matches('/').to_owned()));
        assert_eq!(all[7..], locks);
        // Interrupted in the middle, and started again.
        steps[..3].iter().for_each(|step| carry_out(step).unwrap());
        steps.iter().for_each(|step| carry_out(step).unwrap());
        assert!(words(&purge).0.is_empty());
        assert!(root.path().join("opt/cni/bin/loopback").exists());
        assert!(root.path().join("etc/russet/russet.toml").exists(), "the operator's own");
    }
}
