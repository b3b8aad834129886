//! The secrets of this node that are known: what its settings, the variables and arguments of its agent, and its networks'
//! configurations name. They are collected only to be removed from everything that a report has.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use russet_agent::Paths;
use russet_kube::yaml;
use serde_json::Value;

use super::redact::{is_secret_file_name, is_secret_name};
use crate::settings::CALICOCTL_FILE;

/// What is known so far.
#[derive(Debug, Default)]
pub struct Secrets(BTreeSet<String>);

/// A shorter word is not looked for, because it is in everything; names and forms show it still.
const MIN_BYTES: usize = 4;
/// A line of a key; shorter ones are looked for only together.
const KEY_LINE_MIN_BYTES: usize = 16;
/// Larger than any file with a secret.
const FILE_MAX_BYTES: u64 = 1024 * 1024;
/// The levels of a configuration.
const DEPTH_MAX: usize = 64;
/// Kubeconfigs that name others would be read without an end.
const KUBECONFIG: &str = "kubeconfig";
/// The token of a pod's account.
const IN_CLUSTER_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Values of secret names that are none.
const WORDS: [&str; 4] = ["true", "false", "null", "none"];

/// The secrets of a node.
pub fn of_node(paths: &Paths, agent_pid: Option<u32>, conflists: &[std::path::PathBuf]) -> Secrets {
    let mut secrets = Secrets::default();
    secrets.add_file(Path::new(IN_CLUSTER_TOKEN));
    for path in [paths.settings_record(), paths.settings_record_copy(), paths.settings_file()] {
        secrets.add_settings(&path);
    }
    secrets.add_document(&paths.root().join(CALICOCTL_FILE), 0);
    conflists.iter().for_each(|path| secrets.add_document(path, 0));
    let own = std::env::vars_os();
    let own: Vec<Vec<u8>> =
        own.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
    own.iter().for_each(|variable| secrets.add_variable(&String::from_utf8_lossy(variable)));
    if let Some(pid) = agent_pid {
        for variable in words_of(pid, "environ") {
            secrets.add_variable(&variable);
        }
        secrets.add_arguments(&words_of(pid, "cmdline"));
    }
    secrets
}

/// What the kernel has of a process, in words that end in a zero byte.
fn words_of(pid: u32, file: &str) -> Vec<String> {
    let bytes = read(&Path::new("/proc").join(pid.to_string()).join(file)).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // A pipe or a device would have no end, or none that comes.
    let is_file = std::fs::metadata(path).is_ok_and(|it| it.is_file());
    is_file.then(|| File::open(path).ok()?.take(FILE_MAX_BYTES).read_to_end(&mut bytes).ok())??;
    Some(bytes)
}

// === impl Secrets ===

impl Secrets {
    /// Each secret, and how it looks in JSON, in a URL and in base64.
    pub fn all_forms(self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for secret in self.0 {
            let json = serde_json::to_string(&secret).unwrap_or_default();
            all.insert(json.trim_matches('"').to_owned());
            all.insert(url_encoded(&secret));
            all.insert(STANDARD.encode(&secret));
            all.insert(secret);
        }
        all.retain(|form| form.len() >= MIN_BYTES);
        all
    }

    fn add(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() < MIN_BYTES || WORDS.contains(&secret.to_ascii_lowercase().as_str()) {
            return;
        }
        self.0.insert(secret.to_owned());
        // A key is one in base64 once more in a kubeconfig.
        if let Some(text) = STANDARD.decode(secret).ok().and_then(|bytes| String::from_utf8(bytes).ok())
            && text.contains("PRIVATE KEY")
        {
            self.add_lines(&text);
        }
        self.add_lines(secret);
    }

