//! The source of leases: etcd with flannel's flags, the embedded store of this machine, or
//! Kubernetes. Opened once, at the start; the connection to etcd is made at the first request.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::Mac;
use russet_kube::{Client, Kubernetes, Overrides, Source as KubeSource};
use russet_lease::kube::{self, KubeManager, KubeSettings, PrefixError};
use russet_lease::{LeaseError, Paths, Settings as LeaseSettings, StoreManager, SubnetManager};
use russet_model::Key;
use russet_store::{Access, Cause, Remote, Store, StoreError, open_or_connect};
use russet_store_etcd::{Etcd, EtcdV2, LOCATION_SCHEME, Reach, Secret, Settings, SettingsError};

use crate::flags::{EtcdApi, Options};

/// The source of leases, and services that must run beside it.
pub struct Source {
    lessor: LeaseSource,
    /// Serves the embedded store to this machine's other processes; none if another process owns
    /// the store.
    pub service: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Its name in the log.
    pub name: String,
    /// Whether etcd answers; none where leases come from another store.
    pub etcd: Option<Reach>,
    /// Looks for data of flannel v0.10 to v0.17 in the same etcd; none where they are used anyway.
    pub older: Option<Rc<Older>>,
}

/// Data of flannel v0.10 to v0.17: behind the v2 API of an etcd that is used by its v3 API.
pub struct Older {
    store: EtcdV2,
    config: Key,
    endpoints: String,
}

/// The kinds of sources.
enum LeaseSource {
    Store(Rc<dyn SubnetManager>),
    /// The node's name may have to be looked up first.
    Kubernetes {
        api: Rc<dyn Kubernetes>,
        settings: KubeSettings,
    },
}

/// Settings of this node that were published before its daemon started. A store has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Wins over `public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// Wins over `public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The MACs of its tunnel devices that peers know already.
    pub macs: [Option<Mac>; 2],
}

/// Leases are not available as the flags say.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The flags for etcd are invalid.
    #[error("etcd: {0}")]
    Etcd(#[from] SettingsError),
    /// The embedded store cannot be opened.
    #[error("open the embedded store: {0}")]
    Embedded(#[from] StoreError),
    /// `store` names an unknown kind.
    #[error("store {0:?}: it must be etcd:URL,..., embedded, embedded:DIRECTORY or unix:SOCKET")]
    Unknown(String),
    /// The API server cannot be used as the flags say.
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] russet_kube::ConfigError),
    /// A password file cannot be read.
    #[error("read etcd-password-file {}: {source}", path.display())]
    PasswordFile { path: PathBuf, source: std::io::Error },
    /// Two passwords are given.
    #[error("etcd-password and etcd-password-file are both given: leave one out")]
    TwoPasswords,
    /// Credentials would be sent unencrypted.
    #[error(
        "{what} would go to {server} in clear text: use https, or start flanneld with -allow-plaintext-credentials"
    )]
    Plaintext {
        what: &'static str,
        /// The destination.
        server: String,
    },
    /// The annotations' prefix is invalid.
    #[error("kube-annotation-prefix: {0}")]
    Prefix(#[from] PrefixError),
}

/// The embedded store's directory, beside the agent's.
const EMBEDDED_DIR: &str = "/var/lib/russet/flanneld";
/// Limit of one call to etcd in a check, because an operator waits for the answer.
const CHECK_CALL_DEADLINE: Duration = Duration::from_secs(4);
/// Limit of a search for older data; the next attempt repeats it.
const OLDER_DEADLINE: Duration = Duration::from_secs(2);
/// How long to wait for a process that has the store's file open and does not answer.
const OWNER_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Source ===

