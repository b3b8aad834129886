//! The datastore of a network's addresses and endpoints, and how to reach it (calico-cni.md section
//! 1.7).

use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_cni_spec::{CniError, Overrides};
use russet_store_etcd::{Secret, Settings as EtcdSettings};

use super::fields::{Fields, choose, choose_path};

/// A datastore as the configuration and the environment describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct DatastoreSettings {
    pub kind: DatastoreKind,
    /// Whether `datastore_type` was given. If not, an old configuration may mean etcd's v2 keys,
    /// and an etcd without Calico's v3 records is not used as v3.
    pub explicit: bool,
    /// How to reach etcd; empty for Kubernetes.
    pub etcd: EtcdMembers,
}

/// Datastores of Calico's plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatastoreKind {
    /// etcd v3.
    EtcdV3,
    /// etcd's v2 keys, used by plugins up to v1.11.
    EtcdV2,
    /// Kubernetes' own objects.
    Kubernetes,
}

/// Settings for the connection to etcd.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EtcdMembers {
    /// `etcd_endpoints`, joined by commas.
    pub endpoints: Option<String>,
    /// `etcd_discovery_srv`.
    pub discovery_srv: Option<String>,
    /// `etcd_authority`, with v1.11 only: `host:port`.
    pub authority: Option<String>,
    /// `etcd_scheme`, with v1.11 only.
    pub scheme: Option<String>,
    /// `etcd_key_file`.
    pub key: Option<PathBuf>,
    /// `etcd_cert_file`.
    pub cert: Option<PathBuf>,
    /// `etcd_ca_cert_file`.
    pub ca: Option<PathBuf>,
    /// `ETCD_USERNAME`; the configuration has no member for it.
    pub username: Option<String>,
    /// `ETCD_PASSWORD`.
    pub password: Option<Secret>,
    /// `etcd_password_file`, which Go's plugins do not have: a file with one line. `ETCD_PASSWORD`
    /// takes precedence.
    pub password_file: Option<PathBuf>,
    /// `allow_plaintext_credentials`, which Go's plugins do not have: user and password may be sent
    /// to other machines over http.
    pub allow_plaintext: bool,
}

/// Less than the plugin waits for an agent's answer to STATUS: a timeout there would only say that
/// the agent is slow.
const STATUS_TIMEOUT: Duration = Duration::from_millis(2500);

/// Files with the certificates of public authorities, which Go's client trusts if the configuration
/// names no file.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

// === impl DatastoreSettings ===

impl DatastoreSettings {
    pub(super) fn read(root: &Fields<'_>, overrides: &Overrides) -> Result<Self, CniError> {
        let etcd = EtcdMembers::read(root, overrides)?;
        let named = choose(overrides, "DATASTORE_TYPE", root.text("datastore_type")?);
        let kind = match named.as_deref() {
            Some("etcdv3") => DatastoreKind::EtcdV3,
            Some("etcdv2" | "etcdv2-legacy") => DatastoreKind::EtcdV2,
            Some("kubernetes") => DatastoreKind::Kubernetes,
            Some(other) => {
                let reason = format!("etcdv3, kubernetes or etcdv2 is wanted, not {other:?}");
                return Err(root.wrong("datastore_type", reason));
            }
            None if etcd.endpoints.is_some() || etcd.discovery_srv.is_some() => DatastoreKind::EtcdV3,
            // v3 plugins never read these two, so a configuration with only them is one of v1.11.
            None if etcd.authority.is_some() || etcd.scheme.is_some() => DatastoreKind::EtcdV2,
            None => DatastoreKind::Kubernetes,
        };
        Ok(Self { kind, explicit: named.is_some(), etcd })
    }

    /// The settings of an etcd v3; an error for other datastores.
    pub fn etcd_v3(&self) -> Result<EtcdSettings, CniError> {
        match self.kind {
            DatastoreKind::EtcdV3 => self.etcd.settings(),
            DatastoreKind::EtcdV2 => Err(CniError::unsupported_field(
                "datastore_type: \"etcdv2\" (the v2 keys of Calico v1.11) is not supported yet",
                "migrate the data with `russet migrate calico-v1` and set datastore_type to \"etcdv3\"; nothing was read or written",
            )),
            DatastoreKind::Kubernetes => Err(CniError::internal(
                "datastore_type: \"kubernetes\" has no etcd",
                "this is a fault of Russet",
            )),
        }
    }
}

