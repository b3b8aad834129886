//! What rules come from: policies, profiles and EgressNetworkPolicies, while a local endpoint uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::IpNet;

use super::compile::{Compiled, Local};
use super::packed::Content;
use super::predicate::Predicates;
use super::program::{Block, End, Program};
use super::store::Store;
use super::stored::StoredEndpoint;
use crate::ir::{
    Action, Direction, Directions, Entity, Order, PolicyId, Port, Problem, Protocol, Rule, TierDefault,
};
use crate::world::EgressPeer;

/// Where rules come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Policy(PolicyId),
    Profile(Arc<str>),
    /// The EgressNetworkPolicies of a namespace, for endpoints of a node.
    Firewall(Arc<str>, Arc<str>),
}

/// The sources in use.
#[derive(Debug, Default)]
pub(super) struct Sources {
    used: BTreeMap<Source, Used>,
}

#[derive(Debug)]
struct Used {
    users: usize,
    rules: Compiled,
    /// Of a policy: its tier, and its place in it.
    tier: Option<(Arc<str>, Order, String)>,
    directions: Directions,
}

/// The profile that allows everything and is never stored.
pub(super) const ALLOW_ALL_PROFILE: &str = "projectcalico-default-allow";

/// The port of DNS, to which an EgressNetworkPolicy never closes the own node.
const DNS: Port = Port::Range(53, 53);

// === impl Sources ===

impl Sources {
    /// Counts a user of each.
    pub(super) fn acquire(&mut self, sources: &BTreeSet<Source>, context: &mut Context<'_>) {
        for source in sources {
            match self.used.get_mut(source) {
                Some(used) => used.users += 1,
                None => _ = self.used.insert(source.clone(), context.compile(source)),
            }
        }
    }

    /// Takes that back.
    pub(super) fn release(&mut self, sources: &BTreeSet<Source>, predicates: &mut Predicates) {
        for source in sources {
            let Some(used) = self.used.get_mut(source) else { continue };
            used.users -= 1;
            if used.users == 0 {
                used.rules.release(predicates);
                self.used.remove(source);
            }
        }
    }

    /// Reads the rules of a source again, if it is in use.
    pub(super) fn refresh(&mut self, source: &Source, context: &mut Context<'_>) {
        if let Some(used) = self.used.get_mut(source) {
            let new = Used { users: used.users, ..context.compile(source) };
            std::mem::replace(used, new).rules.release(context.predicates);
        }
    }

    /// The firewalls in use.
    pub(super) fn firewalls(&self) -> Vec<Source> {
        self.used.keys().filter(|source| matches!(source, Source::Firewall(..))).cloned().collect()
    }

    pub(super) fn asks_of_local(&self, sources: &BTreeSet<Source>) -> bool {
        sources.iter().filter_map(|source| self.used.get(source)).any(|used| used.rules.asks_of_local)
    }

    pub(super) fn is_of_tier(&self, sources: &BTreeSet<Source>, tier: &str) -> bool {
        let tiers = sources.iter().filter_map(|source| self.used.get(source)?.tier.as_ref());
        tiers.into_iter().any(|(name, ..)| **name == *tier)
    }

    /// What decides on packets of a local address.
    pub(super) fn program(
        &self,
        sources: &BTreeSet<Source>,
        endpoint: &StoredEndpoint,
        direction: Direction,
        local: Local<'_>,
    ) -> Program {
        let mut blocks = self.tiers(sources, direction, local);
        self.add_profiles(endpoint, direction, local, &mut blocks);
        let is_firewall = |source: &&Source| matches!(source, Source::Firewall(..));
        let firewall = sources.iter().filter(is_firewall).filter_map(|source| self.used.get(source));
        let firewall = firewall.flat_map(|used| used.rules.lines(direction, local)).collect();
        Program { direction, family: russet_addr::Family::of(local.address), blocks, firewall }
    }

    fn tiers(&self, sources: &BTreeSet<Source>, direction: Direction, local: Local<'_>) -> Vec<Block> {
        let counts = |used: &&Used| match direction {
            Direction::Ingress => used.directions.ingress,
            Direction::Egress => used.directions.egress,
        };
        let mut policies: Vec<_> = sources
            .iter()
            .filter_map(|source| self.used.get(source))
            .filter(counts)
            .filter_map(|used| {
                let (name, order, key) = used.tier.as_ref()?;
                let known = local.store.tiers.get(&**name);
                // Tiers that do not exist are after all others, also after those without an order.
                let tier = (known.is_none(), known.map_or(Order::LAST, |tier| tier.order), name);
                let default = known.map_or(TierDefault::Deny, |tier| tier.default_action);
                Some(((tier, *order, key), default, &used.rules))
            })
            .collect();
        policies.sort_by_key(|(place, ..)| *place);
        let mut blocks: Vec<Block> = Vec::new();
        let mut last = None;
        for (((.., name), ..), default, rules) in policies {
            let lines = rules.lines(direction, local);
            match blocks.last_mut().filter(|_| last == Some(name)) {
                Some(block) => block.lines.extend(lines),
                None => {
                    let end = if default == TierDefault::Pass { End::Next } else { End::Deny };
                    blocks.push(Block { lines: lines.collect(), end });
                    last = Some(name);
                }
            }
        }
        blocks
    }