impl Source {
    /// Opens what the flags name.
    pub async fn open(options: &Options) -> Result<Self, SourceError> {
        if options.kube_subnet_mgr {
            return Self::kubernetes(options);
        }
        let (scheme, rest) = options.store.split_once(':').unwrap_or((options.store.as_str(), ""));
        match (scheme, rest) {
            ("", "") => Self::etcd(options, &options.etcd_endpoints),
            ("etcd", endpoints) => Self::etcd(options, endpoints),
            ("embedded", directory) => {
                Self::embedded(
                    options,
                    Path::new(if directory.is_empty() { EMBEDDED_DIR } else { directory }),
                )
                .await
            }
            ("unix", socket) if socket.starts_with('/') => {
                let store = Remote::connect(PathBuf::from(socket));
                Ok(Self::from_store(options, Rc::new(store), options.store.clone()))
            }
            _ => Err(SourceError::Unknown(options.store.clone())),
        }
    }

    /// The lease manager, and this node's published settings. An API server that does not answer
    /// now may answer later.
    pub async fn leases(&self) -> Result<(Rc<dyn SubnetManager>, Known), LeaseError> {
        let (api, settings) = match &self.lessor {
            LeaseSource::Store(leases) => return Ok((Rc::clone(leases), Known::default())),
            LeaseSource::Kubernetes { api, settings } => (api, settings),
        };
        let name = kube::node_name(api.as_ref(), |variable| std::env::var(variable).ok()).await?;
        let manager = KubeManager::new(Rc::clone(api), name, settings.clone());
        let stored = manager.stored().await?;
        let macs = stored.vteps.map(|vtep| vtep.map(|vtep| vtep.mac));
        let known = Known { public_ip: stored.public_ip, public_ipv6: stored.public_ipv6, macs };
        Ok((Rc::new(manager), known))
    }

    fn kubernetes(options: &Options) -> Result<Self, SourceError> {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let overrides = Overrides { server: given(&options.kube_api_url), ..Overrides::default() };
        let kubeconfig = given(&options.kubeconfig_file).map(PathBuf::from);
        let client = Client::new(KubeSource::of_calico(kubeconfig, overrides))?;
        if client.plaintext_credentials() && !options.allow_plaintext_credentials {
            let what = "the Kubernetes token or password";
            return Err(SourceError::Plaintext { what, server: client.server() });
        }
        let settings = KubeSettings {
            prefix: options.kube_annotation_prefix.parse()?,
            net_conf: options.net_config_path.clone(),
            set_network_unavailable: options.set_node_network_unavailable,
        };
        let name = format!("kubernetes:{}", client.server());
        let lessor = LeaseSource::Kubernetes { api: Rc::new(client), settings };
        Ok(Self { lessor, service: None, name, etcd: None, older: None })
    }

    fn etcd(options: &Options, endpoints: &str) -> Result<Self, SourceError> {
        let settings = settings(options, endpoints)?;
        let name = format!("{LOCATION_SCHEME}{}", settings.endpoints.join(","));
        let (store, reach, older): (Rc<dyn Store>, _, _) = match options.etcd_api {
            EtcdApi::V3 => {
                let older = Older::new(options, &settings)?;
                let etcd = Etcd::connect(settings)?;
                let reach = etcd.reach();
                (Rc::new(etcd), reach, Some(Rc::new(older)))
            }
            EtcdApi::V2 => {
                let etcd = EtcdV2::connect(settings)?;
                let reach = etcd.reach();
                (Rc::new(etcd), reach, None)
            }
        };
        Ok(Self { etcd: Some(reach), older, ..Self::from_store(options, store, name) })
    }

    async fn embedded(options: &Options, directory: &Path) -> Result<Self, SourceError> {
        let name = format!("embedded:{}", directory.display());
        let locked = match open_or_connect(directory, OWNER_TIMEOUT).await? {
            Access::Remote(remote) => return Ok(Self::from_store(options, Rc::new(remote), name)),
            Access::Locked(locked) => Rc::new(locked),
        };
        let listener = russet_store::listen(directory, &locked).map_err(|error| StoreError::Unavailable {
            operation: format!("make the store's socket in {}", directory.display()),
            source: Cause::new(error),
        })?;
        let mut source = Self::from_store(options, Rc::new(locked.store().clone()), name);
        source.service = Some(Box::pin(async move {
            russet_store::serve(locked.store().clone(), listener, std::future::pending()).await;
        }));
        Ok(source)
    }

