//! The interface of an implementation to the benchmark's caller.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::bench::cni::agent::Running;
use crate::bench::cni::scratch::Sandbox;
use crate::bench::ipam::etcd::Etcd;
use crate::error::Result;
use crate::process;

/// A CNI implementation, ready to be called. Its processes end with this value.
pub struct Subject {
    /// As reports have it.
    pub name: &'static str,
    /// The executable that the caller runs.
    pub plugin: PathBuf,
    /// What it gets on stdin.
    pub config: String,
    /// Its agent, where it has one.
    pub agent: Option<Running>,
    /// The etcd of its own, where it has one. After the agent, which would complain.
    pub etcd: Option<Etcd>,
    /// Its `CNI_CONTAINERID`.
    pub container: fn(&Sandbox) -> String,
    /// Its `CNI_ARGS`.
    pub arguments: fn(&Sandbox) -> String,
    /// The group of the links that its DEL leaves to the caller.
    pub doomed_group: Option<&'static str>,
}

/// Our executables.
pub struct Binaries {
    pub russet: PathBuf,
    pub russet_cni: PathBuf,
    pub floor: PathBuf,
}

/// Names the agent's executable that is to be measured.
const EXECUTABLE_VARIABLE: &str = "RUSSET_BENCH_DAEMON";

// === impl Subject ===

impl Subject {
    pub fn new(name: &'static str, plugin: &Path, config: &Value) -> Self {
        Self {
            name,
            plugin: plugin.to_owned(),
            config: config.to_string(),
            agent: None,
            etcd: None,
            container: |pod| pod.container.clone(),
            arguments: |_| String::new(),
            doomed_group: None,
        }
    }

    /// Waits for work that a DEL deferred, or does it. This time is not measured.
    pub fn settle(&self) -> Result<()> {
        if let Some(group) = self.doomed_group {
            process::run(Command::new("ip").args(["link", "delete", "group", group]))?;
        }
        self.agent.as_ref().map_or(Ok(()), Running::settle)
    }
}

// === impl Binaries ===

impl Binaries {
    /// Where the build left them, unless the environment names another `russet`, say the one that `cargo xtask dist` made.
    pub fn built() -> Result<Self> {
        let named = std::env::var_os(EXECUTABLE_VARIABLE).map(PathBuf::from);
        Ok(Self {
            russet: named.unwrap_or_else(|| artifacts::dynamic_path("russet", Profile::Optimized)),
            russet_cni: artifacts::static_path("russet-cni", Profile::Optimized)?,
            floor: artifacts::static_path(artifacts::FLOOR, Profile::Optimized)?,
        })
    }
}
