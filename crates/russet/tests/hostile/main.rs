//! Replays the corpus of `tests/corpus/stored` with random changes: values that other programs may
//! store, and the verbs' output for them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

use std::path::Path;

use russet_testkit::replay;

mod targets;

#[test]
fn no_stored_value_makes_a_verb_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/stored");
    let replayed = replay(&corpus, targets::stored);
    assert!(replayed.files_read * 2 > replayed.files, "{replayed:?}");
    assert!(replayed.inputs_read * 20 > replayed.inputs, "{replayed:?}");
}

#[test]
fn a_handle_of_seventy_thousand_bytes_is_named_in_a_short_line() {
    // This once aborted `russet ipam check`: the formatter refuses such a width.
    let block = targets::BLOCK_VALUE.replace("net.aaaa", &"a".repeat(70_000));
    targets::stored(format!("{}\n{block}", targets::BLOCK).as_bytes());
    targets::stored(format!("/calico/ipam/v2/handle/{}\n{{\"block\":{{}}}}", "a".repeat(70_000)).as_bytes());
}
