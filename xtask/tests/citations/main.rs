//! Citations of docs/spec in Rust files, docs and lists of tests: each names a page and a section, number or heading that exists.
//!
//! The forms are described in docs/spec/README.md.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

mod blocks;
#[path = "../files/mod.rs"]
mod files;
mod pages;
mod scan;

use std::fs;

use blocks::blocks;
use files::{collect, root};
use pages::Library;
use scan::problems;

/// Directories whose files may cite, and files in the root.
const PLACES: [&str; 10] = [
    "crates",
    "xtask",
    "docs",
    "fuzz",
    "packaging",
    "tests",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];
/// Files in which citations are looked for.
const KINDS: [&str; 3] = ["rs", "md", "toml"];
/// Generated from tests/compatibility, which is checked; and files that have citations as examples.
const EXCEPT: [&str; 6] = [
    "target",
    "docs/compatibility.md",
    "docs/spec/README.md",
    "xtask/src/compatibility.rs",
    "xtask/tests/compatibility.rs",
    "xtask/tests/citations",
];

#[test]
fn every_citation_resolves() {
    let library = Library::read(root());
    let files = PLACES.iter().flat_map(|place| collect(&root().join(place), &KINDS, &EXCEPT));
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // A page cites its own sections without a name, and a list those of the page that it is named after.
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let own = file.starts_with(root().join("docs/spec"))
            || file.starts_with(root().join("tests/compatibility"));
        let own = Some(stem.as_str()).filter(|stem| own && library.page(stem).is_some());
        let name = file.strip_prefix(root()).unwrap().display();
        for block in blocks(&file, &text) {
            for problem in problems(&library, own, &block.text) {
                wrong.push(format!("{name}:{}: {problem}", block.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{} citations do not resolve:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_row_of_the_compatibility_lists_is_in_its_page() {
    let library = Library::read(root());
    let mut missing = Vec::new();
    for (list, series) in
        [("calico-cni", "oracle"), ("calico-ipam", "TV"), ("flannel", "T"), ("cni-runtime", "6.2")]
    {
        let text = fs::read_to_string(root().join(format!("tests/compatibility/{list}.toml"))).unwrap();
        let page = library.page(list).unwrap();
        for line in text.lines() {
            let Some(number) = line.strip_prefix("number = ").and_then(|number| number.parse().ok()) else {
                continue;
            };
            let known = match series {
                "oracle" => page.has_oracle(number),
                "6.2" => page.has_item("6.2", number),
                _ => page.has(series, number),
            };
            if !known {
                missing.push(format!("{list} {series} {number}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
