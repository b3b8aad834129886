//! The address of an API server and our credentials, from a kubeconfig, a pod's service account or
//! Calico's network configuration, checked before anything connects.

mod in_cluster;
mod kubeconfig;
mod server;

use std::path::{Path, PathBuf};

pub(crate) use server::Server;

use crate::Secret;

/// Limit of a kubeconfig, token or certificate file: a bundle of all public authorities has about
/// 220 kB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The source of a configuration. A client reads the file again when it changes: Calico's installer
/// writes a new token into its kubeconfig every few hours (calico-cni.md section 1.9).
#[derive(Debug, Clone)]
pub enum Source {
    /// A kubeconfig file, with overrides.
    Kubeconfig {
        path: PathBuf,
        /// The settings that win over it.
        overrides: Overrides,
    },
    /// The service account of this process's pod, with overrides.
    InCluster {
        /// The settings that win over it.
        overrides: Overrides,
    },
    /// All settings are given here.
    Direct {
        /// `server` is required.
        overrides: Overrides,
    },
}

/// Single settings, as Calico's network configuration has them. `None` leaves a setting to another
/// source.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `https://host:port`, with a path if the server has one.
    pub server: Option<String>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// PEM file with the authorities of the server's certificate.
    pub certificate_authority: Option<PathBuf>,
    /// PEM file with a client certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub client_key: Option<PathBuf>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("read {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    /// The file is not a kubeconfig.
    #[error("{}: not a kubeconfig: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    /// This process does not run in a pod.
    #[error("in-cluster configuration: {0}")]
    InCluster(&'static str),
    /// The server's address is invalid.
    #[error("API server {server:?}: {reason}")]
    Server {
        /// The configured address.
        server: String,
        reason: &'static str,
    },
    /// Settings contradict each other.
    #[error("Kubernetes settings: {0}")]
    Mismatch(&'static str),
    /// TLS refuses the certificates or keys.
    #[error("TLS for API server {server}: {reason}")]
    Tls {
        server: String,
        /// The text of rustls.
        reason: String,
    },
}

/// Everything that is needed to connect.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) authorities: Option<Material>,
    /// Certificate and key.
    pub(crate) identity: Option<(Material, Material)>,
    /// The name that the server's certificate must have, if it is not the host.
    pub(crate) server_name: Option<String>,
    pub(crate) skip_verify: bool,
    pub(crate) credential: Credential,
    pub(crate) namespace: Option<String>,
}

/// The settings before they are checked; kubeconfig, service account and overrides all fill one of
/// these.
#[derive(Debug, Clone, Default)]
struct UncheckedConfig {
    server: Option<String>,
    authorities: Option<Material>,
    certificate: Option<Material>,
    key: Option<Material>,
    server_name: Option<String>,
    skip_verify: bool,
    token: Option<Secret>,
    token_file: Option<PathBuf>,
    basic: Option<(String, Secret)>,
    namespace: Option<String>,
}

/// PEM data, in a file that is read for each connection, or in memory.
#[derive(Debug, Clone)]
pub(crate) enum Material {
    File(PathBuf),
    Here(Secret<Vec<u8>>),
}

#[derive(Debug, Clone)]
pub(crate) enum Credential {
    None,
    Token(Secret),
    /// A token file that is read for each request; the other token is used while it is unreadable.
    TokenFile(PathBuf, Option<Secret>),
    Basic(String, Secret),
}

// === impl Source ===

impl Source {
    /// An unmodified kubeconfig file.
    pub fn kubeconfig(path: impl Into<PathBuf>) -> Self {
        Self::Kubeconfig { path: path.into(), overrides: Overrides::default() }
    }

    /// The service account of this process's pod.
    pub fn in_cluster() -> Self {
        Self::InCluster { overrides: Overrides::default() }
    }

    /// The source for Calico's network configuration (calico-cni.md section 1.2, sections
    /// `kubernetes` and `policy`): single settings win over the kubeconfig; without both, the
    /// service account of this process's pod is used. Old configurations append `/api/v1/` to the
    /// server's address, which is removed.
    pub fn of_calico(kubeconfig: Option<PathBuf>, mut overrides: Overrides) -> Self {
        overrides.server =
            overrides.server.map(|server| server.split("/api/").next().unwrap_or_default().to_owned());
        match kubeconfig {
            Some(path) => Self::Kubeconfig { path, overrides },
            None if overrides.server.is_some() => Self::Direct { overrides },
            None => Self::InCluster { overrides },
        }
    }

