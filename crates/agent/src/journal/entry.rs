//! The entries of the journal, and the state that they describe: each entry is applied to the
//! [`JournalState`] in memory when it is written, and again when it is read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use russet_addr::{ContainerId, IfName, Mac, NetworkName};
use russet_attach::Wired;
use russet_cni_spec::NetworkConfig;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Entry {
    /// The first entry.
    Header {
        /// The boot of this journal.
        boot: String,
        /// Number of the next operation.
        next: u64,
        /// The previous file was damaged, and its open operations are not all decided.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        damaged: bool,
    },
    /// An operation begins.
    Begin(Begin),
    /// It makes a change.
    Effect {
        /// The operation's number.
        op: u64,
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// The change.
        effect: Effect,
    },
    /// It ends.
    End {
        /// The operation's number.
        op: u64,
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// 0, or a CNI error code.
        code: u32,
    },
    /// An attachment that was made before this file began.
    Live(LiveAttachment),
}

/// The start of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// Its number. Later operations have greater ones.
    pub op: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The CNI verb.
    pub verb: Verb,
    /// The plugin's name.
    pub plugin: String,
    pub network: NetworkName,
    /// The interface; none for GC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// `namespace/name`, if there is a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The request's environment variables.
    pub env: Vec<(String, String)>,
    /// The plugin's configuration.
    pub config: String,
    /// For an ADD: the attachment was complete before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Interface {
    pub container: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    Add,
    Del,
    Gc,
}

/// A change by an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The interface is about to be wired; its addresses are allocated.
    Wiring {
        /// The planned wiring.
        wired: Box<Wired>,
        /// The path of the pod's namespace.
        netns: PathBuf,
    },
    /// The interface is wired.
    Wired {
        /// It existed before.
        reused: bool,
        /// The MAC of its bridge, if it is a port of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bridge_mac: Option<Mac>,
    },
    /// This interface is about to be removed.
    Leaving(Interface),
}

/// A complete attachment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveAttachment {
    /// The network, interface and plugin.
    pub subject: AttachmentPart,
    /// The operation that made it.
    pub op: u64,
    /// When it was made, in milliseconds since 1970.
    pub since_ms: u64,
    /// `namespace/name`, if there is a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The interface, if the plugin makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wired: Option<Box<Wired>>,
    /// The path of the pod's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
}

/// A plugin's part of an attachment. Its requests are carried out one at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttachmentPart {
    pub network: NetworkName,
    pub interface: Interface,
    pub plugin: String,
}

/// An operation that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenOperation {
    /// How it began.
    pub begin: Begin,
    /// Its changes so far, and when.
    pub effects: Vec<(u64, Effect)>,
}

/// The state that the entries describe.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JournalState {
    /// Number of the next operation.
    pub next: u64,
    pub live: BTreeMap<AttachmentPart, LiveAttachment>,
    /// Operations in progress, or open when their agent died.
    pub open: BTreeMap<u64, OpenOperation>,
}

// === impl Begin ===

impl Begin {
    /// The part that the operation works on. None for GC, which works on a network.
    pub fn subject(&self) -> Option<AttachmentPart> {
        let interface = self.interface.clone()?;
        Some(AttachmentPart { network: self.network.clone(), interface, plugin: self.plugin.clone() })
    }
}

// === impl OpenOperation ===

impl OpenOperation {
    /// Whether the interface was attached before, according to the journal or the kernel.
    pub fn was_attached(&self) -> bool {
        let reused = |effect: &Effect| matches!(effect, Effect::Wired { reused: true, .. });
        self.begin.repeated || self.effects.iter().any(|(_, effect)| reused(effect))
    }

    /// Whether the operation had begun to remove an interface.
    pub fn takes_down(&self, interface: &Interface) -> bool {
        self.effects.iter().any(|(_, effect)| matches!(effect, Effect::Leaving(it) if it == interface))
    }

