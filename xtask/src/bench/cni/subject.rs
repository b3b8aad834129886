//! What every implementation under the benchmark is to its caller.

use std::path::{Path, PathBuf};

use crate::artifacts::{self, Profile};
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
    /// Waits for what a DEL left for later, or does it. Nobody's time is taken meanwhile.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// Our executables.
pub struct Binaries {
    pub russet: PathBuf,
    pub russet_cni: PathBuf,
    pub floor: PathBuf,
}

// === impl Binaries ===

impl Binaries {
    /// Where the build left them.
    pub fn built() -> Result<Self> {
        Ok(Self {
            russet: artifacts::dynamic_path("russet", Profile::Release),
            russet_cni: artifacts::static_path("russet-cni", Profile::Release)?,
            floor: artifacts::static_path("russet-bench-floor", Profile::Release)?,
        })
    }
}
