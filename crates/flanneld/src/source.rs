//! Where leases come from: etcd with flannel's flags, the embedded store of this machine, or Kubernetes. Opened once, at the start; etcd is
//! connected when it is first asked.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::Mac;
use russet_kube::{Client, Kubernetes, Overrides, Source as KubeSource};
use russet_lease::kube::{self, KubeManager, KubeSettings, PrefixError};
use russet_lease::{LeaseError, Settings as LeaseSettings, StoreManager, SubnetManager};
use russet_store::{Access, Cause, Remote, Store, StoreError, open_or_connect};
use russet_store_etcd::{Etcd, EtcdV2, LOCATION_SCHEME, Secret, Settings, SettingsError};

use crate::flags::{EtcdApi, Options};

/// Where leases come from, and what has to run beside it.
pub struct Source {
    lessor: Lessor,
    /// Serves the embedded store to this machine's other processes; none when it is not ours.
    pub service: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// For the log.
    pub name: String,
}

/// Who gives them out.
enum Lessor {
    Store(Rc<dyn SubnetManager>),
    /// The node's name may have to be asked for first.
    Kubernetes {
        api: Rc<dyn Kubernetes>,
        settings: KubeSettings,
    },
}

/// What was said about this node before its daemon said anything. From a store nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Wins over `public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// Wins over `public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The MACs of its tunnels' devices that peers know already.
    pub macs: [Option<Mac>; 2],
}

/// Leases cannot be had as the flags say.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// etcd's flags.
    #[error("etcd: {0}")]
    Etcd(#[from] SettingsError),
    /// The embedded store.
    #[error("open the embedded store: {0}")]
    Embedded(#[from] StoreError),
    /// `store` is none that we know.
    #[error("store {0:?}: etcd:URL,..., embedded, embedded:DIRECTORY or unix:SOCKET is wanted")]
    Unknown(String),
    /// The API server cannot be used as the flags say.
    #[error("Kubernetes: {0}")]
    Kubernetes(#[from] russet_kube::ConfigError),
    /// The annotations' prefix.
    #[error("kube-annotation-prefix: {0}")]
    Prefix(#[from] PrefixError),
}

/// Where the embedded store of a machine lies, beside the agent's.
const EMBEDDED_DIR: &str = "/var/lib/russet/flanneld";
/// How long to wait for a process that has the store's file open and does not answer.
const OWNER_PATIENCE: Duration = Duration::from_secs(30);

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
                Ok(Self::of(options, Rc::new(store), options.store.clone()))
            }
            _ => Err(SourceError::Unknown(options.store.clone())),
        }
    }

    /// Leases, and what is known of this node; an API server that does not answer may answer later.
    pub async fn leases(&self) -> Result<(Rc<dyn SubnetManager>, Known), LeaseError> {
        let (api, settings) = match &self.lessor {
            Lessor::Store(leases) => return Ok((Rc::clone(leases), Known::default())),
            Lessor::Kubernetes { api, settings } => (api, settings),
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
        let settings = KubeSettings {
            prefix: options.kube_annotation_prefix.parse()?,
            net_conf: options.net_config_path.clone(),
            set_network_unavailable: options.set_node_network_unavailable,
        };
        let name = format!("kubernetes:{}", client.server());
        Ok(Self { lessor: Lessor::Kubernetes { api: Rc::new(client), settings }, service: None, name })
    }

    fn etcd(options: &Options, endpoints: &str) -> Result<Self, SourceError> {
        let settings = settings(options, endpoints)?;
        let name = format!("{LOCATION_SCHEME}{}", settings.endpoints.join(","));
        let store: Rc<dyn Store> = match options.etcd_api {
            EtcdApi::V3 => Rc::new(Etcd::connect(settings)?),
            EtcdApi::V2 => Rc::new(EtcdV2::connect(settings)?),
        };
        Ok(Self::of(options, store, name))
    }

    async fn embedded(options: &Options, directory: &Path) -> Result<Self, SourceError> {
        let name = format!("embedded:{}", directory.display());
        let locked = match open_or_connect(directory, OWNER_PATIENCE).await? {
            Access::Remote(remote) => return Ok(Self::of(options, Rc::new(remote), name)),
            Access::Locked(locked) => Rc::new(locked),
        };
        let listener = russet_store::listen(directory, &locked).map_err(|error| StoreError::Unavailable {
            operation: format!("make the store's socket in {}", directory.display()),
            source: Cause::new(error),
        })?;
        let mut source = Self::of(options, Rc::new(locked.store().clone()), name);
        source.service = Some(Box::pin(async move {
            russet_store::serve(locked.store().clone(), listener, std::future::pending()).await;
        }));
        Ok(source)
    }

    fn of(options: &Options, store: Rc<dyn Store>, name: String) -> Self {
        let settings = match options.etcd_api {
            EtcdApi::V2 => LeaseSettings::rooted(&options.etcd_prefix),
            EtcdApi::V3 => LeaseSettings::new(options.etcd_prefix.as_str()),
        };
        let leases = StoreManager::new(store, settings);
        Self { lessor: Lessor::Store(Rc::new(leases)), service: None, name }
    }
}

/// flannel's flags as the engine wants them. TLS needs key and certificate, as with flannel; over plain http they are of no use, which
/// flannel v0.20.0 demands all the same. An authority alone is enough for https here.
fn settings(options: &Options, endpoints: &str) -> Result<Settings, SettingsError> {
    let mut settings = Settings::for_endpoints(endpoints)?;
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
        settings.password = Some(Secret::new(options.etcd_password.0.clone()));
    }
    settings.check()?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Password;

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
        assert!(with("https://a", "c", "k", "").is_err(), "nobody to trust");
        assert!(with("https://a,http://b", "", "", "a").is_err());
        let defaults = Options::default();
        assert_eq!(settings(&defaults, &defaults.etcd_endpoints).unwrap().endpoints.len(), 2);
    }

    #[test]
    fn a_user_comes_with_its_password_which_is_not_shown() {
        let options = Options {
            etcd_username: "root".to_owned(),
            etcd_password: Password("opensesame".to_owned()),
            ..Options::default()
        };
        let settings = settings(&options, "http://a").unwrap();
        assert_eq!(settings.password, Some(Secret::new("opensesame")));
        assert!(!format!("{settings:?}{options:?}").contains("opensesame"));
    }

    #[tokio::test]
    async fn an_unknown_store_is_refused() {
        for store in ["redis:x", "unix:relative", "etcd", "nonsense"] {
            let options = Options { store: store.to_owned(), ..Options::default() };
            assert!(Source::open(&options).await.is_err(), "{store}");
        }
    }
}
