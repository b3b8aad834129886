//! The demo's pods, attached as a container runtime attaches them: configuration files, plugin
//! executables, result cache.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use russet_cni_spec::{CniResult, ConfigList};
use russet_linux::file::write_atomic;
use russet_model::{Block, KeyKind, Prefix};
use russet_runtime::{Attachment, Runtime};
use serde_json::{Value, json};

use super::datastore::Datastore;
use super::lab::{self, Fabric, Lab, Node, POD_NAMESPACE, Pod, namespace_path};
use super::report::{BlockReport, PodReport};
use super::{DemoError, Interrupt, flannel};

/// A network to which every pod is attached.
struct Network {
    /// The configuration file's name.
    file: &'static str,
    name: &'static str,
    kind: &'static str,
    ifname: &'static str,
}

const LOOPBACK: Network =
    Network { file: "00-loopback.conflist", name: "cni-loopback", kind: "loopback", ifname: "lo" };
/// The configuration of Russet's network, which an agent in Kubernetes installs.
pub const RUSSET_FILE: &str = "10-russet.conflist";
const RUSSET: Network = Network { file: RUSSET_FILE, name: "russet", kind: "russet", ifname: "eth0" };
const FLANNEL: Network =
    Network { file: "10-flannel.conflist", name: "cbr0", kind: "flannel", ifname: "eth0" };

/// The networks of every pod; the last one assigns its addresses.
fn networks(lab: &Lab) -> [Network; 2] {
    match lab.fabric {
        Fabric::Russet(_) => [LOOPBACK, RUSSET],
        Fabric::Flannel(_) => [LOOPBACK, FLANNEL],
    }
}

/// Where the runtime of a node finds the configuration of its main network.
pub fn conflist_path(node: &Node, file: &str) -> PathBuf {
    node.paths().conflist_dir().join(file)
}

/// Where the runtime finds a configuration. That of loopback is not among the networks, as containerd has it.
fn path_of(node: &Node, network: &Network) -> PathBuf {
    match network.name == LOOPBACK.name {
        true => node.paths().root().join(network.file),
        false => conflist_path(node, network.file),
    }
}

/// Installs the plugins in the directory of the runtime, and writes each node's configuration: that of the main network to `main`.
pub fn configure(lab: &Lab, main: impl Fn(&Node, &str) -> PathBuf) -> Result<(), DemoError> {
    let dir = lab::plugin_dir();
    make_dir(&dir)?;
    let plugin = plugin_executable()?;
    for network in networks(lab) {
        let link = dir.join(network.kind);
        symlink(&plugin, &link)
            .map_err(|source| DemoError::io(format!("link {}", link.display()), source))?;
    }
    for node in &lab.nodes {
        make_dir(&node.paths().conflist_dir())?;
        for network in networks(lab) {
            let path = match network.name == LOOPBACK.name {
                true => path_of(node, &network),
                false => main(node, network.file),
            };
            write_atomic(&path, conflist(node, &network).to_string().as_bytes())
                .map_err(|error| DemoError::step(format!("write {}", path.display()), error))?;
        }
    }
    Ok(())
}

fn conflist(node: &Node, network: &Network) -> Value {
    // The root as well: without an agent, a plugin works by itself, and must not use the host's
    // store and locks.
    let paths = node.paths();
    let mut plugin =
        json!({ "type": network.kind, "agent_socket": paths.cni_socket(), "root": paths.root() });
    if network.kind == FLANNEL.kind {
        flannel::complete(&mut plugin, node);
    }
    json!({ "cniVersion": "1.1.0", "name": network.name, "plugins": [plugin] })
}

/// The small plugin if it is beside this executable; otherwise this executable, which acts as the
/// plugin when a runtime runs it.
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

fn load(node: &Node, network: &Network) -> Result<ConfigList, DemoError> {
    let path = path_of(node, network);
    russet_runtime::load_conflist(&path)
        .map_err(|error| DemoError::step(format!("load {}", path.display()), error))
}

