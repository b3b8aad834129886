//! What of Russet's is on this node, in the kernel and in files, with or without an agent. `russet owned` prints it, `russet uninstall` takes it away.
//!
//! Everything in the kernel is known by its mark and by nothing that was written down, so nothing is missing after a crash.

pub mod flannel;
pub mod pods;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use russet_agent::Paths;
use russet_attach::marked::{self, Mark, MarkedLink, MarkedObjects};
use russet_linux::bpf::{LinkFilter, own_filters};
use russet_linux::sysctl;
use russet_netlink::{Address, NetlinkError, Route, Socket};
use russet_nft::{Nft, Table};
use russet_openshift::Served;
use russet_overlay::firewall::{EXCEPTION_COMMENT, Mode};
use russet_plugins::executable::{self, ExecutableOwner as Whose};
use russet_sandbox::SandboxId;
use serde::Serialize;

use crate::install::{self, CONFLIST, InstallError, Manifest, Saved, Service};
use flannel::Flannel;
use pods::{Keeper, PodsError};

/// Everything on the node that belongs to Russet.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Objects in the kernel; empty if the kernel was not read.
    pub kernel: MarkedObjects,
    /// Pods, as `namespace/name`, by the name of their interface on the node, as far as the agent's
    /// journal names them.
    pub pods: BTreeMap<String, String>,
    /// Filters of the fast path, where the kernel has no TCX.
    pub filters: Vec<LinkFilter>,
    /// Accept rules in foreign chains, by table.
    pub exceptions: Vec<Exception>,
    /// There are rules of legacy iptables, which may include some of Russet's.
    pub legacy_iptables: bool,
    /// What `russet flanneld` has left under flannel's names.
    pub flannel: Flannel,
    /// Pods' sandboxes, and the program that keeps each.
    pub sandboxes: Vec<(SandboxId, Keeper)>,
    pub files: Files,
}

/// A rule of Russet in a foreign chain.
#[derive(Debug, Clone)]
pub struct Exception {
    pub table: Table,
    pub chain: String,
}

/// Existing files.
#[derive(Debug, Default)]
pub struct Files {
    /// The files that make runtimes use Russet.
    pub conflists: Vec<PathBuf>,
    /// Services, and the links of `systemctl enable`.
    pub units: Vec<PathBuf>,
    /// Executables.
    pub programs: Vec<PathBuf>,
    /// Foreign files that were replaced, and their original paths.
    pub saved: Vec<(PathBuf, PathBuf)>,
    /// Sockets, locks and the like, which a reboot removes.
    pub run: Vec<PathBuf>,
    /// Files that survive a reboot, such as the allocated addresses.
    pub state: Vec<PathBuf>,
    /// The operator's settings.
    pub settings: Option<PathBuf>,
    /// Those of the directories for `run` and `state` that are mount points, in a pod.
    pub mounted: Vec<PathBuf>,
}

/// One object for the output.
#[derive(Debug, Serialize)]
pub struct Object {
    /// `link`, `route`, ...
    pub kind: &'static str,
    pub name: String,
    pub detail: String,
}

/// Sysctls that the agent enables and never disables, since others may need them.
const SYSCTLS: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];

/// The programs of the backend `udp`.
const DAEMONS_PROGRAMS: [&str; 2] = ["udp_send", "udp_receive"];

/// The directory of units that operators and installations write.
const UNIT_DIR: &str = "etc/systemd/system";

/// Reads files, and the kernel if `kernel` is set.
pub fn look(root: &Path, kernel: bool) -> Result<Inventory, LookError> {
    let mut inventory = Inventory { files: Files::look(root)?, ..Inventory::default() };
    for keeper in Keeper::ALL {
        let ids = keeper.sandboxes(&Paths::new(root))?;
        inventory.sandboxes.extend(ids.into_iter().map(|id| (id, keeper)));
    }
    if kernel {
        let mut host = Socket::route()?;
        inventory.kernel = marked::read(&mut host)?;
        inventory.flannel = Flannel::look(root, &inventory.kernel, &mut host)?;
        inventory.filters = own_filters(&mut host)?;
        if inventory.flannel.daemon.is_some() {
            inventory.filters.retain(|filter| !DAEMONS_PROGRAMS.contains(&filter.program.as_str()));
        }
        inventory.pods = pods_by_interface(&Paths::new(root));
        inventory.exceptions = exceptions()?;
        let tables = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
        let used = |path| std::fs::read(path).is_ok_and(|names| !names.is_empty());
        inventory.legacy_iptables = tables.into_iter().any(used);
    }
    Ok(inventory)
}

