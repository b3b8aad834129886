//! The setting of a fast path, of the agent and of flannel's backend `udp`.

use std::fmt;
use std::str::FromStr;

/// Whether BPF programs carry packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FastPathMode {
    #[default]
    Off,
    /// Where the kernel can.
    Auto,
    /// The node is not ready without it.
    Require,
}

/// A text that is no [`FastPathMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid fast path {0:?}: it must be `off`, `auto` or `require`")]
pub struct FastPathModeError(String);

// === impl FastPathMode ===

impl FromStr for FastPathMode {
    type Err = FastPathModeError;

    fn from_str(text: &str) -> Result<Self, FastPathModeError> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            _ => Err(FastPathModeError(text.to_owned())),
        }
    }
}

impl fmt::Display for FastPathMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Require => "require",
        })
    }
}
