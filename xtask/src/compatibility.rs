//! docs/compatibility.md: which of the behaviours that other programs define Russet has, with the
//! names of the tests that prove them.
//!
//! `tests/compatibility/*.toml` lists the behaviours by number; a test carries the number in its name, or in the comment before or at its beginning
//! where the list says so. A case of `cases! { ... }`, which runs over the test server and over real ones, is a test, too. `cargo xtask gen` writes the page. xtask's own test includes this file and fails while the page is not what would be written, or
//! a list and the tests contradict each other.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where the lists are.
const LISTS: &str = "tests/compatibility";
/// What is generated.
pub const PAGE: &str = "docs/compatibility.md";
/// Where tests are.
const CRATES: &str = "crates";
/// Tests of a model of Calico say nothing about us.
const MODEL: &str = "crates/sim/";

/// One source of expectations.
struct List {
    title: String,
    source: String,
    /// How its tests name a number.
    by: By,
    /// What the page puts before a number.
    label: String,
    /// With how many digits at least it shows one.
    digits: usize,
    rows: Vec<Row>,
}

/// How a test names the expectations that it proves.
enum By {
    /// Its name begins with this, before each number: `tv19_and_tv20_...`.
    Prefix(String),
    /// It begins with a comment that has this section of this document, and numbers: `// one.md section 6.2 items 7 and 9`.
    Citation { document: String, section: String },
    /// It begins with a comment that has numbers of this series of this document: `// one.md K07 and K10 to K12`.
    Series { document: String, letters: String },
}

/// One expectation.
struct Row {
    number: u32,
    title: String,
    /// What the specification says: the input, and what must come of it.
    expected: String,
    verdict: Verdict,
}

/// What a row says of itself; its tests say the rest.
#[derive(Clone, PartialEq)]
enum Verdict {
    /// Nothing: its tests say all.
    Silent,
    /// There are no tests yet; once there are, the same as silent.
    Open,
    Partly(String),
    Differs(String),
    OutOfScope(String),
    /// Not done, and the lack of it is a weakness that an attacker can use.
    Gap(String),
}

/// A test function.
struct Test {
    /// The directory of its crate.
    package: String,
    name: String,
    /// What an ignored test needs.
    needs: Option<String>,
    /// The comment before it, and the one that its body begins with.
    comment: String,
}

/// How many rows came to what.
#[derive(Default)]
struct Counts {
    passes: usize,
    partly: usize,
    differs: usize,
    out_of_scope: usize,
    open: usize,
    gaps: usize,
}

/// The page as it should be; or everything that is wrong with the lists and the tests' names.
pub fn page(root: &Path) -> Result<String, Vec<String>> {
    let lists = lists(root).map_err(|problem| vec![problem])?;
    let tests = tests(root).map_err(|error| vec![format!("read {CRATES}: {error}")])?;
    let problems: Vec<String> = lists.iter().flat_map(|list| list.problems(&tests)).collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut page = String::from(
        "# Compatibility\n\n\
         After this page you know which behaviour of other programs Russet has, and where it differs. Written by `cargo xtask gen` from `tests/compatibility/*.toml` and the tests that name\n\
         a number or cite it; do not edit. *passes*: these tests prove it, and are run by `cargo xtask test`. *differs*: on purpose, for the reason given; tests named beside it prove\n\
         what is done instead. The numbers are those of the pages of [spec](spec/README.md) that are named; *expected* is what the specification says of the original programs\n\
         (input -> outcome), so that a reader can compare it with the tests.\n\n\
         | | passes | partly | differs | out of scope | not yet | security gap |\n|---|---|---|---|---|---|---|\n",
    );
    for list in &lists {
        let Counts { passes, partly, differs, out_of_scope, open, gaps } = list.counts(&tests);
        let _ = writeln!(
            page,
            "| {} | {passes} | {partly} | {differs} | {out_of_scope} | {open} | {gaps} |",
            list.title
        );
    }
    for list in &lists {
        list.write(&tests, &mut page);
    }
    Ok(page)
}

fn lists(root: &Path) -> Result<Vec<List>, String> {
    let listed = fs::read_dir(root.join(LISTS)).map_err(|error| format!("read {LISTS}: {error}"))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path.display();
            let text = fs::read_to_string(path).map_err(|error| format!("read {name}: {error}"))?;
            List::parse(&text).map_err(|problem| format!("{name}: {problem}"))
        })
        .collect()
}

