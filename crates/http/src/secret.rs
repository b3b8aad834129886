//! A secret that no log, error or debugger line can show. Used for tokens, passwords and private keys.

use std::fmt;

/// Bytes that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret<T = String>(T);

// === impl Secret ===

impl<T> Secret<T> {
    pub fn new(hidden: impl Into<T>) -> Self {
        Self(hidden.into())
    }

    /// The bytes, for the request that carries them.
    pub fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret: Secret = Secret::new("opensesame");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)).matches("opensesame").count(), 0);
        assert_eq!(secret.reveal(), "opensesame");
    }
}
