//! The thread that decides: objects in, decisions in the kernel out.

mod as_written;
mod bridges;
mod calico;
mod hosts;
mod kernel;
mod namespaces;
mod naming;
mod unlisted;
mod unrecorded;
mod wiring;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use russet_addr::EndpointId;
use russet_journal::EndpointTable;
use russet_policy::{Decisions, PolicyError};
use russet_verdict::engine::Engine;
use russet_verdict::ir::{Policy, PolicyId, Problem, Profile};
use russet_verdict::table::{Delta, Exceeded};
use russet_verdict::translate::{Translated, Translator, built_in_tiers};
use russet_verdict::world::{Config, Endpoint, EndpointKey, Update};
use serde_json::{Value, json};

use as_written::PolicyProblems;
use calico::Calico;
use hosts::Hosts;
use kernel::Kernel;
use naming::AtHosts;
use wiring::LocalPod;

use super::alone::Marker;
use super::closed::unanswered;
use super::felix::Felix;
use super::{Change, Kind, Request, Shared, Source, Wants};
use crate::fast_path::Signal;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;

pub use bridges::unjudged as unjudged_on_bridges;
pub use unrecorded::wired_endpoint;

/// The state of the thread.
pub struct Worker {
    node: Arc<str>,
    endpoints: EndpointTable,
    marker: Marker,
    shared: Arc<Shared>,
    metrics: PolicyMetrics,
    readiness: Readiness,
    felix: Felix,
    translator: Translator,
    engine: Engine,
    /// The objects that were applied, so that one that a later list leaves out is removed.
    known: BTreeMap<Kind, Known>,
    policies: BTreeSet<PolicyId>,
    /// Policies that are not in force. They are judged only with observed flows.
    staged: BTreeMap<PolicyId, Arc<Policy>>,
    problems: PolicyProblems,
    /// The policies that name nodes or Services, as they are written.
    asking: BTreeMap<PolicyId, Arc<Policy>>,
    wants: Wants,
    /// The pods of this node, as the API server or the store describes them.
    pods: BTreeMap<EndpointKey, Arc<Endpoint>>,
    /// What is wired on this node and not described by the store. Empty with Kubernetes' pods.
    unrecorded: BTreeMap<PodName, Arc<Endpoint>>,
    /// The names of the profiles that there are.
    profiles: BTreeSet<Arc<str>>,
    /// The pods of this node, as they are wired.
    wired: BTreeMap<PodName, LocalPod>,
    /// Interfaces whose pods are not recorded, such as those that a plugin without an agent attached.
    unnamed: Vec<LocalPod>,
    /// The host ends of Calico's plugins.
    calico: Calico,
    /// Interfaces that are being wired; the endpoint table does not list them yet.
    in_progress: BTreeMap<EndpointId, BTreeSet<IpAddr>>,
    /// Namespaces that are deleted, while there are pods of them.
    ending: BTreeSet<String>,
    /// When it is looked whether the kernel judges what bridges carry; none while no pod is behind one.
    bridges_at: Option<Instant>,
    /// Addresses of pods that are being removed, and until when they are held: their interfaces may
    /// still carry packets.
    leaving: BTreeMap<IpAddr, Instant>,
    /// The endpoint table may have changed.
    is_stale: bool,
    kernel: Kernel,
    hosts: Hosts,
    /// What names the flows that host endpoints deny.
    at_hosts: RefCell<AtHosts>,
    /// What the kernel has to hold: before decisions are made, what an earlier agent left.
    wanted: Decisions,
    /// Addresses that were held before this agent started, also by plugins without an agent.
    inherited: BTreeSet<IpAddr>,
    phase: Phase,
    /// Decisions were made: what is wanted is all of them, and the engine's deltas change it.
    has_decided: bool,
}

/// The objects of a kind that were applied.
#[derive(Default)]
struct Known {
    /// With the number of the list that was in progress, or the last one, when the object came.
    names: BTreeMap<ObjectName, u32>,
    list: u32,
    /// A list was complete.
    is_listed: bool,
}

