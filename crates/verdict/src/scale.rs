//! A large cluster, and what single changes in it cost the engine (policy.md sections 2.3 and 6.4).
//!
//! Every namespace has as many pods as another one and as many policies, of which each selects the pods of
//! one application and allows those of another one. This node has the first pod of every namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use russet_addr::{IfName, IpNet, Ipv4Net};
use russet_model::Selector;

use crate::engine::Engine;
use crate::ir::*;
use crate::table::Delta;
use crate::world::*;

/// How large the cluster is.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Namespaces, each with a pod on this node.
    pub namespaces: u32,
    /// Pods in each.
    pub pods: u32,
    /// Policies in each.
    pub policies: u32,
}

/// What a kind of change costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// The change.
    pub name: &'static str,
    /// The time of update and flush, in order.
    pub times: Vec<Duration>,
    /// The elements in the deltas of all of them.
    pub elements: usize,
}

/// Applications in a namespace.
const APPLICATIONS: u32 = 20;
/// How often each change is measured.
const ROUNDS: u32 = 200;

// === impl Scale ===

impl Scale {
    /// 10,000 policies, and as many pods in 100 namespaces.
    pub const LARGE: Self = Self { namespaces: 100, pods: 100, policies: 100 };

    /// All objects.
    pub fn updates(&self) -> Vec<Update> {
        let mut updates = vec![tier(0), config()];
        for namespace in 0..self.namespaces {
            updates.push(namespace_labels(namespace, "blue"));
            updates.extend((0..self.pods).map(|pod| self.pod(namespace, pod).update()));
            updates.extend((0..self.policies).map(|number| policy(namespace, number, 80, None)));
        }
        updates
    }

    /// The pod with a number. The first of a namespace is on this node.
    fn pod(&self, namespace: u32, number: u32) -> Pod {
        let application = number % APPLICATIONS;
        Pod {
            address: (10 << 24) + namespace * self.pods + number + 1,
            namespace,
            number,
            application,
            revision: 0,
        }
    }

    /// The application of a local pod after a round in which it changes.
    fn application_of_local(&self, round: u32) -> u32 {
        1 + round / self.namespaces % (APPLICATIONS - 1)
    }

    /// A policy's port changes: of any policy of the cluster, or of one that selects a pod of this node.
    pub fn policy_change(&self, round: u32, is_active: bool) -> Update {
        let number = if is_active { round * APPLICATIONS } else { round * 7 } % self.policies;
        policy(round % self.namespaces, number, 1000 + round % 1000, None)
    }

    /// A pod of another node passes to another application.
    pub fn pod_change(&self, round: u32) -> Update {
        let pod = self.pod(round % self.namespaces, 1 + round % (self.pods - 1));
        let application = (pod.application + 1 + round / self.namespaces) % APPLICATIONS;
        Pod { application, ..pod }.update()
    }

    /// Loads everything, and then measures single changes. `clock` returns the time since some
    /// moment.
    pub fn measure(&self, clock: &mut dyn FnMut() -> Duration) -> (Engine, Vec<Cost>) {
        self.measure_with(clock, &mut |_| {})
    }

    /// The same; the time of a change includes what `take` does with its delta.
    pub fn measure_with(
        &self,
        clock: &mut dyn FnMut() -> Duration,
        take: &mut dyn FnMut(&Delta),
    ) -> (Engine, Vec<Cost>) {
        let mut bench = Bench { engine: Engine::default(), clock, take, costs: Vec::new() };
        bench.cost("start", 1, &|_| self.updates());
        self.measure_pods(&mut bench);
        self.measure_policies(&mut bench);
        (bench.engine, bench.costs)
    }

