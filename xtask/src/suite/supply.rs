//! The layer about dependencies: their sources, refused crates, licences, and known
//! vulnerabilities.
//!
//! Sources and refused crates are read from Cargo.lock here, without any tool. The rest is cargo-deny's: it is not installed by the suite, because building it
//! takes longer than most layers, and its database of advisories has to be fetched; without either the layer says so and skips, which tests/skips.txt lists.

use std::collections::BTreeSet;
use std::process::Command;

use crate::artifacts;
use crate::error::{Error, Result};
use crate::suite::layer::step;
use crate::suite::report::{Skip, Tally};

/// What is missing where cargo-deny is not installed, and where its database cannot be fetched.
const TOOL: &str = "cargo-deny";
const DATABASE: &str = "advisory-db";
/// The only place that dependencies may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// How to install it.
const INSTALL: &str = "cargo install --locked cargo-deny";

/// Runs every check that can be made here.
pub fn run(tally: &mut Tally) {
    match locked_dependencies() {
        Ok(faults) if faults.is_empty() => tally.passed += 1,
        Ok(faults) => tally.failures.extend(faults),
        Err(error) => tally.failures.push(error.to_string()),
    }
    if !succeeds(&mut deny(&["--version"])) {
        println!("cargo-deny is not installed (`{INSTALL}`): licences and advisories are not looked at");
        return skip(tally, TOOL);
    }
    step(&mut deny(&["--offline", "check", "bans", "licenses", "sources"]), tally);
    if succeeds(&mut deny(&["fetch", "db"])) {
        step(&mut deny(&["check", "advisories"]), tally);
    } else {
        println!(
            "the database of advisories cannot be fetched: known faults of dependencies are not looked at"
        );
        skip(tally, DATABASE);
    }
}

fn deny(arguments: &[&str]) -> Command {
    let mut command = artifacts::cargo();
    command.arg("deny").args(arguments);
    command
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn skip(tally: &mut Tally, feature: &str) {
    tally.skipped += 1;
    tally.skips.push(Skip { test: "cargo deny".to_owned(), feature: feature.to_owned() });
}

/// What Cargo.lock holds and deny.toml refuses.
fn locked_dependencies() -> Result<Vec<String>> {
    let read = |name: &str| {
        let path = artifacts::workspace().join(name);
        let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
        text.parse::<toml::Table>().map_err(|error| Error::Found(format!("{}: {error}", path.display())))
    };
    Ok(faults(&read("Cargo.lock")?, &read("deny.toml")?))
}

fn faults(lock: &toml::Table, deny: &toml::Table) -> Vec<String> {
    let list =
        |value: Option<&toml::Value>| value.and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let text =
        |value: &toml::Value, key: &str| value.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let refused = list(deny.get("bans").and_then(|bans| bans.get("deny")));
    let refused: BTreeSet<String> = refused.iter().filter_map(|entry| text(entry, "crate")).collect();
    let mut faults = Vec::new();
    for package in list(lock.get("package")) {
        let name = text(&package, "name").unwrap_or_default();
        if refused.contains(&name) {
            faults.push(format!("{name} is in Cargo.lock, and deny.toml refuses it"));
        }
        if let Some(source) = text(&package, "source").filter(|source| source != REGISTRY) {
            faults.push(format!("{name} comes from {source}; only crates.io is allowed"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_crate_and_a_foreign_source_are_faults() {
        let lock = r#"
            [[package]]
            name = "fine"
            source = "registry+https://github.com/rust-lang/crates.io-index"
            [[package]]
            name = "ours"
            [[package]]
            name = "openssl-sys"
            source = "registry+https://github.com/rust-lang/crates.io-index"
            [[package]]
            name = "forked"
            source = "git+https://example.org/forked"
        "#;
        let deny = "[bans]\ndeny = [{ crate = 'openssl-sys', reason = 'x' }]";
        let found = faults(&lock.parse().unwrap(), &deny.parse().unwrap());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("openssl-sys is in Cargo.lock"), "{found:?}");
        assert!(found[1].contains("git+https://example.org/forked"), "{found:?}");
    }

    #[test]
    fn our_own_dependencies_are_none_of_those() {
        assert_eq!(locked_dependencies().unwrap(), Vec::<String>::new());
    }
}
