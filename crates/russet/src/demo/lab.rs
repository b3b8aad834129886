//! The demo's layout: its nodes and pods, and every name and address in it.
//!
//! All addresses of the underlay are from the documentation ranges (RFC 5737, RFC 3849), so that
//! they cannot be mistaken for, or reach, a real network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use russet_agent::Paths;
use russet_linux::NetNs;

use super::DemoError;
use crate::cli::{DemoArgs, DemoFabric, DemoMode, FlannelBackend};

/// The prefix of every namespace of a demo.
pub const NAMESPACE_PREFIX: &str = "rsdemo-";
/// The switch between the nodes.
pub const WIRE: &str = "rsdemo-wire";
/// A host outside of the nodes' network.
pub const OUTSIDE: &str = "rsdemo-outside";
/// The demo's files.
pub const DIR: &str = "/run/russet-demo";
/// The interface of nodes and of the outside host on the underlay.
pub const UNDERLAY: &str = "eth0";

/// What to build.
#[derive(Debug, Clone)]
pub struct Lab {
    pub nodes: Vec<Node>,
    pub fabric: Fabric,
}

/// The implementation of the network, and how it forwards packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// Russet's agent.
    Russet(DemoMode),
    /// Russet's implementation of flannel's daemon.
    Flannel(FlannelBackend),
}

/// A node: a namespace with an agent in it.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: String,
    pub namespace: String,
    /// Its index among the nodes, from 1.
    pub number: u8,
    pub pods: Vec<Pod>,
}

/// A pod: a namespace that is empty at first.
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    pub namespace: String,
    /// The container ID that the runtime uses.
    pub container: String,
}

/// The Kubernetes namespace in the pods' CNI_ARGS.
pub const POD_NAMESPACE: &str = "demo";

/// The outside host's addresses on the underlay, which are the default gateways of all nodes.
pub const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// Addresses that only the outside host has, and to which no node has a route of its own.
pub const OUTSIDE_SERVICES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
];

/// An underlay address with its prefix.
fn underlay(host: u8) -> [IpNet; 2] {
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host));
    let v4 = Ipv4Addr::new(192, 0, 2, host);
    [IpNet::new_assert(IpAddr::V4(v4), 24), IpNet::new_assert(IpAddr::V6(v6), 64)]
}

/// The outside host's addresses on the underlay, with their prefixes.
pub fn outside_underlay() -> [IpNet; 2] {
    underlay(1)
}

/// The directory of executables, in the role of `/opt/cni/bin`.
pub fn plugin_dir() -> PathBuf {
    Path::new(DIR).join("bin")
}

/// The files of the store's owner.
pub fn store_paths() -> Paths {
    Paths::new(Path::new(DIR).join("store"))
}

// === impl Lab ===

impl Lab {
    /// The layout that the arguments request.
    pub fn new(args: &DemoArgs) -> Self {
        let pod = |node: u8, pod: u8| Pod {
            name: format!("n{node}-p{pod}"),
            namespace: format!("{NAMESPACE_PREFIX}n{node}-p{pod}"),
            container: format!("demo-n{node}-p{pod}"),
        };
        // In Kubernetes the scheduler says where pods run.
        let pods = if args.kubernetes { 0 } else { args.pods };
        let node = |number: u8| Node {
            name: format!("n{number}"),
            namespace: format!("{NAMESPACE_PREFIX}n{number}"),
            number,
            pods: (1..=pods).map(|p| pod(number, p)).collect(),
        };
        let fabric = match args.fabric {
            DemoFabric::Russet => Fabric::Russet(args.mode),
            DemoFabric::Flannel => Fabric::Flannel(args.backend.unwrap_or(FlannelBackend::Vxlan)),
        };
        Self { nodes: (1..=args.nodes).map(node).collect(), fabric }
    }

    /// Every pod with its node.
    pub fn pods(&self) -> impl Iterator<Item = (&Node, &Pod)> {
        self.nodes.iter().flat_map(|node| node.pods.iter().map(move |pod| (node, pod)))
    }
}

// === impl Fabric ===

impl Fabric {
    /// For the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Russet(DemoMode::Vxlan) => "vxlan",
            Self::Russet(DemoMode::Routed) => "routed",
            Self::Flannel(FlannelBackend::Vxlan) => "flannel-vxlan",
            Self::Flannel(FlannelBackend::HostGw) => "flannel-host-gw",
            Self::Flannel(FlannelBackend::Udp) => "flannel-udp",
        }
    }

    /// The daemon on each node.
    pub fn daemon(self) -> &'static str {
        match self {
            Self::Russet(_) => "agent",
            Self::Flannel(_) => "flannel daemon",
        }
    }
}

// === impl Node ===

impl Node {
    /// Adds a pod that the scheduler has bound to the node.
    pub fn bind(&mut self, name: &str) -> &Pod {
        let number = self.pods.len() + 1;
        self.pods.push(Pod {
            name: name.to_owned(),
            namespace: format!("{}-p{number}", self.namespace),
            container: format!("demo-{}-p{number}", self.name),
        });
        &self.pods[number - 1]
    }

    /// Where the node's files are.
    pub fn paths(&self) -> Paths {
        Paths::new(Path::new(DIR).join(&self.name))
    }

    /// The node's namespace.
    pub fn netns(&self) -> Result<NetNs, DemoError> {
        let netns = NetNs::open(namespace_path(&self.namespace));
        netns.map_err(|error| DemoError::step(format!("open namespace {}", self.namespace), error))
    }

    /// The node's addresses on the underlay.
    pub fn underlay(&self) -> [IpNet; 2] {
        /// Hosts 1 to 10 of the underlay are not nodes.
        const FIRST_HOST: u8 = 10;
        underlay(FIRST_HOST + self.number)
    }
}

/// The path of a named namespace.
pub fn namespace_path(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}
