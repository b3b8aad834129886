//! What can be cited: the sections, numbered items and series of each page of docs/spec, and the headings of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Letters that begin the numbers of a series, such as TV7.
pub const SERIES: [&str; 6] = ["TV", "T", "K", "P", "B", "G"];
/// Where calico-cni.md numbers its oracles, in one sequence.
const ORACLES: [&str; 2] = ["5.1", "5.2"];

/// The pages by name.
pub struct Library {
    pages: BTreeMap<String, Page>,
    /// Headings of ARCHITECTURE.md.
    pub headings: BTreeSet<String>,
    /// How many invariants ARCHITECTURE.md lists.
    pub invariants: u32,
}

/// A page of docs/spec.
#[derive(Default)]
pub struct Page {
    sections: BTreeSet<String>,
    /// Numbers of list items and of table rows, with their section.
    items: BTreeSet<(String, u32)>,
    /// Numbers of a series that begin a heading or a table row.
    series: BTreeSet<(String, u32)>,
}

impl Library {
    pub fn read(root: &Path) -> Self {
        let mut pages = BTreeMap::new();
        for entry in fs::read_dir(root.join("docs/spec")).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let stem = name.strip_suffix(".md").filter(|stem| *stem != "README");
            if let Some(stem) = stem {
                pages.insert(stem.to_owned(), Page::parse(&fs::read_to_string(entry.path()).unwrap()));
            }
        }
        Self::new(pages, &fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap())
    }

    pub fn new(pages: BTreeMap<String, Page>, architecture: &str) -> Self {
        let heading = |line: &str| Some(line.strip_prefix('#')?.trim_start_matches('#').trim().to_owned());
        let headings = architecture.lines().filter_map(heading).collect();
        let section = architecture.split("\n## Invariants\n").nth(1).unwrap_or_default();
        let section = section.split("\n## ").next().unwrap_or_default();
        let invariants = section.lines().filter_map(item).max().unwrap_or_default();
        Self { pages, headings, invariants }
    }

    pub fn page(&self, name: &str) -> Option<&Page> {
        self.pages.get(name)
    }

    /// The name of the only page that has this series.
    pub fn only_page_of(&self, series: &str) -> Option<&str> {
        let mut with = self.pages.iter().filter(|(_, page)| page.has_series(series));
        let (name, _) = with.next()?;
        with.next().is_none().then_some(name)
    }
}

impl Page {
    pub fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut section = String::new();
        for line in text.lines() {
            let heading = line.starts_with('#').then(|| line.trim_start_matches('#').trim());
            let heading = heading.map(|title| title.strip_prefix("Appendix ").unwrap_or(title));
            let first = heading.or_else(|| line.strip_prefix("| ")).map(word);
            if let Some(number) = heading.and_then(section_number) {
                section = number;
                page.sections.insert(section.clone());
            } else if let Some((series, number)) = first.and_then(split_series) {
                page.series.insert((series.to_owned(), number));
            } else if let Some(number) = item(line).or_else(|| first.and_then(|word| word.parse().ok())) {
                page.items.insert((section.clone(), number));
            }
        }
        page
    }

    pub fn has_section(&self, number: &str) -> bool {
        self.sections.contains(number)
    }

    pub fn has_item(&self, section: &str, number: u32) -> bool {
        self.items.contains(&(section.to_owned(), number))
    }

    /// Whether anything in this section is numbered.
    pub fn has_items(&self, section: &str) -> bool {
        self.items.iter().any(|(of, _)| of == section)
    }

    pub fn has_oracle(&self, number: u32) -> bool {
        ORACLES.iter().any(|section| self.has_item(section, number))
    }

    pub fn has(&self, series: &str, number: u32) -> bool {
        self.series.contains(&(series.to_owned(), number))
    }

    pub fn has_series(&self, series: &str) -> bool {
        self.series.iter().any(|(of, _)| of == series)
    }
}

fn word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// The number that a heading begins with: `4.2`, `3.1a`, `4P.1`, `A.5`, `A`.
fn section_number(title: &str) -> Option<String> {
    let number = word(title).trim_end_matches('.');
    is_section(number).then(|| number.to_owned())
}

/// `4`, `4.2`, `3.1a`, `4P.1` or, in an appendix, `A.5`.
pub fn is_section(number: &str) -> bool {
    let appendix = number == "A" || number.starts_with("A.");
    let digits = |part: &str| {
        let digits = part.trim_end_matches(['a', 'b', 'c', 'P']);
        let number = digits.parse::<u8>().is_ok_and(|number| number.to_string() == digits);
        part.len() - digits.len() <= 1 && number
    };
    number.split('.').skip(usize::from(appendix)).all(digits)
}

/// The number of an item of a list: `7. text`.
fn item(line: &str) -> Option<u32> {
    line.split_once(". ")?.0.parse().ok()
}

/// `TV7` as series and number; `T07` has the same number as `T7`.
pub fn split_series(word: &str) -> Option<(&str, u32)> {
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let (series, number) = word.split_at(digits);
    let known = SERIES.contains(&series) && number.len() <= 3;
    Some((series, number.parse().ok().filter(|_| known)?))
}

#[test]
fn a_page_has_sections_items_and_series() {
    let page = Page::parse(
        "# Title\n## 3. Three\n1. one\n2. two\n### 3.1a Keys\n| T01 | x |\n| K01 F=S | x |\n### TV7 Name [X]\n## Appendix A. More\n### A.2 Two\n| 5 | x |\n",
    );
    assert!(["3", "3.1a", "A", "A.2"].iter().all(|number| page.has_section(number)));
    assert!(page.has_item("3", 2) && page.has_item("A.2", 5) && !page.has_item("3.1a", 1));
    assert!(page.has("T", 1) && page.has("K", 1) && page.has("TV", 7) && !page.has("TV", 1));
}
