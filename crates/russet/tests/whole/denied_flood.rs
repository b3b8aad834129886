//! What a flood of denied packets costs the agent, and that it is counted right while only a part of it is logged.
//!
//! `RUSSET_FLOOD_S` says for how long, `RUSSET_COMMAND` which executable the agent is, and `RUSSET_MEASURED` into which file goes what was measured:
//! `cargo xtask bench policy` compares it with a goal, and this test alone asserts no times.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_nft::Nft;
use russet_policy::{DeniedPackets, LOGGED_BURST, LOGGED_PER_S};
use russet_testkit::{eventually, let_pass};
use serde_json::json;

use crate::flows::{Setup, resource};
use crate::node::{TIMEOUT, TestNode};

/// For how long the suite sends.
const SECONDS: u64 = 3;
/// Packets of a second, in groups: policy.md P136.
const PER_S: u64 = 100_000;
const GROUP: Duration = Duration::from_millis(1);
const GROUP_MAX: u64 = PER_S / 100;
/// As many flows have them.
const FLOWS: usize = 50;
/// The processor's time in /proc is in hundredths of a second.
const TICKS_PER_S: f64 = 100.0;

/// What the kernel has counted on the node.
fn counted(setup: &Setup) -> DeniedPackets {
    setup.node.netns().with(|| DeniedPackets::read(&mut Nft::open().unwrap()).unwrap()).unwrap()
}

/// A counter of the agent.
fn counter(setup: &Setup, name: &str) -> u64 {
    let metrics = setup.node.get("/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
}

/// The processor's time of a process, all of its threads and the kernel's work for them.
fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS_PER_S
}

/// Sends from the first pod to the second one; how many packets, and for how long.
fn flood(setup: &Setup, lasts: Duration) -> (u64, Duration) {
    let from = NetNs::open(setup.pods[0].path()).unwrap();
    let open = || UdpSocket::bind("0.0.0.0:0").unwrap();
    let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| from.with(open).unwrap()).collect();
    sockets.iter().for_each(|socket| socket.connect((setup.addresses[1].as_str(), 53)).unwrap());
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < lasts {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of packets")]
        let due = (began.elapsed().as_secs_f64() * PER_S as f64) as u64;
        // A machine that is too slow for all of them sends for as long.
        let next = due.min(sent + GROUP_MAX);
        while sent < next {
            let socket = &sockets[usize::try_from(sent).unwrap() % FLOWS];
            socket.send(b"x").unwrap();
            sent += 1;
        }
        let_pass(if next == due { GROUP } else { Duration::ZERO });
    }
    (sent, began.elapsed())
}

fn setup() -> Setup {
    let command = std::env::var_os("RUSSET_COMMAND");
    let command = command.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_russet")), PathBuf::from);
    let mut node = TestNode::without_agent(&["--ipv6-pool", "none"]);
    node.start_agent_by(Command::new(command));
    let pods = [node.pod(), node.pod()];
    let addresses = pods.each_ref().map(|pod| node.add(pod).addresses().remove(0));
    let setup = Setup { node, pods, addresses };
    eventually(TIMEOUT, || setup.ping(0, 1));
    setup.apply(&resource(
        "GlobalNetworkPolicy",
        "deny",
        json!({ "selector": "all()", "types": ["Ingress"] }),
    ));
    eventually(TIMEOUT, || !setup.ping(0, 1));
    setup
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables, nfnetlink_log; tool: ping"]
fn in_a_flood_of_denied_packets_the_agent_counts_what_is_not_logged_and_misses_nothing_else() {
    // policy.md P136
    let seconds = std::env::var("RUSSET_FLOOD_S").map_or(SECONDS, |text| text.parse().unwrap());
    let setup = setup();
    let pid = setup.node.agent_pid();
    let (before, time) = (counted(&setup), processor_s(pid));
    let (sent, took) = flood(&setup, Duration::from_secs(seconds));
    let (after, share) = (counted(&setup), (processor_s(pid) - time) / took.as_secs_f64());
    let dropped = after.dropped - before.dropped;
    let per_s = dropped as f64 / took.as_secs_f64();
    println!(
        "{sent} packets in {:.1} s, {dropped} of them denied: {per_s:.0} a second; {} logged; the agent used {:.1} % of a core",
        took.as_secs_f64(),
        after.logged - before.logged,
        share * 100.0
    );
    // Few are lost in a queue before the table.
    assert!(dropped <= sent && dropped > sent / 2, "{dropped} of {sent}");
    let logged = after.logged - before.logged;
    let most = u64::from(LOGGED_BURST) + LOGGED_PER_S * (took.as_secs() + 1);
    assert!((u64::from(LOGGED_BURST)..=most).contains(&logged), "{logged} logged in {took:?}");
    // Nothing is sent any more.
    assert_eq!(counted(&setup), after);
    let [denied, suppressed] =
        ["russet_policy_denied_packets_total", "russet_policy_denied_packets_suppressed_total"];
    eventually(TIMEOUT, || counter(&setup, denied) == after.dropped);
    assert_eq!(counter(&setup, suppressed), after.suppressed());
    assert_eq!(counter(&setup, "russet_policy_denied_packets_lost_total"), 0);
    if let Some(file) = std::env::var_os("RUSSET_MEASURED") {
        let measured = json!({ "packets_per_s": per_s, "cpu_percent": share * 100.0 });
        std::fs::write(file, measured.to_string()).unwrap();
    }
}
