//! A server with the API's REST shapes over HTTP or HTTPS, for tests: bearer tokens, `Status`
//! objects, resource versions, patches of status, and watches with bookmarks and 410. It runs on a
//! thread of its own, so that whole programs can be tested against it, too.

#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "a server for tests: what it does not expect fails the test"
)]

mod answers;
mod cluster;
mod http;
mod kinds;
mod merge;
mod query;
mod select;
mod validate;
mod watches;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::{Overrides, Secret, Source};
use cluster::Cluster;
pub use http::Tls;

/// The token that the server accepts unless a test sets another one.
pub const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.test";

/// Its default address.
const ANY_PORT: &str = "127.0.0.1:0";

/// A running server. It ends when this is dropped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    scheme: &'static str,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `GET`, `PATCH`, ...
    pub method: String,
    /// Path and query.
    pub path: String,
    /// `Content-Type`, or empty.
    pub content_type: String,
    pub body: String,
    /// When it arrived.
    pub at: Instant,
}

/// What happens to the connection of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: a later write is meant.
    None,
    /// It ends without an answer after the request was executed.
    Unanswered,
    /// It ends before the request was executed.
    Unexecuted,
}

/// State shared by the server's threads and the test.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// Incremented with every change of the state, for watchers.
    pub(crate) changed: watch::Sender<u64>,
}

/// Everything that a test can read and set.
pub(crate) struct State {
    pub(crate) cluster: Cluster,
    pub(crate) token: String,
    pub(crate) seen: Vec<Seen>,
    pub(crate) connections: usize,
    pub(crate) delay: Duration,
    /// How many further requests fail, and how.
    pub(crate) failing: (usize, u16),
    /// What happens to the connections of the next writes, which end without an answer.
    pub(crate) faults: VecDeque<Fault>,
    /// The groups of custom resources that exist.
    pub(crate) groups: Vec<String>,
    /// Plurals and members of `spec` that the schemas lack.
    pub(crate) lacking: Vec<(String, String)>,
    /// Whether watches may begin with a streamed list.
    pub(crate) watch_lists: bool,
    /// The body of the next answers, replacing the real one.
    pub(crate) body_instead: Option<Bytes>,
    /// The revision of the cache, which answers lists at revision 0; none: it is up to date.
    pub(crate) cache: Option<u64>,
    /// A resource whose next replacements and patches come after those of another writer, and their number.
    pub(crate) overtaken: (String, usize),
    /// How many more writes are executed before the server falls silent.
    pub(crate) writes_left: Option<usize>,
    /// Plurals whose resource definitions are missing.
    pub(crate) undefined: Vec<String>,
    /// Verb and resource, as `patch pods/status`.
    pub(crate) forbidden: Vec<String>,
    /// Watches of an earlier generation end.
    pub(crate) generation: u64,
    /// Watches that have sent fewer bookmarks send one.
    pub(crate) bookmarks: u64,
    /// Lines that the test sends to watches.
    pub(crate) lines: Vec<String>,
    /// The `Date` of its answers; none: the true one.
    pub(crate) date: Option<String>,
    /// What the client's account may do, for reviews.
    pub(crate) rules: Value,
}

// === impl Server ===

impl Server {
    /// Starts a server on a free port of 127.0.0.1.
    pub fn start() -> Self {
        Self::serve(None, ANY_PORT)
    }

    /// Starts a server at an address of another network, in whose namespace the caller's thread is.
    pub fn start_at(address: &str) -> Self {
        Self::serve(None, address)
    }

    /// Starts a server with TLS.
    pub fn start_tls(tls: Tls) -> Self {
        Self::serve(Some(tls), ANY_PORT)
    }

