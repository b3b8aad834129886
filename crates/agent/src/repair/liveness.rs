//! Whether an address is leaked: the allocator's entry and the evidence of one check in, a decision
//! out. Pure.
//!
//! Whatever is unknown counts as in use. An entry is leaked only if it has the form of a pod's, is
//! older than the grace period, and neither the machine nor any record has a trace of it; and it is
//! released only if two checks agree (`calico#5044`, `#12257`: one check of one source released the
//! addresses of running pods).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use russet_addr::{ContainerId, EndpointId, IfName, IpNet, NetworkName};
use russet_attach::{OwnedLink, Owner};
use russet_ipam::Held;
use russet_model::{Attribute, HandleId, time};
use russet_runtime::Attached;

/// What the machine itself knows of attachments.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Owners of Russet's links, including doomed ones.
    pub links: Vec<Owner>,
    /// The node's own addresses.
    pub own: BTreeSet<IpAddr>,
    /// Addresses with a host route, whichever program added it.
    pub routes: BTreeSet<IpAddr>,
    /// Addresses of interfaces, with their namespaces.
    pub interfaces: BTreeMap<IpAddr, PathBuf>,
    /// Number of namespaces that were read.
    pub namespaces: usize,
    /// Number of processes whose namespace could not be read.
    pub unseen: usize,
    /// The attachments in runtimes' caches.
    pub cached: Vec<Attached>,
    /// Russet's links.
    pub owned: Vec<OwnedLink>,
    /// Indexes of links whose peer is in a namespace with a process, with the peer's index; it may
    /// contain others.
    pub inhabited: BTreeSet<(u32, u32)>,
    /// The namespaces of all processes that may be a pod's could be read.
    pub sees_processes: bool,
}

/// The content of a workload endpoint's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub key: String,
    /// Its container; none if the record names none.
    pub container: Option<String>,
    pub nets: Vec<IpNet>,
}

/// The evidence that an address is in use. A missing part counts as no evidence, so a caller that
/// could not read a part must not decide.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub machine: &'a Machine,
    pub endpoints: &'a [Endpoint],
    /// The tunnel addresses in the nodes' records.
    pub tunnels: &'a BTreeSet<IpAddr>,
    /// IDs of containers with a request since the first check.
    pub requested: &'a BTreeSet<String>,
    /// The time before the check.
    pub now: SystemTime,
    /// Entries younger than this are skipped.
    pub grace: Duration,
}

/// Why an entry counts as in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alive {
    /// It was not allocated for a pod by a CNI plugin.
    NotAPods(&'static str),
    /// A node's record has it as a tunnel address.
    Tunnel,
    /// It is younger than the grace period, or its time cannot be parsed.
    Young(String),
    /// There was a request for its container since the first check.
    Requested,
    /// A link of Russet's belongs to its container.
    Link(String),
    /// It has a host route.
    Route,
    /// An interface has it.
    Interface(PathBuf),
    /// A runtime's cache has it.
    Cached(PathBuf),
    /// An endpoint has it, or its container.
    Endpoint(String),
}

/// Ok if the entry is leaked. Cheap evidence is checked first.
pub fn check_leaked(entry: &Held, evidence: &Evidence<'_>) -> Result<(), Alive> {
    let handle = pods_handle(&entry.attribute).map_err(Alive::NotAPods)?;
    let compared =
        ComparedEntry { address: entry.address, handle, interface: entry.attribute.get("interface") };
    if evidence.tunnels.contains(&entry.address) {
        return Err(Alive::Tunnel);
    }
    if let Some(text) = entry.attribute.get("timestamp") {
        let old = go_time(text).and_then(|taken| taken.checked_add(evidence.grace));
        if old.is_none_or(|old| old > evidence.now) {
            return Err(Alive::Young(text.to_owned()));
        }
    }
    if evidence.requested.iter().any(|container| compared.is_of_container(container)) {
        return Err(Alive::Requested);
    }
    compared.on(evidence.machine)?;
    match evidence.endpoints.iter().find(|endpoint| compared.named_by(endpoint)) {
        Some(endpoint) => Err(Alive::Endpoint(endpoint.key.clone())),
        None => Ok(()),
    }
}

