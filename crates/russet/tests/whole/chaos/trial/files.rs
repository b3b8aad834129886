//! The files of a node: allowed names and sizes.

use std::path::Path;

use crate::chaos::site::Site;

/// Files below `/run/russet` and `/var/lib/russet` of a node whose agent is idle; a name that ends
/// with `*` is a prefix.
const KNOWN: [&str; 18] = [
    "run/russet/cni.sock",
    "run/russet/health.sock",
    "run/russet/node.lock",
    "run/russet/gate.lock",
    "run/russet/mtu",
    "run/russet/settings.toml",
    "var/lib/russet/settings.toml",
    JOURNAL,
    "var/lib/russet/store.redb",
    "var/lib/russet/store.lock",
    "var/lib/russet/store.sock",
    "var/lib/russet/history",
    "var/lib/russet/history.1",
    "var/lib/russet/history.lock",
    "var/lib/calico/nodename",
    "var/lib/calico/mtu",
    // Both belong to Calico's IPAM plugins.
    "var/run/calico/*",
    "run/calico/*",
];

const JOURNAL: &str = "run/russet/journal";
/// The journal of a node with a few pods: it is compacted when it has more than 256 KiB and twice
/// its minimum.
const JOURNAL_MAX_BYTES: u64 = 1 << 20;
/// No file of a node with a few pods is larger; the history's own limit is 4 MiB.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// Files with unexpected names.
pub fn unexpected(site: &Site) -> Vec<String> {
    let mut found = Vec::new();
    for top in ["run", "var"] {
        each_file(&site.node.path(top), &mut |path| {
            let name = path.strip_prefix(site.node.root()).unwrap().to_string_lossy().into_owned();
            let known = KNOWN.iter().any(|known| match known.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == *known,
            });
            if !known {
                found.push(format!("stray file: {name}"));
            }
        });
    }
    found
}

/// Must hold at any time.
pub fn assert_bounded(site: &Site) {
    for top in ["run", "var"] {
        each_file(&site.node.path(top), &mut |path| {
            let bytes = path.symlink_metadata().map_or(0, |metadata| metadata.len());
            let max = if path.ends_with(JOURNAL) { JOURNAL_MAX_BYTES } else { FILE_MAX_BYTES };
            assert!(bytes <= max, "{} has {bytes} bytes", path.display());
        });
    }
}

fn each_file(dir: &Path, take: &mut dyn FnMut(&Path)) {
    // Files come and go while plugins run.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => each_file(&entry.path(), take),
            _ => take(&entry.path()),
        }
    }
}
