//! The test server's HTTP: connections, authentication, routes.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;

use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::answers::Answer;
use super::{Seen, Shared, State};

type Body = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

/// The certificates of a server, PEM.
pub struct Tls {
    /// Its own.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// If set, only clients with a certificate of this authority are accepted, and they need no
    /// token.
    pub client_authority: Option<Vec<u8>>,
}

/// The parsed path of a request.
struct Route {
    kind: &'static str,
    /// `pods`, `pods/status`, ...
    resource: String,
    namespace: String,
    /// Empty for a list.
    name: String,
}

/// An open watch.
struct Follower {
    /// The revision up to which events have been sent.
    known: u64,
    generation: u64,
    /// Number of bookmarks requested so far.
    marked: u64,
    /// Whether the client wants bookmarks.
    bookmarks: bool,
}

/// The server's thread.
pub(super) fn run(
    listener: TcpListener,
    tls: Option<Tls>,
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("start a runtime: {error}"));
    let by_certificate = tls.as_ref().is_some_and(|tls| tls.client_authority.is_some());
    let acceptor = tls.map(acceptor);
    runtime.block_on(async {
        tokio::select! {
            () = accept(listener, acceptor, by_certificate, shared) => {}
            _ = stopped => {}
        }
    });
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    by_certificate: bool,
    shared: Arc<Shared>,
) {
    let listener = tokio::net::TcpListener::from_std(listener);
    let listener = listener.unwrap_or_else(|error| panic!("listen: {error}"));
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        shared.lock().connections += 1;
        let (shared, acceptor) = (shared.clone(), acceptor.clone());
        let service = service_fn(move |request| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(answer(&shared, request, by_certificate).await) }
        });
        // A client that hangs up is ignored.
        tokio::spawn(async move {
            match acceptor {
                None => {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                }
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    }
                }
            }
        });
    }
}

fn acceptor(tls: Tls) -> TlsAcceptor {
    let certificates = |pem: &[u8]| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem)
            .map(|found| found.unwrap_or_else(|error| panic!("{error}")))
            .collect()
    };
    let built = || {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let key = PrivateKeyDer::from_pem_slice(&tls.key)?;
        let builder = match &tls.client_authority {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(pem));
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        Ok::<_, Box<dyn std::error::Error>>(builder.with_single_cert(certificates(&tls.certificate), key)?)
    };
    TlsAcceptor::from(Arc::new(built().unwrap_or_else(|error| panic!("TLS of the test server: {error}"))))
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>, by_certificate: bool) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text =
        |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let seen = Seen {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        content_type: text(header::CONTENT_TYPE),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let (delay, allowed) = {
        let mut state = shared.lock();
        state.seen.push(seen.clone());
        (state.delay, by_certificate || text(header::AUTHORIZATION) == format!("Bearer {}", state.token))
    };
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if !allowed {
        return whole(Answer::unauthorized());
    }
    match dispatch(shared, &seen) {
        Ok(response) => response,
        Err(answer) => whole(answer),
    }
}

fn dispatch(shared: &Arc<Shared>, seen: &Seen) -> Result<Response<Body>, Answer> {
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| unescape(value)).next()
    };
    let route = Route::of(path).ok_or_else(Answer::no_page)?;
    let verb = match (seen.method.as_str(), route.name.is_empty()) {
        ("GET", true) if parameter("watch").as_deref() == Some("true") => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("PATCH", false) => "patch",
        _ => return Err(Answer::bad_request("the test server does not know this verb")),
    };
    let mut state = shared.lock();
    if state.failing.0 > 0 {
        state.failing.0 -= 1;
        return Err(Answer::failure(state.failing.1));
    }
    // The permissions of the accounts of Calico's plugin and of flannel (calico-cni.md section 1.9,
    // flannel.md section 5).
    let by_role = verb != "patch" || route.resource.ends_with("/status");
    let this = format!("{verb} {}", route.resource);
    if !by_role || state.forbidden.contains(&this) {
        return Err(Answer::forbidden(verb, &route.resource, &route.namespace, &route.name));
    }
    let id = (route.kind, route.namespace.as_str(), route.name.as_str());
    let object = match verb {
        "watch" => {
            drop(state);
            return watch(shared, parameter("resourceVersion"), parameter("allowWatchBookmarks"));
        }
        "list" => list(&state.cluster, &route, parameter)?,
        "get" => state.cluster.get(id.0, id.1, id.2).cloned().ok_or_else(|| Answer::not_found(id.0, id.2))?,
        _ => patch(&mut state.cluster, id, seen)?,
    };
    let mut answer = Answer::object(&object);
    if let Some(body) = state.body_instead.take() {
        answer.body = body;
    }
    drop(state);
    if verb == "patch" {
        shared.changed.send_modify(|count| *count += 1);
    }
    Ok(whole(answer))
}

