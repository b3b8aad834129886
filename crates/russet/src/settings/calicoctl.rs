//! The configuration of calicoctl, which names a Calico cluster's datastore:
//! `/etc/calico/calicoctl.cfg`, else the variables that calicoctl reads (calico-ipam.md section
//! 4.3). An existing file takes precedence, as it does for calicoctl.

use std::path::{Path, PathBuf};

use russet_agent::{EtcdSettings, Secret};
use russet_kube::yaml;
use serde::Deserialize;

use super::{Origin, SettingsError};

/// The etcd in calicoctl's configuration.
pub(super) struct Calicoctl {
    pub settings: EtcdSettings,
    /// The file or variable that names it.
    pub origin: Origin,
}

/// Below a root.
pub(super) const CONFIG_FILE: &str = "etc/calico/calicoctl.cfg";
/// The system's CA certificates, which Calico uses if it has no others.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The members of the file that describe datastores.
#[derive(Debug, Default, Deserialize)]
struct CalicoApiConfig {
    #[serde(default)]
    spec: Spec,
}

/// How the place begins where it is the environment; paths begin with a slash.
pub(super) const VARIABLE: &str = "variable ";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    datastore_type: Option<String>,
    etcd_endpoints: Option<String>,
    etcd_discovery_srv: Option<String>,
    etcd_username: Option<String>,
    etcd_password: Option<String>,
    etcd_key_file: Option<PathBuf>,
    etcd_cert_file: Option<PathBuf>,
    #[serde(rename = "etcdCACertFile")]
    etcd_ca_cert_file: Option<PathBuf>,
    etcd_key: Option<String>,
    etcd_cert: Option<String>,
    #[serde(rename = "etcdCACert")]
    etcd_ca_cert: Option<String>,
    kubeconfig: Option<String>,
}

/// The configuration below `root` and in the variables; None if no datastore is configured.
pub(super) fn read(
    root: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Calicoctl>, SettingsError> {
    let path = root.join(CONFIG_FILE);
    let shown = path.display().to_string();
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let config: CalicoApiConfig = yaml::from_slice(text.as_bytes()).map_err(|error| {
                SettingsError::Calicoctl { place: shown.clone(), reason: error.to_string() }
            })?;
            config.spec.etcd(&shown)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let place = ["ETCD_ENDPOINTS", "ETCD_DISCOVERY_SRV", "DATASTORE_TYPE"]
                .into_iter()
                .find_map(|name| named(&variable, name));
            let Some((place, _)) = place else { return Ok(None) };
            Spec::of_variables(&variable).etcd(&format!("{VARIABLE}{place}"))
        }
        Err(source) => Err(SettingsError::Read { path: shown, source }),
    }
}

