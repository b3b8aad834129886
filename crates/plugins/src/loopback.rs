//! The `loopback` plugin: raises `lo` (cni-runtime.md section 5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::IpNet;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Interface, IpConfig};
use russet_wiring::{LocalNode, Target, failure};

/// The plugin's name.
pub const NAME: &str = "loopback";

pub async fn run(node: &LocalNode, request: &Request) -> Result<Option<CniResult>, CniError> {
    match &request.env.call {
        Call::Add(target) => {
            let target = Target::from_request(request, target)?;
            node.wiring.loopback_up(target.open_netns()?).await?;
            match request.config.prev_result()? {
                Some(previous) => Ok(Some(previous)),
                None => Ok(Some(result(request, &target))),
            }
        }
        Call::Check(target) => {
            let netns = Target::from_request(request, target)?.open_netns()?;
            if node.wiring.loopback_is_up(netns).await? {
                Ok(None)
            } else {
                Err(CniError::new(
                    failure::WIRING,
                    "lo is down",
                    "ADD raised it and another program took it down; run `ip link set lo up` in the namespace",
                ))
            }
        }
        // lo disappears with its namespace; taking it down would only break processes that still
        // run there.
        Call::Del(_) | Call::Gc | Call::Status => Ok(None),
    }
}

fn result(request: &Request, target: &Target) -> CniResult {
    let address = |ip: IpAddr, prefix_len| IpNet::new(ip, prefix_len).ok();
    let addresses = [address(Ipv4Addr::LOCALHOST.into(), 8), address(Ipv6Addr::LOCALHOST.into(), 128)];
    let mut result = CniResult::empty(request.config.cni_version);
    result.interfaces.push(Interface {
        name: "lo".to_owned(),
        mac: "00:00:00:00:00:00".to_owned(),
        sandbox: target.netns_path().to_owned(),
        ..Interface::default()
    });
    result.ips = addresses
        .into_iter()
        .flatten()
        .map(|net| IpConfig { interface: Some(0), ..IpConfig::new(net) })
        .collect();
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{Lab, Pod, well_formed};

    #[test]
    fn both_addresses_name_lo_which_has_a_mac() {
        // cni-runtime.md section 6.2 items 55 and 56
        let lab = Lab::with_path("/nowhere");
        let one = Pod { container: "one", ifname: "lo", netns: "one" };
        let config = serde_json::json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
        let request = lab.request("ADD", one, &config).unwrap();
        let target = Target::from_request(&request, request.env.target().unwrap()).unwrap();
        let result = result(&request, &target);
        well_formed(&result);
        let named: Vec<&str> =
            result.ips.iter().map(|ip| result.interface_of(ip).unwrap().name.as_str()).collect();
        assert_eq!(named, ["lo", "lo"]);
    }
}
