//! `russet cni`: chains as a runtime runs them, and their timing, with an agent and without one.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use russet_linux::process;
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// A node with a network of two plugins, both Russet's.
fn node_with_network() -> TestNode {
    let node = TestNode::start(&[]);
    let conf = node.root().join("net.d");
    let bin = node.root().join("bin");
    for dir in [&conf, &bin] {
        std::fs::create_dir(dir).unwrap();
    }
    for plugin in ["russet", "portmap"] {
        symlink(env!("CARGO_BIN_EXE_russet"), bin.join(plugin)).unwrap();
    }
    let mut portmap = node.config(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    for settings in ["name", "cniVersion"] {
        portmap.as_object_mut().unwrap().remove(settings);
    }
    let list =
        json!({ "cniVersion": "1.1.0", "name": "testnet", "plugins": [node.config(json!({})), portmap] });
    std::fs::write(conf.join("10-testnet.conflist"), list.to_string()).unwrap();
    node
}

/// Runs `russet cni` in the node's namespace, with cnitool's variables.
fn cni(node: &TestNode, args: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command
        .env_clear()
        .env("NETCONFPATH", node.root().join("net.d"))
        .env("CNI_PATH", node.root().join("bin"));
    command.env("CNI_IFNAME", "net1").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.arg("cni").args(args).stdin(Stdio::null());
    command.arg("--cni-cache-dir").arg(node.root().join("cache"));
    process::in_netns(&mut command, node.netns()).unwrap();
    command.output().unwrap().into()
}

fn document(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// The stages of a plugin in the output of `russet cni -o json --timing`, after a check that all
/// numbers are consistent.
fn stages(document: &Value, plugin: &str, verb: &str) -> Vec<String> {
    let timing = &document["timing"];
    let us = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{document}"));
    let plugins = timing["plugins"].as_array().unwrap();
    let it = plugins.iter().find(|it| it["plugin"] == plugin && it["verb"] == verb).unwrap();
    let inside = &it["inside"][0];
    let stages = inside["stages_us"].as_object().unwrap();
    let sum: u64 = stages.values().map(us).sum();
    assert!(sum <= us(&inside["total_us"]), "{document}");
    assert!(us(&inside["total_us"]) <= us(&it["total_us"]), "{document}");
    assert!(
        plugins.iter().map(|it| us(&it["total_us"])).sum::<u64>() <= us(&timing["total_us"]),
        "{document}"
    );
    assert_eq!(inside["plugin"], plugin);
    stages.keys().cloned().collect()
}

fn path(pod: &TestPod) -> String {
    pod.path().to_str().unwrap().to_owned()
}

#[test]
#[ignore = "root: makes network namespaces"]
fn timing_lists_the_stages_with_an_agent_and_without_one() {
    let mut node = node_with_network();
    for agent in [true, false] {
        let pod = node.pod();
        let netns = path(&pod);
        let timed = |verb: &str| cni(&node, &[verb, "testnet", &netns, "--timing", "-o", "json"]);
        let added = timed("add");
        assert_eq!(added.status, 0, "{added:?}");
        let document = document(&added);
        assert_eq!((&document["schema"], &document["error"]), (&json!(1), &Value::Null));
        assert_eq!(document["ifname"], "net1");
        assert_eq!(document["result"]["interfaces"][1]["sandbox"], netns.as_str(), "{document}");
        let of_add = stages(&document, "russet", "ADD");
        assert_eq!(of_add, ["turn", "journal", "address", "place", "wiring", "gate"], "agent: {agent}");
        assert!(!stages(&document, "portmap", "ADD").is_empty());
        assert!(!added.stderr.contains("russet-timing"), "the line is taken out: {}", added.stderr);
        assert_eq!(timed("check").status, 0);
        let deleted = timed("del");
        let of_del = stages(&self::document(&deleted), "russet", "DEL");
        // An agent releases the addresses after its answer.
        let of_release = if agent { None } else { Some("release") };
        for stage in ["turn", "wiring"].into_iter().chain(of_release) {
            assert!(of_del.iter().any(|it| it == stage), "{of_del:?}");
        }
        assert_eq!(timed("del").status, 0, "twice");
        if agent {
            node.stop_agent();
        }
    }
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_add_with_timing_warns_of_a_pod_whose_packets_get_no_answer() {
    let mut node = node_with_network();
    for plugin in ["bridge", "host-local"] {
        symlink(env!("CARGO_BIN_EXE_russet"), node.root().join("bin").join(plugin)).unwrap();
    }
    let added = |node: &mut TestNode, masquerade: bool, more: &[&str]| {
        let plugin = node.config(json!({
            "type": "bridge", "bridge": "lan0", "isGateway": true, "isDefaultGateway": true, "ipMasq": masquerade,
            "ipam": { "type": "host-local", "dataDir": node.path("lan"), "ranges": [[{ "subnet": "10.9.0.0/24" }]] },
        }));
        let list = json!({ "cniVersion": "1.1.0", "name": "lan", "plugins": [plugin] });
        std::fs::write(node.root().join("net.d/20-lan.conflist"), list.to_string()).unwrap();
        let netns = path(&node.pod());
        let answer = cni(node, &[&["add", "lan", &netns], more].concat());
        assert_eq!(answer.status, 0, "{answer:?}");
        assert_eq!(cni(node, &["del", "lan", &netns]).status, 0);
        answer.stderr
    };
    let said = added(&mut node, false, &["--timing"]);
    assert!(said.contains("warning: ") && said.contains("ipMasq"), "{said}");
    for (masquerade, more) in [(true, &["--timing"][..]), (false, &[])] {
        let said = added(&mut node, masquerade, more);
        assert!(!said.contains("warning: "), "{said}");
    }
}

#[test]
#[ignore = "root: makes network namespaces"]
fn arguments_results_and_exit_codes_are_cnitools() {
    // cni-runtime.md section 3.6
    let mut node = node_with_network();
    let pod = node.pod();
    let netns = path(&pod);
    let added = cni(&node, &["add", "testnet", &netns]);
    assert!(
        added.status == 0 && added.stdout.starts_with("{\n    \"cniVersion\": \"1.1.0\",\n"),
        "{added:?}"
    );
    let cached = std::fs::read_dir(node.root().join("cache/results")).unwrap().next().unwrap().unwrap();
    let name = cached.file_name().into_string().unwrap();
    assert!(name.starts_with("testnet-cnitool-") && name.ends_with("-net1"), "{name}");
    let checked = cni(&node, &["check", "testnet", &netns]);
    assert_eq!((checked.status, checked.stdout.as_str()), (0, ""), "{checked:?}");
    assert_eq!(cni(&node, &["status", "testnet", &netns]).status, 0);
    let versions = cni(&node, &["version", "testnet", "-o", "json"]);
    assert_eq!(document(&versions)["result"]["portmap"], document(&versions)["result"]["russet"]);

    let refused = cni(&node, &["add", "nosuch", &netns]);
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""));
    assert!(refused.stderr.contains("no net configuration with name \"nosuch\""), "{refused:?}");
    let refused = document(&cni(&node, &["add", "nosuch", &netns, "-o", "json"]));
    assert_eq!((&refused["error"]["code"], &refused["result"]), (&json!(7), &Value::Null));
    let gone = document(&cni(&node, &["add", "testnet", "/nonexistent", "-o", "json"]));
    assert!(gone["error"]["msg"].as_str().unwrap().contains("type=\"russet\""), "{gone}");

    assert_eq!(cni(&node, &["gc", "testnet", &netns]).status, 2, "everything goes only when that is said");
    assert_eq!(cni(&node, &["gc", "testnet", "--all"]).status, 0);
    eventually(TIMEOUT, || node.links().is_empty());
    assert_ne!(cni(&node, &["check", "testnet", &netns]).status, 0);
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_chain_of_russets_plugins_runs_in_process_without_executables() {
    let mut node = node_with_network();
    let nothing = node.root().join("empty");
    std::fs::create_dir(&nothing).unwrap();
    let nothing = nothing.to_str().unwrap();
    for agent in [true, false] {
        let pod = node.pod();
        let netns = path(&pod);
        let here = |verb: &str| {
            cni(
                &node,
                &[
                    verb,
                    "testnet",
                    &netns,
                    "--in-process",
                    "--cni-bin-dir",
                    nothing,
                    "--timing",
                    "-o",
                    "json",
                ],
            )
        };
        let missing = cni(&node, &["add", "testnet", &netns, "--cni-bin-dir", nothing]);
        assert!(missing.stderr.contains("failed to find plugin \"russet\""), "{missing:?}");
        let added = here("add");
        assert_eq!(added.status, 0, "{added:?}");
        assert_eq!(document(&added)["result"]["interfaces"][1]["sandbox"], netns.as_str());
        assert_eq!(stages(&document(&added), "russet", "ADD")[0], "turn", "agent: {agent}");
        for verb in ["check", "del", "del"] {
            let done = here(verb);
            assert_eq!(done.status, 0, "{verb}: {done:?}");
        }
        // Attachments of the executables are detached in process.
        assert_eq!(cni(&node, &["add", "testnet", &netns]).status, 0);
        assert_eq!(here("del").status, 0);
        assert_eq!(cni(&node, &["check", "testnet", &netns]).status, 1);
        if agent {
            node.stop_agent();
        }
    }
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_chain_is_shown_on_standard_error_and_a_network_is_validated() {
    let mut node = node_with_network();
    let pod = node.pod();
    let netns = path(&pod);
    let added = cni(&node, &["add", "testnet", &netns]);
    let shown: Vec<&str> = added.stderr.lines().map(|line| line.split(" ...").next().unwrap()).collect();
    assert_eq!(shown, ["ADD russet", "ADD portmap"], "{added:?}");
    assert!(added.stderr.lines().all(|line| line.ends_with(" ms")), "{added:?}");
    assert!(serde_json::from_str::<Value>(&added.stdout).is_ok(), "the result is alone on standard output");
    let quiet = cni(&node, &["del", "testnet", &netns, "-o", "json"]);
    assert_eq!((quiet.status, quiet.stderr.as_str()), (0, ""));

    let valid = cni(&node, &["validate", "testnet", "-o", "json"]);
    assert_eq!(document(&valid)["result"], json!({ "capabilities": ["portMappings"] }));
    std::fs::remove_file(node.root().join("bin/portmap")).unwrap();
    let invalid = cni(&node, &["validate", "testnet"]);
    assert_eq!(invalid.status, 1);
    assert!(invalid.stderr.contains("failed to find plugin \"portmap\""), "{invalid:?}");
    // The vendor of a network is its first plugin.
    let vendor = node.root().join("opt/russet/bin");
    std::fs::create_dir_all(&vendor).unwrap();
    symlink(env!("CARGO_BIN_EXE_russet"), vendor.join("portmap")).unwrap();
    let prefix = node.root().to_str().unwrap().to_owned();
    assert_eq!(cni(&node, &["validate", "testnet", "--vendor-prefix", &prefix]).status, 0);
}

#[test]
fn lint_reports_problems_with_their_position_and_exits_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-x.conflist");
    let russet = |args: &[&str]| -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.env_clear().env("CNI_PATH", dir.path()).args(["cni", "lint"]).args(args).arg(&file);
        command.stdin(Stdio::null()).output().unwrap().into()
    };
    std::fs::write(&file, r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","mtu":"1500"}]}"#)
        .unwrap();
    let found = russet(&[]);
    let place = format!("{}:1:62: error: plugins[0].mtu: a whole number is wanted", file.display());
    let missing = format!("there is no executable 'bridge' in {}", dir.path().display());
    assert_eq!((found.status, found.stdout.lines().count()), (3, 2), "{found:?}");
    assert!(found.stdout.contains(&place) && found.stdout.contains(&missing), "{found:?}");
    let found = document(&russet(&["--no-plugins", "-o", "json"]));
    assert_eq!(found["findings"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!((&found["schema"], &found["findings"][0]["column"]), (&json!(1), &json!(62)));
    assert_eq!(found["findings"][0]["at"], "plugins[0].mtu");
    std::fs::write(&file, r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","mtu":1500}]}"#)
        .unwrap();
    let clean = russet(&["--no-plugins"]);
    assert_eq!((clean.status, clean.stdout.as_str()), (0, ""), "{clean:?}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn metrics_have_stages_store_pools_and_readiness_of_a_running_agent() {
    let mut node = node_with_network();
    let pod = node.pod();
    assert_eq!(cni(&node, &["add", "testnet", &path(&pod)]).status, 0);
    let value = |text: &str, sample: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok())
    };
    // The claim of the pod's block is reported by the watch.
    let claimed = |pool: &str| format!("russet_ipam_pool_claimed_blocks{{pool=\"{pool}\"}}");
    eventually(TIMEOUT, || {
        value(&node.get("/metrics"), &claimed("default-ipv4")).is_some_and(|it| it >= 1.0)
    });
    let text = node.get("/metrics");
    for sample in [
        "russet_cni_requests_total{verb=\"ADD\",code=\"0\"}",
        "russet_cni_stage_seconds_count{verb=\"ADD\",stage=\"address\"}",
        "russet_cni_stage_seconds_count{verb=\"ADD\",stage=\"wiring\"}",
        "russet_cni_stage_seconds_count{verb=\"ADD\",stage=\"gate\"}",
        "russet_store_request_seconds_count{op=\"commit\",outcome=\"ok\"}",
        "russet_store_watch_events_total",
        "russet_store_watch_lag_seconds_count",
        "russet_ipam_pool_blocks{pool=\"default-ipv4\"}",
        "russet_agent_ready",
        "russet_agent_condition_met{condition=\"store\"}",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ] {
        assert!(value(&text, sample).is_some_and(|value| value > 0.0), "{sample}:\n{text}");
    }
    assert!(
        text.to_ascii_lowercase().contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0"),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(value(&text, "russet_store_silence_seconds").is_some_and(|it| it < 20.0), "{text}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn del_uses_the_cache_after_the_network_was_removed() {
    let mut node = node_with_network();
    let pod = node.pod();
    let netns = path(&pod);
    let del = || cni(&node, &["del", "testnet", &netns]);
    assert_eq!(cni(&node, &["add", "testnet", &netns]).status, 0);
    std::fs::remove_file(node.root().join("net.d/10-testnet.conflist")).unwrap();
    let deleted = del();
    assert_eq!(deleted.status, 0, "{deleted:?}");
    eventually(TIMEOUT, || node.links().is_empty());
    let again = del();
    assert_eq!(again.status, 1);
    assert!(
        again.stderr.contains("no net configurations found") && again.stderr.contains("no such attachment"),
        "{again:?}"
    );
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn gc_of_everything_also_removes_attachments_that_are_not_in_the_cache() {
    let mut node = node_with_network();
    let pod = node.pod();
    assert_eq!(cni(&node, &["add", "testnet", &path(&pod)]).status, 0);
    std::fs::remove_dir_all(node.root().join("cache")).unwrap();
    let collected = cni(&node, &["gc", "testnet", "--all"]);
    assert_eq!(collected.status, 0, "{collected:?}");
    eventually(TIMEOUT, || node.links().is_empty());
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_requested_address_and_mac_are_given_or_the_add_fails() {
    let mut node = node_with_network();
    for agent in [true, false] {
        let (first, pod) = (node.pod(), node.pod());
        let (first, netns) = (path(&first), path(&pod));
        let added: Value = serde_json::from_str(&cni(&node, &["add", "testnet", &first]).stdout).unwrap();
        let taken = added["ips"][0]["address"].as_str().unwrap().trim_end_matches("/32").to_owned();
        let taken: std::net::Ipv4Addr = taken.parse().unwrap();
        // Another address of the node's block.
        let free = std::net::Ipv4Addr::from(u32::from(taken) ^ 32);
        let add = |args: &str| cni(&node, &["add", "testnet", &netns, "--args", args]);
        for (args, why) in [
            (format!("IP={taken}"), "already assigned"),
            ("IP=192.0.2.1".to_owned(), "not in a configured pool"),
            ("MAC=01:00:00:00:00:00".to_owned(), "MAC"),
        ] {
            let refused = add(&args);
            assert!(refused.status == 1 && refused.stderr.contains(why), "{args}: {refused:?}");
        }
        let given = add(&format!("IP={free};MAC=02:11:22:33:44:55"));
        let result: Value = serde_json::from_str(&given.stdout).unwrap_or_else(|_| panic!("{given:?}"));
        assert_eq!(result["ips"][0]["address"], format!("{free}/32"), "agent: {agent}");
        assert_eq!(result["ips"].as_array().unwrap().len(), 1);
        assert_eq!(result["interfaces"][1]["mac"], "02:11:22:33:44:55");
        let link = &russet_testkit::ip_json(&["-n", &pod.netns_name, "link", "show", "net1"])[0];
        assert_eq!(link["address"], "02:11:22:33:44:55");
        let checked = cni(&node, &["check", "testnet", &netns]);
        assert_eq!(checked.status, 0, "{checked:?}");
        let other = add(&format!("IP={}", std::net::Ipv4Addr::from(u32::from(free) ^ 16)));
        assert!(other.status == 1 && other.stderr.contains("already"), "{other:?}");
        for netns in [&netns, &first] {
            assert_eq!(cni(&node, &["del", "testnet", netns]).status, 0);
        }
        if agent {
            node.stop_agent();
        }
    }
    assert_eq!(node.allocated(), 0);
}
