//! Completions and manual pages, as shells and the manual's formatter read them.

use std::path::{Path, PathBuf};
use std::process::Command;

use russet_testkit::{require_tool, run, spawn_with_input};
use tempfile::TempDir;

const RUSSET: &str = env!("CARGO_BIN_EXE_russet");
/// For other programs, and for packaging.
const HIDDEN: [&str; 2] = ["demo-forward", "man"];

/// The script for a shell, in a file.
fn script(shell: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("_russet");
    std::fs::write(&path, run(RUSSET, &["completions", shell])).unwrap();
    (directory, path)
}

/// The verbs that `russet --help` lists.
fn verbs() -> Vec<String> {
    let help = run(RUSSET, &["--help"]);
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // The continuation of a long description has more blanks.
    let lines = listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

/// What bash offers for the last of these words.
fn offered_by_bash(script: &Path, words: &str) -> Vec<String> {
    let program = format!(
        "set -e\nsource {}\ncomplete -p russet >&2\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _russet russet \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        script.display()
    );
    let mut bash = Command::new(require_tool("bash"));
    let done = spawn_with_input(bash.arg("--norc"), &program).wait_with_output().unwrap();
    let (offered, notes) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert!(done.status.success() && notes.contains("-F _russet"), "{notes}");
    offered.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "tool: bash"]
fn bash_completes_verbs_options_and_values() {
    let (_directory, script) = script("bash");
    assert_eq!(offered_by_bash(&script, "russet ver"), ["version"]);
    let all = offered_by_bash(&script, "russet ''");
    for verb in verbs() {
        assert!(all.contains(&verb), "{verb} is not among {all:?}");
    }
    assert!(HIDDEN.iter().all(|verb| !all.contains(&(*verb).to_owned())), "{all:?}");
    assert_eq!(offered_by_bash(&script, "russet agent --node-n"), ["--node-name"]);
    assert_eq!(offered_by_bash(&script, "russet ipam show --show-bl"), ["--show-blocks"]);
    assert_eq!(offered_by_bash(&script, "russet version --output j"), ["json"]);
}

#[test]
#[ignore = "tool: fish"]
fn fish_completes_verbs_options_and_values() {
    let (directory, script) = script("fish");
    let offered = |words: &str| {
        let mut fish = Command::new(require_tool("fish"));
        // It writes its own files below the home directory.
        fish.env("HOME", directory.path()).env("XDG_CONFIG_HOME", directory.path());
        fish.arg("--no-config").arg("-c").arg(format!("source {}; complete -C {words:?}", script.display()));
        let done = fish.output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        // A description follows each word.
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(offered("russet ver"), ["version"]);
    assert_eq!(offered("russet agent --node-n"), ["--node-name"]);
    assert_eq!(offered("russet version --output j"), ["json"]);
}

#[test]
#[ignore = "tool: zsh"]
fn zsh_loads_its_script_as_a_function_for_the_command() {
    let (directory, script) = script("zsh");
    run("zsh", &["-n", script.to_str().unwrap()]);
    let program = format!(
        "fpath=({directory} $fpath); autoload -Uz compinit; compinit -D -u; autoload +X _russet; \
         print -r -- $_comps[russet]; functions _russet",
        directory = directory.path().display()
    );
    let shown = run("zsh", &["-f", "-c", &program]);
    assert!(shown.starts_with("_russet\n"), "{shown}");
    assert!(shown.contains("--node-name") && shown.contains("show-blocks"), "{shown}");
}

#[test]
#[ignore = "tool: groff"]
fn every_verb_has_a_manual_page_that_the_formatter_accepts() {
    let directory = tempfile::tempdir().unwrap();
    run(RUSSET, &["man", "--out", directory.path().to_str().unwrap()]);
    let path = |verb: &str| directory.path().join(format!("russet-{verb}.1"));
    for verb in verbs() {
        // `russet help` is clap's own.
        assert!(path(&verb).is_file() || verb == "help", "{verb} has no page");
    }
    assert!(HIDDEN.iter().all(|verb| !path(verb).exists()));
    let mut pages = 0;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let page = entry.unwrap().path();
        let mut groff = Command::new(require_tool("groff"));
        let done = groff.args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(&page).output().unwrap();
        let warnings = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        let text = String::from_utf8_lossy(&done.stdout);
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(text.lines().any(|line| line == heading), "{}: {heading}:\n{text}", page.display());
        }
        pages += 1;
    }
    assert!(pages > verbs().len(), "verbs of verbs have pages, too: {pages}");
}
