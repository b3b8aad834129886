//! The test server's HTTP: connections, authentication, routes.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;

use http_body_util::channel::Channel;
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
use super::cluster::Part;
use super::kinds::Kind;
use super::query::{Query, unescape};
use super::select::Selection;
use super::{Fault, Seen, Shared, State, validate, watches};

pub(super) type Body = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

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
pub(super) struct Route {
    pub(super) kind: Kind,
    /// `pods`, `pods/status`, ...
    resource: String,
    namespace: String,
    /// Empty for a list.
    name: String,
}

/// A connection ends without an answer.
#[derive(Debug)]
struct Lost;

/// Patches by operations are sent by the controller only, whose account may patch whole nodes.
const JSON_PATCH: &str = "application/json-patch+json";
/// Paths that have no objects.
const VERSION: &str = "/version";
const RULES_REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
/// Limit of a request's body, and of what etcd stores.
const MAX_BODY_BYTES: usize = 3 << 20;
const MAX_STORED_BYTES: usize = 2 << 20;

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
            async move { answer(&shared, request, by_certificate).await }
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

async fn answer(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    by_certificate: bool,
) -> Result<Response<Body>, Lost> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text =
        |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let seen = Seen {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        content_type: text(header::CONTENT_TYPE),
        body: String::from_utf8_lossy(&body).into_owned(),
        at: std::time::Instant::now(),
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
        return Ok(whole(Answer::unauthorized()));
    }
    let is_write = seen.method != "GET";
    let is_last = match is_silenced(shared, is_write) {
        None => return silent(shared).await,
        Some(is_last) => is_last,
    };
    let fault = shared.lock().next_fault(is_write);
    if fault == Some(Fault::Unexecuted) {
        return Err(Lost);
    }
    let mut answer = dispatch(shared, &seen).unwrap_or_else(whole);
    let date = shared.lock().date.as_deref().map(HeaderValue::from_str);
    answer.headers_mut().extend(date.and_then(Result::ok).map(|date| (header::DATE, date)));
    if is_last {
        return silent(shared).await;
    }
    if fault == Some(Fault::Unanswered) { Err(Lost) } else { Ok(answer) }
}

/// None for a request that gets no answer; else whether it is the last one that is executed.
fn is_silenced(shared: &Arc<Shared>, is_write: bool) -> Option<bool> {
    let mut state = shared.lock();
    match &mut state.writes_left {
        None => Some(false),
        Some(0) => None,
        Some(left) => {
            *left -= usize::from(is_write);
            Some(*left == 0)
        }
    }
}

/// Waits until the server serves again, and ends the connection.
async fn silent(shared: &Arc<Shared>) -> Result<Response<Body>, Lost> {
    let mut changed = shared.changed.subscribe();
    while shared.lock().writes_left.is_some() && changed.changed().await.is_ok() {}
    Err(Lost)
}

