//! Encoded requests, which are sent in few system calls.
//!
//! A batch consists of bytes only: the description of a failed request is decoded from them. The
//! typed requests (`add_link`, `replace_route`, ...) are defined beside their types; `russet-nft`
//! pushes its own.

use crate::kernel::{NLM_F_ACK, NLM_F_REQUEST};
use crate::wire::{Message, MessageBuilder, Messages};

/// A list of requests, executed in order by [`Socket::execute`](crate::Socket::execute).
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) starts: Vec<u32>,
    pub(crate) invalid: Option<(usize, &'static str)>,
    describe: Words,
}

/// How requests are described in errors.
#[derive(Debug, Clone, Copy)]
enum Words {
    Plain(Describe),
    /// With the names of interfaces.
    Named(fn(&Message<'_>, Names<'_>) -> String),
}

/// Maps an interface index to its name.
pub(crate) type Names<'a> = &'a dyn Fn(u32) -> String;

/// Describes a request with its subject: `add route 10.1.0.0/26 via 10.0.0.7`.
pub type Describe = fn(&Message<'_>) -> String;

// === impl Batch ===

impl Batch {
    /// An empty batch of route requests.
    pub fn new() -> Self {
        Self::naming(crate::describe::describe)
    }

    /// An empty batch whose requests `describe` describes, with the names of interfaces.
    pub(crate) fn naming(describe: fn(&Message<'_>, Names<'_>) -> String) -> Self {
        Self { bytes: Vec::new(), starts: Vec::new(), invalid: None, describe: Words::Named(describe) }
    }

    /// An empty batch whose requests `describe` describes.
    pub fn describing(describe: Describe) -> Self {
        Self { bytes: Vec::new(), starts: Vec::new(), invalid: None, describe: Words::Plain(describe) }
    }

    /// Appends a request that `fill` writes. `NLM_F_REQUEST` and `NLM_F_ACK` are added to `flags`.
    pub fn push(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut MessageBuilder<'_>)) -> &mut Self {
        self.push_exactly(kind, flags | NLM_F_REQUEST | NLM_F_ACK, fill)
    }

    /// Appends a request with exactly these flags. Without `NLM_F_ACK`, the kernel answers only if
    /// it fails, and the batch must be sent by [`Socket::transact`](crate::Socket::transact).
    pub fn push_exactly(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut MessageBuilder<'_>),
    ) -> &mut Self {
        let Ok(start) = u32::try_from(self.bytes.len()) else {
            return self.refuse("the batch is longer than 4 GiB");
        };
        self.starts.push(start);
        let mut message = MessageBuilder::new(&mut self.bytes, kind, flags);
        fill(&mut message);
        if !message.finish() {
            self.refuse("an attribute is longer than 64 KiB");
        }
        self
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Removes all requests and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.invalid = None;
    }

    /// The requests as bytes, sequence numbers not yet set.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Describes request `index`, with interface numbers; empty if there is none.
    /// [`Socket::describe`](crate::Socket::describe) uses interface names.
    pub fn description(&self, index: usize) -> String {
        self.description_with(index, &|interface| interface.to_string())
    }

    pub(crate) fn description_with(&self, index: usize, names: Names<'_>) -> String {
        match (Messages::new(self.bytes_of(index..index + 1)).next(), self.describe) {
            (Some(Ok(message)), Words::Plain(describe)) => describe(&message),
            (Some(Ok(message)), Words::Named(describe)) => describe(&message, names),
            _ => String::new(),
        }
    }

    pub(crate) fn bytes_of(&self, requests: std::ops::Range<usize>) -> &[u8] {
        let offset = |index| self.starts.get(index).map_or(self.bytes.len(), |start| *start as usize);
        self.bytes.get(offset(requests.start)..offset(requests.end)).unwrap_or_default()
    }

    /// Marks the last request as one that must not be sent.
    pub(crate) fn refuse(&mut self, reason: &'static str) -> &mut Self {
        self.invalid.get_or_insert((self.starts.len().saturating_sub(1), reason));
        self
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}
