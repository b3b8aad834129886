//! The measurable part of the house's taste, over every Rust file of the workspace.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::fs;
use std::path::PathBuf;

mod files;

use files::{collect, root};

/// Longer files hide things; split by noun.
const FILE_MAX_LINES: usize = 800;
/// Longer functions do more than one thing.
const FN_MAX_LINES: usize = 70;
/// Where unsafe code may live: the crates that talk to the kernel, and the tests' own way into namespaces.
const MAY_HOLD_UNSAFE: [&str; 4] = ["crates/netlink/", "crates/nft/", "crates/linux/", "crates/testkit/"];
/// The crates that read bytes of other programs. An index, an `expect` or a `panic!` there is a warning of clippy, and so a failure of the
/// layer `lint`.
const READ_FOREIGN_BYTES: [&str; 25] = [
    "addr/src/lib.rs",
    "calico/src/lib.rs",
    "cni/src/lib.rs",
    "containerd/src/lib.rs",
    "controller/src/lib.rs",
    "flanneld/src/lib.rs",
    "http/src/lib.rs",
    "ipam/src/lib.rs",
    "journal/src/lib.rs",
    "kube/src/lib.rs",
    "lease/src/lib.rs",
    "model/src/lib.rs",
    "netlink/src/lib.rs",
    "nft/src/lib.rs",
    "openshift/src/lib.rs",
    "overlay/src/lib.rs",
    "plugins/src/lib.rs",
    "policy/src/lib.rs",
    "runtime/src/lib.rs",
    "russet-cni/src/main.rs",
    "sandbox/src/lib.rs",
    "store-etcd/src/lib.rs",
    "store-kube/src/lib.rs",
    "store/src/lib.rs",
    "verdict/src/lib.rs",
];
/// Directories that hold no source of ours.
const NOT_OURS: [&str; 4] = ["target", ".git", "generated", "vendor"];

/// Names of queues whose senders never wait and are never refused, in tokio, futures and the crates of channels.
const UNBOUNDED: [&str; 4] = ["unbounded", "unbounded_channel", "UnboundedReceiver", "UnboundedSender"];

/// A Rust file: its path inside the workspace and its text.
struct Source {
    path: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let source = |path: PathBuf| Source {
        path: path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(),
        text: fs::read_to_string(&path).unwrap(),
    };
    collect(root(), &["rs"], &NOT_OURS).into_iter().map(source).collect()
}

/// Where a function ends that is longer than allowed: (line, name, length). Formatting by rustfmt is assumed:
/// the closing brace stands under the first letter of the head.
fn long_functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let long = |start: usize| {
        let name = function_name(lines[start])?;
        let indent = &lines[start][..lines[start].len() - lines[start].trim_start().len()];
        let head = lines[start..].iter().position(|line| line.trim_end().ends_with(['{', ';', '}']))?;
        if !lines[start + head].trim_end().ends_with('{') {
            return None;
        }
        let closing = format!("{indent}}}");
        let length = lines[start..].iter().position(|line| line.trim_end() == closing)? + 1;
        (length > FN_MAX_LINES).then(|| (start + 1, name.to_owned(), length))
    };
    (0..lines.len()).filter_map(long).collect()
}

/// The function whose head begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_head = before.split_whitespace().all(|word| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub(")
    });
    let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    (is_head && end > 0).then(|| &after[..end])
}

/// The text with the insides of comments, strings and character literals gone; lines stay where they were.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| raw_string(rest)).or_else(|| quoted(rest));
        match skipped {
            Some(bytes) => code.extend(rest[..bytes].chars().filter(|c| *c == '\n')),
            None => code.push(first),
        }
        rest = &rest[skipped.unwrap_or(first.len_utf8())..];
    }
    code
}

