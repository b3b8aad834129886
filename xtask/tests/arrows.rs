//! The layers of the crates (ARCHITECTURE.md, "Crates") against what the manifests really say.
//!
//! Only normal and build dependencies count: a test may look at anything. The manifests are read by
//! `cargo metadata --no-deps` and the rest of the graph from Cargo.lock, so this needs no network and no download.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A crate's floor. An arrow points from a higher floor to a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    L0,
    L1,
    L2,
    L3,
    L4,
    L5,
    /// Tests, tasks and benchmarks: may use anything; nothing in the house may use them.
    Support,
}

use Layer::{L0, L1, L2, L3, L4, L5, Support};

/// Every crate of the workspace. A new crate gets its line here first.
const LAYERS: &[(&str, Layer)] = &[
    ("russet-addr", L0),
    ("russet-cni-spec", L0),
    ("russet-model", L0),
    ("russet-sync", L0),
    ("russet-http", L0),
    ("russet-netlink", L1),
    ("russet-nft", L1),
    ("russet-linux", L1),
    ("russet-kube", L1),
    ("russet-verdict", L1),
    ("russet-view", L1),
    ("russet-store", L1),
    ("russet-cri-api", L1),
    ("russet-containerd", L1),
    ("russet-ipam", L2),
    ("russet-lease", L2),
    ("russet-overlay", L2),
    ("russet-policy", L2),
    ("russet-attach", L2),
    ("russet-store-etcd", L2),
    ("russet-store-kube", L2),
    ("russet-wiring", L3),
    ("russet-calico", L3),
    ("russet-plugins", L3),
    ("russet-runtime", L3),
    ("russet-journal", L3),
    ("russet-sandbox", L4),
    ("russet-openshift", L4),
    ("russet-agent", L4),
    ("russet-controller", L4),
    ("russet-flanneld", L4),
    ("russet-cni", L5),
    ("russet", L5),
    ("russet-testkit", Support),
    ("russet-sim", Support),
    ("russet-bench", Support),
    ("xtask", Support),
];

/// The only crates of their floor that others there may lean on.
const SIDEWAYS: [(Layer, &str); 6] = [
    (L0, "russet-addr"),
    (L0, "russet-sync"),
    (L1, "russet-netlink"),
    (L3, "russet-wiring"),
    (L3, "russet-calico"),
    (L4, "russet-openshift"),
];

/// Crates of L2 whose work is in the kernel, and the crates that reach it.
const KNOW_THE_KERNEL: [&str; 3] = ["russet-attach", "russet-overlay", "russet-policy"];
const KERNEL: [&str; 3] = ["russet-netlink", "russet-nft", "russet-linux"];
/// Crates of L2 whose work is in the store, and the store.
const KNOW_THE_STORE: [&str; 4] = ["russet-ipam", "russet-lease", "russet-store-etcd", "russet-store-kube"];
const STORE: &str = "russet-store";

/// What must not reach the executable that is started for each pod: it makes one call over a unix socket.
const KEPT_FROM_THE_SHIM: &[(&str, &str)] = &[
    ("tokio", "one blocking call needs no runtime"),
    ("tonic", "it talks to no datastore"),
    ("kube", "it talks to no datastore"),
    ("russet-kube", "the agent or the full russet asks the Kubernetes API"),
    ("redb", "it talks to no datastore"),
    ("rustls", "it opens no TLS connection"),
    ("tracing-subscriber", "it prints one document; the agent logs"),
    ("clap", "it reads environment variables; lexopt does for the rest"),
    ("russet-netlink", "the agent or the full russet touches the kernel"),
    ("russet-plugins", "the agent or the full russet does the work"),
];

/// A crate and what it links or builds with.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Our crates, with their normal and build dependencies.
fn manifests() -> Graph {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--format-version", "1", "--offline", "--no-deps"]).current_dir(workspace());
    let output = metadata.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let links = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap();
        all.iter().filter(|dependency| dependency["kind"] != "dev").map(name).collect()
    };
    metadata["packages"].as_array().unwrap().iter().map(|package| (name(package), links(package))).collect()
}

/// Everything in Cargo.lock. Versions of one crate are taken together: what one of them needs, all may need.
fn locked() -> Graph {
    let text = std::fs::read_to_string(workspace().join("Cargo.lock")).unwrap();
    let mut graph = Graph::new();
    for package in text.split("[[package]]").skip(1) {
        let name = package.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let list = package.split("dependencies = [").nth(1).and_then(|rest| rest.split(']').next());
        let words = list.unwrap_or_default().split('"').skip(1).step_by(2);
        let names = words.filter_map(|word| word.split(' ').next()).map(str::to_owned);
        graph.entry(name.to_owned()).or_default().extend(names);
    }
    graph
}

