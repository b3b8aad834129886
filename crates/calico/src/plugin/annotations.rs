//! Options that a pod and its namespace set in their annotations (calico-cni.md sections 2.5.2 to
//! 2.5.4). All are parsed before any allocation, so that a wrong one needs no undo.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, host_net};
use russet_cni_spec::CniError;
use russet_model::Extra;
use serde::de::DeserializeOwned;

use super::qos;

/// Annotations by name.
pub type Annotations = BTreeMap<String, String>;

/// Parsed annotations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodOptions {
    /// The only IPv4 pools to allocate from, by name or prefix.
    pub ipv4_pools: Option<Vec<String>>,
    /// The only IPv6 pools.
    pub ipv6_pools: Option<Vec<String>>,
    /// The families to allocate an address of.
    pub families: Option<Vec<Family>>,
    /// Exactly these addresses, allocated by IPAM.
    pub ip_addrs: Option<Vec<IpAddr>>,
    /// Exactly these addresses, without IPAM.
    pub ip_addrs_no_ipam: Option<Vec<IpAddr>>,
    /// External addresses that are translated to the pod's.
    pub floating_ips: Option<Vec<IpAddr>>,
    /// The MAC of the pod's interface.
    pub mac: Option<Mac>,
    /// Source addresses besides its own that the pod may use.
    pub allowed_sources: Vec<IpNet>,
    /// Limits on the pod's traffic.
    pub qos: Extra,
}

/// The common prefix of Calico's annotations.
const PREFIX: &str = "cni.projectcalico.org/";

// === impl PodOptions ===

impl PodOptions {
    /// Reads the annotations. For pools and families, the pod's take precedence over the
    /// namespace's; all others are read from the pod only.
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

/// Name and text of an annotation, if it is set.
type Annotation<'a> = Option<(String, &'a str)>;

fn json<T: DeserializeOwned>(found: Annotation<'_>) -> Result<Option<T>, CniError> {
    let Some((name, text)) = found else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| wrong(&name, text, error))
}

fn addresses(found: Annotation<'_>) -> Result<Option<Vec<IpAddr>>, CniError> {
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

fn mac(found: Annotation<'_>) -> Result<Option<Mac>, CniError> {
    let Some((name, text)) = found else { return Ok(None) };
    text.parse().map(Some).map_err(|error| wrong(&name, text, error))
}

/// A prefix without host bits; a single address is a host prefix.
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
        let pod_options = PodOptions::read(&namespace, &pod).unwrap();
        assert_eq!(pod_options.ipv4_pools.unwrap(), ["10.1.0.0/16", "b"]);
        assert_eq!(pod_options.ipv6_pools.unwrap(), ["fd00::/64"]);
        assert_eq!(PodOptions::read(&namespace, &Annotations::new()).unwrap().ipv4_pools.unwrap(), ["a"]);
    }

    #[test]
    fn oracle_45_prefixes_that_may_be_spoofed_are_normalised() {
        let pod = annotations(&[("allowedSourcePrefixes", r#"["8.8.8.8/32","10.1.2.3/8","fd00::1"]"#)]);
        let wanted = ["8.8.8.8/32", "10.0.0.0/8", "fd00::1/128"].map(|net| net.parse::<IpNet>().unwrap());
        assert_eq!(PodOptions::read(&Annotations::new(), &pod).unwrap().allowed_sources, wanted);
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
            let error = PodOptions::read(&Annotations::new(), &annotations(&[(name, text)])).unwrap_err();
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
        let pod_options = PodOptions::read(&namespace, &Annotations::new()).unwrap();
        assert_eq!(pod_options, PodOptions { families: Some(vec![Family::V6]), ..PodOptions::default() });
    }
}
