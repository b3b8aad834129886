//! The reversals of the changes so far, in order; run backwards when a step fails.

use russet_linux::{NetNs, sysctl};
use russet_netlink::{Batch, LinkDel, LinkSet, NetlinkError, Socket};

use super::request;
use crate::plan::{Op, Side};

/// How to reverse one change.
#[derive(Debug)]
pub(super) enum Reversal {
    /// Delete the veth with everything that depends on it.
    DeleteLink(LinkDel),
    /// Reverse a message.
    Op { side: Side, ifindex: u32, op: Op },
    /// Restore a link's properties.
    Link { side: Side, old: LinkSet },
    /// Write the old value.
    Sysctl { side: Side, path: String, value: String },
}

/// The reversals, oldest first.
#[derive(Debug, Default)]
pub(super) struct Record(Vec<Reversal>);

/// What a reversal works with.
pub(super) struct World<'w> {
    /// A socket of the node's namespace.
    pub host: &'w mut Socket,
    /// A socket of the pod's namespace, if one was opened.
    pub pod: Option<&'w mut Socket>,
    /// The pod's namespace.
    pub netns: &'w NetNs,
    /// `rtm_protocol` of our routes.
    pub protocol: u8,
}

// === impl Record ===

impl Record {
    /// Adds the reversal of a change.
    pub fn push(&mut self, reversal: Reversal) {
        self.0.push(reversal);
    }

    /// Reverses everything, newest first; continues after an error and returns all errors.
    pub fn run(&mut self, world: &mut World<'_>) -> Vec<String> {
        let mut errors = Vec::new();
        while let Some(reversal) = self.0.pop() {
            errors.extend(world.reverse(&reversal).err());
        }
        errors
    }
}

// === impl World ===

impl World<'_> {
    fn reverse(&mut self, reversal: &Reversal) -> Result<(), String> {
        let mut batch = Batch::new();
        let side = match reversal {
            Reversal::DeleteLink(which) => {
                batch.delete_link(which);
                Side::Host
            }
            Reversal::Op { side, ifindex, op } => {
                request::push_reversal(&mut batch, op, *ifindex, self.protocol);
                *side
            }
            Reversal::Link { side, old } => {
                batch.set_link(old);
                *side
            }
            Reversal::Sysctl { side, path, value } => return self.write_back(*side, path, value),
        };
        self.send(side, &batch)
    }

    /// Sends; an object that is gone already needs no reversal.
    fn send(&mut self, side: Side, batch: &Batch) -> Result<(), String> {
        let socket = match (side, &mut self.pod) {
            (Side::Host, _) => &mut *self.host,
            (Side::Pod, Some(pod)) => pod,
            (Side::Pod, None) => return Ok(()),
        };
        let result = socket.execute(batch).map_err(NetlinkError::from);
        crate::inspect::present(result).map(drop).map_err(|error| error.to_string())
    }

    fn write_back(&self, side: Side, path: &str, value: &str) -> Result<(), String> {
        let write = || sysctl::write_if_different(path, value).map(drop);
        let written = match side {
            Side::Host => write(),
            Side::Pod => self.netns.with(write).map_err(|error| error.to_string())?,
        };
        written.map_err(|error| error.to_string())
    }
}
