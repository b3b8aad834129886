//! The journal of this boot: what each ADD, DEL and GC is to do, what it changed, and how it ended.
//! An agent that starts reads what its predecessor had begun, and `recovery` rolls it forward or
//! back.
//!
//! Written by `operations` and, through [`Recorder`], by the wiring; read at start and by `russet
//! journal`. It is kept below `/run` and is lost at reboot together with everything that it
//! describes. Where `/run` survives a reboot, the boot ID in the file shows that it is outdated.
//! IPAM plugins that another program's plugin calls, and `loopback`, are not recorded: the DEL of
//! their callers, or the leak repair, releases what they leave.
//!
//! If the journal cannot be written (this is counted, and logged once), an ADD is refused before it
//! changes anything; a DEL and a GC are carried out anyway. Space for the outcome of an operation
//! is reserved when it begins.

mod entry;
mod frame;
mod log;
mod view;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use russet_addr::{ContainerId, IfName};
use russet_attach::{Attached, Wired};
use russet_cni_spec::{Call, CniError, Request};
use russet_plugins::InterfaceObserver;

pub use entry::{AttachmentPart, Begin, Effect, Interface, LiveAttachment, OpenOperation, Verb};
pub(crate) use view::unfinished;
pub use view::{Attachment, Operation, View, read as view};

use crate::attachments::{Attachments, Record};
use crate::metrics::Metrics;
use entry::{Entry, JournalState};
use frame::Tail;
use log::Log;

/// The journal. It has one writer, because the agent holds the node lock.
pub struct Journal {
    path: PathBuf,
    boot: String,
    metrics: Metrics,
    inner: RefCell<Inner>,
}

struct Inner {
    state: JournalState,
    /// None while the file has to be written again.
    log: Option<Log>,
    /// Used bytes when the file was new, or could not be compacted.
    first_bytes: u64,
    /// The journal that was found was damaged, and its open operations are not all decided.
    damaged: bool,
    /// Whether the failure to write was logged.
    failure_logged: bool,
    /// Operations that were open when an ADD of the same interface began. In memory only: an agent
    /// that finds an open operation starts it from the beginning.
    overtaken: BTreeSet<u64>,
}

/// The content of the journal when it was opened.
#[derive(Debug)]
pub struct JournalContents {
    /// Operations that have not ended.
    pub open: Vec<OpenOperation>,
    /// There was no journal of this boot.
    pub fresh: bool,
    /// Records are missing, so operations that seem open may have ended.
    pub damaged: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("write the journal {}: {source}", path.display())]
pub struct JournalError {
    path: PathBuf,
    source: io::Error,
}

/// An operation that was started.
struct Begun {
    /// Its number; none if it is too large for the journal.
    op: Option<u64>,
    /// Whether its start was written.
    written: Result<(), JournalError>,
}

/// Writes changes of interfaces into the journal and the table of attachments.
pub struct Recorder {
    journal: Journal,
    attachments: Attachments,
}

/// The file is compacted when it has twice its initial size, and at least this size.
const COMPACT_MIN_BYTES: u64 = 256 * 1024;
/// Space that an ADD or a GC may still need once it has begun: the wiring with a few dozen routes,
/// or the removed interfaces, and the outcome.
const OPERATION_ROOM_BYTES: u64 = 8 * 1024;
/// The same for a DEL: its interface and the outcome. A thousand DELs may wait for a store that is
/// away, and still leave space for ADDs.
const DEL_ROOM_BYTES: u64 = 512;

// === impl Journal ===

