//! Reads citations in a piece of text.

use crate::pages::{Library, Page, SERIES, is_section, split_series};

/// Documents that are not in the repository.
const ELSEWHERE: [&str; 5] = ["DESIGN", "DESIGN.md", "REVIEW.md", "STYLE.md", "USERS.md"];

/// Reads words one after another, and remembers what a citation may rely on.
struct Scan<'a> {
    library: &'a Library,
    words: Vec<&'a str>,
    at: usize,
    page: Option<(&'a str, &'a Page)>,
    /// The last section that was cited of `page`.
    section: Option<&'a str>,
    /// The text is part of a page, or of a list of what it says.
    in_page: bool,
    problems: Vec<String>,
}

/// What is wrong with the citations in `text`. `own` is the page that sections belong to where no page is named.
pub fn problems(library: &Library, own: Option<&str>, text: &str) -> Vec<String> {
    let words = text
        .split(|c: char| c.is_whitespace() || matches!(c, '(' | '[' | ']' | '|'))
        .filter(|word| !word.is_empty());
    let page = own.and_then(|name| library.page(name).map(|page| (name, page)));
    let mut scan = Scan {
        library,
        words: words.collect(),
        at: 0,
        page,
        section: None,
        in_page: own.is_some(),
        problems: Vec::new(),
    };
    while scan.at < scan.words.len() {
        scan.word();
    }
    let mut problems = scan.problems;
    problems.extend(architecture(library, text));
    problems
}

impl<'a> Scan<'a> {
    fn word(&mut self) {
        let word = bare(self.words[self.at]);
        self.at += 1;
        if let Some((name, page)) = self.named_page(word) {
            (self.page, self.section) = (Some((name, page)), None);
            if self.next().is_some_and(|next| next.as_bytes()[0].is_ascii_digit() && is_section(next)) {
                self.problems.push(format!("write `{name}.md section {}`", self.next().unwrap_or_default()));
            }
        } else if self.cites_unknown_page(word) {
            self.problems.push(format!("docs/spec has no page {word}"));
        } else if ELSEWHERE.contains(&word) {
            self.problems.push(format!("{word} is not in the repository"));
        } else {
            match word.to_ascii_lowercase().as_str() {
                "section" | "sections" | "appendix" if !self.is_of_a_standard() => self.sections(word),
                "item" | "items" | "step" | "steps" | "experiment" | "experiments" => self.items(word),
                "oracle" | "oracles" => self.oracles(),
                "issue" | "issues" => self.issue(),
                _ => self.series(word),
            }
        }
    }

    /// The page that `flannel.md`, `docs/spec/flannel.md` or a link to it names.
    fn named_page(&self, word: &'a str) -> Option<(&'a str, &'a Page)> {
        let file = word.rsplit('/').next().unwrap_or(word);
        let name = file.split("'s").next().unwrap_or(file).strip_suffix(".md")?;
        self.library.page(name).map(|page| (name, page))
    }

    /// `flanel.md section 3`: another document, or a spelling mistake.
    fn cites_unknown_page(&self, word: &str) -> bool {
        let cites = |next: &str| matches!(next, "section" | "sections" | "appendix" | "oracle" | "oracles");
        word.ends_with(".md") && !ELSEWHERE.contains(&word) && self.next().is_some_and(cites)
    }

    fn next(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|word| bare(word)).filter(|word| !word.is_empty())
    }

    /// `RFC 7348 section 5`, `CNI specification 1.1.0, section 2`.
    fn is_of_a_standard(&self) -> bool {
        let before = self.words[..self.at - 1].iter().rev().take(3);
        before.into_iter().any(|word| *word == "RFC" || *word == "specification" || bare(word) == "CNI")
    }

    /// The numbers after a word: `2`, `2 and 3`, `2, 3 to 5`.
    fn numbers(&mut self, is_number: impl Fn(&str) -> bool) -> Vec<&'a str> {
        let mut numbers = Vec::new();
        while let Some(word) = self.words.get(self.at) {
            let number = bare(word);
            let joins = matches!(number, "and" | "to" | "or") && !numbers.is_empty();
            let next = self.words.get(self.at + usize::from(joins)).map(|word| bare(word));
            let Some(next) = next.filter(|next| is_number(next)) else { break };
            self.at += 1 + usize::from(joins);
            numbers.push(next);
            let ends = !self.words[self.at - 1].ends_with(',') && !self.words[self.at - 1].ends_with(next);
            if ends {
                break;
            }
        }
        numbers
    }

    fn sections(&mut self, word: &str) {
        let numbers = self.numbers(is_section);
        let Some((name, page)) = self.page else {
            if let Some(number) = numbers.first() {
                self.problems.push(format!("{word} {number} of which page?"));
            }
            return;
        };
        for number in numbers {
            self.section = Some(number);
            if !page.has_section(number) {
                self.problems.push(format!("{name}.md has no section {number}"));
            }
        }
    }

    /// Items, steps and experiments are numbered within a section.
    fn items(&mut self, word: &str) {
        let numbers = self.numbers(|number| leading(number).is_some());
        let (Some((name, page)), Some(section)) = (self.page, self.section) else { return };
        for number in numbers.into_iter().filter_map(leading) {
            if page.has_items(section) && !page.has_item(section, number) {
                self.problems.push(format!("{name}.md section {section} has no {word} {number}"));
            }
        }
    }

    fn oracles(&mut self) {
        for number in self.numbers(|number| leading(number).is_some()).into_iter().filter_map(leading) {
            match self.page {
                None => self.problems.push(format!("write `calico-cni.md oracle {number}`")),
                Some((_, page)) if page.has_oracle(number) => {}
                Some((name, _)) => self.problems.push(format!("{name}.md has no oracle {number}")),
            }
        }
    }

    /// Issues of other projects are cited as `flannel #123` or `flannel#123`; those of this project are not cited.
    fn issue(&mut self) {
        if let Some(number) = self.next().filter(|next| next.parse::<u32>().is_ok()) {
            self.problems.push(format!("issue {number} of which project? Write `project#{number}`"));
        }
    }

    /// `TV7`, `T33`, `K12`: of the page that was named, or of the only page that has the series.
    fn series(&mut self, word: &str) {
        let Some((series, number)) = split_series(word) else { return };
        debug_assert!(SERIES.contains(&series));
        let named = self.page.filter(|(_, page)| page.has_series(series));
        // In a page that has no such series this may be the name of anything, such as an OpenFlow table.
        let named = named.or_else(|| {
            if self.in_page {
                return None;
            }
            let name = self.library.only_page_of(series)?;
            self.library.page(name).map(|page| (name, page))
        });
        match named {
            Some((_, page)) if page.has(series, number) => {}
            Some((name, _)) => self.problems.push(format!("{name}.md has no {word}")),
            None if series == "K" && !self.in_page => self.problems.push(format!("{word} of which page?")),
            // Names of other things, such as registers.
            None => {}
        }
    }
}

