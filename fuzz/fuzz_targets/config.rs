//! cargo-fuzz's way into the target `config`.
#![no_main]

#[path = "../../crates/runtime/tests/runtime/targets.rs"]
#[allow(dead_code, reason = "each program has one of the targets")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::config(bytes);
});
