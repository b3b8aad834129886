//! Which traffic takes the node's address on its way out (calico-cni.md section 4.8). The sets are made here; the rules
//! around them are in `nat`.

use russet_addr::{Family, IpNet};

use crate::desired::Desired;
use crate::scene::Scene;

/// The contents of nft table `inet russet` as far as it is the overlay's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// All pools, disjoint and sorted: traffic to these keeps its source.
    pub pools: Vec<IpNet>,
    /// The pools whose traffic to anywhere else takes the node's address, disjoint and sorted.
    pub nat: Vec<IpNet>,
    /// Whether a tunnel exists: then its port must stay free, and its packets need no connection tracking.
    pub tunnel: bool,
}

// === impl Masquerade ===

impl Masquerade {
    /// The sets for the pools of `scene`.
    pub(crate) fn new(scene: &Scene<'_>, desired: &Desired) -> Self {
        let nat = scene.pools.iter().filter(|(_, pool)| pool.nat_outgoing);
        Self {
            pools: disjoint(scene.pools.iter().map(|(net, _)| *net)),
            nat: disjoint(nat.map(|(net, _)| *net)),
            tunnel: !desired.devices.is_empty(),
        }
    }

    /// Whether the table is needed at all.
    pub fn is_empty(&self) -> bool {
        self.nat.is_empty() && !self.tunnel
    }

    /// The members of one family.
    pub fn of(nets: &[IpNet], family: Family) -> impl Iterator<Item = IpNet> {
        nets.iter().copied().filter(move |net| Family::of_net(net) == family)
    }
}

/// An interval set takes no overlapping members, and pools may lie in each other.
fn disjoint(nets: impl Iterator<Item = IpNet>) -> Vec<IpNet> {
    let mut nets = IpNet::aggregate(&nets.collect());
    nets.sort();
    nets
}
