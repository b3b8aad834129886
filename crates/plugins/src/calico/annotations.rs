//! What a pod and its namespace ask for in their annotations (calico-cni.md sections 2.5.2 to 2.5.4). All of them are read before anything is
//! taken, so that a wrong one costs nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, host_net};
use russet_cni_spec::CniError;
use russet_model::Extra;
use serde::de::DeserializeOwned;

use super::qos;

/// Annotations by name.
pub type Annotations = BTreeMap<String, String>;

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wishes {
    /// The only IPv4 pools to take an address from, by name or prefix.
    pub ipv4_pools: Option<Vec<String>>,
    /// The only IPv6 pools.
    pub ipv6_pools: Option<Vec<String>>,
    /// The families to have an address of.
    pub families: Option<Vec<Family>>,
    /// Exactly these addresses.
    pub ip_addrs: Option<Vec<IpAddr>>,
    /// Exactly these addresses, whatever the allocator knows about them.
    pub ip_addrs_no_ipam: Option<Vec<IpAddr>>,
    /// Addresses outside that lead to the pod.
    pub floating_ips: Option<Vec<IpAddr>>,
    /// The pod end's MAC.
    pub mac: Option<Mac>,
    /// Source addresses besides its own that the pod may use.
    pub allowed_sources: Vec<IpNet>,
    /// Limits on its traffic.
    pub qos: Extra,
}

/// The names of Calico's annotations begin with this.
const PREFIX: &str = "cni.projectcalico.org/";

// === impl Wishes ===

impl Wishes {
    /// Reads them; the pod's come before the namespace's, where those count at all.
    pub fn read(namespace: &Annotations, pod: &Annotations) -> Result<Self, CniError> {
        let either = |name: &str| {
            let name = format!("{PREFIX}{name}");
            pod.get(&name).or_else(|| namespace.get(&name)).map(|text| (name, text.as_str()))
        };
        let own = |name: &str| {
            let name = format!("{PREFIX}{name}");
            pod.get(&name).map(|text| (name, text.as_str()))
        };
        let allowed = json::<Vec<String>>(own("allowedSourcePrefixes"))?.unwrap_or_default();
        Ok(Self {
            ipv4_pools: json(either("ipv4pools"))?,
            ipv6_pools: json(either("ipv6pools"))?,
            families: json::<Vec<String>>(either("ipFamilies"))?.map(families).transpose()?,
            ip_addrs: addresses(own("ipAddrs"))?,
            ip_addrs_no_ipam: addresses(own("ipAddrsNoIpam"))?,
            floating_ips: addresses(own("floatingIPs"))?,
            mac: mac(own("hwAddr"))?,
            allowed_sources: allowed.iter().map(|text| prefix(text)).collect::<Result<_, _>>()?,
            qos: qos::controls(pod),
        })
    }
}

/// An annotation that is there: its name and its text.
type Found<'a> = Option<(String, &'a str)>;

fn json<T: DeserializeOwned>(found: Found<'_>) -> Result<Option<T>, CniError> {
    let Some((name, text)) = found else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| wrong(&name, text, error))
}

fn addresses(found: Found<'_>) -> Result<Option<Vec<IpAddr>>, CniError> {
    json::<Vec<IpAddr>>(found)
}

fn families(names: Vec<String>) -> Result<Vec<Family>, CniError> {
    let family = |name: String| match name.as_str() {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        _ => Err(wrong(&format!("{PREFIX}ipFamilies"), &name, "IPv4 and IPv6 are known")),
    };
    names.into_iter().map(family).collect()
}

fn mac(found: Found<'_>) -> Result<Option<Mac>, CniError> {
    let Some((name, text)) = found else { return Ok(None) };
    text.parse().map(Some).map_err(|error| wrong(&name, text, error))
}

/// A prefix without host bits; an address alone is a prefix of its own.
fn prefix(text: &str) -> Result<IpNet, CniError> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse().map(host_net));
    net.map(|net| net.trunc()).map_err(|error| wrong(&format!("{PREFIX}allowedSourcePrefixes"), text, error))
}

fn wrong(name: &str, text: &str, why: impl ToString) -> CniError {
    let shown: String = text.chars().take(80).collect();
    CniError::invalid_config(format!("the annotation {name} cannot be used: {shown:?}"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        pairs.iter().map(|(name, text)| (format!("{PREFIX}{name}"), (*text).to_owned())).collect()
    }

    #[test]
    fn oracle_36_a_pods_pools_override_those_of_its_namespace() {
        let namespace = annotations(&[("ipv4pools", r#"["a"]"#), ("ipv6pools", r#"["fd00::/64"]"#)]);
        let pod = annotations(&[("ipv4pools", r#"["10.1.0.0/16","b"]"#)]);
        let wishes = Wishes::read(&namespace, &pod).unwrap();
        assert_eq!(wishes.ipv4_pools.unwrap(), ["10.1.0.0/16", "b"]);
        assert_eq!(wishes.ipv6_pools.unwrap(), ["fd00::/64"]);
        assert_eq!(Wishes::read(&namespace, &Annotations::new()).unwrap().ipv4_pools.unwrap(), ["a"]);
    }

    #[test]
    fn oracle_45_prefixes_that_may_be_spoofed_are_normalised() {
        let pod = annotations(&[("allowedSourcePrefixes", r#"["8.8.8.8/32","10.1.2.3/8","fd00::1"]"#)]);
        let wanted = ["8.8.8.8/32", "10.0.0.0/8", "fd00::1/128"].map(|net| net.parse::<IpNet>().unwrap());
        assert_eq!(Wishes::read(&Annotations::new(), &pod).unwrap().allowed_sources, wanted);
    }

    #[test]
    fn a_wrong_annotation_is_an_error_that_names_it() {
        for (name, text) in [
            ("ipv4pools", "10.1.0.0/16"),
            ("ipv6pools", "[7]"),
            ("ipFamilies", r#"["IPv5"]"#),
            ("ipAddrs", r#"["10.1.0.0/16"]"#),
            ("ipAddrsNoIpam", "{"),
            ("floatingIPs", r#""1.1.1.1""#),
            ("hwAddr", "garbage"),
            ("allowedSourcePrefixes", r#"["8.8.8.8/33"]"#),
        ] {
            let error = Wishes::read(&Annotations::new(), &annotations(&[(name, text)])).unwrap_err();
            assert!(error.msg.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn the_namespace_decides_pools_and_families_only() {
        // calico-cni.md section 2.5.2
        let namespace = annotations(&[
            ("ipFamilies", r#"["IPv6"]"#),
            ("hwAddr", "ca:fe:ca:fe:ca:fe"),
            ("ipAddrs", r#"["10.0.0.1"]"#),
        ]);
        let wishes = Wishes::read(&namespace, &Annotations::new()).unwrap();
        assert_eq!(wishes, Wishes { families: Some(vec![Family::V6]), ..Wishes::default() });
    }
}
