//! What FelixConfigurations say of a node, as far as it counts here: what becomes of packets of its pods to
//! the node itself, and the ports that no policy of its host endpoints closes (policy.md section 1.8).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::IpNet;

use crate::ir::Protocol;
use crate::world::EndpointToHost;

/// One FelixConfiguration. What it does not say, that of the cluster or a default says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixSettings {
    /// What becomes of packets of pods to their own node.
    pub endpoint_to_host: Option<EndpointToHost>,
    /// The failsafe ports of packets to the node; an empty list is none.
    pub failsafe_inbound: Option<Vec<FailsafePort>>,
    /// Those of packets from it.
    pub failsafe_outbound: Option<Vec<FailsafePort>>,
}

/// All FelixConfigurations by their names: that of the cluster is `default`, that of a node `node.<name>`.
pub type FelixConfigurations = BTreeMap<Arc<str>, Arc<FelixSettings>>;

/// Ports of nodes that no policy closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failsafe {
    /// Destination ports of packets to the node.
    pub inbound: Vec<FailsafePort>,
    /// Destination ports of packets from it.
    pub outbound: Vec<FailsafePort>,
}

/// A port that no policy closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FailsafePort {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// Only for these peers; `None` is all.
    pub peers: Option<IpNet>,
}

// === impl FelixSettings ===

impl FelixSettings {
    /// The member with the failsafe ports of packets to the node.
    pub const FAILSAFE_INBOUND: &'static str = "failsafeInboundHostPorts";
    /// The member with those of packets from it.
    pub const FAILSAFE_OUTBOUND: &'static str = "failsafeOutboundHostPorts";
}

/// What becomes of packets of a node's pods to the node itself, and the FelixConfiguration that says it; `None` if
/// none does.
pub fn endpoint_to_host<'a>(
    all: &'a FelixConfigurations,
    node: &str,
) -> Option<(&'a Arc<str>, EndpointToHost)> {
    said(all, node, |settings| settings.endpoint_to_host)
}

/// The failsafe ports of a node. No entry of a list covers another one.
pub fn failsafe(all: &FelixConfigurations, node: &str) -> Failsafe {
    let default = Failsafe::default();
    let list = |of: fn(&FelixSettings) -> Option<&[FailsafePort]>| {
        said(all, node, of).map(|(_, ports)| without_covered(ports))
    };
    Failsafe {
        inbound: list(|it| it.failsafe_inbound.as_deref()).unwrap_or(default.inbound),
        outbound: list(|it| it.failsafe_outbound.as_deref()).unwrap_or(default.outbound),
    }
}

/// What counts on a node, and the FelixConfiguration that says it; that of the node goes before that of the cluster.
fn said<'a, T>(
    all: &'a FelixConfigurations,
    node: &str,
    of: impl Fn(&'a FelixSettings) -> Option<T>,
) -> Option<(&'a Arc<str>, T)> {
    let names = [format!("node.{node}"), "default".to_owned()];
    names.iter().find_map(|name| {
        let (name, settings) = all.get_key_value(name.as_str())?;
        Some((name, of(settings)?))
    })
}

/// The ports without those that another entry opens, too.
fn without_covered(ports: &[FailsafePort]) -> Vec<FailsafePort> {
    let all: BTreeSet<FailsafePort> = ports.iter().copied().collect();
    let is_covered = |it: &FailsafePort| all.iter().any(|other| other != it && other.covers(it));
    all.iter().filter(|it| !is_covered(it)).copied().collect()
}

// === impl Failsafe ===

impl Default for Failsafe {
    /// Felix' defaults.
    fn default() -> Self {
        let of = |protocol, ports: &[u16]| -> Vec<FailsafePort> {
            ports.iter().map(|&port| FailsafePort { protocol, port, peers: None }).collect()
        };
        let cluster = of(Protocol::TCP, &[179, 2379, 2380, 5473, 6443, 6666, 6667]);
        Self {
            inbound: [of(Protocol::TCP, &[22]), cluster.clone(), of(Protocol::UDP, &[68])].concat(),
            outbound: [cluster, of(Protocol::UDP, &[53, 67])].concat(),
        }
    }
}

// === impl FailsafePort ===

impl FailsafePort {
    /// Whether it is this port, for this peer.
    pub fn is(&self, protocol: Protocol, port: u16, peer: IpAddr) -> bool {
        self.protocol == protocol && self.port == port && self.peers.is_none_or(|net| net.contains(&peer))
    }

    /// Whether it opens everything that another one does.
    fn covers(&self, other: &Self) -> bool {
        let has_peers = match (self.peers, other.peers) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(peers), Some(others)) => peers.contains(&others),
        };
        self.protocol == other.protocol && self.port == other.port && has_peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16, peers: Option<&str>) -> FailsafePort {
        FailsafePort { protocol: Protocol::TCP, port, peers: peers.map(|net| net.parse().unwrap()) }
    }

    #[test]
    fn each_list_of_a_node_goes_before_that_of_the_cluster_and_an_empty_one_is_none() {
        let settings = |inbound: Option<Vec<FailsafePort>>, outbound: Option<Vec<FailsafePort>>| {
            Arc::new(FelixSettings {
                failsafe_inbound: inbound,
                failsafe_outbound: outbound,
                ..FelixSettings::default()
            })
        };
        let mut all = FelixConfigurations::new();
        assert_eq!(failsafe(&all, "n1"), Failsafe::default());
        all.insert("default".into(), settings(Some(vec![port(22, None)]), Some(Vec::new())));
        all.insert("node.n1".into(), settings(Some(Vec::new()), None));
        assert_eq!(failsafe(&all, "n1"), Failsafe { inbound: Vec::new(), outbound: Vec::new() });
        assert_eq!(failsafe(&all, "n2"), Failsafe { inbound: vec![port(22, None)], outbound: Vec::new() });
    }

    #[test]
    fn what_another_entry_opens_too_is_left_out() {
        let [wide, narrow, six] = ["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"].map(Some);
        let ports = [port(22, narrow), port(22, wide), port(22, six), port(22, wide), port(80, narrow)];
        assert_eq!(without_covered(&ports), [port(22, wide), port(22, six), port(80, narrow)]);
        let all = [port(22, wide), port(22, None), port(22, six)];
        assert_eq!(without_covered(&all), [port(22, None)]);
    }
}