    /// Profiles decide where no tier did; one that is unknown denies.
    fn add_profiles(
        &self,
        endpoint: &StoredEndpoint,
        direction: Direction,
        local: Local<'_>,
        blocks: &mut Vec<Block>,
    ) {
        for name in &*endpoint.profiles {
            let is_known = local.store.profiles.get(name).is_some();
            let end = match is_known {
                true => End::Next,
                false if **name == *ALLOW_ALL_PROFILE => End::Allow,
                false => End::Deny,
            };
            let used = self.used.get(&Source::Profile(name.clone()));
            let lines = used.map(|used| used.rules.lines(direction, local).collect()).unwrap_or_default();
            blocks.push(Block { lines, end });
        }
        let is_open = endpoint.profiles.is_empty()
            && local.store.config().is_some_and(|config| config.allow_without_profile);
        blocks.push(Block { lines: Vec::new(), end: if is_open { End::Allow } else { End::Deny } });
    }

    pub(super) fn len(&self) -> usize {
        self.used.len()
    }
}

/// The sources of an endpoint that these policies select.
pub(super) fn of_endpoint<'a>(
    endpoint: &StoredEndpoint,
    policies: impl IntoIterator<Item = &'a PolicyId>,
) -> BTreeSet<Source> {
    let firewall = endpoint.namespace.clone().map(|it| Source::Firewall(it, endpoint.node.clone()));
    let profiles = endpoint.profiles.iter().cloned().map(Source::Profile);
    policies.into_iter().cloned().map(Source::Policy).chain(profiles).chain(firewall).collect()
}

/// What compiling needs.
pub(super) struct Context<'a> {
    pub(super) store: &'a Store,
    pub(super) predicates: &'a mut Predicates,
    pub(super) max_rules: usize,
    pub(super) problems: &'a mut Vec<(PolicyId, Problem)>,
}

// === impl Context ===

impl Context<'_> {
    fn compile(&mut self, source: &Source) -> Used {
        let (mut tier, mut directions) = (None, Directions::default());
        let rules = match source {
            Source::Policy(id) => match self.store.policies.get(id) {
                Some(policy) => {
                    let policy = policy.content();
                    tier = Some((policy.tier.clone(), policy.order, id.sort_key()));
                    directions = policy.directions;
                    self.compile_policy(id, &policy)
                }
                None => Compiled::default(),
            },
            Source::Profile(name) => match self.store.profiles.get(name) {
                Some(profile) => Compiled::new(&profile.ingress, &profile.egress, self.predicates),
                None => Compiled::default(),
            },
            Source::Firewall(namespace, node) => {
                Compiled::new(&[], &firewall_rules(self.store, namespace, node), self.predicates)
            }
        };
        Used { users: 1, rules, tier, directions }
    }

    fn compile_policy(&mut self, id: &PolicyId, policy: &Content) -> Compiled {
        if policy.ingress.len() + policy.egress.len() > self.max_rules {
            let text = "too many rules: none of them counts, and what the policy selects is isolated";
            self.problems.push((id.clone(), Problem { path: "spec".into(), text: text.into() }));
            return Compiled::default();
        }
        Compiled::new(&policy.ingress, &policy.egress, self.predicates)
    }
}

/// The EgressNetworkPolicies of a namespace as rules (policy.md section 1.10). They concern only
/// what leaves the cluster, and never DNS on the own node.
fn firewall_rules(store: &Store, namespace: &Arc<str>, node: &str) -> Vec<Rule> {
    let all = store.firewalls.iter().filter(|((of, _), it)| of == namespace && !it.rules.is_empty());
    let all: Vec<_> = all.map(|(_, firewall)| firewall).collect();
    let Some(first) = all.first() else { return Vec::new() };
    let cluster_nets = store.config().into_iter().flat_map(|config| &config.cluster_nets);
    let to = |action, nets: Vec<IpNet>| {
        let destination = Entity { nets: Some(nets), ..Entity::default() };
        Rule { destination, ..Rule::any(action, "") }
    };
    let mut rules = vec![to(Action::Allow, cluster_nets.copied().collect())];
    let own = own_addresses(store, node);
    for protocol in [Protocol::TCP, Protocol::UDP] {
        let mut rule = to(Action::Allow, own.iter().copied().map(IpNet::from).collect());
        rule.protocol = Some(protocol);
        rule.destination.ports = Some(vec![DNS]);
        rules.push(rule);
    }
    if all.len() > 1 {
        rules.push(Rule::any(Action::Deny, ""));
        return rules;
    }
    rules.extend(first.rules.iter().map(|(is_allowed, peer)| {
        let nets = match peer {
            EgressPeer::Net(net) => vec![*net],
            EgressPeer::Name(_, addresses) => addresses.iter().copied().map(IpNet::from).collect(),
        };
        to(if *is_allowed { Action::Allow } else { Action::Deny }, nets)
    }));
    rules
}

fn own_addresses(store: &Store, node: &str) -> BTreeSet<IpAddr> {
    let known = store.nodes.iter().find(|(name, _)| name.as_str() == node);
    let mut own: BTreeSet<IpAddr> = known.map(|(_, node)| node.addresses.clone()).unwrap_or_default();
    own.extend(
        store.config().filter(|config| *config.node == *node).into_iter().flat_map(|it| &it.own_addresses),
    );
    own
}