fn layer_of(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

/// Why `from` must not depend on `to`, both ours.
fn objection(from: &str, to: &str) -> Option<String> {
    let (Some(upper), Some(lower)) = (layer_of(from), layer_of(to)) else { return None };
    if upper == Support {
        return None;
    }
    if lower == Support {
        return Some("support crates are for tests and tasks: make it a dev-dependency".to_owned());
    }
    let sideways = upper == lower && SIDEWAYS.contains(&(upper, to));
    if upper <= lower && !sideways {
        return Some(format!("{upper:?} on {lower:?} is not down: move the shared part to a lower floor"));
    }
    if upper == L2 && KERNEL.contains(&to) && !KNOW_THE_KERNEL.contains(&from) {
        return Some("in L2 only attach, overlay and policy know the kernel".to_owned());
    }
    if upper == L2 && to == STORE && !KNOW_THE_STORE.contains(&from) {
        return Some("in L2 only ipam, lease and the engines know the store".to_owned());
    }
    None
}

/// All that `root` links, with one path to each.
fn reached(root: &str, ours: &Graph, locked: &Graph) -> BTreeMap<String, String> {
    let mut paths = BTreeMap::from([(root.to_owned(), root.to_owned())]);
    let mut next = vec![root.to_owned()];
    while let Some(name) = next.pop() {
        for dependency in ours.get(&name).or_else(|| locked.get(&name)).into_iter().flatten() {
            let path = format!("{} -> {dependency}", paths[&name]);
            if !paths.contains_key(dependency) {
                paths.insert(dependency.clone(), path);
                next.push(dependency.clone());
            }
        }
    }
    paths
}

#[test]
fn every_crate_has_its_floor() {
    let unlisted: Vec<String> = manifests().into_keys().filter(|name| layer_of(name).is_none()).collect();
    assert!(
        unlisted.is_empty(),
        "{unlisted:?}: not in LAYERS of xtask/tests/arrows.rs. Decide which layer of ARCHITECTURE.md it belongs to \
         (what does it need, who needs it?), add the line there and to ARCHITECTURE.md."
    );
}

#[test]
fn arrows_point_down_only() {
    let wrong: Vec<String> = manifests()
        .iter()
        .flat_map(|(from, links)| links.iter().map(move |to| (from, to)))
        .filter_map(|(from, to)| objection(from, to).map(|why| format!("{from} -> {to}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn nothing_heavy_reaches_the_plugin_executable() {
    let reached = reached("russet-cni", &manifests(), &locked());
    let wrong: Vec<String> = KEPT_FROM_THE_SHIM
        .iter()
        .filter_map(|(name, why)| reached.get(*name).map(|path| format!("{path}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_rules_object_to_what_they_should() {
    for (from, to) in [
        ("russet-model", "russet-cni-spec"),
        ("russet-netlink", "russet-linux"),
        ("russet-attach", "russet-overlay"),
        ("russet-attach", "russet-store"),
        ("russet-ipam", "russet-netlink"),
        ("russet-plugins", "russet-agent"),
        ("russet-runtime", "russet-plugins"),
        ("russet-wiring", "russet-plugins"),
        ("russet-calico", "russet-plugins"),
        ("russet-openshift", "russet-agent"),
        ("russet-agent", "russet-testkit"),
        ("russet", "russet-cni"),
    ] {
        assert!(objection(from, to).is_some(), "{from} -> {to}");
    }
    for (from, to) in [
        ("russet-model", "russet-addr"),
        ("russet-linux", "russet-netlink"),
        ("russet-store", "russet-model"),
        ("russet-attach", "russet-linux"),
        ("russet-ipam", "russet-store"),
        ("russet-plugins", "russet-wiring"),
        ("russet-agent", "russet-store"),
        ("russet-agent", "russet-openshift"),
        ("russet-testkit", "russet-agent"),
    ] {
        assert_eq!(objection(from, to), None, "{from} -> {to}");
    }
}

#[test]
fn a_dependency_of_a_dependency_is_found_and_its_path_reported() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let ours = Graph::from([("a".to_owned(), set(&["b"])), ("b".to_owned(), set(&["c"]))]);
    let locked = Graph::from([("b".to_owned(), set(&["only-for-tests"])), ("c".to_owned(), set(&["tokio"]))]);
    let reached = reached("a", &ours, &locked);
    assert_eq!(reached["tokio"], "a -> b -> c -> tokio");
    assert!(!reached.contains_key("only-for-tests"));
}
