//! One GET over a connection of its own: TCP to this machine's registries, TLS to all others.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::RegistryError;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Registries are remote, and some are slow.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The longest silence within a body.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// How much of a registry's error message is shown.
const DETAIL_MAX_CHARS: usize = 300;
/// The files of public CA certificates in distributions.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
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
    let request = request.body(Empty::new()).map_err(|error| failed(error.into()))?;
    let sent = async {
        let mut sender = within(CONNECT_LIMIT, "no connection", connect(url)).await?;
        within(ANSWER_LIMIT, "no answer", async { Ok(sender.send_request(request).await?) }).await
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

async fn connect(url: &Uri) -> Result<http1::SendRequest<Empty<Bytes>>, Cause> {
    let tls = url.scheme_str() == Some("https");
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    if !tls {
        return shake_hands(stream).await;
    }
    let name = ServerName::try_from(host.to_owned())?;
    let stream = TlsConnector::from(Arc::new(tls_config()?)).connect(name, stream).await?;
    shake_hands(stream).await
}

async fn shake_hands<S>(stream: S) -> Result<http1::SendRequest<Empty<Bytes>>, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its errors are also reported to the caller that waits for the answer.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// With the system's CA certificates, read again each time.
fn tls_config() -> Result<ClientConfig, Cause> {
    let path = AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let path =
        path.ok_or("this system has no bundle of certificate authorities (the package ca-certificates)")?;
    let bytes = std::fs::read(path)?;
    let mut roots = RootCertStore::empty();
    // A bundle may contain certificates that rustls refuses; the others are used.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