fn dispatch(shared: &Arc<Shared>, seen: &Seen) -> Result<Response<Body>, Answer> {
    let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    let query = Query::parse(query);
    let mut state = shared.lock();
    if state.failing.0 > 0 {
        state.failing.0 -= 1;
        return Err(Answer::failure(state.failing.1));
    }
    match (seen.method.as_str(), path) {
        ("GET", VERSION) => return Ok(whole(Answer::object(&json!({ "major": "1", "minor": "37" })))),
        ("POST", RULES_REVIEW) => return Ok(whole(Answer::object(&json!({ "status": state.rules })))),
        _ => {}
    }
    if let Some(group) = group_of_discovery(path).filter(|group| state.serves(group)) {
        return Ok(whole(Answer::object(&Kind::discovery(group, |kind| state.defines(kind)))));
    }
    let route = Route::of(path).filter(|route| state.defines(&route.kind));
    let route = route.ok_or_else(|| match group_of(path).is_some_and(|group| state.serves(group)) {
        true => Answer::no_resource(),
        false => Answer::no_page(),
    })?;
    let verb = match (seen.method.as_str(), route.name.is_empty()) {
        ("GET", true) if query.is("watch") => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", true) => "create",
        ("PUT", false) => "update",
        ("DELETE", false) => "delete",
        ("PATCH", false) => "patch",
        _ => return Err(Answer::bad_request("the test server does not know this verb")),
    };
    // The permissions of the accounts of Calico's plugin and of flannel (calico-cni.md section 1.9,
    // flannel.md section 5), and of Russet's controller, which patches nodes.
    let by_operations = seen.content_type == JSON_PATCH;
    let is_permitted =
        route.kind.is_custom() || route.resource == "nodes" || route.resource.ends_with("/status");
    let by_role = verb != "patch" || by_operations || is_permitted;
    let this = format!("{verb} {}", route.resource);
    if !by_role || state.forbidden.contains(&this) {
        return Err(Answer::forbidden(verb, &route.resource, &route.namespace, &route.name));
    }
    if state.lacks_subresource(&route.resource) {
        return Err(Answer::not_found(&route.kind.id(), &route.name));
    }
    if verb == "watch" {
        drop(state);
        return watches::open(shared, &route, &query);
    }
    let mut answer = match verb {
        "list" => Answer::object(&list(&state, &route, &query)?),
        "get" => {
            let id = route.kind.id();
            let found = state.cluster.get(&id, &route.namespace, &route.name);
            Answer::object(found.ok_or_else(|| Answer::not_found(&id, &route.name))?)
        }
        _ => write(&mut state, &route, verb, seen)?,
    };
    if let Some(body) = state.body_instead.take() {
        answer.body = body;
    }
    drop(state);
    if !matches!(verb, "list" | "get") {
        shared.changed.send_modify(|count| *count += 1);
    }
    Ok(whole(answer))
}

/// The group whose resources a path of discovery lists.
fn group_of_discovery(path: &str) -> Option<&str> {
    let (group, version) = path.strip_prefix("/apis/")?.split_once('/')?;
    Kind::all(group).any(|kind| kind.version == version).then_some(group)
}

/// The group of a path with a resource.
fn group_of(path: &str) -> Option<&str> {
    if path.starts_with("/api/v1/") {
        return Some("");
    }
    let mut parts = path.strip_prefix("/apis/")?.splitn(3, '/');
    let (group, version) = (parts.next()?, parts.next()?);
    Kind::all(group).any(|kind| kind.version == version).then_some(group)
}

fn write(state: &mut State, route: &Route, verb: &str, seen: &Seen) -> Result<Answer, Answer> {
    if seen.body.len() > MAX_STORED_BYTES {
        return Err(Answer::too_big(if seen.body.len() > MAX_BODY_BYTES { 413 } else { 500 }));
    }
    let Route { kind, namespace, name, resource } = route;
    let body = if seen.body.is_empty() && verb == "delete" { "{}" } else { &seen.body };
    let mut object: Value =
        serde_json::from_str(body).map_err(|error| Answer::bad_request(&error.to_string()))?;
    let part = if resource.ends_with("/status") { Part::Status } else { Part::Whole };
    let cluster = &mut state.cluster;
    if verb == "delete" {
        return cluster.remove(*kind, (namespace, name), &object);
    }
    if matches!(verb, "update" | "patch") && state.overtaken.1 > 0 && state.overtaken.0 == kind.plural {
        state.overtaken.1 -= 1;
        cluster.touch(*kind, (namespace, name));
    }
    if verb == "patch" && seen.content_type == JSON_PATCH {
        let patched = cluster.patch_by_operations((*kind, namespace, name), &object)?;
        return Ok(Answer::object(&patched));
    }
    if verb == "patch" {
        let strategic = match seen.content_type.as_str() {
            "application/strategic-merge-patch+json" if !kind.is_custom() => true,
            "application/merge-patch+json" => false,
            _ => return Err(Answer::unsupported_media_type()),
        };
        let patched = cluster.patch((&kind.id(), namespace, name), &object, strategic, part)?;
        return Ok(Answer::object(&patched));
    }
    let warnings = validate::prune(&state.lacking, *kind, &mut object);
    let answer = match verb {
        "create" => Answer { code: 201, ..Answer::object(&cluster.create(*kind, namespace, object)?) },
        _ => Answer::object(&cluster.replace(*kind, (namespace, name), object, part)?),
    };
    Ok(Answer { warnings, ..answer })
}

