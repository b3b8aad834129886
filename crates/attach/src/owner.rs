//! The owner of a link, in its alias: `russet:<network>/<container>/<ifname>`.
//!
//! A link without such an alias is foreign and is never changed. The kernel stores 255 bytes of an
//! alias; if the three names do not fit, `russet:<network>/~<sha1>` replaces container and
//! interface and can still be compared.

use std::fmt;
use std::str::FromStr;

use russet_addr::{ContainerId, EndpointId, NetworkName};

use crate::naming;

/// The owner of a link: the endpoint that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(Name);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Whole(EndpointId),
    /// sha1(`container/ifname`) in lower-case hexadecimal digits; container IDs cannot begin with `~`.
    Hashed(NetworkName, String),
}

/// An alias of another format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no alias of ours: russet:<network>/<container>/<interface> is wanted")]
pub struct OwnerError;

/// Prefix of Russet's aliases.
const PREFIX: &str = "russet:";
/// The longest alias that the kernel stores: `IFALIASZ` less its NUL.
const ALIAS_MAX_BYTES: usize = 255;
/// The longest label: an nf_tables element's comment has 127 bytes, and a blank and an IPv6 address follow it.
const LABEL_MAX_BYTES: usize = 127 - 40;
/// Digits of a hash that replaces a network's name in a label.
const NETWORK_DIGEST_CHARS: usize = 32;
/// Digits of a SHA-1.
const DIGEST_CHARS: usize = 40;

// === impl Owner ===

impl Owner {
    /// The owner of an endpoint's links.
    pub fn new(id: &EndpointId) -> Self {
        let whole = Self(Name::Whole(id.clone()));
        if whole.to_string().len() <= ALIAS_MAX_BYTES {
            return whole;
        }
        Self(Name::Hashed(id.network.clone(), digest(id)))
    }

    /// The network.
    pub const fn network(&self) -> &NetworkName {
        match &self.0 {
            Name::Whole(id) => &id.network,
            Name::Hashed(network, _) => network,
        }
    }

    /// The endpoint, unless its names were too long for an alias.
    pub const fn id(&self) -> Option<&EndpointId> {
        match &self.0 {
            Name::Whole(id) => Some(id),
            Name::Hashed(..) => None,
        }
    }

    /// The container, unless the names were too long for an alias.
    pub fn container(&self) -> Option<&ContainerId> {
        self.id().map(|id| &id.container)
    }

    /// Whether the link is this interface of this container, on any network.
    pub fn is(&self, other: &EndpointId) -> bool {
        match &self.0 {
            Name::Whole(id) => id.same_interface(other),
            Name::Hashed(_, hash) => *hash == digest(other),
        }
    }

    /// The owner in at most 87 bytes: the beginning of an nf_tables element's comment. Longer names
    /// are replaced by hashes.
    pub fn label(&self) -> String {
        let whole = self.to_string();
        if whole.len() <= LABEL_MAX_BYTES && whole.starts_with(&Self::network_label(self.network())) {
            return whole;
        }
        format!("{}~{}", Self::network_label(self.network()), self.digest())
    }

    /// Prefix of the labels of a network's owners; with a hash if the name alone would be too long.
    pub fn network_label(network: &NetworkName) -> String {
        let hash = naming::hex(network.as_str().as_bytes(), NETWORK_DIGEST_CHARS);
        let named = format!("{PREFIX}{network}/");
        if named.len() + 1 + DIGEST_CHARS <= LABEL_MAX_BYTES { named } else { format!("{PREFIX}~{hash}/") }
    }

    /// Whether both are the same interface of the same container, on any network.
    pub fn same_interface(&self, other: &Owner) -> bool {
        match (self.id(), other.id()) {
            (Some(one), Some(two)) => one.same_interface(two),
            _ => self.digest() == other.digest(),
        }
    }

    fn digest(&self) -> String {
        match &self.0 {
            Name::Whole(id) => digest(id),
            Name::Hashed(_, hash) => hash.clone(),
        }
    }
}