/// A word without the punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '/' | '-' | '#'))
}

/// The number of an item, which may have a letter: `7c`.
fn leading(word: &str) -> Option<u32> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
    (word.len() - digits.len() <= 1).then(|| digits.parse().ok())?
}

/// Headings and invariants of ARCHITECTURE.md: `ARCHITECTURE.md, "The loop"`, `ARCHITECTURE.md, invariants 1 and 2`.
fn architecture(library: &Library, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for after in text.replace("\\\"", "\"").split("ARCHITECTURE.md, ").skip(1) {
        if let Some(heading) = after.strip_prefix('"').and_then(|rest| rest.split('"').next()) {
            if !library.headings.contains(heading) {
                problems.push(format!("ARCHITECTURE.md has no heading \"{heading}\""));
            }
        } else if let Some(rest) = after.trim_start().strip_prefix("invariant") {
            let words = rest.trim_start_matches('s').split_whitespace().map_while(|word| match bare(word) {
                "and" | "to" => Some(None),
                number => Some(Some(number.parse::<u32>().ok()?)),
            });
            let missing = words.flatten().filter(|number| *number == 0 || *number > library.invariants);
            problems.extend(missing.map(|number| format!("ARCHITECTURE.md has no invariant {number}")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn library() -> Library {
        let page =
            "## 3. A\n1. one\n2. two\n### 3.2 B\n### A.1 C\n### TV7 D\n| K5 | x |\n### 5.1 O\n| 47 | x |\n";
        let other = "## 1. A\n| T33 | x |\n| K12 | x |\n";
        let pages = [("calico-ipam", page), ("flannel", other)];
        let pages: BTreeMap<String, Page> =
            pages.iter().map(|(name, text)| ((*name).to_owned(), Page::parse(text))).collect();
        Library::new(pages, "# A\n## The loop\n\n## Invariants\n\n1. One\n2. Two\n")
    }

    #[test]
    fn citations_that_resolve_are_accepted() {
        for text in [
            "calico-ipam.md section 3.2",
            "(calico-ipam.md sections 3, 3.2 and A.1). And section 3 items 1 and 2.",
            "`docs/spec/calico-ipam.md` section 3.2; flannel.md section 1",
            "[calico-ipam.md section 3.2](../spec/calico-ipam.md)",
            "calico-ipam.md section 5.1, oracle 47: why",
            "as TV7 and flannel.md T33, K12",
            "RFC 7348 section 5, CNI specification 1.1.0, section 2, flannel issue #2293",
            "ARCHITECTURE.md, \"The loop\"; ARCHITECTURE.md, invariants 1 and 2",
            "this section, three issues, a step 3 of nothing, f.yaml item 9",
        ] {
            assert_eq!(problems(&library(), None, text), Vec::<String>::new(), "{text}");
        }
        assert_eq!(problems(&library(), Some("flannel"), "section 1, T33"), Vec::<String>::new());
    }

    #[test]
    fn citations_that_point_nowhere_are_named() {
        for (text, problem) in [
            ("calico-ipam.md section 4", "calico-ipam.md has no section 4"),
            ("calico-ipam.md sections 3, 3.9", "calico-ipam.md has no section 3.9"),
            ("calico-ipam.md sections 3 and 4.1.", "calico-ipam.md has no section 4.1"),
            ("calico-ipam.md appendix A.9", "calico-ipam.md has no section A.9"),
            ("calico-ipam.md section 3 item 3", "calico-ipam.md section 3 has no item 3"),
            ("section 3.2", "section 3.2 of which page?"),
            ("calico-ipam.md 3.2", "write `calico-ipam.md section 3.2`"),
            ("oracle 47", "write `calico-cni.md oracle 47`"),
            ("calico-ipam.md oracle 48", "calico-ipam.md has no oracle 48"),
            ("TV8", "calico-ipam.md has no TV8"),
            ("flannel.md T34", "flannel.md has no T34"),
            ("K5", "K5 of which page?"),
            ("flannel.md K5", "flannel.md has no K5"),
            ("flanel.md section 1", "docs/spec has no page flanel.md"),
            ("DESIGN.md section 4", "DESIGN.md is not in the repository"),
            ("issue 7, item 1", "issue 7 of which project? Write `project#7`"),
            ("ARCHITECTURE.md, \"Nothing\"", "ARCHITECTURE.md has no heading \"Nothing\""),
            ("ARCHITECTURE.md, invariant 3", "ARCHITECTURE.md has no invariant 3"),
        ] {
            assert!(problems(&library(), None, text).contains(&problem.to_owned()), "{text}");
        }
    }
}