/// What a list or watch selects.
pub(super) fn selection(route: &Route, query: &Query) -> Result<Selection, Answer> {
    Selection::of(route.kind, &route.namespace, query.get("labelSelector"), query.get("fieldSelector"))
}

fn list(state: &State, route: &Route, query: &Query) -> Result<Value, Answer> {
    let cluster = &state.cluster;
    query.check_list(cluster.revision())?;
    let selection = selection(route, query)?;
    let wanted = query.get("resourceVersion");
    let is_exact = query.get("resourceVersionMatch") == Some("Exact");
    let (at, last) = match query.get("continue") {
        None => {
            let exact = wanted.filter(|_| is_exact).and_then(|wanted| wanted.parse().ok());
            let cache = state.cache.filter(|_| wanted == Some("0"));
            (exact.or(cache).unwrap_or(cluster.revision()), "")
        }
        Some(token) => {
            let parts = token.split_once('/').and_then(|(at, last)| Some((at.parse().ok()?, last)));
            parts.ok_or_else(|| Answer::bad_request("continue key is not valid"))?
        }
    };
    let expired = "The provided continue parameter is too old to display a consistent list result.";
    let mut items = cluster.list(&selection, at).ok_or_else(|| Answer::expired(expired))?;
    let place = |item: &Value| {
        let text = |member: &str| item["metadata"][member].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text("namespace"), text("name"))
    };
    items.retain(|item| last.is_empty() || place(item).as_str() > last);
    // A list at revision 0 comes from the cache, which has no pages.
    let paged = wanted != Some("0");
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).filter(|_| paged);
    let mut metadata = json!({ "resourceVersion": at.to_string() });
    if let Some(limit) = limit.filter(|limit| *limit > 0 && *limit < items.len()) {
        metadata["remainingItemCount"] = json!(items.len() - limit);
        items.truncate(limit);
        let last = items.last().map(|item| place(item)).unwrap_or_default();
        metadata["continue"] = json!(format!("{at}/{last}"));
    }
    let kind = route.kind;
    let items: Vec<&Value> = items.iter().map(|item| &**item).collect();
    Ok(
        json!({ "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": metadata, "items": items }),
    )
}

fn whole(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::IM_A_TEAPOT);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    for warning in &answer.warnings {
        headers.extend(HeaderValue::from_str(warning).map(|value| (header::WARNING, value)));
    }
    if answer.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

// === impl Lost ===

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the test wants the connection to end")
    }
}

impl std::error::Error for Lost {}

// === impl Route ===

impl Route {
    fn of(path: &str) -> Option<Self> {
        let parts: Vec<String> = path.strip_prefix('/')?.split('/').map(unescape).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, rest) = match parts[..] {
            ["api", "v1", ref rest @ ..] => ("", rest),
            ["apis", group, version, ref rest @ ..]
                if Kind::all(group).any(|kind| kind.version == version) =>
            {
                (group, rest)
            }
            _ => return None,
        };
        // A namespace is an object itself, too.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] => (*namespace, [&[*plural][..], rest].concat()),
            rest => ("", rest.to_vec()),
        };
        let kind = Kind::of_plural(group, rest.first()?)?;
        let (name, resource) = match rest[1..] {
            [] => ("", kind.plural.to_owned()),
            [name] => (name, kind.plural.to_owned()),
            [name, "status"] => (name, format!("{}/status", kind.plural)),
            _ => return None,
        };
        // Objects of a namespace can be listed without naming it, but not addressed.
        let addressed = namespace.is_empty() != kind.namespaced || name.is_empty() && namespace.is_empty();
        addressed.then(|| Self { kind, resource, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}
