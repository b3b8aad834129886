//! Russet without an agent: `russet-cni` executes `russet`, which opens the store, works and leaves.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::bench::cni::DIRECT;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::error::{Error, Result};

/// `russet-cni` with a socket on which no agent listens.
pub struct Direct {
    plugin: PathBuf,
    config: String,
}

// === impl Direct ===

impl Direct {
    pub fn new(binaries: &Binaries, root: &Path) -> Result<Self> {
        write_settings(root, "10.245.0.0/16")?;
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "bench-direct",
            "type": "russet",
            "agent_socket": root.join("run/russet/cni.sock"),
            "russet_path": binaries.russet,
            "root": root,
        });
        Ok(Self { plugin: binaries.russet_cni.clone(), config: config.to_string() })
    }
}

impl Subject for Direct {
    fn name(&self) -> &'static str {
        DIRECT
    }

    fn plugin(&self) -> &Path {
        &self.plugin
    }

    fn config(&self) -> &str {
        &self.config
    }
}

/// The settings of a node of the benchmark: IPv4 only, like those of all subjects.
pub fn write_settings(root: &Path, ipv4_pool: &str) -> Result<()> {
    let directory = root.join("etc/russet");
    let file = directory.join("russet.toml");
    let text = format!("node_name = \"bench\"\nipv4_pool = \"{ipv4_pool}\"\nipv6_pool = \"none\"\n");
    let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, text));
    written.map_err(Error::io(format!("write {}", file.display())))
}
