//! Checks what is promised about metrics outside of the code: docs/metrics.md, the dashboard and
//! the alert rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use russet_plugins::Stages;
use russet_plugins::stages::during;

use super::*;
use crate::peers::PeersReport;

/// Suffixes that Prometheus' text format adds to a metric's name.
const SAMPLE_ENDINGS: [&str; 4] = ["_total", "_bucket", "_sum", "_count"];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Gives every metric with labels a value, because it is not encoded without one.
fn use_all(metrics: &Metrics) {
    let stages = Stages::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(stages.record(during(Stage::Turn, std::future::ready(()))));
    metrics.request("ADD", 0, &stages.spent());
    for family in [&metrics.changes, &metrics.repaired, &metrics.recoveries, &metrics.guard_drops] {
        family.get_or_create(&Kind { kind: "route".to_owned() }).inc();
    }
    metrics.drift.repaired(&[("route".to_owned(), 1)].into(), Duration::ZERO, SystemTime::UNIX_EPOCH);
    metrics.store.clock("get").ended("ok", true);
    metrics.pools.set_claims(&BTreeMap::from([("pool".to_owned(), Claims::default())]));
    metrics.pools.set_fill(&BTreeMap::from([("pool".to_owned(), Fill::default())]));
    metrics.policies.denied_flow(None);
    metrics.policies.carried(Policed::Unknown, russet_overlay::fast_path::Carried::default());
    metrics.peers.count(&[Some(Duration::ZERO)]);
    metrics.peers.set(&PeersReport::not_probed("a reason"), true);
    metrics.peers.use_all();
    metrics.policies.pending_flow("StagedNetworkPolicy shop/soon".to_owned(), "denied");
}

/// Each exported metric's help and type, by the name that a query uses.
fn registered() -> BTreeMap<String, (String, String)> {
    let (metrics, registry) = Metrics::with_readiness(&Readiness::pending());
    use_all(&metrics);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    // A new metric that `use_all` does not know.
    for name in format!("{registry:?}").split("Descriptor { name: \"").skip(1) {
        let name = name.split('"').next().unwrap();
        assert!(text.contains(&format!("# HELP russet_{name} ")), "{name} has no value: use it in `use_all`");
    }
    let lines =
        |mark: &'static str| text.lines().filter_map(move |line| line.strip_prefix(mark)?.split_once(' '));
    let kinds: BTreeMap<&str, &str> = lines("# TYPE ").collect();
    let metric = |(name, help): (&str, &str)| {
        let ending = match kinds[name] {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        (format!("{name}{ending}"), (help.trim_end_matches('.').to_owned(), kinds[name].to_owned()))
    };
    lines("# HELP ").map(metric).collect()
}

/// The tables of docs/metrics.md: `| name | type | labels | meaning |`.
fn documented() -> BTreeMap<String, String> {
    let text = file("docs/metrics.md");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        assert!(cells.len() == 4 && !cells[3].is_empty(), "{line}");
        is_agents(name).then(|| (name.to_owned(), cells[1].to_owned()))
    };
    text.lines().filter(|line| line.starts_with("| `")).filter_map(row).collect()
}

/// `russet cri`, `russet controller` and `flanneld` export the others, and their own tests cover them.
fn is_agents(name: &str) -> bool {
    let others = ["russet_sandbox_", "russet_cri_", "russet_controller_", "russet_ipam_gc_", "flanneld_"];
    !others.iter().any(|start| name.starts_with(start))
}

/// Names of our metrics and of the process's in an expression.
fn names_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = |word: &&str| is_agents(word) && (word.starts_with("russet_") || word.starts_with("process_"));
    words.filter(ours).map(str::to_owned).collect()
}

/// Whether an agent exports what a query for `name` selects.
fn is_printed(name: &str, registered: &BTreeMap<String, (String, String)>) -> bool {
    if let Some((_, kind)) = registered.get(name) {
        return kind != "histogram";
    }
    let histogram = |name: &str| registered.get(name).is_some_and(|(_, kind)| kind == "histogram");
    SAMPLE_ENDINGS[1..].iter().any(|ending| name.strip_suffix(ending).is_some_and(histogram))
}

