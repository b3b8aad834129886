//! The state that the journal's entries describe: endpoints, and operations that have not ended. An
//! entry is applied when it is written, and again when it is read. What only this agent knows, the
//! [`LinkState`] of endpoints, is not in the journal.

use std::collections::BTreeMap;

use russet_addr::EndpointId;
use russet_cni_spec::NetworkConfig;
use russet_cni_spec::table::{self, Plugin};

use super::entry::{Begin, Effect, EndpointPart, Entry, OpenOperation, Verb};
use super::now_ms;
use crate::endpoints::{Endpoint, LinkState};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct TableState {
    /// Number of the next operation.
    pub next: u64,
    /// What is attached, and interfaces of operations in progress.
    pub endpoints: BTreeMap<EndpointPart, Endpoint>,
    /// Operations in progress, or open when their agent died.
    pub open: BTreeMap<u64, OpenOperation>,
    /// How often an interface was wired.
    wirings: u64,
}

// === impl TableState ===

impl TableState {
    /// Applies an entry. An entry about an operation that is not open changes nothing.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Header { next, .. } => self.next = self.next.max(next),
            Entry::Begin(begin) => self.begin(begin),
            Entry::Effect { op, at_ms, effect } => self.effect(op, at_ms, effect),
            Entry::End { op, at_ms, code } => {
                if let Some(open) = self.open.remove(&op) {
                    self.end(open, at_ms, code);
                }
            }
            Entry::Live(endpoint) => _ = self.endpoints.insert(endpoint.subject.clone(), endpoint),
        }
    }

    /// Whether an entry is void if it cannot be written: an ADD that would be unknown after a crash
    /// is not started, and a completed one is undone.
    pub fn must_be_written(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Begin(begin) => begin.verb == Verb::Add,
            Entry::End { op, code: 0, .. } => {
                self.open.get(op).is_some_and(|open| open.begin.verb == Verb::Add)
            }
            _ => false,
        }
    }

    /// Whether the attachment of an ADD was complete before, according to the journal or the kernel.
    pub fn was_attached(&self, add: &Begin) -> bool {
        let wires = table::find(&add.plugin).is_some_and(Plugin::creates_interfaces);
        let (subject, id) = (add.subject(), add.id());
        self.endpoints.values().any(|it| {
            let listed = !it.unlisted && Some(&it.subject) == subject.as_ref();
            listed || wires && it.has_link() && id.as_ref().is_some_and(|id| it.subject.id.same_interface(id))
        })
    }

    /// The entries of a new file with the same state.
    pub fn entries(&self) -> Vec<Entry> {
        let effects = |open: &OpenOperation| {
            let op = open.begin.op;
            let effect = move |(at_ms, effect): &(u64, Effect)| Entry::Effect {
                op,
                at_ms: *at_ms,
                effect: effect.clone(),
            };
            open.effects.iter().map(effect).collect::<Vec<_>>()
        };
        let open = self
            .open
            .values()
            .flat_map(move |open| [Entry::Begin(open.begin.clone())].into_iter().chain(effects(open)));
        self.listed().cloned().map(Entry::Live).chain(open).collect()
    }

    /// What is attached according to the journal.
    pub fn listed(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.values().filter(|it| !it.unlisted)
    }

    /// The interfaces that drift repair may work on.
    pub fn attached(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.values().filter(|it| it.is_attached())
    }

    /// The operation that works on an interface, of a plugin that wires. The newest, if an older
    /// one was left open.
    pub fn current_operation(&self, id: &EndpointId) -> Option<u64> {
        let of = |open: &&OpenOperation| open.begin.interface.as_ref().is_some_and(|it| it.is_of(id));
        let gc = |open: &&OpenOperation| open.begin.verb == Verb::Gc;
        let newest = |found: Option<&OpenOperation>| found.map(|open| open.begin.op);
        newest(self.open.values().rev().find(of)).or_else(|| newest(self.open.values().rev().find(gc)))
    }

    /// Whether an effect is new. An operation that cannot be done is retried, for as long as the
    /// store is away.
    pub fn is_new(&self, op: u64, effect: &Effect, id: &EndpointId) -> bool {
        !matches!(effect, Effect::Leaving(_))
            || self.open.get(&op).is_none_or(|open| !open.takes_down(id))
            || self.listed().any(|it| it.is_wired_as(id))
    }

    /// The current ADD of an interface has wired it.
    pub fn wired(&mut self, id: &EndpointId) {
        let Some(open) = self.current_operation(id).and_then(|op| self.open.get(&op)) else { return };
        let Some(subject) = open.begin.subject() else { return };
        let new = || Endpoint::of_add(&open.begin, subject.clone(), now_ms());
        open.describe(self.endpoints.entry(subject.clone()).or_insert_with(new));
        self.attach(&subject);
    }

    /// An endpoint's interface is wired. No container has two interfaces with the same name,
    /// whatever their networks.
    pub fn attach(&mut self, subject: &EndpointPart) {
        self.set_links(&subject.id, |_| true, LinkState::Absent);
        self.wirings += 1;
        let link = LinkState::Wired(self.wirings);
        self.endpoints.get_mut(subject).into_iter().for_each(|it| it.link = link);
        self.prune();
    }

    /// An ADD is about to wire an interface again.
    pub fn begin_wiring(&mut self, id: &EndpointId) {
        self.set_links(id, |it| it.is_attached(), LinkState::InProgress);
    }

    /// The wiring failed and was undone: an interface that existed before is as it was.
    pub fn unwired(&mut self, id: &EndpointId) {
        self.wirings += 1;
        self.set_links(id, Endpoint::has_link, LinkState::Wired(self.wirings));
    }

    /// An interface is about to be removed.
    pub fn leave(&mut self, id: &EndpointId) {
        self.set_links(id, |_| true, LinkState::Absent);
        self.prune();
    }

    fn set_links(&mut self, id: &EndpointId, of: impl Fn(&Endpoint) -> bool, link: LinkState) {
        let of = |it: &&mut Endpoint| it.subject.id.same_interface(id) && of(it);
        self.endpoints.values_mut().filter(of).for_each(|it| it.link = link);
    }

    /// The journal no longer lists these. An interface stays in the table until it leaves.
    fn unlist(&mut self, gone: impl Fn(&Endpoint) -> bool) {
        self.endpoints.values_mut().for_each(|it| it.unlisted |= gone(it));
        self.prune();
    }

    fn prune(&mut self) {
        self.endpoints.retain(|_, it| !it.unlisted || it.has_link());
    }

    fn begin(&mut self, begin: Begin) {
        self.next = self.next.max(begin.op.saturating_add(1));
        if let (Verb::Del, Some(subject)) = (begin.verb, begin.subject()) {
            // From here on the attachment counts as removed, however often the DEL is retried.
            self.unlist(|it| it.subject == subject);
        }
        self.open.insert(begin.op, OpenOperation { begin, effects: Vec::new() });
    }

    fn effect(&mut self, op: u64, at_ms: u64, effect: Effect) {
        let Some(open) = self.open.get_mut(&op) else { return };
        let repeated = open.begin.verb == Verb::Add && open.begin.repeated;
        let Effect::Leaving(interface) = effect else { return open.effects.push((at_ms, effect)) };
        let leaving = Effect::Leaving(interface.clone());
        if open.effects.iter().all(|(_, effect)| *effect != leaving) {
            open.effects.push((at_ms, leaving));
        }
        if !repeated {
            self.unlist(|it| it.wired.is_some() && interface.is_of(&it.subject.id));
        }
    }

    fn end(&mut self, open: OpenOperation, at_ms: u64, code: u32) {
        if code != 0 {
            return;
        }
        match (open.begin.verb, open.begin.subject()) {
            (Verb::Add, Some(subject)) => {
                self.settle(&subject, open.begin.op);
                let new = || Endpoint::of_add(&open.begin, subject.clone(), at_ms);
                let endpoint = self.endpoints.entry(subject.clone()).or_insert_with(new);
                open.describe(endpoint);
                if endpoint.unlisted {
                    endpoint.since_ms = at_ms;
                }
                (endpoint.op, endpoint.pod, endpoint.unlisted) = (open.begin.op, open.begin.pod, false);
            }
            (Verb::Del, Some(subject)) => self.settle(&subject, open.begin.op),
            (Verb::Gc, _) => self.collected(&open.begin),
            (Verb::Add | Verb::Del, None) => {}
        }
    }

    /// Closes older operations on the same part that were left open: this one has completed or
    /// undone them.
    fn settle(&mut self, subject: &EndpointPart, op: u64) {
        self.open.retain(|number, open| *number > op || open.begin.subject().as_ref() != Some(subject));
    }

    fn collected(&mut self, gc: &Begin) {
        let config = NetworkConfig::parse(gc.config.as_bytes());
        let Ok(Some(valid)) = config.and_then(|config| config.valid_attachments()) else { return };
        self.unlist(|it| {
            let EndpointPart { id, plugin } = &it.subject;
            let of = id.network == gc.network && *plugin == gc.plugin && it.op < gc.op;
            of && !valid.contains(id)
        });
    }
}
