//! The other nodes' leases that this node programs. Pure: events in, changes out. Many machines
//! write to the datastore, so a lease that would cut this node off from its own network or pods is
//! refused, whichever machine wrote it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::IpNet;
use russet_lease::{Event, Lease};
use russet_model::flannel::SubnetKey;

use crate::backend::Backend;
use crate::interface::External;

/// Leases by their subnets.
#[derive(Debug)]
pub struct Peers {
    backend: Backend,
    own: Vec<IpNet>,
    here: Vec<IpAddr>,
    known: BTreeMap<SubnetKey, Lease>,
}

/// The changes to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Everything must be replaced.
    All,
    /// These changes, removals first.
    Some {
        /// Removed leases, as they were.
        gone: Vec<Lease>,
        /// Leases that are new or changed.
        put: Vec<Lease>,
    },
}

// === impl Peers ===

impl Peers {
    /// No leases yet. `own` are this node's subnets.
    pub fn new(backend: Backend, own: &SubnetKey, external: &External) -> Self {
        let here = external.v4.map(IpAddr::V4).into_iter().chain(external.v6.map(IpAddr::V6)).collect();
        Self { backend, own: own.subnets().collect(), here, known: BTreeMap::new() }
    }

    pub fn all(&self) -> impl Iterator<Item = &Lease> {
        self.known.values()
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Applies events.
    pub fn take(&mut self, events: Vec<Event>) -> Delta {
        let mut before: BTreeMap<SubnetKey, Option<Lease>> = BTreeMap::new();
        let mut all = false;
        for event in events {
            match event {
                Event::Snapshot(leases) => {
                    all = true;
                    let wanted = leases.into_iter().filter(|lease| self.wants(lease));
                    self.known = wanted.map(|lease| (lease.key, lease)).collect();
                }
                Event::Put(lease) if self.wants(&lease) => {
                    let was = self.known.insert(lease.key, lease.clone());
                    before.entry(lease.key).or_insert(was);
                }
                // A lease that is no longer wanted counts as removed.
                Event::Put(Lease { key, .. }) | Event::Gone(key) => {
                    let was = self.known.remove(&key);
                    before.entry(key).or_insert(was);
                }
            }
        }
        if all { Delta::All } else { self.difference(before) }
    }

    /// The net effect of the events.
    fn difference(&self, before: BTreeMap<SubnetKey, Option<Lease>>) -> Delta {
        let (mut gone, mut put) = (Vec::new(), Vec::new());
        for (key, was) in before {
            match (was, self.known.get(&key)) {
                (Some(was), None) => gone.push(was),
                (was, Some(now)) if was.as_ref().is_none_or(|was| was.attributes != now.attributes) => {
                    put.push(now.clone());
                }
                _ => {}
            }
        }
        Delta::Some { gone, put }
    }

    fn wants(&mut self, lease: &Lease) -> bool {
        let kind = &lease.attributes.backend_type;
        let objection = if !self.backend.takes(kind) {
            Some(format!("it is of backend {kind:?}"))
        } else {
            self.danger(lease).map(str::to_owned)
        };
        let Some(objection) = objection else { return true };
        russet_store::refused("a lease is not programmed", lease.key, objection);
        false
    }

    /// Why programming the lease would do harm.
    fn danger(&self, lease: &Lease) -> Option<&'static str> {
        let there =
            [Some(IpAddr::V4(lease.attributes.public_ip)), lease.attributes.public_ipv6.map(IpAddr::V6)];
        for subnet in lease.key.subnets() {
            let special = subnet.addr().is_multicast() || subnet.addr().is_loopback();
            let holds = |net: &IpNet| subnet.contains(net) || net.contains(&subnet);
            if subnet.prefix_len() == 0 || special {
                return Some("its subnet is not one that pods could have");
            } else if self.own.iter().any(holds) {
                return Some("it overlaps this node's own subnet");
            } else if self.here.iter().any(|address| subnet.contains(address)) {
                return Some("it holds this node's own address");
            } else if there.iter().flatten().any(|address| subnet.contains(address)) {
                return Some("it holds the address through which it would be reached");
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{external, lease};

    fn peers() -> Peers {
        Peers::new(Backend::HostGw, &"10.5.29.0-24".parse().unwrap(), &external())
    }

    fn put(key: &str, public_ip: &str) -> Event {
        Event::Put(lease(key, public_ip, "host-gw"))
    }

    /// flannel.md sections 4 and 10.
    #[test]
    fn t20_and_t21_and_t24_events_are_merged_into_their_net_effect() {
        let mut peers = peers();
        assert_eq!(
            peers.take(vec![Event::Snapshot(vec![lease("10.5.1.0-24", "10.200.0.12", "host-gw")])]),
            Delta::All
        );
        let events = vec![
            put("10.5.2.0-24", "10.200.0.13"),
            Event::Gone("10.5.2.0-24".parse().unwrap()),
            put("10.5.3.0-24", "10.200.0.14"),
            put("10.5.1.0-24", "10.200.0.12"),
            put("10.5.3.0-24", "10.200.0.15"),
        ];
        let put_only = vec![lease("10.5.3.0-24", "10.200.0.15", "host-gw")];
        assert_eq!(peers.take(events), Delta::Some { gone: vec![], put: put_only.clone() });
        let moved =
            peers.take(vec![put("10.5.3.0-24", "10.200.0.16"), Event::Gone("10.5.1.0-24".parse().unwrap())]);
        let Delta::Some { gone, put } = moved else { panic!() };
        assert_eq!(gone, [lease("10.5.1.0-24", "10.200.0.12", "host-gw")]);
        assert_eq!(put, [lease("10.5.3.0-24", "10.200.0.16", "host-gw")]);
        assert_eq!(peers.len(), 1);
    }

    /// flannel.md sections 4 and 10: the objects of a node that changed its type are removed, which the original leaves.
    #[test]
    fn t22_a_lease_of_another_type_is_ignored_and_one_that_changes_to_it_is_removed() {
        let mut peers = peers();
        peers.take(vec![put("10.5.1.0-24", "10.200.0.12")]);
        let other = Event::Put(lease("10.5.1.0-24", "10.200.0.12", "vxlan"));
        let Delta::Some { gone, put } = peers.take(vec![other]) else { panic!() };
        assert_eq!((gone.len(), put.len(), peers.len()), (1, 0, 0));
    }

    #[test]
    fn a_lease_that_would_cut_this_node_off_is_refused() {
        for (key, why) in [
            ("0.0.0.0-1", "half of everything"),
            ("10.5.29.0-25", "part of our own subnet"),
            ("10.5.0.0-16", "around our own subnet"),
            ("10.200.0.0-24", "the underlay"),
            ("172.16.0.0-24", "its own address"),
            ("127.0.0.0-8", "loopback"),
        ] {
            assert_eq!(
                peers().take(vec![put(key, "172.16.0.9")]),
                Delta::Some { gone: vec![], put: vec![] },
                "{key}: {why}"
            );
        }
    }
}