    /// The lines of a key, which may be found one by one.
    fn add_lines(&mut self, text: &str) {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| line.len() >= KEY_LINE_MIN_BYTES && !line.starts_with("-----"));
        self.0.extend(lines.map(str::to_owned));
    }

    fn add_file(&mut self, path: &Path) {
        if let Some(bytes) = read(path) {
            self.add(&String::from_utf8_lossy(&bytes));
        }
    }

    /// A setting, whatever its notation was.
    fn add_named(&mut self, name: &str, value: &str, depth: usize) {
        if let Some((_, rest)) = value.split_once("://")
            && let Some((credentials, _)) = rest.rsplit_once('@')
        {
            credentials.split(':').skip(1).for_each(|password| self.add(password));
        }
        let kubeconfig = match value.strip_prefix("kubernetes:") {
            Some(path) => Some(path),
            None => name.to_ascii_lowercase().contains(KUBECONFIG).then_some(value),
        };
        if let Some(path) = kubeconfig.filter(|_| depth == 0) {
            self.add_document(Path::new(path), depth + 1);
        } else if is_secret_file_name(name) {
            self.add_file(Path::new(value));
        } else if is_secret_name(name) {
            self.add(value);
        }
    }

    fn add_variable(&mut self, variable: &str) {
        if let Some((name, value)) = variable.split_once('=') {
            self.add_named(name, value, 0);
        }
    }

    fn add_arguments(&mut self, words: &[String]) {
        for (at, word) in words.iter().enumerate() {
            match (word.split_once('='), words.get(at + 1)) {
                (Some((name, value)), _) => self.add_named(name, value, 0),
                (None, Some(next)) => self.add_named(word, next, 0),
                (None, None) => {}
            }
        }
    }

    /// A settings file; one that is not TOML is read line by line.
    fn add_settings(&mut self, path: &Path) {
        let Some(bytes) = read(path) else { return };
        let text = String::from_utf8_lossy(&bytes);
        match text.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok()) {
            Some(value) => self.add_tree("", &value, 0, 0),
            None => {
                for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
                    self.add_named(name.trim(), value.trim().trim_matches(['"', '\'']), 0);
                }
            }
        }
    }

    /// A document in YAML or JSON: a network's configuration, a kubeconfig, calicoctl's configuration.
    fn add_document(&mut self, path: &Path, depth: usize) {
        let value = read(path).and_then(|bytes| yaml::from_slice::<Value>(&bytes).ok());
        if let Some(value) = value {
            self.add_tree("", &value, depth, 0);
        }
    }

    fn add_tree(&mut self, name: &str, value: &Value, depth: usize, level: usize) {
        if level > DEPTH_MAX {
            return;
        }
        match value {
            Value::String(text) => self.add_named(name, text, depth),
            Value::Array(all) => all.iter().for_each(|one| self.add_tree(name, one, depth, level + 1)),
            Value::Object(members) => {
                for (member, value) in members {
                    // What is below a secret name is secret.
                    let name = if is_secret_name(name) { name } else { member };
                    self.add_tree(name, value, depth, level + 1);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// What RFC 3986 wants of a user's password in a URL.
fn url_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn secrets_are_found_by_flag_variable_file_kubeconfig_and_conflist() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let file = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n";
        let password = file("password", "by file\r\n");
        let key_file = file("key.pem", key);
        let token_file = file("token", "of-a-file");
        let in_base64 = STANDARD.encode(key.replace("MIGH", "MIGX"));
        let kubeconfig = file(
            "kubeconfig",
            &format!(
                "users:\n- name: u\n  user:\n    token: of-kubeconfig\n    tokenFile: {token_file}\n    client-key-data: {in_base64}\n"
            ),
        );
        file(
            "etc/russet/russet.toml",
            &format!("etcd_password_file = {password:?}\nstore = \"kubernetes:{kubeconfig}\"\n"),
        );
        file(
            "etc/calico/calicoctl.cfg",
            "spec:\n  etcdPassword: of-calicoctl\n  etcdEndpoints: http://u:of-url@h\n",
        );
        let conflist = file(
            "10.conflist",
            &format!(
                r#"{{"plugins":[{{"policy":{{"k8s_auth_token":"of-conflist"}},"etcd_key_file":{key_file:?}}}]}}"#
            ),
        );
        let mut secrets = of_node(&paths, None, &[conflist.into()]);
        secrets.add_variable("ETCD_PASSWORD=of-variable");
        secrets.add_arguments(
            &["agent", "--etcd-password", "of-word", "--api-token=of-flag"].map(str::to_owned),
        );
        let all = secrets.all_forms();
        for secret in [
            "by file",
            "by%20file",
            "of-a-file",
            "of-kubeconfig",
            "MIGXAgEAMBMGByqGSM49",
            "MIGHAgEAMBMGByqGSM49",
            "of-calicoctl",
            "of-url",
            "of-conflist",
            "of-variable",
            "of-word",
            "of-flag",
            &in_base64,
        ] {
            assert!(all.contains(secret), "{secret} is missing: {all:?}");
        }
        assert!(!all.contains("-----BEGIN PRIVATE KEY-----") && !all.contains("u"), "{all:?}");
    }

    #[test]
    fn a_settings_file_that_is_no_toml_is_read_by_lines() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("russet.toml");
        fs::write(&path, "store = \n etcd_password = \"of-a-line\"\n").unwrap();
        let mut secrets = Secrets::default();
        secrets.add_settings(&path);
        assert!(secrets.all_forms().contains("of-a-line"));
    }
}