    fn measure_pods(&self, bench: &mut Bench<'_>) {
        let remote = |round: u32| self.pod(round % self.namespaces, 1 + round % (self.pods - 1));
        let local = |round: u32| self.pod(round % self.namespaces, 0);
        let further = |round: u32| self.pod(round % self.namespaces, 1_000_000 + round);
        bench.cost("remote pod, identical", ROUNDS, &|round| vec![remote(round).update()]);
        bench.cost("remote pod, label that nothing asks for", ROUNDS, &|round| {
            vec![Pod { revision: round, ..remote(round) }.update()]
        });
        bench.cost("remote pod, another class", ROUNDS, &|round| vec![self.pod_change(round)]);
        bench.cost("remote pod added", ROUNDS, &|round| vec![further(round).update()]);
        bench.cost("remote pod removed", ROUNDS, &|round| vec![Update::Endpoint(further(round).key(), None)]);
        bench.cost("local pod, same class", ROUNDS, &|round| {
            vec![Pod { revision: round, ..local(round) }.update()]
        });
        bench.cost("local pod, another class", ROUNDS, &|round| {
            vec![Pod { application: self.application_of_local(round), ..local(round) }.update()]
        });
    }

    /// After [`Self::measure_pods`].
    fn measure_policies(&self, bench: &mut Bench<'_>) {
        let active = |round: u32| {
            let namespace = round % self.namespaces;
            (namespace, self.application_of_local(ROUNDS - (ROUNDS - namespace) % self.namespaces))
        };
        bench.cost("active policy, identical", ROUNDS, &|round| {
            let (namespace, number) = active(round);
            vec![policy(namespace, number, 80, None)]
        });
        bench.cost("active policy, order", ROUNDS, &|round| {
            let (namespace, number) = active(round);
            vec![policy(namespace, number, 80, Some(f64::from(round)))]
        });
        bench.cost("active policy, port", ROUNDS, &|round| {
            let (namespace, number) = active(round);
            vec![policy(namespace, number, 1000 + round, None)]
        });
        bench.cost("inactive policy", ROUNDS, &|round| {
            vec![policy(round % self.namespaces, APPLICATIONS - 1, 1000 + round, None)]
        });
        bench.cost("tier, order", ROUNDS, &|round| vec![tier(round)]);
        bench.cost("namespace, label that rules ask for", ROUNDS, &|round| {
            let colour = if ((round - 1) / self.namespaces).is_multiple_of(2) { "red" } else { "blue" };
            vec![namespace_labels(round % self.namespaces, colour)]
        });
    }
}

/// Runs changes.
struct Bench<'a> {
    engine: Engine,
    clock: &'a mut dyn FnMut() -> Duration,
    take: &'a mut dyn FnMut(&Delta),
    costs: Vec<Cost>,
}

// === impl Bench ===

impl Bench<'_> {
    fn cost(&mut self, name: &'static str, rounds: u32, change: &dyn Fn(u32) -> Vec<Update>) {
        let mut cost = Cost { name, times: Vec::new(), elements: 0 };
        for updates in (1..=rounds).map(change) {
            let start = (self.clock)();
            updates.into_iter().for_each(|update| self.engine.apply(update));
            let delta = self.engine.flush();
            (self.take)(&delta);
            cost.times.push((self.clock)() - start);
            cost.elements += elements(&delta);
        }
        cost.times.sort_unstable();
        self.costs.push(cost);
    }
}

// === impl Cost ===

impl Cost {
    /// The time that so many of a hundred changes do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.times.len().saturating_sub(1);
        self.times.get(last * percent / 100).copied().unwrap_or_default()
    }
}

/// A pod of the cluster.
#[derive(Debug, Clone, Copy)]
struct Pod {
    address: u32,
    namespace: u32,
    number: u32,
    application: u32,
    revision: u32,
}

// === impl Pod ===

impl Pod {
    fn key(self) -> EndpointKey {
        EndpointKey(format!("ns-{}/pod-{}", self.namespace, self.number).into())
    }

