//! `calico` as it is installed: `russet-cni` under that name, with the agent and without.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::bench::calico::{AGENT, DIRECT};
use crate::bench::cni::agent::{Running, socket};
use crate::bench::cni::scratch::Sandbox;
use crate::bench::cni::subject::{Binaries, Subject};
use crate::error::{Error, Result};

/// Installs the plugin below `root`, and starts an agent if the subject needs one.
pub fn subject(name: &'static str, binaries: &Binaries, root: &Path, url: &str) -> Result<Subject> {
    let plugin = install(binaries, root)?;
    let node = if name == AGENT { "bench-agent" } else { "bench-direct" };
    let store = format!("etcd:{url}");
    let agent = match name {
        DIRECT => None,
        _ => Some(Running::start(binaries, root, &["--node-name", node, "--calico", "--store", &store])?),
    };
    let config = json!({
        "cniVersion": "1.0.0", "name": "bench", "type": "calico",
        "datastore_type": "etcdv3", "etcd_endpoints": url,
        "nodename": node, "nodename_file_optional": true, "mtu": 1500,
        "ipam": { "type": "calico-ipam" },
        // Extensions of ours: paths that Calico has fixed.
        "agent_socket": socket(root), "root": root, "russet_path": binaries.russet,
    });
    let container = |pod: &Sandbox| container(&pod.container);
    Ok(Subject { agent, container, ..Subject::new(name, &plugin, &config) })
}

fn install(binaries: &Binaries, root: &Path) -> Result<PathBuf> {
    let directory = root.join("bin");
    let plugin = directory.join("calico");
    let installed =
        fs::create_dir_all(&directory).and_then(|()| fs::copy(&binaries.russet_cni, &plugin)).map(drop);
    installed.map_err(Error::io(format!("install {}", plugin.display())))?;
    Ok(plugin)
}

/// An ID like containerd's: 64 hexadecimal digits. The host end is named after the first 11, so
/// these must differ between pods.
fn container(name: &str) -> String {
    // FNV-1a, and then the finalizer of SplitMix64, so that all digits depend on all of the name.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = |word: u64| {
        let mut z = hash.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (1..=4).map(|word| format!("{:016x}", mixed(word))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn host_ends_of_all_pods_have_names_of_their_own() {
        let names = |round: u32| (1..300).map(move |pod| format!("bench-r{round}s-{pod}"));
        let ids: Vec<String> = (1..=20).flat_map(names).map(|name| container(&name)).collect();
        let host_ends: BTreeSet<&str> = ids.iter().map(|id| &id[..11]).collect();
        assert_eq!(host_ends.len(), ids.len());
        assert!(ids.iter().all(|id| id.len() == 64));
    }
}
