//! Events of committed changes by any program.
//!
//! The agent's policy and overlay loops use them to repair a flushed table at once. Events only
//! mark things dirty; lost events are reported as one [`Event::Overrun`], which means that
//! everything may have changed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use russet_netlink::wire::{HEADER_BYTES, Message, Messages};
use russet_netlink::{NetlinkError, is_own_netfilter_port};

use crate::kernel::*;
use crate::sys::{self, Received};
use crate::table::{Table, TableFamily};

/// Receives events in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    fd: OwnedFd,
    inbox: Vec<u8>,
    heard: Heard,
    /// The ports of this process whose commits are ignored, the newest last; none in a monitor of all commits.
    ignored: Option<VecDeque<u32>>,
}

/// Events that were received and not yet returned.
#[derive(Debug)]
struct Heard {
    /// Changes of a transaction whose end has not been received.
    open: Vec<Change>,
    complete: bool,
    waiting: VecDeque<Event>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A transaction was committed.
    Committed(Commit),
    /// Events were lost: read everything again.
    Overrun,
}

/// A committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The new generation of the ruleset.
    pub generation: u32,
    /// The netlink port that sent it; [`Nft::port`](crate::Nft::port) is that of this connection.
    pub port: u32,
    /// The PID of the process that sent it, in the initial PID namespace.
    pub pid: u32,
    /// The name of that process: up to 15 bytes that it can choose.
    pub process: String,
    /// The changes in order; consecutive equal ones are listed once.
    pub changes: Vec<Change>,
    /// Whether `changes` is complete; it is truncated for huge transactions.
    pub complete: bool,
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind of object.
    pub object: Object,
    /// The table that contains it.
    pub table: Table,
    /// The name of the chain or set; otherwise that of the table.
    pub name: String,
    /// Whether it was deleted; otherwise it is new or changed.
    pub gone: bool,
    /// Whether it is a base chain; not reported for deleted ones.
    pub base: bool,
}

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    /// A table.
    Table,
    /// A chain.
    Chain,
    /// A rule of the chain.
    Rule,
    /// A set or map.
    Set,
    /// Elements of the set.
    Elements,
}

/// `NFNLGRP_NFTABLES`
const GROUP: u32 = 7;
/// Enough for the notifications of a transaction of some 10,000 elements.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// The kernel's limit for a datagram (`NLMSG_GOODSIZE` is a page, at most 8 KiB); a larger one is
/// lost once.
const INBOX_BYTES: usize = 64 << 10;
/// The most changes that are listed for one transaction.
const CHANGES_MAX: usize = 1024;
/// The offset of the port in `struct nlmsghdr`.
const PORT_OFFSET: usize = 12;
/// The most ports that the kernel compares each message with.
const IGNORED_MAX: usize = 8;

// === impl Monitor ===

impl Monitor {
    /// Subscribes in the calling thread's network namespace; later commits are reported.
    pub fn open() -> Result<Self, NetlinkError> {
        let fd = sys::listen(GROUP, RECEIVE_BUFFER_BYTES).map_err(failed("open an nf_tables monitor"))?;
        Ok(Self { fd, inbox: vec![0; INBOX_BYTES], heard: Heard::nothing(), ignored: None })
    }

    /// The same without commits of this process. After the first one of each of its connections, the kernel drops these
    /// messages, so that they wake no thread.
    pub fn of_other_processes() -> Result<Self, NetlinkError> {
        Ok(Self { ignored: Some(VecDeque::new()), ..Self::open()? })
    }

