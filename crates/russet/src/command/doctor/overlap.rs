//! Routes of others to addresses of pools: packets to pods leave by them, or pods get addresses that
//! are in use elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::{Family, IpNet};
use russet_netlink::{Link, NetlinkError, Route, RouteKind, Rule, Socket};
use russet_overlay::{Inputs, device_name};

use crate::command::findings::{FindingKind, Findings};

/// Routes to addresses of one pool, of one table and by one interface.
#[derive(Debug, PartialEq)]
struct Overlap<'a> {
    pool: IpNet,
    /// The first of them.
    route: &'a Route,
    more: usize,
    /// What leads to the table, if it is not the main one.
    rule: Option<&'a Rule>,
}

/// Prefixes of the names of pods' host ends.
const HOST_ENDS: [&str; 2] = ["russ", "cali"];
const BRIDGE: &str = "bridge";

/// Compares the pools with the routes of all tables that packets may come to. `bridges` are those that plugins make.
pub fn look(
    inputs: &Inputs,
    (links, bridges): (&BTreeMap<u32, Link>, &BTreeSet<String>),
    socket: &mut Socket,
    report: &mut Findings,
) -> Result<(), NetlinkError> {
    for family in Family::BOTH {
        let pools = inputs.pools.iter().filter(|pool| Family::of_net(&pool.cidr) == family);
        let pools: Vec<IpNet> = pools.map(|pool| pool.cidr).collect();
        if pools.is_empty() {
            continue;
        }
        let (routes, rules) = (socket.routes(family)?, socket.rules(family)?);
        let is_foreign = |route: &&Route| {
            let oif = route.oif.and_then(|index| links.get(&index));
            route.protocol != inputs.dialect.route_protocol()
                && !oif.is_some_and(|link| is_ours(&link.name, link.kind.as_deref(), bridges))
        };
        let foreign: Vec<&Route> = routes.iter().filter(is_foreign).collect();
        for overlap in overlaps(&pools, &foreign, &rules) {
            let oif = overlap.route.oif.and_then(|index| links.get(&index));
            report.found(
                FindingKind::Overlap,
                format!("pool {}", overlap.pool),
                problem(&overlap, oif.map(|link| link.name.as_str())),
                remedy(&overlap, oif.and_then(|link| link.kind.as_deref())),
            );
        }
    }
    Ok(())
}

/// Whether an interface leads to pods of Russet's.
fn is_ours(name: &str, kind: Option<&str>, bridges: &BTreeSet<String>) -> bool {
    HOST_ENDS.iter().any(|prefix| name.starts_with(prefix))
        || Family::BOTH.iter().any(|family| device_name(*family) == name)
        || kind == Some(BRIDGE) && bridges.contains(name)
}

/// Those of `routes`, which are not Russet's, that lead to addresses of pools.
fn overlaps<'a>(pools: &[IpNet], routes: &[&'a Route], rules: &'a [Rule]) -> Vec<Overlap<'a>> {
    let mut found: BTreeMap<_, Overlap<'a>> = BTreeMap::new();
    for route in routes.iter().filter(|route| leads_somewhere(route)) {
        for pool in pools.iter().filter(|pool| overlap(pool, &route.dst)) {
            let rule =
                rules.iter().filter(|rule| leads(rule, route.table, pool)).min_by_key(|it| it.priority);
            if route.table != Route::MAIN && rule.is_none() {
                continue;
            }
            let rule = rule.filter(|_| route.table != Route::MAIN);
            found
                .entry((*pool, route.table, route.oif))
                .and_modify(|overlap| overlap.more += 1)
                .or_insert(Overlap { pool: *pool, route, more: 0, rule });
            break;
        }
    }
    found.into_values().collect()
}

/// Whether it takes packets of some destinations and not of all.
fn leads_somewhere(route: &Route) -> bool {
    route.kind == RouteKind::Unicast && route.dst.prefix_len() > 0 && !is_link_local(&route.dst)
}

/// Whether packets to a pool may come to a table by this rule.
fn leads(rule: &Rule, table: u32, pool: &IpNet) -> bool {
    rule.table == table && (rule.invert || rule.to.is_none_or(|to| overlap(&to, pool)))
}

fn is_link_local(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.addr().is_link_local() || net.addr().is_multicast(),
        IpNet::V6(net) => net.addr().is_unicast_link_local() || net.addr().is_multicast(),
    }
}

pub(super) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

fn problem(overlap: &Overlap<'_>, oif: Option<&str>) -> String {
    let Overlap { route, more, rule, .. } = overlap;
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let dev = oif.map(|name| format!(" dev {name}")).unwrap_or_default();
    let table = match rule {
        Some(rule) => format!(" of table {} (routing rule {})", rule.table, rule.priority),
        None => String::new(),
    };
    let more = if *more > 0 { format!(" and {more} more there") } else { String::new() };
    format!(
        "it overlaps the route {}{via}{dev}{table}{more}: an address there may be a pod's and another machine's",
        route.dst
    )
}

