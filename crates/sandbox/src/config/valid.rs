//! Validates a sandbox's configuration. It comes over a socket or out of a file: names become lines
//! of files, arguments of plugins and paths, so they are checked once, before anything is done.

use std::path::{Component, Path};

use super::{Config, Dns, Metadata};
use crate::sysctls;

/// A configuration that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid sandbox configuration: {field}: {rule}")]
pub struct ConfigError {
    /// The member, for example `metadata.name`.
    pub field: &'static str,
    /// The rule that it violates.
    pub rule: String,
}

/// A DNS name's limit, which is that of names and UIDs of Kubernetes.
const NAME_MAX_BYTES: usize = 253;
/// `HOST_NAME_MAX` of the kernel.
const HOSTNAME_MAX_BYTES: usize = 64;
/// Kubernetes allows 3 servers, 32 domains and 2,048 bytes of them; people without it may want some more.
const DNS_MAX_ENTRIES: usize = 64;
/// One entry of resolv.conf.
const DNS_ENTRY_MAX_BYTES: usize = 256;
/// A pod with more published ports than this is a mistake: each is a rule.
const PORTS_MAX: usize = 4096;
/// Lines of the hosts file, and names of one.
const ALIASES_MAX: usize = 1024;
/// Sysctls of one pod.
const SYSCTLS_MAX: usize = 256;
/// Labels, annotations and paths together: Kubernetes allows 256 KiB of annotations, and a checkpoint must stay small.
const TEXT_MAX_BYTES: usize = 1024 * 1024;

/// The rules that a configuration breaks, in the order of their check.
#[derive(Default)]
struct Problems(Vec<ConfigError>);

// === impl Config ===

impl Config {
    /// Refuses anything that could harm the node or break a file or an argument into which it is
    /// written.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every rule that it breaks, so that all can be corrected at once.
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut found = Problems::default();
        self.metadata.validate(&mut found);
        let hostname = self.hostname.is_empty() || is_name(&self.hostname, HOSTNAME_MAX_BYTES);
        found.unless(hostname, "hostname", "at most 64 letters, digits, dots, dashes");
        if let Some(dns) = &self.dns {
            dns.validate(&mut found);
        }
        if let Some(path) = &self.log_directory {
            found.unless(is_plain(path), "log_directory", "an absolute path without ..");
        }
        let cgroup = !Path::new(&self.cgroup_parent).components().any(|part| part == Component::ParentDir);
        found.unless(cgroup && is_line(&self.cgroup_parent), "cgroup_parent", "a path without ..");
        let handler = self.runtime_handler.is_empty() || is_name(&self.runtime_handler, NAME_MAX_BYTES);
        found.unless(handler, "runtime_handler", "letters, digits, dots, dashes");
        found.unless(self.port_mappings.len() <= PORTS_MAX, "port_mappings", "at most 4096");
        let ports = self.port_mappings.iter().all(|port| port.container_port != 0);
        found.unless(ports, "port_mappings", "a container port is not 0");
        self.validate_aliases(&mut found);
        self.validate_sysctls(&mut found);
        let text = self.text_bytes() <= TEXT_MAX_BYTES;
        found.unless(text, "labels and annotations", "at most 1 MiB together");
        found.0
    }

    fn validate_aliases(&self, found: &mut Problems) {
        let names: usize = self.host_aliases.iter().map(|alias| 1 + alias.hostnames.len()).sum();
        found.unless(names <= ALIASES_MAX, "host_aliases", "at most 1024 addresses and names");
        let good = |name: &String| is_name(name, NAME_MAX_BYTES);
        let all = self.host_aliases.iter().all(|alias| alias.hostnames.iter().all(good));
        found.unless(all, "host_aliases", "names are letters, digits, dots, dashes");
    }

    /// Only those that a namespace of the pod's own has: anything else would be set on the node.
    fn validate_sysctls(&self, found: &mut Problems) {
        found.unless(self.sysctls.len() <= SYSCTLS_MAX, "sysctls", "at most 256");
        let good = |value: &String| is_line(value) && value.len() <= NAME_MAX_BYTES;
        found.unless(self.sysctls.values().all(good), "sysctls", "a value is one line");
        for error in sysctls::problems(self).take(SYSCTLS_MAX) {
            found.unless(false, "sysctls", &error.to_string());
        }
    }

    fn text_bytes(&self) -> usize {
        let maps = self.labels.iter().chain(&self.annotations);
        let path = self.log_directory.as_ref().map_or(0, |path| path.as_os_str().len());
        path + self.cgroup_parent.len() + maps.map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }
}

// === impl Metadata ===

impl Metadata {
    /// All three become CNI_ARGS, where `;` and `=` would begin another argument.
    fn validate(&self, found: &mut Problems) {
        let rule = "at most 253 letters, digits, dots, dashes, underscores";
        found.unless(is_name(&self.name, NAME_MAX_BYTES), "metadata.name", rule);
        let namespace = self.namespace.is_empty() || is_name(&self.namespace, NAME_MAX_BYTES);
        found.unless(namespace, "metadata.namespace", rule);
        found.unless(self.uid.is_empty() || is_name(&self.uid, NAME_MAX_BYTES), "metadata.uid", rule);
    }
}

// === impl Dns ===

