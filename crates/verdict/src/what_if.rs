//! Which pairs of pods another state of a cluster allows or denies that this one does not.
//!
//! The evaluator reads all policies and endpoints for each question. Here many questions are about the same
//! few pods, so that each is asked of a snapshot that has only what can count for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::NodeName;
use russet_model::Restriction;

use crate::evaluator;
use crate::explain::Probe;
use crate::flow::Flow;
use crate::ir::{Direction, Policy, PolicyId, Protocol};
use crate::snapshot::Snapshot;
use crate::translate::NAMESPACE;
use crate::world::{Endpoint, EndpointKey, EndpointKind};

/// A pair of pods and a port whose verdict differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangedPair {
    /// The pod that begins.
    pub from: EndpointKey,
    /// The pod that it begins with.
    pub to: EndpointKey,
    /// The protocol and the port.
    pub probe: Probe,
    /// What it is afterwards; before, it was the opposite.
    pub allowed: bool,
}

/// More pairs would have to be judged than are judged at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyPairs {
    /// The pods of the cluster.
    pub pods: usize,
}

/// Limit of judged pairs: each takes 6 us (docs/performance.md), so that so many take half a minute.
pub const PAIRS_MAX: usize = 4_000_000;
const PING: Probe = Probe { protocol: Protocol::ICMP, port: 0 };

/// A snapshot, and where in it things are.
struct Indexed<'a> {
    snapshot: &'a Snapshot,
    endpoints: BTreeMap<IpAddr, Vec<&'a EndpointKey>>,
    nodes: BTreeMap<IpAddr, Vec<&'a NodeName>>,
    /// Enforced policies by the namespace of which their subjects are; `None` is any.
    policies: BTreeMap<Option<&'a str>, Vec<(&'a PolicyId, &'a Arc<Policy>)>>,
}

type Policies = Arc<BTreeMap<PolicyId, Arc<Policy>>>;

/// An end whose own policies differ, before and after.
struct AffectedEnd {
    before: Policies,
    after: Policies,
}

/// The pairs of pods whose verdicts differ, in order. `ports` are those that are judged; without any, the
/// named ones of each destination, and ICMP.
pub fn changed_pairs(
    before: &Snapshot,
    after: &Snapshot,
    ports: &[Probe],
) -> Result<Vec<ChangedPair>, TooManyPairs> {
    let [old, new] = [before, after].map(Indexed::new);
    let is_pod = |(_, endpoint): &(&EndpointKey, &Arc<Endpoint>)| endpoint.kind == EndpointKind::Workload;
    let pods: BTreeMap<&EndpointKey, &Arc<Endpoint>> = after.endpoints.iter().filter(is_pod).collect();
    let affected = affected(&old, &new, &pods);
    let ends = affected.keys().map(|(key, _)| key).collect::<BTreeSet<_>>().len();
    if ends.saturating_mul(pods.len()) > PAIRS_MAX {
        return Err(TooManyPairs { pods: pods.len() });
    }
    let mut changed = Vec::new();
    let mut judge = |pair: [(&EndpointKey, &Endpoint); 2]| {
        let [(from, source), (to, destination)] = pair;
        for probe in probes(destination, ports) {
            let verdicts = flows(probe, source, destination).into_iter().map(|flow| {
                let ends = [(from, Direction::Egress), (to, Direction::Ingress)];
                change(&old, &new, &flow, ends, &affected)
            });
            for allowed in verdicts.flatten().collect::<BTreeSet<bool>>() {
                changed.push(ChangedPair { from: from.clone(), to: to.clone(), probe, allowed });
            }
        }
    };
    let egress: BTreeMap<&EndpointKey, &Arc<Endpoint>> = affected
        .keys()
        .filter(|(_, direction)| *direction == Direction::Egress)
        .filter_map(|(key, _)| pods.get_key_value(key))
        .map(|(key, endpoint)| (*key, *endpoint))
        .collect();
    for (to, destination) in &pods {
        let sources =
            if affected.contains_key(&((*to).clone(), Direction::Ingress)) { &pods } else { &egress };
        for (from, source) in sources.iter().filter(|(from, _)| *from != to) {
            judge([(from, source), (to, destination)]);
        }
    }
    changed.sort();
    Ok(changed)
}

/// Whether each flow may begin.
pub(crate) fn allowed(snapshot: &Snapshot, flows: &[Flow]) -> Vec<bool> {
    let indexed = Indexed::new(snapshot);
    flows.iter().map(|flow| indexed.asked(flow).allowed()).collect()
}

