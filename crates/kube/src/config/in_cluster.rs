//! The configuration of a program in a pod: its service account, as Kubernetes mounts it.

use std::path::Path;

use super::{ConfigError, Material, UncheckedConfig, read_file};

/// The service account's directory in every pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads this process's environment.
pub(super) fn of_process() -> Result<UncheckedConfig, ConfigError> {
    let variable = |name| std::env::var(name).ok();
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
    read(Path::new(SERVICE_ACCOUNT), host.as_deref(), port.as_deref())
}

/// Reads a directory with `token`, `ca.crt` and `namespace`, and the address that kubelet puts into
/// the environment.
fn read(directory: &Path, host: Option<&str>, port: Option<&str>) -> Result<UncheckedConfig, ConfigError> {
    let (Some(host), Some(port)) = (host, port) else {
        return Err(ConfigError::InCluster(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod",
        ));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let token_file = directory.join("token");
    read_file(&token_file)?;
    let authorities = directory.join("ca.crt");
    let namespace = read_file(&directory.join("namespace")).ok();
    Ok(UncheckedConfig {
        server: Some(format!("https://{host}:{port}")),
        token_file: Some(token_file),
        authorities: authorities.exists().then_some(Material::File(authorities)),
        namespace: namespace.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()),
        ..UncheckedConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Credential;

    #[test]
    fn a_service_account_is_found_where_kubernetes_mounts_it() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path(), None, Some("443")).is_err());
        let error = read(directory.path(), Some("10.96.0.1"), Some("443")).unwrap_err();
        assert!(error.to_string().contains("token"), "{error}");
        for (name, text) in [("token", "t0"), ("ca.crt", "PEM"), ("namespace", "kube-system\n")] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let config = read(directory.path(), Some("fd00::1"), Some("443")).unwrap().check().unwrap();
        assert_eq!(config.server.to_string(), "https://[fd00::1]:443");
        assert_eq!(config.namespace.as_deref(), Some("kube-system"));
        assert!(matches!(config.credential, Credential::TokenFile(path, None) if path.ends_with("token")));
        assert!(matches!(config.authorities, Some(Material::File(path)) if path.ends_with("ca.crt")));
    }
}
