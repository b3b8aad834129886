//! A secret that is never printed in logs, errors or debug output; for passwords and tokens.

use std::fmt;

/// Text that is not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Secret ===

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the request that carries it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = Secret::new("opensesame");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)).matches("opensesame").count(), 0);
        assert_eq!(secret.reveal(), "opensesame");
    }
}
