//! Removal of stale attachments: those that a GC would remove if a runtime requested one. Where no
//! runtime does, the agent removes them itself, after each round of the leak repair, based on the
//! runtimes' caches.
//!
//! The rules are those of the repair ([`super`]): unknown counts as in use, two checks with a grace
//! period between them must agree, containers with a request meanwhile are skipped, and the second
//! check and the removal happen while no request is in progress. This does not release addresses:
//! the next round of the repair finds them without an interface and checks all other evidence.
//!
//! An interface is stale if no cache has an attachment of its container and no process is in the
//! namespace of its peer. Published ports, masquerade and rate limits are stale if neither a cache
//! nor an interface belongs to their container, and nothing has their addresses. Both only on a
//! network for which some runtime's cache has attachments: for other networks the caches prove
//! nothing. Calico's interfaces are left to Calico.
//! which some runtime has attachments in its cache: what caches say of others is unknown. Calico's interfaces are left to Calico.

use std::collections::BTreeSet;
use std::time::Duration;

use russet_addr::{ContainerId, IfName};
use russet_attach::nat::{self, Labelled};
use russet_attach::{Dialect, OwnedLink, Owner, naming};

use super::RepairError;
use super::liveness::Machine;
use super::rounds::{REQUESTS_TIMEOUT, Repairs};
use crate::metrics::Kind;

/// Stale attachments according to one check.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stale {
    links: Vec<OwnedLink>,
    labelled: Vec<Labelled>,
    shaped: Vec<(IfName, Owner)>,
}

/// What one check found besides the machine's state.
struct PluginState {
    labelled: Vec<Labelled>,
    shaped: Vec<(IfName, Owner)>,
}

// === impl Repairs ===

impl Repairs {
    /// Checks, waits, checks again, and removes what both checks agree on.
    pub(super) async fn sweep(&self, grace: Duration) -> Result<(), RepairError> {
        let _round = self.round_lock.lock().await;
        let requested = self.operations.record_requests();
        let first = self.stale(&BTreeSet::new()).await?;
        if first.is_empty() {
            return Ok(());
        }
        tracing::debug!(?first, "attachments that look stale are checked again");
        tokio::time::sleep(grace).await;
        let exclusive = tokio::time::timeout(REQUESTS_TIMEOUT, self.operations.exclusive()).await;
        let _exclusive = exclusive.map_err(|_| RepairError::Busy(REQUESTS_TIMEOUT))?;
        let second = self.stale(&requested.containers()).await?;
        self.remove_stale(first.and(&second)).await
    }

    async fn stale(&self, requested: &BTreeSet<String>) -> Result<Stale, RepairError> {
        let wiring = &self.node.host.wiring;
        // Before the machine's state, so that a container that is added meanwhile is seen there.
        let labelled = wiring.labelled().await?;
        let shaped = wiring.shaped().await?;
        let machine = (self.finder.read_machine)().await?;
        tracing::debug!(
            links = machine.owned.len(),
            cached = machine.cached.len(),
            sees_processes = machine.sees_processes,
            "attachments are compared with what runtimes know"
        );
        Ok(Stale::find(&machine, PluginState { labelled, shaped }, requested))
    }