    fn serve(tls: Option<Tls>, at: &str) -> Self {
        let state = State {
            cluster: Cluster::default(),
            token: TOKEN.to_owned(),
            seen: Vec::new(),
            connections: 0,
            delay: Duration::ZERO,
            failing: (0, 0),
            faults: VecDeque::new(),
            groups: Vec::new(),
            lacking: Vec::new(),
            watch_lists: true,
            body_instead: None,
            cache: None,
            overtaken: (String::new(), 0),
            writes_left: None,
            undefined: Vec::new(),
            forbidden: Vec::new(),
            generation: 0,
            bookmarks: 0,
            lines: Vec::new(),
            date: None,
            rules: json!({ "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }] }),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: watch::channel(0).0 });
        let bound = TcpListener::bind(at).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.unwrap_or_else(|error| panic!("listen on {at}: {error}"));
        let (stop, stopped) = oneshot::channel();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let served = shared.clone();
        let thread = std::thread::spawn(move || http::run(listener, tls, served, stopped));
        Self { shared, address, scheme, stop: Some(stop), thread: Some(thread) }
    }

    /// Its address: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// A source with the right token for clients.
    pub fn source(&self) -> Source {
        let token = Some(Secret::new(self.state().token.clone()));
        Source::Direct { overrides: Overrides { server: Some(self.url()), token, ..Overrides::default() } }
    }

    /// A kubeconfig for it, like that of Calico's installer.
    pub fn kubeconfig(&self) -> String {
        let token = self.state().token.clone();
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: {}\nusers:\n- name: calico\n  user:\n    \
             token: {token:?}\ncontexts:\n- name: calico-context\n  context:\n    cluster: local\n    user: calico\n\
             current-context: calico-context\n",
            self.url()
        )
    }

    pub fn write_kubeconfig(&self, path: &Path) {
        let written = std::fs::write(path, self.kubeconfig());
        written.unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }

    /// Creates or replaces an object: JSON with `kind`, `metadata.name` and, for Calico's resources,
    /// `apiVersion`. It gets a new resource version, and a uid if it is new and has none.
    pub fn put(&self, object: Value) {
        self.change(|state| state.cluster.put(object));
    }

    /// Removes an object, as `("Pod", "shop", "web-0")`; the namespace of a node is empty. A custom
    /// resource is named with its group: `IPPool.crd.projectcalico.org`.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| state.cluster.delete(kind, namespace, name));
    }

    /// An object as it is stored.
    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state().cluster.get(kind, namespace, name).cloned()
    }

