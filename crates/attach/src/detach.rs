//! Removes an interface in any state: complete, half-wired, already doomed, or with its namespace
//! gone.
//!
//! Only links whose alias names the container and interface are touched, and precreated ones that a
//! killed ADD of theirs left. Deferred removal returns at once: the kernel drops routes and
//! neighbours of a link that goes down, both ends get doomed names, so that the next ADD of the
//! same pod finds its own names free, and [`reap`](crate::reap) deletes the group later
//! (ARCHITECTURE.md, "Time budgets"). A failing part never prevents the others.

use std::fmt;

use russet_addr::{EndpointId, IfName};
use russet_linux::NetNs;
use russet_netlink::{Batch, Link, LinkDel, LinkSet, NetlinkError, Socket};

use crate::attachment::{Dialect, PRIMARY_IFNAME};
use crate::reap::{OwnedLink, owned};
use crate::{DOOMED_GROUP, inspect, naming, rules};

/// What to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detachment {
    pub id: EndpointId,
    /// The host end's name, if it is known: saves a dump of all links.
    pub host_name: Option<IfName>,
    /// For Calico's dialect: only this container can have a veth called `host_name`, so it is
    /// deleted even without an owner, because Calico's own plugin writes none. Not for a DEL: the
    /// pod's next sandbox, wired by either program, has the same name.
    pub by_name_alone: bool,
    /// The conventions that the node follows: with Calico's, an interface of Calico's own plugin is
    /// removed, too.
    pub dialect: Dialect,
    /// When the links are deleted.
    pub removal: Removal,
}

/// When links are deleted, which costs the kernel 20 ms, for one as for thirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// By the next [`reap`](crate::reap).
    Deferred,
    /// By the [`reap_unless_gone`](crate::reap_unless_gone) that the same request calls before it
    /// answers, together with what other processes have left by then.
    Batched,
    /// Before `detach` returns.
    Synchronous,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detached {
    /// The host ends that were found, by index; normally one, none if there was nothing to do.
    pub host_ifindexes: Vec<u32>,
}

/// Some parts could not be removed; the others were.
#[derive(Debug, thiserror::Error)]
#[error("detach {} of {}: {}", .id.ifname, .id.container, joined(.errors))]
pub struct DetachError {
    pub id: EndpointId,
    /// What was removed.
    pub detached: Detached,
    /// The errors, in order.
    pub errors: Vec<String>,
}

/// The pod's side, if its namespace can still be opened.
struct PodSide {
    socket: Socket,
    link: Option<Link>,
}

/// The errors so far.
#[derive(Default)]
struct Errors(Vec<String>);

fn joined(errors: &[String]) -> String {
    errors.join("; ")
}

/// Removes the interface. If there is none, that is success, any number of times.
pub fn detach(host: &mut Socket, what: &Detachment, netns: Option<&NetNs>) -> Result<Detached, DetachError> {
    detach_with(host, what, netns, &mut |_| {})
}

