//! The additional contents of verbose answers: JSON under keys that crictl prints and tools of
//! other runtimes read.

use std::collections::HashMap;

use crate::{Sandbox, State};
use serde_json::{Value, json};

/// The `info` of a sandbox, in containerd's format: tools look for `pid` and for the network's path
/// in `runtimeSpec`.
pub fn of_sandbox(sandbox: &Sandbox) -> HashMap<String, String> {
    let namespaces: Vec<Value> = sandbox
        .netns
        .iter()
        .map(|path| json!({"type": "network", "path": path}))
        .chain(sandbox.pid.into_iter().flat_map(|pid| own_namespaces(sandbox, pid)))
        .collect();
    let info = json!({
        "pid": sandbox.pid.unwrap_or(0),
        "processStatus": if sandbox.pid.is_some() && sandbox.state == State::Ready { "running" } else { "stopped" },
        "netNamespaceClosed": sandbox.netns.is_none() && !sandbox.config.host_network,
        "runtimeHandler": sandbox.config.runtime_handler,
        "sandboxDir": sandbox.dir,
        "trouble": sandbox.trouble,
        "config": sandbox.config,
        "addresses": sandbox.addresses,
        "runtimeSpec": {"hostname": sandbox.config.hostname, "linux": {"namespaces": namespaces}},
    });
    HashMap::from([("info".to_owned(), info.to_string())])
}

/// Namespaces without a path of their own, by their process's.
fn own_namespaces(sandbox: &Sandbox, pid: u32) -> Vec<Value> {
    let namespace = |kind: &str| json!({"type": kind, "path": format!("/proc/{pid}/ns/{kind}")});
    let own = [("uts", !sandbox.config.host_network), ("ipc", !sandbox.config.host_ipc)];
    own.into_iter().filter(|(_, own)| *own).map(|(kind, _)| namespace(kind)).collect()
}

/// The `config` at the start, and the network's state.
pub fn of_runtime(
    config: &Value,
    network: &Result<(), String>,
    pod_cidr: &[String],
) -> HashMap<String, String> {
    let network = network.as_ref().map_or_else(String::clone, |()| "OK".to_owned());
    HashMap::from([
        ("config".to_owned(), config.to_string()),
        ("lastCNILoadStatus".to_owned(), json!(network).to_string()),
        ("podCIDR".to_owned(), json!(pod_cidr).to_string()),
    ])
}
