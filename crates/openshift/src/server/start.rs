//! The start of the server: its part of the network, and what an earlier run left.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use russet_addr::{ContainerId, Family};
use russet_kube::{Client, Source};
use russet_model::openshift::{ClusterNetwork, HostSubnet};
use russet_overlay::underlay::{self, Choice, UnderlayError};
use russet_store::Store;

use super::network::{self, NetworkError};
use super::pods::{Macvlan, Pods};
use super::records::Boot;
use super::request::Pod;
use super::{Node, Settings};
use crate::LOG;
use crate::data_path::{OVERHEAD_BYTES, Sdn, SdnError, Settings as SdnSettings};

/// This node's part of the network.
pub struct NodeNetwork {
    /// The cluster's network.
    pub network: ClusterNetwork,
    /// This node's subnet.
    pub subnet: HostSubnet,
    /// The data path, as it was found.
    pub sdn: Sdn,
    /// Decides which pods get a macvlan0.
    pub macvlan: Macvlan,
    /// The Kubernetes API, if there is access to it.
    pub api: Option<Client>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    #[error("the interface towards the other nodes has no IPv4 address")]
    NoAddress,
    #[error(
        "pods' packets of {mtu} bytes and {OVERHEAD_BYTES} more do not fit the {underlay} bytes of the interface towards the other nodes"
    )]
    Mtu {
        /// MTU of pods.
        mtu: u32,
        /// MTU of the interface.
        underlay: u32,
    },
    #[error(transparent)]
    Sdn(#[from] SdnError),
    #[error("openshift_kubeconfig: {0}")]
    Kubernetes(#[from] russet_kube::ConfigError),
    #[error("a task was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        source: std::io::Error,
    },
}

/// The minimum MTU of an IPv4 link (RFC 791).
const MTU_MIN_BYTES: u32 = 576;

/// Finds this node's part, and claims one if it has none.
pub async fn find(node: &Node, settings: &Settings, store: &dyn Store) -> Result<NodeNetwork, StartError> {
    let api = settings.kubeconfig.as_ref().map(|path| Client::new(Source::kubeconfig(path))).transpose()?;
    let macvlan = match &api {
        Some(client) => Macvlan::Api(Rc::new(client.clone())),
        None if settings.trust_annotations => Macvlan::Trusted,
        None => Macvlan::Denied,
    };
    let network = network::cluster(store, settings.network.as_ref()).await?;
    let choice = underlay::choose(node.interface.as_ref(), None)?;
    let address = match choice.address(Family::V4).map(|net| net.addr()) {
        Some(IpAddr::V4(address)) => address,
        _ => return Err(StartError::NoAddress),
    };
    let subnet = network::subnet(store, &node.name, address, &network).await?;
    let sdn = sdn_settings(node, &network, &subnet, address, &choice)?;
    let sdn = tokio::task::spawn_blocking(move || Sdn::open(sdn)).await??;
    tracing::info!(target: LOG, subnet = %subnet.subnet, %address, interface = choice.name, mtu = sdn.settings().mtu, "OpenShift's part of this node");
    Ok(NodeNetwork { network, subnet, sdn, macvlan, api })
}

fn sdn_settings(
    node: &Node,
    network: &ClusterNetwork,
    subnet: &HostSubnet,
    node_ip: Ipv4Addr,
    choice: &Choice,
) -> Result<SdnSettings, StartError> {
    let underlay = choice.underlay.mtu;
    let mtu = network.mtu.or(node.mtu_bytes).unwrap_or_else(|| underlay.saturating_sub(OVERHEAD_BYTES));
    if mtu < MTU_MIN_BYTES || mtu.saturating_add(OVERHEAD_BYTES) > underlay {
        return Err(StartError::Mtu { mtu, underlay });
    }
    Ok(SdnSettings {
        cluster: network.networks.iter().map(|it| it.cidr).collect(),
        service: network.service_network,
        own: subnet.subnet,
        node_ip,
        underlay: choice.underlay.ifindex,
        mtu,
        vxlan_port: network.vxlan_port,
    })
}

/// Removes what no pod has: addresses of an earlier boot, and unfinished requests of a killed
/// agent. Attached pods stay as they are. No request is served yet. (cni-runtime.md appendix A.5)
pub async fn recover(pods: &Pods) {
    if let Err(error) = try_recover(pods).await {
        tracing::error!(target: LOG, error, "what an earlier run of the server left could not be removed");
    }
}

async fn try_recover(pods: &Pods) -> Result<(), String> {
    let ports = pods.with_sdn(|sdn| sdn.ports()).await.map_err(|refusal| refusal.text)?;
    let attached: BTreeSet<ContainerId> = ports.iter().map(|port| port.sandbox.clone()).collect();
    if pods.records.boot().map_err(|error| error.to_string())? == Boot::Earlier {
        let kept: Vec<ContainerId> = attached.iter().cloned().collect();
        pods.ipam.keep_only(&kept).await.map_err(|error| error.to_string())?;
        pods.records.settle_boot().map_err(|error| error.to_string())?;
        tracing::info!(target: LOG, "addresses of an earlier boot were released");
    }
    let known = pods.records.all().map_err(|error| error.to_string())?;
    for pod in known.iter().filter(|pod| !attached.contains(&pod.sandbox)) {
        match pods.tear_down(pod).await {
            Ok(()) => {
                tracing::info!(target: LOG, sandbox = %pod.sandbox, namespace = pod.namespace, pod = pod.name, "the rest of a sandbox was removed")
            }
            Err(refusal) => {
                tracing::warn!(target: LOG, sandbox = %pod.sandbox, error = refusal.text, "the rest of a sandbox could not be removed")
            }
        }
    }
    for port in ports {
        if known.iter().all(|pod| pod.sandbox != port.sandbox) {
            let pod = Pod {
                namespace: port.namespace.to_string(),
                sandbox: port.sandbox,
                netns: String::new(),
                name: String::new(),
            };
            pods.records.put(&pod).map_err(|error| error.to_string())?;
        }
    }
    tracing::info!(target: LOG, pods = attached.len(), "pods stay attached");
    Ok(())
}
