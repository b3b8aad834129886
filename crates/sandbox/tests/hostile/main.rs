//! The corpus of `tests/corpus`, replayed with random changes: the inputs of a sandbox's
//! resolv.conf.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

use std::path::Path;

use russet_testkit::replay;

mod targets;

#[test]
fn valid_settings_cannot_add_lines_to_a_resolv_conf() {
    // cni-runtime.md section 3.1
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/resolv-conf");
    let replayed = replay(&corpus, targets::resolv_conf);
    assert!(replayed.files_read * 2 > replayed.files, "{replayed:?}");
    assert!(replayed.inputs_read * 20 > replayed.inputs, "{replayed:?}");
}
