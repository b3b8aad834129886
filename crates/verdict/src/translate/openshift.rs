//! OpenShift's EgressNetworkPolicy (policy.md section 1.10), and the sharing of NetIDs.
//!
//! The rules of a namespace depend on NetNamespaces: in a namespace with NetID 0, EgressNetworkPolicies are
//! ignored, and if a namespace that has one shares its NetID, every namespace with that ID loses all traffic
//! to the outside. The updates say so with the name of the object itself, and with its namespace and
//! name for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use russet_addr::{IpNet, Ipv4Net, Ipv6Net};

use super::read::{At, Problems};
use crate::ir::Problem;
use crate::world::{EgressFirewall, EgressPeer, Update};

/// Namespace and name of an object, in the update's order.
type Key = (Arc<str>, Arc<str>);

/// The NetID whose namespaces reach every other.
const GLOBAL_NETID: u32 = 0;
/// The largest NetID, which has 24 bits.
const NETID_MAX: u32 = (1 << 24) - 1;

/// The objects and NetIDs that are there, and what was made of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Firewalls {
    objects: BTreeMap<Key, Arc<EgressFirewall>>,
    net_ids: BTreeMap<Arc<str>, u32>,
    emitted: BTreeMap<Key, Arc<EgressFirewall>>,
}

/// Reads an EgressNetworkPolicy.
pub(super) fn firewall(document: &At<'_>, problems: &mut Problems) -> Result<EgressFirewall, Problem> {
    let Some(spec) = document.member("spec") else { return Ok(EgressFirewall::default()) };
    let Ok(list) = spec.list("egress") else {
        problems.push(spec.problem_of("egress", "a list is wanted; everything is denied"));
        return Ok(deny_all());
    };
    Ok(EgressFirewall { rules: list.iter().flat_map(|at| rule(at, problems)).collect() })
}

/// The rules that one becomes. The pattern of the API's own check is badly anchored, so that any
/// text may be stored as the type.
fn rule(at: &At<'_>, problems: &mut Problems) -> Vec<(bool, EgressPeer)> {
    let allow = match at.opt_text("type") {
        Ok(Some("Allow")) => true,
        Ok(Some("Deny")) => false,
        _ => {
            problems.push(at.problem_of("type", "Allow or Deny is wanted; everything is denied"));
            return everything().collect();
        }
    };
    match problems.keep(peer(at)) {
        Some(peer) => vec![(allow, peer)],
        None if allow => Vec::new(),
        None => everything().collect(),
    }
}

fn peer(at: &At<'_>) -> Result<EgressPeer, Problem> {
    at.only(&["type", "to"])?;
    let to = at.member("to").ok_or_else(|| at.problem_of("to", "it is missing"))?;
    let members = to.members()?;
    match members.as_slice() {
        [("cidrSelector", cidr)] => match cidr.net()? {
            IpNet::V4(net) if net == host_zero() => Ok(EgressPeer::Net(Ipv4Net::default().into())),
            IpNet::V4(net) => Ok(EgressPeer::Net(net.into())),
            IpNet::V6(_) => Err(cidr.problem("a prefix of IPv4 is wanted")),
        },
        [("dnsName", name)] => match name.text()?.trim_end_matches('.') {
            "" => Err(name.problem("it is empty")),
            text => Ok(EgressPeer::Name(text.into(), BTreeSet::new())),
        },
        _ => Err(to.problem("one of cidrSelector and dnsName is wanted")),
    }
}

/// `0.0.0.0/32`, which means every address.
fn host_zero() -> Ipv4Net {
    Ipv4Net::from(std::net::Ipv4Addr::UNSPECIFIED)
}

fn everything() -> impl Iterator<Item = (bool, EgressPeer)> {
    [Ipv4Net::default().into(), Ipv6Net::default().into()]
        .into_iter()
        .map(|net| (false, EgressPeer::Net(net)))
}

fn deny_all() -> EgressFirewall {
    EgressFirewall { rules: everything().collect() }
}

/// Reads the namespace and the NetID of a NetNamespace.
pub(super) fn net_namespace<'a>(document: &At<'a>) -> Result<(&'a str, u32), Problem> {
    let metadata = document.metadata()?;
    let id = document.member("netid").ok_or_else(|| document.problem_of("netid", "it is missing"))?;
    Ok((document.opt_text("netname")?.unwrap_or(metadata.name), id.whole(0, NETID_MAX)?))
}

// === impl Firewalls ===

impl Firewalls {
    /// Adds, changes or removes an object.
    pub fn set(&mut self, namespace: &str, name: &str, content: Option<EgressFirewall>) -> Vec<Update> {
        let key = (namespace.into(), name.into());
        match content {
            Some(content) => self.objects.insert(key, Arc::new(content)),
            None => self.objects.remove(&key),
        };
        self.changes()
    }

    /// Adds, changes or removes the NetID of a namespace.
    pub fn set_net_id(&mut self, namespace: &str, id: Option<u32>) -> Vec<Update> {
        match id {
            Some(id) => self.net_ids.insert(namespace.into(), id),
            None => self.net_ids.remove(namespace),
        };
        self.changes()
    }

    /// There are few of these objects: all are computed again, and what changed is returned.
    fn changes(&mut self) -> Vec<Update> {
        let wanted = self.wanted();
        let update = |(namespace, name): &Key, content| {
            Update::EgressFirewall(Arc::clone(namespace), Arc::clone(name), content)
        };
        let gone = self.emitted.keys().filter(|key| !wanted.contains_key(key)).map(|key| update(key, None));
        let new = wanted.iter().filter(|(key, content)| self.emitted.get(key) != Some(content));
        let new = new.map(|(key, content)| update(key, Some(Arc::clone(content))));
        let changes = gone.chain(new).collect();
        self.emitted = wanted;
        changes
    }

    fn wanted(&self) -> BTreeMap<Key, Arc<EgressFirewall>> {
        let mut sharing: BTreeMap<u32, Vec<&Arc<str>>> = BTreeMap::new();
        for (namespace, id) in &self.net_ids {
            sharing.entry(*id).or_default().push(namespace);
        }
        let denied = Arc::new(deny_all());
        let mut wanted = BTreeMap::new();
        for (key, content) in &self.objects {
            let (namespace, name) = key;
            let id = self.net_ids.get(namespace);
            if id == Some(&GLOBAL_NETID) || content.rules.is_empty() {
                continue;
            }
            match id.and_then(|id| sharing.get(id)).filter(|namespaces| namespaces.len() > 1) {
                None => drop(wanted.insert(key.clone(), Arc::clone(content))),
                Some(namespaces) => wanted.extend(namespaces.iter().map(|other| {
                    let name = match *other == namespace {
                        true => Arc::clone(name),
                        false => format!("{namespace}/{name}").into(),
                    };
                    ((Arc::clone(other), name), Arc::clone(&denied))
                })),
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests;
