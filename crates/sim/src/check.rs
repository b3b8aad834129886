//! Checks the rules on the raw records after every step that may have written.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Affinity, AffinityState, Block, Handle, HandleId, KeyKind};
use russet_store::{Revision, Sim};

use crate::Stats;
use crate::failure::{Violation, ViolationKind};
use crate::world::World;

/// Decoded records, each as long as its revision stays.
#[derive(Default)]
pub(crate) struct Checker {
    blocks: BTreeMap<BlockCidr, (Revision, Block)>,
    handles: BTreeMap<HandleId, (Revision, Handle)>,
    /// Affinities that are confirmed.
    confirmed: Vec<(NodeName, BlockCidr)>,
    /// Nodes that never run the Go model.
    ours: BTreeSet<NodeName>,
    /// Handles of the Go model that were once seen with too small a count.
    under: BTreeSet<HandleId>,
}

// === impl Checker ===

impl Checker {
    /// `ours` are the nodes that never run the Go model.
    pub(crate) fn new(ours: BTreeSet<NodeName>) -> Self {
        Self { ours, ..Self::default() }
    }

    /// Looks at everything.
    pub(crate) fn check(&mut self, sim: &Sim, world: &World) -> Result<(), Violation> {
        self.refresh(sim)?;
        for ((pod, interface), addresses) in &world.live {
            for address in addresses {
                if let Some(problem) = self.not_stored(world, pod, interface, *address) {
                    let text = format!("{address} of {pod} {interface}: {problem}");
                    return Err(Violation::new(ViolationKind::NotStored, text));
                }
            }
        }
        self.check_affinities()?;
        self.check_counts(world)
    }

    /// Peers advertise confirmed affinities (calico-ipam.md sections 1.5 and 3.6): their block must
    /// exist, and serve the node.
    fn check_affinities(&self) -> Result<(), Violation> {
        for (node, cidr) in self.confirmed.iter().filter(|(node, _)| self.ours.contains(node)) {
            if !self.blocks.get(cidr).is_some_and(|(_, block)| block.serves(node)) {
                let text = format!("{node} has a confirmed affinity to {cidr}, which does not serve it");
                return Err(Violation::new(ViolationKind::Affinity, text));
            }
        }
        Ok(())
    }

    fn refresh(&mut self, sim: &Sim) -> Result<(), Violation> {
        let records = sim.records();
        let mut blocks = BTreeMap::new();
        let mut handles = BTreeMap::new();
        self.confirmed.clear();
        for (key, record) in records {
            let broken = |error: &dyn std::fmt::Display| {
                Violation::new(ViolationKind::BrokenBlock, format!("{key}: {error}"))
            };
            match key.kind() {
                KeyKind::Block(cidr) => {
                    let known = self.blocks.remove(&cidr).filter(|(at, _)| *at == record.revision);
                    let block = match known {
                        Some((_, block)) => block,
                        None => Block::decode(&record.value).map_err(|error| broken(&error))?,
                    };
                    blocks.insert(cidr, (record.revision, block));
                }
                KeyKind::Handle(id) => {
                    let known = self.handles.remove(&id).filter(|(at, _)| *at == record.revision);
                    let handle = match known {
                        Some((_, handle)) => handle,
                        None => Handle::decode(&record.value).map_err(|error| broken(&error))?,
                    };
                    handles.insert(id, (record.revision, handle));
                }
                KeyKind::Affinity { node, block } => {
                    let affinity = Affinity::decode(&record.value).map_err(|error| broken(&error))?;
                    if affinity.state == AffinityState::Confirmed {
                        self.confirmed.push((node, block));
                    }
                }
                _ => {}
            }
        }
        self.blocks = blocks;
        self.handles = handles;
        Ok(())
    }

    fn not_stored(
        &self,
        world: &World,
        pod: &str,
        interface: &str,
        address: std::net::IpAddr,
    ) -> Option<String> {
        let known = world.pods.get(pod)?;
        let mut holding = self.blocks.iter().filter(|(cidr, _)| cidr.net().contains(&address));
        let Some((cidr, (_, block))) = holding.next() else { return Some("there is no block".into()) };
        if holding.next().is_some() {
            return Some("two blocks hold it".into());
        }
        let Some(owner) = block.attribute(cidr.ordinal(address)?) else { return Some("it is free".into()) };
        if !owner.is_of(&known.handle) {
            return Some(format!("it is stored for {:?}", owner.handle_id));
        }
        let stored = owner.get("interface");
        // The Go model writes no interface.
        (!known.go && stored != Some(interface)).then(|| format!("it is stored for interface {stored:?}"))
    }

    fn check_counts(&mut self, world: &World) -> Result<(), Violation> {
        for (cidr, (_, block)) in &self.blocks {
            let mut truth: BTreeMap<HandleId, u64> = BTreeMap::new();
            for ordinal in 0..block.allocations.len() {
                let owner = block.attribute(ordinal).filter(|owner| owner.released_at.is_none());
                let handle = owner.and_then(|owner| owner.handle_id.as_deref());
                if let Some(id) = handle.and_then(|id| HandleId::new(id).ok()) {
                    *truth.entry(id).or_default() += 1;
                }
            }
            for (id, held) in truth {
                let counted = self.handles.get(&id).map_or(0, |(_, handle)| handle.count(*cidr));
                if counted >= held {
                    continue;
                }
                if !world.is_go(id.as_str()) {
                    let text = format!("{id} counts {counted} of {cidr}, which holds {held}");
                    return Err(Violation::new(ViolationKind::HandleUnder, text));
                }
                self.under.insert(id);
            }
        }
        Ok(())
    }

    /// Checks that nothing is left when everything was deleted. Leaks of the Go model are counted,
    /// anything else is a violation.
    pub(crate) fn check_nothing_left(
        &mut self,
        sim: &Sim,
        world: &World,
        stats: &mut Stats,
    ) -> Result<(), Violation> {
        self.refresh(sim)?;
        for (cidr, (_, block)) in &self.blocks {
            for ordinal in 0..block.allocations.len() {
                let Some(owner) = block.attribute(ordinal) else { continue };
                let handle = owner.handle_id.as_deref().unwrap_or_default();
                let cools_down = owner.released_at.is_some();
                if cools_down {
                    continue;
                }
                if !world.is_go(handle) {
                    let address = cidr.address(ordinal).map(|address| address.to_string());
                    let text = format!("{} is still held by {handle:?}", address.unwrap_or_default());
                    return Err(Violation::new(ViolationKind::Leak, text));
                }
                stats.go_leaked_addresses += 1;
            }
        }
        for (id, (_, handle)) in &self.handles {
            if !world.is_go(id.as_str()) {
                let text = format!("{id} is still there with {:?}", handle.block);
                return Err(Violation::new(ViolationKind::OrphanHandle, text));
            }
            stats.go_orphan_handles += 1;
        }
        stats.go_handles_under += self.under.len() as u64;
        Ok(())
    }
}
