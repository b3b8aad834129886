//! Russet without an agent: `russet-cni` executes `russet`, which opens the store, works and leaves.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::bench::cni::DIRECT;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::error::{Error, Result};

/// `russet-cni` with a socket on which no agent listens.
pub fn subject(binaries: &Binaries, root: &Path) -> Result<Subject> {
    write_settings(root, "10.245.0.0/16")?;
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "bench-direct",
        "type": "russet",
        "agent_socket": root.join("run/russet/cni.sock"),
        "russet_path": binaries.russet,
        "root": root,
    });
    Ok(Subject::new(DIRECT, &binaries.russet_cni, &config))
}

/// The settings of a node of the benchmark: IPv4 only, like those of all subjects.
pub fn write_settings(root: &Path, ipv4_pool: &str) -> Result<()> {
    let directory = root.join("etc/russet");
    let file = directory.join("russet.toml");
    let text = format!("node_name = \"bench\"\nipv4_pool = \"{ipv4_pool}\"\nipv6_pool = \"none\"\n");
    let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, text));
    written.map_err(Error::io(format!("write {}", file.display())))
}
