//! A node and leases for the unit tests of this crate.

use russet_lease::Lease;
use russet_model::flannel::Attributes;

use crate::interface::External;

/// The lease with this name, of a node at this address.
pub fn lease(key: &str, public_ip: &str, kind: &str) -> Lease {
    let attributes = Attributes {
        public_ip: public_ip.parse().unwrap(),
        public_ipv6: None,
        backend_type: kind.to_owned(),
        backend_data: None,
        backend_v6_data: None,
    };
    Lease { key: key.parse().unwrap(), attributes: attributes.into(), expires: None }
}

/// This node's interface, with 10.200.0.11.
pub fn external() -> External {
    External {
        ifindex: 2,
        name: "eth0".to_owned(),
        mtu: 1500,
        v4: "10.200.0.11".parse().ok(),
        v6: None,
        public_v4: "10.200.0.11".parse().ok(),
        public_v6: None,
    }
}
