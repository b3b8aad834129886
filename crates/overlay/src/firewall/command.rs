//! Runs the iptables programs: finds the installed ones, detects their abilities, and executes them
//! without a shell. `xtables` writes their input.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use russet_addr::Family;
use russet_linux::execute::{ExecuteError, Execution};

use super::FirewallError;

/// One family's programs of one flavour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) family: Family,
    /// Part of the program's name before its verb: `-legacy` or empty.
    flavour: &'static str,
    pub(crate) abilities: Abilities,
}

/// The abilities of a version of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Abilities {
    /// Whether its rules are in nf_tables.
    pub(crate) nft: bool,
    /// `iptables-restore --wait` and `MASQUERADE --random-fully`, both since 1.6.2.
    pub(crate) modern: bool,
}

/// The size of a table of 100,000 rules; a larger one could not be processed within the deadline
/// either.
const OUTPUT_MAX_BYTES: usize = 64 << 20;
/// Limit of one execution, including the wait for the lock of iptables.
const DEADLINE: Duration = Duration::from_secs(15);
/// Wait for the xtables lock, which kube-proxy may hold for seconds.
const WAIT: &str = "--wait=5";
/// The tables of legacy iptables in the thread's network namespace, one per line.
const LEGACY_TABLES: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// Whether legacy iptables has a table. Reading this does not make the kernel create the table.
pub(crate) fn legacy_has(family: Family, table: &str) -> bool {
    let path = match family {
        Family::V4 => LEGACY_TABLES[0],
        Family::V6 => LEGACY_TABLES[1],
    };
    // The file is missing where the kernel has no legacy iptables or its module is not loaded.
    std::fs::read_to_string(path).unwrap_or_default().lines().any(|name| name == table)
}

// === impl Programs ===

impl Programs {
    /// Finds the programs named `iptables`, of whichever flavour.
    pub(crate) fn installed(family: Family) -> Result<Self, FirewallError> {
        Self::find(family, "")
    }

    pub(crate) fn legacy(family: Family) -> Result<Self, FirewallError> {
        let installed = Self::installed(family);
        match installed {
            Ok(programs) if !programs.abilities.nft => Ok(programs),
            _ => Self::find(family, "-legacy"),
        }
    }

    fn find(family: Family, flavour: &'static str) -> Result<Self, FirewallError> {
        let mut programs = Self { family, flavour, abilities: Abilities::default() };
        let printed = programs.run("", &["--version"], &[])?;
        programs.abilities = Abilities::parse(&String::from_utf8_lossy(&printed));
        Ok(programs)
    }

    /// Prints all rules of one of the tables, or of all tables when `tables` has several.
    pub(crate) fn save<'a>(&self, tables: impl Iterator<Item = &'a str>) -> Result<String, FirewallError> {
        let tables: Vec<&str> = tables.collect();
        let printed = match tables.as_slice() {
            [table] => self.run("-save", &["-t", table], &[])?,
            _ => self.run("-save", &[], &[])?,
        };
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }

    /// Applies changes, all or none in each table; rules that they do not name stay.
    pub(crate) fn restore(&self, changes: &str) -> Result<(), FirewallError> {
        let arguments: &[&str] = if self.abilities.modern { &["--noflush", WAIT] } else { &["--noflush"] };
        self.run("-restore", arguments, changes.as_bytes()).map(|_| ())
    }

    /// The name of one of the programs, such as "ip6tables-legacy-save".
    pub(crate) fn name(&self, verb: &str) -> String {
        let base = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{base}{}{verb}", self.flavour)
    }

    fn run(&self, verb: &str, arguments: &[&str], stdin: &[u8]) -> Result<Vec<u8>, FirewallError> {
        let program = self.name(verb);
        // The output is parsed, so it must not be localised.
        let env = [("LC_ALL", OsString::from("C"))];
        let execution = Execution { binary: Path::new(&program), env: &env, stdin, deadline: DEADLINE };
        let finished = match execution.run_with(arguments, OUTPUT_MAX_BYTES) {
            Ok(finished) => finished,
            Err(ExecuteError::Spawn { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Err(FirewallError::Missing { program });
            }
            Err(source) => return Err(FirewallError::Execute { program, source }),
        };
        if finished.status.success() {
            return Ok(finished.stdout);
        }
        let said = String::from_utf8_lossy(&finished.stderr);
        let said = said.trim().chars().take(SAID_MAX_CHARS).collect::<String>().escape_debug().to_string();
        Err(FirewallError::Program { program, status: finished.status, said })
    }
}

/// Length to which a failed program's error output is cut.
const SAID_MAX_CHARS: usize = 400;

// === impl Abilities ===

impl Abilities {
    /// Reads `iptables v1.8.9 (nf_tables)`. Before 1.8 there was one flavour and nothing in brackets.
    fn parse(version: &str) -> Self {
        let number = version.split_once(" v").map_or("", |(_, number)| number);
        let numbers: Vec<u32> = number
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()
            .unwrap_or_default()
            .split('.')
            .filter_map(|number| number.parse().ok())
            .collect();
        Self { nft: version.contains("(nf_tables)"), modern: numbers.as_slice() >= [1, 6, 2].as_slice() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_says_what_the_programs_can() {
        for (text, nft, modern) in [
            ("iptables v1.8.9 (nf_tables)\n", true, true),
            ("ip6tables v1.8.10 (legacy)\n", false, true),
            ("iptables v1.6.2\n", false, true),
            ("iptables v1.6.1\n", false, false),
            ("iptables v1.4.21", false, false),
            ("", false, false),
        ] {
            assert_eq!(Abilities::parse(text), Abilities { nft, modern }, "{text}");
        }
    }

    #[test]
    fn a_program_that_is_not_installed_is_named() {
        let error = Programs::find(Family::V6, "-nowhere").unwrap_err().to_string();
        assert!(error.contains("ip6tables-nowhere") && error.contains("not installed"), "{error}");
    }
}
