//! docs/compatibility.md is what the tests say.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../src/compatibility.rs"]
mod compatibility;

use compatibility::{PAGE, page};

#[test]
fn the_page_is_what_the_lists_and_the_tests_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let wanted = page(root).unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    let stored = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    assert!(stored == wanted, "{PAGE} is old: run `cargo xtask gen` and commit what it writes");
}

/// A workspace of one list and one file of tests.
fn workspace(name: &str, rows: &str, tests: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("tests/compatibility")).unwrap();
    fs::create_dir_all(root.join("crates/one/src")).unwrap();
    fs::create_dir_all(root.join("crates/sim/src")).unwrap();
    let list = format!("title = \"One\"\nsource = \"one.md\"\nprefix = \"tv\"\nlabel = \"TV\"\n{rows}");
    fs::write(root.join("tests/compatibility/one.toml"), list).unwrap();
    fs::write(root.join("crates/one/src/lib.rs"), tests).unwrap();
    fs::write(root.join("crates/sim/src/lib.rs"), "#[test]\nfn tv77_of_the_model() {}\n").unwrap();
    root
}

fn problems(name: &str, rows: &str, tests: &str) -> String {
    page(&workspace(name, rows, tests)).unwrap_err().join("\n")
}

const ROW: &str = "[[row]]\nnumber = 1\ntitle = \"a | b\"\nexpected = \"e | f\"\n";
const TEST: &str = "#[test]\nfn tv1_is_proven() {}\n";

