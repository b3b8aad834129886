//! A large cluster around the benchmark's node: one peer that claims 15,000 blocks.

use crate::bench::gateway::Gateway;
use crate::error::Result;

/// Blocks of the peer, and so routes of the node.
pub const BLOCKS: usize = 15_000;
/// The peer, on the uplink of every node of the benchmark.
pub const PEER: &str = "192.0.2.2";

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

/// Writes the peer, its blocks, and the pools: the pool of the peer's blocks is disabled, so that
/// the node's own blocks are in another.
pub fn write(url: &str) -> Result<()> {
    let etcd = Gateway::new(url)?;
    let mut records = vec![
        resource("nodes", "Node", "peer", &format!(r#"{{"bgp":{{"ipv4Address":"{PEER}/24"}}}}"#)),
        resource("ippools", "IPPool", "own", &pool("10.244.0.0/16", false)),
        resource("ippools", "IPPool", "peers", &pool("10.16.0.0/12", true)),
    ];
    records.extend((0..BLOCKS).map(claim));
    etcd.put_all(&records)
}

/// The peer claims one block more.
pub fn claim_one(url: &str, number: usize) -> Result<()> {
    let (key, value) = claim(number);
    Gateway::new(url)?.put(&key, &value)
}

fn resource(kinds: &str, kind: &str, name: &str, spec: &str) -> (String, String) {
    let value = format!(
        r#"{{"kind":"{kind}","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
    );
    (format!("{RESOURCES}/{kinds}/{name}"), value)
}

fn pool(cidr: &str, disabled: bool) -> String {
    format!(
        r#"{{"cidr":"{cidr}","blockSize":26,"vxlanMode":"Never","ipipMode":"Never","natOutgoing":false,"disabled":{disabled},"nodeSelector":"all()"}}"#
    )
}

/// The claim on block `number` of 10.16.0.0/12.
fn claim(number: usize) -> (String, String) {
    let (high, middle, low) = (16 + (number >> 10), (number >> 2) & 0xff, (number & 3) * 64);
    let key = format!("/calico/ipam/v2/host/peer/ipv4/block/10.{high}.{middle}.{low}-26");
    (key, r#"{"state":"confirmed"}"#.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_peers_blocks_are_all_different_and_in_its_pool() {
        let keys: BTreeSet<String> = (0..BLOCKS + 100).map(|number| claim(number).0).collect();
        assert_eq!(keys.len(), BLOCKS + 100);
        assert!(keys.iter().all(|key| key.contains("/block/10.1")
            || key.contains("/block/10.2")
            || key.contains("/block/10.3")));
        assert!(!keys.iter().any(|key| key.contains("/block/10.32.")));
    }
}
