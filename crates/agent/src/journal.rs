//! The journal of this boot: what each ADD, DEL and GC intends, what it changed, and how it ended. An agent that starts finds in it what the one before
//! had begun, and `recovery` rolls that forward or back.
//!
//! Written by `operations` and, through [`Recorder`], by the wiring; read at start and by `russet journal`. It lies under `/run` and dies with the boot, like
//! all that it tells of; the boot's ID in it says so where `/run` does not. IPAM plugins that somebody else's plugin calls, and `loopback`, are not in it:
//! their callers' DEL, or the repair of leaks, takes back what they leave.
//!
//! When it cannot be written (counted, and told once), an ADD is refused before it changes anything; a DEL and a GC are carried out all the same. Room for
//! the outcome of what has begun is taken beforehand.

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
use russet_plugins::Ledger;

pub use entry::{Begin, Effect, Interface, Live, Open, Subject, Verb};
pub(crate) use view::unfinished;
pub use view::{Attachment, Operation, View, read as view};

use crate::attachments::{Attachments, Record};
use crate::metrics::Metrics;
use entry::{Entry, State};
use frame::Tail;
use log::Log;

/// The journal. One writer at a time: the agent has the node's lock.
pub struct Journal {
    path: PathBuf,
    boot: String,
    metrics: Metrics,
    inner: RefCell<Inner>,
}

struct Inner {
    state: State,
    /// None while the file has to be written anew.
    log: Option<Log>,
    /// Used bytes when the file was new, or could not be made smaller.
    first_bytes: u64,
    /// The journal that was found was damaged, and not everything that it had open has been decided on.
    damaged: bool,
    /// Whether it was told that the file cannot be written.
    told: bool,
    /// Operations that were open when an ADD of the same interface began. Only in memory: whatever an agent finds open is done from the beginning.
    overtaken: BTreeSet<u64>,
}

/// What was there when the journal was opened.
#[derive(Debug)]
pub struct Found {
    /// What is not over.
    pub open: Vec<Open>,
    /// Nothing of this boot was there.
    pub fresh: bool,
    /// Something is missing: what seems to be under way may be over.
    pub damaged: bool,
}

/// A journal that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("write the journal {}: {source}", path.display())]
pub struct JournalError {
    path: PathBuf,
    source: io::Error,
}

/// An operation that has begun.
struct Begun {
    /// Its number; none where the journal cannot hold it at all.
    op: Option<u64>,
    /// Whether that is written.
    written: Result<(), JournalError>,
}

/// Writes what becomes of interfaces into the journal and the book.
pub struct Recorder {
    journal: Journal,
    attachments: Attachments,
}

/// A file is written anew when it has grown to twice what it began with, and to this at least.
const COMPACT_MIN_BYTES: u64 = 256 * 1024;
/// What an ADD or a GC may still write once it has begun: how its interface is wired, with a few dozen routes, or what it takes down, and how it ended.
const OPERATION_ROOM_BYTES: u64 = 8 * 1024;
/// What a DEL may: its interface, which has short names, and how it ended. A thousand may wait for a store that is away, and leave room for ADDs.
const DEL_ROOM_BYTES: u64 = 512;

// === impl Journal ===

