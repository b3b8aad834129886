//! The validated inputs: usable pools, settled claims, our own addresses. `desired` builds them
//! once per run, the backends read them. Inputs that fail validation are reported and ignored.

use std::collections::HashMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_model::AffinityState;

use crate::inputs::{Affinity, Encapsulation, Inputs, Pool};
use crate::prefix::{PrefixMap, ProtectedAddresses, is_reserved, is_usable};
use crate::refusal::{Reason, Refusal, Subject};

pub(crate) struct ValidatedInputs<'a> {
    pub(crate) inputs: &'a Inputs,
    /// Pools by prefix.
    pub(crate) pools: PrefixMap<&'a Pool>,
    /// Blocks by prefix, each with the one node that has it.
    pub(crate) blocks: PrefixMap<&'a NodeName>,
    /// The nodes' own addresses that passed validation.
    underlays: HashMap<(&'a NodeName, Family), IpNet>,
    /// Addresses that no claim may cover.
    protected: ProtectedAddresses,
    pub(crate) refusals: Vec<Refusal>,
}

// === impl ValidatedInputs ===

impl<'a> ValidatedInputs<'a> {
    pub(crate) fn new(inputs: &'a Inputs) -> Self {
        let mut validated = Self {
            inputs,
            pools: PrefixMap::default(),
            blocks: PrefixMap::default(),
            underlays: HashMap::new(),
            protected: ProtectedAddresses::default(),
            refusals: Vec::new(),
        };
        validated.admit_pools();
        validated.admit_nodes();
        validated.settle_blocks();
        validated
    }

    pub(crate) fn refuse(&mut self, subject: Subject, node: Option<&NodeName>, reason: Reason) {
        self.refusals.push(Refusal::new(subject, node, reason));
    }

    /// A node's own address with its prefix, if it passed validation.
    pub(crate) fn underlay(&self, node: &NodeName, family: Family) -> Option<IpNet> {
        self.underlays.get(&(node, family)).copied()
    }

    /// The own addresses of all other nodes that passed validation.
    pub(crate) fn peers(&self) -> impl Iterator<Item = IpAddr> {
        let others = self.underlays.iter().filter(|((node, _), _)| **node != self.inputs.node);
        others.map(|(_, net)| net.addr())
    }

    /// Our own address, with the prefix that our node object gives it: addresses in it are on the
    /// "same subnet" (calico-cni.md section 4.3).
    pub(crate) fn own_underlay(&self, family: Family) -> Result<IpNet, Reason> {
        let net = self.underlay(&self.inputs.node, family).ok_or(Reason::OwnAddressMissing)?;
        match self.inputs.underlay.addresses.iter().any(|local| local.addr() == net.addr()) {
            true => Ok(net),
            false => Err(Reason::OwnAddressNotLocal(net.addr())),
        }
    }

    /// The encapsulation of the pool that contains `net`.
    pub(crate) fn encapsulation(&self, net: &IpNet) -> Option<Encapsulation> {
        self.pools.covering(net).map(|(_, pool)| pool.encapsulation)
    }

    /// Whether any pool of `family` needs a tunnel device.
    pub(crate) fn needs_tunnel(&self, family: Family) -> bool {
        self.pools
            .iter()
            .any(|(net, pool)| Family::of_net(net) == family && pool.encapsulation.needs_tunnel())
    }

    /// Whether `net` may become a route to another node: it is in a pool, not reserved, and covers
    /// no address that must stay reachable.
    pub(crate) fn check_claim(&self, net: &IpNet) -> Result<(), Reason> {
        if is_reserved(net) {
            return Err(Reason::Reserved);
        }
        if self.pools.covering(net).is_none() {
            return Err(Reason::OutsidePools);
        }
        self.protected.covered_by(net).map_or(Ok(()), |address| Err(Reason::Covers(address)))
    }

