//! Derives gateways and default routes of a pod behind a bridge from an IPAM plugin's result. Pure.

use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_attach::PlannedRoute;
use russet_cni_spec::{CniError, CniResult, IpConfig, Route};
use russet_netlink::Route as KernelRoute;

use super::conf::Conf;

/// The index of the pod's interface in the result, after bridge and host interface.
const POD_INDEX: u32 = 2;

/// Completes the result of IPAM: adds missing gateways and the default routes. A default route
/// without a gateway gets one; a second default route would be refused by the kernel
/// (cni-runtime.md section 6.2 item 59).
pub fn complete(result: &mut CniResult, conf: &Conf) {
    for ip in &mut result.ips {
        ip.interface = Some(POD_INDEX);
        if conf.is_gateway && ip.gateway.is_none() {
            ip.gateway = first_address(ip.address);
        }
    }
    let (families, ips) = (families(&result.ips), result.ips.clone());
    result.routes.retain(|route| families.contains(&Family::of_net(&route.dst)));
    if !conf.is_default_gateway {
        return;
    }
    for family in families {
        let gateway = gateway(&ips, family);
        let is_default =
            |route: &&mut Route| Family::of_net(&route.dst) == family && route.dst.prefix_len() == 0;
        let mut found = false;
        for route in result.routes.iter_mut().filter(is_default) {
            (route.gw, found) = (route.gw.or(gateway), true);
        }
        if !found {
            result.routes.push(Route::new(family.default_net(), gateway));
        }
    }
}

/// The bridge's addresses.
pub fn gateways(result: &CniResult, conf: &Conf) -> Vec<IpNet> {
    let net = |ip: &IpConfig| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok();
    let mut all: Vec<IpNet> = Vec::new();
    for net in result.ips.iter().filter(|_| conf.is_gateway).filter_map(net) {
        if !all.contains(&net) {
            all.push(net);
        }
    }
    all
}

/// The pod's routes. A route without a gateway gets that of the first address of its family.
pub fn routes(result: &CniResult) -> Result<Vec<PlannedRoute>, CniError> {
    let mut all: Vec<PlannedRoute> = Vec::new();
    for route in &result.routes {
        let family = Family::of_net(&route.dst);
        if !families(&result.ips).contains(&family) {
            continue;
        }
        let mut planned = PlannedRoute::new(route.dst, route.gw.or(gateway(&result.ips, family)));
        planned.metric = route.priority;
        planned.table = route.table.unwrap_or(KernelRoute::MAIN);
        if let Some(scope) = route.scope {
            let number = u8::try_from(scope).map_err(|_| {
                CniError::invalid_config(format!("route {}: scope {scope} cannot be", route.dst), "0 to 255")
            })?;
            planned = planned.scope_number(number);
        }
        let same =
            |it: &PlannedRoute| (it.net, it.table, it.metric) == (planned.net, planned.table, planned.metric);
        if !all.iter().any(same) {
            all.push(planned);
        }
    }
    Ok(all)
}

fn families(ips: &[IpConfig]) -> Vec<Family> {
    let has = |family: &Family| ips.iter().any(|ip| Family::of_net(&ip.address) == *family);
    Family::BOTH.into_iter().filter(has).collect()
}

fn gateway(ips: &[IpConfig], family: Family) -> Option<IpAddr> {
    ips.iter().find(|ip| Family::of_net(&ip.address) == family)?.gateway
}

fn first_address(net: IpNet) -> Option<IpAddr> {
    Some(match net.network() {
        IpAddr::V4(network) => IpAddr::V4(network.to_bits().checked_add(1)?.into()),
        IpAddr::V6(network) => IpAddr::V6(network.to_bits().checked_add(1)?.into()),
    })
}

#[cfg(test)]
mod tests {
    use russet_cni_spec::Version;
    use serde_json::json;

    use super::*;

    fn conf(is_default_gateway: bool) -> Conf {
        Conf {
            bridge: "cni0".parse().unwrap(),
            is_gateway: true,
            is_default_gateway,
            force_address: false,
            ip_masq: false,
            mtu: None,
            hairpin: false,
            promiscuous: false,
            isolated: false,
            mac: None,
            source_check: russet_attach::SourceCheck::Off,
            check_required: false,
        }
    }

    fn completed(value: serde_json::Value, conf: &Conf) -> CniResult {
        let mut result = CniResult::from_value(&value, Version::V1_0_0).unwrap();
        complete(&mut result, conf);
        result
    }

    #[test]
    fn a_default_route_is_added_once_for_each_family() {
        let value =
            json!({"ips": [{"address": "10.1.2.5/24"}, {"address": "fd00::5/64", "gateway": "fd00::9"}]});
        let result = completed(value, &conf(true));
        let routes = result.to_value()["routes"].clone();
        assert_eq!(routes, json!([{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}, {"dst": "::/0", "gw": "fd00::9"}]));
        let nets: Vec<String> = gateways(&result, &conf(true)).iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.1.2.1/24", "fd00::9/64"]);
        assert!(result.ips.iter().all(|ip| ip.interface == Some(2)));
    }

    #[test]
    fn a_default_route_of_ipam_without_a_gateway_gets_one() {
        // cni-runtime.md section 6.2 item 59
        let value = json!({"ips": [{"address": "10.1.2.5/24", "gateway": "10.1.2.1"}], "routes": [{"dst": "0.0.0.0/0"}]});
        let result = completed(value, &conf(true));
        assert_eq!(result.to_value()["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}]));
        assert_eq!(routes(&result).unwrap().len(), 1);
    }

    #[test]
    fn routes_keep_their_attributes_and_come_once() {
        let value = json!({"ips": [{"address": "10.1.2.5/24", "gateway": "10.1.2.1"}], "routes": [
            {"dst": "10.9.0.0/16", "priority": 50, "table": 7, "scope": 0}, {"dst": "10.9.1.0/24"},
            {"dst": "10.9.1.7/24", "gw": "10.1.2.9"}, {"dst": "fd00::/64"}]});
        let result = completed(value, &conf(false));
        let shown: Vec<String> =
            routes(&result).unwrap().iter().map(|route| format!("{} {:?}", route.net, route.via)).collect();
        assert_eq!(shown, ["10.9.0.0/16 Gateway(10.1.2.1)", "10.9.1.0/24 Gateway(10.1.2.1)"]);
        assert_eq!((routes(&result).unwrap()[0].metric, routes(&result).unwrap()[0].table), (Some(50), 7));
        let bad =
            json!({"ips": [{"address": "10.1.2.5/24"}], "routes": [{"dst": "10.9.0.0/16", "scope": 300}]});
        assert!(routes(&completed(bad, &conf(false))).is_err());
    }
}