impl Journal {
    /// Opens the journal at `path`; what is of another boot, or no journal, is replaced. One that cannot be written is tried again with each request.
    pub fn open(path: PathBuf, boot: String, metrics: Metrics) -> (Self, Found) {
        let contents = log::read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "the journal cannot be read; it begins anew");
            None
        });
        let contents = contents.filter(|contents| contents.boot == boot);
        let fresh = contents.is_none();
        let damaged = contents.as_ref().is_some_and(|contents| contents.tail == Tail::Damaged);
        let mut state = State::default();
        if let Some(contents) = contents {
            tell(&path, contents.tail, contents.entries.len());
            contents.entries.into_iter().for_each(|entry| state.apply(entry));
        }
        let open = state.open.values().cloned().collect();
        let inner =
            Inner { state, log: None, first_bytes: 0, damaged, told: false, overtaken: BTreeSet::new() };
        let journal = Self { path, boot, metrics, inner: RefCell::new(inner) };
        // Also without anything to write: the file is clean from now on, and its room is there.
        let written = journal.inner.borrow_mut().anew(&journal.path, &journal.boot);
        let _ = journal.noted(written);
        (journal, Found { open, fresh, damaged })
    }

    /// Everything that was found has been decided on. Until then the file says that it was damaged, whoever opens it.
    pub fn decided(&self) {
        let mut inner = self.inner.borrow_mut();
        if std::mem::take(&mut inner.damaged) {
            let written = inner.anew(&self.path, &self.boot);
            drop(inner);
            // It is counted, and tried again with the next entry.
            let _ = self.noted(written);
        }
    }

    /// Writes that an operation begins; nothing for what is not recorded. `repeated`: an ADD of what was complete before, whatever the journal knows of that.
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
        if !russet_plugins::leaves_its_own(plugin) {
            return None;
        }
        let (env, config) = source;
        let interface = target.map(Interface::of);
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
            // It may be in the file, without room for its end.
            inner.state.open.remove(&op);
            inner.log = None;
        }
        let op = inner.state.open.contains_key(&op).then_some(op);
        drop(inner);
        Some(Begun { op, written: self.noted(written) })
    }

    fn effect(&self, interface: &Interface, effect: Effect) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        let Some(op) = inner.state.at_work(interface) else { return Ok(()) };
        if !inner.state.changes(op, &effect) {
            return Ok(());
        }
        let written = inner.write(&self.path, &self.boot, Entry::Effect { op, at_ms: now_ms(), effect });
        drop(inner);
        self.noted(written)
    }

    /// Writes that an operation is over: with code 0, what it intended is so. An ADD that is done and cannot be written is not over: it is to be undone.
    pub fn end(&self, op: u64, code: u32) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        let written = inner.write(&self.path, &self.boot, Entry::End { op, at_ms: now_ms(), code });
        let compacted = match &written {
            Ok(()) if inner.is_large() => inner.compact(&self.path, &self.boot),
            _ => Ok(()),
        };
        drop(inner);
        if let Err(error) = compacted {
            // What was to be written is there all the same.
            self.metrics.journal_write_failures.inc();
            tracing::warn!(path = %self.path.display(), %error, "the journal cannot be made smaller; it grows on");
        }
        self.noted(written)
    }

    /// Whether an operation is not over, and no later one has settled its matter.
    pub fn is_open(&self, op: u64) -> bool {
        self.inner.borrow().state.open.contains_key(&op)
    }

    /// Whether an operation that is not over would be known after a crash: a DEL and a GC are carried out also where they cannot be written.
    pub fn is_recorded(&self, op: u64) -> bool {
        // A file that is written on has everything; there is none where something is missing.
        self.inner.borrow().log.is_some() && self.is_open(op)
    }

    /// How many operations are not over: under way, or tried again until they can be done.
    pub fn open_count(&self) -> usize {
        self.inner.borrow().state.open.len()
    }

    /// Whether an ADD of the same plugin, network and interface has begun since: what it wired may be there, also where it failed. Another network's has
    /// addresses of its own, and what it wired is none of this operation's.
    pub fn is_overtaken(&self, op: u64) -> bool {
        self.inner.borrow().overtaken.contains(&op)
    }

    /// An operation that is not over.
    pub fn open_one(&self, op: u64) -> Option<Open> {
        self.inner.borrow().state.open.get(&op).cloned()
    }

    /// The attachments that were made by later operations than `op`.
    pub fn made_after(&self, op: u64) -> Vec<Interface> {
        let inner = self.inner.borrow();
        let later = inner.state.live.values().filter(|live| live.op > op);
        later.map(|live| live.subject.interface.clone()).collect()
    }

    /// Whether the journal knows an interface as attached.
    pub fn has(&self, interface: &Interface) -> bool {
        let inner = self.inner.borrow();
        inner.state.live.values().any(|live| live.wired.is_some() && live.subject.interface == *interface)
    }

    /// What is attached, as the journal knows it.
    pub fn live(&self) -> Vec<Live> {
        self.inner.borrow().state.live.values().cloned().collect()
    }

    /// Takes attachments over that were made without it: later than everything that is in it.
    pub fn take_over(&self, lives: impl Iterator<Item = Live>) {
        let mut inner = self.inner.borrow_mut();
        let op = inner.state.next;
        inner.state.next += 1;
        lives.for_each(|live| inner.state.apply(Entry::Live(Live { op, ..live })));
        let written = inner.anew(&self.path, &self.boot);
        drop(inner);
        let _ = self.noted(written);
    }

    /// Strikes attachments out that went without it.
    fn keep(&self, is_there: impl Fn(&Live) -> bool) {
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

    /// Counts a failure, tells the first of a row, and keeps the gauges.
    fn noted(&self, written: io::Result<()>) -> Result<(), JournalError> {
        let mut inner = self.inner.borrow_mut();
        if let Some(log) = &inner.log {
            self.metrics.journal_bytes.set(i64::try_from(log.used_bytes()).unwrap_or(i64::MAX));
            self.metrics.journal_records.set(i64::try_from(log.records).unwrap_or(i64::MAX));
        }
        match written {
            Ok(()) if inner.told => {
                inner.told = false;
                tracing::info!(path = %self.path.display(), "the journal can be written again");
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(source) => {
                self.metrics.journal_write_failures.inc();
                if !std::mem::replace(&mut inner.told, true) {
                    tracing::warn!(path = %self.path.display(), error = %source, "the journal cannot be written: ADDs are refused, DELs are not");
                }
                Err(JournalError { path: self.path.clone(), source })
            }
        }
    }
}

fn tell(path: &Path, tail: Tail, records: usize) {
    let path = path.display();
    match tail {
        Tail::Clean => tracing::debug!(%path, records, "journal read"),
        Tail::Torn => tracing::info!(%path, records, "the journal's last record is torn, and left out"),
        Tail::Damaged => {
            tracing::warn!(%path, records, "the journal is damaged: what follows its first bad record is lost");
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
    fn overtake(&mut self, subject: Option<Subject>) {
        let open = &self.state.open;
        self.overtaken.retain(|op| open.contains_key(op));
        let of = |open: &&Open| subject.is_some() && open.begin.subject() == subject;
        self.overtaken.extend(open.values().filter(of).map(|open| open.begin.op));
    }

    /// Applies an entry and writes it. It counts from then on also where it could not be written: the next one that can is preceded by a new file. But an ADD
    /// begins, and is done, only where that is written.
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

    /// Writes the file anew, with what counts alone. Where that fails, the one that is there lacks something: the next entry is preceded by a new file.
    fn anew(&mut self, path: &Path, boot: &str) -> io::Result<()> {
        let replaced = self.replace(path, boot, 0);
        if replaced.is_err() {
            self.log = None;
        }
        replaced?;
        // What has begun may not come to its end in the file then; without the file it certainly would not.
        let _ = self.room();
        Ok(())
    }

    /// The same for a file that is good, but large: the new one has to have the room that the old one has. One that could not be made smaller is let grow to
    /// twice its size before that is tried again.
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

    /// Room for what all that has begun may still write.
    fn room(&mut self) -> io::Result<()> {
        let bytes = self.room_bytes();
        self.log.as_mut().map_or(Ok(()), |log| log.room(bytes))
    }

    fn room_bytes(&self) -> u64 {
        let of = |open: &Open| match open.begin.verb {
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

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The book.
    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// At start: fills the book with what the journal knows and the kernel still has, and both with what the kernel has besides; what went without the agent
    /// goes from the journal. `has_link` tells whether an interface still has its link, `wired` are those whose link is completely wired.
    pub fn fill(&self, has_link: impl Fn(&Wired) -> bool, wired: Vec<russet_attach::Attachment>) {
        let mut gone = BTreeSet::new();
        for live in self.journal.live() {
            if live.wired.as_deref().is_some_and(|wired| !has_link(wired)) {
                gone.insert(live.subject.interface);
            }
        }
        // With what other plugins of its chain had made of it.
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
            self.attachments.of(network, container, ifname).is_none()
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

    /// An operation begins; none for what is not recorded. An ADD that cannot be recorded is not begun.
    pub fn begin(
        &self,
        plugin: &str,
        request: &Request,
        source: (&[(String, String)], &[u8]),
    ) -> Result<Option<u64>, CniError> {
        let interface = request.env.target().map(Interface::of);
        let wires = russet_plugins::wires(plugin);
        let attached = interface.is_some_and(|it| wires && self.attachments.has(&it));
        match self.journal.begin(plugin, request, source, attached) {
            None => Ok(None),
            Some(Begun { written: Err(error), .. }) if matches!(request.env.call, Call::Add(_)) => {
                Err(unrecorded(&error))
            }
            // A DEL and a GC are carried out whether that is written or not, and end.
            Some(begun) => Ok(begun.op),
        }
    }

    /// It is over.
    pub fn end(&self, op: Option<u64>, code: u32) -> Result<(), CniError> {
        op.map_or(Ok(()), |op| self.journal.end(op, code)).map_err(|error| unrecorded(&error))
    }

    /// Whether an ADD is a repeated one.
    pub fn is_repeated(&self, op: Option<u64>) -> bool {
        let inner = self.journal.inner.borrow();
        op.and_then(|op| inner.state.open.get(&op)).is_some_and(Open::was_attached)
    }
}

fn found(attachment: Wired, since: SystemTime) -> Live {
    let interface = Interface::of_wired(&attachment);
    let calico = matches!(&attachment, Wired::Routed(it) if it.dialect == russet_attach::Dialect::Calico);
    let plugin = if calico { "calico" } else { "russet" }.to_owned();
    let subject = Subject { network: attachment.network().clone(), interface, plugin };
    Live {
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

impl Ledger for Recorder {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        let interface = Interface::of_wired(wired);
        let effect = Effect::Wiring { wired: Box::new(wired.clone()), netns: netns.to_owned() };
        self.journal.effect(&interface, effect).map_err(|error| unrecorded(&error))?;
        self.attachments.wiring(wired, netns)
    }

    fn wired(&self, wired: &Wired, attached: &Attached) {
        let interface = Interface::of_wired(wired);
        // It is counted. The outcome, which is what counts, is written with it, or not at all.
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
    /// The one that a request is about.
    pub fn of(target: &russet_cni_spec::Target) -> Self {
        Self { container: target.container_id.clone(), ifname: target.ifname.clone() }
    }

    /// The one that is wired.
    pub fn of_wired(wired: &Wired) -> Self {
        Self { container: wired.container().clone(), ifname: wired.ifname().clone() }
    }
}

#[cfg(test)]
mod tests;
