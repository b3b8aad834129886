//! An interface of either kind, as recorded when it was wired: for the agent's journal, CHECK and
//! drift repair.

use std::net::IpAddr;

use russet_addr::{EndpointId, IfName, Mac};
use serde::{Deserialize, Serialize};

use crate::attachment::{Attachment, AttachmentError};
use crate::owner::Owner;
use crate::plan::{Plan, plan};
use crate::port::{Port, plan_port};

/// An interface of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wired {
    /// Routed by the node.
    Routed(Attachment),
    /// Behind a bridge.
    Port(Port),
}

// === impl Wired ===

impl Wired {
    pub fn id(&self) -> &EndpointId {
        match self {
            Self::Routed(attachment) => &attachment.id,
            Self::Port(port) => &port.id,
        }
    }

    /// The name of the end in the node's namespace.
    pub fn host_name(&self) -> &IfName {
        match self {
            Self::Routed(attachment) => &attachment.host_name,
            Self::Port(port) => &port.host_name,
        }
    }

    /// The bridge that the host end is a port of.
    pub const fn bridge(&self) -> Option<&IfName> {
        match self {
            Self::Routed(_) => None,
            Self::Port(port) => Some(&port.bridge.name),
        }
    }

    /// The pod's addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Routed(attachment) => attachment.addresses.clone(),
            Self::Port(port) => port.addresses.iter().map(|net| net.addr()).collect(),
        }
    }

    /// The content of the host end's alias.
    pub fn owner(&self) -> Owner {
        Owner::new(self.id())
    }

    /// The interface with the MAC of its bridge, so that a recreated bridge gets the MAC that pods
    /// know.
    pub fn as_attached(mut self, bridge_mac: Option<Mac>) -> Self {
        if let Self::Port(port) = &mut self {
            port.bridge.mac = bridge_mac.or(port.bridge.mac);
        }
        self
    }

    /// The steps that wire it. The recorded values are validated like any input.
    pub fn plan(&self) -> Result<Plan, AttachmentError> {
        match self {
            Self::Routed(attachment) => plan(attachment),
            Self::Port(port) => plan_port(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_netlink::{BridgePort, Scope};

    use super::*;
    use crate::{Bridge, Dialect, PlannedRoute, Pod, PodRoutes, SourceCheck, Via};

    #[test]
    fn an_interface_reads_back_as_written() {
        let pod = Pod { namespace: "shop".into(), name: "web-0".into() };
        let mut routed = Attachment::new(Dialect::Calico, "net1/abc/eth0".parse().unwrap(), Some(pod));
        routed.addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        routed.routes = PodRoutes::Only(vec!["10.0.0.0/8".parse().unwrap()]);
        let route = PlannedRoute {
            net: "0.0.0.0/0".parse().unwrap(),
            via: Via::Gateway("10.1.0.1".parse().unwrap()),
            metric: Some(5),
            table: 254,
            scope: Some(Scope::Link),
        };
        let port = Port {
            id: "net2/abc/eth1".parse().unwrap(),
            host_name: "russ1".parse().unwrap(),
            bridge: Bridge {
                name: "cni0".parse().unwrap(),
                mtu: None,
                promiscuous: false,
                gateways: vec!["10.1.0.1/16".parse().unwrap()],
                force_address: true,
                mac: None,
            },
            mode: BridgePort { hairpin: true, isolated: false },
            addresses: vec!["10.1.0.5/16".parse().unwrap()],
            routes: vec![route, PlannedRoute { via: Via::Link, scope: None, ..route }],
            mtu: Some(1400),
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            sync_delete: false,
            source_check: SourceCheck::Addresses { allowed: vec!["192.0.2.0/24".parse().unwrap()] },
        };
        for wired in [Wired::Routed(routed), Wired::Port(port)] {
            for wired in [wired.clone(), wired.as_attached(Some("02:00:00:00:00:07".parse().unwrap()))] {
                let text = serde_json::to_string(&wired).unwrap();
                assert_eq!(serde_json::from_str::<Wired>(&text).unwrap(), wired, "{text}");
            }
        }
    }
}