impl Journal {
    /// Opens the journal at `path`. A journal of another boot, or a foreign file, is replaced. If
    /// the file cannot be written, each request tries again.
    pub fn open(path: PathBuf, boot: String, metrics: Metrics) -> (Self, JournalContents) {
        let contents = log::read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "the journal cannot be read; a new one is started");
            None
        });
        let contents = contents.filter(|contents| contents.boot == boot);
        let fresh = contents.is_none();
        let damaged = contents.as_ref().is_some_and(|contents| contents.tail == Tail::Damaged);
        let mut state = JournalState::default();
        if let Some(contents) = contents {
            log_tail(&path, contents.tail, contents.entries.len());
            contents.entries.into_iter().for_each(|entry| state.apply(entry));
        }
        let open = state.open.values().cloned().collect();
        let inner = Inner {
            state,
            log: None,
            first_bytes: 0,
            damaged,
            failure_logged: false,
            overtaken: BTreeSet::new(),
        };
        let journal = Self { path, boot, metrics, inner: RefCell::new(inner) };
        // Even if there is nothing to write: this makes the file valid and reserves its space.
        let written = journal.inner.borrow_mut().anew(&journal.path, &journal.boot);
        let _ = journal.noted(written);
        (journal, JournalContents { open, fresh, damaged })
    }

    /// Notes that all open operations that were found are decided. Until then the file stays marked
    /// as damaged.
    pub fn decided(&self) {
        let mut inner = self.inner.borrow_mut();
        if std::mem::take(&mut inner.damaged) {
            let written = inner.anew(&self.path, &self.boot);
            drop(inner);
            // The failure is counted, and the next entry tries again.
            let _ = self.noted(written);
        }
    }

    /// Writes that an operation starts; nothing for operations that are not recorded. `repeated`:
    /// an ADD of an attachment that was complete before, whatever the journal knows of it.
    fn begin(
        &self,
        plugin: &str,
        request: &Request,
        source: (&[(String, String)], &[u8]),
        repeated: bool,
    ) -> Option<Begun> {
        let (verb, target) = match &request.env.call {
            Call::Add(target) => (Verb::Add, Some(target)),
            Call::Del(target) => (Verb::Del, Some(target)),
            Call::Gc => (Verb::Gc, None),
            Call::Check(_) | Call::Status => return None,
        };
        if !russet_plugins::needs_own_del(plugin) {
            return None;
        }
        let (env, config) = source;
        let interface = target.map(Interface::from_target);
        let mut inner = self.inner.borrow_mut();
        let op = inner.state.next;
        let mut begin = Begin {
            op,
            at_ms: now_ms(),
            verb,
            plugin: plugin.to_owned(),
            network: request.config.name.clone(),
            interface,
            pod: request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
            env: env.to_vec(),
            config: String::from_utf8_lossy(config).into_owned(),
            repeated: false,
        };
        let known = begin.subject().is_some_and(|subject| inner.state.live.contains_key(&subject));
        begin.repeated = verb == Verb::Add && (known || repeated);
        if verb == Verb::Add {
            inner.overtake(begin.subject());
        }
        let written = inner.write(&self.path, &self.boot, Entry::Begin(begin)).and_then(|()| inner.room());
        if written.is_err() && verb == Verb::Add {
            // It may be in the file, but without space for its end.
            inner.state.open.remove(&op);
            inner.log = None;
        }
        let op = inner.state.open.contains_key(&op).then_some(op);
        drop(inner);
        Some(Begun { op, written: self.noted(written) })
    }

    fn effect(&self, interface: &Interface, effect: Effect) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        let Some(op) = inner.state.current_operation(interface) else { return Ok(()) };
        if !inner.state.changes(op, &effect) {
            return Ok(());
        }
        let written = inner.write(&self.path, &self.boot, Entry::Effect { op, at_ms: now_ms(), effect });
        drop(inner);
        self.noted(written)
    }

    /// Writes that an operation ended; code 0 is success. An ADD that succeeded and cannot be
    /// written stays open: it has to be undone.
    pub fn end(&self, op: u64, code: u32) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        let written = inner.write(&self.path, &self.boot, Entry::End { op, at_ms: now_ms(), code });
        let compacted = match &written {
            Ok(()) if inner.is_large() => inner.compact(&self.path, &self.boot),
            _ => Ok(()),
        };
        drop(inner);
        if let Err(error) = compacted {
            // The entry itself was written.
            self.metrics.journal_write_failures.inc();
            tracing::warn!(path = %self.path.display(), %error, "the journal cannot be compacted and keeps growing");
        }
        self.noted(written)
    }

    /// Whether an operation is open, and no later one has replaced it.
    pub fn is_open(&self, op: u64) -> bool {
        self.inner.borrow().state.open.contains_key(&op)
    }

    /// Whether a crash now would leave the open operation in the file. A DEL and a GC are carried
    /// out even if they cannot be written.
    pub fn is_recorded(&self, op: u64) -> bool {
        // The current file has every entry. There is none while entries are missing.
        self.inner.borrow().log.is_some() && self.is_open(op)
    }

    /// Number of open operations: in progress, or to be retried.
    pub fn open_count(&self) -> usize {
        self.inner.borrow().state.open.len()
    }

    /// Whether an ADD of the same plugin, network and interface has begun since. Its wiring may
    /// exist even if it failed. An ADD of another network has addresses of its own, and its wiring
    /// does not belong to this operation.
    pub fn is_overtaken(&self, op: u64) -> bool {
        self.inner.borrow().overtaken.contains(&op)
    }

    /// An open operation.
    pub fn open_one(&self, op: u64) -> Option<OpenOperation> {
        self.inner.borrow().state.open.get(&op).cloned()
    }

    /// The attachments that operations later than `op` made.
    pub fn made_after(&self, op: u64) -> Vec<Interface> {
        let inner = self.inner.borrow();
        let later = inner.state.live.values().filter(|live| live.op > op);
        later.map(|live| live.subject.interface.clone()).collect()
    }

    /// Whether the journal lists an interface as attached.
    pub fn has(&self, interface: &Interface) -> bool {
        let inner = self.inner.borrow();
        inner.state.live.values().any(|live| live.wired.is_some() && live.subject.interface == *interface)
    }

    /// The attachments, as the journal knows them.
    pub fn live(&self) -> Vec<LiveAttachment> {
        self.inner.borrow().state.live.values().cloned().collect()
    }

    /// Adds attachments that were made without the journal, as later than everything in it.
    pub fn take_over(&self, lives: impl Iterator<Item = LiveAttachment>) {
        let mut inner = self.inner.borrow_mut();
        let op = inner.state.next;
        inner.state.next += 1;
        lives.for_each(|live| inner.state.apply(Entry::Live(LiveAttachment { op, ..live })));
        let written = inner.anew(&self.path, &self.boot);
        drop(inner);
        let _ = self.noted(written);
    }

    /// Removes attachments that no longer exist.
    fn keep(&self, is_there: impl Fn(&LiveAttachment) -> bool) {
        let mut inner = self.inner.borrow_mut();
        let before = inner.state.live.len();
        inner.state.live.retain(|_, live| is_there(live));
        if inner.state.live.len() == before {
            return;
        }
        let written = inner.anew(&self.path, &self.boot);
        drop(inner);
        let _ = self.noted(written);
    }

    /// Counts a failure, logs the first one of a series, and updates the gauges.
    fn noted(&self, written: io::Result<()>) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        if let Some(log) = &inner.log {
            self.metrics.journal_bytes.set(i64::try_from(log.used_bytes()).unwrap_or(i64::MAX));
            self.metrics.journal_records.set(i64::try_from(log.records).unwrap_or(i64::MAX));
        }
        match written {
            Ok(()) if inner.failure_logged => {
                inner.failure_logged = false;
                tracing::info!(path = %self.path.display(), "the journal can be written again");
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(source) => {
                self.metrics.journal_write_failures.inc();
                if !std::mem::replace(&mut inner.failure_logged, true) {
                    tracing::warn!(path = %self.path.display(), error = %source, "the journal cannot be written: ADDs are refused, DELs are not");
                }
                Err(JournalError { path: self.path.clone(), source })
            }
        }
    }
}