fn tests(root: &Path) -> io::Result<Vec<Test>> {
    let mut files = Vec::new();
    collect(&root.join(CRATES), &mut files)?;
    files.sort();
    let mut tests = Vec::new();
    for path in files {
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if !relative.starts_with(MODEL) {
            let package = relative.split('/').nth(1).unwrap_or_default();
            tests.extend(tests_in(package, &fs::read_to_string(&path)?));
        }
    }
    Ok(tests)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The test functions of a file, as rustfmt leaves them: attributes stand on the lines before.
fn tests_in(package: &str, text: &str) -> Vec<Test> {
    let cases = cases_in(text);
    let mut found = Vec::new();
    let (mut attributes, mut comment) = (Vec::new(), String::new());
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("//") {
            comment.push_str(line.trim_start_matches('/'));
            continue;
        }
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        if let Some(name) = function(line)
            && let Some(needs) = needs(&attributes, cases.contains(&name))
        {
            while let Some(text) = lines.next_if(|line| line.starts_with("//")) {
                comment.push_str(text.trim_start_matches('/'));
            }
            found.push(Test {
                package: package.to_owned(),
                name: name.to_owned(),
                needs,
                comment: comment.clone(),
            });
        }
        attributes.clear();
        comment.clear();
    }
    found
}

/// The names in `cases! { ... }`.
fn cases_in(text: &str) -> Vec<&str> {
    let blocks = text.split("cases! {").skip(1).filter_map(|rest| rest.split('}').next());
    blocks.flat_map(str::split_whitespace).collect()
}

/// What a function needs if its attributes, or a list of cases, make it a test.
fn needs(attributes: &[&str], is_case: bool) -> Option<Option<String>> {
    if is_case {
        return Some(Some("test server and real ones".to_owned()));
    }
    attributes.iter().any(|line| line.contains("test]") || line.contains("test(")).then(|| {
        let ignored = attributes.iter().find_map(|line| line.strip_prefix("#[ignore"))?;
        let reason = ignored.trim_start_matches([' ', '=', '"']);
        Some(reason.split([':', '"', ']']).next().unwrap_or_default().to_owned())
    })
}

fn function(line: &str) -> Option<&str> {
    let head = line.strip_prefix("pub ").unwrap_or(line);
    let head = head.strip_prefix("async ").unwrap_or(head).strip_prefix("fn ")?;
    head.split(['(', '<']).next()
}

/// The numbers in a test's name: `tv19_and_tv20_...`, `oracle_42_and_44_...`. None for a test of something else.
fn numbers(prefix: &str, name: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut rest = name.strip_prefix(prefix);
    while let Some(text) = rest {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let after = &text[digits..];
        let Ok(number) = text[..digits].parse() else { break };
        if !(after.is_empty() || after.starts_with('_')) {
            break;
        }
        numbers.push(number);
        rest = after.strip_prefix("_and_").map(|next| next.strip_prefix(prefix).unwrap_or(next));
    }
    numbers
}

/// The numbers that a comment cites: `one.md sections 5 and 6.2 items 2 to 4, 7 and 9: why; two.md section 6.2` has five of one.md's section 6.2.
fn cited(document: &str, section: &str, comment: &str) -> Vec<u32> {
    let plain = |word: &str| word.trim_end_matches([',', ';', ':', '.']).to_owned();
    let mut words = comment.split_whitespace().peekable();
    let mut numbers: Vec<u32> = Vec::new();
    let mut within = false;
    while let Some(word) = words.next() {
        let word = plain(word);
        if word.ends_with(".md") {
            within = word == document;
        }
        let counts = |word: &&str| ["item", "items", "row", "rows"].contains(word);
        if !(within && word == section && words.next_if(counts).is_some()) {
            continue;
        }
        let mut range = false;
        while let Some(word) = words.peek().copied() {
            match (word, plain(word).parse()) {
                (_, Ok(number)) if range => {
                    let begin = numbers.last().map_or(number, |last| last + 1);
                    numbers.extend(begin..=number);
                }
                (_, Ok(number)) => numbers.push(number),
                ("and" | "to", _) => {}
                _ => break,
            }
            range = word == "to";
            words.next();
            if word.ends_with([';', ':', '.']) {
                break;
            }
        }
    }
    numbers
}