impl DatastoreSettings {
    /// Waits for `answer`, with a limit: a runtime waits a few seconds for STATUS, and must get an
    /// error that names the silent datastore.
    pub async fn answer_in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, CniError>>,
    ) -> Result<T, CniError> {
        tokio::time::timeout(STATUS_TIMEOUT, answer).await.unwrap_or_else(|_| {
            let named = self.etcd.endpoints.as_deref().or(self.etcd.authority.as_deref());
            let kind = match self.kind {
                DatastoreKind::Kubernetes => "the Kubernetes API",
                DatastoreKind::EtcdV3 | DatastoreKind::EtcdV2 => "etcd",
            };
            let details = format!("nothing came from {} within {STATUS_TIMEOUT:?}", named.unwrap_or(kind));
            Err(CniError::try_again_later(format!("{kind} does not answer"), details))
        })
    }
}

// === impl EtcdMembers ===

impl EtcdMembers {
    fn read(root: &Fields<'_>, overrides: &Overrides) -> Result<Self, CniError> {
        let text = |name: &str, key: &str| root.text(key).map(|given| choose(overrides, name, given));
        let path = |name: &str, key: &str| root.path(key).map(|given| choose_path(overrides, name, given));
        Ok(Self {
            endpoints: text("ETCD_ENDPOINTS", "etcd_endpoints")?,
            discovery_srv: text("ETCD_DISCOVERY_SRV", "etcd_discovery_srv")?,
            authority: text("ETCD_AUTHORITY", "etcd_authority")?,
            scheme: text("ETCD_SCHEME", "etcd_scheme")?,
            key: path("ETCD_KEY_FILE", "etcd_key_file")?,
            cert: path("ETCD_CERT_FILE", "etcd_cert_file")?,
            ca: path("ETCD_CA_CERT_FILE", "etcd_ca_cert_file")?,
            username: choose(overrides, "ETCD_USERNAME", None),
            password: choose(overrides, "ETCD_PASSWORD", None).map(Secret::new),
            password_file: path("ETCD_PASSWORD_FILE", "etcd_password_file")?,
            allow_plaintext: root.flag("allow_plaintext_credentials")?,
        })
    }

    /// The settings of the etcd that the endpoints name.
    pub fn settings(&self) -> Result<EtcdSettings, CniError> {
        if self.discovery_srv.is_some() {
            return Err(self.srv_refused());
        }
        let Some(endpoints) = &self.endpoints else {
            let details =
                "set etcd_endpoints in the network configuration, or ETCD_ENDPOINTS for the runtime";
            return Err(CniError::invalid_config("no etcd endpoints are configured", details));
        };
        let wrong = |error| CniError::invalid_config("etcd_endpoints cannot be used", error);
        let mut settings = EtcdSettings::for_endpoints(endpoints).map_err(wrong)?;
        if is_secured(endpoints) {
            (settings.key, settings.cert) = (self.key.clone(), self.cert.clone());
            settings.ca = self.ca.clone().or_else(system_authorities);
        }
        (settings.username, settings.password) = (self.username.clone(), self.password()?);
        settings.check().map_err(|error| CniError::invalid_config("etcd cannot be used", error))?;
        match settings.plaintext_credentials() {
            Some(endpoint) if !self.allow_plaintext => Err(plaintext("etcd's user and password", endpoint)),
            _ => Ok(settings),
        }
    }

    /// The password, or the first line of its file, which is read each time.
    fn password(&self) -> Result<Option<Secret>, CniError> {
        let (None, Some(path), Some(_)) = (&self.password, &self.password_file, &self.username) else {
            return Ok(self.password.clone());
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| CniError::io(format!("read etcd_password_file {}", path.display()), error))?;
        Ok(Some(Secret::new(text.trim_end_matches(['\r', '\n']))))
    }

    /// Whether certificates are configured that no endpoint uses.
    pub(super) fn has_idle_certificates(&self) -> bool {
        let named = self.ca.is_some() || self.cert.is_some() || self.key.is_some();
        named && self.endpoints.as_deref().is_some_and(|endpoints| !is_secured(endpoints))
    }

    fn srv_refused(&self) -> CniError {
        if self.endpoints.is_some() {
            let details = "one of the two says where etcd is";
            return CniError::invalid_config(
                "etcd_endpoints and etcd_discovery_srv exclude each other",
                details,
            );
        }
        let details =
            "name the members in etcd_endpoints: dig +short SRV _etcd-client._tcp.DOMAIN lists them";
        CniError::unsupported_field("etcd_discovery_srv is not supported", details)
    }
}

/// The error for secrets that would be sent unencrypted over a network.
pub(crate) fn plaintext(what: &str, server: &str) -> CniError {
    let details = "use https, or set allow_plaintext_credentials to true in the network configuration";
    CniError::invalid_config(format!("{what} would go to {server} in clear text"), details)
}

fn is_secured(endpoints: &str) -> bool {
    endpoints.split(',').any(|endpoint| endpoint.trim().starts_with("https:"))
}

fn system_authorities() -> Option<PathBuf> {
    SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned)
}
