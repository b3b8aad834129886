//! Events of changes to the kernel's tables.
//!
//! The agent's loops use them to mark things dirty. Lost events are reported as one
//! [`Event::Overrun`], which means that everything may have changed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::error::{NetlinkError, Result};
use crate::kernel::*;
use crate::link::Link;
use crate::neighbour::{FdbEntry, Neighbour};
use crate::netconf::Conf;
use crate::route::Route;
use crate::rule::Rule;
use crate::socket::{Fd, INBOX_BYTES, RECEIVE_BUFFER_BYTES, REPLY_DEADLINE_S, Received};
use crate::tc::Qdisc;
use crate::wire::{Message, Messages};

/// Receives events in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    fd: Fd,
    inbox: Vec<u8>,
    waiting: VecDeque<AttributedEvent>,
}

/// Topics of events, each for both IP families if it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Links.
    Links,
    /// Addresses.
    Addresses,
    /// Routes.
    Routes,
    /// Neighbours and forwarding entries.
    Neighbours,
    /// Routing rules.
    Rules,
    /// Queueing disciplines that are added and deleted.
    Qdiscs,
    /// The sysctls of links with notifications: forwarding, reverse-path filter, proxying.
    Confs,
}

/// An event, and the socket that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributedEvent {
    /// The event.
    pub event: Event,
    /// The netlink port of the socket that requested the change; 0 if the kernel made it or does
    /// not report the port (forwarding entries, sysctls).
    /// [`is_own_route_port`](crate::is_own_route_port) recognises ports of this process.
    pub port: u32,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The object was created or changed.
    Set(Change),
    /// The object was deleted.
    Gone(Change),
    /// Events were lost: read everything again.
    Overrun,
}

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A link.
    Link(Box<Link>),
    /// An address.
    Address(Address),
    /// A route.
    Route(Route),
    /// A neighbour.
    Neighbour(Neighbour),
    /// A forwarding entry.
    Fdb(FdbEntry),
    /// A routing rule.
    Rule(Rule),
    /// A queueing discipline.
    Qdisc(Qdisc),
    /// Sysctls of a link.
    Conf(Conf),
}

// === impl Monitor ===

impl Monitor {
    /// Subscribes to the topics; later changes are reported.
    pub fn open(topics: &[Topic]) -> Result<Self> {
        let opened = Fd::open(libc::NETLINK_ROUTE).and_then(|fd| {
            fd.configure(RECEIVE_BUFFER_BYTES, REPLY_DEADLINE_S)?;
            topics.iter().flat_map(|topic| topic.groups()).try_for_each(|group| fd.join(*group))?;
            Ok(fd)
        });
        let fd = opened.map_err(failed("open a netlink monitor"))?;
        Ok(Self { fd, inbox: vec![0; INBOX_BYTES], waiting: VecDeque::new() })
    }

    /// The next event; `None` after `timeout`. A timeout of zero never waits, for callers that poll
    /// the descriptor themselves.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>> {
        Ok(self.next_attributed(timeout)?.map(|heard| heard.event))
    }

    /// The same, with the socket that caused the event.
    pub fn next_attributed(&mut self, timeout: Duration) -> Result<Option<AttributedEvent>> {
        // No deadline if it is beyond the range of the clock.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(heard) = self.waiting.pop_front() {
                return Ok(Some(heard));
            }
            match self.fd.receive(&mut self.inbox, false).map_err(failed("read netlink events"))? {
                Received::Datagram(len) => self.take(len),
                Received::Overrun => self.waiting.push_back(AttributedEvent::OVERRUN),
                Received::Truncated(len) => {
                    self.inbox.resize(len.next_power_of_two(), 0);
                    self.waiting.push_back(AttributedEvent::OVERRUN);
                }
                Received::Nothing => {
                    let left =
                        deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.fd.wait_readable(left).map_err(failed("wait for netlink events"))?;
                }
            }
        }
    }

    fn take(&mut self, len: usize) {
        let Some(datagram) = self.inbox.get(..len) else {
            return self.waiting.push_back(AttributedEvent::OVERRUN);
        };
        for message in Messages::new(datagram) {
            match message {
                Ok(message) => self.waiting.extend(AttributedEvent::decode(&message)),
                Err(_) => self.waiting.push_back(AttributedEvent::OVERRUN),
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(operation: &'static str) -> impl Fn(std::io::Error) -> NetlinkError {
    move |source| NetlinkError::Io { operation: operation.to_owned(), source }
}

// === impl Topic ===

impl Topic {
    /// `RTNLGRP_*`, linux/rtnetlink.h.
    const fn groups(self) -> &'static [u32] {
        match self {
            Topic::Links => &[1],
            Topic::Neighbours => &[3],
            Topic::Addresses => &[5, 9],
            Topic::Routes => &[7, 11],
            Topic::Rules => &[8, 19],
            Topic::Qdiscs => &[4],
            Topic::Confs => &[24, 25],
        }
    }
}

// === impl AttributedEvent ===

impl AttributedEvent {
    const OVERRUN: Self = Self { event: Event::Overrun, port: 0 };

    fn decode(message: &Message<'_>) -> Option<Self> {
        Some(Self { event: Event::decode(message)?, port: message.port })
    }
}

// === impl Event ===

impl Event {
    /// Decodes a multicast message; `None` for unknown objects.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        let bridge = message.payload.first() == Some(&AF_BRIDGE);
        let change = match message.kind {
            RTM_NEWLINK | RTM_DELLINK => Change::Link(Box::new(Link::decode(message)?)),
            RTM_NEWADDR | RTM_DELADDR => Change::Address(Address::decode(message)?),
            RTM_NEWROUTE | RTM_DELROUTE => Change::Route(Route::decode(message)?),
            RTM_NEWNEIGH | RTM_DELNEIGH if bridge => Change::Fdb(FdbEntry::decode(message)?),
            RTM_NEWNEIGH | RTM_DELNEIGH => Change::Neighbour(Neighbour::decode(message)?),
            RTM_NEWRULE | RTM_DELRULE => Change::Rule(Rule::decode(message)?),
            RTM_NEWQDISC | RTM_DELQDISC => Change::Qdisc(Qdisc::decode(message)?),
            RTM_NEWNETCONF | RTM_DELNETCONF => Change::Conf(Conf::decode(message)?),
            _ => return None,
        };
        let gone = matches!(
            message.kind,
            RTM_DELLINK
                | RTM_DELADDR
                | RTM_DELROUTE
                | RTM_DELNEIGH
                | RTM_DELRULE
                | RTM_DELQDISC
                | RTM_DELNETCONF
        );
        Some(if gone { Event::Gone(change) } else { Event::Set(change) })
    }
}