    /// The next event; `None` after `timeout`. A timeout of zero never waits, for callers that poll
    /// the descriptor themselves.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>, NetlinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.heard.waiting.pop_front() {
                match event {
                    Event::Committed(commit) if self.is_ignored(commit.port) => continue,
                    event => return Ok(Some(event)),
                }
            }
            match sys::receive(&self.fd, &mut self.inbox).map_err(failed("read nf_tables events"))? {
                Received::Datagram(len) => self.heard.take(self.inbox.get(..len).unwrap_or_default()),
                Received::Lost(len) => {
                    self.inbox.resize(len.next_power_of_two().max(INBOX_BYTES), 0);
                    self.heard.lost();
                }
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    sys::wait_readable(&self.fd, left).map_err(failed("wait for nf_tables events"))?;
                }
            }
        }
    }

    /// Whether commits of the port are ignored. A new one becomes one of those that the kernel drops.
    fn is_ignored(&mut self, port: u32) -> bool {
        let Some(ports) = self.ignored.as_mut().filter(|_| is_own_netfilter_port(port)) else { return false };
        if !ports.contains(&port) {
            ports.push_back(port);
            ports.drain(..ports.len().saturating_sub(IGNORED_MAX));
            // Without the filter these messages are read and ignored, as the first one.
            let _ = sys::ignore_ports(&self.fd, ports.make_contiguous());
        }
        true
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// === impl Heard ===

impl Heard {
    const fn nothing() -> Self {
        Self { open: Vec::new(), complete: true, waiting: VecDeque::new() }
    }

    fn take(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while let Some(Ok(message)) = Messages::new(rest).next() {
            let port = rest.get(PORT_OFFSET..).and_then(|bytes| bytes.first_chunk().copied());
            self.message(&message, port.map_or(0, u32::from_ne_bytes));
            let length = (HEADER_BYTES + message.payload.len()).next_multiple_of(4);
            rest = rest.get(length..).unwrap_or_default();
        }
        if !rest.is_empty() {
            self.lost();
        }
    }

    fn message(&mut self, message: &Message<'_>, port: u32) {
        if message.kind == NFT_MSG_NEWGEN {
            let commit = Commit {
                changes: std::mem::take(&mut self.open),
                complete: std::mem::replace(&mut self.complete, true),
                ..Commit::decode(message, port)
            };
            self.waiting.push_back(Event::Committed(commit));
        } else if let Some(change) = Change::decode(message).filter(|change| self.open.last() != Some(change))
        {
            if self.open.len() < CHANGES_MAX {
                self.open.push(change);
            } else {
                self.complete = false;
            }
        }
    }

    fn lost(&mut self) {
        // The remaining changes of this transaction are not all of it.
        self.complete = false;
        self.waiting.push_back(Event::Overrun);
    }
}

// === impl Commit ===

impl Commit {
    fn decode(message: &Message<'_>, port: u32) -> Self {
        let attributes = message.attributes(NFGENMSG_BYTES);
        let number = |kind| attributes.find(kind).and_then(|attribute| attribute.be32()).unwrap_or(0);
        Self {
            generation: number(NFTA_GEN_ID),
            port,
            pid: number(NFTA_GEN_PROC_PID),
            process: attributes.find(NFTA_GEN_PROC_NAME).map(|name| name.text()).unwrap_or_default(),
            changes: Vec::new(),
            complete: true,
        }
    }

    /// Whether the transaction may have changed `table`.
    pub fn touches(&self, table: &Table) -> bool {
        !self.complete || self.changes.iter().any(|change| change.table == *table)
    }
}

// === impl Change ===

impl Change {
    fn decode(message: &Message<'_>) -> Option<Self> {
        let (object, gone, name) = match message.kind {
            NFT_MSG_NEWTABLE => (Object::Table, false, NFTA_TABLE_NAME),
            NFT_MSG_DELTABLE => (Object::Table, true, NFTA_TABLE_NAME),
            NFT_MSG_NEWCHAIN => (Object::Chain, false, NFTA_CHAIN_NAME),
            NFT_MSG_DELCHAIN => (Object::Chain, true, NFTA_CHAIN_NAME),
            NFT_MSG_NEWRULE => (Object::Rule, false, NFTA_RULE_CHAIN),
            NFT_MSG_DELRULE => (Object::Rule, true, NFTA_RULE_CHAIN),
            NFT_MSG_NEWSET => (Object::Set, false, NFTA_SET_NAME),
            NFT_MSG_DELSET => (Object::Set, true, NFTA_SET_NAME),
            NFT_MSG_NEWSETELEM => (Object::Elements, false, NFTA_SET_ELEM_LIST_SET),
            NFT_MSG_DELSETELEM => (Object::Elements, true, NFTA_SET_ELEM_LIST_SET),
            _ => return None,
        };
        let family = TableFamily::from_number(*message.payload.first()?)?;
        let attributes = message.attributes(NFGENMSG_BYTES);
        // In all messages the first attribute is the table's name.
        let table = Table::new(family, attributes.find(NFTA_TABLE_NAME)?.text());
        let base = object == Object::Chain && attributes.find(NFTA_CHAIN_HOOK).is_some();
        Some(Self { object, table, name: attributes.find(name)?.text(), gone, base: base && !gone })
    }
}

fn failed(operation: &'static str) -> impl FnOnce(std::io::Error) -> NetlinkError {
    move |source| NetlinkError::Io { operation: operation.to_owned(), source }
}

/// Runs the decoder, for tests with arbitrary input.
#[cfg(test)]
pub(crate) fn hear_for_test(datagram: &[u8]) {
    let mut heard = Heard::nothing();
    heard.take(datagram);
    heard.take(datagram);
    assert!(heard.open.len() <= CHANGES_MAX);
}
