//! The programs that tests start are those that `cargo xtask test` installs: one that only the machine of its author has fails elsewhere.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::collections::BTreeSet;
use std::fs;

mod files;

use files::{collect, root};

/// The functions of `testkit::tool`, and whether their first argument is a whole command and not a program's name only.
const CALLS: [(&str, bool); 5] =
    [("require_tool(", false), ("run(", false), ("sh(", true), ("succeeds(", true), ("sh_json(", true)];
/// What comes with a package whose other program `packages.rs` names.
const ALSO_INSTALLED: [&str; 11] = [
    "bridge",
    "ctr",
    "ip6tables-legacy",
    "iptables",
    "iptables-legacy",
    "iptables-legacy-save",
    "iptables-nft-save",
    "iptables-restore",
    "rpm2cpio",
    "sysctl",
    "tc",
];
/// What Debian's essential packages have, and the compiler's own.
const PRESENT: [&str; 17] = [
    "bash",
    "cp",
    "env",
    "find",
    "flock",
    "gzip",
    "install",
    "mount",
    "nsenter",
    "rustc",
    "script",
    "sh",
    "sha256sum",
    "tar",
    "truncate",
    "umount",
    "unshare",
];
/// Arguments of other functions of these names, and a name in the tests of `testkit::tool` itself.
const NOT_PROGRAMS: [&str; 7] = ["-n", "addr", "apply", "delete", "link", "netns", "no-such-tool"];

/// The names with which calls in a Rust file begin, as literals or formats.
fn tools(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (call, is_command) in CALLS {
        for (at, _) in text.match_indices(call) {
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.')) {
                continue;
            }
            let argument = text[at + call.len()..].trim_start();
            let argument = argument.strip_prefix("&format!(").map_or(argument, str::trim_start);
            let Some(literal) = argument.strip_prefix('"') else { continue };
            let end = literal.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
            let end = end.filter(|end| *end > 0 && (is_command || literal[*end..].starts_with('"')));
            found.extend(end.map(|end| literal[..end].to_owned()));
        }
    }
    found
}

/// The programs by which `packages.rs` tells that a package is there.
fn installed() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("xtask/src/packages.rs")).unwrap();
    text.split("proof: \"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

#[test]
fn tests_start_programs_that_are_installed_for_them() {
    let installed = installed();
    let mut used = BTreeSet::new();
    for path in collect(&root().join("crates"), &["rs"], &["target"]) {
        let text = fs::read_to_string(&path).unwrap();
        if text.contains("testkit") || path.starts_with(root().join("crates/testkit")) {
            used.extend(tools(&text));
        }
    }
    assert!(used.contains("conntrack") && used.contains("nft"), "the search finds nothing: {used:?}");
    let known: Vec<&str> = ALSO_INSTALLED.into_iter().chain(PRESENT).chain(NOT_PROGRAMS).collect();
    used.retain(|tool| !installed.contains(tool) && !known.contains(&tool.as_str()));
    let missing = used;
    assert!(missing.is_empty(), "no package in xtask/src/packages.rs brings {missing:?}");
}
