//! `cargo xtask new-kernel --instructions`: how many instructions the fast path needs with netkit pairs, beside veths. The
//! machine's clock advances with the instructions that are executed (`-icount` of QEMU), so that times are counts: they repeat
//! to some tenths of a percent, and say nothing of caches and of what a processor does at once.

use std::fmt::Write as _;

use serde_json::Value;

use super::{DebianKernel, Kernel, prepare};
use crate::artifacts::{self, Profile};
use crate::error::Result;

const WAYS: [&str; 2] = ["fast", "fast-netkit"];
/// The tests of `cargo xtask bench overlay`, and where each result is.
const TESTS: [(&str, &str); 3] = [("rr1c", "value"), ("crr1c", "value"), ("t1c", "cpu_ns_per_kib")];
const ROUNDS: usize = 3;
/// The results' lines begin so; way, test and the worker's answer follow.
const SAMPLE: &str = "sample of";
const EMULATOR: [&str; 4] = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"];

/// Prints the medians and their ratio; true if there are all.
pub fn run() -> Result<bool> {
    prepare()?;
    let worker = artifacts::dynamic(artifacts::BENCH, Profile::Optimized)?;
    let kernel = Kernel::installed(DebianKernel::New)?;
    // The kernel's messages would be in the middle of a line.
    let mut script = "cd /tmp; dmesg -n 1\n".to_owned();
    for (test, _) in [TESTS; ROUNDS].concat() {
        for way in WAYS {
            let worker = worker.display();
            let _ = writeln!(
                script,
                "echo \"{SAMPLE} {way} {test} $(echo sample {way} {test} | {worker} overlay)\""
            );
        }
    }
    let mut samples = Vec::new();
    kernel.run(&script, &EMULATOR, |line| {
        let sample = Sample::read(line);
        if sample.is_some() {
            println!("{line}");
        }
        samples.extend(sample);
    })?;
    println!("of {ROUNDS} rounds on {}: us by rr1c and crr1c, ns of a KiB by t1c", kernel.release);
    let mut are_all = true;
    for (test, _) in TESTS {
        let [veth, netkit] = WAYS.map(|way| median(&samples, way, test));
        let shown = veth.zip(netkit).map(|(veth, netkit)| (veth, netkit, netkit / veth));
        are_all &= shown.is_some();
        if let Some((veth, netkit, ratio)) = shown {
            println!("{test}: {veth:.2} with veths, {netkit:.2} with netkit pairs: {ratio:.3}");
        }
    }
    Ok(are_all)
}

struct Sample {
    way: String,
    test: String,
    value: f64,
}

// === impl Sample ===

impl Sample {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(SAMPLE)?.trim_start().splitn(3, ' ');
        let (way, test, answer) = (words.next()?, words.next()?, words.next()?);
        let (_, member) = TESTS.into_iter().find(|(name, _)| *name == test)?;
        let answer: Value = serde_json::from_str(answer).ok()?;
        Some(Self { way: way.to_owned(), test: test.to_owned(), value: answer[member].as_f64()? })
    }
}

/// None unless there is one of each round.
fn median(samples: &[Sample], way: &str, test: &str) -> Option<f64> {
    let meant = samples.iter().filter(|it| it.way == way && it.test == test);
    let mut values: Vec<f64> = meant.map(|it| it.value).collect();
    values.sort_by(f64::total_cmp);
    (values.len() == ROUNDS).then(|| values[ROUNDS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_a_sample_of_each_round() {
        let line = |value: &str| format!(r#"sample of fast t1c {{"value":2.2,"cpu_ns_per_kib":{value}}}"#);
        let mut samples: Vec<Sample> =
            ["9", "7", "null"].iter().filter_map(|value| Sample::read(&line(value))).collect();
        assert_eq!(median(&samples, "fast", "t1c"), None);
        samples.extend(Sample::read(&line("8")));
        assert_eq!((median(&samples, "fast", "t1c"), median(&samples, "fast", "rr1c")), (Some(8.0), None));
        for line in
            ["sample of fast", "sample of fast x {}", "Linux version 6.12", "sample of fast rr1c error"]
        {
            assert!(Sample::read(line).is_none(), "{line}");
        }
    }
}