    /// Like `check_claim`, for a single address that a node publishes as its tunnel's or its pod's.
    /// It must not belong to a pod of ours either.
    pub(crate) fn check_host(&self, address: IpAddr) -> Result<(), Reason> {
        if self.inputs.own_pods.contains(&address) {
            return Err(Reason::Covers(address));
        }
        self.check_claim(&address.into())
    }

    fn admit_pools(&mut self) {
        for pool in &self.inputs.pools {
            let cidr = pool.cidr.trunc();
            if is_reserved(&cidr) {
                self.refuse(Subject::Pool(cidr), None, Reason::Reserved);
            } else if self.pools.get(&cidr).is_some() {
                self.refuse(Subject::Pool(cidr), None, Reason::Twice);
            } else {
                if pool.encapsulation == Encapsulation::Ipip {
                    self.refuse(Subject::Pool(cidr), None, Reason::Unsupported);
                }
                self.pools.insert(cidr, pool);
            }
        }
    }

    fn admit_nodes(&mut self) {
        let inputs = self.inputs;
        let local = inputs.underlay.addresses.iter().map(|net| net.addr());
        local.chain(inputs.protected.iter().copied()).for_each(|address| self.protected.insert(address));
        for (name, node) in &inputs.nodes {
            for family in Family::BOTH {
                let Some(net) = node.of(family).underlay else { continue };
                match self.check_node(name, family, net) {
                    Ok(()) => {
                        self.protected.insert(net.addr());
                        self.underlays.insert((name, family), net);
                    }
                    Err(reason) => self.refuse(Subject::Node(net), Some(name), reason),
                }
            }
        }
    }

    fn check_node(&self, name: &NodeName, family: Family, net: IpNet) -> Result<(), Reason> {
        let ours = self.inputs.underlay.addresses.iter().any(|local| local.addr() == net.addr());
        match () {
            () if Family::of_net(&net) != family => Err(Reason::WrongFamily),
            () if !is_usable(net.addr()) => Err(Reason::Reserved),
            () if ours && *name != self.inputs.node => Err(Reason::TakenBy(self.inputs.node.clone())),
            () => Ok(()),
        }
    }

    /// Settles the owner of each block: a confirmed claim wins over one being released, then ours
    /// wins over a peer's, then the smaller name wins, so that the result does not depend on the
    /// order of the store's answer.
    fn settle_blocks(&mut self) {
        let mut claims: Vec<&Affinity> =
            self.inputs.affinities.iter().filter(|claim| claim.state != AffinityState::Pending).collect();
        claims.sort_by_key(|claim| {
            (
                claim.block,
                claim.state != AffinityState::Confirmed,
                claim.node != self.inputs.node,
                &claim.node,
            )
        });
        let mut ours = PrefixMap::default();
        for claim in claims.iter().filter(|claim| claim.node == self.inputs.node) {
            ours.insert(claim.block.net(), ());
        }
        for claim in claims {
            match self.check_block(claim, &ours) {
                Ok(true) => _ = self.blocks.insert(claim.block.net(), &claim.node),
                Ok(false) => {}
                Err(reason) => self.refuse(Subject::Block(claim.block.net()), Some(&claim.node), reason),
            }
        }
    }

    /// Whether `claim` is to be entered; a repetition of the winner's own claim is neither entered
    /// nor refused. If different peers' blocks contain each other, both are programmed, as Felix
    /// does: refusing either would let one false claim cut off true ones. A peer's block inside of
    /// ours is refused.
    fn check_block(&self, claim: &Affinity, ours: &PrefixMap<()>) -> Result<bool, Reason> {
        let net = claim.block.net();
        match net.prefix_len() == net.max_prefix_len() && claim.node != self.inputs.node {
            true => self.check_host(net.addr())?,
            false => self.check_claim(&net)?,
        }
        if let Some(winner) = self.blocks.get(&net) {
            return if **winner == claim.node { Ok(false) } else { Err(Reason::TakenBy((*winner).clone())) };
        }
        match ours.covering(&net) {
            Some((around, ())) if *around != net && claim.node != self.inputs.node => {
                Err(Reason::InsideOurs(*around))
            }
            _ => Ok(true),
        }
    }
}