#[test]
fn rows_are_shown_with_their_tests_and_reasons() {
    let rows = format!(
        "{ROW}[[row]]\nnumber = 2\ntitle = \"t\"\nexpected = \"e\"\ndiffers = \"d\"\n[[row]]\nnumber = 3\ntitle = \"t\"\nexpected = \"e\"\nout_of_scope = \"o\"\n\
         [[row]]\nnumber = 4\ntitle = \"t\"\nexpected = \"e\"\nopen = true\n[[row]]\nnumber = 5\ntitle = \"t\"\nexpected = \"e\"\npartly = \"p\"\n\
         [[row]]\nnumber = 6\ntitle = \"t\"\nexpected = \"e\"\ngap = \"g\"\n"
    );
    let tests = "fn tv4() {}\n    #[test]\n    #[ignore = \"kernel: needs root\"]\n    fn tv1_and_tv5_in_a_namespace() {}\n";
    let text = page(&workspace("shown", &rows, tests)).unwrap();
    assert!(
        page(&workspace("open", &format!("{ROW}open = true\n"), TEST))
            .unwrap()
            .contains("| passes | `tv1_is")
    );
    for line in [
        "| One | 1 | 1 | 1 | 1 | 1 | 1 |",
        "| TV1 | a \\| b | e \\| f | passes | `tv1_and_tv5_in_a_namespace` (one, kernel) |",
        "| TV2 | t | e | differs: d |  |",
        "| TV3 | t | e | out of scope: o |  |",
        "| TV4 | t | e | not yet |  |",
        "| TV6 | t | e | **security gap**: g |  |",
        "| TV5 | t | e | partly; not yet: p | `tv1_and_tv5_in_a_namespace` (one, kernel) |",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn numbers_are_written_as_their_source_writes_them() {
    let text =
        page(&workspace("digits", &format!("digits = 2\n{ROW}"), "#[tokio::test]\nasync fn tv01_x() {}\n"));
    assert!(text.unwrap().contains("| TV01 | a \\| b | e \\| f | passes | `tv01_x` (one) |"));
}

#[test]
fn a_row_and_its_tests_do_not_contradict_each_other() {
    let with = |member: &str| format!("{ROW}{member}\n");
    for (name, rows, tests, problem) in [
        ("neither", ROW.to_owned(), "", "one.md TV1 has no test and says no reason"),
        ("helper", ROW.to_owned(), "fn tv1_is_a_helper() {}\n", "TV1 has no test"),
        ("comment", ROW.to_owned(), "#[test]\nfn tv10_is_another() {}\n", "which one.md does not have"),
        ("partly", with("partly = \"half\""), "", "TV1 is partly done, and has no test"),
        ("scope", with("out_of_scope = \"why\""), TEST, "TV1 is out of scope, and has a test"),
        ("gap", with("gap = \"harm\""), TEST, "TV1 is a security gap, and has a test"),
        ("unknown", ROW.to_owned(), "#[test]\nfn tv1_and_tv2_x() {}\n", "tv1_and_tv2_x names number 2"),
    ] {
        let found = problems(name, &rows, tests);
        assert!(found.contains(problem), "{name}: {found}");
    }
}

#[test]
fn a_list_that_cannot_be_read_is_named() {
    for (name, rows, problem) in [
        ("empty_reason", format!("{ROW}differs = \"\"\n"), "row 1: differs is unknown or says nothing"),
        ("typo", format!("{ROW}diffres = \"x\"\n"), "row 1: diffres is unknown or says nothing"),
        ("two", format!("{ROW}differs = \"x\"\nopen = true\n"), "one verdict too many"),
        ("twice", format!("{ROW}{ROW}"), "row 1 stands before row 1"),
        ("nothing", String::new(), "it has no [[row]]"),
        ("no_number", "[[row]]\ntitle = \"x\"\n".to_owned(), "a row has no number"),
        ("no_expected", "[[row]]\nnumber = 1\ntitle = \"x\"\n".to_owned(), "row 1 has no expected"),
    ] {
        let found = problems(name, &rows, TEST);
        assert!(found.contains(problem), "{name}: {found}");
    }
}

#[test]
fn a_list_may_be_cited_by_the_comments_that_tests_begin_with() {
    let rows: String = (1..=9)
        .map(|number| format!("[[row]]\nnumber = {number}\ntitle = \"t\"\nexpected = \"e\"\nopen = true\n"))
        .collect();
    let tests = "#[test]\nfn a() {\n    // two.md section 6.2 item 1; one.md sections 5 and 6.2 items 2 to 4,\n    // 6 and A.1 of 9\n    // and more\n}\n\
                 // one.md section 6.2 item 7\nfn b() {}\n#[test]\nfn c() {\n    // one.md section 6.2, row 8: not 9; section 6.3 item 5\n}\n";
    let root = workspace("cited", "", tests);
    let list =
        format!("title = \"One\"\nsource = \"one.md section 6.2\"\ncites = \"6.2\"\nlabel = \"\"\n{rows}");
    fs::write(root.join("tests/compatibility/one.toml"), list).unwrap();
    let text = page(&root).unwrap();
    let passed: Vec<&str> = text.lines().filter(|line| line.contains("passes | `")).collect();
    assert_eq!(
        passed,
        [2, 3, 4, 6, 8].map(|number| format!(
            "| {number} | t | e | passes | `{}` (one) |",
            if number == 8 { "c" } else { "a" }
        ))
    );
    assert!(
        problems("both", &format!("cites = \"6.2\"\n{ROW}"), TEST)
            .contains("not exactly one of prefix, cites and series")
    );
}

#[test]
fn a_list_may_be_a_series_that_tests_and_cases_cite() {
    let rows: String = (1..=6)
        .map(|number| format!("[[row]]\nnumber = {number}\ntitle = \"t\"\nexpected = \"e\"\nopen = true\n"))
        .collect();
    let tests = "cases! {\n    b\n}\n/// one.md K04\nfn a() {}\n/// one.md K01 to K03; two.md K5\nasync fn b(subject: &dyn Subject) {}\n\
                 #[test]\nfn c() {\n    // two.md K4; one.md section 7, K06 (fast)\n}\n";
    let root = workspace("series", "", tests);
    let list =
        format!("title = \"One\"\nsource = \"one.md section 7\"\nseries = \"K\"\nlabel = \"K\"\n{rows}");
    fs::write(root.join("tests/compatibility/one.toml"), list).unwrap();
    let text = page(&root).unwrap();
    let passed: Vec<&str> = text.lines().filter(|line| line.contains("passes | `")).collect();
    let case = |number| format!("| K{number} | t | e | passes | `b` (one, test server and real ones) |");
    let test = "| K6 | t | e | passes | `c` (one) |".to_owned();
    assert_eq!(passed, [case(1), case(2), case(3), test]);
}