fn digest(EndpointId { container, ifname, .. }: &EndpointId) -> String {
    naming::hex(format!("{container}/{ifname}").as_bytes(), DIGEST_CHARS)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Name::Whole(id) => write!(f, "{PREFIX}{id}"),
            Name::Hashed(network, hash) => write!(f, "{PREFIX}{network}/~{hash}"),
        }
    }
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(alias: &str) -> Result<Self, OwnerError> {
        let names = alias.strip_prefix(PREFIX).ok_or(OwnerError)?;
        let (network, rest) = names.split_once('/').ok_or(OwnerError)?;
        let Some(hash) = rest.strip_prefix('~') else {
            return names.parse().map(|id| Self(Name::Whole(id))).map_err(|_| OwnerError);
        };
        let network = network.parse().map_err(|_| OwnerError)?;
        let good = hash.len() == DIGEST_CHARS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        good.then(|| Self(Name::Hashed(network, hash.to_owned()))).ok_or(OwnerError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(network: &str, container: &str, ifname: &str) -> Owner {
        Owner::new(&format!("{network}/{container}/{ifname}").parse().unwrap())
    }

    #[test]
    fn an_alias_survives_a_round_trip() {
        let owner = owner("net1", "abc123", "eth0");
        assert_eq!(owner.to_string(), "russet:net1/abc123/eth0");
        assert_eq!(owner.to_string().parse(), Ok(owner.clone()));
        assert_eq!(owner.container().map(ContainerId::as_str), Some("abc123"));
        assert!(owner.is(&"net2/abc123/eth0".parse().unwrap()));
        assert!(!owner.is(&"net1/abc123/eth1".parse().unwrap()));
    }

    #[test]
    fn names_too_long_for_the_kernel_are_hashed_and_still_compare() {
        let (container, ifname) = ("c".repeat(200), "eth0");
        let long = owner(&"n".repeat(200), &container, ifname);
        assert!(long.to_string().len() <= ALIAS_MAX_BYTES, "{long}");
        let read: Owner = long.to_string().parse().unwrap();
        assert_eq!(read, long);
        assert_eq!(read.container(), None);
        assert!(read.is(&format!("n/{container}/eth0").parse().unwrap()));
        assert!(!read.is(&format!("n/{}/eth0", "c".repeat(199)).parse().unwrap()));
        assert!(read.same_interface(&owner("n", &container, ifname)));
        assert!(owner("n", &container, ifname).same_interface(&read));
    }

    #[test]
    fn labels_are_short_and_begin_with_their_networks() {
        for (network, container) in
            [("n", "c".repeat(64)), ("n", "c".repeat(200)), (&*"n".repeat(200), "c".repeat(64))]
        {
            let (one, two) = (owner(network, &container, "eth0"), owner(network, &container, "eth1"));
            assert!(one.label().len() <= LABEL_MAX_BYTES, "{}", one.label());
            assert!(one.label().starts_with(&Owner::network_label(one.network())), "{}", one.label());
            assert_ne!(one.label(), two.label());
        }
        assert_eq!(owner("n", "abc", "eth0").label(), "russet:n/abc/eth0");
    }

    #[test]
    fn foreign_aliases_are_refused() {
        for alias in [
            "",
            "russet:",
            "russet:net1",
            "russet:net1/abc123",
            "russet:net1/abc123/",
            "russet:net1/abc123/eth0/more",
            "russet:net1//eth0",
            "russet:/abc123/eth0",
            "russet:net1/abc123/eth0 ",
            "russet:net1/.abc/eth0",
            "russet:net1/~abc",
            "russet:net1/~0123456789ABCDEF0123456789abcdef01234567",
            "Russet:net1/abc123/eth0",
            "uplink of rack 3",
        ] {
            assert_eq!(alias.parse::<Owner>(), Err(OwnerError), "{alias}");
        }
    }
}