fn attachment(pod: &Pod, network: &Network) -> Result<Attachment, DemoError> {
    let failed = |error| DemoError::step(format!("name pod {}", pod.name), error);
    let mut attachment = Attachment::new(
        pod.container.parse().map_err(failed)?,
        namespace_path(&pod.namespace),
        network.ifname.parse().map_err(failed)?,
    );
    attachment.args = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("K8S_POD_NAMESPACE".to_owned(), POD_NAMESPACE.to_owned()),
        ("K8S_POD_NAME".to_owned(), pod.name.clone()),
        ("K8S_POD_INFRA_CONTAINER_ID".to_owned(), pod.container.clone()),
    ];
    Ok(attachment)
}

/// Whether STATUS of a node's agent succeeds.
pub fn ready(lab: &Lab, node: &Node) -> bool {
    let [_, main] = networks(lab);
    load(node, &main).is_ok_and(|list| runtime_of(node).status(&list).is_ok())
}

/// Attaches every pod; the nodes work concurrently, as in a cluster.
pub fn attach_all(lab: &Lab, interrupt: &Interrupt) -> Result<Vec<PodReport>, DemoError> {
    let attach_node = |node: &Node| -> Result<Vec<PodReport>, DemoError> {
        let mut reports = Vec::new();
        for pod in &node.pods {
            interrupt.check()?;
            reports.push(attach(node, pod, &networks(lab))?);
        }
        Ok(reports)
    };
    let mut all = Vec::new();
    for reports in on_every_node(lab, attach_node) {
        all.extend(reports?);
    }
    Ok(all)
}

/// Runs `work` for every node on a thread of its own in the node's network namespace, which plugins
/// without an agent need, and returns the results in the nodes' order.
fn on_every_node<T: Send>(
    lab: &Lab,
    work: impl Fn(&Node) -> Result<T, DemoError> + Sync,
) -> Vec<Result<T, DemoError>> {
    let inside = |node: &Node| node.netns()?.with(|| work(node)).map_err(DemoError::namespace)?;
    std::thread::scope(|scope| {
        let inside = &inside;
        let threads: Vec<_> = lab.nodes.iter().map(|node| scope.spawn(move || inside(node))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| {
                done.unwrap_or_else(|_| Err(DemoError::Refused("a thread of the demo died".to_owned())))
            })
            .collect()
    })
}

fn attach(node: &Node, pod: &Pod, networks: &[Network]) -> Result<PodReport, DemoError> {
    let runtime = runtime_of(node);
    let mut main = None;
    let started = Instant::now();
    for network in networks {
        let added = runtime.add(&load(node, network)?, &attachment(pod, network)?);
        let result = added.map_err(|error| DemoError::step(format!("attach pod {}", pod.name), error))?;
        main = Some(result);
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

/// Detaches every pod whose node still has its configuration. Tries all, and returns the first
/// error.
pub fn detach_all(lab: &Lab) -> Result<(), DemoError> {
    let detach_node = |node: &Node| -> Result<(), DemoError> {
        let mut outcome = Ok(());
        for pod in &node.pods {
            for network in networks(lab) {
                let Ok(list) = load(node, &network) else { continue };
                let deleted = runtime_of(node).del(&list, &attachment(pod, &network)?);
                let failed = |error| DemoError::step(format!("detach pod {}", pod.name), error);
                outcome = outcome.and(deleted.map_err(failed));
            }
        }
        outcome
    };
    on_every_node(lab, detach_node).into_iter().fold(Ok(()), Result::and)
}

/// Blocks of a store, and their nodes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lint_accepts_the_demos_configurations() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { name: "n1".into(), namespace: "n1".into(), number: 1, pods: Vec::new() };
        for network in [LOOPBACK, RUSSET, FLANNEL] {
            let path = dir.path().join(network.file);
            fs::write(&path, conflist(&node, &network).to_string()).unwrap();
            assert_eq!(russet_runtime::lint::lint(&path, None), []);
            // Without it a plugin leaves a store and locks on the host.
            let root = conflist(&node, &network)["plugins"][0]["root"].clone();
            assert_eq!(root, json!(node.paths().root()), "{}", network.kind);
        }
    }
}