/// The numbers of a series that a comment cites: `one.md K07, section 2; two.md K9` has 7 of one.md.
fn cited_series(document: &str, letters: &str, comment: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = Vec::new();
    let (mut within, mut range) = (false, false);
    for word in comment.split_whitespace() {
        let plain = word.trim_end_matches([',', ';', ':', '.', ')']).trim_start_matches('(');
        if plain.ends_with(".md") {
            within = plain == document;
        } else if let Some(number) = plain.strip_prefix(letters).and_then(|digits| digits.parse().ok())
            && within
        {
            let begin = numbers.last().filter(|_| range).map_or(number, |last| last + 1);
            numbers.extend(begin..=number);
        }
        range = plain == "to";
    }
    numbers
}

// === impl By ===

impl By {
    fn parse(table: &mut toml::Table, source: &str) -> Result<Self, String> {
        let document = source.split(' ').next().unwrap_or_default().to_owned();
        let ways = ["prefix", "cites", "series"].map(|name| table.remove(name));
        match ways {
            [Some(toml::Value::String(prefix)), None, None] => Ok(Self::Prefix(prefix)),
            [None, Some(toml::Value::String(section)), None] => Ok(Self::Citation { document, section }),
            [None, None, Some(toml::Value::String(letters))] => Ok(Self::Series { document, letters }),
            _ => Err("it has not exactly one of prefix, cites and series, or no text in it".to_owned()),
        }
    }

    /// The numbers that a test names.
    fn numbers(&self, test: &Test) -> Vec<u32> {
        match self {
            Self::Prefix(prefix) => numbers(prefix, &test.name),
            Self::Citation { document, section } => cited(document, section, &test.comment),
            Self::Series { document, letters } => cited_series(document, letters, &test.comment),
        }
    }
}

// === impl List ===

impl List {
    fn parse(text: &str) -> Result<Self, String> {
        let mut table: toml::Table = text.parse().map_err(|error| format!("{error}"))?;
        let mut take = |name: &str| match table.remove(name) {
            Some(toml::Value::String(text)) => Ok(text),
            _ => Err(format!("{name} is missing or no text")),
        };
        let (title, source, label) = (take("title")?, take("source")?, take("label")?);
        let by = By::parse(&mut table, &source)?;
        let digits = table.remove("digits").map_or(Some(1), |digits| digits.as_integer());
        let digits = digits.and_then(|digits| usize::try_from(digits).ok()).ok_or("digits is no number")?;
        let Some(toml::Value::Array(rows)) = table.remove("row") else {
            return Err("it has no [[row]]".to_owned());
        };
        let rows = rows.into_iter().map(Row::parse).collect::<Result<Vec<Row>, String>>()?;
        if let Some(pair) = rows.windows(2).find(|pair| pair[0].number >= pair[1].number) {
            return Err(format!("row {} stands before row {}", pair[0].number, pair[1].number));
        }
        match table.keys().next() {
            Some(unknown) => Err(format!("unknown member {unknown}")),
            None => Ok(Self { title, source, by, label, digits, rows }),
        }
    }

    /// The number as its source writes it.
    fn name_of(&self, row: &Row) -> String {
        format!("{}{:0digits$}", self.label, row.number, digits = self.digits)
    }

