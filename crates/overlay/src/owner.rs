//! Whose objects the engine looks after: how ours are named and marked, and what of others' makes room for them. Made by
//! `desired` for Calico's manner and by `flannel` for flannel's; read by `observe`, `plan` and `apply`.

use std::collections::BTreeMap;

use russet_addr::{Family, IfName, IpNet};
use russet_netlink::Route;

use crate::desired::Hop;
use crate::inputs::Dialect;
use crate::observe::{DEVICE_ALIAS, is_ours};
use crate::vxlan;

/// How our objects are named and marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The names of the IPv4 and of the IPv6 device.
    pub names: [Option<IfName>; 2],
    /// The alias of a device that is ours; without one a device is ours by its name, and never removed.
    pub alias: Option<&'static str>,
    /// The protocol of the routes that are put.
    pub protocol: u8,
    /// Protocols of routes that are there to be kept in order, all of them.
    pub owned: &'static [u8],
    /// Where destinations of these routes must lie, for others use the protocol as we do: a second daemon. Anywhere when it is empty.
    pub realm: Vec<IpNet>,
    /// Whether every route through our device is ours, whoever made it.
    pub device_routes: bool,
    /// Which routes of others make room for ours.
    pub yielding: Yielding,
    /// Where the addresses of a device must lie to be ours, in each family; anywhere when there is none.
    pub addresses: [Option<IpNet>; 2],
    /// Whether routes to nodes on our subnet hold even while no route says that they are there.
    pub onlink: bool,
    /// Whether a link of another kind that has our device's name is put out of the way.
    pub evicts: bool,
}

/// Routes of others that make room for ours to the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yielding {
    /// Those of these protocols, when one of ours is put in their place; they stay otherwise.
    Protocols(&'static [u8]),
    /// All that would win over ours, except those of the kernel.
    All,
}

/// Whose a route is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Ours.
    Ours,
    /// Somebody's who makes room.
    Yields,
    /// The kernel's, to a place that we want to route to.
    Connected,
}

/// The number of a family in pairs.
pub(crate) const fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

// === impl Owner ===

impl Owner {
    /// The owner in Calico's clusters.
    pub(crate) fn calico(dialect: Dialect) -> Self {
        Self {
            names: Family::BOTH.map(|family| IfName::new(vxlan::device_name(family)).ok()),
            alias: Some(DEVICE_ALIAS),
            protocol: dialect.route_protocol(),
            owned: dialect.owned_protocols(),
            realm: Vec::new(),
            device_routes: false,
            yielding: Yielding::Protocols(dialect.yielding_protocols()),
            addresses: [None, None],
            onlink: true,
            evicts: false,
        }
    }

    /// The name of a family's device.
    pub fn name(&self, family: Family) -> Option<&IfName> {
        self.names[index(family)].as_ref()
    }

    /// Whether an address of our device is ours.
    pub(crate) fn owns_address(&self, net: &IpNet) -> bool {
        self.addresses[index(Family::of_net(net))].is_none_or(|network| network.contains(&net.addr()))
    }

    /// The protocols of all routes that matter; none when every protocol does.
    pub(crate) fn protocols(&self) -> Option<impl Iterator<Item = u8>> {
        match self.yielding {
            Yielding::Protocols(list) if !self.device_routes => Some(self.owned.iter().chain(list).copied()),
            _ => None,
        }
    }

    fn in_realm(&self, dst: &IpNet) -> bool {
        self.realm.is_empty() || self.realm.iter().any(|network| network.contains(dst))
    }

    /// Whose the route of the main table is; none when it has nothing to do with us.
    pub(crate) fn whose(
        &self,
        route: &Route,
        device: Option<u32>,
        wanted: &BTreeMap<IpNet, Hop>,
    ) -> Option<Whose> {
        let kernel = route.protocol == Route::PROTOCOL_KERNEL;
        let through = !kernel && device.is_some() && route.oif == device;
        let marked = self.owned.contains(&route.protocol) && is_ours(route, device);
        if (marked && self.in_realm(&route.dst)) || (self.device_routes && through) {
            return Some(Whose::Ours);
        }
        match self.yielding {
            Yielding::Protocols(list) => {
                (list.contains(&route.protocol) && is_ours(route, device)).then_some(Whose::Yields)
            }
            // A blackhole is for packets that nobody else's route takes.
            Yielding::All if matches!(wanted.get(&route.dst), None | Some(Hop::Blackhole)) => None,
            Yielding::All => Some(if kernel { Whose::Connected } else { Whose::Yields }),
        }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::calico(Dialect::default())
    }
}