    fn from_store(options: &Options, store: Rc<dyn Store>, name: String) -> Self {
        let settings = match options.etcd_api {
            EtcdApi::V2 => LeaseSettings::rooted(&options.etcd_prefix),
            EtcdApi::V3 => LeaseSettings::new(options.etcd_prefix.as_str()),
        };
        let leases = StoreManager::new(store, settings);
        let lessor = LeaseSource::Store(Rc::new(leases));
        Self { lessor, service: None, name, etcd: None, older: None }
    }
}

// === impl Older ===

impl Older {
    fn new(options: &Options, settings: &Settings) -> Result<Self, SettingsError> {
        let settings = Settings { deadline: OLDER_DEADLINE, ..settings.clone() };
        let endpoints = settings.endpoints.join(",");
        let config = Paths::new(&LeaseSettings::rooted(&options.etcd_prefix).prefix).config();
        Ok(Self { store: EtcdV2::connect(settings)?, config, endpoints })
    }

    /// Advice if the network's configuration is behind the v2 API; none if it is not, or if that is
    /// unknown.
    pub async fn advice(&self) -> Option<String> {
        self.store.get(&self.config).await.ok()??;
        let Self { config, endpoints, .. } = self;
        Some(format!(
            "flannel v0.10 to v0.17 left one at {config} behind the v2 API of the same etcd: either stay with it by -etcd-api=v2, or migrate it by `russet migrate flannel-v2 --from {endpoints} --to etcd:{endpoints}`"
        ))
    }
}

/// flannel's flags as settings of the etcd client. As in flannel, TLS needs key and certificate;
/// over plain http they are ignored, although flannel v0.20.0 requires them even then. Here a
/// certificate authority alone suffices for https.
fn settings(options: &Options, endpoints: &str) -> Result<Settings, SourceError> {
    let mut settings = Settings::for_endpoints(endpoints)?;
    if options.takeover_check {
        settings.deadline = CHECK_CALL_DEADLINE;
    }
    let given = |path: &str| Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    if settings.endpoints.iter().any(|endpoint| endpoint.starts_with("https:")) {
        settings.ca = given(&options.etcd_cafile);
        (settings.cert, settings.key) = (given(&options.etcd_certfile), given(&options.etcd_keyfile));
        if settings.cert.is_some() != settings.key.is_some() {
            tracing::warn!("etcd-certfile and etcd-keyfile go together: neither is used");
            (settings.cert, settings.key) = (None, None);
        }
    } else if given(&options.etcd_certfile).or(given(&options.etcd_cafile)).is_some() {
        tracing::warn!("etcd's endpoints are plain http: certificates are not used");
    }
    if !options.etcd_username.is_empty() {
        settings.username = Some(options.etcd_username.clone());
        settings.password = Some(password(options)?);
    }
    settings.check()?;
    match settings.plaintext_credentials() {
        Some(server) if !options.allow_plaintext_credentials => {
            Err(SourceError::Plaintext { what: "etcd user and password", server: server.to_owned() })
        }
        _ => Ok(settings),
    }
}

