//! TLS to members, for both engines: the trusted authorities and the client's certificate. Files
//! are read for each connection, because certificates get renewed.

use std::path::Path;
use std::sync::Arc;

use russet_http::tls::{self, Identity, IdentityError, Trust};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::Uri;

use crate::failure::chain;
use crate::{Settings, SettingsError};

/// The TLS configuration for one endpoint.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// The names of the authority and client certificate files, for errors.
    files: Arc<str>,
}

// === impl Tls ===

impl Tls {
    /// The TLS configuration for an endpoint, from the current contents of the certificate files;
    /// `None` over http. `protocol` is for ALPN.
    pub(crate) fn new(
        settings: &Settings,
        endpoint: &str,
        protocol: &[u8],
    ) -> Result<Option<Self>, SettingsError> {
        let Some(ca) = settings.ca.as_ref().filter(|_| endpoint.starts_with("https:")) else {
            return Ok(None);
        };
        let refused = |reason: String| SettingsError::Tls { endpoint: endpoint.to_owned(), reason };
        let roots = tls::authorities(&read(ca)?)
            .map_err(|reason| refused(format!("authority {}: {reason}", ca.display())))?;
        let (identity, shown) = match (&settings.cert, &settings.key) {
            (Some(cert), Some(key)) => {
                let identity = Identity::new(&read(cert)?, &read(key)?);
                let (cert, key) = (cert.display(), key.display());
                let identity = identity.map_err(|error| {
                    refused(match error {
                        IdentityError::Certificate(reason) => format!("client certificate {cert}: {reason}"),
                        IdentityError::Key(reason) => {
                            format!("key {key} of the client certificate: {reason}")
                        }
                        IdentityError::Mismatch => {
                            format!("client certificate {cert} does not belong to key {key}")
                        }
                    })
                })?;
                (Some(identity), format!("client certificate {cert}"))
            }
            _ => (None, "no client certificate".to_owned()),
        };
        let connector = tls::connector(Trust::Authorities(roots), identity, protocol)
            .map_err(|error| refused(error.to_string()))?;
        let host = address(endpoint).map(|(host, _)| host).unwrap_or_default();
        let name = tls::server_name(settings.server_name.as_ref().unwrap_or(&host));
        let name = name.map_err(|reason| refused(format!("the server's name: {reason}")))?;
        let files = format!("authority {}, {shown}", ca.display());
        Ok(Some(Self { connector, name, files: files.into() }))
    }

    /// Performs the handshake on an open connection. An error says whose certificate was refused,
    /// and which files were used.
    pub(crate) async fn connect(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        self.connector.connect(self.name.clone(), tcp).await.map_err(|error| {
            let cause = chain(Some(&error)).find_map(|cause| cause.downcast_ref::<rustls::Error>());
            // rustls's error inside an I/O error is not among its sources.
            let cause = cause.or_else(|| error.get_ref().and_then(|inner| inner.downcast_ref()));
            let what = match cause {
                Some(rustls::Error::InvalidCertificate(_)) => "the server's certificate is refused",
                Some(rustls::Error::AlertReceived(_)) => "the server refuses the connection",
                _ => "TLS handshake",
            };
            format!("{what}: {error} ({})", self.files)
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path).map_err(|source| SettingsError::File { path: path.to_owned(), source })
}

/// Host, without brackets, and port of a checked endpoint.
pub(crate) fn address(endpoint: &str) -> Option<(String, u16)> {
    let uri: Uri = endpoint.parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, uri.port_u16()?))
}
