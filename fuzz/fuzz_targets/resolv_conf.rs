//! cargo-fuzz's way into the target `resolv_conf`.
#![no_main]

#[path = "../../crates/sandbox/tests/hostile/targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::resolv_conf(bytes);
});
