//! TLS to members, for both engines: the trusted authorities and the client's certificate. Files
//! are read for each connection, because certificates get renewed.
//!
//! The client does not validate its own certificate: Go's clients also present one of X.509 version
//! 1, and the server accepts or refuses it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
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
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string()))?
            .with_root_certificates(roots(ca, &refused)?);
        let (mut config, shown) = match (&settings.cert, &settings.key) {
            (Some(cert), Some(key)) => {
                let own = own_certificate(cert, key, &provider, &refused)?;
                (builder.with_client_cert_resolver(own), format!("client certificate {}", cert.display()))
            }
            _ => (builder.with_no_client_auth(), "no client certificate".to_owned()),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let host = address(endpoint).map(|(host, _)| host).unwrap_or_default();
        let name = settings.server_name.clone().unwrap_or(host);
        let name = ServerName::try_from(name.clone())
            .map_err(|error| refused(format!("the server's name {name:?}: {error}")))?;
        let files = format!("authority {}, {shown}", ca.display());
        Ok(Some(Self { connector: TlsConnector::from(Arc::new(config)), name, files: files.into() }))
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

/// The authorities in a file. Unusable ones are skipped, as there may be some in a large bundle,
/// but at least one is required.
fn roots(ca: &Path, refused: &impl Fn(String) -> SettingsError) -> Result<RootCertStore, SettingsError> {
    let mut roots = RootCertStore::empty();
    let (added, unusable) = roots.add_parsable_certificates(certificates(ca, "authority", refused)?);
    if added == 0 {
        let reason = format!("authority {}: none of its {unusable} certificates can be used", ca.display());
        return Err(refused(reason));
    }
    Ok(roots)
}

/// The client's certificate with its key, refused only if they certainly do not match.
fn own_certificate(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
    refused: &impl Fn(String) -> SettingsError,
) -> Result<Arc<dyn ResolvesClientCert>, SettingsError> {
    let of_key = |error: String| refused(format!("key {} of the client certificate: {error}", key.display()));
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| of_key(error.to_string()))?;
    let private =
        provider.key_provider.load_private_key(private).map_err(|error| of_key(error.to_string()))?;
    let own = CertifiedKey::new(certificates(cert, "client certificate", refused)?, private);
    if let Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = own.keys_match() {
        let (cert, key) = (cert.display(), key.display());
        return Err(refused(format!("client certificate {cert} does not belong to key {key}")));
    }
    Ok(Arc::new(SingleCertAndKey::from(own)))
}

fn certificates(
    path: &Path,
    whose: &str,
    refused: &impl Fn(String) -> SettingsError,
) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let pem = read(path)?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(refused(format!("{whose} {}: it holds no certificate in PEM", path.display()))),
        Err(error) => Err(refused(format!("{whose} {}: {error}", path.display()))),
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
