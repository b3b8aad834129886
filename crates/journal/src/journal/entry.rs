//! The entries of the journal. [`TableState`](super::TableState) is what they describe.

use std::fmt;
use std::path::PathBuf;

use russet_addr::{ContainerId, EndpointId, IfName, Mac, NetworkName};
use russet_attach::Wired;
use serde::{Deserialize, Serialize};

use crate::endpoints::Endpoint;

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
    Live(Endpoint),
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

/// The interface of an endpoint, whatever its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

// === impl Verb ===

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Gc => "GC",
        })
    }
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

/// A plugin's part of an endpoint. Its requests are carried out one at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "PartFields", into = "PartFields")]
pub struct EndpointPart {
    pub id: EndpointId,
    pub plugin: String,
}

/// Its form in the file.
#[derive(Serialize, Deserialize)]
struct PartFields {
    network: NetworkName,
    interface: Interface,
    plugin: String,
}

/// An operation that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenOperation {
    /// How it began.
    pub begin: Begin,
    /// Its changes so far, and when.
    pub effects: Vec<(u64, Effect)>,
}

// === impl Begin ===

impl Begin {
    /// The part that the operation works on. None for GC, which works on a network.
    pub fn subject(&self) -> Option<EndpointPart> {
        Some(EndpointPart { id: self.id()?, plugin: self.plugin.clone() })
    }

    /// The endpoint that the operation works on. None for GC.
    pub fn id(&self) -> Option<EndpointId> {
        let Interface { container, ifname } = self.interface.clone()?;
        Some(EndpointId { network: self.network.clone(), container, ifname })
    }
}

// === impl Interface ===

impl Interface {
    pub fn is_of(&self, id: &EndpointId) -> bool {
        (&self.container, &self.ifname) == (&id.container, &id.ifname)
    }
}

impl From<EndpointId> for Interface {
    fn from(EndpointId { container, ifname, .. }: EndpointId) -> Self {
        Self { container, ifname }
    }
}

// === impl EndpointPart ===

impl From<PartFields> for EndpointPart {
    fn from(PartFields { network, interface: Interface { container, ifname }, plugin }: PartFields) -> Self {
        Self { id: EndpointId { network, container, ifname }, plugin }
    }
}

impl From<EndpointPart> for PartFields {
    fn from(EndpointPart { id, plugin }: EndpointPart) -> Self {
        Self { network: id.network.clone(), interface: id.into(), plugin }
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
    pub fn takes_down(&self, id: &EndpointId) -> bool {
        self.effects.iter().any(|(_, effect)| matches!(effect, Effect::Leaving(it) if it.is_of(id)))
    }

    /// Writes into `endpoint` what the operation wired, if it has.
    pub fn describe(&self, endpoint: &mut Endpoint) {
        let mut effects = self.effects.iter().rev().map(|(_, effect)| effect);
        let bridge_mac = effects.clone().find_map(|effect| match effect {
            Effect::Wired { bridge_mac, .. } => Some(*bridge_mac),
            _ => None,
        });
        let wiring = effects.find_map(|effect| match effect {
            Effect::Wiring { wired, netns } => Some((wired, netns)),
            _ => None,
        });
        if let (Some(bridge_mac), Some((wired, netns))) = (bridge_mac, wiring) {
            endpoint.wired = Some(Box::new(wired.as_ref().clone().as_attached(bridge_mac)));
            endpoint.netns = Some(netns.clone());
        }
    }
}
