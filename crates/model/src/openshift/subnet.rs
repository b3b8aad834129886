//! The subnet of a node, and the address of the node that has it.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use russet_addr::NodeName;

use super::{envelope, network, one_name, open, required};
use crate::json::{DecodeError, Extra, encode};

/// The part of the pods' network that a node has (cni-runtime.md section 4.3: `HostSubnet`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSubnet {
    /// The node.
    pub host: NodeName,
    /// Its address, to which peers send.
    pub host_ip: Ipv4Addr,
    /// Its pods' addresses.
    pub subnet: Ipv4Net,
    /// Members that we do not know.
    pub extra: Extra,
}

const KIND: &str = "HostSubnet";

// === impl HostSubnet ===

impl HostSubnet {
    /// The subnet of a node without optional members.
    pub fn new(host: NodeName, host_ip: Ipv4Addr, subnet: Ipv4Net) -> Self {
        Self { host, host_ip, subnet, extra: Extra::new() }
    }

    /// Reads what a store holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut fields, named) = open("HostSubnet", KIND, bytes)?;
        let said = fields.string("host")?;
        let host = one_name(&fields, "host", named, said)?;
        let host = NodeName::new(host).map_err(|error| fields.error("host", error.to_string()))?;
        let host_ip: Ipv4Addr = required(&mut fields, "hostIP")?;
        if host_ip.is_unspecified()
            || host_ip.is_multicast()
            || host_ip.is_broadcast()
            || host_ip.is_loopback()
        {
            return Err(fields.error("hostIP", format!("{host_ip} can be no node's address")));
        }
        match network(&mut fields, "subnet")? {
            None => Err(fields.error("subnet", "it is missing")),
            // The network, the gateway, one pod, the broadcast address.
            Some(subnet) if !(1..=30).contains(&subnet.prefix_len()) => {
                Err(fields.error("subnet", format!("{subnet} holds no pods and gateway")))
            }
            Some(subnet) => Ok(Self { host, host_ip, subnet, extra: fields.rest() }),
        }
    }

    /// The bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.host.as_str();
        let object = envelope(KIND, name).put("host", name).put("hostIP", self.host_ip.to_string());
        encode(&object.put("subnet", self.subnet.to_string()).finish(&self.extra))
    }

    /// The node's own address in its subnet: the network's, with the last octet's lowest bit set.
    pub fn gateway(&self) -> Ipv4Addr {
        gateway(self.subnet)
    }
}

/// The address that a node has in its subnet.
fn gateway(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from_bits(subnet.network().to_bits() | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostsubnet_of_openshift_is_read_and_written() {
        let text = r#"{"kind":"HostSubnet","apiVersion":"network.openshift.io/v1","metadata":{"name":"n1"},"host":"n1","hostIP":"192.0.2.11","subnet":"10.128.0.0/23"}"#;
        let subnet = HostSubnet::decode(text.as_bytes()).unwrap();
        assert_eq!(subnet.gateway().to_string(), "10.128.0.1");
        assert_eq!(String::from_utf8(subnet.encode()).unwrap(), text);
    }

    #[test]
    fn a_subnet_that_no_node_can_have_is_refused() {
        let with = |ip: &str, subnet: &str| {
            HostSubnet::decode(format!(r#"{{"host":"n1","hostIP":"{ip}","subnet":"{subnet}"}}"#).as_bytes())
        };
        assert!(with("192.0.2.11", "10.128.0.0/23").is_ok());
        for (ip, subnet) in [
            ("0.0.0.0", "10.128.0.0/23"),
            ("224.0.0.1", "10.128.0.0/23"),
            ("127.0.0.1", "10.128.0.0/23"),
            ("fd00::1", "10.128.0.0/23"),
            ("192.0.2.11", "10.128.0.1/23"),
            ("192.0.2.11", "0.0.0.0/0"),
            ("192.0.2.11", "10.128.0.0/31"),
            ("192.0.2.11", ""),
        ] {
            assert!(with(ip, subnet).is_err(), "{ip} {subnet}");
        }
    }
}
