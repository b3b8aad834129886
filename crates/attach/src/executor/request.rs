//! [`Op`]s as netlink requests, and the requests that reverse them.

use russet_addr::{Family, IpNet, host_net};
use russet_netlink::{Address, Batch, LinkSet, Neighbour, NetlinkError, Route, RouteFilter, Socket};

use crate::plan::{Op, PermanentNeighbour, PlannedRoute, Via};
use crate::rules::wire_rule;

/// Appends the request that does `op` to the link `ifindex`.
pub(super) fn push(batch: &mut Batch, op: &Op, ifindex: u32, protocol: u8) {
    match op {
        Op::LinkUp => batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(ifindex) }),
        Op::Address(address) => batch.add_address(&Address::new(ifindex, host_net(*address))),
        Op::Neighbour(PermanentNeighbour { address, mac }) => {
            batch.replace_neighbour(&Neighbour::permanent(ifindex, *address, *mac))
        }
        Op::Route(route) => batch.add_route(&wire_route(route, ifindex, protocol)),
        Op::Rule(rule) => batch.add_rule(&wire_rule(rule)),
    };
}

/// Appends the request that reverses `op`, if it needs one: a neighbour that was replaced was ours before.
pub(super) fn push_reversal(batch: &mut Batch, op: &Op, ifindex: u32, protocol: u8) {
    match op {
        Op::LinkUp => batch.set_link(&LinkSet { up: Some(false), ..LinkSet::index(ifindex) }),
        Op::Address(address) => batch.delete_address(&Address::new(ifindex, host_net(*address))),
        Op::Neighbour(_) => return,
        Op::Route(route) => batch.delete_route(&wire_route(route, ifindex, protocol)),
        Op::Rule(rule) => batch.delete_rule(&wire_rule(rule)),
    };
}

/// The route as the kernel is to have it.
pub(crate) fn wire_route(route: &PlannedRoute, ifindex: u32, protocol: u8) -> Route {
    let PlannedRoute { net, via, metric, table } = *route;
    let route = match via {
        Via::Link => Route::dev(net, ifindex),
        Via::Gateway(gateway) => Route { oif: Some(ifindex), ..Route::via(net, gateway) },
    };
    Route { metric, protocol, table, ..route }
}

/// The routes that keep this one out: those of its table with its destination and metric.
pub(super) fn rivals(socket: &mut Socket, planned: &PlannedRoute) -> Result<Vec<Route>, NetlinkError> {
    let PlannedRoute { net, metric, table, .. } = *planned;
    let filter = RouteFilter { table: Some(table), ..RouteFilter::default() };
    let mut routes = socket.routes_where(Family::of_net(&net), filter)?;
    let same_metric = |route: &Route| effective_metric(net, route.metric) == effective_metric(net, metric);
    routes.retain(|route| route.dst == net && same_metric(route));
    Ok(routes)
}

/// The metric that the kernel uses where none was given.
fn effective_metric(net: IpNet, metric: Option<u32>) -> u32 {
    metric.unwrap_or(match net {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => Route::METRIC_V6,
    })
}