/// The same; `leaving` is called for each host end while it still has its name, before another
/// interface can use it.
pub fn detach_with(
    host: &mut Socket,
    what: &Detachment,
    netns: Option<&NetNs>,
    leaving: &mut dyn FnMut(&OwnedLink),
) -> Result<Detached, DetachError> {
    let mut errors = Errors::default();
    let mut pod = netns.and_then(|netns| errors.note(PodSide::open(netns, &what.id.ifname))).flatten();
    let pod_link = pod.as_ref().and_then(|pod| pod.link.clone());
    let links = errors.note(find(host, what, pod_link.as_ref())).unwrap_or_default();
    let mut met = false;
    for link in &links {
        owned(link).iter().for_each(&mut *leaving);
        let pod_end = pod.as_mut().and_then(|pod| pod.end_of(link));
        met |= pod_end.is_some();
        let removed = match what.removal {
            // Doomed by a GC, which does not reach the pod's end, or by a DEL that was killed
            // between the two ends.
            Removal::Deferred | Removal::Batched if inspect::is_doomed(link) => doom_pod_end(pod_end),
            Removal::Deferred | Removal::Batched => doom(host, link.index, pod_end),
            Removal::Synchronous => delete(host, link.index),
        };
        errors.note(removed);
    }
    if let Some(pod) = pod.as_mut().filter(|_| what.may_have_rules()) {
        errors.note(rules::remove(&mut pod.socket, &what.id.ifname));
    }
    // A host end that was found may have been doomed by an earlier DEL: then the pod's end belongs
    // to a later ADD that was killed.
    if !met {
        errors.note(delete_leftover_precreated(host, what, pod_link.as_ref()));
    }
    if !met && what.dialect == Dialect::Calico {
        errors.note(delete_calicos(host, pod.as_mut()));
    }
    let by_name = what.host_name.as_ref().filter(|_| what.by_name_alone && what.dialect == Dialect::Calico);
    if let Some(name) = by_name.filter(|_| links.is_empty()) {
        errors.note(delete_unowned(host, name));
    }
    let detached = Detached { host_ifindexes: links.iter().map(|link| link.index).collect() };
    if errors.0.is_empty() {
        return Ok(detached);
    }
    Err(DetachError { id: what.id.clone(), detached, errors: errors.0 })
}

/// Removes a link that [`list`](crate::list) found, if it still exists and has the same owner: for
/// GC and for leftovers of an earlier agent. The pod's end stays until a DEL comes or the host end
/// is deleted.
pub fn detach_owned(host: &mut Socket, found: &OwnedLink, removal: Removal) -> Result<bool, NetlinkError> {
    detach_owned_with(host, found, removal, &mut |_| {})
}

/// The same; `leaving` is called while it still has its name.
pub fn detach_owned_with(
    host: &mut Socket,
    found: &OwnedLink,
    removal: Removal,
    leaving: &mut dyn FnMut(&OwnedLink),
) -> Result<bool, NetlinkError> {
    let same = |link: &Link| inspect::owner(link).as_ref() == Some(&found.owner);
    let Some(link) = inspect::by_index(host, found.ifindex)?.filter(same) else { return Ok(false) };
    owned(&link).iter().for_each(leaving);
    match removal {
        Removal::Deferred | Removal::Batched if inspect::is_doomed(&link) => {}
        Removal::Deferred | Removal::Batched => doom(host, link.index, None)?,
        Removal::Synchronous => delete(host, link.index)?,
    }
    Ok(true)
}

/// Sets a veth down and marks it as doomed: its host end by index and, if reachable, the pod's end.
///
/// Two requests each, because older kernels do not rename a link that is up. Both ends are tried,
/// whatever happens to the other.
pub(crate) fn doom(
    host: &mut Socket,
    host_ifindex: u32,
    pod: Option<(&mut Socket, u32)>,
) -> Result<(), NetlinkError> {
    let host = doom_end(host, host_ifindex, Some(DOOMED_GROUP));
    host.and(doom_pod_end(pod))
}

fn doom_pod_end(pod: Option<(&mut Socket, u32)>) -> Result<(), NetlinkError> {
    pod.map_or(Ok(()), |(socket, ifindex)| doom_end(socket, ifindex, None))
}

fn doom_end(socket: &mut Socket, ifindex: u32, group: Option<u32>) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { up: Some(false), group, ..LinkSet::index(ifindex) });
    batch.set_link(&LinkSet { name: Some(naming::doomed(ifindex)), ..LinkSet::index(ifindex) });
    socket.execute_all(&batch).into_iter().try_for_each(|result| inspect::present(result).map(drop))
}

/// Deletes a link, and with it a veth's other end, if it exists.
pub(crate) fn delete(socket: &mut Socket, ifindex: u32) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    batch.delete_link(&LinkDel::Index(ifindex));
    inspect::present(socket.execute(&batch).map_err(NetlinkError::from)).map(drop)
}