/// Pods, as `namespace/name`, by the name of their interface on the node. Empty without a journal:
/// names only help a reader.
pub fn pods_by_interface(paths: &Paths) -> BTreeMap<String, String> {
    let journal = russet_journal::view(&paths.journal_file()).ok().flatten();
    let attachments = journal.into_iter().flat_map(|view| view.attachments);
    attachments.filter_map(|attachment| Some((attachment.host_name?, attachment.pod?))).collect()
}

/// Why the objects could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The kernel cannot be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The manifest of the installation cannot be read.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The sandboxes cannot be listed.
    #[error(transparent)]
    Pods(#[from] PodsError),
    /// Flannel's daemons or rules cannot be read.
    #[error("look for what flanneld has left: {0}")]
    Flannel(String),
}

/// Empty if the kernel has no nf_tables, or if a table is deleted meanwhile.
fn exceptions() -> Result<Vec<Exception>, NetlinkError> {
    let mut nft = match Nft::open() {
        Err(error) if error.is_unsupported() => return Ok(Vec::new()),
        nft => nft?,
    };
    let tables = match nft.tables() {
        Err(error) if error.is_unsupported() => return Ok(Vec::new()),
        tables => tables?,
    };
    let mut found = Vec::new();
    for info in tables {
        let rules = match nft.rules(&info.table) {
            Err(error) if error.is_not_found() => continue,
            rules => rules?,
        };
        let ours = rules.into_iter().filter(|rule| rule.comment.as_deref() == Some(EXCEPTION_COMMENT));
        found.extend(ours.map(|rule| Exception { table: info.table.clone(), chain: rule.chain }));
    }
    Ok(found)
}

// === impl Files ===

impl Files {
    fn look(root: &Path) -> Result<Self, InstallError> {
        let paths = Paths::new(root);
        let manifest = Manifest::read(root)?;
        let mut files = Self::default();
        let copied = Service::ALL.map(|service| root.join(UNIT_DIR).join(service.unit()));
        let copied = copied.iter().filter(|file| !manifest.files.contains(file) && is_our_unit(file));
        for file in manifest.files.iter().chain(copied).filter(|file| exists(file)) {
            files.place(file);
        }
        let conflist = paths.conflist_dir().join(CONFLIST);
        if exists(&conflist) && !files.conflists.contains(&conflist) {
            files.conflists.push(conflist);
        }
        for Saved { path, saved } in manifest.saved.into_iter().filter(|it| exists(&it.saved)) {
            match executable::owner_of(&path) {
                // It is newer than the saved file, and stays.
                Whose::Foreign => files.programs.push(saved),
                Whose::Ours | Whose::Nothing => files.saved.push((saved, path)),
            }
        }
        let directories = [paths.run_dir(), paths.state_dir()];
        files.mounted = directories.into_iter().filter(|path| is_mount_point(path)).collect();
        files.run = below(&paths.run_dir());
        files.state = below(&paths.state_dir());
        if let Some(served) = Served::below(paths.root(), &paths.run_dir(), &paths.state_dir()) {
            files.conflists.extend(served.conflist);
            files.run.extend(below(&served.run_dir));
            files.state.extend(below(&served.addresses));
        }
        files.settings = Some(paths.settings_file()).filter(|file| exists(file));
        Ok(files)
    }

    fn place(&mut self, file: &Path) {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".conflist") || name.ends_with(".conf") {
            self.conflists.push(file.to_owned());
        } else if let Some(service) = Service::from_unit(name) {
            self.units.extend(enabled(file, service));
            self.units.push(file.to_owned());
        } else if install::is_previous(file) || executable::owner_of(file) != Whose::Foreign {
            // A package may have replaced the plugin with its own since. A unit of the version before is no executable.
            self.programs.push(file.to_owned());
        }
    }
}

