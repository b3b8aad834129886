//! The demo in the place of each node's kubelet: it starts what the scheduler has bound to the node, as processes and by CNI, and reports nodes and pods.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use russet_linux::process;
use serde_json::{Value, json};

use super::api::Api;
use super::{control, manifest};
use crate::demo::fleet::Fleet;
use crate::demo::lab::{Fabric, Lab, Node};
use crate::demo::{DemoError, pods};

/// What has been started and reported.
#[derive(Default)]
pub struct Kubelet {
    /// The pod of each node and component of Russet.
    started: BTreeMap<(String, String), String>,
    /// The nodes that are reported as ready.
    ready: Vec<String>,
}

/// Russet's namespace in the manifest.
const SYSTEM: &str = "russet-system";
/// The label that says which part of Russet a pod is.
const COMPONENT: &str = "app.kubernetes.io/component";
/// A demo that is kept ends on the same day.
const TOKEN_SECONDS: u32 = 86_400;

/// Where the manifest's conflist of a node is until its agent installs it.
pub fn conflist_source(node: &Node, file: &str) -> PathBuf {
    node.paths().root().join(file)
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts Russet's pods that are new, and reports nodes that have become ready. True when all are.
    pub fn look(&mut self, api: &Api, lab: &Lab, fleet: &mut Fleet) -> Result<bool, DemoError> {
        let pods = api.get(&format!("api/v1/namespaces/{SYSTEM}/pods"))?;
        for pod in items(&pods) {
            let Some(node) = lab.nodes.iter().find(|node| pod["spec"]["nodeName"] == node.name.as_str())
            else {
                continue;
            };
            let component = text(&pod["metadata"]["labels"][COMPONENT]);
            let key = (node.name.clone(), component.clone());
            if self.started.contains_key(&key) {
                continue;
            }
            match component.as_str() {
                "agent" => start_agent(api, lab, fleet, node, pod)?,
                "controller" => start_controller(api, fleet, node, pod)?,
                _ => continue,
            }
            self.started.insert(key, text(&pod["metadata"]["name"]));
        }
        for node in &lab.nodes {
            let agent = self.started.get(&(node.name.clone(), "agent".to_owned()));
            let Some(agent) = agent.filter(|_| !self.ready.contains(&node.name)) else { continue };
            if pods::ready(lab, node) {
                report_running(api, SYSTEM, agent, "agent", &node_addresses(node))?;
                let status = json!({ "status": { "conditions": [manifest::ready(true)] } });
                api.patch(&format!("api/v1/nodes/{}/status", node.name), &status)?;
                self.ready.push(node.name.clone());
            }
        }
        Ok(self.ready.len() == lab.nodes.len())
    }
}

/// Reports that a pod's container runs.
pub fn report_running(
    api: &Api,
    namespace: &str,
    pod: &str,
    container: &str,
    addresses: &[IpAddr],
) -> Result<(), DemoError> {
    let condition = |kind: &str| json!({ "type": kind, "status": "True" });
    let all: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    let running = json!({ "name": container, "image": "", "imageID": "", "ready": true, "started": true, "restartCount": 0,
        "state": { "running": {} } });
    let status = json!({ "status": { "phase": "Running", "podIP": addresses.first(), "podIPs": all, "containerStatuses": [running],
        "conditions": [condition("Initialized"), condition("ContainersReady"), condition("Ready")] } });
    api.patch(&format!("api/v1/namespaces/{namespace}/pods/{pod}/status"), &status).map(drop)
}

fn start_agent(api: &Api, lab: &Lab, fleet: &mut Fleet, node: &Node, pod: &Value) -> Result<(), DemoError> {
    let Fabric::Russet(mode) = lab.fabric else {
        return Err(DemoError::Refused("the manifest is that of Russet's own network".to_owned()));
    };
    let store = format!("kubernetes:{}", token_file(api, node, pod, "agent")?.display());
    let mut agent = fleet.agent(node, mode, &store)?;
    agent.arg("--conflist").arg(conflist_source(node, pods::RUSSET_FILE));
    agent.env("POD_NAME", text(&pod["metadata"]["name"])).env("POD_NAMESPACE", SYSTEM);
    in_node(&mut agent, node)?;
    fleet.spawn(&node.name, agent)
}

fn start_controller(api: &Api, fleet: &mut Fleet, node: &Node, pod: &Value) -> Result<(), DemoError> {
    let store = format!("kubernetes:{}", token_file(api, node, pod, "controller")?.display());
    let name = text(&pod["metadata"]["name"]);
    let mut controller = fleet.russet()?;
    controller
        .args(["controller", "--health-address=127.0.0.1:9473", "--store", &store])
        .env("POD_NAME", &name);
    in_node(&mut controller, node)?;
    fleet.spawn(&format!("controller-{}", node.name), controller)?;
    report_running(api, SYSTEM, &name, "controller", &node_addresses(node))
}

/// A kubeconfig with a token that names the pod and its node, as kubelet gets it for a pod.
fn token_file(api: &Api, node: &Node, pod: &Value, component: &str) -> Result<PathBuf, DemoError> {
    let account = text(&pod["spec"]["serviceAccountName"]);
    let metadata = &pod["metadata"];
    let bound =
        json!({ "kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"] });
    let request = json!({ "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "spec": { "boundObjectRef": bound, "expirationSeconds": TOKEN_SECONDS } });
    let answer =
        api.create(&format!("api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"), &request)?;
    let root = node.paths().root().to_owned();
    fs::create_dir_all(&root).map_err(|source| DemoError::io(format!("make {}", root.display()), source))?;
    let path = root.join(format!("{component}.kubeconfig"));
    control::write_kubeconfig(&path, &text(&answer["status"]["token"]), SYSTEM)?;
    Ok(path)
}

fn in_node(command: &mut std::process::Command, node: &Node) -> Result<(), DemoError> {
    let moved = process::in_netns(command, &node.netns()?).map(drop);
    moved.map_err(|error| DemoError::step(format!("start in {}", node.namespace), error))
}

fn node_addresses(node: &Node) -> Vec<IpAddr> {
    node.underlay().iter().take(1).map(|net| net.addr()).collect()
}

/// The objects of a list.
pub fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A string, or nothing.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
