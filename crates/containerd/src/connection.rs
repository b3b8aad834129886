//! One GET over a connection of its own: TCP to this machine's registries, TLS to all others.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use hyper::{Request, Response, Uri};
use russet_http::client::{Broken, Connection};
use russet_http::tls::{self, Trust};
use tokio::net::TcpStream;

use crate::RegistryError;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Registries are remote, and some are slow.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The longest silence within a body.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// How much of a registry's error message is shown.
const DETAIL_MAX_CHARS: usize = 300;
const AGENT: &str = concat!("russet/", env!("CARGO_PKG_VERSION"));

/// The head of the answer, and its body.
pub(crate) async fn get(
    url: &Uri,
    accept: &str,
    authorization: Option<&str>,
) -> Result<Response<Incoming>, RegistryError> {
    let failed = |source: Cause| RegistryError::Connection { url: shown(url), source };
    let authority = url.authority().ok_or_else(|| failed("there is no host in it".into()))?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request =
        Request::get(path).header(HOST, authority.as_str()).header(USER_AGENT, AGENT).header(ACCEPT, accept);
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let request = request.body(Full::default()).map_err(|error| failed(error.into()))?;
    let sent = async {
        let mut connection = within(CONNECT_LIMIT, "no connection", connect(url)).await?;
        let answer = async {
            let sent = connection.send(request).await;
            sent.map_err(|(Broken::NotSent(error) | Broken::Unknown(error))| error.into())
        };
        within(ANSWER_LIMIT, "no answer", answer).await
    };
    // On the heap, as the pull that calls this (`pull.rs`): a caller of several of these would need
    // stack space for each.
    Box::pin(sent).await.map_err(failed)
}

/// The next part of a body; None at its end.
pub(crate) async fn part(url: &Uri, body: &mut Incoming) -> Result<Option<Bytes>, RegistryError> {
    let next = async {
        while let Some(frame) = body.frame().await {
            // Trailers are not used.
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    };
    let next = within(SILENCE_LIMIT, "silence", next).await;
    next.map_err(|source| RegistryError::Connection { url: shown(url), source })
}

/// The URL without its query, which may contain signatures.
pub(crate) fn shown(url: &Uri) -> String {
    let (scheme, authority) = (url.scheme_str().unwrap_or_default(), url.authority());
    format!("{scheme}://{}{}", authority.map_or("", |authority| authority.as_str()), url.path())
}

/// The beginning of a foreign text of any length.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(DETAIL_MAX_CHARS).collect()
}

async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T, Cause>>,
) -> Result<T, Cause> {
    let late = || Cause::from(format!("{what} within {} s", limit.as_secs()));
    tokio::time::timeout(limit, work).await.map_err(|_| late())?
}

async fn connect(url: &Uri) -> Result<Connection, Cause> {
    let is_tls = url.scheme_str() == Some("https");
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    if !is_tls {
        return Ok(Connection::handshake(stream).await?);
    }
    let roots = tls::system_authorities()?
        .ok_or("this system has no bundle of certificate authorities (the package ca-certificates)")?;
    let connector = tls::connector(Trust::Authorities(roots), None, b"http/1.1")?;
    let stream = connector.connect(tls::server_name(host)?, stream).await?;
    Ok(Connection::handshake(stream).await?)
}
