//! The demo's pods, attached as a container runtime attaches them: configuration files, plugin executables, result cache.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use russet_cni_spec::{CniResult, ConfigList};
use russet_linux::file::write_atomic;
use russet_model::{Block, KeyKind, Prefix};
use russet_runtime::{Attachment, Runtime};
use serde_json::json;

use super::datastore::Datastore;
use super::lab::{self, Lab, Node, POD_NAMESPACE, Pod, namespace_path};
use super::report::{BlockReport, PodReport};
use super::{DemoError, Interrupt};

/// The networks of every pod: the configuration file's name, its network's name, and its plugin.
const NETWORKS: [(&str, &str, &str, &str); 2] = [
    ("00-loopback.conflist", "cni-loopback", "loopback", "lo"),
    ("10-russet.conflist", "russet", "russet", "eth0"),
];
/// The network that gives a pod its addresses.
const MAIN_NETWORK: usize = 1;

/// Puts the plugins where a runtime looks for them, and each node's configuration where it looks for that.
pub fn configure(lab: &Lab) -> Result<(), DemoError> {
    let dir = lab::plugin_dir();
    make_dir(&dir)?;
    let plugin = plugin_executable()?;
    for (_, _, kind, _) in NETWORKS {
        let link = dir.join(kind);
        symlink(&plugin, &link)
            .map_err(|source| DemoError::io(format!("link {}", link.display()), source))?;
    }
    for node in &lab.nodes {
        make_dir(&node.paths().conflist_dir())?;
        for (file, name, kind, _) in NETWORKS {
            let plugin = json!({ "type": kind, "agent_socket": node.paths().cni_socket() });
            let list = json!({ "cniVersion": "1.1.0", "name": name, "plugins": [plugin] });
            let path = node.paths().conflist_dir().join(file);
            write_atomic(&path, list.to_string().as_bytes())
                .map_err(|error| DemoError::step(format!("write {}", path.display()), error))?;
        }
    }
    Ok(())
}

/// The small plugin if it lies beside this program; else this program, which acts as the plugin when a runtime runs it.
fn plugin_executable() -> Result<PathBuf, DemoError> {
    let own = std::env::current_exe().map_err(|source| DemoError::io("find the running program", source))?;
    let beside = own.with_file_name("russet-cni");
    Ok(if beside.is_file() { beside } else { own })
}

fn make_dir(dir: &Path) -> Result<(), DemoError> {
    fs::create_dir_all(dir).map_err(|source| DemoError::io(format!("make {}", dir.display()), source))
}

fn runtime_of(node: &Node) -> Runtime {
    Runtime::new(vec![lab::plugin_dir()], node.paths().root().join("var/lib/cni"))
}

fn network(node: &Node, index: usize) -> Result<ConfigList, DemoError> {
    let path = node.paths().conflist_dir().join(NETWORKS[index].0);
    russet_runtime::load_conflist(&path)
        .map_err(|error| DemoError::step(format!("load {}", path.display()), error))
}

fn attachment(pod: &Pod, index: usize) -> Result<Attachment, DemoError> {
    let failed = |error| DemoError::step(format!("name pod {}", pod.name), error);
    let mut attachment = Attachment::new(
        pod.container.parse().map_err(failed)?,
        namespace_path(&pod.namespace),
        NETWORKS[index].3.parse().map_err(failed)?,
    );
    attachment.args = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("K8S_POD_NAMESPACE".to_owned(), POD_NAMESPACE.to_owned()),
        ("K8S_POD_NAME".to_owned(), pod.name.clone()),
        ("K8S_POD_INFRA_CONTAINER_ID".to_owned(), pod.container.clone()),
    ];
    Ok(attachment)
}

/// Whether a node's agent says that it can attach pods.
pub fn ready(node: &Node) -> bool {
    network(node, MAIN_NETWORK).is_ok_and(|list| runtime_of(node).status(&list).is_ok())
}

/// Attaches every pod; nodes work at the same time, as they would.
pub fn attach_all(lab: &Lab, interrupt: &Interrupt) -> Result<Vec<PodReport>, DemoError> {
    let attach_node = |node: &Node| -> Result<Vec<PodReport>, DemoError> {
        let mut reports = Vec::new();
        for pod in &node.pods {
            interrupt.check()?;
            reports.push(attach(node, pod)?);
        }
        Ok(reports)
    };
    let mut all = Vec::new();
    for reports in on_every_node(lab, attach_node) {
        all.extend(reports?);
    }
    Ok(all)
}

/// Runs `work` for every node on a thread of its own, and gives the results in the nodes' order.
fn on_every_node<T: Send>(
    lab: &Lab,
    work: impl Fn(&Node) -> Result<T, DemoError> + Sync,
) -> Vec<Result<T, DemoError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = lab.nodes.iter().map(|node| scope.spawn(|| work(node))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| {
                done.unwrap_or_else(|_| Err(DemoError::Refused("a thread of the demo died".to_owned())))
            })
            .collect()
    })
}

fn attach(node: &Node, pod: &Pod) -> Result<PodReport, DemoError> {
    let runtime = runtime_of(node);
    let mut main = None;
    let started = Instant::now();
    for index in 0..NETWORKS.len() {
        let added = runtime.add(&network(node, index)?, &attachment(pod, index)?);
        let result = added.map_err(|error| DemoError::step(format!("attach pod {}", pod.name), error))?;
        main = (index == MAIN_NETWORK).then_some(result);
    }
    let ips = main
        .as_ref()
        .map_or_else(Vec::new, |result: &CniResult| result.ips.iter().map(|ip| ip.address.addr()).collect());
    Ok(PodReport {
        name: pod.name.clone(),
        node: node.name.clone(),
        netns: namespace_path(&pod.namespace).display().to_string(),
        ips,
        add_us: started.elapsed().as_micros() as u64,
    })
}

/// Detaches every pod whose node still has its configuration. All are tried; the first error is told.
pub fn detach_all(lab: &Lab) -> Result<(), DemoError> {
    let detach_node = |node: &Node| -> Result<(), DemoError> {
        let mut outcome = Ok(());
        for pod in &node.pods {
            for index in 0..NETWORKS.len() {
                let Ok(list) = network(node, index) else { continue };
                let deleted = runtime_of(node).del(&list, &attachment(pod, index)?);
                let failed = |error| DemoError::step(format!("detach pod {}", pod.name), error);
                outcome = outcome.and(deleted.map_err(failed));
            }
        }
        outcome
    };
    on_every_node(lab, detach_node).into_iter().fold(Ok(()), Result::and)
}

/// Blocks of a store, and who has them.
pub fn blocks(datastore: &Datastore) -> Result<Vec<BlockReport>, DemoError> {
    let snapshot = datastore.list(&Prefix::blocks(None))?;
    let mut blocks = BTreeMap::new();
    for record in snapshot.records {
        let (KeyKind::Block(cidr), Ok(block)) = (record.key.kind(), Block::decode(&record.value)) else {
            continue;
        };
        let report = BlockReport {
            cidr: cidr.to_string(),
            node: block.node().map(|node| node.to_string()),
            used: cidr.size() - block.unallocated.len(),
            size: cidr.size(),
        };
        blocks.insert(cidr, report);
    }
    Ok(blocks.into_values().collect())
}
