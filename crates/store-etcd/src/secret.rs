//! A secret that no log, error or debugger line can show. Used for passwords and tokens.

use std::fmt;

/// Text that does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

// === impl Secret ===

impl Secret {
    /// Hides `text` from here on.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the request that carries it.
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
