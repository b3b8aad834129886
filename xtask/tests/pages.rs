//! Links of pages lead somewhere, and the tests and source files that pages name exist.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

mod files;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use files::{collect, root};

/// Pages whose statements name the tests that show them.
const WITH_TESTS: [&str; 2] = ["docs/failure-modes.md", "docs/security-model.md"];
/// The first words of names that are those of metrics.
const METRICS: [&str; 3] = ["russet_", "flanneld_", "process_"];
/// The name of a test has at least so many words.
const WORDS_MIN: usize = 3;

/// The pages, by their paths in the repository.
fn pages() -> Vec<PathBuf> {
    let in_directory = |name: &str| {
        let entries = fs::read_dir(root().join(name)).unwrap().flatten();
        entries.map(|entry| Path::new(name).join(entry.file_name())).collect::<Vec<_>>()
    };
    let files = ["", "docs", "docs/spec"].map(in_directory).concat();
    files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The text without its fenced blocks.
fn prose(text: &str) -> String {
    let parts = text.split("\n```").enumerate();
    parts.filter(|(number, _)| number % 2 == 0).map(|(_, part)| part).collect::<Vec<_>>().join("\n")
}

/// The targets of links in a page that are not on the web.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    // The specifications have regular expressions that look like links.
    links.filter(|link| !link.contains("://") && !link.contains([' ', '['])).collect()
}

/// The name that a heading has in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The words in backticks that have the form of a test's name.
fn names(text: &str) -> BTreeSet<&str> {
    let code = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.split('_').count() >= WORDS_MIN
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && !METRICS.iter().any(|metric| word.starts_with(metric))
    };
    code.filter(is_name).collect()
}

/// The names of the functions of all crates.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in collect(&root().join("crates"), &["rs"], &["target"]) {
        let text = fs::read_to_string(file).unwrap();
        let names = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        found.extend(names.map(str::to_owned));
    }
    found
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = prose(&fs::read_to_string(root().join(&page)).unwrap());
        for target in targets(&text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => root().join(&page),
                file => root().join(&page).parent().unwrap().join(file),
            };
            let is_there = match heading {
                "" => path.exists(),
                heading => {
                    fs::read_to_string(&path).is_ok_and(|text| anchors(&prose(&text)).contains(heading))
                }
            };
            if !is_there {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_test_that_a_page_names_exists() {
    let functions = functions();
    let mut wrong = Vec::new();
    for page in WITH_TESTS {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let missing = names(&text).into_iter().filter(|name| !functions.contains(*name));
        wrong.extend(missing.map(|name| format!("{page}: no function is called {name}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_source_file_that_a_page_names_exists() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = prose(&fs::read_to_string(root().join(&page)).unwrap());
        let code = text.split('`').skip(1).step_by(2);
        let is_path =
            |word: &&str| word.ends_with(".rs") && (word.contains("/src/") || word.starts_with("crates/"));
        for path in code.filter(is_path).filter(|path| !path.contains(['<', '*', ' '])) {
            if !["", "crates"].iter().any(|dir| root().join(dir).join(path).exists()) {
                wrong.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_package_that_a_command_of_a_page_names_exists() {
    let crates = fs::read_dir(root().join("crates")).unwrap().flatten();
    let manifests = crates.filter_map(|it| fs::read_to_string(it.path().join("Cargo.toml")).ok());
    let name = |text: &str| {
        text.lines().find_map(|line| line.strip_prefix("name = \"")?.split('"').next().map(str::to_owned))
    };
    let packages: BTreeSet<String> = manifests.filter_map(|text| name(&text)).collect();
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let named = text
            .split(" -p ")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| c.is_whitespace() || c == '`').next());
        for package in
            named.filter(|word| word.starts_with("russet")).filter(|word| !packages.contains(*word))
        {
            wrong.push(format!("{}: {package}", page.display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn an_anchor_is_made_as_github_makes_it() {
    assert_eq!(anchor(" ADD and DEL"), "add-and-del");
    assert_eq!(anchor("Addresses: `russet ipam`"), "addresses-russet-ipam");
    assert_eq!(
        anchor("Decisions that differ from Calico, and why"),
        "decisions-that-differ-from-calico-and-why"
    );
}
