//! Pages for a browser of this machine, at an address that other users' processes and, by way of the browser, foreign web pages can reach: a
//! [`Gate`] lets a request pass only if its path begins with a token, its `Host` is this machine, and it only reads. [`Relay`] brings it to a
//! unix socket.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::response::Parts;
use axum::http::uri::InvalidUri;
use axum::http::{Method, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, Response};
use tokio::net::UnixStream;
use tower_service::Service;

use crate::client::Connection;
use crate::server::Whole;

/// What a request needs before it reaches `inner`.
#[derive(Clone)]
pub struct Gate<S> {
    token: Arc<str>,
    /// Takes the token's place in the path.
    prefix: &'static str,
    inner: S,
}

/// Sends requests to a server at a unix socket, each on a connection of its own.
#[derive(Debug, Clone)]
pub struct Relay {
    socket: Arc<PathBuf>,
}

/// Why a request does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub text: &'static str,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// No answer of an agent is larger: the page is limited to 200 KB, its data and its map to less than this.
const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

const FOREIGN_HOST: Refusal = Refusal {
    status: StatusCode::FORBIDDEN,
    text: "this address answers to 127.0.0.1, ::1 and localhost only: a name of another domain may not lead here",
};
const NOT_READING: Refusal =
    Refusal { status: StatusCode::METHOD_NOT_ALLOWED, text: "only GET and HEAD are answered" };
const NO_TOKEN: Refusal = Refusal {
    status: StatusCode::FORBIDDEN,
    text: "the path has to begin with the token: open the address as it was printed",
};

// === impl Gate ===

impl<S> Gate<S> {
    /// `/TOKEN/x` becomes `PREFIX/x`. The token has the characters of a path.
    pub fn new(token: &str, prefix: &'static str, inner: S) -> Self {
        Self { token: token.into(), prefix, inner }
    }

    /// The path and query for the inner server.
    fn admit(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Uri, Refusal> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        if hosts.next().is_some() || !host.is_some_and(is_this_machine) {
            return Err(FOREIGN_HOST);
        }
        if method != Method::GET && method != Method::HEAD {
            return Err(NOT_READING);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let (token, rest) = path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(NO_TOKEN)?;
        if !is_equal(token.as_bytes(), self.token.as_bytes()) {
            return Err(NO_TOKEN);
        }
        format!("{}/{rest}", self.prefix).parse().map_err(|_| NO_TOKEN)
    }
}

impl<S> Service<Whole> for Gate<S>
where
    S: Service<Whole, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Whole) -> Answer {
        match self.admit(request.method(), request.uri(), request.headers()) {
            Err(refusal) => Box::pin(async move { Ok(refusal.response()) }),
            Ok(uri) => {
                *request.uri_mut() = uri;
                // The inner server has no use for what else the browser says.
                request.headers_mut().clear();
                Box::pin(self.inner.call(request))
            }
        }
    }
}