/// The etcd user's password, from the command line, the environment, or a file, whose last line may
/// end with a newline.
fn password(options: &Options) -> Result<Secret, SourceError> {
    let path = &options.etcd_password_file;
    if path.as_os_str().is_empty() {
        return Ok(options.etcd_password.clone());
    }
    if !options.etcd_password.reveal().is_empty() {
        return Err(SourceError::TwoPasswords);
    }
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| SourceError::PasswordFile { path: path.clone(), source })?;
    Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// flannel.md section 1.3.
    #[test]
    fn certificates_count_over_https_only_and_in_pairs() {
        let with = |endpoints: &str, cert: &str, key: &str, ca: &str| {
            let options = Options {
                etcd_certfile: cert.to_owned(),
                etcd_keyfile: key.to_owned(),
                etcd_cafile: ca.to_owned(),
                ..Options::default()
            };
            settings(&options, endpoints).map(|settings| (settings.cert.is_some(), settings.ca.is_some()))
        };
        assert_eq!(with("http://a:1,http://b:2", "c", "k", "a").unwrap(), (false, false));
        assert_eq!(with("https://a", "c", "k", "a").unwrap(), (true, true));
        assert_eq!(with("https://a", "c", "", "a").unwrap(), (false, true));
        assert!(with("https://a", "c", "k", "").is_err(), "no certificate authority");
        assert!(with("https://a,http://b", "", "", "a").is_err());
        let defaults = Options::default();
        assert_eq!(settings(&defaults, &defaults.etcd_endpoints).unwrap().endpoints.len(), 2);
    }

    #[test]
    fn a_user_comes_with_its_password_which_is_not_shown() {
        let options = Options {
            etcd_username: "root".to_owned(),
            etcd_password: Secret::new("opensesame"),
            ..Options::default()
        };
        let settings = settings(&options, "http://127.0.0.1").unwrap();
        assert_eq!(settings.password, Some(Secret::new("opensesame")));
        assert!(!format!("{settings:?}{options:?}").contains("opensesame"));
    }

    #[test]
    fn a_password_comes_from_a_file_and_is_not_sent_in_clear_text_unless_that_is_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "opensesame\n").unwrap();
        let by_file = Options {
            etcd_username: "root".to_owned(),
            etcd_password_file: file.path().to_owned(),
            ..Options::default()
        };
        let read = settings(&by_file, "http://127.0.0.1").unwrap();
        assert_eq!(read.password, Some(Secret::new("opensesame")));
        let error = settings(&by_file, "http://127.0.0.1,http://10.0.0.1").unwrap_err().to_string();
        assert!(error.contains("http://10.0.0.1:2379 in clear text"), "{error}");
        let allowed = Options { allow_plaintext_credentials: true, ..by_file.clone() };
        settings(&allowed, "http://10.0.0.1").unwrap();
        let twice = Options { etcd_password: Secret::new("x"), ..by_file.clone() };
        assert!(matches!(settings(&twice, "http://127.0.0.1"), Err(SourceError::TwoPasswords)));
        let missing = Options { etcd_password_file: "/nowhere/password".into(), ..by_file };
        let error = settings(&missing, "http://127.0.0.1").unwrap_err().to_string();
        assert!(error.starts_with("read etcd-password-file /nowhere/password: "), "{error}");
        settings(&Options::default(), "http://10.0.0.1").unwrap();
    }

    #[test]
    fn a_token_of_a_kubeconfig_does_not_go_to_another_machine_over_http_unless_that_is_allowed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = |server: &str, allow_plaintext_credentials: bool| {
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}],
                "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],"users":[{{"name":"u","user":{{"token":"opensesame"}}}}]}}"#
            );
            std::fs::write(file.path(), text).unwrap();
            let kubeconfig_file = file.path().display().to_string();
            Source::kubernetes(&Options {
                kubeconfig_file,
                allow_plaintext_credentials,
                ..Options::default()
            })
        };
        let refused = source("http://10.0.0.1:8080", false).err().unwrap().to_string();
        assert!(refused.contains("http://10.0.0.1:8080") && refused.contains("in clear text"), "{refused}");
        assert!(!refused.contains("opensesame"), "{refused}");
        for (server, allowed) in [
            ("http://10.0.0.1:8080", true),
            ("http://127.0.0.1:8080", false),
            ("https://10.0.0.1:6443", false),
        ] {
            assert!(source(server, allowed).is_ok(), "{server}");
        }
    }

    #[tokio::test]
    async fn an_unknown_store_is_refused() {
        for store in ["redis:x", "unix:relative", "etcd", "nonsense"] {
            let options = Options { store: store.to_owned(), ..Options::default() };
            assert!(Source::open(&options).await.is_err(), "{store}");
        }
    }
}
