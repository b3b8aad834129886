//! Kubeconfig files: clusters, users, and the context that joins two of them.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{ConfigError, Material, UncheckedConfig, read_file};
use crate::Secret;
use crate::yaml::{self, YamlError};

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    clusters: Option<Vec<NamedCluster>>,
    #[serde(default)]
    users: Option<Vec<NamedUser>>,
    #[serde(default)]
    contexts: Option<Vec<NamedContext>>,
    #[serde(default, rename = "current-context")]
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: Option<User>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
}

#[derive(Clone, Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
}

/// Reads the current context of the file.
pub(super) fn read(path: &Path) -> Result<UncheckedConfig, ConfigError> {
    let text = read_file(path)?;
    let directory = path.parent().unwrap_or(Path::new("."));
    parse(&text, directory).map_err(|reason| ConfigError::Kubeconfig { path: path.to_owned(), reason })
}

fn parse(text: &[u8], directory: &Path) -> Result<UncheckedConfig, String> {
    let file: File = yaml::from_slice(text).map_err(|error| without_secrets(&error))?;
    if let Some(kind) = file.kind.filter(|kind| kind != "Config") {
        return Err(format!("its kind is {kind:?}"));
    }
    let wanted = file.current_context.filter(|name| !name.is_empty());
    let wanted = wanted.ok_or("it has no current-context")?;
    let contexts = file.contexts.unwrap_or_default();
    let context = contexts.into_iter().find(|entry| entry.name == wanted);
    let context = context.ok_or_else(|| format!("there is no context {wanted:?}"))?.context;
    let clusters = file.clusters.unwrap_or_default();
    let cluster = clusters.into_iter().find(|entry| entry.name == context.cluster);
    let cluster = cluster.ok_or_else(|| format!("there is no cluster {:?}", context.cluster))?.cluster;
    let user = match &context.user {
        None => User::default(),
        Some(name) => {
            let found = file.users.unwrap_or_default().into_iter().find(|entry| entry.name == *name);
            found.ok_or_else(|| format!("there is no user {name:?}"))?.user.unwrap_or_default()
        }
    };
    unchecked(cluster, user, context.namespace, directory)
}

fn unchecked(
    cluster: Cluster,
    user: User,
    namespace: Option<String>,
    directory: &Path,
) -> Result<UncheckedConfig, String> {
    if user.exec.is_some() || user.auth_provider.is_some() {
        return Err(
            "its user logs in through a helper program (exec, auth-provider), which is not supported: \
                    use a token, a tokenFile or a client certificate"
                .to_owned(),
        );
    }
    if cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
        return Err("proxy-url is not supported".to_owned());
    }
    let at = |path: Option<PathBuf>| {
        path.filter(|path| !path.as_os_str().is_empty()).map(|path| directory.join(path))
    };
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let material = |name: &str, data: Option<String>, path: Option<PathBuf>| match text(data) {
        Some(data) => decoded(name, &data).map(Some),
        None => Ok(at(path).map(Material::File)),
    };
    let basic = text(user.username).map(|name| (name, Secret::new(user.password.unwrap_or_default())));
    Ok(UncheckedConfig {
        server: text(cluster.server),
        authorities: material(
            "certificate-authority-data",
            cluster.certificate_authority_data,
            cluster.certificate_authority,
        )?,
        certificate: material(
            "client-certificate-data",
            user.client_certificate_data,
            user.client_certificate,
        )?,
        key: material("client-key-data", user.client_key_data, user.client_key)?,
        server_name: text(cluster.tls_server_name),
        skip_verify: cluster.insecure_skip_tls_verify.unwrap_or(false),
        token: text(user.token).map(Secret::new),
        token_file: at(user.token_file),
        basic,
        namespace: text(namespace),
    })
}

fn decoded(name: &str, data: &str) -> Result<Material, String> {
    let compact: String = data.split_whitespace().collect();
    let bytes = STANDARD.decode(compact).map_err(|_| format!("{name} is not base64"))?;
    Ok(Material::Here(Secret::new(bytes)))
}

/// Where the YAML is wrong, without the words: a scalar of the wrong type may be a token.
fn without_secrets(error: &YamlError) -> String {
    match error.position() {
        Some((line, column)) => {
            format!("wrong YAML, or a value of the wrong kind, at line {line} column {column}")
        }
        None => "wrong YAML, or a value of the wrong kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Credential;

    const CALICO: &str = r#"
# Kubeconfig file for Calico CNI plugin. Installed by calico/node.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://10.96.0.1:443
    certificate-authority-data: "UEVN"
users:
- name: calico
  user:
    token: opensesame
contexts:
- name: calico-context
  context:
    cluster: local
    user: calico
current-context: calico-context
"#;

    fn parsed(text: &str) -> Result<UncheckedConfig, String> {
        parse(text.as_bytes(), Path::new("/etc/cni/net.d"))
    }

    #[test]
    fn the_file_that_calico_installs_is_read() {
        let config = parsed(CALICO).unwrap().check().unwrap();
        assert_eq!(config.server.to_string(), "https://10.96.0.1:443");
        assert!(matches!(&config.credential, Credential::Token(token) if token.reveal() == "opensesame"));
        assert_eq!(config.authorities.unwrap().read().unwrap(), b"PEM");
    }

    #[test]
    fn files_are_beside_the_kubeconfig_and_data_wins_over_them() {
        let text = CALICO
            .replace("token: opensesame", "tokenFile: token\n    client-certificate: c.pem\n    client-key: /k.pem\n    client-key-data: S0VZ")
            .replace("user: calico\n", "user: calico\n    namespace: shop\n");
        let config = parsed(&text).unwrap().check().unwrap();
        let at = Path::new("/etc/cni/net.d");
        assert!(matches!(&config.credential, Credential::TokenFile(path, None) if *path == at.join("token")));
        let (certificate, key) = config.identity.unwrap();
        assert!(matches!(certificate, Material::File(path) if path == at.join("c.pem")));
        assert_eq!(key.read().unwrap(), b"KEY");
        assert_eq!(config.namespace.as_deref(), Some("shop"));
    }

    #[test]
    fn what_is_wrong_with_a_kubeconfig_is_told_without_its_secrets() {
        for (text, reason) in [
            (CALICO.replace("current-context: calico-context", ""), "no current-context"),
            (
                CALICO.replace("current-context: calico-context", "current-context: other"),
                "no context \"other\"",
            ),
            (CALICO.replace("cluster: local", "cluster: far"), "no cluster \"far\""),
            (CALICO.replace("user: calico\n", "user: nobody\n"), "no user \"nobody\""),
            (CALICO.replace("token: opensesame", "exec: { command: aws }"), "helper program"),
            (CALICO.replace("UEVN", "%%%"), "certificate-authority-data is not base64"),
            (CALICO.replace("kind: Config", "kind: Pod"), "\"Pod\""),
            (CALICO.replace("token: opensesame", "token: [opensesame]"), "line 13"),
            (CALICO.replace("users:", "users: {"), "line"),
            ("opensesame".to_owned(), "wrong"),
        ] {
            let error = parsed(&text).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
            assert!(!error.contains("opensesame"), "{error}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let text = CALICO.replace("server:", "insecure-skip-tls-verify: true\n    server:");
        assert!(parsed(&text).unwrap().check().is_err());
    }
}