/// How far decisions are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Policies, or what they depend on, are not listed yet. What was in force before stays in force.
    Waiting,
    /// The cluster has no policy.
    Open,
    /// Felix enforces them.
    Aside,
    Enforcing,
}

/// Namespace and name of an object; the namespace is empty for objects of the cluster.
type ObjectName = (String, String);
/// `namespace/name`.
type PodName = String;

/// The pause before another attempt after the kernel refused a change.
const RETRY: Duration = Duration::from_secs(1);
/// How long the addresses of a pod are held after its DEL has begun.
const LEAVING: Duration = Duration::from_secs(10);
/// The wait when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);
/// Limit of changes that are decided together, so that decisions do not wait for a flood of them.
const BATCH_MAX: usize = 4096;

// === impl Worker ===

impl Worker {
    pub fn new(
        node: &str,
        (endpoints, flows): (EndpointTable, &Signal),
        marker: Marker,
        shared: Arc<Shared>,
        (metrics, readiness): (PolicyMetrics, Readiness),
    ) -> Self {
        Self {
            node: node.into(),
            endpoints,
            marker,
            shared,
            metrics,
            readiness,
            felix: Felix::default(),
            translator: Translator::default(),
            engine: Engine::default(),
            known: BTreeMap::new(),
            policies: BTreeSet::new(),
            staged: BTreeMap::new(),
            problems: PolicyProblems::default(),
            asking: BTreeMap::new(),
            wants: Wants::default(),
            pods: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            profiles: BTreeSet::new(),
            wired: BTreeMap::new(),
            unnamed: Vec::new(),
            calico: Calico::default(),
            in_progress: BTreeMap::new(),
            ending: BTreeSet::new(),
            bridges_at: None,
            leaving: BTreeMap::new(),
            is_stale: true,
            kernel: Kernel::new(flows),
            hosts: Hosts::new(),
            at_hosts: RefCell::default(),
            wanted: Decisions::default(),
            inherited: BTreeSet::new(),
            phase: Phase::Waiting,
            has_decided: false,
        }
    }

