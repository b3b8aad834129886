//! A node for Debian's Go plugins: namespaces of its own, fresh `/run` and `/var/lib`, and a
//! recorder around every plugin.

use std::fs;

use russet_cni_spec::ConfigList;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::{in_netns_with_loopback, ip_json, require_cni_plugin, run};
use serde_json::Value;

use crate::Lab;

/// Runs `body` on a node with these plugins: executables that record their calls and then execute
/// Debian's.
pub fn on_a_node(kinds: &[&str], body: impl FnOnce(&Lab) + Send) {
    in_netns_with_loopback(|| {
        // Before the host's directories are hidden, since the test's own is among them.
        let lab = Lab::new();
        for dir in ["/run", "/var/lib"] {
            run("mount", &["-t", "tmpfs", "tmpfs", dir]);
        }
        fs::create_dir("/run/netns").unwrap();
        for kind in kinds {
            lab.recorded(kind);
        }
        body(&lab);
    });
}

impl Lab {
    /// One of Debian's plugins, recorded.
    pub fn recorded(&self, kind: &str) {
        self.plugin(kind, &format!("exec {}", self.debians(kind)));
    }

    /// The command that runs one of Debian's plugins with the recorded standard input.
    pub fn debians(&self, kind: &str) -> String {
        let input = self.path(kind);
        format!("'{}' < '{}.'$CNI_COMMAND", require_cni_plugin(kind).display(), input.display())
    }

    /// The runtime with libcni's default cache directory.
    pub fn usual(&self) -> Runtime {
        Runtime { cache_dir: "/var/lib/cni".into(), ..self.runtime.clone() }
    }
}

/// A container in a new namespace, and its `eth0`.
pub fn pod(container_id: &str, netns: &str) -> Attachment {
    run("ip", &["netns", "add", netns]);
    Attachment::new(container_id.parse().unwrap(), format!("/run/netns/{netns}"), "eth0".parse().unwrap())
}

pub fn parse(text: &str) -> ConfigList {
    ConfigList::parse(text.as_bytes()).unwrap()
}

/// The interfaces of the node, without loopback.
pub fn links() -> Vec<String> {
    russet_testkit::links(None).into_iter().filter(|name| name != "lo").collect()
}

/// The output of `ip` inside of a namespace.
pub fn ip_inside(netns: &str, args: &[&str]) -> Value {
    ip_json(&[&["-n", netns], args].concat())
}

/// The files of a directory, sorted; empty if it does not exist.
pub fn files(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The addresses that host-local holds for a network.
pub fn held(network: &str) -> Vec<String> {
    let mut names = files(&format!("/var/lib/cni/networks/{network}"));
    names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
    names
}

/// The rules of iptables' nat table that contain `text`.
pub fn nat_rules(text: &str) -> Vec<String> {
    let rules = run("iptables-save", &["-t", "nat"]);
    rules.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}