fn patch(cluster: &mut super::Cluster, id: (&str, &str, &str), seen: &Seen) -> Result<Value, Answer> {
    let strategic = match seen.content_type.as_str() {
        "application/strategic-merge-patch+json" => true,
        "application/merge-patch+json" => false,
        _ => return Err(Answer::unsupported_media_type()),
    };
    let patch: Value =
        serde_json::from_str(&seen.body).map_err(|error| Answer::bad_request(&error.to_string()))?;
    cluster.patch_status(id, &patch, strategic)
}

fn list(
    cluster: &super::Cluster,
    route: &Route,
    parameter: impl Fn(&str) -> Option<String>,
) -> Result<Value, Answer> {
    let mut items: Vec<&Value> = cluster.list(route.kind);
    // A list at revision 0 comes from the cache, which has no pages.
    let paged = parameter("resourceVersion").as_deref() != Some("0");
    let limit = parameter("limit").and_then(|limit| limit.parse().ok()).filter(|_| paged);
    if let Some(token) = parameter("continue") {
        let (revision, last) = token.split_once('/').unwrap_or(("0", ""));
        if cluster.events_after(revision.parse().unwrap_or(0)).is_none() {
            return Err(Answer::expired(
                "The provided continue parameter is too old to display a consistent list result.",
            ));
        }
        items.retain(|item| item["metadata"]["name"].as_str() > Some(last));
    }
    let mut metadata = json!({ "resourceVersion": cluster.revision().to_string() });
    if let Some(limit) = limit.filter(|limit| *limit < items.len()) {
        items.truncate(limit);
        let last = items.last().and_then(|item| item["metadata"]["name"].as_str()).unwrap_or_default();
        metadata["continue"] = json!(format!("{}/{last}", cluster.revision()));
    }
    Ok(
        json!({ "kind": format!("{}List", route.kind), "apiVersion": "v1", "metadata": metadata, "items": items }),
    )
}

fn watch(
    shared: &Arc<Shared>,
    revision: Option<String>,
    bookmarks: Option<String>,
) -> Result<Response<Body>, Answer> {
    let revision = revision.unwrap_or_default().parse();
    let known = revision.map_err(|_| Answer::bad_request("resourceVersion: Invalid value"))?;
    let (sender, channel) = Channel::new(16);
    let (generation, marked) = {
        let state = shared.lock();
        (state.generation, state.bookmarks)
    };
    let bookmarks = bookmarks.as_deref() == Some("true");
    tokio::spawn(follow(shared.clone(), sender, Follower { known, generation, marked, bookmarks }));
    let mut response = Response::new(Either::Right(channel));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Sends events after a revision until the client or the test ends the watch.
async fn follow(shared: Arc<Shared>, mut sender: Sender<Bytes, Infallible>, mut follower: Follower) {
    let mut changed = shared.changed.subscribe();
    loop {
        let (lines, goes_on) = follower.news(&shared.lock());
        for line in lines {
            if sender.send_data(line).await.is_err() {
                return;
            }
        }
        if !goes_on || changed.changed().await.is_err() {
            return;
        }
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({ "type": kind, "object": object })).into()
}

fn whole(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::IM_A_TEAPOT);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    if answer.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// === impl Follower ===

impl Follower {
    /// The lines to send now, and whether more may follow.
    fn news(&mut self, state: &State) -> (Vec<Bytes>, bool) {
        let Some(events) = state.cluster.events_after(self.known) else {
            let message = format!("too old resource version: {} ({})", self.known, state.cluster.revision());
            let status: Value = serde_json::from_slice(&Answer::expired(&message).body).unwrap_or_default();
            return (vec![line("ERROR", &status)], false);
        };
        let mut lines: Vec<Bytes> = events.iter().map(|event| line(event.kind, &event.object)).collect();
        self.known = state.cluster.revision();
        if self.bookmarks && state.bookmarks != self.marked {
            self.marked = state.bookmarks;
            let metadata = json!({ "resourceVersion": self.known.to_string(), "creationTimestamp": null });
            lines
                .push(line("BOOKMARK", &json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata })));
        }
        (lines, state.generation == self.generation)
    }
}

// === impl Route ===

impl Route {
    fn of(path: &str) -> Option<Self> {
        let parts: Vec<String> = path.strip_prefix("/api/v1/")?.split('/').map(unescape).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let route = |kind, resource: &str, namespace: &str, name: &str| {
            let (resource, namespace, name) = (resource.to_owned(), namespace.to_owned(), name.to_owned());
            Some(Self { kind, resource, namespace, name })
        };
        match parts[..] {
            ["nodes"] => route("Node", "nodes", "", ""),
            ["nodes", name] => route("Node", "nodes", "", name),
            ["nodes", name, "status"] => route("Node", "nodes/status", "", name),
            ["namespaces", name] => route("Namespace", "namespaces", "", name),
            ["namespaces", namespace, "pods", name] => route("Pod", "pods", namespace, name),
            ["namespaces", namespace, "pods", name, "status"] => route("Pod", "pods/status", namespace, name),
            _ => None,
        }
    }
}
