//! Replays the corpus of `tests/corpus` with random changes: selectors, documents and records of a
//! datastore as other programs may write them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use russet_testkit::{Replayed, replay};

mod targets;

fn replayed(corpus: &str, target: impl Fn(&[u8]) -> bool) -> Replayed {
    let replayed = replay(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(corpus), target);
    // A NetNamespace alone changes nothing. If changes destroyed most inputs, nothing would be
    // tried.
    let is_tried = replayed.files_read + 1 >= replayed.files && replayed.inputs_read * 20 > replayed.inputs;
    assert!(is_tried, "{replayed:?}");
    replayed
}

#[test]
fn no_text_is_a_selector_whose_canonical_form_is_another_one() {
    replayed("selector", targets::selector);
}

#[test]
fn no_document_makes_the_engine_and_the_evaluator_differ() {
    replayed("document", targets::document);
}

#[test]
fn no_record_makes_the_engine_and_the_evaluator_differ() {
    replayed("record", targets::record);
}
