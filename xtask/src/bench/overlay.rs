//! `cargo xtask bench overlay`: the cost of reaching a pod on another node, with each backend,
//! against the nodes themselves without pods.
//!
//! crates/bench-overlay does the work, one sample at a time; this side decides the order and
//! reports. The method is that of dataplane.md section 2.1: one core, so that throughput is one
//! over the cost; all backends take turns in shuffled order within a test, and medians of the
//! rounds are compared.

mod findings;

use std::time::SystemTime;

use crate::artifacts::{self, Profile};
use crate::bench::ipam::worker::Worker;
use crate::bench::overlay::findings::Findings;
use crate::bench::quiet::Quiet;
use crate::bench::shuffle::Shuffler;
use crate::bench::{FoundReport, Options};
use crate::error::{Error, Result};
use crate::packages;

const BARE: &str = "bare";
const ROUTED: &str = "routed";
const VXLAN: &str = "vxlan";
const VXLAN_RULES: &str = "vxlan-rules";
const VXLAN_GUARDED: &str = "vxlan-guarded";
const BRIDGE_RULES: &str = "bridge-rules";
const BRIDGE_GUARDED: &str = "bridge-guarded";
const VXLAN_FLANNEL: &str = "vxlan-flannel";
const UDP: &str = "udp";
const UDP_NAIVE: &str = "udp-naive";

const WAYS: [&str; 10] = [
    BARE,
    ROUTED,
    VXLAN,
    VXLAN_RULES,
    VXLAN_GUARDED,
    BRIDGE_RULES,
    BRIDGE_GUARDED,
    VXLAN_FLANNEL,
    UDP,
    UDP_NAIVE,
];

const STREAM: &str = "t1c";
const ROUND_TRIP: &str = "rr1c";
const CONNECT: &str = "crr1c";
const SMALL: &str = "u64";

const TESTS: [&str; 4] = [STREAM, ROUND_TRIP, CONNECT, SMALL];

/// Notes that explain the table.
const NOTES: [&str; 10] = [
    "t1c: one TCP stream, everything on one core; cpu: its processor time, of both ends, the proxies and ksoftirqd, which others' load disturbs less",
    "rr1c: 64 bytes there and back over TCP, one core; crr1c: connect, one byte there and back, reset, one core; medians of about a second",
    "u64: datagrams of 64 bytes that arrive, sender and receiver on different cores",
    "nodes and pods are network namespaces of one kernel, joined by veths that segment nothing (dataplane.md W1): ratios hold, figures are this machine's",
    "bare: node to node; routed: routed veth, host routes; vxlan: routed veth, vxlan device, no netfilter hook at all",
    "vxlan-rules: the same with our flannel daemon's masquerade and forward rules, so that connections are tracked",
    "vxlan-guarded: the same, and verdicts and guards against forged packets: pods' sources, the tunnel's peers (docs/isolation.md)",
    "bridge-rules: bridge, vxlan device, and our flannel daemon's rules; bridge-guarded: the same, and guards: the port's MAC and sources, the bridge's sources, the tunnel's peers",
    "vxlan-flannel: bridge, vxlan device, connection tracking, bridge-nf-call-iptables, and the few rules of dataplane.md section 7",
    "udp: our userspace backend; udp-naive: a loop with one packet in each system call, the stand-in for flannel's original",
];

/// Builds the worker, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    if let Some(name) = options.only.iter().find(|name| !WAYS.contains(&name.as_str())) {
        return Err(Error::Usage(format!("no impl {name:?}; there are: {}", WAYS.join(", "))));
    }
    if !packages::is_root() {
        return Err(Error::Found("bench overlay makes network namespaces: it needs root".to_owned()));
    }
    if !options.no_build {
        packages::ensure()?;
        artifacts::dynamic("russet-bench-overlay", Profile::Optimized)?;
    }
    let binary = artifacts::dynamic_path("russet-bench-overlay", Profile::Optimized);
    let mut worker = Worker::start(&binary, &[])?;
    let ways: Vec<&'static str> = WAYS.into_iter().filter(|way| options.wants(way)).collect();
    let seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let (mut shuffler, mut quiet) = (Shuffler::new(seed), Quiet::default());
    let mut findings = Findings::new(&TESTS, &ways);
    eprintln!("overlay: {} rounds, seed {seed}", options.rounds);
    // Once without counting: namespaces and devices come into being.
    for way in &ways {
        worker.ask(&format!("sample {way} {ROUND_TRIP}"))?;
    }
    for round in 1..=options.rounds {
        let order = shuffler.order(ways.len());
        for test in TESTS {
            quiet.wait();
            for way in order.iter().map(|which| ways[*which]) {
                findings.add(test, way, &worker.ask(&format!("sample {way} {test}"))?)?;
            }
        }
        eprintln!("overlay: round {round} of {} done", options.rounds);
    }
    findings.notes.push(format!("{} rounds, seed {seed}", options.rounds));
    findings.notes.extend(NOTES.map(str::to_owned));
    findings.notes.extend(quiet.summary());
    findings.foreign_cpu = quiet.foreign;
    Ok(Some(Box::new(findings)))
}