/// The ends of pods whose own policies differ, or all if anything else does that they may name.
fn affected(
    old: &Indexed<'_>,
    new: &Indexed<'_>,
    pods: &BTreeMap<&EndpointKey, &Arc<Endpoint>>,
) -> BTreeMap<(EndpointKey, Direction), AffectedEnd> {
    let (before, after) = (old.snapshot, new.snapshot);
    let others_differ = before.tiers != after.tiers
        || before.profiles != after.profiles
        || before.network_sets != after.network_sets
        || before.endpoints != after.endpoints
        || before.services != after.services
        || before.nodes != after.nodes
        || before.egress_firewalls != after.egress_firewalls;
    let changed = |of: &Snapshot, other: &Snapshot| -> Vec<Arc<Policy>> {
        let policies = of.policies.iter().filter(|(id, policy)| other.policies.get(*id) != Some(*policy));
        policies.map(|(_, policy)| policy.clone()).collect()
    };
    let changed = [(before, changed(before, after)), (after, changed(after, before))];
    let differ = |pod: &Endpoint, direction| {
        changed.iter().any(|(snapshot, policies)| {
            let mut policies = policies.iter().filter(|policy| policy.directions.has(direction));
            policies.any(|policy| snapshot.selects(&policy.subject, pod))
        })
    };
    let mut found = BTreeMap::new();
    for (key, pod) in pods {
        for direction in [Direction::Ingress, Direction::Egress] {
            if others_differ || differ(pod, direction) {
                let [before, after] = [old, new].map(|it| Arc::new(it.policies_of(pod, direction)));
                found.insert(((*key).clone(), direction), AffectedEnd { before, after });
            }
        }
    }
    found
}

/// Whether a flow is allowed afterwards, if that differs. Of an end that is not affected nothing is asked
/// unless the other one differs.
fn change(
    old: &Indexed<'_>,
    new: &Indexed<'_>,
    flow: &Flow,
    ends: [(&EndpointKey, Direction); 2],
    affected: &BTreeMap<(EndpointKey, Direction), AffectedEnd>,
) -> Option<bool> {
    let differs = ends.iter().any(|(key, direction)| {
        affected.get(&((*key).clone(), *direction)).is_some_and(|end| {
            let judged = |indexed: &Indexed<'_>, policies: &Policies| {
                let trace = evaluator::judge(&indexed.around(flow, policies.clone()), key, *direction, flow);
                trace.map(|trace| trace.allowed)
            };
            judged(old, &end.before) != judged(new, &end.after)
        })
    });
    if !differs {
        return None;
    }
    let [before, after] = [old, new].map(|it| it.asked(flow).allowed());
    Some(after).filter(|after| *after != before)
}

fn probes(destination: &Endpoint, ports: &[Probe]) -> BTreeSet<Probe> {
    if !ports.is_empty() {
        return ports.iter().copied().collect();
    }
    let named = destination.ports.iter().map(|it| Probe { protocol: it.protocol, port: it.port });
    named.chain([PING]).collect()
}

fn flows(probe: Probe, source: &Endpoint, destination: &Endpoint) -> Vec<Flow> {
    let to = |from| destination.addresses.iter().filter_map(move |to| probe.flow(from, *to));
    source.addresses.iter().flat_map(|from| to(*from)).collect()
}

// === impl Indexed ===

impl<'a> Indexed<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let mut found =
            Self { snapshot, endpoints: BTreeMap::new(), nodes: BTreeMap::new(), policies: BTreeMap::new() };
        for (key, endpoint) in snapshot.endpoints.iter() {
            for address in &endpoint.addresses {
                found.endpoints.entry(*address).or_default().push(key);
            }
        }
        for (name, node) in snapshot.nodes.iter() {
            for address in &node.addresses {
                found.nodes.entry(*address).or_default().push(name);
            }
        }
        for (id, policy) in snapshot.policies.iter().filter(|(_, policy)| policy.staged.is_none()) {
            for namespace in namespaces(policy) {
                found.policies.entry(namespace).or_default().push((id, policy));
            }
        }
        found
    }

    /// The enforced policies that select an endpoint in a direction.
    fn policies_of(&self, endpoint: &Endpoint, direction: Direction) -> BTreeMap<PolicyId, Arc<Policy>> {
        let own = self.snapshot.label(endpoint, NAMESPACE);
        let filed = [None, own].into_iter().take(1 + usize::from(own.is_some()));
        let filed = filed.filter_map(|namespace| self.policies.get(&namespace)).flatten();
        let selects = |policy: &Policy| {
            policy.directions.has(direction) && self.snapshot.selects(&policy.subject, endpoint)
        };
        let found = filed.filter(|(_, policy)| selects(policy));
        found.map(|(id, policy)| ((*id).clone(), (*policy).clone())).collect()
    }

    /// A snapshot with these policies, and with what is at the two addresses of a flow.
    fn around(&self, flow: &Flow, policies: Policies) -> Snapshot {
        let addresses = [flow.source, flow.destination];
        let all = self.snapshot;
        let endpoints = addresses.iter().filter_map(|address| self.endpoints.get(address)).flatten();
        let endpoints = endpoints.filter_map(|key| Some(((*key).clone(), all.endpoints.get(*key)?.clone())));
        let nodes = addresses.iter().filter_map(|address| self.nodes.get(address)).flatten();
        let nodes = nodes.filter_map(|name| Some(((*name).clone(), all.nodes.get(*name)?.clone())));
        Snapshot {
            policies,
            endpoints: Arc::new(endpoints.collect()),
            nodes: Arc::new(nodes.collect()),
            ..all.clone()
        }
    }

    /// The answer for both ends of a flow.
    fn asked(&self, flow: &Flow) -> evaluator::Trace {
        let ends = [(flow.source, Direction::Egress), (flow.destination, Direction::Ingress)];
        let mut policies = BTreeMap::new();
        for (address, direction) in ends {
            for key in self.endpoints.get(&address).into_iter().flatten() {
                if let Some(endpoint) = self.snapshot.endpoints.get(*key) {
                    policies.extend(self.policies_of(endpoint, direction));
                }
            }
        }
        evaluator::ask(&self.around(flow, Arc::new(policies)), flow)
    }
}

