//! The interface of an implementation to the benchmark's caller.

use std::path::{Path, PathBuf};

use crate::artifacts::{self, Profile};
use crate::bench::cni::agent::Running;
use crate::bench::cni::scratch::Sandbox;
use crate::error::Result;

/// A CNI implementation, ready to be called.
pub trait Subject {
    /// As reports have it.
    fn name(&self) -> &'static str;
    /// The executable that the caller runs.
    fn plugin(&self) -> &Path;
    /// What it gets on stdin.
    fn config(&self) -> &str;
    /// Its `CNI_CONTAINERID`.
    fn container(&self, pod: &Sandbox) -> String {
        pod.container.clone()
    }
    /// Its `CNI_ARGS`.
    fn arguments(&self, pod: &Sandbox) -> String {
        let _ = pod;
        String::new()
    }
    /// Waits for work that a DEL deferred, or does it. This time is not measured.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// Its agent, where it has one.
    fn agent(&self) -> Option<&Running> {
        None
    }
    /// The etcd of its own, where it has one.
    fn etcd_url(&self) -> Option<&str> {
        None
    }
}

/// Our executables.
pub struct Binaries {
    pub russet: PathBuf,
    pub russet_cni: PathBuf,
    pub floor: PathBuf,
}

/// Names the agent's executable that is to be measured.
const EXECUTABLE_VARIABLE: &str = "RUSSET_BENCH_DAEMON";

// === impl Binaries ===

impl Binaries {
    /// Where the build left them, unless the environment names another `russet`, say the one that `cargo xtask dist` made.
    pub fn built() -> Result<Self> {
        let named = std::env::var_os(EXECUTABLE_VARIABLE).map(PathBuf::from);
        Ok(Self {
            russet: named.unwrap_or_else(|| artifacts::dynamic_path("russet", Profile::Optimized)),
            russet_cni: artifacts::static_path("russet-cni", Profile::Optimized)?,
            floor: artifacts::static_path("russet-bench-floor", Profile::Optimized)?,
        })
    }
}