/// A variable with Calico's prefix, or else without it; an empty one counts as unset.
fn named(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<(String, String)> {
    let names = [format!("CALICO_{name}"), name.to_owned()];
    names.into_iter().find_map(|name| {
        let value = variable(&name).filter(|value| !value.is_empty())?;
        Some((name, value))
    })
}

// === impl Spec ===

impl Spec {
    fn of_variables(variable: &impl Fn(&str) -> Option<String>) -> Self {
        let text = |name| named(variable, name).map(|(_, value)| value);
        let path = |name| text(name).map(PathBuf::from);
        Self {
            datastore_type: text("DATASTORE_TYPE"),
            etcd_endpoints: text("ETCD_ENDPOINTS"),
            etcd_discovery_srv: text("ETCD_DISCOVERY_SRV"),
            etcd_username: text("ETCD_USERNAME"),
            etcd_password: text("ETCD_PASSWORD"),
            etcd_key_file: path("ETCD_KEY_FILE"),
            etcd_cert_file: path("ETCD_CERT_FILE"),
            etcd_ca_cert_file: path("ETCD_CA_CERT_FILE"),
            kubeconfig: text("KUBECONFIG"),
            ..Self::default()
        }
    }

    fn etcd(self, place: &str) -> Result<Option<Calicoctl>, SettingsError> {
        let refused = |reason: &str| {
            Err(SettingsError::Calicoctl { place: place.to_owned(), reason: reason.to_owned() })
        };
        let endpoints = self.etcd_endpoints.filter(|endpoints| !endpoints.is_empty());
        match self.datastore_type.as_deref().unwrap_or_default() {
            "etcdv3" => {}
            "" if endpoints.is_some() || self.etcd_discovery_srv.is_some() => {}
            "" if self.kubeconfig.is_none() => return Ok(None),
            "" | "kubernetes" => {
                return refused(
                    "it says that the datastore is Kubernetes, which Russet cannot read yet; give --store etcd:URL",
                );
            }
            "etcdv2" => {
                return refused(
                    "it names data of Calico v1 (etcdv2): carry them over with `russet migrate calico-v1`, and give --store etcd:URL",
                );
            }
            _ => return refused("datastoreType is neither etcdv3 nor kubernetes"),
        }
        let Some(endpoints) = endpoints else {
            return refused(
                "it names no etcd endpoints (etcd_discovery_srv is not supported); give --store etcd:URL",
            );
        };
        if self.etcd_key.is_some() || self.etcd_cert.is_some() || self.etcd_ca_cert.is_some() {
            return refused(
                "certificates within the file are not supported; put them into files, and give --store and --etcd-*-file",
            );
        }
        let mut settings = EtcdSettings::for_endpoints(&endpoints)?;
        if settings.endpoints.iter().any(|endpoint| endpoint.starts_with("https:")) {
            (settings.key, settings.cert) = (self.etcd_key_file, self.etcd_cert_file);
            let system = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
            settings.ca = self.etcd_ca_cert_file.or_else(system);
        }
        settings.username = self.etcd_username;
        settings.password = self.etcd_password.map(Secret::new);
        settings.check()?;
        Ok(Some(Calicoctl { settings, origin: Origin::Calicoctl(place.to_owned()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(file: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Calicoctl>, String> {
        let root = tempfile::tempdir().unwrap();
        if let Some(text) = file {
            std::fs::create_dir_all(root.path().join("etc/calico")).unwrap();
            std::fs::write(root.path().join(CONFIG_FILE), text).unwrap();
        }
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        read(root.path(), variable).map_err(|error| error.to_string())
    }

    const FILE: &str = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n  datastoreType: etcdv3\n  \
        etcdEndpoints: \"https://a:2379,https://b\"\n  etcdCACertFile: /ca\n  etcdUsername: u\n  etcdPassword: p\n";

    #[test]
    fn the_file_wins_over_the_variables_as_it_does_for_calicoctl() {
        let found = with(Some(FILE), &[("ETCD_ENDPOINTS", "http://c:1")]).unwrap().unwrap();
        assert_eq!(found.settings.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(found.settings.ca, Some("/ca".into()));
        assert_eq!(found.settings.password, Some(Secret::new("p")));
        assert!(found.origin.to_string().ends_with("etc/calico/calicoctl.cfg"), "{}", found.origin);
    }

    #[test]
    fn variables_with_calicos_prefix_take_precedence() {
        let variables = [("ETCD_ENDPOINTS", "http://c:1"), ("CALICO_ETCD_ENDPOINTS", "http://d:1")];
        let found = with(None, &variables).unwrap().unwrap();
        assert_eq!(found.settings.endpoints, ["http://d:1"]);
        assert_eq!(found.origin.to_string(), "calicoctl's configuration, variable CALICO_ETCD_ENDPOINTS");
        assert!(with(None, &[("ETCD_ENDPOINTS", "")]).unwrap().is_none());
        assert!(with(None, &[]).unwrap().is_none());
    }

    #[test]
    fn unsupported_datastores_are_named() {
        let refusal = |file, variables: &[_]| with(file, variables).err().unwrap();
        assert!(refusal(None, &[("DATASTORE_TYPE", "kubernetes")]).contains("Kubernetes"));
        assert!(refusal(None, &[("DATASTORE_TYPE", "etcdv3")]).contains("no etcd endpoints"));
        assert!(refusal(Some("spec: [1"), &[]).contains("calicoctl.cfg"));
        assert!(refusal(Some("spec:\n  datastoreType: etcdv2\n"), &[]).contains("migrate calico-v1"));
    }
}
