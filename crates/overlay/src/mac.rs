//! The MAC address of a node's tunnel device, which every peer computes by itself. Used by `vxlan`.

use russet_addr::{Family, Mac, NodeName};
use sha1::{Digest, Sha1};

/// First octet of every computed address: locally administered, unicast.
const PREFIX: u8 = 0x66;

/// The MAC of `node`'s tunnel device if its node object does not name one: 0x66 and the first five
/// octets of SHA-1 over the node name, with `-v6` appended for the IPv6 device (calico-cni.md
/// section 4.4).
pub fn tunnel_mac(node: &NodeName, family: Family) -> Mac {
    let mut hash = Sha1::new();
    hash.update(node.as_str());
    if family == Family::V6 {
        hash.update("-v6");
    }
    let digest: [u8; 20] = hash.finalize().into();
    let [a, b, c, d, e, ..] = digest;
    Mac([PREFIX, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_is_the_one_that_peers_compute() {
        // calico-cni.md section 4.4, second table
        for (node, v4, v6) in [
            ("worker-1", "66:93:7f:54:d5:53", "66:d8:48:96:ab:01"),
            ("node1", "66:f9:37:c3:7e:94", "66:0f:35:f2:60:df"),
            ("node-a", "66:07:02:c1:cc:60", "66:d4:d5:51:3d:42"),
        ] {
            let node = NodeName::new(node).unwrap();
            assert_eq!(tunnel_mac(&node, Family::V4).to_string(), v4);
            assert_eq!(tunnel_mac(&node, Family::V6).to_string(), v6);
        }
    }
}