fn comment(rest: &str) -> Option<usize> {
    match rest.as_bytes() {
        [b'/', b'/', ..] => Some(rest.find('\n').unwrap_or(rest.len())),
        [b'/', b'*', ..] => Some(rest.find("*/").map_or(rest.len(), |end| end + 2)),
        _ => None,
    }
}

fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.strip_prefix('r')?.bytes().take_while(|byte| *byte == b'#').count();
    let from = 1 + hashes + rest[1 + hashes..].starts_with('"').then_some(1)?;
    let closing = format!("\"{}", "#".repeat(hashes));
    Some(rest[from..].find(&closing).map_or(rest.len(), |end| from + end + closing.len()))
}

fn quoted(rest: &str) -> Option<usize> {
    let quote = rest.bytes().next().filter(|byte| matches!(byte, b'"' | b'\''))?;
    if quote == b'\'' && !is_character(rest) {
        return None;
    }
    let mut escaped = false;
    let closing = rest.bytes().enumerate().skip(1).find(|(_, byte)| {
        let ends = *byte == quote && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    Some(closing.map_or(rest.len(), |(at, _)| at + 1))
}

/// Tells `'a'` and `'\n'` from the lifetime `'a`.
fn is_character(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    chars.next() == Some('\\') || chars.next() == Some('\'')
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|found| found == word)
}

/// Lines of code, comments and strings aside, for which `wrong` holds.
fn lines_where(source: &Source, wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let code = code_only(&source.text);
    let wrong = code.lines().enumerate().filter(|(_, line)| wrong(line));
    wrong.map(|(at, _)| format!("{}:{}", source.path, at + 1)).collect()
}

/// Whether a line makes a queue without a limit: std's `channel()` has no argument, tokio's `mpsc::channel(n)` has its
/// limit, and the `channel()` of a oneshot carries a single value.
fn makes_unbounded_queue(line: &str) -> bool {
    let is_std = |(at, name): (usize, &str)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let is_other = ["fn ", "oneshot::", "."].iter().any(|other| before.ends_with(other))
            || before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let called = after.strip_prefix("::<").map_or(after, after_generics);
        !is_other && called.starts_with("()")
    };
    UNBOUNDED.iter().any(|name| has_word(line, name)) || line.match_indices("channel").any(is_std)
}

/// What follows the `>` that closes generic arguments.
fn after_generics(rest: &str) -> &str {
    let mut open = 1;
    let mut last = ' ';
    for (at, c) in rest.char_indices() {
        match c {
            '<' => open += 1,
            '>' if last != '-' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return &rest[at + 1..];
        }
        last = c;
    }
    ""
}

/// The source without the module of tests at its end.
fn without_tests(source: &Source) -> Source {
    let is_inline = |(at, _): &(usize, &str)| {
        let module = source.text[*at..].lines().nth(1).unwrap_or_default();
        has_word(module, "mod") && module.ends_with('{')
    };
    let end = source.text.match_indices("#[cfg(test)]\n").find(is_inline);
    let end = end.map_or(source.text.len(), |(at, _)| at);
    Source { path: source.path.clone(), text: source.text[..end].to_owned() }
}