/// The namespaces of what a policy may select, as its selector says; `None` is any.
fn namespaces(policy: &Policy) -> BTreeSet<Option<&str>> {
    let restrictions = policy.subject.restrictions();
    let named = restrictions.into_iter().find_map(|restriction| match restriction {
        Restriction::OneOf(NAMESPACE, values) => Some(values),
        Restriction::OneOf(..) | Restriction::Has(_) => None,
    });
    named.map_or_else(|| [None].into(), |values| values.into_iter().map(Some).collect())
}

#[cfg(test)]
mod tests {
    use russet_testkit::Random;

    use super::*;
    use crate::generate;
    use crate::ir::{Order, Tier, TierDefault};
    use crate::world::Update;

    #[test]
    fn the_answer_about_what_is_around_a_flow_is_the_answer_about_everything() {
        let mut random = Random::new(0x1d3b);
        for case in generate::cases(12, &mut |below| random.below(below)) {
            let mut snapshot = Snapshot::default();
            for state in case.states() {
                state.updates.into_iter().for_each(|update| snapshot.apply(update));
                let indexed = Indexed::new(&snapshot);
                for (name, flow) in generate::flows() {
                    assert_eq!(indexed.asked(&flow), evaluator::ask(&snapshot, &flow), "{name}");
                }
            }
        }
    }

    #[test]
    fn changed_pairs_are_those_of_all_pairs() {
        let mut random = Random::new(0x1d3c);
        let mut total = 0;
        for case in generate::cases(6, &mut |below| random.below(below)) {
            let mut with = Snapshot::default();
            for state in case.states() {
                state.updates.into_iter().for_each(|update| with.apply(update));
            }
            for id in with.policies.keys() {
                let mut without = with.clone();
                without.apply(Update::Policy(id.clone(), None));
                for (before, after) in [(&with, &without), (&without, &with)] {
                    let ports = ["tcp/80", "icmp"].map(|text| text.parse::<Probe>().unwrap());
                    let found = changed_pairs(before, after, &ports).unwrap();
                    assert_eq!(found, all_changed(before, after, &ports), "{id}");
                    total += found.len();
                }
            }
        }
        assert!(total > 0);
    }

    fn all_changed(before: &Snapshot, after: &Snapshot, ports: &[Probe]) -> Vec<ChangedPair> {
        let pods = || after.endpoints.iter().filter(|(_, it)| it.kind == EndpointKind::Workload);
        let mut changed = BTreeSet::new();
        for ((to, destination), (from, source)) in pods().flat_map(|to| pods().map(move |from| (to, from))) {
            for probe in ports.iter().copied().filter(|_| from != to) {
                for flow in flows(probe, source, destination) {
                    let [was, allowed] = [before, after].map(|it| evaluator::ask(it, &flow).allowed());
                    if was != allowed {
                        changed.insert(ChangedPair { from: from.clone(), to: to.clone(), probe, allowed });
                    }
                }
            }
        }
        changed.into_iter().collect()
    }

    #[test]
    fn more_pairs_than_are_judged_at_once_are_an_error() {
        let mut before = Snapshot::default();
        let pods = u32::try_from(PAIRS_MAX.isqrt() + 1).unwrap();
        let all = crate::scale::Scale { namespaces: 1, pods, policies: 0 }.updates();
        all.into_iter().for_each(|update| before.apply(update));
        let mut after = before.clone();
        after.apply(Update::Tier(
            "new".into(),
            Some(Tier { order: Order::LAST, default_action: TierDefault::Deny }),
        ));
        let pods = usize::try_from(pods).unwrap();
        assert_eq!(changed_pairs(&before, &after, &[]), Err(TooManyPairs { pods }));
    }
}
