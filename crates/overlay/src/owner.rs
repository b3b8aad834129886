//! Identifies the objects that the engine manages: how ours are named and marked, and which foreign
//! ones they replace. Created by `desired` for Calico's conventions and by `flannel` for flannel's;
//! read by `observe`, `plan` and `apply`.

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
    /// The alias of our devices; without one a device is ours by its name, and never removed.
    pub alias: Option<&'static str>,
    /// The protocol of the routes that we add.
    pub protocol: u8,
    /// Protocols of which all routes are reconciled.
    pub owned: &'static [u8],
    /// The networks in which destinations of these routes must lie, because another daemon may use
    /// the same protocol; unrestricted if empty.
    pub realm: Vec<IpNet>,
    /// Whether every route through our device is ours, whichever program added it.
    pub device_routes: bool,
    /// The foreign routes that ours replace.
    pub yielding: Yielding,
    /// The networks in which addresses of a device must lie to be ours, by family; unrestricted if
    /// none.
    pub addresses: [Option<IpNet>; 2],
    /// Whether routes to nodes on our subnet are added with `onlink`, without another route to the
    /// gateway.
    pub onlink: bool,
    /// Whether a link of another kind that has our device's name is removed.
    pub evicts: bool,
}

/// Foreign routes that ours replace for the same destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yielding {
    /// Those of these protocols, if we have a route to the destination; otherwise they stay.
    Protocols(&'static [u8]),
    /// All that would win over ours, except the kernel's.
    All,
}

/// The owner of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteOwner {
    Ours,
    /// Another program, whose route ours replaces.
    Yields,
    /// The kernel, with a route to a destination that we want to route.
    Connected,
}

/// What a pair has for a family.
pub(crate) const fn of<T>(pair: &[T; 2], family: Family) -> &T {
    match family {
        Family::V4 => &pair[0],
        Family::V6 => &pair[1],
    }
}

/// The same, to be changed.
pub(crate) const fn of_mut<T>(pair: &mut [T; 2], family: Family) -> &mut T {
    match family {
        Family::V4 => &mut pair[0],
        Family::V6 => &mut pair[1],
    }
}

// === impl Owner ===

impl Owner {
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
        of(&self.names, family).as_ref()
    }

    /// Whether an address of our device is managed by us.
    pub(crate) fn owns_address(&self, net: &IpNet) -> bool {
        of(&self.addresses, Family::of_net(net)).is_none_or(|network| network.contains(&net.addr()))
    }

    /// The protocols of all relevant routes; none if routes of every protocol are relevant.
    pub(crate) fn protocols(&self) -> Option<impl Iterator<Item = u8>> {
        match self.yielding {
            Yielding::Protocols(list) if !self.device_routes => Some(self.owned.iter().chain(list).copied()),
            _ => None,
        }
    }

    fn in_realm(&self, dst: &IpNet) -> bool {
        self.realm.is_empty() || self.realm.iter().any(|network| network.contains(dst))
    }

    /// Classifies a route of the main table; none if it is unrelated to us.
    pub(crate) fn classify(
        &self,
        route: &Route,
        device: Option<u32>,
        wanted: &BTreeMap<IpNet, Hop>,
    ) -> Option<RouteOwner> {
        let kernel = route.protocol == Route::PROTOCOL_KERNEL;
        let through = !kernel && device.is_some() && route.oif == device;
        let marked = self.owned.contains(&route.protocol) && is_ours(route, device);
        if (marked && self.in_realm(&route.dst)) || (self.device_routes && through) {
            return Some(RouteOwner::Ours);
        }
        match self.yielding {
            Yielding::Protocols(list) => {
                (list.contains(&route.protocol) && is_ours(route, device)).then_some(RouteOwner::Yields)
            }
            // A blackhole only takes packets that no other route takes, so it replaces none.
            Yielding::All if matches!(wanted.get(&route.dst), None | Some(Hop::Blackhole)) => None,
            Yielding::All => Some(if kernel { RouteOwner::Connected } else { RouteOwner::Yields }),
        }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::calico(Dialect::default())
    }
}