    /// The interface, if it was wired.
    fn wired(&self) -> Option<(Box<Wired>, PathBuf)> {
        let bridge_mac = self.effects.iter().rev().find_map(|(_, effect)| match effect {
            Effect::Wired { bridge_mac, .. } => Some(*bridge_mac),
            _ => None,
        })?;
        self.effects.iter().rev().find_map(|(_, effect)| match effect {
            Effect::Wiring { wired, netns } => {
                Some((Box::new(wired.as_ref().clone().as_attached(bridge_mac)), netns.clone()))
            }
            _ => None,
        })
    }
}

// === impl JournalState ===

impl JournalState {
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
            Entry::Live(live) => _ = self.live.insert(live.subject.clone(), live),
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

    /// The entries of a new file with the same state.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
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
        self.live.values().cloned().map(Entry::Live).chain(open)
    }

    /// The operation that works on an interface, of a plugin that wires. The newest, if an older
    /// one was left open.
    pub fn current_operation(&self, interface: &Interface) -> Option<u64> {
        let of = |open: &&OpenOperation| open.begin.interface.as_ref() == Some(interface);
        let gc = |open: &&OpenOperation| open.begin.verb == Verb::Gc;
        let newest = |found: Option<&OpenOperation>| found.map(|open| open.begin.op);
        newest(self.open.values().rev().find(of)).or_else(|| newest(self.open.values().rev().find(gc)))
    }

    fn begin(&mut self, begin: Begin) {
        self.next = self.next.max(begin.op.saturating_add(1));
        if let (Verb::Del, Some(subject)) = (begin.verb, begin.subject()) {
            // From here on the attachment counts as removed, however often the DEL is retried.
            self.live.remove(&subject);
        }
        self.open.insert(begin.op, OpenOperation { begin, effects: Vec::new() });
    }

    /// Whether an effect is new. An operation that cannot be done is retried, for as long as the
    /// store is away.
    pub fn changes(&self, op: u64, effect: &Effect) -> bool {
        let Effect::Leaving(interface) = effect else { return true };
        let goes = |live: &LiveAttachment| live.subject.interface == *interface && live.wired.is_some();
        self.open.get(&op).is_none_or(|open| !open.takes_down(interface)) || self.live.values().any(goes)
    }

    fn effect(&mut self, op: u64, at_ms: u64, effect: Effect) {
        let Some(open) = self.open.get_mut(&op) else { return };
        if let Effect::Leaving(interface) = &effect {
            let known = open.takes_down(interface);
            let repeated = open.begin.verb == Verb::Add && open.begin.repeated;
            let gone = |live: &LiveAttachment| &live.subject.interface == interface && live.wired.is_some();
            self.live.retain(|_, live| repeated || !gone(live));
            if known {
                return;
            }
        }
        open.effects.push((at_ms, effect));
    }

    fn end(&mut self, open: OpenOperation, at_ms: u64, code: u32) {
        if code != 0 {
            return;
        }
        match (open.begin.verb, open.begin.subject()) {
            (Verb::Add, Some(subject)) => {
                self.settle(&subject, open.begin.op);
                let (wired, netns) = open.wired().unzip();
                let (op, pod) = (open.begin.op, open.begin.pod);
                let since_ms = self.live.get(&subject).map_or(at_ms, |live| live.since_ms);
                let live = LiveAttachment { subject: subject.clone(), op, since_ms, pod, wired, netns };
                self.live.insert(subject, live);
            }
            (Verb::Del, Some(subject)) => self.settle(&subject, open.begin.op),
            (Verb::Gc, _) => self.collected(&open.begin),
            (Verb::Add | Verb::Del, None) => {}
        }
    }

    /// Closes older operations on the same part that were left open: this one has completed or
    /// undone them.
    fn settle(&mut self, subject: &AttachmentPart, op: u64) {
        self.open.retain(|number, open| *number > op || open.begin.subject().as_ref() != Some(subject));
    }

    fn collected(&mut self, gc: &Begin) {
        let config = NetworkConfig::parse(gc.config.as_bytes());
        let Ok(Some(valid)) = config.and_then(|config| config.valid_attachments()) else { return };
        self.live.retain(|subject, live| {
            let of = subject.network == gc.network && subject.plugin == gc.plugin && live.op < gc.op;
            let Interface { container, ifname } = &subject.interface;
            !of || valid.iter().any(|it| it.container_id == *container && it.ifname == *ifname)
        });
    }
}
