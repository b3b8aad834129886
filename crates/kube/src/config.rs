//! How to reach an API server and who we are there: what a kubeconfig, a pod's service account or Calico's network configuration comes
//! down to, checked before anything connects.

mod in_cluster;
mod kubeconfig;
mod server;

use std::path::{Path, PathBuf};

pub(crate) use server::Server;

use crate::Secret;

/// Largest kubeconfig, token or certificate file: a bundle of all public authorities has about 220 kB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Where the configuration comes from. A client reads the file anew when it changes: Calico's installer, for one, writes a new token into
/// its kubeconfig every few hours (calico-cni.md section 1.9).
#[derive(Debug, Clone)]
pub enum Source {
    /// A kubeconfig file; what the overrides name wins over it.
    Kubeconfig {
        /// Where it is.
        path: PathBuf,
        /// What wins over it.
        overrides: Overrides,
    },
    /// The service account of the pod that we run in; what the overrides name wins over it.
    InCluster {
        /// What wins over it.
        overrides: Overrides,
    },
    /// Everything is named here.
    Direct {
        /// `server` is required.
        overrides: Overrides,
    },
}

/// Settings named one by one, as Calico's network configuration has them. Whatever is `None` comes from elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `https://host:port`, with a path if the server lives below one.
    pub server: Option<String>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// PEM file with the authorities that the server's certificate comes from.
    pub certificate_authority: Option<PathBuf>,
    /// PEM file with a client certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with its private key.
    pub client_key: Option<PathBuf>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A kubeconfig that is none.
    #[error("{}: not a kubeconfig: {reason}", path.display())]
    Kubeconfig {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// We do not run in a pod.
    #[error("in-cluster configuration: {0}")]
    InCluster(&'static str),
    /// A server's address that is none.
    #[error("API server {server:?}: {reason}")]
    Server {
        /// As it was given.
        server: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Settings that do not fit together.
    #[error("Kubernetes settings: {0}")]
    Mismatch(&'static str),
    /// Certificates or keys that TLS refuses.
    #[error("TLS for API server {server}: {reason}")]
    Tls {
        /// Which server.
        server: String,
        /// What rustls said.
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
    /// The name that the server's certificate must carry, when it is not the host.
    pub(crate) server_name: Option<String>,
    pub(crate) skip_verify: bool,
    pub(crate) credential: Credential,
    pub(crate) namespace: Option<String>,
}

/// What was said before it is checked; kubeconfig, service account and overrides all fill one of these.
#[derive(Debug, Clone, Default)]
struct Draft {
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

/// PEM, in a file that is read anew for each connection, or here.
#[derive(Debug, Clone)]
pub(crate) enum Material {
    File(PathBuf),
    Here(Secret<Vec<u8>>),
}

/// Who we are.
#[derive(Debug, Clone)]
pub(crate) enum Credential {
    None,
    Token(Secret),
    /// Read anew for each request; the other is used while it cannot be read.
    TokenFile(PathBuf, Option<Secret>),
    Basic(String, Secret),
}

// === impl Source ===

impl Source {
    /// A kubeconfig file as it is.
    pub fn kubeconfig(path: impl Into<PathBuf>) -> Self {
        Self::Kubeconfig { path: path.into(), overrides: Overrides::default() }
    }

    /// The service account of the pod that we run in.
    pub fn in_cluster() -> Self {
        Self::InCluster { overrides: Overrides::default() }
    }

    /// Where Calico's network configuration says that the server is (calico-cni.md section 1.2, sections `kubernetes` and `policy`): what is named one
    /// by one wins over the kubeconfig; if neither is there, the service account of the pod that we run in serves. Old configurations
    /// append `/api/v1/` to the server's address, which is cut off.
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
        let (mut draft, overrides) = match self {
            Self::Kubeconfig { path, overrides } => (kubeconfig::read(path)?, overrides),
            Self::InCluster { overrides } => (in_cluster::of_process()?, overrides),
            Self::Direct { overrides } => (Draft::default(), overrides),
        };
        draft.take(overrides);
        draft.check()
    }

    /// The file whose change changes everything.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::Kubeconfig { path, .. } => Some(path),
            _ => None,
        }
    }
}

// === impl Draft ===

impl Draft {
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

/// A file's bytes; a file that is far too large is refused instead of read.
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
    fn settings_that_do_not_fit_together_are_refused() {
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
