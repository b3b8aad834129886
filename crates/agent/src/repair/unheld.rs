//! Addresses of running pods on this node that the store has not allocated to them: after a release
//! by hand, or after an older store was restored. The next ADD on any node may get such an address,
//! too. Found by `russet ipam check`, `russet ipam repair`, `russet drift` and the agent's rounds.
//! None of them allocates the address again, because another pod may have it by then.
//!
//! An ADD allocates before it wires, and a DEL removes the wiring before it releases. So the
//! address of a route that exists before and after the store was read must have been allocated all
//! the time.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::{IpNet, NodeName};
use russet_attach::Owner;
use russet_ipam::{Allocator, Held, SystemClock};
use russet_model::HandleId;
use russet_store::Store;
use tokio::sync::{mpsc, oneshot};

use super::{AllocationsError, RepairError, allocations, machine};

/// A running pod's address that is not allocated to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    pub address: IpAddr,
    /// The host end of the pod's interface, and its owner.
    pub interface: String,
    /// The handle of another pod to which it is allocated; none if it is free.
    pub held_by: Option<String>,
}

/// A pod's host end, as far as the kernel says to which pod it belongs.
#[derive(Debug, Clone)]
pub(super) struct PodLink {
    pub name: String,
    /// The network, container and interface that it belongs to.
    pub owner: Owner,
}

/// The result of [`UnheldQueue::ask`].
type Answer = Result<Vec<Unheld>, String>;

/// Queries from the agent's socket to the store, which other threads cannot use.
#[derive(Clone)]
pub(crate) struct UnheldQueue(mpsc::Sender<oneshot::Sender<Answer>>);

/// Limit of waiting queries; each needs a few reads.
const QUESTIONS_MAX: usize = 4;
/// A store that does not answer within this time counts as away: `russet drift` says so and shows
/// the rest.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of this node's pods that the store has not allocated to them. Needs a few reads of
/// the store for each pod.
pub async fn unheld(allocator: &Allocator) -> Result<Vec<Unheld>, RepairError> {
    let pods = pods().await?;
    if pods.is_empty() {
        return Ok(Vec::new());
    }
    let store =
        |source| RepairError::WithoutAgent { what: "compare pods' addresses with the store", reason: source };
    let pools = allocator.pools().await.map_err(|error| store(error.to_string()))?;
    let mut found = Vec::new();
    for (address, link) in pods {
        if !pools.iter().any(|pool| pool.spec.cidr.contains(&IpNet::from(address))) {
            continue;
        }
        let held = allocator.holder_of(address).await.map_err(|error| store(error.to_string()))?;
        if let Some(held_by) = wrong_holder(held.as_ref(), &link.owner) {
            found.push(Unheld { address, interface: format!("{} of {}", link.name, link.owner), held_by });
        }
    }
    if found.is_empty() {
        return Ok(found);
    }
    let still = self::pods().await?;
    found.retain(|unheld| still.contains_key(&unheld.address));
    Ok(found)
}

/// The same outside of an agent. Empty on a machine that is not the node `name` of this store.
pub async fn unheld_here(store: Rc<dyn Store>, name: &NodeName) -> Result<Vec<Unheld>, RepairError> {
    let record = match allocations::node(&*store, name).await {
        Err(AllocationsError::NoNode(_)) => return Ok(Vec::new()),
        record => record?,
    };
    let own = tokio::task::spawn_blocking(machine::own_addresses).await??;
    if !record.addresses.iter().all(|address| own.contains(address)) {
        return Ok(Vec::new());
    }
    unheld(&Allocator::new(store, Rc::new(SystemClock))).await
}

/// What uses the address now, according to this machine and the store's endpoints; none if nothing
/// does.
pub async fn user_of(store: &dyn Store, address: IpAddr) -> Result<Option<String>, RepairError> {
    let endpoints = allocations::endpoints(store).await?;
    let names = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&IpNet::from(address)));
    if let Some(endpoint) = endpoints.iter().find(|endpoint| names(&endpoint.nets)) {
        return Ok(Some(format!("endpoint {}", endpoint.key)));
    }
    let machine = tokio::task::spawn_blocking(|| machine::look(&[])).await??;
    Ok(match machine.interfaces.get(&address) {
        Some(namespace) => Some(format!("an interface in {}", namespace.display())),
        None if machine.routes.contains(&address) => Some("a route of this node".to_owned()),
        None => None,
    })
}

