//! Recovery of operations that an earlier agent had begun and not ended: a DEL and a GC are rolled
//! forward, an ADD is rolled back by the DEL of the same request, unless its attachment was
//! complete before. Called at start, before requests are served. What cannot be done then (the
//! store is away) is retried in the background, with the locks of its container, until a later
//! operation replaces it. ADDs that could not be undone after their deadline are handled here, too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::EndpointId;
use russet_attach::Wired;
use russet_cni_spec::{Call, CniError, Request, code};
use russet_journal::{Journal, JournalContents, OpenOperation, Verb};
use russet_plugins::Node;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, spawn_local};

use crate::operations::{Operations, Remainder};

/// How long requests wait for recovery at start; what takes longer continues beside them.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause after a failed attempt, doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause, short enough to use a store soon after it is back.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Attempts that begin because the store is back are spread over this time.
const CONTACT_SPREAD: Duration = Duration::from_millis(500);
/// The keys of a GC's request for valid attachments (cni-runtime.md section 1.5).
const VALID_KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// The interfaces that Russet has in the kernel.
#[derive(Debug, Default)]
pub struct KernelState {
    /// Interfaces that are wired completely; none if that cannot be determined.
    wired: Option<BTreeSet<EndpointId>>,
}

/// An operation to finish or undo, with as many attempts as it takes.
struct Work {
    op: u64,
    plugin: String,
    /// The request that does it.
    request: Request,
    left: Remainder,
    /// The label of the metric.
    kind: &'static str,
}

/// What to do with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// Roll it back.
    Undo,
    /// Roll it forward.
    Finish,
    /// Keep its result, and end it with this code.
    Keep(u32),
}

// === impl Decision ===

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undo => f.write_str("undo it"),
            Self::Finish => f.write_str("finish it"),
            Self::Keep(0) => f.write_str("keep its result"),
            Self::Keep(code) => write!(f, "keep its result, with code {code}"),
        }
    }
}

// === impl KernelState ===

impl KernelState {
    /// Reads the kernel, and compares the endpoint table with it.
    pub async fn look(node: &Node, journal: &Journal, history: &Path) -> Self {
        let (linked, wired) = match (node.host.wiring.list().await, node.host.wiring.adopt().await) {
            (Ok(linked), Ok(wired)) => (linked, wired),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the attachments of this node cannot be read");
                return Self::default();
            }
        };
        let complete = wired.iter().filter_map(|it| it.owner.id().cloned()).collect();
        // Compared as text, because an alias may have no space for the names themselves.
        let owners: BTreeSet<String> =
            linked.iter().filter(|link| !link.doomed).map(|link| link.owner.to_string()).collect();
        let has_link = |wired: &Wired| owners.contains(&wired.owner().to_string());
        let found = wired.into_iter().filter_map(|it| it.attachment).collect();
        journal.fill(has_link, found, history);
        Self { wired: Some(complete) }
    }

    /// Whether an interface is wired completely, or may be.
    fn may_run(&self, id: &EndpointId) -> bool {
        self.wired.as_ref().is_none_or(|wired| wired.iter().any(|it| it.same_interface(id)))
    }
}

fn decide(open: &OpenOperation, damaged: bool, kernel: &KernelState) -> Decision {
    // The end of this operation may be among the records that a damaged journal has lost: running
    // pods are not changed because of it.
    let runs = open.begin.id().is_some_and(|id| kernel.may_run(&id));
    match open.begin.verb {
        Verb::Add if open.was_attached() => Decision::Keep(code::TRY_AGAIN_LATER),
        Verb::Add if damaged && runs => Decision::Keep(0),
        Verb::Add => Decision::Undo,
        Verb::Del if damaged && runs => Decision::Keep(code::TRY_AGAIN_LATER),
        // Only the kernel knows what was attached since then without the agent.
        Verb::Gc if damaged || kernel.wired.is_none() => Decision::Keep(code::TRY_AGAIN_LATER),
        Verb::Del | Verb::Gc => Decision::Finish,
    }
}

/// Rolls everything forward or back, as far as that can be done soon.
pub async fn run(operations: &Rc<Operations>, found: JournalContents, kernel: &KernelState) {
    let mut under_way = JoinSet::new();
    for open in found.open {
        let (op, verb) = (open.begin.op, open.begin.verb);
        let decision = decide(&open, found.damaged, kernel);
        tracing::info!(op, %verb, plugin = open.begin.plugin, network = %open.begin.network, container = container(&open), %decision, "an operation of an earlier agent was not ended");
        if let Decision::Keep(code) = decision {
            close(operations, op, code, "kept");
            continue;
        }
        let valid = if verb == Verb::Gc { newer(&open, operations.journal(), kernel) } else { Vec::new() };
        match request(&open, &valid) {
            Ok(request) => {
                let work = Work {
                    op,
                    plugin: open.begin.plugin,
                    request,
                    left: Remainder::Everything,
                    kind: kind(verb),
                };
                under_way.spawn_local(persist(Rc::clone(operations), work));
            }
            Err(error) => {
                tracing::warn!(op, %error, "an operation in the journal cannot be carried out; the leak repair releases its addresses");
                close(operations, op, error.code, "unreadable");
            }
        }
    }
    // Not earlier: an agent that has to decide again must know that the journal is damaged.
    operations.journal().decided();
    let all = async { while under_way.join_next().await.is_some() {} };
    if tokio::time::timeout(START_TIMEOUT, all).await.is_err() {
        tracing::warn!(
            "not everything could be rolled forward or back yet; that goes on beside new requests"
        );
    }
    under_way.detach_all();
}