/// Whether it is Russet's unit, perhaps copied by an operator; an operator's own unit of that name
/// is not.
fn is_our_unit(file: &Path) -> bool {
    std::fs::read(file).is_ok_and(|text| Service::is_ours(&text))
}

/// The links that `systemctl enable` made for a unit, or for a template's instances.
fn enabled(unit: &Path, service: Service) -> Vec<PathBuf> {
    let links = std::fs::read_dir(unit.with_file_name("multi-user.target.wants"));
    let links = links.into_iter().flatten().flatten().map(|entry| entry.path());
    let is_its = |link: &PathBuf| {
        let name = link.file_name().and_then(|name| name.to_str());
        link.is_symlink() && name.is_some_and(|name| service.is_unit(name))
    };
    let mut found: Vec<PathBuf> = links.filter(is_its).collect();
    found.sort();
    found
}

/// Also true for a dangling link.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Everything below a directory, contents before directories; does not follow links.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|all| all.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    entries.sort();
    for entry in entries {
        let is_dir = entry.symlink_metadata().is_ok_and(|it| it.is_dir());
        if is_dir {
            found.extend(below(&entry));
        } else {
            found.push(entry);
        }
    }
    if exists(dir) {
        found.push(dir.to_owned());
    }
    found
}

// === impl Inventory ===

impl Inventory {
    /// Interfaces of pods that are attached.
    pub fn pods(&self) -> impl Iterator<Item = &MarkedLink> {
        let is_pods = |link: &&MarkedLink| link.owner.is_some() || is_sdns(&link.mark);
        self.kernel.links.iter().filter(is_pods).filter(|link| !link.doomed)
    }

    /// Everything, one line each.
    pub fn objects(&self, paths: &Paths) -> Vec<Object> {
        let mut all = Vec::new();
        self.kernel.links.iter().for_each(|link| all.extend(of_link(link, self.pods.get(&link.name))));
        let route = |route: &Route| object("route", route.dst, describe(route, &self.kernel.link_names));
        all.extend(self.kernel.routes.iter().map(route));
        let address = |found: &Address| object("address", found.net, "at which other nodes probe this one");
        all.extend(self.kernel.addresses.iter().map(address));
        let filter = |filter: &LinkFilter| {
            let link = self.kernel.link_names.get(&filter.ifindex).cloned();
            object(
                "filter",
                link.unwrap_or_else(|| filter.ifindex.to_string()),
                format!("BPF program {}", filter.program),
            )
        };
        all.extend(self.filters.iter().map(filter));
        all.extend(self.kernel.tables.iter().map(|table| object("nftables table", table, "")));
        self.flannel_objects(&mut all);
        for Exception { table, chain } in &self.exceptions {
            all.push(object(
                "nftables rule",
                format!("{table} {chain}"),
                "accepts the pods' forwarded packets, in a foreign chain",
            ));
        }
        for name in SYSCTLS {
            if let Ok(value) = sysctl::read(name)
                && value == "1"
                && !self.kernel.tables.is_empty()
            {
                all.push(object("sysctl", name, "1; needed for pods, stays after an uninstall"));
            }
        }
        let keepers = self.sandboxes.iter();
        all.extend(
            keepers
                .map(|(id, keeper)| object("sandbox", id, format!("removed by: {}", keeper.remedy(paths)))),
        );
        self.files.objects(&mut all);
        all
    }
}

impl Inventory {
    fn flannel_objects(&self, all: &mut Vec<Object>) {
        let Flannel { daemon, devices, rules, files } = &self.flannel;
        if let Some((pid, name)) = daemon {
            all.push(object("process", pid, format!("{name}; its devices, rules and files are not listed")));
        }
        all.extend(devices.iter().map(|(_, name)| object("link", name, "of russet flanneld")));
        let place = |mode: &Mode| match mode {
            Mode::Nft => "ip flannel-ipv4, ip6 flannel-ipv6",
            Mode::Iptables => "flannel's chains of iptables",
        };
        all.extend(
            rules
                .iter()
                .map(|mode| object("rules", place(mode), "masquerade and forward rules of russet flanneld")),
        );
        all.extend(
            files
                .iter()
                .map(|path| object(kind_of(path).unwrap_or("file"), path.display(), "of russet flanneld")),
        );
    }
}

