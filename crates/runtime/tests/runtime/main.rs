//! The runtime with plugins that are shell scripts: their requests, and the handling of their
//! answers.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic like the test")]

mod a1;
mod cached;
mod chain;
mod corpus;
mod debian;
mod execution;
mod faults;
mod in_process;
mod node;
mod reference;
mod targets;
mod times;
mod upkeep;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use russet_cni_spec::{ConfigList, Version};
use russet_runtime::{Attachment, Runtime};
use russet_testkit::write_program;
use serde_json::Value;
use tempfile::TempDir;

/// A node with a plugin directory and a cache.
struct Lab {
    dir: Arc<TempDir>,
    runtime: Runtime,
}

impl Lab {
    fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let runtime = Runtime::new(vec!["/absent".into(), bin], dir.path().join("cache"));
        Self { dir, runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A plugin that records its call and its stdin, then runs `body`.
    fn plugin(&self, kind: &str, body: &str) -> &Self {
        let lab = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\ncat > '{lab}/{kind}.'$CNI_COMMAND\n\
             echo \"$CNI_COMMAND {kind} $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS\" >> '{lab}/log'\n{body}\n"
        );
        let path = self.path("bin").join(kind);
        write_program(&path, &script);
        self
    }

    /// A plugin that adds an interface with its own name.
    fn adder(&self, kind: &str) -> &Self {
        let result = format!(
            r#"{{"interfaces":[{{"name":"{kind}"}}],"ips":[{{"address":"10.0.0.2/24","interface":0}}]}}"#
        );
        self.plugin(kind, &format!("[ $CNI_COMMAND != ADD ] || echo '{result}'"))
    }

    /// The calls so far: verb and plugin.
    fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    }

    fn forget_calls(&self) {
        fs::write(self.path("log"), "").unwrap();
    }

    fn stdin(&self, kind: &str, verb: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(&format!("{kind}.{verb}"))).unwrap()).unwrap()
    }

    fn cache_file(&self) -> PathBuf {
        self.path("cache/results/net-c1-eth0")
    }

    fn message(&self, list: &ConfigList) -> String {
        self.runtime.add(list, &attachment()).unwrap_err().to_string()
    }
}

fn list(version: Version, plugins: &[&str]) -> ConfigList {
    let plugins = plugins.join(",");
    let text = format!(r#"{{"cniVersion":"{version}","name":"net","plugins":[{plugins}]}}"#);
    ConfigList::parse(text.as_bytes()).unwrap()
}

/// A chain of plugins without settings.
fn chain(version: Version, kinds: &[&str]) -> ConfigList {
    let plugins: Vec<String> = kinds.iter().map(|kind| format!(r#"{{"type":"{kind}"}}"#)).collect();
    list(version, &plugins.iter().map(String::as_str).collect::<Vec<_>>())
}

fn attachment() -> Attachment {
    let mut attachment = Attachment::new("c1".parse().unwrap(), "/run/netns/c1", "eth0".parse().unwrap());
    attachment.args = vec![("IgnoreUnknown".into(), "1".into()), ("K8S_POD_NAME".into(), "web".into())];
    attachment
}
