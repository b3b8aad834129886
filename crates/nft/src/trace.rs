//! The way of packets through the ruleset: what the kernel reports of packets that a rule has marked with
//! `meta nftrace set 1`.
//!
//! `russet trace` reads it. The reports go to every listener of the network namespace, whichever rule marked the packet.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use russet_netlink::NetlinkError;
use russet_netlink::wire::{Message, Messages};

use crate::kernel::*;
use crate::sys::{self, Received};
use crate::table::{Table, TableFamily};
use crate::verdict::Verdict;

/// Receives reports in the network namespace in which it was opened.
#[derive(Debug)]
pub struct TraceMonitor {
    fd: OwnedFd,
    inbox: Vec<u8>,
    waiting: VecDeque<Traced>,
}

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traced {
    /// A step of a packet.
    Event(TraceEvent),
    /// The socket was full: steps are missing.
    Overrun,
}

/// A rule that a packet matched, or the end of a chain that it reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// The kernel's number of the packet, the same in all its steps. Later packets can have it again.
    pub id: u32,
    /// The table.
    pub table: Table,
    /// The chain.
    pub chain: String,
    /// Where in the chain.
    pub at: TracedAt,
    /// What becomes of the packet; `None` for a verdict that [`Verdict`] does not have, such as a queue to a program.
    pub verdict: Option<Verdict>,
    /// The first bytes of the packet's network header. Empty in all but the first step in each base chain, as the next ones are.
    pub network: Vec<u8>,
    /// The first bytes of its transport header; empty if it has none, or is a later fragment.
    pub transport: Vec<u8>,
    /// The index of the incoming interface.
    pub in_index: Option<u32>,
    /// The index of the outgoing interface, where it is known.
    pub out_index: Option<u32>,
    /// The packet's mark.
    pub mark: u32,
}

/// Where a packet is in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedAt {
    /// It matched the rule with this handle.
    Rule(u64),
    /// No further rule of the chain matched. Of a chain in which none did, this step has the headers and interfaces.
    Rest,
    /// It returns from the chain.
    End,
    /// It reached the end of a base chain, whose policy is applied.
    Policy,
}

/// `NFNLGRP_NFTRACE`
const GROUP: u32 = 9;
/// Enough for some 10,000 steps, which is a second at the limits that `russet trace` has.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// The kernel sends each step in a datagram of its own, of some 500 bytes.
const INBOX_BYTES: usize = 16 << 10;
/// Verdicts have an error number in the upper bits (`NF_VERDICT_MASK`).
const VERDICT_MASK: u32 = 0xff;

// === impl TraceMonitor ===

impl TraceMonitor {
    /// Subscribes in the calling thread's network namespace; later steps are reported.
    pub fn open() -> Result<Self, NetlinkError> {
        let fd = sys::listen(GROUP, RECEIVE_BUFFER_BYTES)
            .map_err(failed("open a socket for traces of nf_tables"))?;
        Ok(Self { fd, inbox: vec![0; INBOX_BYTES], waiting: VecDeque::new() })
    }

    /// The next step; `None` after `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Traced>, NetlinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(traced) = self.waiting.pop_front() {
                return Ok(Some(traced));
            }
            match sys::receive(&self.fd, &mut self.inbox).map_err(failed("read traces of nf_tables"))? {
                Received::Datagram(len) => {
                    hear(self.inbox.get(..len).unwrap_or_default(), &mut self.waiting);
                }
                Received::Lost(_) => self.waiting.push_back(Traced::Overrun),
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    sys::wait_readable(&self.fd, left).map_err(failed("wait for traces of nf_tables"))?;
                }
            }
        }
    }
}

// === impl TraceEvent ===

impl TraceEvent {
    /// Decodes `NFT_MSG_TRACE`.
    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != NFT_MSG_TRACE {
            return None;
        }
        let family = TableFamily::from_number(*message.payload.first()?)?;
        let attributes = message.attributes(NFGENMSG_BYTES);
        let number = |kind| attributes.find(kind).and_then(|number| number.be32());
        let bytes = |kind| attributes.find(kind).map(|header| header.payload.to_vec()).unwrap_or_default();
        let handle = attributes.find(NFTA_TRACE_RULE_HANDLE).and_then(|handle| handle.be64());
        let (at, verdict) = match number(NFTA_TRACE_TYPE)? {
            NFT_TRACETYPE_RULE => (handle.map_or(TracedAt::Rest, TracedAt::Rule), verdict_of(message)),
            NFT_TRACETYPE_RETURN => (TracedAt::End, verdict_of(message)),
            NFT_TRACETYPE_POLICY => (TracedAt::Policy, number(NFTA_TRACE_POLICY).and_then(decided)),
            _ => return None,
        };
        Some(Self {
            id: number(NFTA_TRACE_ID)?,
            table: Table::new(family, attributes.find(NFTA_TRACE_TABLE)?.text()),
            chain: attributes.find(NFTA_TRACE_CHAIN)?.text(),
            at,
            verdict,
            network: bytes(NFTA_TRACE_NETWORK_HEADER),
            transport: bytes(NFTA_TRACE_TRANSPORT_HEADER),
            in_index: number(NFTA_TRACE_IIF),
            out_index: number(NFTA_TRACE_OIF),
            mark: number(NFTA_TRACE_MARK).unwrap_or(0),
        })
    }
}

fn verdict_of(message: &Message<'_>) -> Option<Verdict> {
    let parts = message.attributes(NFGENMSG_BYTES).find(NFTA_TRACE_VERDICT)?.nested();
    let code = parts.find(NFTA_VERDICT_CODE)?.be32()?;
    match code.cast_signed() {
        0.. => decided(code),
        _ => Verdict::decode_parts(&parts),
    }
}

/// A verdict of netfilter itself.
fn decided(code: u32) -> Option<Verdict> {
    match code & VERDICT_MASK {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        _ => None,
    }
}

fn hear(datagram: &[u8], waiting: &mut VecDeque<Traced>) {
    let events = Messages::new(datagram).flatten().filter_map(|message| TraceEvent::decode(&message));
    waiting.extend(events.map(Traced::Event));
}

fn failed(operation: &'static str) -> impl FnOnce(std::io::Error) -> NetlinkError {
    move |source| NetlinkError::Io { operation: operation.to_owned(), source }
}

/// Runs the decoder, for tests with arbitrary input.
#[cfg(test)]
pub(crate) fn hear_for_test(datagram: &[u8]) -> Vec<Traced> {
    let mut waiting = VecDeque::new();
    hear(datagram, &mut waiting);
    waiting.into()
}

#[cfg(test)]
mod tests;
