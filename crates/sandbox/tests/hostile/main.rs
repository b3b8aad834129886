//! The corpus of `tests/corpus`, replayed with changes by chance: what a sandbox's resolv.conf is made of.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

use std::path::Path;

use russet_testkit::replay;

mod targets;

#[test]
fn no_settings_that_are_taken_make_a_resolv_conf_that_says_something_else() {
    // cni-runtime.md section 3.1
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/resolv-conf");
    let replayed = replay(&corpus, targets::resolv_conf);
    assert!(replayed.files_read * 2 > replayed.files, "{replayed:?}");
    assert!(replayed.inputs_read * 20 > replayed.inputs, "{replayed:?}");
}
