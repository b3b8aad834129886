//! The corpora of `tests/corpus`, replayed with random changes: files of other runtimes and
//! plugins, and inputs that once broke something.

use std::path::Path;

use russet_testkit::replay;

use crate::targets;

/// Most inputs of the corpus, which other programs have written, can be read; of the changed ones,
/// enough pass the first brace.
fn replayed(name: &str, target: impl Fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let replayed = replay(&corpus, target);
    assert!(replayed.files_read * 2 > replayed.files, "{name}: {replayed:?}");
    assert!(replayed.inputs_read * 20 > replayed.inputs, "{name}: {replayed:?}");
}

#[test]
fn no_configuration_makes_a_reader_panic() {
    replayed("config", targets::config);
}

#[test]
fn no_result_makes_a_reader_panic() {
    replayed("result", targets::result);
}

#[test]
fn no_cache_file_makes_a_reader_panic() {
    replayed("cache", targets::cache);
}

#[test]
fn no_arguments_make_a_reader_panic() {
    replayed("args", targets::args);
}
