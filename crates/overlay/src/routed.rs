//! The routed backend: plain routes to nodes on our own subnet, for pools without encapsulation and
//! for nodes on our subnet in cross-subnet pools (calico-cni.md section 4.3). Called by `desired`.

use russet_addr::{Family, NodeName};

use crate::desired::Hop;
use crate::refusal::Reason;
use crate::scene::Scene;

/// Whether `node`'s address is in our own underlay prefix.
pub(crate) fn is_near(scene: &Scene<'_>, family: Family, node: &NodeName) -> bool {
    match (scene.own_underlay(family), scene.underlay(node, family)) {
        (Ok(own), Some(theirs)) => own.contains(&theirs.addr()),
        _ => false,
    }
}

/// The next hop towards a block or address of `node`, which must be on our subnet: routers outside
/// do not know pods.
pub(crate) fn hop(scene: &Scene<'_>, family: Family, node: &NodeName) -> Result<Hop, Reason> {
    let theirs = scene.underlay(node, family).ok_or(Reason::NodeUnreachable)?.addr();
    if !scene.own_underlay(family)?.contains(&theirs) {
        return Err(Reason::OtherSubnet(theirs));
    }
    Ok(Hop::Underlay { ifindex: scene.inputs.underlay.ifindex, gateway: theirs })
}
