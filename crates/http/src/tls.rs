//! TLS of clients: the authorities that they trust and the certificate that they present. rustls
//! with ring.
//!
//! A client's own certificate is presented as it is, and the server decides whether it is valid.
//! rustls itself would parse it by the rules for servers' certificates and refuse X.509 version 1,
//! which openssl makes without extensions and Go's clients present, too.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{self, sign::any_supported_type};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

/// The servers that a client trusts.
pub enum Trust {
    /// Those with a certificate of these authorities.
    Authorities(RootCertStore),
    /// Every server, because the operator requested it.
    Any,
}

/// A client's certificate with its key.
pub struct Identity(CertifiedKey);

/// Why a client's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Key(String),
    /// The certificate's public key is another one.
    #[error("it does not belong to its key")]
    Mismatch,
}

/// The distributions' bundles of public authorities.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A connector that offers one protocol by ALPN.
pub fn connector(trust: Trust, identity: Option<Identity>, protocol: &[u8]) -> Result<TlsConnector, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Authorities(roots) => builder.with_root_certificates(roots),
        Trust::Any => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity(own)) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The authorities in PEM. Unusable ones are skipped, as there may be some in a large bundle, but at
/// least one is required.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (added, unusable) = roots.add_parsable_certificates(certificates(pem)?);
    match added {
        0 => Err(format!("none of its {unusable} certificates can be used")),
        _ => Ok(roots),
    }
}

/// The public authorities that this system trusts, read again each time; `None` without a bundle.
pub fn system_authorities() -> io::Result<Option<RootCertStore>> {
    let Some(path) = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists()) else {
        return Ok(None);
    };
    let bytes = std::fs::read(path)?;
    let mut roots = RootCertStore::empty();
    // A bundle may contain certificates that rustls refuses; the others are used.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    Ok(Some(roots))
}

/// The name that a server's certificate must have.
pub fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is neither a name nor an address"))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match list {
        Ok(list) if list.is_empty() => Err("it holds no certificate in PEM".to_owned()),
        Ok(list) => Ok(list),
        Err(error) => Err(error.to_string()),
    }
}

// === impl Identity ===

impl Identity {
    /// Of a certificate chain and a private key in PEM.
    pub fn new(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = certificates(chain).map_err(IdentityError::Certificate)?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| IdentityError::Key(error.to_string()))?;
        let key = any_supported_type(&key).map_err(|error| IdentityError::Key(error.to_string()))?;
        let leaf = chain.first().map(|leaf| leaf.to_vec()).unwrap_or_default();
        let holds = |public: &[u8]| leaf.windows(public.len()).any(|window| window == public);
        if key.public_key().is_some_and(|public| !holds(&public)) {
            return Err(IdentityError::Mismatch);
        }
        Ok(Self(CertifiedKey::new(chain, key)))
    }
}

/// Accepts any certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

// === impl AnyCertificate ===

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
