//! `cargo xtask install`: from a clone to an installed node. Builds both executables as users get them and has the one install itself and the other.

use std::ffi::OsString;
use std::process::Command;

use crate::error::Result;
use crate::{dist, process};

/// What `russet install` gets.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    arguments: Vec<OsString>,
}

/// Builds and installs.
pub fn run(options: &Options) -> Result<bool> {
    let russet = dist::build()?.join("russet");
    process::run(Command::new(russet).arg("install").args(&options.arguments)).map(|_| true)
}

// === impl Options ===

impl Options {
    /// Takes everything that follows `install` as it is.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        Ok(Self { arguments: parser.raw_args()?.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_handed_on_as_they_are() {
        let arguments = ["--plugins", "russet,portmap", "--start"];
        let options = Options::parse(lexopt::Parser::from_args(arguments)).unwrap();
        assert_eq!(options.arguments, arguments.map(OsString::from));
    }
}
