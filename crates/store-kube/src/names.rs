//! The names of objects and their labels (kubernetes.md sections 1.3 and 1.5), and the UIDs that
//! Calico shows for them (section 1.4).

use std::collections::BTreeMap;

use ring::digest;
use russet_addr::{BlockCidr, Family};
use sha3::{Digest, Sha3_256};

/// Limit of an object's name.
const NAME_MAX_BYTES: usize = 253;
/// An affinity's name of this length or more ends with a hash.
const HASHED_FROM_BYTES: usize = 253;
/// The hexadecimal digits of that hash.
const HASH_DIGITS: usize = 11;
/// The labels of an affinity, which are the only way to list those of one node.
pub(crate) const HOSTNAME_HASH: &str = "projectcalico.org/hostname-hash";
pub(crate) const AFFINITY_TYPE: &str = "projectcalico.org/affinity-type";
pub(crate) const IP_VERSION: &str = "projectcalico.org/ip-version";

/// The name of a block's object. It cannot be inverted: readers take `spec.cidr`.
pub(crate) fn block_name(block: BlockCidr) -> String {
    block.to_string().replace(['.', ':', '/'], "-")
}

/// The name of the object of an owner's affinity to a block.
pub(crate) fn affinity_name(owner: &str, block: BlockCidr) -> String {
    let escaped = block_name(block);
    let whole = format!("{owner}-{escaped}");
    if whole.len() < HASHED_FROM_BYTES {
        return whole;
    }
    let hash = digest::digest(&digest::SHA256, format!("{owner}+{escaped}").as_bytes());
    let hash: String = hex(hash.as_ref()).chars().take(HASH_DIGITS).collect();
    let room = (HASHED_FROM_BYTES - 1).saturating_sub(escaped.len() + HASH_DIGITS + 2);
    let owner: String = owner.chars().take(room).collect();
    format!("{owner}-{escaped}-{hash}")
}

/// The name of a handle's object, or why the API would refuse it: a network's name with `_`, or one
/// that begins or ends with `-`, fails every ADD.
pub fn handle_name(id: &str) -> Result<String, String> {
    let name = id.to_ascii_lowercase();
    match is_subdomain(&name) {
        true => Ok(name),
        false => Err(format!(
            "handle {id:?} cannot be the name of a Kubernetes object, which has at most {NAME_MAX_BYTES} letters, digits, '-' and '.' and \
             begins and ends with a letter or digit: give the CNI network another name"
        )),
    }
}

/// Whether a text is an RFC 1123 subdomain.
pub(crate) fn is_subdomain(name: &str) -> bool {
    let ends =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let label = |label: &str| {
        let bytes = label.as_bytes();
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    name.len() <= NAME_MAX_BYTES && name.split('.').all(label)
}

/// The labels of an affinity. `kind` is `host` or `virtual`.
pub(crate) fn affinity_labels(kind: &str, owner: &str, family: Family) -> BTreeMap<&'static str, String> {
    let version = match family {
        Family::V4 => "4",
        Family::V6 => "6",
    };
    BTreeMap::from([
        (AFFINITY_TYPE, kind.to_owned()),
        (HOSTNAME_HASH, base32(&Sha3_256::digest(owner.as_bytes()))),
        (IP_VERSION, version.to_owned()),
    ])
}

/// The UID that Calico shows for an object's, and the other way round: the bits of each byte are
/// reversed, except in those with the version and the variant. None if `uid` is no UUID.
pub(crate) fn converted_uid(uid: &str) -> Option<String> {
    let digits: String = uid.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = Vec::with_capacity(16);
    for at in 0..16 {
        bytes.push(u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?);
    }
    for (_, byte) in bytes.iter_mut().enumerate().filter(|(at, _)| !matches!(at, 6 | 8)) {
        *byte = byte.reverse_bits();
    }
    let hex = hex(&bytes);
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    Some(format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)))
}

