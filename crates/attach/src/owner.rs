//! The owner of a link, in its alias: `russet:<network>/<container>/<ifname>`.
//!
//! A link without such an alias is foreign and is never changed. The kernel stores 255 bytes of an
//! alias; if the three names do not fit, `russet:<network>/~<sha1>` replaces container and
//! interface and can still be compared.

use std::fmt;
use std::str::FromStr;

use russet_addr::{ContainerId, IfName, NetworkName};

use crate::naming;

/// The owner of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    network: NetworkName,
    holder: Holder,
}

/// The interface of a container that a link belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holder {
    Named {
        container: ContainerId,
        ifname: IfName,
    },
    /// sha1(`container/ifname`) in lower-case hexadecimal digits; container IDs cannot begin with `~`.
    Hashed(String),
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
    /// The owner of interface `ifname` of `container` on `network`.
    pub fn new(network: &NetworkName, container: &ContainerId, ifname: &IfName) -> Self {
        let holder = Holder::Named { container: container.clone(), ifname: ifname.clone() };
        let named = Self { network: network.clone(), holder };
        if named.to_string().len() <= ALIAS_MAX_BYTES {
            return named;
        }
        Self { network: network.clone(), holder: Holder::Hashed(digest(container, ifname)) }
    }

    /// The network.
    pub const fn network(&self) -> &NetworkName {
        &self.network
    }

    /// The container, unless the names were too long for an alias.
    pub const fn container(&self) -> Option<&ContainerId> {
        match &self.holder {
            Holder::Named { container, .. } => Some(container),
            Holder::Hashed(_) => None,
        }
    }

    /// The interface inside the container, unless the names were too long for an alias.
    pub const fn ifname(&self) -> Option<&IfName> {
        match &self.holder {
            Holder::Named { ifname, .. } => Some(ifname),
            Holder::Hashed(_) => None,
        }
    }

    /// Whether the link is interface `ifname` of `container`, on any network.
    pub fn is(&self, container: &ContainerId, ifname: &IfName) -> bool {
        match &self.holder {
            Holder::Named { container: c, ifname: i } => c == container && i == ifname,
            Holder::Hashed(hash) => *hash == digest(container, ifname),
        }
    }

    /// The owner in at most 87 bytes: the beginning of an nf_tables element's comment. Longer names
    /// are replaced by hashes.
    pub fn label(&self) -> String {
        let whole = self.to_string();
        if whole.len() <= LABEL_MAX_BYTES && whole.starts_with(&Self::network_label(&self.network)) {
            return whole;
        }
        let holder = match &self.holder {
            Holder::Named { container, ifname } => digest(container, ifname),
            Holder::Hashed(hash) => hash.clone(),
        };
        format!("{}~{holder}", Self::network_label(&self.network))
    }

    /// Prefix of the labels of a network's owners; with a hash if the name alone would be too long.
    pub fn network_label(network: &NetworkName) -> String {
        let hash = naming::hex(network.as_str().as_bytes(), NETWORK_DIGEST_CHARS);
        let named = format!("{PREFIX}{network}/");
        if named.len() + 1 + DIGEST_CHARS <= LABEL_MAX_BYTES { named } else { format!("{PREFIX}~{hash}/") }
    }

    /// Whether both are the same interface of the same container, on any network.
    pub fn same_interface(&self, other: &Owner) -> bool {
        self.holder == other.holder
            || match (&self.holder, &other.holder) {
                (Holder::Named { container, ifname }, _) => other.is(container, ifname),
                (_, Holder::Named { container, ifname }) => self.is(container, ifname),
                (Holder::Hashed(_), Holder::Hashed(_)) => false,
            }
    }
}

fn digest(container: &ContainerId, ifname: &IfName) -> String {
    naming::hex(format!("{container}/{ifname}").as_bytes(), DIGEST_CHARS)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = &self.network;
        match &self.holder {
            Holder::Named { container, ifname } => write!(f, "{PREFIX}{network}/{container}/{ifname}"),
            Holder::Hashed(hash) => write!(f, "{PREFIX}{network}/~{hash}"),
        }
    }
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(alias: &str) -> Result<Self, OwnerError> {
        let names = alias.strip_prefix(PREFIX).ok_or(OwnerError)?;
        let (network, rest) = names.split_once('/').ok_or(OwnerError)?;
        let network = network.parse().map_err(|_| OwnerError)?;
        if let Some(hash) = rest.strip_prefix('~') {
            let good =
                hash.len() == DIGEST_CHARS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            return good.then(|| Self { network, holder: Holder::Hashed(hash.to_owned()) }).ok_or(OwnerError);
        }
        let (container, ifname) = rest.split_once('/').ok_or(OwnerError)?;
        let container = container.parse().map_err(|_| OwnerError)?;
        let ifname = ifname.parse().map_err(|_| OwnerError)?;
        Ok(Self { network, holder: Holder::Named { container, ifname } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(network: &str, container: &str, ifname: &str) -> Owner {
        Owner::new(&network.parse().unwrap(), &container.parse().unwrap(), &ifname.parse().unwrap())
    }

    #[test]
    fn an_alias_survives_a_round_trip() {
        let owner = owner("net1", "abc123", "eth0");
        assert_eq!(owner.to_string(), "russet:net1/abc123/eth0");
        assert_eq!(owner.to_string().parse(), Ok(owner.clone()));
        assert_eq!(owner.container().map(ContainerId::as_str), Some("abc123"));
        assert!(owner.is(&"abc123".parse().unwrap(), &"eth0".parse().unwrap()));
        assert!(!owner.is(&"abc123".parse().unwrap(), &"eth1".parse().unwrap()));
    }

    #[test]
    fn names_too_long_for_the_kernel_are_hashed_and_still_compare() {
        let (container, ifname) = ("c".repeat(200), "eth0");
        let long = owner(&"n".repeat(200), &container, ifname);
        assert!(long.to_string().len() <= ALIAS_MAX_BYTES, "{long}");
        let read: Owner = long.to_string().parse().unwrap();
        assert_eq!(read, long);
        assert_eq!(read.container(), None);
        assert!(read.is(&container.parse().unwrap(), &ifname.parse().unwrap()));
        assert!(!read.is(&"c".repeat(199).parse().unwrap(), &ifname.parse().unwrap()));
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
