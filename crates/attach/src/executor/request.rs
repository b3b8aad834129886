//! [`Op`]s as netlink requests, and the requests that reverse them.

use russet_addr::{Family, IpNet};
use russet_netlink::{Address, Batch, LinkSet, Neighbour, NetlinkError, Route, RouteFilter, Socket};

use crate::plan::{Op, PermanentNeighbour, PlannedRoute, Via};
use crate::rules::wire_rule;

/// From this length on a network has no broadcast address (RFC 3021).
const P2P_PREFIX_LEN: u8 = 31;

/// Appends the request for `op` on the link `ifindex`; `bridge` is the index of the plan's bridge.
pub(crate) fn push(batch: &mut Batch, op: &Op, ifindex: u32, bridge: Option<u32>, protocol: u8) {
    match op {
        Op::Join => batch.set_link(&LinkSet { master: bridge, ..LinkSet::index(ifindex) }),
        Op::Port(port) => batch.set_bridge_port(ifindex, port),
        Op::LinkUp => batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(ifindex) }),
        Op::Address(address) => batch.add_address(&wire_address(*address, ifindex)),
        Op::Neighbour(PermanentNeighbour { address, mac }) => {
            batch.replace_neighbour(&Neighbour::permanent(ifindex, *address, *mac))
        }
        Op::Route(route) => batch.add_route(&wire_route(route, ifindex, protocol)),
        Op::Rule(rule) => batch.add_rule(&wire_rule(rule)),
    };
}

/// Appends the request that reverses `op`, if it needs one: a neighbour that was replaced was ours
/// before.
pub(super) fn push_reversal(batch: &mut Batch, op: &Op, ifindex: u32, protocol: u8) {
    match op {
        Op::LinkUp => batch.set_link(&LinkSet { up: Some(false), ..LinkSet::index(ifindex) }),
        Op::Address(address) => batch.delete_address(&wire_address(*address, ifindex)),
        Op::Join => batch.set_link(&LinkSet { master: Some(0), ..LinkSet::index(ifindex) }),
        Op::Neighbour(_) | Op::Port(_) => return,
        Op::Route(route) => batch.delete_route(&wire_route(route, ifindex, protocol)),
        Op::Rule(rule) => batch.delete_rule(&wire_rule(rule)),
    };
}

/// The route as a netlink object.
pub(crate) fn wire_route(route: &PlannedRoute, ifindex: u32, protocol: u8) -> Route {
    let PlannedRoute { net, via, metric, table, scope } = *route;
    let route = match via {
        Via::Link => Route::dev(net, ifindex),
        Via::Gateway(gateway) => Route { oif: Some(ifindex), ..Route::via(net, gateway) },
    };
    Route { metric, protocol, table, scope: scope.unwrap_or(route.scope), ..route }
}

/// The address as a netlink object, with the usual broadcast address of IPv4.
pub(super) fn wire_address(net: IpNet, ifindex: u32) -> Address {
    let broadcast = match net {
        IpNet::V4(net) if net.prefix_len() < P2P_PREFIX_LEN => Some(net.broadcast()),
        _ => None,
    };
    Address { broadcast, ..Address::new(ifindex, net) }
}

/// The routes that conflict with this one: those of its table with its destination and metric.
pub(super) fn conflicting_routes(
    socket: &mut Socket,
    planned: &PlannedRoute,
) -> Result<Vec<Route>, NetlinkError> {
    let PlannedRoute { net, metric, table, .. } = *planned;
    let filter = RouteFilter { table: Some(table), ..RouteFilter::default() };
    let mut routes = socket.routes_where(Family::of_net(&net), filter)?;
    let same_metric = |route: &Route| effective_metric(net, route.metric) == effective_metric(net, metric);
    routes.retain(|route| route.dst == net && same_metric(route));
    Ok(routes)
}

/// The kernel's default metric if none was given.
fn effective_metric(net: IpNet, metric: Option<u32>) -> u32 {
    metric.unwrap_or(match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => Route::METRIC_V6,
    })
}
