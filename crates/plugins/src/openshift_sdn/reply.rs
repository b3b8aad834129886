//! The server's answer to an ADD: the result of its IPAM plugin in any version. The answer is not
//! trusted; everything that this module returns can be wired.

use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{IpNet, Ipv4Net};
use russet_attach::sdn::Settings;
use russet_cni_spec::{CniError, CniResult, IpConfig, Route, Version};
use russet_wiring::failure;

use super::conf::Conf;

/// OpenShift's server sends four, and one for each further cluster network.
const MAX_ROUTES: usize = 256;

/// Decodes the body; a result without `cniVersion` has the configuration's version.
pub fn decode(body: &[u8], version: Version) -> Result<CniResult, CniError> {
    CniResult::decode(body, version).map_err(|error| unexpected(&error.to_string()))
}

/// The interface's settings: exactly one address, which is an IPv4 address, and routes of that
/// family.
pub fn settings(reply: &CniResult, conf: &Conf) -> Result<Settings, CniError> {
    let [IpConfig { address: IpNet::V4(address), gateway, .. }] = reply.ips[..] else {
        let found: Vec<String> = reply.ips.iter().take(8).map(|ip| ip.address.to_string()).collect();
        return Err(unexpected(&format!("one IPv4 address is wanted, found [{}]", found.join(", "))));
    };
    let own = address.addr();
    if own.is_unspecified() || own.is_multicast() || own.is_loopback() || own.is_broadcast() {
        return Err(unexpected(&format!("{own} cannot be a pod's address")));
    }
    if reply.routes.len() > MAX_ROUTES {
        return Err(unexpected(&format!("{} routes, at most {MAX_ROUTES} are taken", reply.routes.len())));
    }
    Ok(Settings {
        address,
        gateway: gateway.map(v4).transpose()?,
        routes: reply.routes.iter().map(route).collect::<Result<_, _>>()?,
        route_mtu: conf.route_mtu,
        service: conf.service,
        metadata: conf.metadata,
    })
}

fn route(route: &Route) -> Result<(Ipv4Net, Option<Ipv4Addr>), CniError> {
    match route.dst {
        IpNet::V4(dst) => Ok((dst.trunc(), route.gw.map(v4).transpose()?)),
        IpNet::V6(dst) => Err(unexpected(&format!("a route to {dst}, which an IPv4 pod cannot use"))),
    }
}

fn v4(address: IpAddr) -> Result<Ipv4Addr, CniError> {
    match address.to_canonical() {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(address) => Err(unexpected(&format!("{address} cannot be a gateway of an IPv4 pod"))),
    }
}

fn unexpected(why: &str) -> CniError {
    CniError::new(failure::SERVER, "Unexpected IPAM result", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Settings, CniError> {
        let conf = Conf {
            mtu: None,
            route_mtu: Some(1350),
            service: None,
            metadata: Ipv4Addr::new(169, 254, 169, 254),
        };
        settings(&decode(body.as_bytes(), Version::V0_3_1)?, &conf)
    }

    #[test]
    fn replies_of_both_eras_mean_the_same() {
        // cni-runtime.md section 4.1: the recorded reply, and that of the 0.2.0 era
        let new = read(
            r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.128.0.11/23","gateway":"10.128.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"},{"dst":"172.30.0.0/16","gw":"10.128.0.1"},{"dst":"10.128.0.0/14"},{"dst":"224.0.0.0/4"}],"dns":{}}"#,
        );
        let old = read(
            r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.128.0.11/23","gateway":"10.128.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.128.0.1"},{"dst":"172.30.0.0/16","gw":"10.128.0.1"},{"dst":"10.128.0.0/14"},{"dst":"224.0.0.0/4"}]},"dns":{}}"#,
        );
        let new = new.unwrap();
        assert_eq!(new, old.unwrap());
        assert_eq!((new.address.to_string(), new.routes.len()), ("10.128.0.11/23".to_owned(), 4));
        assert_eq!(new.routes[2].1, None);
    }

    #[test]
    fn a_reply_that_cannot_be_wired_is_an_error_and_no_crash() {
        // the Go plugin crashes on a reply of the wrong family, and on one without addresses
        let many = format!(
            r#"{{"ips":[{{"address":"10.0.0.2/24"}}],"routes":[{}]}}"#,
            vec![r#"{"dst":"10.0.0.0/8"}"#; MAX_ROUTES + 1].join(",")
        );
        for bad in [
            "",
            "null",
            "{}",
            "[]",
            "\"x\"",
            r#"{"cniVersion":"9.9.9","ips":[{"address":"10.0.0.2/24"}]}"#,
            r#"{"cniVersion":"0.2.0","ips":[{"address":"10.0.0.2/24"}]}"#,
            r#"{"ips":[]}"#,
            r#"{"ips":[{"address":"fd00::2/64"}]}"#,
            r#"{"ips":[{"address":"10.0.0.2/24"},{"address":"10.0.0.3/24"}]}"#,
            r#"{"ips":[{"address":"10.0.0.2"}]}"#,
            r#"{"ips":[{"address":"0.0.0.0/0"}]}"#,
            r#"{"ips":[{"address":"224.0.0.9/24"}]}"#,
            r#"{"ips":[{"address":"10.0.0.2/24","gateway":"fd00::1"}]}"#,
            r#"{"ips":[{"address":"10.0.0.2/24"}],"routes":[{"dst":"::/0"}]}"#,
            r#"{"ips":[{"address":"10.0.0.2/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"fd00::1"}]}"#,
            r#"{"ips":{"address":"10.0.0.2/24"}}"#,
            &many,
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str()),
                (failure::SERVER, "Unexpected IPAM result"),
                "{bad}"
            );
        }
    }
}
