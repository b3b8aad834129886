//! The JSON of netavark's plugin API 1.0.0. Members that are not used here are ignored; those without which nothing can be done are required, and serde names
//! a missing one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What `setup` and `teardown` read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PluginExec {
    pub container_id: String,
    /// The name by which other containers find it.
    #[serde(default)]
    pub container_name: String,
    #[serde(default)]
    pub port_mappings: Option<Vec<PortMapping>>,
    pub network: Network,
    pub network_options: PerNetworkOptions,
}

/// A network; `create` reads one as a whole.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Network {
    pub name: String,
    #[serde(default)]
    pub dns_enabled: bool,
    #[serde(default)]
    pub internal: bool,
    #[serde(default)]
    pub ipv6_enabled: bool,
    #[serde(default)]
    pub network_interface: Option<String>,
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub ipam_options: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub subnets: Option<Vec<Subnet>>,
    #[serde(default)]
    pub routes: Option<Vec<Value>>,
    #[serde(default)]
    pub network_dns_servers: Option<Vec<IpAddr>>,
}

/// A range of addresses of a network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Subnet {
    pub subnet: IpNet,
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    #[serde(default)]
    pub lease_range: Option<Value>,
}

/// What one container wants of one network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PerNetworkOptions {
    pub interface_name: String,
    #[serde(default)]
    pub aliases: Option<Vec<String>>,
    #[serde(default)]
    pub static_ips: Option<Vec<IpAddr>>,
    #[serde(default)]
    pub static_mac: Option<String>,
    #[serde(default)]
    pub options: Option<BTreeMap<String, String>>,
}

/// One or more published ports.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PortMapping {
    pub container_port: u16,
    pub host_port: u16,
    /// Empty means every address of the node.
    #[serde(default)]
    pub host_ip: String,
    /// Some of tcp, udp and sctp, separated by commas; empty means tcp.
    #[serde(default)]
    pub protocol: String,
    /// The number of ports, counted up from both; 0 means 1.
    #[serde(default)]
    pub range: u16,
}

/// What `setup` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatusBlock {
    pub dns_search_domains: Vec<String>,
    pub dns_server_ips: Vec<IpAddr>,
    pub interfaces: BTreeMap<String, NetInterface>,
}

/// The interface of a container.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetInterface {
    pub mac_address: String,
    pub subnets: Vec<NetAddress>,
}

/// An address of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetAddress {
    pub ipnet: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// What `info` prints.
#[derive(Debug, Serialize)]
pub struct Info {
    pub version: &'static str,
    pub api_version: &'static str,
}

/// What every call prints that fails.
#[derive(Debug, Serialize)]
pub struct Failed {
    pub error: String,
}