    /// All objects of a kind.
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        self.state().cluster.all(kind).cloned().collect()
    }

    pub fn annotation(&self, kind: &str, namespace: &str, name: &str, key: &str) -> Option<String> {
        let object = self.object(kind, namespace, name)?;
        object["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    /// Accepts only this token from now on.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut self.state().token);
    }

    /// Forbids this from now on, as `patch pods/status` or `get namespaces`.
    pub fn forbid(&self, verb_and_resource: &str) {
        self.state().forbidden.push(verb_and_resource.to_owned());
    }

    /// Answers a `SelfSubjectRulesReview` with this `status`, whatever is forbidden.
    pub fn grant(&self, status: Value) {
        self.state().rules = status;
    }

    /// Answers with this text in the header `Date`.
    pub fn set_date(&self, text: &str) {
        self.state().date = Some(text.to_owned());
    }

    /// Lets the next requests fail with this HTTP status.
    pub fn fail_next(&self, count: usize, code: u16) {
        self.state().failing = (count, code);
    }

    /// What happens to the connection of the next write that has no fault yet.
    pub fn lose_next_write(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Serves the resources of a group: Calico's, `crd.projectcalico.org` or `projectcalico.org`,
    /// OpenShift's, `network.openshift.io`, or `policy.networking.k8s.io`.
    pub fn install(&self, group: &str) {
        self.state().groups.push(group.to_owned());
    }

    /// Stops serving the resources of a group; their objects are gone.
    pub fn uninstall(&self, group: &str) {
        self.change(|state| {
            state.groups.retain(|served| served != group);
            state.cluster.forget_group(group);
        });
    }

    /// Drops this member of `spec` from objects that are written, as a server with older resource
    /// definitions does.
    pub fn lack(&self, plural: &str, member: &str) {
        self.state().lacking.push((plural.to_owned(), member.to_owned()));
    }

    /// Removes the definition of a resource; its objects are gone. Of `plural/status` only the subresource is removed.
    pub fn undefine(&self, plural: &str) {
        self.change(|state| {
            state.undefined.push(plural.to_owned());
            state.cluster.forget_plural(plural);
        });
    }

    /// Defines it again.
    pub fn define(&self, plural: &str) {
        self.state().undefined.retain(|other| other != plural);
    }

    /// Answers lists at revision 0 with the state of now, whatever happens later: the cache of this
    /// server no longer follows etcd.
    pub fn freeze_cache(&self) {
        let mut state = self.state();
        state.cache = Some(state.cluster.revision());
    }

    /// Lets another writer change the objects of a resource right before each of the next replacements and patches.
    pub fn overtake_next(&self, plural: &str, count: usize) {
        self.state().overtaken = (plural.to_owned(), count);
    }

    /// Executes this many more writes, and answers nothing after the last of them: for its client, it is
    /// as if that had died there.
    pub fn silence_after_writes(&self, count: usize) {
        self.state().writes_left = Some(count);
    }

    /// How many of these writes were not sent yet.
    pub fn writes_left(&self) -> Option<usize> {
        self.state().writes_left
    }

    /// Serves again. Requests that came meanwhile are not executed.
    pub fn speak(&self) {
        self.change(|state| state.writes_left = None);
    }

    /// Refuses watches that begin with a streamed list, as a server with an old etcd does.
    pub fn refuse_watch_lists(&self) {
        self.state().watch_lists = false;
    }

    /// Continues at a lower revision, as after a restore of etcd's backup.
    pub fn restore(&self, revision: u64) {
        self.change(|state| state.cluster.restore(revision));
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.state().cluster.revision()
    }

    /// Gives the next successful answers this body.
    pub fn answer_with(&self, body: impl Into<Bytes>) {
        self.state().body_instead = Some(body.into());
    }

    /// Delays the handling of every request.
    pub fn delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Forgets all past events: requests for an older resource version get 410.
    pub fn forget_history(&self) {
        self.change(|state| state.cluster.forget_history());
    }

    /// Ends all open watches after their pending events.
    pub fn end_watches(&self) {
        self.change(|state| state.generation += 1);
    }

    /// Sends a bookmark to all open watches.
    pub fn bookmark(&self) {
        self.change(|state| state.bookmarks += 1);
    }

    /// Sends a line to all open watches, whatever it is.
    pub fn send_line(&self, line: &str) {
        self.send_text(&format!("{line}\n"));
    }

    /// Sends a part of a line to all open watches.
    pub fn send_text(&self, text: &str) {
        self.change(|state| state.lines.push(text.to_owned()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.send_modify(|count| *count += 1);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed, and the test fails because answers are missing.
            let _ = thread.join();
        }
    }
}

// === impl State ===

impl State {
    /// Whether the resources of this group exist. Those of Kubernetes' own groups always do.
    pub(crate) fn serves(&self, group: &str) -> bool {
        kinds::Kind::is_built_in(group) || self.groups.iter().any(|served| served == group)
    }

    /// Whether a resource is defined.
    pub(crate) fn defines(&self, kind: &kinds::Kind) -> bool {
        self.serves(kind.group) && !self.undefined.iter().any(|plural| plural == kind.plural)
    }

    /// Whether the definition of a resource lacks this subresource of it.
    pub(crate) fn lacks_subresource(&self, resource: &str) -> bool {
        self.undefined.iter().any(|undefined| undefined == resource)
    }

    /// What happens to the connection of the request that has just arrived.
    pub(crate) fn next_fault(&mut self, is_write: bool) -> Option<Fault> {
        if is_write { self.faults.pop_front() } else { None }
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