fn remedy(overlap: &Overlap<'_>, kind: Option<&str>) -> String {
    match overlap.rule {
        Some(Rule { table, .. }) => format!(
            "`ip rule` and `ip route show table {table}` show both; have the program that made them leave out the pool (WireGuard: AllowedIPs; Tailscale: `tailscale set --accept-routes=false`), or use another pool"
        ),
        None if kind == Some(BRIDGE) => "give that network other addresses (Docker: `bip` and `default-address-pools` in /etc/docker/daemon.json), or use another pool; of a network that is gone, delete the bridge: ip link delete NAME".to_owned(),
        None => "use another pool (`russet apply` a new one, disable this one), or remove the other network".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn route(dst: &str, table: u32, oif: u32) -> Route {
        Route { table, ..Route::dev(net(dst), oif) }
    }

    #[test]
    fn networks_overlap_if_one_contains_the_other() {
        let overlaps = |a: &str, b: &str| overlap(&net(a), &net(b));
        assert!(overlaps("10.244.0.0/16", "10.244.9.0/24") && overlaps("10.244.9.0/24", "10.0.0.0/8"));
        assert!(!overlaps("10.244.0.0/16", "10.245.0.0/16"));
    }

    #[test]
    fn only_bridges_that_plugins_make_are_of_pods() {
        let bridges = BTreeSet::from(["cni0".to_owned(), "eth1".to_owned()]);
        let is_ours = |name: &str, kind: Option<&str>| is_ours(name, kind, &bridges);
        assert!(is_ours("cni0", Some("bridge")) && is_ours("russ0123456789a", Some("veth")));
        assert!(is_ours("vxlan.calico", Some("vxlan")));
        assert!(!is_ours("docker0", Some("bridge")) && !is_ours("eth1", None));
    }

    #[test]
    fn routes_of_another_table_count_if_a_rule_leads_packets_to_the_pool_there() {
        let pools = [net("10.244.0.0/16"), net("10.99.0.0/16")];
        let routes = [
            route("10.0.0.0/8", 52, 7),
            route("0.0.0.0/0", 51820, 8),
            route("10.244.3.0/24", 77, 9),
            route("10.99.3.0/24", 78, 9),
            route("10.244.4.0/24", Route::MAIN, 9),
            route("10.244.5.0/24", Route::MAIN, 9),
            route("192.168.0.0/16", Route::MAIN, 9),
        ];
        let routes: Vec<&Route> = routes.iter().collect();
        let mut rules = [5270, 40_000, 100, 200].map(|priority| Rule::new(Family::V4, priority, 52));
        rules[2].table = 51820;
        (rules[3].table, rules[3].to) = (78, Some(net("10.244.0.0/16")));
        let found = |rules: &[Rule]| -> Vec<(String, usize, Option<u32>)> {
            let shown =
                |it: &Overlap<'_>| (it.route.dst.to_string(), it.more, it.rule.map(|rule| rule.priority));
            overlaps(&pools, &routes, rules).iter().map(shown).collect()
        };
        let of_main = ("10.244.4.0/24".to_owned(), 1, None);
        let of_vpn = ("10.0.0.0/8".to_owned(), 0, Some(5270));
        assert_eq!(
            found(&rules),
            [of_vpn.clone(), of_main.clone()],
            "table 77 has no rule, that of 78 is for others"
        );
        rules[3].invert = true;
        let of_78 = ("10.99.3.0/24".to_owned(), 0, Some(200));
        let mut all = found(&rules);
        all.sort();
        assert_eq!(all, [of_vpn, of_main, of_78]);
    }

    #[test]
    fn a_finding_names_route_table_and_rule_and_what_to_do_about_each_kind() {
        let (pool, rule) = (net("10.244.0.0/16"), Rule::new(Family::V4, 5270, 52));
        let routes = [route("10.0.0.0/8", 52, 7), route("10.244.4.0/24", Route::MAIN, 9)];
        let vpn = Overlap { pool, route: &routes[0], more: 2, rule: Some(&rule) };
        let text = problem(&vpn, Some("tailscale0"));
        let wanted = "it overlaps the route 10.0.0.0/8 dev tailscale0 of table 52 (routing rule 5270) and 2 more there: ";
        assert!(text.starts_with(wanted), "{text}");
        assert!(remedy(&vpn, None).contains("ip route show table 52"));
        let bridge = Overlap { pool, route: &routes[1], more: 0, rule: None };
        assert!(
            problem(&bridge, Some("docker0"))
                .starts_with("it overlaps the route 10.244.4.0/24 dev docker0: ")
        );
        assert!(remedy(&bridge, Some("bridge")).contains("/etc/docker/daemon.json"));
        assert!(remedy(&bridge, Some("wireguard")).contains("russet apply"));
    }
}