/// The handle, if a CNI plugin allocated the address for a container; otherwise why not.
fn pods_handle(attribute: &Attribute) -> Result<&str, &'static str> {
    let handle = attribute.handle_id.as_deref().map(HandleId::sanitized).ok_or("it has no handle")?;
    let names = |name: &str| attribute.get(name).is_some();
    let virtual_machine = !attribute.alternate_owner.is_empty()
        || handle.contains(".vmi.")
        || attribute.secondary.iter().flatten().any(|(name, _)| name.starts_with("vm"));
    if attribute.released_at.is_some() {
        return Err("it was released and cools down");
    }
    if handle == HandleId::WINDOWS_RESERVED {
        return Err("it is reserved for Windows");
    }
    if names("type") || handle.contains("-tunnel-addr-") {
        return Err("it is a tunnel's or a service's");
    }
    if virtual_machine {
        return Err("it is a virtual machine's, which keeps it while it is off");
    }
    // Peers before 3.18 write no time; the others write at least that, and all write the pod if
    // there is one (calico-ipam.md section 1.4).
    let pods = (names("pod") && names("namespace")) || names("interface") || names("timestamp");
    if !(pods && handle.contains('.')) {
        return Err("it is of unknown source");
    }
    Ok(handle)
}

/// Parses `2026-01-02 03:04:05.678901234 +0000 UTC`.
fn go_time(text: &str) -> Option<SystemTime> {
    let mut words = text.split_whitespace();
    let (date, clock, zone) = (words.next()?, words.next()?, words.next()?);
    (zone == "+0000").then(|| time::parse_rfc3339(&format!("{date}T{clock}Z")))?
}

/// The entry that is compared with the evidence.
#[derive(Debug, Clone, Copy)]
struct ComparedEntry<'a> {
    address: IpAddr,
    handle: &'a str,
    /// None in entries of Go peers, which then cover every interface of the container.
    interface: Option<&'a str>,
}

// === impl ComparedEntry ===

impl ComparedEntry<'_> {
    fn on(&self, machine: &Machine) -> Result<(), Alive> {
        if let Some(link) = machine.links.iter().find(|link| self.wired_by(link)) {
            return Err(Alive::Link(link.to_string()));
        }
        if machine.routes.contains(&self.address) {
            return Err(Alive::Route);
        }
        if let Some(namespace) = machine.interfaces.get(&self.address) {
            return Err(Alive::Interface(namespace.clone()));
        }
        match machine.cached.iter().find(|cached| self.cached_by(cached)) {
            Some(cached) => Err(Alive::Cached(cached.path.clone())),
            None => Ok(()),
        }
    }

    /// Whether the handle belongs to this container, on any network. Both names may contain a dot:
    /// then both readings count.
    fn is_of_container(&self, container: &str) -> bool {
        self.handle.strip_suffix(container).is_some_and(|network| network.ends_with('.'))
    }

    fn is_interface(&self, ifname: &IfName) -> bool {
        self.interface.is_none_or(|interface| interface == ifname.as_str())
    }

    fn wired_by(&self, link: &Owner) -> bool {
        match link.id() {
            Some(id) => self.is_of_container(id.container.as_str()) && self.is_interface(&id.ifname),
            None => self.perhaps_hashed(link),
        }
    }

    /// A link whose alias had no space for the names: compared by its hash if possible, otherwise
    /// it may be the one.
    fn perhaps_hashed(&self, link: &Owner) -> bool {
        let Some(container) = on_network(self.handle, link.network()) else { return false };
        let interface = self.interface.and_then(|name| IfName::new(name).ok());
        match (ContainerId::new(container), interface) {
            (Ok(container), Some(ifname)) => {
                link.is(&EndpointId { network: link.network().clone(), container, ifname })
            }
            _ => true,
        }
    }

    fn cached_by(&self, cached: &Attached) -> bool {
        let owned = |owner: &EndpointId| {
            self.is_of_container(owner.container.as_str()) && self.is_interface(&owner.ifname)
        };
        cached.addresses.contains(&self.address) || cached.owner.as_ref().is_some_and(owned)
    }

    fn named_by(&self, endpoint: &Endpoint) -> bool {
        endpoint.nets.iter().any(|net| net.contains(&self.address))
            || endpoint.container.as_deref().is_some_and(|container| self.is_of_container(container))
    }
}

fn on_network<'a>(handle: &'a str, network: &NetworkName) -> Option<&'a str> {
    handle.strip_prefix(network.as_str())?.strip_prefix('.')
}

// === impl Alive ===

impl fmt::Display for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPods(why) => f.write_str(why),
            Self::Tunnel => f.write_str("a node's record has it as a tunnel address"),
            Self::Young(taken) => write!(f, "it was taken at {taken}"),
            Self::Requested => f.write_str("its container had a request meanwhile"),
            Self::Link(owner) => write!(f, "a link is for {owner}"),
            Self::Route => f.write_str("it has a route"),
            Self::Interface(namespace) => write!(f, "an interface in {} has it", namespace.display()),
            Self::Cached(file) => write!(f, "a runtime has it attached: {}", file.display()),
            Self::Endpoint(key) => write!(f, "endpoint {key} names it"),
        }
    }
}

#[cfg(test)]
mod tests;
