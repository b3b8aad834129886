//! Names and addresses that are derived from a pod's identity: host ends, MACs, gateways, doomed
//! links.
//!
//! All are pure functions, so that a retried ADD, a DEL without state and a peer compute the same
//! result.

use std::net::{Ipv4Addr, Ipv6Addr};

use russet_addr::{EndpointId, IfName, Mac};
use sha1::{Digest as _, Sha1};

use crate::attachment::{Dialect, PRIMARY_IFNAME, Pod};

/// The IPv4 gateway of pods; the host end answers for it (calico-cni.md section 3.2).
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The IPv6 gateway of pods: the link-local address of [`Mac::GATEWAY`] (calico-cni.md section
/// 3.2).
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// Hexadecimal digits, or characters of a container ID, in the name of a host end: 15 bytes less the prefix.
const SUFFIX_CHARS: usize = 11;

/// Prefix of the names of doomed links (ARCHITECTURE.md, "Names and places").
const DOOMED_PREFIX: &str = "rsx";

/// The name of the host end of `ifname`.
///
/// With a pod it is the dialect's prefix and the first 11 hexadecimal digits of sha1(`namespace.pod`) for `eth0`
/// (calico-cni.md section 3.1: the same on every node and in every sandbox of that pod), and of
/// sha1(`namespace.pod/ifname`) for every other interface. Without a pod, Calico takes the first 11 characters of
/// the container ID whatever the interface; Russet hashes `container/ifname`. The `/` stands in no pod's name, so
/// that pod `web.net1` and interface `net1` of pod `web` differ.
pub fn host_end(dialect: Dialect, id: &EndpointId, pod: Option<&Pod>) -> IfName {
    let EndpointId { container, ifname, .. } = id;
    let suffix: String = match (pod, dialect) {
        (Some(Pod { namespace, name }), _) if ifname.as_str() == PRIMARY_IFNAME => {
            pod_suffix(namespace, name)
        }
        (Some(Pod { namespace, name }), _) => {
            hex(format!("{namespace}.{name}/{ifname}").as_bytes(), SUFFIX_CHARS)
        }
        (None, Dialect::Calico) => container.as_str().chars().take(SUFFIX_CHARS).collect(),
        (None, Dialect::Native) => hex(format!("{container}/{ifname}").as_bytes(), SUFFIX_CHARS),
    };
    known_good(format!("{}{suffix}", prefix(dialect)))
}

/// The name of the host end of a pod's primary interface, without the prefix.
pub fn pod_suffix(namespace: &str, name: &str) -> String {
    hex(format!("{namespace}.{name}").as_bytes(), SUFFIX_CHARS)
}

/// Prefix of the names of host ends.
pub const fn prefix(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Native => "russ",
        Dialect::Calico => "cali",
    }
}

/// The MAC of a pod's end without a configured one: locally administered, and a hash of container
/// and interface, so that a repeated ADD changes no neighbour entry while another sandbox of the
/// same pod gets another MAC.
pub fn pod_mac(EndpointId { container, ifname, .. }: &EndpointId) -> Mac {
    let digest = Sha1::digest(format!("mac:{container}/{ifname}").as_bytes());
    let mut octets = [0; 6];
    octets.copy_from_slice(&digest[..6]);
    octets[0] = octets[0] & 0xfc | 0x02;
    Mac(octets)
}

/// The name of a link that waits for its deletion; the index keeps it unique within a namespace.
pub fn doomed(ifindex: u32) -> IfName {
    known_good(format!("{DOOMED_PREFIX}{ifindex}"))
}

/// Whether [`doomed`] returns `name`.
pub fn is_doomed(name: &str) -> bool {
    let digits = name.strip_prefix(DOOMED_PREFIX).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The first `chars` hexadecimal digits, in lower case, of the SHA-1 of `input`.
pub(crate) fn hex(input: &[u8], chars: usize) -> String {
    let digest = Sha1::digest(input);
    let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 0xf]).take(chars);
    digits.map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0')).collect()
}

/// The names are a prefix with digits, or with a part of a container ID, both at most 15 bytes.
fn known_good(name: String) -> IfName {
    match IfName::new(name) {
        Ok(name) => name,
        Err(error) => unreachable!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(dialect: Dialect, container: &str, ifname: &str, pod: Option<(&str, &str)>) -> String {
        let pod = pod.map(|(namespace, name)| Pod { namespace: namespace.into(), name: name.into() });
        host_end(dialect, &format!("net/{container}/{ifname}").parse().unwrap(), pod.as_ref()).to_string()
    }

    #[test]
    fn host_ends_match_the_vectors_of_calico_cni_3_1() {
        for (namespace, pod, name) in [
            ("default", "simplePod", "calibd5189385c4"),
            ("testNamespace", "podA", "cali850d5c88ce2"),
            ("default", "w0", "cali432851509ae"),
            ("test", "test-pod", "cali998e5f7d75d"),
            ("shop", "web-0", "calia4fc3c48bd8"),
            ("default", "my-pod", "cali5e30f018633"),
        ] {
            assert_eq!(named(Dialect::Calico, "abc123", "eth0", Some((namespace, pod))), name);
            let native = name.replacen("cali", "russ", 1);
            assert_eq!(named(Dialect::Native, "abc123", "eth0", Some((namespace, pod))), native);
        }
        assert_eq!(named(Dialect::Calico, "abc123", "eth0", None), "caliabc123");
        assert_eq!(named(Dialect::Calico, &"f".repeat(64), "eth0", None), "califffffffffff");
    }

    #[test]
    fn each_interface_of_a_pod_has_its_own_host_end() {
        let pod = Some(("shop", "web"));
        let names = [
            named(Dialect::Native, "abc123", "eth0", pod),
            named(Dialect::Native, "abc123", "net1", pod),
            named(Dialect::Native, "abc123", "eth0", Some(("shop", "web.net1"))),
            named(Dialect::Native, "abc123", "eth0", None),
            named(Dialect::Native, "abc123", "net1", None),
        ];
        for (index, name) in names.iter().enumerate() {
            assert!(name.len() == 15 && name.starts_with("russ"), "{name}");
            assert!(!names[..index].contains(name), "{name}");
        }
    }

    #[test]
    fn the_gateway_is_the_link_local_address_of_the_gateways_mac() {
        // calico-cni.md section 3.2
        assert_eq!(Mac::GATEWAY.link_local(), GATEWAY_V6);
    }

    #[test]
    fn macs_are_stable_local_and_differ_by_sandbox_and_interface() {
        // calico-cni.md section 5.1, oracle 48
        let mac =
            |container: &str, ifname: &str| pod_mac(&format!("net/{container}/{ifname}").parse().unwrap());
        assert_eq!(mac("a", "eth0"), mac("a", "eth0"));
        assert_ne!(mac("a", "eth0"), mac("b", "eth0"));
        assert_ne!(mac("a", "eth0"), mac("a", "eth1"));
        for container in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert_eq!(mac(container, "eth0").octets()[0] & 3, 2);
        }
    }

    #[test]
    fn doomed_names_are_recognised_and_others_are_not() {
        assert_eq!(doomed(u32::MAX).as_str(), "rsx4294967295");
        assert!(is_doomed("rsx17"));
        for other in ["rsx", "rsx1a", "russ1", "rs1", "", "xrsx1", "rsx-1"] {
            assert!(!is_doomed(other), "{other}");
        }
    }
}
