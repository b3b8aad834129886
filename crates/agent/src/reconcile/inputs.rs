//! The inputs of the overlay, from the agent's copy of the store and what the host has. Pure.

use russet_addr::{Family, IpNet, NodeName, host_net};
use russet_model::FelixConfigurationSpec;
use russet_overlay::underlay::Choice;
use russet_overlay::{Affinity, Borrowed, Dialect, Inputs, Pool, Tunnel, TunnelSenders};

use crate::cluster::Cluster;
use crate::config::Config;

/// What VXLAN adds to a packet over IPv4 and over IPv6 (calico-cni.md section 4.7).
const VXLAN_V4_OVERHEAD_BYTES: u32 = 50;
const VXLAN_V6_OVERHEAD_BYTES: u32 = 70;
/// VXLAN network identifiers have 24 bits.
const VNI_END: u32 = 1 << 24;

/// The inputs of the overlay.
pub fn inputs(config: &Config, cluster: &Cluster, choice: &Choice) -> Inputs {
    let felix = felix(&config.node_name, cluster);
    Inputs {
        node: config.node_name.clone(),
        underlay: choice.underlay.clone(),
        nodes: cluster.nodes.clone(),
        pools: cluster.pools.values().filter_map(|pool| Pool::from_model(&pool.spec)).collect(),
        affinities: cluster
            .affinities
            .iter()
            .filter_map(|((node, block), claim)| Affinity::from_model(node, *block, claim))
            .collect(),
        borrowed: borrowed(cluster),
        dialect: if config.calico { Dialect::Calico } else { Dialect::Native },
        tunnel: tunnel(&felix),
        senders: senders(&felix),
        own_pods: Default::default(),
        protected: choice.gateways.iter().copied().collect(),
        probes: [None, None],
    }
}

/// Pods' addresses that are routed differently from their blocks.
fn borrowed(cluster: &Cluster) -> Vec<Borrowed> {
    let strays = cluster.strays.values().flat_map(|strays| &strays.borrowed);
    strays.map(|(address, node)| Borrowed { address: *address, node: node.clone() }).collect()
}

/// The MTU of pods: the configured one, or the one that fits the path of every pool to other nodes.
pub fn pod_mtu(config: &Config, inputs: &Inputs) -> u32 {
    if let Some(mtu_bytes) = config.mtu_bytes {
        return mtu_bytes;
    }
    let tunnelled = |family| {
        inputs
            .pools
            .iter()
            .any(|pool| Family::of_net(&pool.cidr) == family && pool.encapsulation.needs_tunnel())
    };
    let overhead = match (tunnelled(Family::V4), tunnelled(Family::V6)) {
        (_, true) => VXLAN_V6_OVERHEAD_BYTES,
        (true, false) => VXLAN_V4_OVERHEAD_BYTES,
        (false, false) => 0,
    };
    inputs.underlay.mtu.saturating_sub(overhead)
}

/// Felix's settings for this node.
fn felix(node: &NodeName, cluster: &Cluster) -> FelixConfigurationSpec {
    let of = |name: &str| cluster.felix.get(name).cloned().unwrap_or_default();
    of(&FelixConfigurationSpec::name_for(node)).or(&of(FelixConfigurationSpec::CLUSTER))
}

/// Who may send encapsulated packets besides the nodes. An entry of the list that is neither an address nor a prefix admits no machine.
fn senders(felix: &FelixConfigurationSpec) -> TunnelSenders {
    let net = |text: &String| match text.parse::<IpNet>() {
        Ok(net) => Some(net.trunc()),
        Err(_) => text.parse().ok().map(host_net),
    };
    TunnelSenders {
        pods_vxlan: felix.allow_vxlan_packets_from_workloads.unwrap_or(false),
        pods_ipip: felix.allow_ipip_packets_from_workloads.unwrap_or(false),
        external: felix.external_nodes_list.iter().flatten().filter_map(net).collect(),
    }
}

/// What the cluster's settings say about tunnels; values that no device can have count as not set.
fn tunnel(felix: &FelixConfigurationSpec) -> Tunnel {
    let default = Tunnel::default();
    let vni =
        felix.vxlan_vni.and_then(|vni| u32::try_from(vni).ok()).filter(|vni| (1..VNI_END).contains(vni));
    let port = felix.vxlan_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let mtu = |set: Option<u64>| set.and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu != 0);
    Tunnel {
        vni: vni.unwrap_or(default.vni),
        port: port.unwrap_or(default.port),
        mtu: [mtu(felix.vxlan_mtu), mtu(felix.vxlan_mtu_v6)],
    }
}