    async fn remove_stale(&self, stale: Stale) -> Result<(), RepairError> {
        let (node, mut failed) = (&self.node, None);
        let mut note = |kind: &'static str, subject: String, done: Result<(), _>| match done {
            Ok(()) => {
                self.metrics.repaired.get_or_create(&Kind { kind: kind.to_owned() }).inc();
                tracing::warn!(kind, subject, "a stale attachment was removed");
            }
            Err(error) => {
                tracing::warn!(kind, subject, %error, "a stale attachment cannot be removed");
                failed = Some(error);
            }
        };
        for link in stale.links {
            let subject = format!("{} of {}", link.name, link.owner);
            let done = node.host.wiring.detach_owned(link, node.host.teardown.removal()).await;
            note("attachment", subject, done);
        }
        node.host.teardown.doomed();
        for (device, owner) in stale.shaped {
            let subject = format!("{device} of {owner}");
            note("shape", subject, node.host.wiring.unshape(device).await);
        }
        let labels: BTreeSet<String> = stale.labelled.into_iter().map(|it| it.label).collect();
        if !labels.is_empty() {
            let subject = labels.iter().cloned().collect::<Vec<_>>().join(", ");
            let done = node.host.wiring.forget(move |nft| nat::forget_labelled(nft, &labels)).await;
            note("translation", subject, done);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

// === impl Stale ===

impl Stale {
    fn find(machine: &Machine, plugin_state: PluginState, requested: &BTreeSet<String>) -> Self {
        // Cache files of the oldest format do not name the container, and an unreadable process may
        // be a pod's.
        let ambiguous = machine.cached.iter().any(|it| it.owner.is_none());
        if ambiguous || !machine.sees_processes {
            return Self::default();
        }
        let known = |owner: &Owner| {
            let Some(container) = owner.container() else { return true };
            let cached = || machine.cached.iter().filter_map(|it| it.owner.as_ref());
            !cached().any(|it| it.network == *owner.network())
                || cached().any(|it| it.container == *container)
                || requested.contains(container.as_str())
        };
        let wired = |container: Option<&ContainerId>| {
            machine.owned.iter().any(|link| !link.doomed && link.owner.container() == container)
        };
        let lives = |labelled: &Labelled| {
            let mut addresses = labelled.addresses.iter();
            addresses.any(|it| machine.interfaces.contains_key(it) || machine.routes.contains(it))
        };
        let native = |link: &OwnedLink| link.name.starts_with(naming::prefix(Dialect::Native));
        let mut links = machine.owned.clone();
        links.retain(|link| {
            // Without a peer its namespace is unknown.
            let inhabited = link.peer.is_none_or(|peer| machine.inhabited.contains(&(link.ifindex, peer)));
            !link.doomed && native(link) && !inhabited && !known(&link.owner)
        });
        let PluginState { mut labelled, mut shaped } = plugin_state;
        labelled.retain(|it| {
            let owner = it.label.parse::<Owner>().ok();
            owner.is_some_and(|owner| !known(&owner) && !wired(owner.container())) && !lives(it)
        });
        shaped.retain(|(_, owner)| !known(owner) && !wired(owner.container()));
        Self { links, labelled, shaped }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Keeps what the other check found, too.
    fn and(mut self, other: &Self) -> Self {
        self.links.retain(|it| other.links.contains(it));
        self.labelled.retain(|it| other.labelled.contains(it));
        self.shaped.retain(|it| other.shaped.contains(it));
        self
    }
}

#[cfg(test)]
mod tests {
    use russet_runtime::Attached;

    use super::*;

    fn owner(container: &str) -> Owner {
        Owner::new(&format!("net/{container}/eth0").parse().unwrap())
    }

    fn link(ifindex: u32, name: &str, container: &str) -> OwnedLink {
        let (doomed, bridged) = (name.starts_with("rsx"), false);
        OwnedLink { ifindex, peer: Some(2), name: name.to_owned(), owner: owner(container), doomed, bridged }
    }

    fn cached(network: &str, container: &str) -> Attached {
        let owner = format!("{network}/{container}/eth0").parse().unwrap();
        Attached { path: "/cache".into(), owner: Some(owner), addresses: Vec::new() }
    }

    /// A machine with one running pod that is in a cache, and the interface of an unknown one.
    fn machine() -> Machine {
        Machine {
            owned: vec![link(7, "russ7", "alive"), link(8, "russ8", "dead")],
            cached: vec![cached("net", "alive")],
            sees_processes: true,
            ..Machine::default()
        }
    }

    fn plugin_state(containers: &[&str], address: &str) -> PluginState {
        let addresses = BTreeSet::from([address.parse().unwrap()]);
        let labelled = |it: &&str| Labelled { label: owner(it).label(), addresses: addresses.clone() };
        PluginState {
            labelled: containers.iter().map(labelled).collect(),
            shaped: containers.iter().map(|it| ("bwp1".parse().unwrap(), owner(it))).collect(),
        }
    }

    fn stale(machine: &Machine, requested: &[&str]) -> Stale {
        let requested = requested.iter().map(|it| (*it).to_owned()).collect();
        Stale::find(machine, plugin_state(&["alive", "dead", "gone"], "10.1.0.7"), &requested)
    }

    fn links(stale: &Stale) -> Vec<&str> {
        stale.links.iter().map(|link| link.name.as_str()).collect()
    }

    #[test]
    fn attachments_without_a_cache_entry_and_a_process_are_stale() {
        let found = stale(&machine(), &[]);
        assert_eq!(links(&found), ["russ8"]);
        // While the interface exists, everything that belongs to it is kept.
        let labels = |found: &Stale| found.labelled.iter().map(|it| it.label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&found), ["russet:net/gone/eth0"]);
        assert_eq!(found.shaped.len(), 1);
        let doomed = Machine { owned: vec![link(8, "rsx8", "dead")], ..machine() };
        let found = stale(&doomed, &[]);
        assert_eq!((links(&found).len(), labels(&found).len(), found.shaped.len()), (0, 2, 2));
    }

    #[test]
    fn any_evidence_or_unknown_state_keeps_an_attachment() {
        let addresses = [("10.1.0.7".parse().unwrap(), "/run/netns/x".into())];
        let oldest = Attached { path: "/cache/x".into(), owner: None, addresses: Vec::new() };
        for (why, machine, requested) in [
            ("a request came", machine(), &["dead", "gone"][..]),
            (
                "a cache has it",
                Machine { cached: ["alive", "dead", "gone"].map(|it| cached("net", it)).into(), ..machine() },
                &[],
            ),
            (
                "on another network",
                Machine {
                    cached: vec![cached("net", "alive"), cached("b", "dead"), cached("b", "gone")],
                    ..machine()
                },
                &[],
            ),
            (
                "no cache knows the network",
                Machine { cached: vec![cached("other", "alive")], ..machine() },
                &[],
            ),
            ("no cache at all", Machine { cached: Vec::new(), ..machine() }, &[]),
            (
                "a cache file without a container",
                Machine { cached: vec![cached("net", "alive"), oldest], ..machine() },
                &[],
            ),
            ("not all processes are seen", Machine { sees_processes: false, ..machine() }, &[]),
        ] {
            assert!(stale(&machine, requested).is_empty(), "{why}");
        }
        let inhabited = Machine { inhabited: BTreeSet::from([(8, 2)]), ..machine() };
        assert!(links(&stale(&inhabited, &[])).is_empty());
        let has_address = Machine { interfaces: addresses.into(), ..machine() };
        assert!(stale(&has_address, &[]).labelled.is_empty());
        let calicos = Machine { owned: vec![link(8, "cali8", "dead")], ..machine() };
        assert!(links(&stale(&calicos, &[])).is_empty());
    }

    #[test]
    fn both_checks_must_agree() {
        let (first, second) = (stale(&machine(), &[]), stale(&machine(), &["gone"]));
        let both = first.and(&second);
        assert_eq!((links(&both), both.labelled.len(), both.shaped.len()), (vec!["russ8"], 0, 0));
        // The same name, but another interface.
        let again = Machine { owned: vec![link(9, "russ8", "dead")], ..machine() };
        assert!(links(&stale(&machine(), &[]).and(&stale(&again, &[]))).is_empty());
    }
}