/// The name on the node of a pod's interface (calico-cni.md section 2.2.2).
pub(crate) fn interface_name(prefix: &str, namespace: &str, pod: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{namespace}.{pod}").as_bytes());
    let digits: String = hex(hash.as_ref()).chars().take(HASH_DIGITS).collect();
    format!("{prefix}{digits}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RFC 4648 section 6, without padding.
fn base32(bytes: &[u8]) -> String {
    let alphabet =
        |index: u32| char::from(if index < 26 { b'A' + index as u8 } else { b'2' + (index - 26) as u8 });
    let mut text = String::new();
    let (mut buffer, mut bits) = (0u32, 0);
    for byte in bytes {
        buffer = buffer << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(alphabet(buffer >> bits & 31));
        }
    }
    if bits > 0 {
        text.push(alphabet(buffer << (5 - bits) & 31));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> BlockCidr {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_blocks_and_affinities_are_calicos() {
        // kubernetes.md K20, section 7.8
        assert_eq!(block_name(block("10.1.0.16/29")), "10-1-0-16-29");
        assert_eq!(block_name(block("fd80:24e2:f998:72d6::/122")), "fd80-24e2-f998-72d6---122");
        let net = block("10.65.174.128/26");
        let name = |host: usize| affinity_name(&"n".repeat(host), net);
        assert_eq!(name(1), "n-10-65-174-128-26");
        assert_eq!(name(200), format!("{}-10-65-174-128-26", "n".repeat(200)));
        assert_eq!(name(235), format!("{}-10-65-174-128-26", "n".repeat(235)));
        assert_eq!(name(236), format!("{}-10-65-174-128-26-257fbbfc442", "n".repeat(223)));
        assert_eq!(name(253), format!("{}-10-65-174-128-26-ad0dc2c538b", "n".repeat(223)));
        assert!([1, 200, 235, 236, 253].iter().all(|host| name(*host).len() < NAME_MAX_BYTES));
    }

    #[test]
    fn the_hash_of_a_hostname_is_calicos() {
        // kubernetes.md section 7.8; calico-ipam.md section 6.3
        let hash = |node| affinity_labels("host", node, Family::V4)[HOSTNAME_HASH].clone();
        assert_eq!(hash("node-a"), "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA");
        assert_eq!(hash("node-b"), "CMAXSCEQN2FQX6QTO46RNUSW2SYX5B4KAJRNYFFLLCEBP5WWXSDA");
        assert_eq!(affinity_labels("host", "node-a", Family::V6)[IP_VERSION], "6");
    }

    #[test]
    fn a_uid_converts_to_calicos_and_back() {
        // kubernetes.md K26, section 7.8
        let (object, calico) =
            ("0568683f-e1fb-4b6e-8f86-72dcafa2da7e", "a01616fc-87df-4b76-8f61-4e3bf5455b7e");
        assert_eq!(converted_uid(object).as_deref(), Some(calico));
        assert_eq!(converted_uid(calico).as_deref(), Some(object));
        for wrong in
            ["", "0568683f", "0568683f-e1fb-4b6e-8f86-72dcafa2da7é", "zz68683f-e1fb-4b6e-8f86-72dcafa2da7e"]
        {
            assert_eq!(converted_uid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_handle_that_the_api_would_refuse_is_refused_with_the_reason() {
        // kubernetes.md K27 and K28
        assert_eq!(handle_name("k8s-pod-network.ABC").as_deref(), Ok("k8s-pod-network.abc"));
        for wrong in ["my_net.aaaa", "-net.aaaa", "net-.aaaa", "net..aaaa", &"x".repeat(254)] {
            assert!(handle_name(wrong).unwrap_err().contains("another name"), "{wrong}");
        }
    }

    #[test]
    fn an_interface_is_named_as_by_calicos_plugin() {
        // calico-cni.md section 2.2.2
        assert_eq!(interface_name("cali", "shop", "web-0"), "calia4fc3c48bd8");
    }
}
