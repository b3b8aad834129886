//! The taint of nodes whose agents are not ready.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::{Bench, settings, until};

const TAINT: &str = "russet.dev/agent-not-ready";

fn node(name: &str, ready: bool) -> Value {
    let annotations = if ready { json!({ "russet.dev/ready": "0.1.0/boot" }) } else { json!({}) };
    json!({ "kind": "Node", "metadata": { "name": name, "annotations": annotations },
        "spec": { "taints": [{ "key": "gpu", "effect": "NoSchedule" }, { "key": TAINT, "effect": "NoSchedule" }] } })
}

fn keys(bench: &Bench, name: &str) -> Vec<String> {
    let node = bench.server.object("Node", "", name).unwrap();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_taint_goes_when_the_agent_is_ready_and_others_stay() {
    // kubernetes.md K93
    let bench = Bench::with(&[]).await;
    bench.server.put(node("n1", true));
    bench.server.put(node("n2", false));
    let seen = async {
        until("n1 is free of it", async || keys(&bench, "n1") == ["gpu"]).await;
        assert_eq!(keys(&bench, "n2"), ["gpu", TAINT]);
        bench.server.put(node("n2", true));
        // An API server that is away for a while.
        bench.server.fail_next(5, 503);
        until("n2 is free of it", async || keys(&bench, "n2") == ["gpu"]).await;
    };
    tokio::select! {
        () = seen => {}
        _ = bench.run(settings("a"), |_| false) => {}
    }
}

#[tokio::test]
async fn a_taint_that_another_adds_meanwhile_stays() {
    // kubernetes.md K94
    let bench = Bench::with(&[]).await;
    bench.server.put(node("n1", false));
    // The patch is built from what the watch showed, and arrives after another change.
    let other = async {
        until("nodes are watched", async || {
            bench.server.seen().iter().any(|seen| seen.path.contains("watch=true"))
        })
        .await;
        bench.server.delay(Duration::from_millis(100));
        for n in 0..5 {
            let mut changed = node("n1", true);
            changed["metadata"]["annotations"]["n"] = json!(n.to_string());
            if n == 4 {
                let first = json!({ "key": "first", "effect": "NoExecute" });
                changed["spec"]["taints"].as_array_mut().unwrap().insert(0, first);
            }
            bench.server.put(changed);
        }
        until("the taint is gone", async || keys(&bench, "n1") == ["first", "gpu"]).await;
    };
    tokio::select! {
        () = other => {}
        _ = bench.run(settings("a"), |_| false) => {}
    }
}
