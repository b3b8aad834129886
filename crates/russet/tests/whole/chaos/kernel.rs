//! The kernel's objects of pods on a node, compared with the expected ones.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::{let_pass, require_tool, run};
use serde_json::Value;

use super::site::Site;
use super::store_records::differences;
use super::worker::Alive;
use crate::node::{TIMEOUT, TestPod};

/// The link that belongs to no pod.
const UNDERLAY: &str = "eth0";

/// Waits until the node has the objects of exactly these pods, and returns the differences if that
/// does not happen: agents delete interfaces in groups.
pub fn faults(site: &Site, alive: &[&Alive]) -> Vec<String> {
    let began = Instant::now();
    loop {
        let mut faults = faults_now(site, alive);
        if faults.is_empty() {
            return faults;
        }
        if began.elapsed() > TIMEOUT {
            faults.push(run("ip", &["-n", site.node.netns_name(), "-d", "link", "show"]));
            return faults;
        }
        let_pass(Duration::from_millis(10));
    }
}

fn faults_now(site: &Site, alive: &[&Alive]) -> Vec<String> {
    let netns = site.node.netns_name();
    let links: BTreeSet<String> = site.node.links().into_iter().filter(|name| name != UNDERLAY).collect();
    let host_ends: BTreeSet<String> = alive.iter().map(|alive| alive.host_end.clone()).collect();
    let mut faults = differences("interface", &links, &host_ends);
    let addresses: BTreeSet<String> = alive.iter().flat_map(|alive| alive.addresses.clone()).collect();
    let (routed, known) = (routes(netns, &links), neighbours(netns, &links));
    faults.extend(differences("route", &routed, &addresses));
    // The node resolves its pods' neighbours; a missing entry is no fault, and neither is one that
    // vanishes with its interface.
    faults.extend(known.difference(&addresses).map(|address| format!("stray neighbour: {address}")));
    faults.extend(rules(netns, &host_ends));
    faults
}

/// Destinations of the routes to pods' interfaces.
fn routes(netns: &str, links: &BTreeSet<String>) -> BTreeSet<String> {
    let mut routed = BTreeSet::new();
    for family in ["-4", "-6"] {
        let routes = json(&["-n", netns, "-j", family, "route", "show"]);
        let to_pods = routes.iter().filter(|route| links.contains(route["dev"].as_str().unwrap_or("")));
        routed.extend(to_pods.map(|route| route["dst"].as_str().unwrap().to_owned()));
    }
    routed.retain(|dst| !dst.starts_with("fe80"));
    routed
}

/// Permanent neighbour entries on pods' interfaces.
fn neighbours(netns: &str, links: &BTreeSet<String>) -> BTreeSet<String> {
    let neighbours = json(&["-n", netns, "-j", "neigh", "show", "nud", "permanent"]);
    let of_pods = neighbours.iter().filter(|entry| links.contains(entry["dev"].as_str().unwrap_or("")));
    of_pods.map(|entry| entry["dst"].as_str().unwrap().to_owned()).collect()
}

/// Entries of nf_tables that name an interface that no pod has. Russet's are called `russ...`,
/// Calico's `cali...`.
fn rules(netns: &str, host_ends: &BTreeSet<String>) -> Vec<String> {
    let text = run("ip", &["netns", "exec", netns, "nft", "-j", "list", "ruleset"]);
    let ruleset: Value = serde_json::from_str(&text).unwrap();
    let mut named = BTreeSet::new();
    strings(&ruleset, &mut named);
    // Of the same length as a host end's name, so that tables and chains named `russet...` do not
    // match.
    let is_host_end =
        |name: &&String| name.len() == 15 && (name.starts_with("russ") || name.starts_with("cali"));
    let strange = named.iter().filter(is_host_end).filter(|name| !host_ends.contains(*name));
    strange.map(|name| format!("stray nf_tables entry: {name}")).collect()
}

fn strings(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => _ = found.insert(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(members) => members.values().for_each(|member| strings(member, found)),
        _ => {}
    }
}

fn json(args: &[&str]) -> Vec<Value> {
    let text = run("ip", args);
    if text.trim().is_empty() {
        return Vec::new();
    }
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("ip {args:?}: {error}: {text}"))
}

/// The differences inside a pod: its interfaces and their addresses.
pub fn faults_inside(alive: &Alive) -> Vec<String> {
    let show = ["-n", &alive.pod.netns_name, "-j", "address", "show"];
    let output = std::process::Command::new(require_tool("ip")).args(show).output().unwrap();
    let links: Vec<Value> = match serde_json::from_slice(&output.stdout) {
        Ok(links) => links,
        Err(_) => {
            return vec![format!("{}: {}", alive.pod.container, String::from_utf8_lossy(&output.stderr))];
        }
    };
    let name = |link: &&Value| link["ifname"].as_str().unwrap_or("").to_owned();
    let names: BTreeSet<String> = links.iter().map(|link| name(&link)).collect();
    let wanted = ["lo", "eth0"].map(str::to_owned).into();
    let mut faults = differences("interface in the pod", &names, &wanted);
    let of_eth0 = links.iter().filter(|link| name(link) == "eth0");
    let addresses = of_eth0.flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default());
    let global = addresses.filter(|address| address["scope"] == "global");
    let there = global.map(|address| address["local"].as_str().unwrap().to_owned()).collect();
    let wanted = alive.addresses.iter().cloned().collect();
    faults.extend(differences("address in the pod", &there, &wanted));
    faults.iter().map(|fault| format!("{}: {fault}", alive.pod.container)).collect()
}

/// Leftovers of a DEL in a pod's namespace, if that still exists. Interfaces that wait for deletion
/// by the agent have names of their own.
pub fn left_inside(pod: &TestPod) -> Vec<String> {
    let Ok(netns) = NetNs::open_named(&pod.netns_name) else { return Vec::new() };
    let devices = netns.with(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
    let names = devices.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    names.filter(|name| *name != "lo" && !name.starts_with("rsx")).map(str::to_owned).collect()
}