/// Operations that could not be undone at once. Each is listed once, so that there are no more than
/// the journal has open.
#[derive(Default)]
struct RemainderQueue {
    ops: RefCell<BTreeMap<u64, Remainder>>,
    added: Notify,
}

// === impl RemainderQueue ===

impl RemainderQueue {
    fn add(&self, op: u64, left: Remainder) {
        self.ops.borrow_mut().insert(op, left);
        self.added.notify_one();
    }

    async fn next(&self) -> (u64, Remainder) {
        loop {
            let first = self.ops.borrow_mut().pop_first();
            match first {
                Some(next) => return next,
                None => self.added.notified().await,
            }
        }
    }
}

/// Handles operations that cannot be undone at once, from now on.
pub async fn serve(operations: Rc<Operations>) {
    let remainders = Rc::new(RemainderQueue::default());
    let left_by = Rc::clone(&remainders);
    operations.set_remainder_handler(Box::new(move |op, left| left_by.add(op, left)));
    loop {
        let (op, left) = remainders.next().await;
        let Some(open) = operations.journal().open_one(op) else { continue };
        match request(&open, &[]) {
            Ok(request) => {
                let work = Work { op, plugin: open.begin.plugin, request, left, kind: kind(open.begin.verb) };
                spawn_local(persist(Rc::clone(&operations), work));
            }
            Err(error) => tracing::warn!(op, %error, "an ADD could not be undone; its DEL will"),
        }
    }
}

fn kind(verb: Verb) -> &'static str {
    match verb {
        Verb::Add => "add_undone",
        Verb::Del => "del_finished",
        Verb::Gc => "gc_finished",
    }
}

fn container(open: &OpenOperation) -> &str {
    open.begin.interface.as_ref().map_or("", |it| it.container.as_str())
}

/// Retries one operation until it is done.
async fn persist(operations: Rc<Operations>, work: Work) {
    let Work { op, plugin, request, left, kind } = work;
    let mut pause = PAUSE_MIN;
    let mut contacts = operations.contacts();
    loop {
        contacts.iter_mut().for_each(watch::Receiver::mark_unchanged);
        match operations.finish(op, &plugin, &request, left).await {
            Ok(true) => return close(&operations, op, ended(kind), kind),
            Ok(false) => return,
            Err(error) if pause == PAUSE_MIN => {
                tracing::warn!(op, kind, %error, "the operation cannot be ended now and is retried")
            }
            Err(error) => tracing::debug!(op, kind, %error, "the operation still cannot be ended"),
        }
        pause = match is_back(&mut contacts, pause).await {
            true => PAUSE_MIN,
            false => (pause * 2).min(PAUSE_MAX),
        };
    }
}

/// Waits for a pause, or until the store answers again; returns whether it does.
async fn is_back(contacts: &mut Option<watch::Receiver<u64>>, pause: Duration) -> bool {
    let changed = async {
        if let Some(contacts) = contacts
            && contacts.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    };
    let is_back = tokio::time::timeout(pause, changed).await.is_ok();
    if is_back {
        let most = u64::try_from(CONTACT_SPREAD.as_millis()).unwrap_or(1);
        tokio::time::sleep(Duration::from_millis(russet_sync::random() % most)).await;
    }
    is_back
}

/// An ADD that was undone has failed.
fn ended(kind: &str) -> u32 {
    if kind == "add_undone" { code::TRY_AGAIN_LATER } else { 0 }
}

fn close(operations: &Operations, op: u64, code: u32, kind: &str) {
    operations.metrics().recovered(kind);
    // The failure is counted; the next start finds the operation again.
    let _ = operations.journal().end(op, code);
}

/// Attachments that are newer than a GC: they are not in its runtime's list of valid ones.
fn newer(gc: &OpenOperation, journal: &Journal, kernel: &KernelState) -> Vec<EndpointId> {
    let mut newer = journal.made_after(gc.begin.op);
    let unknown = |it: &&EndpointId| !journal.has(it) && !gc.takes_down(it);
    newer.extend(kernel.wired.iter().flatten().filter(unknown).cloned());
    newer
}

/// The request that finishes or undoes an operation. For a GC, `valid` is kept besides the
/// attachments of its own list.
fn request(open: &OpenOperation, valid: &[EndpointId]) -> Result<Request, CniError> {
    let mut config = open.begin.config.clone();
    if open.begin.verb == Verb::Gc {
        config = widened(&config, valid)?;
    }
    let verb = if open.begin.verb == Verb::Gc { "GC" } else { "DEL" };
    let mut env = open.begin.env.clone();
    env.retain(|(key, _)| key != "CNI_COMMAND");
    env.push(("CNI_COMMAND".to_owned(), verb.to_owned()));
    let request = Request::new(env, config.into_bytes())?;
    match (&request.env.call, open.begin.verb) {
        (Call::Del(_), Verb::Add | Verb::Del) | (Call::Gc, Verb::Gc) => Ok(request),
        _ => Err(CniError::internal("the journal's request has another verb", verb)),
    }
}

/// A GC's configuration with more valid attachments.
fn widened(config: &str, more: &[EndpointId]) -> Result<String, CniError> {
    let unreadable = |error| CniError::decoding("the journal's configuration cannot be decoded", error);
    let mut config: Map<String, Value> = serde_json::from_str(config).map_err(unreadable)?;
    for key in VALID_KEYS {
        if let Some(Value::Array(valid)) = config.get_mut(key) {
            valid.extend(more.iter().map(|it| json!({ "containerID": it.container, "ifname": it.ifname })));
        }
    }
    Ok(Value::Object(config).to_string())
}

#[cfg(test)]
mod tests;
