//! Finds the holder of each pod's address. In v1 a pod with a new sandbox kept its address, which
//! stayed held under the old container; v3 releases by container, so a late DEL of the old one
//! would release the address of the new one. A migrated address therefore names the container that
//! uses it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{BlockCidr, ContainerId, NetworkName};
use russet_model::v1::{Endpoint, EndpointId, ORCHESTRATOR_K8S};
use russet_model::{Attribute, Block, Handle, HandleId, Key};

use super::Problem;

/// Handles, with the v2 keys that they come from.
pub type Handles = BTreeMap<HandleId, (Key, Handle)>;

/// A pod's endpoint, with what decides about its addresses.
#[derive(Debug, Clone)]
pub struct User {
    key: Key,
    workload: String,
    active: String,
    addresses: Vec<IpAddr>,
}

/// What to do with an address that an endpoint names.
enum Verdict {
    /// Its holder is correct.
    Right,
    /// It is held under the pod's own name, as plugins before 1.11.2 did: the handle stays, and the
    /// attributes name the pod.
    Named,
    /// It is held under an older container of the pod, and moves to this one.
    Moved(HandleId),
}

// === impl User ===

impl User {
    /// Returns the user if the endpoint is a pod's; any other workload counts as its own container.
    pub fn from_endpoint(key: &Key, id: &EndpointId, endpoint: &Endpoint) -> Option<Self> {
        (id.orchestrator == ORCHESTRATOR_K8S && !endpoint.active_instance_id.is_empty()).then(|| Self {
            key: key.clone(),
            workload: id.workload.clone(),
            active: endpoint.active_instance_id.clone(),
            addresses: endpoint.nets().map(|net| net.addr()).collect(),
        })
    }

    fn has_handle(&self, handle: &str) -> bool {
        let network = handle.strip_suffix(self.active.as_str()).and_then(|it| it.strip_suffix('.'));
        network.is_some_and(|network| !network.is_empty())
    }

    /// The attributes of an address of this pod.
    fn attribute(&self, held: &Attribute, handle: &str) -> Attribute {
        let mut secondary = held.secondary.clone().unwrap_or_default();
        if let Some((namespace, pod)) = self.workload.split_once('.') {
            secondary.insert("namespace".to_owned(), namespace.to_owned());
            secondary.insert("pod".to_owned(), pod.to_owned());
        }
        Attribute { handle_id: Some(handle.to_owned()), secondary: Some(secondary), ..held.clone() }
    }
}

/// Corrects the holders of the addresses that endpoints name, in blocks and handles. An address
/// without a unique user is a problem.
pub fn settle(
    blocks: &mut BTreeMap<BlockCidr, Block>,
    handles: &mut Handles,
    users: &[User],
) -> Vec<Problem> {
    let mut named: BTreeMap<IpAddr, Vec<&User>> = BTreeMap::new();
    for user in users {
        user.addresses.iter().for_each(|address| named.entry(*address).or_default().push(user));
    }
    let mut problems = Vec::new();
    for block in blocks.values_mut() {
        for ordinal in 0..block.cidr.size() {
            let Some(address) = block.cidr.address(ordinal) else { continue };
            let (Some(users), Some(held)) = (named.get(&address), block.attribute(ordinal).cloned()) else {
                continue;
            };
            let old = held.handle_id.as_deref().map(HandleId::sanitized).unwrap_or_default();
            match verdict(users, &held, old) {
                Ok((_, Verdict::Right)) => {}
                Ok((user, Verdict::Named)) => set_owner(block, ordinal, user.attribute(&held, old)),
                Ok((user, Verdict::Moved(handle))) => {
                    set_owner(block, ordinal, user.attribute(&held, handle.as_str()));
                    move_count(handles, old, handle, block.cidr);
                }
                Err(reason) => {
                    let key = users[0].key.clone();
                    problems.push(Problem { key, reason: format!("its address {address} {reason}") });
                }
            }
        }
    }
    problems
}

fn verdict<'a>(users: &[&'a User], held: &Attribute, handle: &str) -> Result<(&'a User, Verdict), String> {
    if let Some(user) = users.iter().find(|user| user.has_handle(handle)) {
        return Ok((user, Verdict::Right));
    }
    let [user] = users else {
        let keys: Vec<&str> = users.iter().map(|user| user.key.as_str()).collect();
        return Err(format!(
            "is held under {handle:?} and named by {}: remove those left over",
            keys.join(", ")
        ));
    };
    let pod = user.workload.split_once('.');
    if let (Some(namespace), Some(name)) = (held.get("namespace"), held.get("pod"))
        && pod != Some((namespace, name))
    {
        return Err(format!("is held for the pod {namespace}/{name}: one of the two has to go"));
    }
    if handle == user.workload {
        return Ok((user, Verdict::Named));
    }
    let moved = || {
        let (network, container) = handle.rsplit_once('.')?;
        ContainerId::new(container).ok()?;
        let active = ContainerId::new(user.active.as_str()).ok()?;
        Some(HandleId::pod(&NetworkName::new(network).ok()?, &active))
    };
    match moved() {
        Some(handle) => Ok((user, Verdict::Moved(handle))),
        None => Err(format!("is held under {handle:?}, which is no container's handle")),
    }
}

/// Assigns an address to another owner; removes the old one if it has no other address.
fn set_owner(block: &mut Block, ordinal: usize, owner: Attribute) {
    let old = std::mem::take(&mut block.attributes).unwrap_or_default();
    let mut attributes: Vec<Attribute> = Vec::new();
    for (index, slot) in block.allocations.iter_mut().enumerate() {
        let Some(at) = *slot else { continue };
        let wanted = if index == ordinal { &owner } else { &old[at] };
        let known = attributes.iter().position(|attribute| attribute == wanted);
        *slot = Some(known.unwrap_or_else(|| {
            attributes.push(wanted.clone());
            attributes.len() - 1
        }));
    }
    block.attributes = Some(attributes);
}

/// Subtracts one address of the block from one handle and adds it to the other.
fn move_count(handles: &mut Handles, from: &str, to: HandleId, block: BlockCidr) {
    let mut key = Key::handle(&to);
    if let Ok(from) = HandleId::new(from)
        && let Some((old_key, handle)) = handles.get_mut(&from)
    {
        key = old_key.clone();
        handle.set(block, handle.count(block).saturating_sub(1));
        if handle.block.is_empty() {
            handles.remove(&from);
        }
    }
    let (_, handle) = handles.entry(to).or_insert_with(|| (key, Handle::default()));
    handle.add(block, 1);
}
