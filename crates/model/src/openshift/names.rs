//! Names of namespaces and network IDs, parsed once.

use std::fmt;
use std::str::FromStr;

use russet_addr::NameError;

/// The name of a Kubernetes namespace: a DNS label (RFC 1123).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(String);

/// A tenant's number, the VXLAN network identifier of its packets: 24 bits (cni-runtime.md section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetId(u32);

/// A number that is not a network ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid network ID {found}: a number from 0 to {max} is wanted", max = NetId::MAX.0)]
pub struct NetIdError {
    /// The refused number, cut and escaped.
    pub found: String,
}

/// A DNS label's limit.
const NAMESPACE_MAX_BYTES: usize = 63;
/// Limit of the part of a refused number that an error repeats.
const SHOWN_MAX_CHARS: usize = 40;

// === impl Namespace ===

impl Namespace {
    /// Checks `name` and keeps it.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = name.as_bytes();
        let rule = if bytes.is_empty() || bytes.len() > NAMESPACE_MAX_BYTES {
            "it has 1 to 63 bytes"
        } else if !bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-') {
            "it consists of a-z, 0-9 and '-'"
        } else if !bytes.first().is_some_and(alphanumeric) || !bytes.last().is_some_and(alphanumeric) {
            "it begins and ends with a-z or 0-9"
        } else {
            return Ok(Self(name));
        };
        Err(NameError { kind: "namespace", name, rule })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the namespace that is always global.
    pub fn is_default(&self) -> bool {
        self.0 == "default"
    }
}

impl FromStr for Namespace {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl NetId ===

impl NetId {
    /// The global ID: reaches all others, and is reached by all.
    pub const GLOBAL: Self = Self(0);
    /// The lowest that is assigned: 1 to 9 are reserved.
    pub const FIRST: Self = Self(10);
    /// The highest.
    pub const MAX: Self = Self((1 << 24) - 1);

    /// Checks a number.
    pub fn new(number: u32) -> Result<Self, NetIdError> {
        if number <= Self::MAX.0 { Ok(Self(number)) } else { Err(NetIdError { found: number.to_string() }) }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether it is the global ID.
    pub const fn is_global(self) -> bool {
        self.0 == 0
    }

    /// Whether no namespace may have it.
    pub const fn is_reserved(self) -> bool {
        self.0 > 0 && self.0 < Self::FIRST.0
    }
}

impl TryFrom<u64> for NetId {
    type Error = NetIdError;

    fn try_from(number: u64) -> Result<Self, NetIdError> {
        u32::try_from(number).map_err(|_| NetIdError { found: number.to_string() }).and_then(Self::new)
    }
}

impl FromStr for NetId {
    type Err = NetIdError;

    fn from_str(text: &str) -> Result<Self, NetIdError> {
        let shown = || text.chars().take(SHOWN_MAX_CHARS).flat_map(char::escape_debug).collect();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u64>().ok()).flatten();
        number.and_then(|number| Self::try_from(number).ok()).ok_or_else(|| NetIdError { found: shown() })
    }
}

impl fmt::Display for NetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_dns_label() {
        for good in ["default", "a", "kube-system", "0x", &"a".repeat(63)] {
            assert!(Namespace::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "a b", "a\n", "\u{e4}", &"a".repeat(64)] {
            assert!(Namespace::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_network_id_has_24_bits() {
        // cni-runtime.md section 4.4
        assert_eq!(NetId::new(16_777_215), Ok(NetId::MAX));
        assert!(NetId::new(16_777_216).is_err());
        assert!("16777216".parse::<NetId>().is_err() && "+1".parse::<NetId>().is_err());
        assert_eq!("10".parse::<NetId>(), Ok(NetId::FIRST));
        assert!(NetId::new(9).unwrap().is_reserved() && !NetId::GLOBAL.is_reserved());
    }
}