    fn update(self) -> Update {
        let namespace: Arc<str> = format!("ns-{}", self.namespace).into();
        let labels = [
            ("app", format!("app-{}", self.application)),
            ("pod-template-hash", format!("{}-{}", self.number, self.revision)),
            ("projectcalico.org/namespace", namespace.to_string()),
            ("projectcalico.org/orchestrator", "k8s".to_owned()),
        ];
        let name: Arc<str> = format!("pod-{}", self.number).into();
        let endpoint = Endpoint {
            kind: EndpointKind::Workload,
            namespace: Some(namespace.clone()),
            name,
            node: if self.number == 0 { "here" } else { "there" }.into(),
            addresses: [std::net::Ipv4Addr::from(self.address).into()].into(),
            labels: labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            profiles: vec![format!("kns.{namespace}").into()],
            ports: Vec::new(),
            local: if self.number == 0 { IfName::new(format!("cali{}", self.namespace)).ok() } else { None },
            age: 0,
        };
        Update::Endpoint(self.key(), Some(Arc::new(endpoint)))
    }
}

/// A policy for one application, which allows another one of the namespace, pods of red namespaces, and
/// some prefix.
fn policy(namespace: u32, number: u32, port: u32, order: Option<f64>) -> Update {
    let labels = |application: u32| -> Selector {
        let text = format!(
            "projectcalico.org/orchestrator == 'k8s' && app == 'app-{application}' && \
             projectcalico.org/namespace == 'ns-{namespace}'"
        );
        Selector::parse(&text).unwrap_or_else(|_| Selector::all())
    };
    let red = Selector::parse("pcns.colour == 'red' && projectcalico.org/orchestrator == 'k8s'").ok();
    let block = Ipv4Net::new_assert(std::net::Ipv4Addr::from((192 << 24) + (namespace << 8)), 24);
    let port = Port::Range(u16::try_from(port).unwrap_or(u16::MAX), u16::try_from(port).unwrap_or(u16::MAX));
    let destination = Entity { ports: Some(vec![port]), ..Entity::default() };
    let sources = [
        Entity {
            selector: Some(labels((number + 1 + number / APPLICATIONS) % APPLICATIONS)),
            ..Entity::default()
        },
        Entity { selector: red, ..Entity::default() },
        Entity { nets: Some(vec![IpNet::V4(block)]), ..Entity::default() },
    ];
    let rule = |source| Rule {
        protocol: Some(Protocol::TCP),
        source,
        destination: destination.clone(),
        ..Rule::any(Action::Allow, "spec.ingress[0]")
    };
    let name: Arc<str> = format!("policy-{number}").into();
    let space = Some(format!("ns-{namespace}").into());
    let id = PolicyId { kind: PolicyKind::KubernetesNetworkPolicy, namespace: space, name: name.clone() };
    let policy = Policy {
        id: id.clone(),
        name,
        tier: "default".into(),
        order: Order::new(order.or(Some(1000.0))),
        subject: labels(number % APPLICATIONS),
        directions: Directions { ingress: true, egress: false },
        staged: None,
        host_use: HostUse::Normal,
        ingress: sources.into_iter().map(rule).collect(),
        egress: Vec::new(),
        problems: Vec::new(),
    };
    Update::Policy(id, Some(Arc::new(policy)))
}

fn namespace_labels(namespace: u32, colour: &str) -> Update {
    let labels: BTreeMap<Arc<str>, Arc<str>> = [("pcns.colour".into(), colour.into())].into();
    let allow = vec![Rule::any(Action::Allow, "")];
    let profile = Profile { ingress: allow.clone(), egress: allow, labels };
    Update::Profile(format!("kns.ns-{namespace}").into(), Some(Arc::new(profile)))
}

fn tier(order: u32) -> Update {
    let order = Order::new(Some(1_000_000.0 + f64::from(order)));
    Update::Tier("default".into(), Some(Tier { order, default_action: TierDefault::Deny }))
}

fn config() -> Update {
    Update::Config(Config { node: "here".into(), allow_without_profile: true, ..Config::default() })
}

fn elements(delta: &Delta) -> usize {
    delta.identities.len() + delta.decisions.len() + delta.defaults.len() + delta.wide.len()
}