    fn tests_of<'a>(&self, number: u32, tests: &'a [Test]) -> Vec<&'a Test> {
        tests.iter().filter(|test| self.by.numbers(test).contains(&number)).collect()
    }

    fn problems(&self, tests: &[Test]) -> Vec<String> {
        let mut problems = Vec::new();
        for test in tests {
            for number in self.by.numbers(test) {
                if self.rows.iter().all(|row| row.number != number) {
                    problems.push(format!(
                        "{} names number {number}, which {} does not have",
                        test.name, self.source
                    ));
                }
            }
        }
        for row in &self.rows {
            let tested = !self.tests_of(row.number, tests).is_empty();
            let problem = match (&row.verdict, tested) {
                (Verdict::Silent, false) => "has no test and says no reason",
                (Verdict::Partly(_), false) => "is partly done, and has no test",
                (Verdict::OutOfScope(_), true) => "is out of scope, and has a test",
                (Verdict::Gap(_), true) => "is a security gap, and has a test",
                _ => continue,
            };
            problems.push(format!("{} {} {problem}", self.source, self.name_of(row)));
        }
        problems
    }

    fn verdict<'a>(&self, row: &'a Row, tests: &[Test]) -> &'a Verdict {
        match &row.verdict {
            Verdict::Open if !self.tests_of(row.number, tests).is_empty() => &Verdict::Silent,
            verdict => verdict,
        }
    }

    fn counts(&self, tests: &[Test]) -> Counts {
        let mut counts = Counts::default();
        for row in &self.rows {
            let count = match self.verdict(row, tests) {
                Verdict::Silent => &mut counts.passes,
                Verdict::Partly(_) => &mut counts.partly,
                Verdict::Differs(_) => &mut counts.differs,
                Verdict::OutOfScope(_) => &mut counts.out_of_scope,
                Verdict::Open => &mut counts.open,
                Verdict::Gap(_) => &mut counts.gaps,
            };
            *count += 1;
        }
        counts
    }

    /// The page of docs/spec that `source` is in.
    fn document(&self) -> &str {
        self.source.split(' ').next().unwrap_or_default()
    }

    fn write(&self, tests: &[Test], page: &mut String) {
        let _ = writeln!(
            page,
            "\n## {}\n\n[{}](spec/{}).\n\n| | what | expected | | tests |\n|---|---|---|---|---|",
            self.title,
            self.source,
            self.document()
        );
        for row in &self.rows {
            let names: Vec<String> =
                self.tests_of(row.number, tests).into_iter().map(ToString::to_string).collect();
            let cells = [
                self.name_of(row),
                row.title.clone(),
                row.expected.clone(),
                self.verdict(row, tests).to_string(),
                names.join(", "),
            ];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
    }
}

// === impl Row ===

impl Row {
    fn parse(value: toml::Value) -> Result<Self, String> {
        let toml::Value::Table(mut table) = value else { return Err("a row is no table".to_owned()) };
        let number = table.remove("number").and_then(|number| number.as_integer());
        let number = number.and_then(|number| u32::try_from(number).ok()).ok_or("a row has no number")?;
        let mut text = |name: &str| match table.remove(name) {
            Some(toml::Value::String(text)) if !text.trim().is_empty() => Ok(text),
            _ => Err(format!("row {number} has no {name}")),
        };
        let (title, expected) = (text("title")?, text("expected")?);
        let mut members = table.into_iter();
        let verdict = match members.next() {
            None => Verdict::Silent,
            Some((name, value)) => verdict(&name, value)
                .ok_or_else(|| format!("row {number}: {name} is unknown or says nothing"))?,
        };
        match members.next() {
            Some((name, _)) => Err(format!("row {number}: {name} is one verdict too many")),
            None => Ok(Self { number, title, expected, verdict }),
        }
    }
}

fn verdict(name: &str, value: toml::Value) -> Option<Verdict> {
    let of: fn(String) -> Verdict = match (name, &value) {
        ("open", toml::Value::Boolean(true)) => return Some(Verdict::Open),
        ("partly", _) => Verdict::Partly,
        ("differs", _) => Verdict::Differs,
        ("out_of_scope", _) => Verdict::OutOfScope,
        ("gap", _) => Verdict::Gap,
        _ => return None,
    };
    value.as_str().filter(|why| !why.trim().is_empty()).map(|why| of(why.to_owned()))
}

// === impl Verdict ===

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Silent => f.write_str("passes"),
            Self::Open => f.write_str("not yet"),
            Self::Partly(missing) => write!(f, "partly; not yet: {missing}"),
            Self::Differs(why) => write!(f, "differs: {why}"),
            Self::OutOfScope(why) => write!(f, "out of scope: {why}"),
            Self::Gap(harm) => write!(f, "**security gap**: {harm}"),
        }
    }
}

// === impl Test ===

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let needs = self.needs.as_ref().map(|needs| format!(", {needs}")).unwrap_or_default();
        write!(f, "`{}` ({}{needs})", self.name, self.package)
    }
}
