//! The identity of an endpoint.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{ContainerId, IfName, NameError, NetworkName};

/// An interface of a container on a network. As text: `network/container/ifname`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointId {
    /// The CNI network.
    pub network: NetworkName,
    /// The runtime's ID of the sandbox.
    pub container: ContainerId,
    /// The interface's name inside the container.
    pub ifname: IfName,
}

// === impl EndpointId ===

impl EndpointId {
    /// Whether both are the same interface of the same container, on any network: no container has
    /// two interfaces with the same name, whatever their networks.
    pub fn same_interface(&self, other: &Self) -> bool {
        (&self.container, &self.ifname) == (&other.container, &other.ifname)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

impl FromStr for EndpointId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (network, rest) = text.split_once('/').unwrap_or((text, ""));
        let (container, ifname) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self { network: network.parse()?, container: container.parse()?, ifname: ifname.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_as_written_and_needs_three_names() {
        let id: EndpointId = "net1/abc/eth0".parse().unwrap();
        assert_eq!((id.container.as_str(), id.to_string().parse()), ("abc", Ok(id.clone())));
        for bad in ["", "net1", "net1/abc", "net1/abc/", "net1//eth0", "net1/abc/eth0/x"] {
            assert!(bad.parse::<EndpointId>().is_err(), "{bad}");
        }
        let other = EndpointId { network: "net2".parse().unwrap(), ..id.clone() };
        assert!(id.same_interface(&other) && id != other);
    }
}
