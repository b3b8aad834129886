//! Runs the commands of pages in the order in which a reader pastes them. Each page has a machine
//! of its own: namespaces in which its changes of `/etc`, `/opt`, `/usr/local`, `/var/lib` and
//! `/run` are seen by nothing else, and a script in the place of `systemctl`.
//!
//! All blocks ```` ```sh ```` run. One that must not is marked ```` ```sh no-run ````, with the
//! reason in a comment before it.

use std::process::{Command, Stdio};

use russet_testkit::pages::{Page, repository};
use russet_testkit::{require_tool, run};

use crate::node::Answer;

/// Marks the reason before a block that is not run.
const REASON: &str = "<!-- no-run: ";
/// What other pages have the reader do first, as install.md says it.
const INSTALL: &str = "target/dist/russet install --start\n";

/// The commands of a page in order, each block after a line that names its place.
fn commands(page: &Page) -> String {
    let mut script = String::new();
    for block in &page.blocks {
        let place = format!("{}:{}", page.path, block.line);
        match block.info.as_str() {
            "sh" => script.push_str(&format!(": {place}\n{}", block.text)),
            "sh no-run" => assert!(block.before.starts_with(REASON), "{place}: {REASON}... is missing"),
            info => assert!(!info.starts_with("sh"), "{place}: {info:?}"),
        }
    }
    assert!(!script.is_empty(), "{} has no command", page.path);
    script
}

/// Runs `before` and the commands of a page. Each command must succeed.
#[track_caller]
fn paste(path: &str, before: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (machine, executable) = (directory.path().join("machine"), directory.path().join("russet"));
    std::fs::create_dir(&machine).unwrap();
    // It is copied several times, and the debug information is most of it.
    run("strip", &["-o", executable.to_str().unwrap(), env!("CARGO_BIN_EXE_russet")]);
    let script = directory.path().join("commands");
    std::fs::write(&script, format!("{before}{}", commands(&Page::read(path)))).unwrap();
    let mut command = Command::new(require_tool("unshare"));
    command.args(["--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "sh"]);
    command.arg(repository().join("crates/russet/tests/whole/docs/machine.sh"));
    command.arg(&machine).arg(&executable).arg(repository().canonicalize().unwrap()).arg(&script);
    let answer: Answer = command.env_clear().stdin(Stdio::null()).output().unwrap().into();
    assert_eq!(answer.status, 0, "{path}:\n{}\n{}", answer.stdout, answer.stderr);
}

#[test]
#[ignore = "root: makes namespaces and mounts; tool: unshare, strip, python3, ip, curl"]
fn the_commands_of_the_installation_work() {
    paste("docs/install.md", "");
}

#[test]
#[ignore = "root: makes namespaces and mounts; tool: unshare, strip, python3, ip"]
fn the_commands_about_addresses_work() {
    paste("docs/ipam.md", INSTALL);
}

#[test]
#[ignore = "root: makes namespaces and mounts; tool: unshare, strip, ip"]
fn the_commands_of_cni_by_hand_work() {
    paste("docs/cni.md", "");
}

#[test]
#[ignore = "root: makes namespaces and mounts; tool: unshare, strip, python3, ip"]
fn the_commands_about_sandboxes_work() {
    paste("docs/sandbox.md", INSTALL);
}

#[test]
#[ignore = "root: makes namespaces and mounts; tool: unshare, strip, python3, ip, curl, jq, nft"]
fn the_commands_of_pages_that_need_an_installed_node_and_a_pod_work() {
    let pod = "ip netns add blue\nrusset cni add russet /run/netns/blue\n";
    let before = format!("{INSTALL}{pod}");
    for page in ["isolation", "journal", "limits", "plugins", "resources"] {
        paste(&format!("docs/{page}.md"), &before);
    }
}
