//! cargo-fuzz's way into the target `policy_record`.
#![no_main]

#[path = "../../crates/verdict/tests/hostile/targets.rs"]
#[allow(dead_code, reason = "each program has one of the targets")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::record(bytes);
});