fn log_tail(path: &Path, tail: Tail, records: usize) {
    let path = path.display();
    match tail {
        Tail::Clean => tracing::debug!(%path, records, "journal read"),
        Tail::Torn => {
            tracing::info!(%path, records, "the journal's last record is incomplete and was skipped")
        }
        Tail::Damaged => {
            tracing::warn!(%path, records, "the journal is damaged: records after the first invalid one are lost");
        }
    }
}

fn now_ms() -> u64 {
    millis(SystemTime::now())
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn time_of(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

// === impl Inner ===

impl Inner {
    fn overtake(&mut self, subject: Option<AttachmentPart>) {
        let open = &self.state.open;
        self.overtaken.retain(|op| open.contains_key(op));
        let of = |open: &&OpenOperation| subject.is_some() && open.begin.subject() == subject;
        self.overtaken.extend(open.values().filter(of).map(|open| open.begin.op));
    }

    /// Applies an entry and writes it. An entry that could not be written still counts, and is part
    /// of the next file that can be written. Exceptions: an ADD begins, and ends with success, only
    /// if that is written.
    fn write(&mut self, path: &Path, boot: &str, entry: Entry) -> io::Result<()> {
        let document = log::document(&entry)?;
        let appended = self.log.as_mut().map(|log| log.append(&document));
        if let Some(Ok(())) = appended {
            self.state.apply(entry);
            return Ok(());
        }
        self.log = None;
        let before = self.state.must_be_written(&entry).then(|| self.state.clone());
        self.state.apply(entry);
        let written = self.anew(path, boot);
        if let (Err(_), Some(before)) = (&written, before) {
            self.state = before;
        }
        written
    }

    /// Writes a new file with the current content. If that fails, the existing file lacks entries,
    /// so the next entry needs a new file.
    fn anew(&mut self, path: &Path, boot: &str) -> io::Result<()> {
        let replaced = self.replace(path, boot, 0);
        if replaced.is_err() {
            self.log = None;
        }
        replaced?;
        // Space for open operations may be missing then. Without this file it would certainly be
        // missing.
        let _ = self.room();
        Ok(())
    }

    /// The same for a valid but large file: the new one needs the same reserved space. If
    /// compaction fails, the file may grow to twice its size before the next attempt.
    fn compact(&mut self, path: &Path, boot: &str) -> io::Result<()> {
        let done = self.replace(path, boot, self.room_bytes());
        if done.is_err() {
            self.first_bytes = self.log.as_ref().map_or(0, Log::used_bytes);
        }
        done
    }

    fn replace(&mut self, path: &Path, boot: &str, room_bytes: u64) -> io::Result<()> {
        let header = Entry::Header { boot: boot.to_owned(), next: self.state.next, damaged: self.damaged };
        let log = Log::replace(path, [header].into_iter().chain(self.state.entries()), room_bytes)?;
        self.first_bytes = log.used_bytes();
        self.log = Some(log);
        Ok(())
    }

    /// Reserves space for everything that the open operations may still write.
    fn room(&mut self) -> io::Result<()> {
        let bytes = self.room_bytes();
        self.log.as_mut().map_or(Ok(()), |log| log.room(bytes))
    }

    fn room_bytes(&self) -> u64 {
        let of = |open: &OpenOperation| match open.begin.verb {
            Verb::Add | Verb::Gc => OPERATION_ROOM_BYTES,
            Verb::Del => DEL_ROOM_BYTES,
        };
        self.state.open.values().map(of).sum()
    }

    fn is_large(&self) -> bool {
        let used = self.log.as_ref().map_or(0, Log::used_bytes);
        used > COMPACT_MIN_BYTES && used > 2 * self.first_bytes
    }
}

// === impl Recorder ===

impl Recorder {
    /// Writes into both.
    pub fn new(journal: Journal, attachments: Attachments) -> Self {
        Self { journal, attachments }
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// At start: fills the table with the attachments of the journal that the kernel still has, and
    /// both with those that only the kernel has. Attachments that no longer exist are removed from
    /// the journal. `has_link` says whether an interface still has its link; `wired` are the
    /// attachments whose link is wired completely.
    pub fn fill(&self, has_link: impl Fn(&Wired) -> bool, wired: Vec<russet_attach::Attachment>) {
        let mut gone = BTreeSet::new();
        for live in self.journal.live() {
            if live.wired.as_deref().is_some_and(|wired| !has_link(wired)) {
                gone.insert(live.subject.interface);
            }
        }
        // Including what other plugins of its chain have set up.
        self.journal.keep(|live| match live.wired.as_deref() {
            Some(wired) => has_link(wired),
            None => !gone.contains(&live.subject.interface),
        });
        for live in self.journal.live() {
            if let Some(attachment) = live.wired {
                let since = time_of(live.since_ms);
                self.attachments.put(Record { attachment: *attachment, netns: live.netns, since });
            }
        }
        let since = SystemTime::now();
        let unknown = |attachment: &russet_attach::Attachment| {
            let (network, container, ifname) =
                (&attachment.network, &attachment.container, &attachment.ifname);
            self.attachments.get(network, container, ifname).is_none()
        };
        let mut taken = Vec::new();
        for attachment in wired.into_iter().filter(unknown) {
            let attachment = Wired::Routed(attachment);
            self.attachments.put(Record { attachment: attachment.clone(), netns: None, since });
            taken.push(found(attachment, since));
        }
        if !taken.is_empty() {
            self.journal.take_over(taken.into_iter());
        }
    }

    /// Starts an operation; none for operations that are not recorded. An ADD that cannot be
    /// recorded is not started.
    pub fn begin(
        &self,
        plugin: &str,
        request: &Request,
        source: (&[(String, String)], &[u8]),
    ) -> Result<Option<u64>, CniError> {
        let interface = request.env.target().map(Interface::from_target);
        let wires = russet_plugins::creates_interfaces(plugin);
        let attached = interface.is_some_and(|it| wires && self.attachments.has(&it));
        match self.journal.begin(plugin, request, source, attached) {
            None => Ok(None),
            Some(Begun { written: Err(error), .. }) if matches!(request.env.call, Call::Add(_)) => {
                Err(unrecorded(&error))
            }
            // A DEL and a GC are carried out even if that cannot be written, and then have to end.
            Some(begun) => Ok(begun.op),
        }
    }

    /// Ends an operation.
    pub fn end(&self, op: Option<u64>, code: u32) -> Result<(), CniError> {
        op.map_or(Ok(()), |op| self.journal.end(op, code)).map_err(|error| unrecorded(&error))
    }

    /// Whether an ADD is a repetition.
    pub fn is_repeated(&self, op: Option<u64>) -> bool {
        let inner = self.journal.inner.borrow();
        op.and_then(|op| inner.state.open.get(&op)).is_some_and(OpenOperation::was_attached)
    }
}

fn found(attachment: Wired, since: SystemTime) -> LiveAttachment {
    let interface = Interface::from_wired(&attachment);
    let calico = matches!(&attachment, Wired::Routed(it) if it.dialect == russet_attach::Dialect::Calico);
    let plugin = if calico { "calico" } else { "russet" }.to_owned();
    let subject = AttachmentPart { network: attachment.network().clone(), interface, plugin };
    LiveAttachment {
        subject,
        op: 0,
        since_ms: millis(since),
        pod: None,
        wired: Some(Box::new(attachment)),
        netns: None,
    }
}

fn unrecorded(error: &JournalError) -> CniError {
    CniError::try_again_later("the request cannot be recorded", error)
}

impl InterfaceObserver for Recorder {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        let interface = Interface::from_wired(wired);
        let effect = Effect::Wiring { wired: Box::new(wired.clone()), netns: netns.to_owned() };
        self.journal.effect(&interface, effect).map_err(|error| unrecorded(&error))?;
        self.attachments.wiring(wired, netns)
    }

    fn wired(&self, wired: &Wired, attached: &Attached) {
        let interface = Interface::from_wired(wired);
        // The failure is counted. The outcome, which matters more, is written together with this
        // entry, or not at all.
        let Attached { reused, bridge_mac, .. } = *attached;
        let _ = self.journal.effect(&interface, Effect::Wired { reused, bridge_mac });
        self.attachments.wired(wired, attached);
    }

    fn unwired(&self, wired: &Wired) {
        self.attachments.unwired(wired);
    }

    fn leaving(&self, container: &ContainerId, ifname: &IfName) {
        let interface = Interface { container: container.clone(), ifname: ifname.clone() };
        let _ = self.journal.effect(&interface, Effect::Leaving(interface.clone()));
        self.attachments.leaving(container, ifname);
    }
}

// === impl Interface ===

impl Interface {
    /// The interface of a request.
    pub fn from_target(target: &russet_cni_spec::Target) -> Self {
        Self { container: target.container_id.clone(), ifname: target.ifname.clone() }
    }

    /// The interface of a wiring.
    pub fn from_wired(wired: &Wired) -> Self {
        Self { container: wired.container().clone(), ifname: wired.ifname().clone() }
    }
}

#[cfg(test)]
mod tests;
