//! The journal of this boot: what each ADD, DEL and GC is to do, what it changed, and how it ended.
//! It is the write-ahead log of the [`EndpointTable`]. An agent that starts reads what its
//! predecessor had begun, and `recovery` rolls it forward or back.
//!
//! Written by `operations` and, as its [`InterfaceObserver`], by the wiring; read at start and by
//! `russet journal`. It is kept below `/run` and is lost at reboot together with everything that it
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
mod metrics;
mod state;
mod view;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use russet_addr::EndpointId;
use russet_attach::{Attached, Wired};
use russet_cni_spec::table::{self, Plugin};
use russet_cni_spec::{Call, CniError, Request};
use russet_wiring::InterfaceObserver;

pub(crate) use entry::Entry;
pub use entry::{Begin, Effect, EndpointPart, Interface, OpenOperation, Verb};
pub use metrics::JournalMetrics;
pub use state::TableState;
pub use view::{Attachment, Operation, View, read as view, unfinished};

use crate::endpoints::{Endpoint, EndpointTable};
use crate::{History, LOG};
use frame::Tail;
use log::Log;

/// The journal. It has one writer, because the agent holds the node lock.
pub struct Journal {
    path: PathBuf,
    boot: String,
    metrics: JournalMetrics,
    table: EndpointTable,
    inner: RefCell<Inner>,
}

struct Inner {
    table: EndpointTable,
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
    pub fn open(path: PathBuf, boot: String, metrics: JournalMetrics) -> (Self, JournalContents) {
        let contents = log::read(&path).unwrap_or_else(|error| {
            tracing::warn!(target: LOG, path = %path.display(), %error, "the journal cannot be read; a new one is started");
            None
        });
        let contents = contents.filter(|contents| contents.boot == boot);
        let fresh = contents.is_none();
        let damaged = contents.as_ref().is_some_and(|contents| contents.tail == Tail::Damaged);
        let table = EndpointTable::default();
        if let Some(contents) = contents {
            log_tail(&path, contents.tail, contents.entries.len());
            contents.entries.into_iter().for_each(|entry| table.state().apply(entry));
        }
        let open = table.state().open.values().cloned().collect();
        let inner = Inner {
            table: table.clone(),
            log: None,
            first_bytes: 0,
            damaged,
            failure_logged: false,
            overtaken: BTreeSet::new(),
        };
        let journal = Self { path, boot, metrics, table, inner: RefCell::new(inner) };
        // Even if there is nothing to write: this makes the file valid and reserves its space.
        journal.write_anew();
        (journal, JournalContents { open, fresh, damaged })
    }

    /// The table that the journal describes.
    pub const fn table(&self) -> &EndpointTable {
        &self.table
    }

    /// Notes that all open operations that were found are decided. Until then the file stays marked
    /// as damaged.
    pub fn decided(&self) {
        if std::mem::take(&mut self.inner.borrow_mut().damaged) {
            self.write_anew();
        }
    }

    /// Starts an operation; none for operations that are not recorded. An ADD that cannot be
    /// recorded is not started. A DEL and a GC are carried out anyway, and then have to end.
    pub fn begin(
        &self,
        plugin: &str,
        request: &Request,
        source: (&[(String, String)], &[u8]),
    ) -> Result<Option<u64>, CniError> {
        match self.try_begin(plugin, request, source) {
            None => Ok(None),
            Some(Begun { written: Err(error), .. }) if matches!(request.env.call, Call::Add(_)) => {
                Err(unrecorded(&error))
            }
            Some(begun) => Ok(begun.op),
        }
    }

