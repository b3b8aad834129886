//! TLS to an API server: its certificate is checked against the configured authorities, ours is
//! presented if we have one. rustls with ring.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::config::{Config, ConfigError, Material, read_file};

/// The distributions' bundles of public authorities, for servers whose kubeconfig names none.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Accepts any certificate, because the operator requested it (`insecure-skip-tls-verify`).
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

/// Our certificate, presented unchanged to every server that requests one. rustls itself parses it
/// by the rules for servers' certificates and refuses X.509 version 1, which openssl makes without
/// extensions; the server decides whether it is valid.
#[derive(Debug)]
struct OwnCertificate(Arc<CertifiedKey>);

/// A connector with the current content of the certificate files, since certificates get renewed.
pub(crate) fn connector(config: &Config) -> Result<TlsConnector, ConfigError> {
    let refused = |reason: String| ConfigError::Tls { server: config.server.to_string(), reason };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?;
    let builder = match config.skip_verify {
        true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        false => builder.with_root_certificates(roots(config)?),
    };
    let mut tls = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain =
                certificates(certificate).map_err(|error| error.into_config(config, "client certificate"))?;
            let key = private_key(key).map_err(|error| error.into_config(config, "client key"))?;
            let identity = OwnCertificate::new(chain, &key);
            let identity = identity.map_err(|reason| refused(format!("client certificate: {reason}")))?;
            builder.with_client_cert_resolver(Arc::new(identity))
        }
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// The name that the server's certificate must have.
pub(crate) fn server_name(config: &Config) -> Result<ServerName<'static>, ConfigError> {
    let name = config.server_name.as_ref().unwrap_or(&config.server.host).clone();
    ServerName::try_from(name.clone()).map_err(|_| ConfigError::Tls {
        server: config.server.to_string(),
        reason: format!("{name:?} is neither a name nor an address"),
    })
}

fn roots(config: &Config) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &config.authorities {
        Some(material) => {
            let wanted =
                certificates(material).map_err(|error| error.into_config(config, "certificate authority"))?;
            for certificate in wanted {
                roots.add(certificate).map_err(|error| {
                    Fault::Pem(error.to_string()).into_config(config, "certificate authority")
                })?;
            }
        }
        None => {
            let path = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
            let path = path.ok_or(ConfigError::Mismatch(
                "no certificate-authority is named, and this system has no bundle of public ones",
            ))?;
            // A bundle may contain certificates that rustls refuses; the others are used.
            let bytes = read_file(path)?;
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
        }
    }
    Ok(roots)
}

/// Why PEM data could not be read.
enum Fault {
    Read(ConfigError),
    Pem(String),
}

fn certificates(material: &Material) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let bytes = material.read().map_err(Fault::Read)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(Fault::Pem("there is no certificate in it".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(Fault::Pem(error.to_string())),
    }
}

fn private_key(material: &Material) -> Result<PrivateKeyDer<'static>, Fault> {
    let bytes = material.read().map_err(Fault::Read)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| Fault::Pem(error.to_string()))
}

// === impl Fault ===

impl Fault {
    fn into_config(self, config: &Config, what: &str) -> ConfigError {
        match self {
            Self::Read(error) => error,
            Self::Pem(reason) => {
                ConfigError::Tls { server: config.server.to_string(), reason: format!("{what}: {reason}") }
            }
        }
    }
}

// === impl OwnCertificate ===

impl OwnCertificate {
    /// Refuses only a key that belongs to another certificate.
    fn new(chain: Vec<CertificateDer<'static>>, key: &PrivateKeyDer<'static>) -> Result<Self, String> {
        let key = any_supported_type(key).map_err(|error| format!("its key cannot be used: {error}"))?;
        let leaf = chain.first().map(|leaf| leaf.to_vec()).unwrap_or_default();
        let holds = |public: &[u8]| leaf.windows(public.len()).any(|window| window == public);
        if key.public_key().is_some_and(|public| !holds(&public)) {
            return Err("its key belongs to another certificate: their public keys differ".to_owned());
        }
        Ok(Self(Arc::new(CertifiedKey::new(chain, key))))
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

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