async fn pods() -> Result<BTreeMap<IpAddr, PodLink>, RepairError> {
    Ok(tokio::task::spawn_blocking(machine::pods).await??)
}

/// Whether the store allocates a pod's address to another owner; then its handle, if there is one.
fn wrong_holder(held: Option<&Held>, owner: &Owner) -> Option<Option<String>> {
    let Some(held) = held.filter(|held| held.attribute.released_at.is_none()) else { return Some(None) };
    let handle = held.attribute.handle_id.as_deref().map(HandleId::sanitized)?;
    // An alias with only a hash, and a handle of another form, cannot be compared.
    let container = owner.container()?;
    let other = handle.strip_prefix(owner.network().as_str())?.strip_prefix('.')? != container.as_str();
    other.then(|| Some(handle.to_owned()))
}

// === impl UnheldQueue ===

impl UnheldQueue {
    /// The query's sending end, and its receiver.
    pub fn new() -> (Self, mpsc::Receiver<oneshot::Sender<Answer>>) {
        let (sender, receiver) = mpsc::channel(QUESTIONS_MAX);
        (Self(sender), receiver)
    }

    /// Queries which addresses of running pods are not allocated to them.
    pub async fn ask(&self) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(answer).map_err(|_| format!("{QUESTIONS_MAX} comparisons are waiting already"))?;
        answered.await.map_err(|_| "the agent is stopping".to_owned())?
    }
}

/// Answers queries as long as the agent runs.
pub(crate) async fn answer(allocator: Rc<Allocator>, mut questions: mpsc::Receiver<oneshot::Sender<Answer>>) {
    while let Some(question) = questions.recv().await {
        let compared = match tokio::time::timeout(STORE_TIMEOUT, unheld(&allocator)).await {
            Ok(compared) => compared.map_err(|error| error.to_string()),
            Err(_) => Err(format!(
                "compare pods' addresses with the store: it did not answer within {STORE_TIMEOUT:?}"
            )),
        };
        // The receiver may be gone.
        let _ = question.send(compared);
    }
}

// === impl Unheld ===

impl fmt::Display for Unheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {} of {} is not allocated to it", self.address, self.interface)?;
        match &self.held_by {
            Some(handle) => write!(f, ", but to handle {handle}: replace the pod"),
            None => f.write_str(": the next ADD may be given it; replace the pod"),
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_model::Attribute;

    use super::*;

    fn held(attribute: Attribute) -> Held {
        Held {
            address: "10.1.0.5".parse().unwrap(),
            block: "10.1.0.0/26".parse().unwrap(),
            attribute,
            sequence_number: 1,
        }
    }

    fn owner() -> Owner {
        Owner::new(&"net/abc/eth0".parse().unwrap())
    }

    #[test]
    fn an_address_belongs_to_the_pod_only_if_its_handle_does() {
        let of =
            |handle: &str| held(Attribute { handle_id: Some(handle.to_owned()), ..Attribute::default() });
        assert_eq!(wrong_holder(None, &owner()), Some(None));
        assert_eq!(wrong_holder(Some(&of("net.abc")), &owner()), None);
        assert_eq!(wrong_holder(Some(&of("net.def")), &owner()), Some(Some("net.def".to_owned())));
        // Handles of other forms cannot be compared.
        assert_eq!(wrong_holder(Some(&of("default.web-0")), &owner()), None);
        let cooling = Attribute {
            handle_id: Some("net.abc".to_owned()),
            released_at: Some("2026-01-02T03:00:00Z".to_owned()),
            ..Attribute::default()
        };
        assert_eq!(wrong_holder(Some(&held(cooling)), &owner()), Some(None));
    }
}