    fn try_begin(
        &self,
        plugin: &str,
        request: &Request,
        source: (&[(String, String)], &[u8]),
    ) -> Option<Begun> {
        let (verb, target) = match &request.env.call {
            Call::Add(target) => (Verb::Add, Some(target)),
            Call::Del(target) => (Verb::Del, Some(target)),
            Call::Gc => (Verb::Gc, None),
            Call::Check(_) | Call::Status => return None,
        };
        if !table::find(plugin).is_some_and(Plugin::needs_own_del) {
            return None;
        }
        let (env, config) = source;
        let mut inner = self.inner.borrow_mut();
        let op = self.table.state().next;
        let mut begin = Begin {
            op,
            at_ms: now_ms(),
            verb,
            plugin: plugin.to_owned(),
            network: request.config.name.clone(),
            interface: target.map(|target| target.id.clone().into()),
            pod: request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name)),
            env: env.to_vec(),
            config: String::from_utf8_lossy(config).into_owned(),
            repeated: false,
        };
        if verb == Verb::Add {
            begin.repeated = self.table.state().was_attached(&begin);
            inner.overtake(begin.subject());
        }
        let written = inner.write(&self.path, &self.boot, Entry::Begin(begin)).and_then(|()| inner.room());
        if written.is_err() && verb == Verb::Add {
            // It may be in the file, but without space for its end.
            self.table.state().open.remove(&op);
            inner.log = None;
        }
        let op = self.table.state().open.contains_key(&op).then_some(op);
        drop(inner);
        Some(Begun { op, written: self.noted(written) })
    }

    fn effect(&self, id: &EndpointId, effect: Effect) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        let Some(op) = self.table.state().current_operation(id) else { return Ok(()) };
        if !self.table.state().is_new(op, &effect, id) {
            return Ok(());
        }
        let written = inner.write(&self.path, &self.boot, Entry::Effect { op, at_ms: now_ms(), effect });
        drop(inner);
        self.noted(written)
    }

    /// Writes that an operation ended; code 0 is success. An ADD that succeeded and cannot be
    /// written stays open: it has to be undone.
    pub fn end(&self, op: u64, code: u32) -> Result<(), CniError> {
        let mut inner = self.inner.borrow_mut();
        let written = inner.write(&self.path, &self.boot, Entry::End { op, at_ms: now_ms(), code });
        let compacted = match &written {
            Ok(()) if inner.is_large() => inner.compact(&self.path, &self.boot),
            _ => Ok(()),
        };
        drop(inner);
        if let Err(error) = compacted {
            // The entry itself was written.
            self.metrics.write_failures.inc();
            tracing::warn!(target: LOG, path = %self.path.display(), %error, "the journal cannot be compacted and keeps growing");
        }
        self.noted(written).map_err(|error| unrecorded(&error))
    }

    /// Whether an operation is open, and no later one has replaced it.
    pub fn is_open(&self, op: u64) -> bool {
        self.table.state().open.contains_key(&op)
    }

    /// Whether a crash now would leave the open operation in the file. A DEL and a GC are carried
    /// out even if they cannot be written.
    pub fn is_recorded(&self, op: u64) -> bool {
        // The current file has every entry. There is none while entries are missing.
        self.inner.borrow().log.is_some() && self.is_open(op)
    }

    /// Number of open operations: in progress, or to be retried.
    pub fn open_count(&self) -> usize {
        self.table.state().open.len()
    }

    /// Whether an ADD of the same plugin, network and interface has begun since. Its wiring may
    /// exist even if it failed. An ADD of another network has addresses of its own, and its wiring
    /// does not belong to this operation.
    pub fn is_overtaken(&self, op: u64) -> bool {
        self.inner.borrow().overtaken.contains(&op)
    }

    /// An open operation.
    pub fn open_one(&self, op: u64) -> Option<OpenOperation> {
        self.table.state().open.get(&op).cloned()
    }

    /// Whether an ADD is a repetition.
    pub fn is_repeated(&self, op: u64) -> bool {
        self.table.state().open.get(&op).is_some_and(OpenOperation::was_attached)
    }

    /// The interfaces that operations later than `op` attached.
    pub fn made_after(&self, op: u64) -> Vec<EndpointId> {
        let state = self.table.state();
        state.listed().filter(|it| it.op > op).map(|it| it.subject.id.clone()).collect()
    }

    /// Whether the journal lists an interface as attached.
    pub fn has(&self, id: &EndpointId) -> bool {
        self.table.state().listed().any(|it| it.is_wired_as(id))
    }

    /// At start: compares the table with the kernel. Endpoints that no longer exist are removed,
    /// and interfaces that only the kernel has are added. `has_link` says whether an interface still
    /// has its link; `found` are the interfaces whose link is wired completely. One with none of the
    /// addresses that the table has was removed and attached again without an agent. The file of
    /// the history knows the pods of those that only the kernel has.
    pub fn fill(
        &self,
        has_link: impl Fn(&Wired) -> bool,
        found: Vec<russet_attach::Attachment>,
        history: &Path,
    ) {
        let (mut there, mut gone) = (BTreeSet::new(), Vec::new());
        let found: Vec<Wired> = found.into_iter().map(Wired::Routed).collect();
        let is_replaced = |wired: &Wired| {
            let now = found.iter().find(|it| it.id() == wired.id()).map(Wired::addresses);
            let before = wired.addresses();
            now.is_some_and(|now| !now.is_empty() && !before.iter().any(|address| now.contains(address)))
        };
        let is_there = |wired: &Wired| has_link(wired) && !is_replaced(wired);
        for Endpoint { subject, wired, .. } in self.table.state().listed() {
            match wired.as_deref().map(is_there) {
                Some(true) => _ = there.insert(subject.clone()),
                Some(false) => gone.push(subject.id.clone()),
                None => {}
            }
        }
        // Including what other plugins of its chain have set up.
        let stays = |it: &Endpoint| {
            it.wired.is_none() && !gone.iter().any(|id: &EndpointId| id.same_interface(&it.subject.id))
        };
        self.keep(|it| there.contains(&it.subject) || stays(it));
        there.iter().for_each(|subject| self.table.state().attach(subject));
        let unknown = |it: &Wired| self.table.get(it.id()).is_none();
        let unknown: Vec<Wired> = found.into_iter().filter(unknown).collect();
        if !unknown.is_empty() {
            let pods = pods_of(&unknown, history);
            let since_ms = now_ms();
            let unknown = unknown.into_iter().zip(pods);
            self.take_over(unknown.map(|(wired, pod)| Endpoint::found(wired, pod, since_ms)));
        }
    }

    /// Adds endpoints that were attached without the journal, as later than everything in it.
    fn take_over(&self, endpoints: impl Iterator<Item = Endpoint>) {
        let mut state = self.table.state();
        let op = state.next;
        state.next += 1;
        for endpoint in endpoints {
            let subject = endpoint.subject.clone();
            state.apply(Entry::Live(Endpoint { op, ..endpoint }));
            state.attach(&subject);
        }
        drop(state);
        self.write_anew();
    }

    /// Removes endpoints that no longer exist.
    fn keep(&self, is_there: impl Fn(&Endpoint) -> bool) {
        let mut state = self.table.state();
        let before = state.endpoints.len();
        state.endpoints.retain(|_, it| is_there(it));
        let changed = state.endpoints.len() != before;
        drop(state);
        if changed {
            self.write_anew();
        }
    }

    /// Writes a new file. A failure is counted, and the next entry tries again.
    fn write_anew(&self) {
        let written = self.inner.borrow_mut().anew(&self.path, &self.boot);
        let _ = self.noted(written);
    }

    /// Counts a failure, logs the first one of a series, and updates the gauges.
    fn noted(&self, written: io::Result<()>) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        if let Some(log) = &inner.log {
            self.metrics.bytes.set(i64::try_from(log.used_bytes()).unwrap_or(i64::MAX));
            self.metrics.records.set(i64::try_from(log.records).unwrap_or(i64::MAX));
        }
        match written {
            Ok(()) if inner.failure_logged => {
                inner.failure_logged = false;
                tracing::info!(target: LOG, path = %self.path.display(), "the journal can be written again");
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(source) => {
                self.metrics.write_failures.inc();
                if !std::mem::replace(&mut inner.failure_logged, true) {
                    tracing::warn!(target: LOG, path = %self.path.display(), error = %source, "the journal cannot be written: ADDs are refused, DELs are not");
                }
                Err(JournalError { path: self.path.clone(), source })
            }
        }
    }
}

