//! The configuration of `portmap` (cni-runtime.md sections 5 and A.4, docs/plugins.md). Pure.

use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_attach::Owner;
use russet_attach::nat::{Condition, PortRule, Publication};
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, PortMapping};
use russet_nft::L4;
use serde::Deserialize;

/// The validated configuration of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Conf {
    mappings: Vec<PortMapping>,
    snat: bool,
    masquerade_all: bool,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    snat: Option<bool>,
    masq_all: Option<bool>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    backend: Option<String>,
}

/// Bit numbers of a packet mark.
const MARK_BITS: std::ops::RangeInclusive<i64> = 0..=31;

// === impl Conf ===

impl Conf {
    /// Reads the configuration of `request`.
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let settings: Settings = request.config.read_settings()?;
        let mark_chain = settings.external_set_mark_chain.as_deref().filter(|chain| !chain.is_empty());
        if let (Some(bit), Some(_)) = (settings.mark_masq_bit, mark_chain) {
            return Err(invalid("cannot specify externalSetMarkChain and markMasqBit", bit));
        }
        if let Some(bit) = settings.mark_masq_bit.filter(|bit| !MARK_BITS.contains(bit)) {
            return Err(invalid("markMasqBit must be between 0 and 31", bit));
        }
        match settings.backend.as_deref() {
            None | Some("" | "iptables" | "nftables") => {}
            Some(other) => {
                return Err(invalid(&format!("unrecognized backend {other:?}"), "iptables or nftables"));
            }
        }
        let mut read =
            conditions("conditionsV4", Family::V4, settings.conditions_v4.as_deref().unwrap_or_default())?;
        read.extend(conditions(
            "conditionsV6",
            Family::V6,
            settings.conditions_v6.as_deref().unwrap_or_default(),
        )?);
        Ok(Self {
            mappings: mappings(request)?,
            snat: settings.snat.unwrap_or(true),
            masquerade_all: settings.masq_all.unwrap_or(false),
            conditions: read,
        })
    }

    /// Whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// The port rules of the container with the addresses of `previous`, for the address families
    /// that it has.
    pub fn publication(&self, owner: Owner, previous: &CniResult) -> Publication {
        let pods: Vec<IpNet> =
            Family::BOTH.iter().filter_map(|family| pod_address(previous, *family)).collect();
        let rules =
            self.mappings.iter().flat_map(|mapping| pods.iter().filter_map(|pod| rule(mapping, pod.addr())));
        let rules: Vec<PortRule> = rules.collect();
        let used = |pod: &IpNet| self.snat && rules.iter().any(|rule| rule.to == pod.addr());
        Publication {
            owner,
            hairpin: pods.iter().copied().filter(used).collect(),
            rules,
            masquerade_all: self.masquerade_all,
            conditions: self.conditions.clone(),
        }
    }
}

/// The first address of the family on an interface inside the container.
fn pod_address(previous: &CniResult, family: Family) -> Option<IpNet> {
    let inside = |ip: &&russet_cni_spec::IpConfig| {
        previous.interface_of(ip).is_none_or(|interface| !interface.sandbox.is_empty())
    };
    let found = previous.ips.iter().filter(inside).find(|ip| Family::of_net(&ip.address) == family);
    found.map(|ip| ip.address)
}

/// `None` if the mapping's host address is of the other family.
fn rule(mapping: &PortMapping, to: IpAddr) -> Option<PortRule> {
    let host_ip = mapping.host_ip.map(|ip| ip.to_canonical());
    if host_ip.is_some_and(|ip| Family::of(ip) != Family::of(to)) {
        return None;
    }
    Some(PortRule {
        protocol: protocol(&mapping.protocol)?,
        host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
        host_port: mapping.host_port,
        to,
        to_port: mapping.container_port,
    })
}

fn protocol(name: &str) -> Option<L4> {
    match name {
        "tcp" => Some(L4::Tcp),
        "udp" => Some(L4::Udp),
        "sctp" => Some(L4::Sctp),
        _ => None,
    }
}

