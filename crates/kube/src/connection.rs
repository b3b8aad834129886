//! Opens connections to an API server: TCP, and TLS with the configured certificates.

use std::error::Error;
use std::io;
use std::time::Duration;

use russet_http::client::Connection;
use russet_http::tls::{self, Identity, IdentityError, Trust};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::{Config, ConfigError};

/// Limit for opening a connection, TLS included. Within a site it takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A silent peer is probed after this time, and given up after the probes below; nothing else tells
/// a watch that its server was switched off.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

/// Any error, on its way into [`KubeError::Unavailable`](crate::KubeError::Unavailable).
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

/// Opens a connection. The certificates are read at this moment.
pub(crate) async fn open(config: &Config) -> Result<Connection, Cause> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect(config)).await {
        Ok(connection) => connection,
        Err(_) => Err(format!("no connection to {} within {CONNECT_TIMEOUT:?}", config.server).into()),
    }
}

async fn connect(config: &Config) -> Result<Connection, Cause> {
    let server = &config.server;
    let failed = |error: io::Error| -> Cause { format!("{server}: {error}").into() };
    let secured = server.tls.then(|| tls(config)).transpose()?;
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    keep_alive(&stream).map_err(failed)?;
    let Some((connector, name)) = secured else { return Ok(Connection::handshake(stream).await?) };
    let stream = connector.connect(name, stream).await.map_err(failed)?;
    Ok(Connection::handshake(stream).await?)
}

/// A connector with the current content of the certificate files, since certificates get renewed,
/// and the name that the server's certificate must have.
pub(crate) fn tls(config: &Config) -> Result<(TlsConnector, ServerName<'static>), ConfigError> {
    let refused = |reason: String| ConfigError::Tls { server: config.server.to_string(), reason };
    let trust = match &config.authorities {
        // `insecure-skip-tls-verify`.
        _ if config.skip_verify => Trust::Any,
        Some(material) => Trust::Authorities(
            tls::authorities(&material.read()?)
                .map_err(|reason| refused(format!("certificate authority: {reason}")))?,
        ),
        None => {
            let public = tls::system_authorities().map_err(|error| refused(error.to_string()))?;
            Trust::Authorities(public.ok_or(ConfigError::Mismatch(
                "no certificate-authority is named, and this system has no bundle of public ones",
            ))?)
        }
    };
    let identity = match &config.identity {
        None => None,
        Some((certificate, key)) => {
            let identity = Identity::new(&certificate.read()?, &key.read()?);
            Some(identity.map_err(|error| match error {
                IdentityError::Key(reason) => refused(format!("client key: {reason}")),
                error => refused(format!("client certificate: {error}")),
            })?)
        }
    };
    let connector =
        tls::connector(trust, identity, b"http/1.1").map_err(|error| refused(error.to_string()))?;
    let name = config.server_name.as_ref().unwrap_or(&config.server.host);
    Ok((connector, tls::server_name(name).map_err(refused)?))
}

/// Enables TCP keepalive, so that the kernel probes a silent peer.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
