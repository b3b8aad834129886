//! Names that become paths, keys, link names and rules.

use std::fmt;
use std::str::FromStr;

/// A name that broke its rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} {}: {rule}", shown(name))]
pub struct NameError {
    /// The kind of name.
    pub kind: &'static str,
    /// The refused name, possibly hostile.
    pub name: String,
    /// The rule that it violates.
    pub rule: &'static str,
}

/// Limit of the part of a refused name that an error repeats.
const SHOWN_MAX_CHARS: usize = 80;

fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(SHOWN_MAX_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_MAX_CHARS).is_some() {
        text.push_str("...");
    }
    format!("\"{text}\"")
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(String);

        impl $type {
            /// Checks `name` and keeps it.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let name = name.into();
                match $check(&name) {
                    Ok(()) => Ok(Self(name)),
                    Err(rule) => Err(NameError { kind: $kind, name, rule }),
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A network interface's name: 1 to 15 bytes (`IFNAMSIZ` less its NUL), cni-runtime.md section 1.10.
    IfName, "interface name", if_name
}
name! {
    /// The runtime's ID of a container or sandbox, cni-runtime.md section 1.10.
    ContainerId, "container ID", cni_name
}
name! {
    /// The name of a CNI network, cni-runtime.md section 1.10.
    NetworkName, "network name", cni_name
}
name! {
    /// A node's name, byte for byte as every peer spells it (calico-ipam.md sections 1.2 and 9).
    NodeName, "node name", node_name
}

// === impl IfName ===

impl IfName {
    /// `lo`, which every namespace has.
    pub fn loopback() -> Self {
        Self("lo".to_owned())
    }
}

/// The kernel refuses longer interface names.
const IF_NAME_MAX_BYTES: usize = 15;
/// No runtime uses more; the limit keeps keys, aliases and file names bounded.
const CNI_NAME_MAX_BYTES: usize = 200;
/// A DNS name's limit, which Kubernetes sets for node names.
const NODE_NAME_MAX_BYTES: usize = 253;

fn if_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("it is empty"),
        "." | ".." => Err("it must not be . or .."),
        _ if name.len() > IF_NAME_MAX_BYTES => Err("it is longer than 15 bytes, the kernel's limit"),
        _ if name.chars().any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control()) => {
            Err("it must not hold '/', ':', white space or control characters")
        }
        _ => Ok(()),
    }
}

fn cni_name(name: &str) -> Result<(), &'static str> {
    let first = name.bytes().next().ok_or("it is empty")?;
    if name.len() > CNI_NAME_MAX_BYTES {
        return Err("it is longer than 200 bytes");
    }
    if !first.is_ascii_alphanumeric() {
        return Err("it must begin with a letter or a digit");
    }
    if name.bytes().any(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))) {
        return Err("only letters, digits, '_', '.' and '-' are allowed");
    }
    Ok(())
}

fn node_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("it is empty"),
        "." | ".." => Err("it must not be . or .."),
        _ if name.len() > NODE_NAME_MAX_BYTES => Err("it is longer than 253 bytes"),
        _ if name.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control()) => {
            Err("it must not hold '/', white space or control characters (a trailing newline?)")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_keep_the_kernels_rule() {
        assert!(IfName::new("eth0").is_ok());
        assert_eq!(IfName::new("lo"), Ok(IfName::loopback()));
        assert!(IfName::new("a23456789012345").is_ok());
        for bad in ["", ".", "..", "a234567890123456", "a/b", "a b", "a:b", "a\u{a0}b", "a\nb"] {
            assert!(IfName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn container_ids_cannot_become_paths() {
        assert!(ContainerId::new("f00d_1.a-b").is_ok());
        for bad in ["", ".hidden", "../x", "a/b", "-a", "a b", "a\0", &"a".repeat(201)] {
            assert!(ContainerId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_node_name_with_a_newline_is_refused() {
        assert!(NodeName::new("ip-10-0-0-1.ec2.internal").is_ok());
        assert!(NodeName::new("node-a\n").is_err());
        assert!(NodeName::new("a/b").is_err());
    }

    #[test]
    fn an_error_escapes_what_it_repeats() {
        let error = ContainerId::new("\u{1b}[2J".repeat(100)).unwrap_err().to_string();
        assert!(error.contains("\\u{1b}[2J") && error.ends_with("longer than 200 bytes"), "{error}");
        assert!(error.len() < 800, "{error}");
    }
}
