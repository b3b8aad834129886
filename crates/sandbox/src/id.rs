//! The machine-readable name of a sandbox.

use std::fmt;
use std::io;
use std::str::FromStr;

use russet_addr::{ContainerId, NameError};

/// 64 hexadecimal digits in lower case, as in every runtime of Kubernetes; safe as a file's name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

/// The text is not a sandbox's ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid sandbox ID {0:?}: it is 64 hexadecimal digits in lower case")]
pub struct SandboxIdError(String);

const DIGITS: usize = 64;
/// How much of an invalid ID an error repeats.
const SHOWN_CHARS: usize = 80;

// === impl SandboxId ===

impl SandboxId {
    /// A new, unpredictable ID.
    pub fn random() -> io::Result<Self> {
        let bytes: [u8; DIGITS / 2] = russet_linux::random::secret()?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the sandbox for plugins.
    pub fn container_id(&self) -> Result<ContainerId, NameError> {
        ContainerId::new(self.0.clone())
    }
}

impl FromStr for SandboxId {
    type Err = SandboxIdError;

    fn from_str(text: &str) -> Result<Self, SandboxIdError> {
        let good = text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(SandboxIdError(text.chars().take(SHOWN_CHARS).collect()))
        }
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for SandboxId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for SandboxId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_64_digits_and_no_two_are_alike() {
        let (one, two) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.as_str().parse(), Ok(one.clone()));
        assert_eq!(one.container_id().unwrap().as_str(), one.as_str());
    }

    #[test]
    fn what_could_be_a_path_is_refused() {
        let long = "a".repeat(65);
        let upper = "A".repeat(64);
        let path = format!("../{}", "a".repeat(61));
        for text in ["", "abc", &long, &upper, &path] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
