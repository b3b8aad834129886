//! Addresses, in the files of `host-local` and the stock server's directory, so that either server
//! finds the other's allocations (cni-runtime.md section 4.3). Our own engine allocates them, in
//! this process.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use russet_addr::{ContainerId, Ipv4Net};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, Verb, Version};
use russet_model::openshift::{ClusterNetwork, HostSubnet};
use russet_plugins::{LocalNode, RequestLog};
use serde_json::{Value, json};

/// The addresses of one node.
pub struct Ipam {
    node: LocalNode,
    dir: PathBuf,
    settings: Value,
    /// Requests would only wait for the directory's lock, each on its own thread.
    lock: tokio::sync::Mutex<()>,
}

/// The network's name, and that of its directory.
const NAME: &str = "openshift-sdn";
const DATA_DIR: &str = "var/lib/cni/networks";
/// The name of the IPAM engine.
const ENGINE: &str = "host-local";
/// All allocations use this name, whatever the interface is called.
const IFNAME: &str = "eth0";
/// The network of multicast groups.
const MULTICAST: &str = "224.0.0.0/4";

/// The directory of allocations.
pub fn dir(root: &Path) -> PathBuf {
    root.join(DATA_DIR).join(NAME)
}

// === impl Ipam ===

impl Ipam {
    /// The addresses of this node's subnet. Files are below `root`.
    pub fn new(root: &Path, network: &ClusterNetwork, subnet: &HostSubnet) -> Self {
        let dir = dir(root);
        let settings = json!({"type": ENGINE, "dataDir": root.join(DATA_DIR), "subnet": subnet.subnet.to_string(),
            "gateway": subnet.gateway().to_string(), "routes": routes(network, subnet.gateway())});
        let node = LocalNode::for_request(root.to_owned());
        Self { node, dir, settings, lock: Default::default() }
    }

    /// Allocates an address for a sandbox and returns it with its routes.
    pub async fn add(&self, sandbox: &ContainerId, netns: &str) -> Result<CniResult, CniError> {
        let result = self.ask(Verb::Add, Some(sandbox), netns, json!({})).await?;
        result.ok_or_else(|| CniError::internal("failed to obtain IP address from CNI IPAM", ""))
    }

    /// Releases the addresses of a sandbox; it need not have any.
    pub async fn del(&self, sandbox: &ContainerId) -> Result<(), CniError> {
        self.ask(Verb::Del, Some(sandbox), "", json!({})).await.map(drop)
    }

    /// Whether a sandbox still has the addresses of `previous`.
    pub async fn check(&self, sandbox: &ContainerId, previous: &CniResult) -> Result<(), CniError> {
        let more = json!({"prevResult": previous.to_value()});
        // CHECK requires a path, which is not used.
        self.ask(Verb::Check, Some(sandbox), "/", more).await.map(drop)
    }

    /// Releases all addresses except those of these sandboxes.
    pub async fn keep_only(&self, sandboxes: &[ContainerId]) -> Result<(), CniError> {
        let valid: Vec<Value> =
            sandboxes.iter().map(|id| json!({"containerID": id.as_str(), "ifname": IFNAME})).collect();
        self.ask(Verb::Gc, None, "", json!({"cni.dev/valid-attachments": valid})).await.map(drop)
    }

    /// Number of allocated addresses.
    pub fn count(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return 0 };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.parse::<Ipv4Addr>().is_ok()).count()
    }

    async fn ask(
        &self,
        verb: Verb,
        sandbox: Option<&ContainerId>,
        netns: &str,
        more: Value,
    ) -> Result<Option<CniResult>, CniError> {
        // The latest version has every verb; the result is converted afterwards.
        let mut config = json!({"cniVersion": Version::LATEST.as_str(), "name": NAME, "type": NAME, "ipam": self.settings});
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        let vars = [
            ("CNI_COMMAND", verb.as_str()),
            ("CNI_CONTAINERID", sandbox.map_or("", ContainerId::as_str)),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", IFNAME),
            ("CNI_PATH", "/"),
        ];
        let request = Request::new(vars, config.to_string().into_bytes())?;
        let _lock = self.lock.lock().await;
        russet_plugins::run_local(&self.node, ENGINE, &request, &RequestLog::new(ENGINE)).await
    }
}

/// The routes of the stock server: default and services through the gateway, pods and multicast
/// groups on the link.
fn routes(network: &ClusterNetwork, gateway: Ipv4Addr) -> Vec<Value> {
    let gateway = gateway.to_string();
    let via = |dst: String| json!({"dst": dst, "gw": gateway});
    let on_link = |dst: String| json!({"dst": dst});
    let mut routes = vec![via(Ipv4Net::default().to_string())];
    routes.extend(network.service_network.map(|net| via(net.to_string())));
    routes.extend(network.networks.iter().map(|net| on_link(net.cidr.to_string())));
    routes.push(on_link(MULTICAST.to_owned()));
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipam(root: &Path) -> Ipam {
        let network = br#"{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9}],"serviceNetwork":"172.30.0.0/16"}"#;
        let subnet = br#"{"host":"n1","hostIP":"192.0.2.11","subnet":"10.128.0.0/23"}"#;
        Ipam::new(root, &ClusterNetwork::decode(network).unwrap(), &HostSubnet::decode(subnet).unwrap())
    }

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).unwrap()
    }

    #[tokio::test]
    async fn addresses_are_written_to_host_locals_files_and_removed() {
        // cni-runtime.md sections 4.3 and 5.1
        let root = tempfile::tempdir().unwrap();
        let ipam = ipam(root.path());
        let result = ipam.add(&id("a"), "/x").await.unwrap();
        let file = root.path().join("var/lib/cni/networks/openshift-sdn/10.128.0.2");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\r\neth0");
        assert!(ipam.add(&id("a"), "/x").await.is_err(), "twice");
        ipam.add(&id("b"), "/x").await.unwrap();
        ipam.check(&id("a"), &result).await.unwrap();
        assert_eq!(ipam.count(), 2);
        ipam.del(&id("a")).await.unwrap();
        ipam.del(&id("a")).await.unwrap();
        assert!(!file.exists() && ipam.check(&id("a"), &result).await.is_err());
        ipam.keep_only(&[]).await.unwrap();
        assert_eq!(ipam.count(), 0);
    }
}