/// Every value under `key`, however deep.
fn values_of<'v>(value: &'v serde_json::Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, value) in object {
                found.extend(value.as_str().filter(|_| name == key));
                values_of(value, key, found);
            }
        }
        serde_json::Value::Array(array) => array.iter().for_each(|value| values_of(value, key, found)),
        _ => {}
    }
}

#[test]
fn every_metric_is_documented_and_every_documented_one_exists() {
    let kinds = registered().into_iter().map(|(name, (_, kind))| (name, kind)).collect::<BTreeMap<_, _>>();
    assert_eq!(documented(), kinds);
}

#[test]
fn every_metric_has_help_and_a_name_that_follows_the_convention() {
    // ARCHITECTURE.md, "Names and places": russet_<subsystem>_<noun>_<unit>; Prometheus: base
    // units, counters end in _total
    let registered = registered();
    assert!(registered.len() > 25, "{registered:?}");
    for (name, (help, kind)) in registered {
        assert!(help.split(' ').count() > 2, "{name}: {help:?}");
        assert!(name.starts_with("russet_") || name.starts_with("process_"), "{name}");
        assert!(kind != "histogram" || name.ends_with("_seconds"), "{name} has no unit");
        assert!(!name.split('_').any(|word| ["ms", "us", "milliseconds"].contains(&word)), "{name}");
    }
}

#[test]
fn the_dashboard_queries_only_exported_metrics() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&file("packaging/grafana/russet-node.json")).unwrap();
    let mut expressions = Vec::new();
    values_of(&dashboard, "expr", &mut expressions);
    let registered = registered();
    let names: BTreeSet<String> = expressions.iter().flat_map(|it| names_in(it)).collect();
    let unknown: Vec<_> = names.iter().filter(|name| !is_printed(name, &registered)).collect();
    assert!(expressions.len() >= 15 && unknown.is_empty(), "{unknown:?}");
    for name in [
        "russet_peers",
        "russet_peer_reachable",
        "russet_peer_round_trip_seconds_bucket",
        "russet_peer_probes_total",
    ] {
        assert!(names.contains(name), "no panel has {name}");
    }
    // It can be imported into any Grafana: its data source is a variable, and panel IDs are unique.
    let mut sources = Vec::new();
    values_of(&dashboard["panels"], "uid", &mut sources);
    assert!(!sources.is_empty() && sources.iter().all(|uid| *uid == "${datasource}"), "{sources:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
}

#[test]
fn each_alert_queries_exported_metrics_and_says_what_to_do() {
    let rules: serde_json::Value =
        russet_kube::yaml::from_slice(file("packaging/prometheus/russet.rules.yaml").as_bytes()).unwrap();
    let registered = registered();
    let groups = rules["groups"].as_array().unwrap();
    let rules: Vec<&serde_json::Value> =
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(rules.len() >= 9, "{}", rules.len());
    for rule in rules {
        let alert = rule["alert"].as_str().unwrap();
        for name in names_in(rule["expr"].as_str().unwrap()) {
            assert!(is_printed(&name, &registered), "{alert}: {name}");
        }
        for annotation in ["summary", "description", "action"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{alert} has no {annotation}");
        }
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{alert}");
        assert!(rule["for"].is_string(), "{alert} has no `for`");
    }
}

#[test]
fn the_documented_limits_of_listeners_are_those_of_the_code() {
    let text = file("docs/limits.md");
    let Listeners { cni, openshift, store, health, ui } = Listeners::new();
    for admission in [cni, openshift, store, health, ui] {
        let limits = admission.limits();
        let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", limits.name))).unwrap();
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let seconds = format!("{} s", limits.greeting_timeout.as_secs());
        assert_eq!(
            cells[3..6],
            [limits.connections.to_string(), limits.per_peer.to_string(), seconds],
            "{row}"
        );
    }
}
