//! The kernel's events: waits for them, reads them, and asks the event filter which controllers they
//! concern. Used by `drift` and the repair thread.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use russet_attach::nat;
use russet_linux::watch::WakeHandle;
use russet_netlink::{Event, Monitor, NetlinkError, Socket, Topic, is_own_netfilter_port, is_own_route_port};
use russet_nft::monitor as tables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::event_filter::{Concern, EventFilter};
use super::who::Traces;
use super::{ControllerId, lock};
use crate::fast_path::Signal;

/// Sockets for events of rtnetlink and of nf_tables, which a kernel may not have.
pub(crate) struct KernelEvents {
    routes: Monitor,
    tables: Option<tables::Monitor>,
    /// For requests about what events do not report.
    socket: Socket,
    /// Link events were lost, so the filter's picture of the links has to be read again.
    links_unknown: bool,
    /// The fast path, which follows the same events.
    flows: Signal,
}

/// The groups of rtnetlink that are listened to.
pub(super) const TOPICS: [Topic; 7] = [
    Topic::Links,
    Topic::Addresses,
    Topic::Routes,
    Topic::Rules,
    Topic::Qdiscs,
    Topic::Neighbours,
    Topic::Confs,
];
/// Events that are read before controllers compare. A program that causes more than this many gets a
/// comparison in between.
const EVENTS_MAX: usize = 10_000;
/// After the first event, further events of rtnetlink are collected for this long, also those that
/// Russet causes: each of our own ADDs and DELs causes a dozen events, and 100,000 routes are a flood. The
/// events read so far are handled without this wait, and nf_tables events never wait: without
/// verdicts no packet is filtered.
const GATHER: Duration = Duration::from_millis(5);
/// Reads only what has arrived already.
pub(crate) const NO_WAIT: Duration = Duration::ZERO;

/// What the events of one pass concern.
#[derive(Default)]
pub(super) struct Batch {
    pub controllers: BTreeSet<ControllerId>,
    pub traces: Traces,
    pub underlay: bool,
    pub heard: Heard,
}

/// What was read in one pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Heard {
    pub events: usize,
    /// Our own requests changed pods' masquerade and published ports.
    pub own_nat: bool,
    /// Reading events failed.
    pub failed: bool,
}

// === impl KernelEvents ===

impl KernelEvents {
    /// Opens the sockets and starts to listen.
    pub fn open(flows: Signal) -> Result<Self, NetlinkError> {
        let tables = tables::Monitor::open().inspect_err(|error| {
            tracing::warn!(%error, "changes of nf_tables are not reported by the kernel; the regular comparison finds them");
        });
        if tables.is_err() {
            flows.deaf();
        }
        let routes = Monitor::open(&TOPICS)?;
        Ok(Self { routes, tables: tables.ok(), socket: Socket::route()?, links_unknown: true, flows })
    }

    /// The fast path's flows.
    pub fn flows(&self) -> &Signal {
        &self.flows
    }

    /// Waits until an event or an answer arrives, or `timeout` passed.
    pub fn wait(&self, answer_ready: &WakeHandle, timeout: Duration) {
        wait_for([Some(self.routes.as_fd()), self.tables_fd(), Some(answer_ready.as_fd())], timeout);
        // A later answer wakes the next wait; one that has arrived already is found by this pass.
        answer_ready.reset();
    }

    /// Waits until nf_tables sends an event, an answer arrives, or events of rtnetlink have been
    /// collected for long enough.
    pub fn gather(&self, answer_ready: &WakeHandle) {
        wait_for([None, self.tables_fd(), Some(answer_ready.as_fd())], GATHER);
    }

    fn tables_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tables.as_ref().map(AsFd::as_fd)
    }

    /// Reads the events that have arrived. If some cannot be read, everything may have changed.
    pub(super) fn read(&mut self, filter: &Mutex<EventFilter>) -> Batch {
        let mut batch = Batch::default();
        let routes = self.read_route_events(filter, &mut batch);
        for error in [routes, self.read_table_events(filter, &mut batch)].into_iter().filter_map(Result::err)
        {
            tracing::warn!(%error, "listen to changes");
            batch.note(Concern::EVERYTHING);
            self.flows.lost();
            self.flows.raise();
            (self.links_unknown, batch.heard.failed) = (true, true);
        }
        if self.links_unknown {
            match self.socket.links() {
                Ok(links) => {
                    lock(filter).learn(links);
                    self.links_unknown = false;
                }
                Err(error) => tracing::warn!(%error, "the node's links cannot be listed"),
            }
        }
        batch
    }

    fn read_route_events(
        &mut self,
        filter: &Mutex<EventFilter>,
        batch: &mut Batch,
    ) -> Result<(), NetlinkError> {
        while batch.heard.events < EVENTS_MAX
            && let Some(heard) = self.routes.next_attributed(NO_WAIT)?
        {
            batch.heard.events += 1;
            self.links_unknown |= heard.event == Event::Overrun;
            self.flows.heard(&heard.event);
            let own = heard.port != 0 && is_own_route_port(heard.port);
            let concern = lock(filter).classify(&heard.event, own);
            if batch.note(concern) {
                batch.traces.port(heard.port);
            }
        }
        Ok(())
    }

    fn read_table_events(
        &mut self,
        filter: &Mutex<EventFilter>,
        batch: &mut Batch,
    ) -> Result<(), NetlinkError> {
        let Some(tables) = &mut self.tables else { return Ok(()) };
        while batch.heard.events < EVENTS_MAX
            && let Some(event) = tables.next(NO_WAIT)?
        {
            batch.heard.events += 1;
            match event {
                tables::Event::Overrun => {
                    self.flows.raise();
                    batch.note(Concern::EVERYTHING);
                }
                tables::Event::Committed(commit) if is_own_netfilter_port(commit.port) => {
                    batch.heard.own_nat |= commit.touches(&nat::table());
                }
                tables::Event::Committed(commit) => {
                    self.flows.raise();
                    if batch.note(lock(filter).classify_commit(&commit)) {
                        batch.traces.process(commit.pid, &commit.process);
                    }
                }
            }
        }
        Ok(())
    }
}

fn wait_for(kernel_events: [Option<BorrowedFd<'_>>; 3], timeout: Duration) {
    let kernel_events = kernel_events.into_iter().flatten();
    let mut kernel_events: Vec<_> =
        kernel_events.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // A failure is a signal, or an error that the next read reports.
    let _ = poll(&mut kernel_events, timeout.as_ref());
}

// === impl Batch ===

impl Batch {
    /// Adds what an event concerns. True if it concerns a managed object.
    fn note(&mut self, concern: Concern) -> bool {
        self.controllers.extend(concern.controllers());
        self.underlay |= concern.underlay;
        concern.is_any()
    }
}
