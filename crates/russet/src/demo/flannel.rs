//! The demo with flannel's daemon on each node, and flannel's plugin for its pods: its files, its configuration, its subnets.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use ipnet::IpNet;
use russet_model::Prefix;
use russet_model::flannel::{Attributes, SubnetKey};
use serde_json::{Value, json};

use super::DemoError;
use super::datastore::Datastore;
use super::lab::{Lab, Node, UNDERLAY};
use super::report::{BlockReport, PodReport};
use crate::cli::FlannelBackend;

/// The prefix of flannel's keys.
const PREFIX: &str = "/coreos.com/network";
const NETWORK_V4: &str = "10.244.0.0/16";
const NETWORK_V6: &str = "fd72:7573:7365::/48";

/// Writes the network's configuration; the udp backend is IPv4 only.
pub fn configure(datastore: &Datastore, backend: FlannelBackend) -> Result<(), DemoError> {
    let (kind, dual) = match backend {
        FlannelBackend::Vxlan => ("vxlan", true),
        FlannelBackend::HostGw => ("host-gw", true),
        FlannelBackend::Udp => ("udp", false),
    };
    let mut config = json!({ "Network": NETWORK_V4, "Backend": { "Type": kind } });
    if dual {
        config["EnableIPv6"] = true.into();
        config["IPv6Network"] = NETWORK_V6.into();
    }
    datastore.put(&format!("{PREFIX}/config"), &config.to_string())
}

/// Where a node's daemon writes its subnet.
pub fn subnet_file(node: &Node) -> PathBuf {
    node.paths().root().join("run/flannel/subnet.env")
}

/// The daemon of a node; `russet` is this program.
pub fn daemon(mut russet: Command, node: &Node, datastore: &Datastore) -> Command {
    russet.arg("flanneld").args(["-iface", UNDERLAY, "-ip-masq", "-etcd-prefix", PREFIX]);
    russet.arg("-store").arg(datastore.location()).arg("-subnet-file").arg(subnet_file(node));
    russet
}

/// Adds the node's paths to the plugin's configuration, so that nodes on one machine do not share
/// files.
pub fn complete(plugin: &mut Value, node: &Node) {
    let below = |path: &str| node.paths().root().join(path);
    plugin["subnetFile"] = json!(subnet_file(node));
    plugin["dataDir"] = json!(below("var/lib/cni/flannel"));
    plugin["ipam"] = json!({ "dataDir": below("var/lib/cni/networks") });
    plugin["delegate"] = json!({ "hairpinMode": true, "isDefaultGateway": true });
}

/// The subnets that are in the store now.
pub fn subnets(datastore: &Datastore, lab: &Lab, pods: &[PodReport]) -> Result<Vec<BlockReport>, DemoError> {
    let snapshot = datastore.list(&Prefix::from_stored(format!("{PREFIX}/subnets/")))?;
    let mut subnets = Vec::new();
    for record in snapshot.records {
        let key = record.key.as_str().rsplit('/').next().and_then(|key| key.parse::<SubnetKey>().ok());
        let (Some(key), Ok(attributes)) = (key, Attributes::from_json(&record.value)) else { continue };
        let public = IpAddr::V4(attributes.public_ip);
        let node = lab.nodes.iter().find(|node| node.underlay().iter().any(|net| net.addr() == public));
        subnets.extend(key.subnets().map(|subnet| report(subnet, node, pods)));
    }
    Ok(subnets)
}

fn report(subnet: IpNet, node: Option<&Node>, pods: &[PodReport]) -> BlockReport {
    let used = pods.iter().flat_map(|pod| &pod.ips).filter(|ip| subnet.contains(*ip)).count();
    let bits = u32::from(subnet.max_prefix_len() - subnet.prefix_len());
    BlockReport {
        cidr: subnet.to_string(),
        node: node.map(|node| node.name.clone()),
        used,
        size: 1_usize.checked_shl(bits).unwrap_or(usize::MAX),
    }
}
