//! Words that Rust files, pages, units and alert rules do not use, because the field has a precise term for what they say.
//!
//! Only whole words count: `told` is found, `untold` and `GC_PATIENCE` are not. Legitimate occurrences, such as test
//! data and the texts of other programs, are listed with a reason in tests/words-allowed.txt. docs/spec is not read.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

mod files;

use files::{collect, root};

/// A refused word, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("nobody", "name the subject: no process, no node, no pod"),
    ("somebody", "another process, another program, a user"),
    ("whoever", "the caller, the process that, each node that"),
    ("patience", "timeout or deadline"),
    ("told", "notified, reported, logged, returned"),
    ("haste", "priority"),
    ("stranger", "foreign, unknown, untrusted"),
    ("mend", "repair"),
    ("mended", "repaired"),
];
/// Files that are read, by the end of their names.
const KINDS: [&str; 4] = ["rs", "md", "yaml", "service"];
/// Directories that are not read.
const NOT_OURS: [&str; 5] = ["target", ".git", "generated", "vendor", "docs/spec"];
/// This file names the words.
const OWN: &str = "xtask/tests/words.rs";
/// The list of allowed occurrences.
const ALLOWED: &str = "tests/words-allowed.txt";

/// The refused words in `text`, with the numbers of their lines.
fn refused_words(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            let refused = WORDS.iter().find(|(refused, _)| word.eq_ignore_ascii_case(refused));
            found.extend(refused.map(|(refused, _)| (at + 1, *refused)));
        }
    }
    found
}

fn instead_of(word: &str) -> &'static str {
    WORDS.iter().find(|(refused, _)| *refused == word).map_or("", |(_, instead)| *instead)
}

/// Path and word to reason. Lines are `path: word: reason`; `#` begins a comment.
fn parse_allowed(text: &str) -> BTreeMap<(String, String), String> {
    let mut allowed = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<&str> = line.splitn(3, ": ").collect();
        assert!(parts.len() == 3, "{ALLOWED}: write `path: word: reason` instead of {line:?}");
        allowed.insert((parts[0].to_owned(), parts[1].to_owned()), parts[2].to_owned());
    }
    allowed
}

#[test]
fn refused_words_are_only_where_the_list_allows_them() {
    let allowed = parse_allowed(&fs::read_to_string(root().join(ALLOWED)).unwrap());
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for file in collect(root(), &KINDS, &NOT_OURS) {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if path == OWN {
            continue;
        }
        for (line, word) in refused_words(&fs::read_to_string(&file).unwrap()) {
            let occurrence = (path.clone(), word.to_owned());
            if allowed.contains_key(&occurrence) {
                used.insert(occurrence);
            } else {
                wrong.push(format!("{path}:{line}: \"{word}\": write {}", instead_of(word)));
            }
        }
    }
    for occurrence in allowed.keys() {
        if !used.contains(occurrence) {
            wrong.push(format!("{ALLOWED}: {} has no \"{}\": remove the line", occurrence.0, occurrence.1));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn only_whole_words_are_refused() {
    let text = "untold GC_PATIENCE told_all\n// Nobody's turn\n\"mended\"\n";
    assert_eq!(refused_words(text), [(2, "nobody"), (3, "mended")]);
}

#[test]
fn an_allowed_occurrence_has_a_reason() {
    let allowed = parse_allowed("# why\n\na.rs: told: test data: see b.rs\n");
    let reason = allowed.get(&("a.rs".to_owned(), "told".to_owned())).map(String::as_str);
    assert_eq!(reason, Some("test data: see b.rs"));
}
