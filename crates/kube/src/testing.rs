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
mod merge;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::Value;
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
    /// The body of the next answers, replacing the real one.
    pub(crate) body_instead: Option<Bytes>,
    /// Verb and resource, as `patch pods/status`.
    pub(crate) forbidden: Vec<String>,
    /// Watches of an earlier generation end.
    pub(crate) generation: u64,
    /// Watches that have sent fewer bookmarks send one.
    pub(crate) bookmarks: u64,
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
            body_instead: None,
            forbidden: Vec::new(),
            generation: 0,
            bookmarks: 0,
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

    /// Creates or replaces an object: JSON with `kind` (`Node`, `Namespace` or `Pod`) and `metadata.name`. It gets a new resource version, and
    /// a uid if it is new and has none.
    pub fn put(&self, object: Value) {
        self.change(|state| state.cluster.put(object));
    }

    /// Removes an object, as `("Pod", "shop", "web-0")`; the namespace of a node is empty.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| state.cluster.delete(kind, namespace, name));
    }

    /// An object as it is stored.
    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state().cluster.get(kind, namespace, name).cloned()
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

    /// Lets the next requests fail with this HTTP status.
    pub fn fail_next(&self, count: usize, code: u16) {
        self.state().failing = (count, code);
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

// === impl Shared ===

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
