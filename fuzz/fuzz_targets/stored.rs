//! cargo-fuzz's way into the target `stored`.
#![no_main]

#[path = "../../crates/russet/tests/hostile/targets.rs"]
#[allow(dead_code, reason = "the tests use its constants, too")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::stored(bytes);
});