fn mappings(request: &Request) -> Result<Vec<PortMapping>, CniError> {
    let mappings = request.config.runtime_config.port_mappings()?;
    for mapping in &mappings {
        let wrong = |what: &str| Err(invalid(what, format!("{mapping:?}")));
        if mapping.container_port == 0 {
            return wrong("invalid container port number: 0");
        }
        if mapping.host_port == 0 {
            return wrong("invalid host port number: 0");
        }
        if protocol(&mapping.protocol).is_none() {
            return wrong(&format!("invalid protocol {:?}: tcp, udp or sctp is wanted", mapping.protocol));
        }
    }
    Ok(mappings)
}

/// iptables arguments as the Go plugin accepts them: sources and destinations, which may be
/// negated.
fn conditions(key: &str, family: Family, words: &[String]) -> Result<Vec<Condition>, CniError> {
    let refused = |word: &str| {
        let details = "matches of iptables that can be used are -s and -d with a prefix, with ! before them";
        CniError::unsupported_field(format!("portmap: {key}: {word}"), details)
    };
    let (mut words, mut all) = (words.iter().map(String::as_str), Vec::new());
    while let Some(word) = words.next() {
        let not = word == "!";
        let word = if not { words.next().unwrap_or_default() } else { word };
        let source = match word {
            "-s" | "--src" | "--source" => true,
            "-d" | "--dst" | "--destination" => false,
            other => return Err(refused(other)),
        };
        let text = words.next().unwrap_or_default();
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        match net {
            Ok(net) if Family::of_net(&net) == family => {
                all.push(Condition { net: net.trunc(), source, not })
            }
            _ => return Err(refused(&format!("{word} {text}"))),
        }
    }
    Ok(all)
}

fn invalid(msg: &str, details: impl ToString) -> CniError {
    CniError::invalid_config(format!("portmap: {msg}"), details)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn conditions_are_sources_and_destinations() {
        let read = |text| conditions("conditionsV4", Family::V4, &words(text));
        let all = read("! -s 192.0.2.0/24 --dst 10.0.0.7").unwrap();
        assert_eq!(
            (all[0].source, all[0].not, all[0].net.to_string()),
            (true, true, "192.0.2.0/24".to_owned())
        );
        assert_eq!(
            (all[1].source, all[1].not, all[1].net.to_string()),
            (false, false, "10.0.0.7/32".to_owned())
        );
        assert_eq!(read("").unwrap(), []);
        for bad in ["-i eth0", "-s", "!", "-s fd00::/8", "-s x", "! -m mark --mark 1"] {
            assert_eq!(read(bad).unwrap_err().code, 2, "{bad}");
        }
    }

    #[test]
    fn a_port_is_published_for_the_families_that_the_pod_has() {
        let mapping = |host_ip: Option<&str>| PortMapping {
            host_port: 80,
            container_port: 8080,
            protocol: "tcp".to_owned(),
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        };
        let conf = |mappings| Conf { mappings, snat: true, masquerade_all: false, conditions: Vec::new() };
        let result = serde_json::json!({"interfaces": [{"name": "br"}, {"name": "eth0", "sandbox": "/n"}], "ips": [
            {"address": "10.9.9.9/24", "interface": 0}, {"address": "10.1.2.3/24", "interface": 1},
            {"address": "10.1.2.4/24"}, {"address": "fd00::3/64"}]});
        let result = CniResult::from_value(&result, russet_cni_spec::Version::V1_0_0).unwrap();
        let owner = Owner::new(&"n/abc/eth0".parse().unwrap());
        let all = [None, Some("192.0.2.1"), Some("0.0.0.0"), Some("2001:db8::1")].map(mapping);
        let publication = conf(all.to_vec()).publication(owner, &result);
        let shown: Vec<String> =
            publication.rules.iter().map(|rule| format!("{:?} {}", rule.host_ip, rule.to)).collect();
        assert_eq!(
            shown,
            [
                "None 10.1.2.3",
                "None fd00::3",
                "Some(192.0.2.1) 10.1.2.3",
                "None 10.1.2.3",
                "Some(2001:db8::1) fd00::3"
            ]
        );
        assert_eq!(publication.hairpin.len(), 2);
    }
}