impl Files {
    fn objects(&self, all: &mut Vec<Object>) {
        let lists = [
            ("file", "network configuration", &self.conflists),
            ("file", "service", &self.units),
            ("file", "program", &self.programs),
            ("file", "gone after a reboot", &self.run),
            ("file", "state", &self.state),
        ];
        for (kind, detail, list) in lists {
            all.extend(list.iter().map(|path| object(kind_of(path).unwrap_or(kind), path.display(), detail)));
        }
        for (saved, path) in &self.saved {
            all.push(object("file", saved.display(), format!("what was at {} before", path.display())));
        }
        let settings = self.settings.iter();
        all.extend(settings.map(|path| object("file", path.display(), "settings; the operator's")));
    }
}

fn kind_of(path: &Path) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = path.symlink_metadata().ok()?.file_type();
    if kind.is_socket() {
        Some("socket")
    } else if kind.is_dir() {
        Some("directory")
    } else {
        None
    }
}

fn object(kind: &'static str, name: impl ToString, detail: impl ToString) -> Object {
    Object { kind, name: name.to_string(), detail: detail.to_string() }
}

fn of_link(link: &MarkedLink, pod: Option<&String>) -> Vec<Object> {
    let on = format!("on {}", link.name);
    let doomed = if link.doomed { ", waits for its deletion" } else { "" };
    let pod = pod.map(|pod| format!(", pod {pod}")).unwrap_or_default();
    let mut all = vec![object("link", &link.name, format!("{}{pod}{doomed}", link.mark))];
    for entry in &link.fdb {
        let to = entry.dst.map_or_else(String::new, |dst| format!(" to {dst}"));
        all.push(object("forwarding entry", format!("{}{to}", entry.mac), &on));
    }
    all.extend(link.neighbours.iter().map(|found| object("neighbour", found.address, &on)));
    all
}

/// Whether it is the interface of a pod of OpenShift's network.
fn is_sdns(mark: &Mark) -> bool {
    matches!(mark, Mark::Alias(alias) if alias.starts_with("russet-sdn:"))
}

/// The destination of a route's packets; `names` are those of links by index.
pub fn describe(route: &Route, names: &BTreeMap<u32, String>) -> String {
    let via = route.gateway.map(|gateway| format!("via {gateway}"));
    let table = (route.table != Route::MAIN).then(|| format!("table {}", route.table));
    let dev = route.oif.map(|oif| match names.get(&oif) {
        Some(name) => format!("dev {name}"),
        None => format!("dev {oif} (this link is gone)"),
    });
    let kind = (via.is_none() && dev.is_none()).then(|| "into the blackhole".to_owned());
    [via, dev, kind, table].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_its_link() {
        let names = BTreeMap::from([(7, "eth0".to_owned())]);
        let to = |oif| describe(&Route::dev("10.1.0.0/26".parse().unwrap(), oif), &names);
        assert_eq!(to(7), "dev eth0");
        assert_eq!(to(8), "dev 8 (this link is gone)");
    }

    #[test]
    fn files_are_listed_before_the_directories_that_hold_them_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run/russet");
        std::fs::create_dir_all(run.join("locks")).unwrap();
        std::fs::write(run.join("locks/pod-a"), "").unwrap();
        std::os::unix::fs::symlink("/etc", run.join("elsewhere")).unwrap();
        let names = look(root.path(), false).unwrap().files.run;
        let names: Vec<_> = names.iter().map(|path| path.strip_prefix(root.path()).unwrap()).collect();
        let wanted = ["run/russet/elsewhere", "run/russet/locks/pod-a", "run/russet/locks", "run/russet"];
        assert_eq!(names, wanted.map(Path::new));
    }
}
