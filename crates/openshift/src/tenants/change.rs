//! The writes of a tenant change: pure, from the records that were read to guarded steps.

use std::collections::BTreeSet;

use russet_model::DecodeError;
use russet_model::openshift::{Namespace, NetId, NetIdUsers, NetNamespace, netid_key, netnamespace_key};
use russet_store::{Record, Revision, Step};

/// The users of an ID, as they were read. Without a revision there is no record of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) users: BTreeSet<Namespace>,
    pub(super) revision: Option<Revision>,
}

/// The desired state of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// It has this ID, which these namespaces use.
    Id(NetId, Option<Held>),
    /// It does not exist.
    Gone,
}

/// How to reach the desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is reached already.
    Done(NetNamespace),
    /// These steps result in this tenant.
    Steps(Vec<Step>, NetNamespace),
}

/// The steps from the current to the desired state: the new ID's record, the tenant, the old ID's
/// record.
pub(super) fn plan(
    namespace: &Namespace,
    current: Option<(NetNamespace, Revision)>,
    old: Option<Held>,
    wish: Wish,
) -> Plan {
    let key = netnamespace_key(namespace);
    let mut steps = Vec::new();
    let before = current.as_ref().map(|(tenant, _)| tenant.netid);
    let after = match (wish, current) {
        (Wish::Id(netid, _), Some((tenant, _))) if tenant.netid == netid => return Plan::Done(tenant),
        (Wish::Id(netid, held), current) => {
            steps.extend(joining(namespace, netid, held));
            let was = current.as_ref().map(|(_, revision)| *revision);
            let tenant = match current {
                Some((tenant, _)) => NetNamespace { netid, ..tenant },
                None => NetNamespace::new(namespace.clone(), netid),
            };
            steps.push(match was {
                Some(revision) => Step::update(key, tenant.encode(), revision),
                None => Step::create(key, tenant.encode()),
            });
            tenant
        }
        (Wish::Gone, Some((tenant, revision))) => {
            steps.push(Step::delete(key, Some(revision)));
            tenant
        }
        (Wish::Gone, None) => return Plan::Done(NetNamespace::new(namespace.clone(), NetId::GLOBAL)),
    };
    steps.extend(before.and_then(|netid| leaving(namespace, netid, old)));
    Plan::Steps(steps, after)
}

fn joining(namespace: &Namespace, netid: NetId, held: Option<Held>) -> Option<Step> {
    if netid.is_global() {
        return None;
    }
    let held = held.unwrap_or_else(|| Held { users: BTreeSet::new(), revision: None });
    let mut users = held.users;
    users.insert(namespace.clone());
    let value = NetIdUsers { netid, users }.encode();
    // Even if the record names this namespace already, because the guard prevents the ID from being
    // assigned to another tenant.
    Some(match held.revision {
        Some(revision) => Step::update(netid_key(netid), value, revision),
        None => Step::create(netid_key(netid), value),
    })
}

fn leaving(namespace: &Namespace, netid: NetId, held: Option<Held>) -> Option<Step> {
    let held = held?;
    let revision = held.revision?;
    let mut users = held.users;
    users.remove(namespace);
    Some(match users.is_empty() {
        true => Step::delete(netid_key(netid), Some(revision)),
        false => Step::update(netid_key(netid), NetIdUsers { netid, users }.encode(), revision),
    })
}

/// The first free ID, starting from one that is derived from the name and the attempt.
pub(super) fn free_id(namespace: &Namespace, attempt: u32, used: &BTreeSet<NetId>) -> Option<NetId> {
    let (first, count) = (NetId::FIRST.number(), NetId::MAX.number() - NetId::FIRST.number() + 1);
    // FNV-1a is enough to spread names; it is not used for security.
    let bytes = namespace.as_str().bytes().chain(attempt.to_be_bytes());
    let start = bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let candidates = (0..count).map(|step| first + (start % count + step) % count);
    candidates.filter_map(|number| NetId::new(number).ok()).find(|id| !used.contains(id))
}

// === impl Held ===

impl Held {
    pub(super) fn decode(record: &Record) -> Result<Self, DecodeError> {
        let users = NetIdUsers::decode(&record.value)?.users;
        Ok(Self { users, revision: Some(record.revision) })
    }
}