    /// Works until nothing can send changes any more.
    pub fn run(mut self, changes: &Receiver<Change>) {
        self.begin();
        loop {
            match changes.recv_timeout(self.pause()) {
                Ok(change) => self.take(change),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for _ in 0..BATCH_MAX {
                self.serve_requests();
                match changes.try_recv() {
                    Ok(change) => self.take(change),
                    Err(_) => break,
                }
            }
            self.decide();
            self.publish();
            self.sample();
            self.name_flows();
            self.count_carried();
        }
    }

    /// What an earlier agent left in force stays so, and its identities keep their numbers.
    fn begin(&mut self) {
        match self.kernel.open() {
            Ok(table) => {
                self.wanted = table.current().clone();
                self.inherited = self.wanted.held.clone();
                self.engine = Engine::with_identities(self.wanted.identities.clone());
            }
            Err(error) => tracing::warn!(%error, "policies cannot be enforced yet"),
        }
        // Endpoints without a profile are denied by Calico, and Kubernetes knows no profiles.
        let allow_without_profile = self.shared.source == Source::Kubernetes;
        let config = Config { node: Arc::clone(&self.node), allow_without_profile, ..Config::default() };
        self.engine.apply(Update::Config(config));
        built_in_tiers().into_iter().for_each(|tier| self.engine.apply(tier));
    }

    fn pause(&self) -> Duration {
        if self.shared.has_unnamed() {
            return Duration::ZERO;
        }
        let table = self.kernel.table.as_ref();
        let advance = table.and_then(russet_policy::Policies::advance_at);
        // One that did not end then is tried again after the pause.
        let sampled = table.filter(|table| table.samples());
        let later = Instant::now() + RETRY;
        let sampled = sampled.map(|_| self.sampled_until().map_or(later, |until| until.max(later)));
        // Before everything is listed they have nothing to do.
        let hosts = self.hosts.due().filter(|_| self.phase != Phase::Waiting);
        let due = [advance, sampled, self.kernel.restore_at, hosts, self.bridges_at, self.calico.retry_at()];
        let due = due.into_iter().flatten();
        let due = due.chain(self.leaving.values().copied()).min();
        due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Until when connections that pass are logged; none if no client has wanted them.
    fn sampled_until(&self) -> Option<Instant> {
        *self.shared.flows.sampled().borrow()
    }

    /// Has connections that pass logged while a client wants them. After a failure the decisions are written first.
    fn sample(&mut self) {
        let now = Instant::now();
        let wanted = self.sampled_until().is_some_and(|until| until > now);
        let Some(table) = self.kernel.table.as_mut().filter(|_| self.kernel.restore_at.is_none()) else {
            return;
        };
        if let Err(error) = table.sample(wanted, now) {
            tracing::warn!(%error, "flows that pass are not seen as asked; another attempt follows");
            self.kernel.restore_at = Some(now + RETRY);
        }
    }

    fn serve_requests(&mut self) {
        for request in self.shared.take_requests() {
            match request {
                Request::Hold { id, addresses, held } => {
                    self.withhold(&addresses);
                    self.leaving.retain(|address, _| !addresses.contains(address));
                    let done = self.hold(&addresses).map_err(|error| error.to_string());
                    self.in_progress.insert(id, addresses);
                    // An ADD that has given up holds nothing: its interface is settled next.
                    let _ = held.send(done);
                }
                Request::Settled(id) => {
                    self.in_progress.remove(&id);
                    self.is_stale = true;
                }
                Request::Listed => self.is_stale = true,
                Request::Drifted => {
                    self.kernel.restore_at = Some(Instant::now());
                    self.hosts.doubt();
                }
                Request::Ends => self.ends_changed(),
                Request::Felix(felix) => self.meet(felix),
                // Below, once the table is there.
                Request::Sampled => {}
            }
        }
    }

    /// Holds the addresses of a new pod. On a kernel without nf_tables no pod can be kept apart; the
    /// verdicts of interfaces say so.
    fn hold(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), PolicyError> {
        if matches!(self.phase, Phase::Open | Phase::Aside) {
            return Ok(());
        }
        let table = match self.kernel.open() {
            Err(error) if error.is_unsupported() => return Ok(()),
            other => other?,
        };
        table.hold(addresses, Instant::now())?;
        self.wanted.held.extend(addresses);
        Ok(())
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Begin(kind) => self.known.entry(kind).or_default().list += 1,
            Change::Complete(kind) => {
                let known = self.known.entry(kind).or_default();
                known.is_listed = true;
                let list = known.list;
                let mut gone = Vec::new();
                known.names.retain(|name, seen| {
                    gone.extend((*seen != list).then(|| named(name)));
                    *seen == list
                });
                gone.into_iter().for_each(|object| self.remove(kind, object));
                self.listed(kind);
            }
            Change::Put(kind, object) => {
                let known = self.known.entry(kind).or_default();
                known.names.insert(name_of(&object), known.list);
                self.put(kind, object);
            }
            Change::Deleted(kind, object) => {
                self.known.entry(kind).or_default().names.remove(&name_of(&object));
                self.remove(kind, object);
            }
            Change::Wake => {}
        }
    }

    fn put(&mut self, kind: Kind, object: Value) {
        self.not_ending(kind, &object);
        let translated = self.translator.put(&typed(kind, object));
        self.apply(translated);
    }

    fn remove(&mut self, kind: Kind, object: Value) {
        if self.outlasts(kind, &object) {
            return;
        }
        let ended = self.ended_with(kind, &object);
        let translated = self.translator.remove(&typed(kind, object));
        self.apply(translated);
        if let Some(namespace) = ended {
            let translated = self.translator.remove(&typed(Kind::Namespaces, namespace));
            self.apply(translated);
        }
    }

    fn apply(&mut self, translated: Translated) {
        translated.problems.iter().for_each(|problem| report("object", problem));
        for update in translated.updates {
            match update {
                Update::Policy(id, policy) => {
                    let is_enforced = policy.as_ref().is_some_and(|policy| policy.staged.is_none());
                    match is_enforced {
                        true => self.policies.insert(id.clone()),
                        false => self.policies.remove(&id),
                    };
                    match policy.as_ref().filter(|policy| policy.staged.is_some()) {
                        Some(staged) => _ = self.staged.insert(id.clone(), Arc::clone(staged)),
                        None => _ = self.staged.remove(&id),
                    }
                    let source = self.shared.source;
                    let unanswered =
                        policy.iter().flat_map(|policy| unanswered(source, policy)).collect::<Vec<_>>();
                    let problems = policy.iter().flat_map(|policy| &policy.problems).chain(&unanswered);
                    problems.clone().for_each(|problem| report(&id, problem));
                    self.problems.read(&id, problems.filter(|_| is_enforced));
                    self.apply_policy(id, policy);
                }
                Update::Endpoint(key, endpoint) => self.apply_endpoint(key, endpoint),
                Update::Tier(name, None) => self.remove_tier(name),
                Update::Profile(name, profile) => self.apply_profile(name, profile),
                other => {
                    if matches!(other, Update::Felix(..)) {
                        self.hosts.renew();
                    }
                    self.engine.apply(other);
                }
            }
        }
    }

    /// Without its record a tier that Calico creates in every cluster is what it is there.
    fn remove_tier(&mut self, name: Arc<str>) {
        let built_in =
            built_in_tiers().into_iter().find(|it| matches!(it, Update::Tier(it, _) if *it == name));
        self.engine.apply(built_in.unwrap_or(Update::Tier(name, None)));
    }

    fn apply_profile(&mut self, name: Arc<str>, profile: Option<Arc<Profile>>) {
        self.is_stale |= match profile {
            Some(_) => self.profiles.insert(Arc::clone(&name)),
            None => self.profiles.remove(&name),
        };
        self.engine.apply(Update::Profile(name, profile));
    }

    fn apply_endpoint(&mut self, key: EndpointKey, endpoint: Option<Arc<Endpoint>>) {
        let own = endpoint.as_deref().filter(|endpoint| endpoint.node == self.node);
        self.hosts.note(&key, own);
        let before = match endpoint.as_ref().filter(|endpoint| endpoint.node == self.node) {
            Some(own) => self.pods.insert(key.clone(), Arc::clone(own)),
            None => self.pods.remove(&key),
        };
        self.is_stale |= before.is_some() != self.pods.contains_key(&key);
        let endpoint = endpoint.map(|endpoint| self.with_wiring(endpoint));
        self.engine.apply(Update::Endpoint(key, endpoint));
    }

    /// Decides, and has the kernel hold the decisions.
    fn decide(&mut self) {
        // A host endpoint without a policy denies.
        let is_idle = self.policies.is_empty() && !self.hosts.is_any();
        if self.calico.takes_retry() {
            self.ends_changed();
        }
        if self.felix == Felix::Filtering {
            self.unguard_hosts();
            return self.stop(Phase::Aside);
        }
        let kinds = self.shared.source.kinds();
        let has_pods = self.shared.openshift.are_listed();
        let mut always = kinds.iter().filter(|kind| kind.is_always_watched());
        if !has_pods || !always.all(|kind| self.is_listed(*kind)) {
            return self.keep();
        }
        // The endpoint table is complete before the first list. Requests may come earlier, and what the table lacks then
        // would count as not wired. Where nothing decides, each ADD and DEL would cost a look at all pods of the node.
        if self.is_stale && !(is_idle && self.phase == Phase::Open) {
            self.read_wiring();
        }
        if is_idle && self.phase != Phase::Enforcing {
            self.guard_hosts();
            return self.stop(Phase::Open);
        }
        self.wants.peers = true;
        let decides = |kind: &&Kind| self.wants.covers(**kind) && !kind.is_staged();
        let is_complete = kinds.iter().filter(decides).all(|kind| self.is_listed(*kind));
        self.marker.set(true);
        if !self.shared.holds.swap(true, Ordering::AcqRel) {
            // What became of interfaces was not reported until now.
            self.read_wiring();
        }
        let wants = self.wants;
        self.shared.wants.send_if_modified(|sent| std::mem::replace(sent, wants) != wants);
        // What a later policy asks about may not be listed yet: its rules are closed so long.
        if !is_complete && self.phase != Phase::Enforcing {
            self.phase = Phase::Waiting;
            return self.keep();
        }
        self.enforce();
        if is_idle && self.kernel.restore_at.is_none() {
            // The last one is gone, and so is what it denied.
            self.stop(Phase::Open);
        }
    }

    fn is_listed(&self, kind: Kind) -> bool {
        self.known.get(&kind).is_some_and(|known| known.is_listed)
    }

    /// Felix was started, or has ended.
    fn meet(&mut self, felix: Felix) {
        self.felix = felix;
        let remark = match felix {
            Felix::Absent => None,
            Felix::Starting => Some(
                "Felix runs on this node, and its rules are not in force yet: this agent's decisions stay until they are",
            ),
            Felix::Filtering => Some("NOT ENFORCED: Felix runs on this node, and policies are left to it"),
        };
        match remark {
            Some(remark) => tracing::warn!("policies: {remark}"),
            None => tracing::info!("policies: Felix has ended, and this agent enforces them"),
        }
        self.readiness.remark("policies", remark.map(str::to_owned));
    }

    /// Before decisions are made: restores what an earlier agent left, if another program changed it.
    fn keep(&mut self) {
        if self.kernel.restore_at.take_if(|at| *at <= Instant::now()).is_none() {
            return;
        }
        let wanted = self.wanted.clone();
        // Without a table nothing was in force.
        let restored = match &mut self.kernel.table {
            Some(table) if wanted != Decisions::default() => table.restore(wanted, Instant::now()).map(drop),
            _ => Ok(()),
        };
        if let Err(error) = restored {
            tracing::warn!(%error, "decisions of policies could not be restored; it is tried again");
            self.kernel.restore_at = Some(Instant::now() + RETRY);
        }
    }

    /// Nothing is decided, and nothing held, in this phase. First no plugin without an agent holds a pod
    /// any more, which would wait for ever if this process ended behind the removal of the table.
    fn stop(&mut self, phase: Phase) {
        if self.phase == phase {
            self.kernel.restore_at = None;
            return;
        }
        self.phase = phase;
        self.marker.set(false);
        self.shared.holds.store(false, Ordering::Release);
        // What becomes of interfaces is not reported from now on.
        self.in_progress.clear();
        self.is_stale = true;
        match self.has_decided {
            true => self.wanted.held.clear(),
            false => self.wanted = Decisions::default(),
        }
        self.leaving.clear();
        match self.kernel.table.as_mut().map(russet_policy::Policies::withdraw) {
            Some(Ok(true)) => {
                let why = if phase == Phase::Open { "no policies" } else { "left to Felix" };
                tracing::info!("{why}: the table of decisions is removed");
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the table of decisions could not be removed; it is tried again");
                self.phase = Phase::Waiting;
                self.kernel.restore_at = Some(Instant::now() + RETRY);
                return;
            }
            _ => {}
        }
        self.kernel.restore_at = None;
    }

    fn enforce(&mut self) {
        let began = Instant::now();
        self.leaving.retain(|_, until| *until > began);
        let is_first = std::mem::replace(&mut self.phase, Phase::Enforcing) != Phase::Enforcing;
        if !std::mem::replace(&mut self.has_decided, true) {
            // The first delta has everything.
            let held = std::mem::take(&mut self.wanted.held);
            self.wanted = Decisions { held, ..Decisions::default() };
        }
        self.close_undecided(is_first);
        let delta = self.engine.flush();
        for (id, problem) in &delta.problems {
            report(id, problem);
            self.problems.found(id, problem);
        }
        if let Some(exceeded) = &delta.exceeded {
            self.metrics.exceeded.set(count(exceeded.len()));
        }
        for limit in delta.exceeded.iter().flatten() {
            let limit = match limit {
                Exceeded::Decisions(_, address) => format!("decisions for {address}"),
                Exceeded::Segments(_, address) => format!("ranges of ports for {address}"),
                Exceeded::Identities => "kinds of peers".to_owned(),
            };
            russet_store::refused("packets are denied that policies may allow", limit, "a limit is exceeded");
        }
        let decided: BTreeSet<IpAddr> =
            self.wanted.held.iter().copied().filter(|address| self.is_decided(*address)).collect();
        self.wanted.apply(&delta, &decided);
        self.inherited.retain(|address| !decided.contains(address));
        if is_first {
            self.look_at_bridges();
        }
        // What passes by one table from now on may be what the other one denies from now on.
        let hosts_first = !delta.tightens && !is_first;
        if hosts_first {
            self.guard_hosts();
        }
        self.write(&delta, &decided, is_first, began);
        self.open_decided();
        if !hosts_first {
            self.guard_hosts();
        }
    }

    /// Has the kernel hold the decisions, after this delta.
    fn write(&mut self, delta: &Delta, decided: &BTreeSet<IpAddr>, is_first: bool, began: Instant) {
        let is_due = self.kernel.restore_at.is_some_and(|at| at <= began);
        let done = if is_first || is_due {
            self.kernel.restore_at = None;
            self.kernel.open().and_then(|table| table.restore(self.wanted.clone(), began))
        } else if self.kernel.restore_at.is_some() {
            return;
        } else {
            self.kernel.open().and_then(|table| table.apply(delta, decided, began))
        };
        match done {
            Ok(report) => {
                if is_first {
                    tracing::info!(
                        policies = self.policies.len(),
                        elements = report.elements,
                        "policies are in force"
                    );
                }
                if report.elements > 0 {
                    self.metrics.apply_seconds.observe(began.elapsed().as_secs_f64());
                }
                self.metrics.advances.inc_by(u64::from(report.advanced));
            }
            Err(error) => {
                self.metrics.errors.inc();
                tracing::warn!(%error, "decisions of policies are not in force yet; it is tried again");
                self.kernel.restore_at = Some(Instant::now() + RETRY);
            }
        }
    }

    fn publish(&mut self) {
        self.check_bridges();
        let in_force = match self.phase {
            Phase::Open => true,
            Phase::Enforcing => self.kernel.restore_at.is_none(),
            Phase::Waiting | Phase::Aside => false,
        };
        let in_force = in_force && self.hosts.are_in_force(&self.engine);
        self.publish_calico(in_force);
        self.shared.in_force.send_if_modified(|known| std::mem::replace(known, in_force) != in_force);
        let denied = self.kernel.table.as_ref().map_or(0, russet_policy::Policies::denied_by_limit);
        self.metrics.denied_by_limit.set(count(denied));
        if denied > 0 {
            let reason = "a limit is exceeded";
            russet_store::refused("packets are denied that policies may allow", "source ports", reason);
        }
        self.readiness.remark(as_written::SUBJECT, self.problems.remark());
        self.metrics.policies.set(count(self.policies.len()));
        // What is wanted is remembered while the kernel has no table.
        let is_stopped = matches!(self.phase, Phase::Open | Phase::Aside);
        let held = |number: usize| if is_stopped { 0 } else { count(number) };
        self.metrics.identities.set(held(self.wanted.identities.len()));
        self.metrics.decisions.set(held(self.wanted.decisions.len()));
        self.metrics.held.set(count(self.wanted.held.len()));
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Logs what is not enforced as written.
fn report(subject: impl std::fmt::Display, problem: &Problem) {
    russet_store::refused(
        "a policy is not enforced as written",
        format!("{subject} {}", problem.path),
        &problem.text,
    );
}

fn pod_name(endpoint: &Endpoint) -> PodName {
    format!("{}/{}", endpoint.namespace.as_deref().unwrap_or_default(), endpoint.name)
}

fn name_of(object: &Value) -> ObjectName {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}

/// An object with nothing but its name.
fn named((namespace, name): &ObjectName) -> Value {
    match namespace.is_empty() {
        true => json!({ "metadata": { "name": name } }),
        false => json!({ "metadata": { "namespace": namespace, "name": name } }),
    }
}

/// The object with its kind, which the items of a list lack.
fn typed(kind: Kind, mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.insert("apiVersion".to_owned(), kind.resource().0.into());
        members.insert("kind".to_owned(), kind.name().into());
    }
    object
}