fn log_tail(path: &Path, tail: Tail, records: usize) {
    let path = path.display();
    match tail {
        Tail::Clean => tracing::debug!(target: LOG, %path, records, "journal read"),
        Tail::Torn => {
            tracing::info!(target: LOG, %path, records, "the journal's last record is incomplete and was skipped")
        }
        Tail::Damaged => {
            tracing::warn!(target: LOG, %path, records, "the journal is damaged: records after the first invalid one are lost");
        }
    }
}

/// The pods of interfaces that plugins attached without an agent.
fn pods_of(interfaces: &[Wired], history: &Path) -> Vec<Option<String>> {
    let ids: Vec<&EndpointId> = interfaces.iter().map(Wired::id).collect();
    History::pods(history, &ids).unwrap_or_else(|error| {
        tracing::warn!(target: LOG, path = %history.display(), %error, "the pods of interfaces that were attached without an agent are not known");
        vec![None; ids.len()]
    })
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
    fn overtake(&mut self, subject: Option<EndpointPart>) {
        let state = self.table.state();
        let open = &state.open;
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
            self.table.state().apply(entry);
            return Ok(());
        }
        self.log = None;
        let mut state = self.table.state();
        let before = state.must_be_written(&entry).then(|| state.clone());
        state.apply(entry);
        drop(state);
        let written = self.anew(path, boot);
        if let (Err(_), Some(before)) = (&written, before) {
            *self.table.state() = before;
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
        let state = self.table.state();
        let header = Entry::Header { boot: boot.to_owned(), next: state.next, damaged: self.damaged };
        let entries = state.entries();
        drop(state);
        let log = Log::replace(path, [header].into_iter().chain(entries), room_bytes)?;
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
        self.table.state().open.values().map(of).sum()
    }

    fn is_large(&self) -> bool {
        let used = self.log.as_ref().map_or(0, Log::used_bytes);
        used > COMPACT_MIN_BYTES && used > 2 * self.first_bytes
    }
}

fn unrecorded(error: &JournalError) -> CniError {
    CniError::try_again_later("the request cannot be recorded", error)
}

impl InterfaceObserver for Journal {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        let effect = Effect::Wiring { wired: Box::new(wired.clone()), netns: netns.to_owned() };
        self.effect(wired.id(), effect).map_err(|error| unrecorded(&error))?;
        self.table.begin_wiring(wired.id());
        Ok(())
    }

    fn wired(&self, wired: &Wired, attached: &Attached) {
        // The failure is counted. The outcome, which matters more, is written together with this
        // entry, or not at all.
        let Attached { reused, bridge_mac, .. } = *attached;
        let _ = self.effect(wired.id(), Effect::Wired { reused, bridge_mac });
        self.table.state().wired(wired.id());
    }

    fn unwired(&self, wired: &Wired) {
        self.table.state().unwired(wired.id());
    }

    fn leaving(&self, id: &EndpointId) {
        let _ = self.effect(id, Effect::Leaving(id.clone().into()));
        self.table.leave(id);
    }
}

#[cfg(test)]
mod tests;
