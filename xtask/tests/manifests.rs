//! The manifests in packaging/kubernetes are what the chart gives.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "../src/manifests.rs"]
mod manifests;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Settings that the ConfigMap does not offer: the DaemonSet sets them, or they are for other stores and for OpenShift.
fn is_set_elsewhere(key: &str) -> bool {
    ["store", "node_name", "conflist", "allow_plaintext_credentials"].contains(&key)
        || ["etcd_", "openshift"].iter().any(|start| key.starts_with(start))
}

#[test]
fn manifests_are_what_the_chart_gives() {
    for (file, wanted) in manifests::files(root()).unwrap() {
        let stored = fs::read_to_string(root().join(&file)).unwrap_or_default();
        assert!(stored == wanted, "{file} is old: run `cargo xtask gen` and commit what it writes");
    }
}

#[test]
fn the_config_map_names_every_setting_of_an_agent() {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap().replace("\\|", "/");
    let rows = page.lines().filter(|line| line.starts_with("| `--"));
    let keys: BTreeSet<&str> = rows.filter_map(|row| row.split('|').nth(3)?.split('`').nth(1)).collect();
    let template = root().join("packaging/kubernetes/chart/templates/config.yaml");
    let template = fs::read_to_string(template).unwrap();
    let lines = template.lines().map(|line| line.trim().trim_start_matches("# "));
    let offered: BTreeSet<&str> = lines.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let missing: Vec<_> =
        keys.iter().filter(|key| !is_set_elsewhere(key) && !offered.contains(*key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = offered.difference(&keys).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