/// Whether a `Host` names this machine, with any port: a port may have been forwarded. The name of another domain, even one that leads here,
/// is the address of a foreign page (DNS rebinding).
fn is_this_machine(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, "")) => (address, None),
            Some((address, port)) => (address, port.strip_prefix(':').or(Some("x"))),
            None => return false,
        },
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    is_port && ["127.0.0.1", "localhost", "::1"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Takes the same time wherever two texts of the same length differ.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

// === impl Refusal ===

impl Refusal {
    fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        restrict(response.headers_mut());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

/// What every answer to a browser says: it may load nothing but what the same address has, run no inline script, be in no frame, be kept in no
/// cache, and tell its address to no other page. There is no header that lets pages of other origins read it.
pub fn restrict(headers: &mut HeaderMap) {
    const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                          form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (HeaderName::from_static("content-security-policy"), POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

// === impl Relay ===

impl Relay {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket: Arc::new(socket) }
    }

    /// The body of the answer to a GET, which has to have status 200. The deadline is the caller's.
    pub async fn get(&self, path: &str) -> Result<Bytes, String> {
        let uri = path.parse().map_err(|error: InvalidUri| error.to_string())?;
        let (head, body) = self.exchange(&Method::GET, &uri).await?;
        if head.status == StatusCode::OK { Ok(body) } else { Err(format!("status {}", head.status)) }
    }

    async fn exchange(&self, method: &Method, uri: &Uri) -> Result<(Parts, Bytes), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let stream = UnixStream::connect(&*self.socket).await.map_err(|error| text(&error))?;
        let mut connection = Connection::handshake(stream).await.map_err(|error| text(&error))?;
        let mut asked = Request::new(Full::new(Bytes::new()));
        *asked.method_mut() = method.clone();
        *asked.uri_mut() = uri.clone();
        asked.headers_mut().insert(HOST, HeaderValue::from_static("agent"));
        let answer = connection.send(asked).await.map_err(|error| format!("{error:?}"))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await.map_err(|error| error.to_string())?;
        Ok((head, body.to_bytes()))
    }

    async fn send(&self, request: Whole) -> Result<Response<Body>, String> {
        let (head, body) = self.exchange(request.method(), request.uri()).await?;
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        // The length and the connection are the relay's own.
        for name in ["content-length", "transfer-encoding", "connection", "date"] {
            response.headers_mut().remove(name);
        }
        Ok(response)
    }
}

impl Service<Whole> for Relay {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Whole) -> Answer {
        let relay = self.clone();
        Box::pin(async move {
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, relay.send(request)).await;
            Ok(match answer {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    tracing::debug!(error, "the agent did not answer");
                    Refusal { status: StatusCode::BAD_GATEWAY, text: "no agent answers at its socket" }
                        .response()
                }
                Err(_elapsed) => {
                    Refusal { status: StatusCode::GATEWAY_TIMEOUT, text: "the agent did not answer in time" }
                        .response()
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(method: &str, uri: &str, hosts: &[&str]) -> Result<String, StatusCode> {
        let gate = Gate::new("0123abcd", "/ui", ());
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        let admitted = gate.admit(&method.parse().unwrap(), &uri.parse().unwrap(), &headers);
        admitted.map(|uri| uri.to_string()).map_err(|refusal| refusal.status)
    }

    #[test]
    fn only_reading_requests_with_the_token_pass() {
        let here = ["127.0.0.1:4711"];
        assert_eq!(admit("GET", "/0123abcd/", &here), Ok("/ui/".to_owned()));
        assert_eq!(admit("HEAD", "/0123abcd/data.json?x=1", &here), Ok("/ui/data.json?x=1".to_owned()));
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"] {
            assert_eq!(admit(method, "/0123abcd/", &here), Err(StatusCode::METHOD_NOT_ALLOWED), "{method}");
        }
        for uri in [
            "/",
            "/0123abcd",
            "/0123abce/",
            "/0123abc/",
            "/0123abcdd/",
            "//0123abcd/",
            "/x/0123abcd/",
            "/%30123abcd/",
            "/ui/",
        ] {
            assert_eq!(admit("GET", uri, &here), Err(StatusCode::FORBIDDEN), "{uri}");
        }
    }

    #[test]
    fn a_name_of_another_domain_is_refused_even_if_it_leads_here() {
        for host in ["127.0.0.1", "127.0.0.1:1", "localhost:65535", "LOCALHOST", "[::1]:80", "[::1]"] {
            assert!(admit("GET", "/0123abcd/", &[host]).is_ok(), "{host}");
        }
        let foreign = [
            "evil.example",
            "evil.example:9474",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "evil.example@127.0.0.1",
        ];
        let broken = [
            "",
            ":80",
            "[::1",
            "[::1]80",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:99999",
            "10.0.0.1",
            "127.0.0.2",
        ];
        for host in foreign.into_iter().chain(broken) {
            assert_eq!(admit("GET", "/0123abcd/", &[host]), Err(StatusCode::FORBIDDEN), "{host}");
        }
        for hosts in [&[][..], &["127.0.0.1", "evil.example"], &["127.0.0.1", "127.0.0.1"]] {
            assert_eq!(admit("GET", "/0123abcd/", hosts), Err(StatusCode::FORBIDDEN), "{hosts:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_lets_no_other_page_read_it_and_without_a_server_it_is_said() {
        let mut gate = Gate::new("t", "/ui", Relay::new("/nonexistent/health.sock".into()));
        let ask =
            |path: &str| Request::get(path).header(HOST, "localhost").body(Full::new(Bytes::new())).unwrap();
        for (path, status) in [("/", StatusCode::FORBIDDEN), ("/t/", StatusCode::BAD_GATEWAY)] {
            let Ok(response) = gate.call(ask(path)).await;
            assert_eq!(response.status(), status);
            assert!(
                response.headers()["content-security-policy"]
                    .to_str()
                    .unwrap()
                    .starts_with("default-src 'none'; ")
            );
            assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
        }
    }
}
