//! `cargo xtask bench overlay`: the cost of reaching a pod on another node, with each backend,
//! against the nodes themselves without pods.
//!
//! crates/bench does the work, one sample at a time; this side decides the order and
//! reports. The method is that of dataplane.md section 2.1: one core, so that throughput is one
//! over the cost; all backends take turns in shuffled order within a test, and medians of the
//! rounds are compared.

mod findings;
pub mod plot;

use crate::artifacts::{self, Profile};
use crate::bench::ipam::worker::Worker;
use crate::bench::overlay::findings::Findings;
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options, Printed as _};
use crate::error::{Error, Result};
use crate::packages;

const BARE: &str = "bare";
const ROUTED: &str = "routed";
const VXLAN: &str = "vxlan";
const VXLAN_RULES: &str = "vxlan-rules";
const AGENT_OPEN: &str = "agent-open";
const AGENT_VERDICTS: &str = "agent-verdicts";
const AGENT_POLICY: &str = "agent-policy";
const AGENT_TUNNEL: &str = "agent-tunnel";
const AGENT: &str = "agent";
const FAST: &str = "fast";
const FAST_OPEN: &str = "fast-open";
const FAST_NETKIT: &str = "fast-netkit";
const FAST_POLICY: &str = "fast-policy";
const FAST_SAME: &str = "fast-same";
const FAST_ROUTED: &str = "fast-routed";
const FAST_ROUTED_BIG: &str = "fast-routed-big";
const FLANNELD_OPEN: &str = "flanneld-open";
const FLANNELD_PORTS: &str = "flanneld-ports";
const FLANNELD_PODS: &str = "flanneld-pods";
const FLANNELD_TUNNEL: &str = "flanneld-tunnel";
const FLANNELD: &str = "flanneld";
const VXLAN_FLANNEL: &str = "vxlan-flannel";
const VXLAN_CALICO: &str = "vxlan-calico";
const VXLAN_METADATA: &str = "vxlan-metadata";
const UDP: &str = "udp";
const UDP_FAST: &str = "udp-fast";
const UDP_SIZED: &str = "udp-sized";
const UDP_NAIVE: &str = "udp-naive";

const WAYS: [&str; 28] = [
    BARE,
    ROUTED,
    VXLAN,
    VXLAN_RULES,
    AGENT_OPEN,
    AGENT_VERDICTS,
    AGENT_POLICY,
    AGENT_TUNNEL,
    AGENT,
    FAST,
    FAST_OPEN,
    FAST_NETKIT,
    FAST_POLICY,
    FAST_SAME,
    FAST_ROUTED,
    FAST_ROUTED_BIG,
    FLANNELD_OPEN,
    FLANNELD_PORTS,
    FLANNELD_PODS,
    FLANNELD_TUNNEL,
    FLANNELD,
    VXLAN_FLANNEL,
    VXLAN_CALICO,
    VXLAN_METADATA,
    UDP,
    UDP_FAST,
    UDP_SIZED,
    UDP_NAIVE,
];

const STREAM: &str = "t1c";
const ROUND_TRIP: &str = "rr1c";
const CONNECT: &str = "crr1c";
const SMALL: &str = "u64";

const TESTS: [&str; 4] = [STREAM, ROUND_TRIP, CONNECT, SMALL];

/// Ways that differ from the first of their group in nothing but guards.
const GUARDED: [(&str, &[&str]); 2] = [
    (AGENT_OPEN, &[AGENT_VERDICTS, AGENT_POLICY, AGENT_TUNNEL, AGENT]),
    (FLANNELD_OPEN, &[FLANNELD_PORTS, FLANNELD_PODS, FLANNELD_TUNNEL, FLANNELD]),
];

/// Notes that explain the table.
const NOTES: [&str; 14] = [
    "t1c: one TCP stream, everything on one core; cpu: its processor time, of both ends, the proxies and ksoftirqd, which others' load disturbs less",
    "rr1c: 64 bytes there and back over TCP, one core; crr1c: connect, one byte there and back, reset, one core; medians of about a second",
    "u64: datagrams of 64 bytes that arrive, sender and receiver on different cores",
    "nodes and pods are network namespaces of one kernel, joined by veths that segment nothing (dataplane.md W1): ratios hold, figures are this machine's",
    "bare: node to node; routed: routed veth, host routes; vxlan: routed veth, vxlan device, no netfilter hook at all",
    "vxlan-rules: the same with our flannel daemon's masquerade and forward rules, so that connections are tracked",
    "agent: routed veth and all that the agent makes on a node, guards included (docs/isolation.md); agent-open: without guards; agent-verdicts, agent-policy (verdicts and pods' sources), agent-tunnel (the tunnel's peers): with these alone",
    "fast: agent, with the fast path (docs/fast-path.md); fast-open: without guards; fast-netkit (with --impl only): with netkit pairs; fast-policy: with a network policy at the receiver; fast-routed: routed, with the fast path; fast-routed-big: with BIG TCP at pods and wire (docs/big-tcp.md)",
    "fast-same: like fast, between two pods of one node; bare, one veth between two namespaces, is also what it is compared with",
    "flanneld: bridge and all that our flannel daemon and our plugin bridge make on a node; flanneld-open: without guards; flanneld-ports (the port's MAC and sources), flanneld-pods (the bridge's sources), flanneld-tunnel (the tunnel's peers): with these alone",
    "x open: the multiple of agent-open or flanneld-open",
    "vxlan-flannel: bridge, vxlan device, connection tracking, bridge-nf-call-iptables, and the few rules of dataplane.md section 7",
    "vxlan-calico: routed veth, vxlan device, connection tracking and the same rules, as Calico leaves it without its policies; vxlan-metadata: routed veth, BPF programs to and from a vxlan device with metadata, no policy and no connection tracking, a model of Cilium's path",
    "udp: our userspace backend; udp-fast: the same with its fast path; udp-sized: without it, packets of pods have at most 62,000 bytes; udp-naive: a loop with one packet in each system call, the stand-in for flannel's original",
];

/// Builds the worker, measures; or only draws what was measured earlier.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects(WAYS)?;
    if let Some(from) = &options.plot_from {
        plot::redraw(from, &options.plot.clone().unwrap_or_else(|| artifacts::workspace().join(plot::FILE)))?;
        return Ok(None);
    }
    if options.plot.is_some() && !options.wants(BARE) {
        return Err(Error::Usage(format!("--plot draws multiples of {BARE}: add --impl {BARE}")));
    }
    if !packages::is_root() {
        return Err(Error::Found("bench overlay makes network namespaces: it needs root".to_owned()));
    }
    if !options.no_build {
        packages::ensure()?;
        artifacts::dynamic(artifacts::BENCH, Profile::Optimized)?;
    }
    let mut worker = Worker::start("overlay", &[])?;
    // The kernel of this machine may lack it.
    let is_optional = |way: &str| way == FAST_NETKIT && options.only.is_empty();
    let ways: Vec<&'static str> =
        WAYS.into_iter().filter(|way| options.wants(way) && !is_optional(way)).collect();
    let seed = bench::seed();
    let (mut shuffler, mut quiet) = (Shuffler::new(seed), options.quiet());
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
    findings.conditions = Conditions::new(format!("{} rounds, seed {seed}", options.rounds), &NOTES, quiet);
    options.plot.as_ref().map_or(Ok(()), |file| plot::write(&findings.json(), file))?;
    Ok(Some(Box::new(findings)))
}