/// The host ends of the interface: by name, by the pod's end, or else among all links.
fn find(host: &mut Socket, what: &Detachment, pod: Option<&Link>) -> Result<Vec<Link>, NetlinkError> {
    let ours = |link: &Link| inspect::owner(link).is_some_and(|o| o.is(&what.id));
    if let Some(name) = &what.host_name
        && let Some(link) = inspect::by_name(host, name)?.filter(ours)
    {
        return Ok(vec![link]);
    }
    if let Some(index) = pod.and_then(|pod| pod.link)
        && let Some(link) = inspect::by_index(host, index)?.filter(ours)
    {
        return Ok(vec![link]);
    }
    let mut links = host.links()?;
    links.retain(ours);
    Ok(links)
}

/// Deletes what an ADD left that was killed before it could write its owner: found by its peer in
/// the pod, or by a name that no other pod's interface has. A reaper would not find it without an
/// owner, so it is deleted at once.
fn delete_leftover_precreated(
    host: &mut Socket,
    what: &Detachment,
    pod: Option<&Link>,
) -> Result<(), NetlinkError> {
    let peer = match pod.and_then(|pod| Some((pod, pod.link?))) {
        Some((pod, index)) => inspect::by_index(host, index)?.filter(|link| inspect::is_pair(link, pod)),
        None => None,
    };
    // Calico's names are those of pods, and the pod's next sandbox may be in the process of being
    // created.
    let named = match &what.host_name {
        Some(name) if what.dialect == Dialect::Native => inspect::by_name(host, name)?,
        _ => None,
    };
    match [peer, named].into_iter().flatten().find(inspect::is_precreated) {
        Some(link) => delete(host, link.index),
        None => Ok(()),
    }
}

/// Does what Calico's own plugin does: deletes the pod's interface (calico-cni.md section 3.6). But
/// only if its peer is a link of Calico's on this node: an interface of a foreign network stays.
fn delete_calicos(host: &mut Socket, pod: Option<&mut PodSide>) -> Result<(), NetlinkError> {
    let Some(PodSide { link: Some(pod), .. }) = pod else { return Ok(()) };
    let Some(index) = pod.link else { return Ok(()) };
    let calicos = |link: &Link| {
        inspect::is_pair(link, pod)
            && link.name.starts_with(naming::prefix(Dialect::Calico))
            && link.alias.is_none()
    };
    match inspect::by_index(host, index)?.filter(calicos) {
        Some(link) => delete(host, link.index),
        None => Ok(()),
    }
}

/// Deletes a pod's veth without an owner. A link with an owner is left to it, and so is a link of
/// another kind.
fn delete_unowned(host: &mut Socket, name: &IfName) -> Result<(), NetlinkError> {
    let unowned = |link: &Link| link.is_of_pair() && link.link_netnsid.is_some() && link.alias.is_none();
    match inspect::by_name(host, name)?.filter(unowned) {
        Some(link) => delete(host, link.index),
        None => Ok(()),
    }
}

// === impl Detachment ===

impl Detachment {
    /// Only an interface that is neither Calico's nor the pod's first one has its own rules.
    fn may_have_rules(&self) -> bool {
        self.dialect == Dialect::Native && self.id.ifname.as_str() != PRIMARY_IFNAME
    }
}

// === impl PodSide ===

impl PodSide {
    /// None if the path leads to the node's own namespace: the pod's is gone.
    fn open(netns: &NetNs, ifname: &IfName) -> Result<Option<Self>, Box<dyn std::error::Error>> {
        if inspect::is_own(netns)? {
            return Ok(None);
        }
        let mut socket = netns.with(Socket::route)??;
        let link = inspect::by_name(&mut socket, ifname)?;
        Ok(Some(Self { socket, link }))
    }

    /// The pod's end of the veth with the peer `host`, if it has the interface's name.
    fn end_of(&mut self, host: &Link) -> Option<(&mut Socket, u32)> {
        let link = self.link.as_ref().filter(|link| inspect::is_pair(host, link))?;
        Some((&mut self.socket, link.index))
    }
}

// === impl Errors ===

impl Errors {
    fn note<T, E: fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.0.push(error.to_string())).ok()
    }
}