/// The files, without `.rs`, of the modules that the source declares for tests only.
fn test_modules(source: &Source) -> Vec<String> {
    let module = source.path.trim_end_matches(".rs");
    let children = match module.rsplit_once('/') {
        Some((directory, "lib" | "main")) => directory,
        _ => module,
    };
    let declared = source.text.split("#[cfg(test)]\n").skip(1).filter_map(|after| {
        let line = after.lines().next()?.trim().strip_suffix(';')?;
        let (visibility, name) = line.split_once("mod ")?;
        (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
    });
    declared.map(|name| format!("{children}/{name}")).collect()
}

#[test]
fn no_file_is_longer_than_800_lines() {
    let count = |source: &Source| source.text.lines().count();
    let long = sources()
        .iter()
        .filter(|source| count(source) > FILE_MAX_LINES)
        .map(|source| source.path.clone())
        .collect::<Vec<_>>();
    assert!(long.is_empty(), "split by noun: {long:?}");
}

#[test]
fn no_function_is_longer_than_70_lines() {
    let mut long = Vec::new();
    for source in sources() {
        for (line, name, length) in long_functions(&source.text) {
            long.push(format!("{}:{line} {name}: {length} lines", source.path));
        }
    }
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn every_ignored_test_says_why() {
    let bare: Vec<String> =
        sources().iter().flat_map(|source| lines_where(source, |line| line.trim() == "#[ignore]")).collect();
    assert!(
        bare.is_empty(),
        "write #[ignore = \"kernel: ...\"], \"root: ...\" or \"tool NAME: ...\": {bare:?}"
    );
}

#[test]
fn unsafe_code_lives_where_the_kernel_is_touched() {
    let elsewhere =
        |source: &&Source| !MAY_HOLD_UNSAFE.iter().any(|directory| source.path.starts_with(directory));
    let found: Vec<String> = sources()
        .iter()
        .filter(elsewhere)
        .flat_map(|source| lines_where(source, |line| has_word(line, "unsafe")))
        .collect();
    assert!(found.is_empty(), "wrap it in crates/linux, netlink or nft: {found:?}");
}

#[test]
fn every_queue_has_a_bound() {
    let sources = sources();
    let tests: Vec<String> = sources.iter().flat_map(test_modules).collect();
    let is_test = |path: &str| {
        let of = |module: &String| path.strip_prefix(module.as_str());
        let is_of_module = |rest: &str| rest == ".rs" || rest.starts_with('/');
        path.contains("/tests/") || tests.iter().filter_map(of).any(is_of_module)
    };
    // Only few files have to be read as code.
    let is_suspect = |source: &&Source| ["channel", "nbounded"].iter().any(|name| source.text.contains(name));
    let programs =
        sources.iter().filter(|source| !is_test(&source.path)).filter(is_suspect).map(without_tests);
    let found: Vec<String> =
        programs.flat_map(|source| lines_where(&source, makes_unbounded_queue)).collect();
    assert!(
        found.is_empty(),
        "use tokio's mpsc::channel or std's sync_channel, with a named limit: {found:?}"
    );
}

#[test]
fn readers_of_foreign_bytes_are_warned_of_an_index_an_expect_and_a_panic() {
    const LINTS: &str =
        "#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]";
    let has_none = |path: &&str| {
        let text = fs::read_to_string(root().join("crates").join(path)).unwrap();
        !text.lines().any(|line| line == LINTS)
    };
    let without: Vec<&str> = READ_FOREIGN_BYTES.into_iter().filter(has_none).collect();
    assert_eq!(without, Vec::<&str>::new());
}

/// Fields of log lines that quote foreign text by `?`, which escapes its control bytes.
const QUOTED_FIELDS: [&str; 2] = ["value = ?text", "alias = ?alias"];

/// The calls of `tracing`'s macros for operators' log lines.
fn log_calls(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let begins = ["info", "warn", "error"].into_iter().flat_map(move |level| {
        text.match_indices("tracing::")
            .filter(move |(at, name)| text[at + name.len()..].starts_with(&format!("{level}!(")))
    });
    begins.map(move |(at, _)| (at, &text[at..at + text[at..].find(");").unwrap_or(text.len() - at)]))
}

/// Whether a call prints a value as Rust's `Debug` does: `?value`, or `{value:?}` in its message.
fn prints_debug(call: &str) -> bool {
    let is_sigil = |(at, _): (usize, &str)| {
        let before = call[..at].trim_end().chars().next_back();
        let after = call[at + 1..].chars().next();
        matches!(before, Some('(' | ',' | '='))
            && after.is_some_and(|next| next.is_alphabetic() || next == '_')
    };
    call.contains(":?}") || call.match_indices('?').any(is_sigil)
}

#[test]
fn log_lines_have_no_rust_debug_output() {
    assert!(
        prints_debug("tracing::info!(?condition, \"met\"")
            && prints_debug("tracing::warn!(op, verb = ?verb, \"a\"")
    );
    assert!(!prints_debug("tracing::info!(count = count()?, \"is it?\""));
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| !source.path.contains("/tests/")).map(without_tests) {
        for (at, call) in log_calls(&source.text) {
            if prints_debug(call) && !QUOTED_FIELDS.iter().any(|quoted| call.contains(quoted)) {
                let line = source.text[..at].matches('\n').count() + 1;
                found.push(format!("{}:{line} {call}", source.path));
            }
        }
    }
    assert!(found.is_empty(), "print it with Display, or its name:\n{}", found.join("\n"));
}

#[test]
fn a_release_stops_at_an_arithmetic_overflow() {
    let manifest: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let profiles = manifest["profile"].as_table().unwrap();
    let checks = |name: &str| profiles[name].get("overflow-checks").and_then(toml::Value::as_bool);
    assert_eq!(checks("release"), Some(true));
    // The others inherit it.
    for name in profiles.keys().filter(|name| *name != "release") {
        assert_ne!(checks(name), Some(false), "{name}");
    }
}

#[test]
fn the_scanner_sees_a_long_function_and_passes_a_declaration() {
    let body = "        x();\n".repeat(FN_MAX_LINES);
    let long = format!(
        "trait T {{\n    fn declared(&self);\n    pub(crate) async fn big<T>(\n    ) {{\n{body}    }}\n}}\n"
    );
    assert_eq!(long_functions(&long), [(3, "big".to_owned(), FN_MAX_LINES + 3)]);
}

#[test]
fn the_scanner_does_not_read_comments_strings_or_lifetimes() {
    let hidden = "// unsafe\n/* unsafe */ let x = \"un\\\"unsafe\"; r#\"unsafe\"# 'u' '\\'' unsafe_op";
    assert!(!code_only(hidden).lines().any(|line| has_word(line, "unsafe")));
    let shown = "fn f<'a>(x: &'a str) -> &'a str { unsafe { g(x) } }";
    assert!(has_word(&code_only(shown), "unsafe"));
}

#[test]
fn the_scanner_knows_queues_without_a_bound() {
    for line in [
        "let (a, b) = mpsc::channel();",
        "let (a, b) = channel::<()>();",
        "let (a, b) = std::sync::mpsc::channel::<Box<dyn FnOnce() -> Vec<u8>>>();",
        "let (a, b) = tokio::sync::mpsc::unbounded_channel();",
        "use futures::channel::mpsc::UnboundedSender;",
        "let (a, b) = flume::unbounded::<u8>();",
    ] {
        assert!(makes_unbounded_queue(line), "{line}");
    }
    for line in [
        "let (a, b) = mpsc::channel(QUEUE_MAX);",
        "let (a, b) = mpsc::channel::<Vec<u8>>(1);",
        "let (a, b) = sync_channel(0);",
        "let (a, b) = oneshot::channel();",
        "let (a, b) = oneshot::channel::<()>();",
        "fn channel() -> (Sender, Receiver) {",
        "let found = self.channel();",
    ] {
        assert!(!makes_unbounded_queue(line), "{line}");
    }
}

#[test]
fn the_scanner_does_not_read_modules_of_tests() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let text = "#[cfg(test)]\nuse a::b;\nfn f() {}\n#[cfg(test)]\nmod samples;\n\n#[cfg(test)]\npub(crate) mod tests {\n    g();\n}\n";
    let code = without_tests(&source("crates/a/src/lib.rs", text)).text;
    assert!(code.contains("fn f()") && !code.contains("g()"), "{code}");
    assert_eq!(test_modules(&source("crates/a/src/lib.rs", text)), ["crates/a/src/samples"]);
    assert_eq!(test_modules(&source("crates/a/src/b.rs", text)), ["crates/a/src/b/samples"]);
}