impl Dns {
    fn validate(&self, found: &mut Problems) {
        let entries = self.servers.len() + self.searches.len() + self.options.len();
        found.unless(entries <= DNS_MAX_ENTRIES, "dns", "at most 64 entries");
        let word = |text: &String| {
            let character = |c: char| c.is_ascii_graphic() && c != '#' && c != ';';
            !text.is_empty() && text.len() <= DNS_ENTRY_MAX_BYTES && text.chars().all(character)
        };
        let rule = "a domain is one word of at most 256 bytes";
        found.unless(self.searches.iter().all(word), "dns.searches", rule);
        found.unless(
            self.options.iter().all(word),
            "dns.options",
            "an option is one word of at most 256 bytes",
        );
    }
}

// === impl Problems ===

impl Problems {
    fn unless(&mut self, good: bool, field: &'static str, rule: &str) {
        if !good {
            self.0.push(ConfigError { field, rule: rule.to_owned() });
        }
    }
}

/// Safe as a word of CNI_ARGS, as a part of a path and as a word of a file.
fn is_name(text: &str, max_bytes: usize) -> bool {
    let character = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= max_bytes && text.bytes().all(character) && text != "." && text != ".."
}

fn is_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn is_plain(path: &Path) -> bool {
    let parent = path.components().any(|part| part == Component::ParentDir);
    path.is_absolute() && !parent && !path.as_os_str().as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostAlias;

    fn config(change: impl FnOnce(&mut Config)) -> Result<(), String> {
        let mut config =
            Config { metadata: Metadata { name: "web".into(), ..Metadata::default() }, ..Config::default() };
        change(&mut config);
        config.validate().map_err(|error| error.field.to_owned())
    }

    fn refused(field: &str, change: impl FnOnce(&mut Config)) {
        assert_eq!(config(change), Err(field.to_owned()));
    }

    #[test]
    fn every_rule_that_is_broken_is_named() {
        let mut config =
            Config { hostname: "a b".into(), cgroup_parent: "/a/../b".into(), ..Config::default() };
        for name in ["kernel.panic", "vm.swappiness"] {
            config.sysctls.insert(name.into(), "1".into());
        }
        let fields: Vec<&str> = config.problems().iter().map(|error| error.field).collect();
        assert_eq!(fields, ["metadata.name", "hostname", "cgroup_parent", "sysctls", "sysctls"]);
        assert_eq!(config.validate().unwrap_err().field, "metadata.name");
    }

    #[test]
    fn a_plain_pod_is_accepted() {
        assert_eq!(config(|_| ()), Ok(()));
        assert_eq!(config(|it| it.metadata.uid = "0b5e7a12-41ff-4aaa-9db6-4c2d0f8e91cd".into()), Ok(()));
    }

    #[test]
    fn a_name_cannot_begin_another_cni_argument() {
        // cni-runtime.md section 1.4: CNI_ARGS is k=v;k=v
        for name in ["", "a;K8S_POD_NAMESPACE=b", "a=b", "a/b", "..", "a\nb", &"a".repeat(254)] {
            refused("metadata.name", |it| it.metadata.name = name.into());
        }
        refused("metadata.namespace", |it| it.metadata.namespace = "a;b".into());
        refused("metadata.uid", |it| it.metadata.uid = "a=b".into());
    }

    #[test]
    fn no_value_can_add_a_line_to_a_file_of_the_pod() {
        let dns = |searches: &str| Some(Dns { searches: vec![searches.into()], ..Dns::default() });
        refused("dns.searches", |it| it.dns = dns("a\nnameserver 6.6.6.6"));
        refused("dns.searches", |it| it.dns = dns("a b"));
        refused("dns.options", |it| it.dns = Some(Dns { options: vec!["a\nb".into()], ..Dns::default() }));
        let alias = |name: &str| vec![HostAlias { ip: [10, 0, 0, 1].into(), hostnames: vec![name.into()] }];
        refused("host_aliases", |it| it.host_aliases = alias("a\n6.6.6.6 bank"));
        refused("hostname", |it| it.hostname = "a\nb".into());
    }

    #[test]
    fn only_sysctls_of_the_pods_own_namespaces_are_accepted() {
        let sysctl = |it: &mut Config, key: &str| drop(it.sysctls.insert(key.into(), "1".into()));
        for key in ["net.ipv4.ip_forward", "net/ipv4/ip_forward", "kernel.shmmax", "fs.mqueue.msg_max"] {
            assert_eq!(config(|it| sysctl(it, key)), Ok(()), "{key}");
        }
        for key in ["kernel.panic", "vm.swappiness", "net.ipv4/../../kernel.panic", "", "fs.file-max"] {
            refused("sysctls", |it| sysctl(it, key));
        }
    }

    #[test]
    fn sysctls_of_shared_namespaces_are_refused() {
        let with = |key: &str, host_network, host_ipc| {
            config(|it| {
                (it.host_network, it.host_ipc) = (host_network, host_ipc);
                it.sysctls.insert(key.into(), "1".into());
            })
        };
        assert!(with("net.core.somaxconn", true, false).is_err());
        assert!(with("kernel.shmmax", false, true).is_err());
        assert!(with("kernel.shmmax", true, false).is_ok());
    }

    #[test]
    fn paths_are_absolute_and_go_up_nowhere() {
        for path in ["logs", "/var/log/../../etc"] {
            refused("log_directory", |it| it.log_directory = Some(path.into()));
        }
        refused("cgroup_parent", |it| it.cgroup_parent = "/kubepods/../..".into());
        assert_eq!(config(|it| it.log_directory = Some("/var/log/pods/x".into())), Ok(()));
    }

    #[test]
    fn annotations_have_a_limit() {
        refused("labels and annotations", |it| {
            drop(it.annotations.insert("a".into(), "x".repeat(1024 * 1024)))
        });
    }
}
