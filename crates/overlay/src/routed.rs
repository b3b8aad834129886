//! The routed backend: plain routes to nodes on our own subnet, for pools without encapsulation and
//! for nodes on our subnet in cross-subnet pools (calico-cni.md section 4.3). Called by `desired`.

use russet_addr::{Family, NodeName};

use crate::desired::Hop;
use crate::refusal::Reason;
use crate::validated::ValidatedInputs;

/// Whether `node`'s address is in our own underlay prefix.
pub(crate) fn is_near(validated: &ValidatedInputs<'_>, family: Family, node: &NodeName) -> bool {
    match (validated.own_underlay(family), validated.underlay(node, family)) {
        (Ok(own), Some(theirs)) => own.contains(&theirs.addr()),
        _ => false,
    }
}

/// The next hop towards a block or address of `node`, which must be on our subnet: routers outside
/// do not know pods.
pub(crate) fn hop(validated: &ValidatedInputs<'_>, family: Family, node: &NodeName) -> Result<Hop, Reason> {
    let theirs = validated.underlay(node, family).ok_or(Reason::NodeUnreachable)?.addr();
    if !validated.own_underlay(family)?.contains(&theirs) {
        return Err(Reason::OtherSubnet(theirs));
    }
    Ok(Hop::Underlay { ifindex: validated.inputs.underlay.ifindex, gateway: theirs })
}
