//! What the kernel holds of a node's pods, for verbs that explain it. It changes nothing and needs no settings.

use std::net::Ipv4Addr;

use russet_netlink::{NetlinkError, Socket};
use russet_nft::Nft;

use super::egress::{self, Denied};
use super::{Port, alias, rules, verdicts};

/// The pods of a node, by what the kernel holds.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// Whether the table of verdicts is there. Without it nothing is denied to what leaves the cluster.
    pub has_table: bool,
    pub pods: Vec<HeldPod>,
}

/// An attached pod.
#[derive(Debug, Clone)]
pub struct HeldPod {
    pub port: Port,
    /// What it may not reach outside of the cluster.
    pub denied: Denied,
}

// === impl Held ===

impl Held {
    /// Reads the network namespace of the calling thread.
    pub fn read() -> Result<Self, NetlinkError> {
        let (mut nft, mut socket) = (Nft::open()?, Socket::route()?);
        let has_table = nft.tables()?.iter().any(|info| info.table == rules::table());
        let tenants = verdicts::tenants(&mut nft)?;
        let known = if has_table { egress::by_link(&mut nft)? } else { None };
        let denied = |port: &Port| match &known {
            None => Denied::default(),
            Some(links) => links.get(&port.host_veth).cloned().unwrap_or_else(Denied::everything),
        };
        let links = socket.links()?;
        let ports = links.iter().filter_map(|link| alias::port_of(link, &tenants));
        Ok(Self { has_table, pods: ports.map(|port| HeldPod { denied: denied(&port), port }).collect() })
    }

    /// The pod with an address.
    pub fn pod_at(&self, address: Ipv4Addr) -> Option<&HeldPod> {
        self.pods.iter().find(|pod| pod.port.address == address)
    }
}