    /// Reads and checks it.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let (mut unchecked, overrides) = match self {
            Self::Kubeconfig { path, overrides } => (kubeconfig::read(path)?, overrides),
            Self::InCluster { overrides } => (in_cluster::of_process()?, overrides),
            Self::Direct { overrides } => (UncheckedConfig::default(), overrides),
        };
        unchecked.take(overrides);
        unchecked.check()
    }

    /// The file whose change requires a reload.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Kubeconfig { path, .. } => Some(path),
            _ => None,
        }
    }
}

// === impl UncheckedConfig ===

impl UncheckedConfig {
    fn take(&mut self, overrides: &Overrides) {
        let Overrides { server, token, certificate_authority, client_certificate, client_key } =
            overrides.clone();
        let file = |path: Option<PathBuf>| path.map(Material::File);
        self.server = server.or(self.server.take());
        self.authorities = file(certificate_authority).or(self.authorities.take());
        self.certificate = file(client_certificate).or(self.certificate.take());
        self.key = file(client_key).or(self.key.take());
        if token.is_some() {
            (self.token, self.token_file, self.basic) = (token, None, None);
        }
    }

    fn check(self) -> Result<Config, ConfigError> {
        let secured = self.authorities.is_some() || self.certificate.is_some() || self.skip_verify;
        let given = self.server.as_deref().ok_or(ConfigError::Mismatch("no API server is named"))?;
        let server = Server::parse(given, secured)?;
        let credential = match (self.token_file, self.token, self.basic) {
            (Some(path), token, _) => Credential::TokenFile(path, token),
            (None, Some(token), _) => Credential::Token(token),
            (None, None, Some((user, password))) => Credential::Basic(user, password),
            (None, None, None) => Credential::None,
        };
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(ConfigError::Mismatch("a client certificate and its key go together")),
        };
        if self.skip_verify && self.authorities.is_some() {
            return Err(ConfigError::Mismatch(
                "certificate-authority and insecure-skip-tls-verify contradict each other",
            ));
        }
        if !server.tls && identity.is_some() {
            return Err(ConfigError::Mismatch(
                "a client certificate is of no use over http: make the server https",
            ));
        }
        Ok(Config {
            server,
            authorities: self.authorities,
            identity,
            server_name: self.server_name,
            skip_verify: self.skip_verify,
            credential,
            namespace: self.namespace,
        })
    }
}

// === impl Material ===

impl Material {
    pub(crate) fn read(&self) -> Result<Vec<u8>, ConfigError> {
        match self {
            Self::File(path) => read_file(path),
            Self::Here(bytes) => Ok(bytes.reveal().clone()),
        }
    }
}

/// Reads a file; one that is far too large is refused.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    use std::io::Read;
    let failed = |source| ConfigError::File { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("larger than {MAX_FILE_BYTES} bytes");
        return Err(failed(std::io::Error::new(std::io::ErrorKind::FileTooLarge, reason)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(overrides: Overrides) -> Result<Config, ConfigError> {
        Source::Direct { overrides }.load()
    }

    #[test]
    fn contradicting_settings_are_refused() {
        let server = |server: &str| Overrides { server: Some(server.to_owned()), ..Overrides::default() };
        direct(server("https://a")).unwrap();
        for (overrides, reason) in [
            (Overrides::default(), "no API server"),
            (Overrides { client_key: Some("k".into()), ..server("https://a") }, "go together"),
            (
                Overrides {
                    client_key: Some("k".into()),
                    client_certificate: Some("c".into()),
                    ..server("http://a")
                },
                "of no use",
            ),
        ] {
            let error = direct(overrides).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn calicos_settings_are_a_kubeconfig_a_server_or_the_pods_account() {
        let server =
            Overrides { server: Some("https://10.96.0.1:443/api/v1/".to_owned()), ..Overrides::default() };
        assert_eq!(
            Source::of_calico(None, server.clone()).load().unwrap().server.to_string(),
            "https://10.96.0.1:443"
        );
        let both = Source::of_calico(Some("/etc/cni/net.d/calico-kubeconfig".into()), server);
        assert!(matches!(both, Source::Kubeconfig { overrides, .. } if overrides.server.is_some()));
        assert!(matches!(Source::of_calico(None, Overrides::default()), Source::InCluster { .. }));
    }

    #[test]
    fn a_configuration_prints_without_its_secrets() {
        let overrides = Overrides {
            server: Some("https://a".to_owned()),
            token: Some(Secret::new("opensesame")),
            ..Overrides::default()
        };
        let printed = format!("{overrides:?} {:?}", direct(overrides.clone()).unwrap());
        assert!(printed.contains("(secret)") && !printed.contains("opensesame"), "{printed}");
    }
}
