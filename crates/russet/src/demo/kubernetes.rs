//! The demo in a Kubernetes cluster: a real control plane, Russet's manifest, and the demo itself in the place of each node's kubelet.
//!
//! There is no kubelet and no container runtime: those need images and control groups of their own (`cargo xtask e2e` has them). So the pods of the
//! manifest are processes of this executable, with the tokens that kubelet would give them, and pods of the Deployment are namespaces that are
//! attached through CNI.

mod api;
mod control;
mod kubelet;
mod manifest;
mod programs;

use std::time::{Duration, Instant};

use serde_json::Value;

use super::fleet::Fleet;
use super::lab::{Lab, POD_NAMESPACE};
use super::report::{ClusterReport, PodReport};
use super::{DemoError, Interrupt, leftovers, pods, topology};
use api::Api;
pub use control::kubeconfig;
use kubelet::Kubelet;
pub use programs::Programs;

/// Longest wait for nodes, and for pods, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
/// Pause between looks, each of which is a request.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A running cluster.
pub struct Cluster {
    api: Api,
    kubelet: Kubelet,
    report: ClusterReport,
}

// === impl Cluster ===

impl Cluster {
    /// Starts the control plane.
    pub fn start(programs: &Programs, fleet: &mut Fleet, interrupt: &Interrupt) -> Result<Self, DemoError> {
        leftovers::create_dir()?;
        let started = Instant::now();
        let api = control::start(programs, fleet, interrupt)?;
        let report = ClusterReport {
            version: kubelet::text(&api.get("version")?["gitVersion"]),
            programs: programs
                .apiserver
                .parent()
                .map(|place| place.display().to_string())
                .unwrap_or_default(),
            apiserver_ready_ms: started.elapsed().as_millis() as u64,
            nodes_ready_ms: 0,
            pods_running_ms: 0,
        };
        Ok(Self { api, kubelet: Kubelet::default(), report })
    }

    /// What was started, and how long its steps took.
    pub fn report(&self) -> &ClusterReport {
        &self.report
    }

    /// Registers the nodes, applies the manifest, and waits until all nodes are Ready.
    pub fn install(&mut self, lab: &Lab, fleet: &mut Fleet, interrupt: &Interrupt) -> Result<(), DemoError> {
        for node in &lab.nodes {
            self.api.create("api/v1/nodes", &manifest::node(node))?;
        }
        let objects = manifest::objects()?;
        pods::configure(lab, kubelet::conflist_source)?;
        for node in &lab.nodes {
            let path = node.paths().settings_file();
            let directory = path.parent().unwrap_or(&path).to_owned();
            std::fs::create_dir_all(&directory)
                .map_err(|source| DemoError::io(format!("make {}", directory.display()), source))?;
            control::write(&path, manifest::config_file(&objects, "russet.toml").unwrap_or_default())?;
        }
        let began = Instant::now();
        manifest::apply(&self.api, &objects)?;
        let Self { api, kubelet, report } = self;
        until(fleet, interrupt, "the network of all nodes", |fleet| kubelet.look(api, lab, fleet))?;
        report.nodes_ready_ms = began.elapsed().as_millis() as u64;
        Ok(())
    }

    /// Applies a Deployment, starts its pods where the scheduler has bound them, and waits until all are available.
    pub fn run_pods(
        &mut self,
        lab: &mut Lab,
        fleet: &mut Fleet,
        replicas: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<PodReport>, DemoError> {
        let Self { api, kubelet, report } = self;
        let began = Instant::now();
        manifest::apply(api, &manifest::deployment(replicas))?;
        let mut bound: Vec<(String, String)> = Vec::new();
        until(fleet, interrupt, "the scheduler", |fleet| {
            // The controllers' pods may come after the nodes are Ready, and their taints go by them.
            kubelet.look(api, lab, fleet)?;
            let list = api.get(&format!("api/v1/namespaces/{POD_NAMESPACE}/pods"))?;
            bound = kubelet::items(&list).iter().filter_map(binding).collect();
            Ok(bound.len() == replicas)
        })?;
        bound.sort();
        for (node, pod) in &bound {
            if let Some(node) = lab.nodes.iter_mut().find(|found| found.name == *node) {
                topology::namespace(&node.bind(pod).namespace)?;
            }
        }
        let attached = pods::attach_all(lab, interrupt)?;
        for pod in &attached {
            kubelet::report_running(api, POD_NAMESPACE, &pod.name, "demo", &pod.ips)?;
        }
        until(fleet, interrupt, "the Deployment", |_| {
            let deployment = api.get(&manifest::deployment_path())?;
            Ok(deployment["status"]["availableReplicas"].as_u64() == Some(replicas as u64))
        })?;
        report.pods_running_ms = began.elapsed().as_millis() as u64;
        Ok(attached)
    }
}

/// The node and the name of a pod that the scheduler has bound.
fn binding(pod: &Value) -> Option<(String, String)> {
    let node = pod["spec"]["nodeName"].as_str()?;
    Some((node.to_owned(), kubelet::text(&pod["metadata"]["name"])))
}

/// Looks until a condition holds; fails if a process ends meanwhile.
fn until(
    fleet: &mut Fleet,
    interrupt: &Interrupt,
    what: &str,
    mut condition: impl FnMut(&mut Fleet) -> Result<bool, DemoError>,
) -> Result<(), DemoError> {
    let started = Instant::now();
    while !condition(fleet)? {
        fleet.check_alive()?;
        if started.elapsed() > DEADLINE {
            return Err(fleet.late(what, DEADLINE));
        }
        interrupt.wait(BETWEEN_LOOKS)?;
    }
    Ok(())
}
