//! What the table logs: denied packets, with a limit, and nothing of what passes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_nft::{Nft, PacketLog};
use russet_policy::{DeniedPackets, LOG_GROUP, LOGGED_BURST, LOGGED_PER_S, LoggedFlow, PolicyReport};
use russet_testkit::{eventually, run};
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction::{Egress, Ingress};
use russet_verdict::ir::Protocol;
use russet_verdict::table::{Delta, Part, Verdict, Word};

use crate::traffic::in_a_flood_of_denied_packets;
use crate::world::*;

/// How long the kernel may keep what it has logged, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// What is logged until nothing more comes.
pub fn logged(log: &mut PacketLog) -> Vec<LoggedFlow> {
    let mut all = Vec::new();
    while let Some(packet) = log.next(Duration::from_millis(500)).unwrap() {
        assert!(packet.bytes.len() <= 96 && packet.prefix.len() <= 64, "{packet:?}");
        all.push(LoggedFlow::read(&packet).unwrap_or_else(|| panic!("{packet:?}")));
    }
    all
}

/// The next packets that are logged, as far as they matter: without source ports.
pub fn next(log: &mut PacketLog) -> LoggedFlow {
    let packet = log.next(SOON).unwrap().expect("nothing was logged");
    let flow = LoggedFlow::read(&packet).unwrap_or_else(|| panic!("{packet:?}"));
    LoggedFlow { flow: Flow { source_port: 0, ..flow.flow }, ..flow }
}

pub fn flow(source: &str, destination: &str, protocol: Protocol, port: u16) -> Flow {
    let (source, destination) = (ip(source), ip(destination));
    Flow { source, destination, protocol, source_port: 0, destination_port: port }
}

fn counted() -> DeniedPackets {
    DeniedPackets::read(&mut Nft::open().unwrap()).unwrap()
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, veth, root; tools: ip, nft"]
fn a_denied_flow_is_logged_with_its_direction_and_one_that_passes_is_not() {
    on_a_node(|| {
        let mut policies = open();
        let mut log = PacketLog::open(LOG_GROUP).unwrap();
        let rule = key(Ingress, "10.9.1.2", B, tcp(80));
        let delta = merged(isolated(Ingress, "10.9.1.2"), isolated(Egress, "10.9.3.2"));
        apply(&mut policies, &merged(delta, allowing([rule])));
        let servers = [80, 81].map(|port| listen(Some("a"), "10.9.1.2", port));
        let (client, accepted) = connected(Some("b"), "10.9.1.2", &servers[0]);
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        connect(Some("b"), "10.9.1.2", 81, false);
        let denied = |direction, flow| LoggedFlow { direction, allowed: false, flow, host: None };
        // What passed before it was not logged.
        let request = flow("10.9.2.2", "10.9.1.2", Protocol::TCP, 81);
        assert_eq!(next(&mut log), denied(Ingress, request));
        assert!(!pings("c", "10.9.2.2") && !pings("b", "10.9.1.2"));
        let echo = |source, to| flow(source, to, Protocol::ICMP, 8 << 8);
        let pinged: BTreeSet<Flow> = logged(&mut log).iter().map(|it| it.flow).collect();
        let expected = [echo("10.9.3.2", "10.9.2.2"), echo("10.9.2.2", "10.9.1.2")];
        assert!(expected.iter().all(|it| pinged.contains(it)), "{pinged:?}");
        // What a change ends is the request's, whichever end sends.
        apply(&mut policies, &forbidding([rule]));
        assert!(!carries(&accepted, &client, false));
        let ended = flow("10.9.2.2", "10.9.1.2", Protocol::TCP, 80);
        assert_eq!(next(&mut log), denied(Ingress, ended));
        assert_eq!(log.lost(), 0);
    });
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, veth, root; tools: ip, nft"]
fn new_connections_that_pass_are_logged_at_each_end_while_they_are_sampled() {
    on_a_node(|| {
        let mut policies = open();
        let mut log = PacketLog::open(LOG_GROUP).unwrap();
        let rule = key(Ingress, "10.9.1.2", B, tcp(80));
        let out = key(Egress, "10.9.2.2", A, tcp(80));
        let delta = merged(isolated(Ingress, "10.9.1.2"), isolated(Egress, "10.9.2.2"));
        apply(&mut policies, &merged(delta, allowing([rule, out])));
        let server = listen(Some("a"), "10.9.1.2", 80);
        let (older, accepted) = connected(Some("b"), "10.9.1.2", &server);
        policies.sample(true, Instant::now()).unwrap();
        assert!(policies.samples() && open().samples(), "another process reads it");
        assert!(carries(&older, &accepted, true) && carries(&accepted, &older, true));
        connected(Some("b"), "10.9.1.2", &server);
        let request = flow("10.9.2.2", "10.9.1.2", Protocol::TCP, 80);
        // What passed before, and goes on, is not new.
        for direction in [Egress, Ingress] {
            assert_eq!(next(&mut log), LoggedFlow { direction, allowed: true, flow: request, host: None });
        }
        // It is no difference from what is wanted, and what another program took is put back.
        assert_eq!(policies.faults().unwrap(), PolicyReport::default());
        run("nft", &["flush set inet russet-decisions sampled"]);
        assert_eq!(policies.faults().unwrap().elements, 5);
        policies.restore(policies.current().clone(), Instant::now()).unwrap();
        logged(&mut log);
        connected(Some("b"), "10.9.1.2", &server);
        assert_eq!(logged(&mut log).len(), 2);
        run("nft", &["flush set inet russet-decisions sampled"]);
        policies.sample(false, Instant::now()).unwrap();
        assert_eq!(policies.faults().unwrap(), PolicyReport::default());
        connected(Some("b"), "10.9.1.2", &server);
        assert_eq!(logged(&mut log), []);
        assert_eq!(counted(), DeniedPackets::default());
    });
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, veth, root; tools: ip, nft"]
fn in_a_storm_the_log_is_limited_and_what_it_suppressed_is_counted() {
    // policy.md P136
    const STORM: u64 = 20_000;
    on_a_node(|| {
        let mut policies = open();
        let word = Word { verdict: Verdict::Deny, log: true };
        let asked = Delta {
            decisions: [(key(Ingress, "10.9.1.2", B, Part::All), Some(word))].into(),
            ..Delta::default()
        };
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), asked));
        let mut log = PacketLog::open(LOG_GROUP).unwrap();
        let (server, sender) = (udp(Some("a"), "10.9.1.2", 53), udp(Some("c"), "10.9.3.2", 1));
        let began = Instant::now();
        let mut sent = 0;
        while sent < STORM {
            sender.send_to(b"x", server.local_addr().unwrap()).unwrap();
            sent += 1;
            // More do not fit into the queue behind an interface, and would be lost before the table.
            if sent % 500 == 0 {
                eventually(SOON, || counted().dropped >= sent);
            }
        }
        let took_s = began.elapsed().as_secs() + 1;
        // What a rule asks to log has a limit of its own.
        assert!(!pings("b", "10.9.1.2"));
        let flows = logged(&mut log);
        let counted = counted();
        let of_storm = flow("10.9.3.2", "10.9.1.2", Protocol::UDP, 53);
        let is_of_storm = |it: &&LoggedFlow| Flow { source_port: 0, ..it.flow } == of_storm;
        let stormed = flows.iter().filter(is_of_storm).count() as u64;
        assert!(stormed >= u64::from(LOGGED_BURST), "{stormed}");
        assert!(stormed <= u64::from(LOGGED_BURST) + LOGGED_PER_S * took_s, "{stormed} in {took_s} s");
        let asked = flow("10.9.2.2", "10.9.1.2", Protocol::ICMP, 8 << 8);
        assert!(flows.iter().any(|it| it.flow == asked), "it was lost in the storm");
        assert_eq!(counted.logged, flows.len() as u64);
        assert_eq!(counted.suppressed(), STORM - stormed);
        assert_eq!(log.lost(), 0);
    });
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, root"]
fn only_one_process_reads_the_log_and_none_at_all_is_no_error() {
    russet_testkit::in_netns_with_loopback(|| {
        assert_eq!(counted(), DeniedPackets::default());
        let log = PacketLog::open(LOG_GROUP).unwrap();
        assert!(PacketLog::open(LOG_GROUP).is_err());
        drop(log);
        // The kernel unbinds a group a moment after its reader has gone.
        eventually(SOON, || PacketLog::open(LOG_GROUP).is_ok());
    });
}

/// Chains of the version before this one, which logged only what a rule asks to log.
fn as_before() -> String {
    let mut text = String::new();
    for word in ["in", "out"] {
        let table = "inet russet-decisions";
        let log = |letter| format!("limit rate 100/second log prefix \"russet|{letter}|{word}\" group 7273");
        text += &format!("flush chain {table} denied-{word}\n flush chain {table} log-denied-{word}\n");
        text +=
            &format!("flush chain {table} log-allowed-{word}\n delete chain {table} denied-reply-{word}\n");
        text +=
            &format!("add rule {table} denied-{word} counter drop comment \"no policy allows it, {word}\"\n");
        text += &format!("add rule {table} log-denied-{word} {}\n", log('D'));
        text += &format!("add rule {table} log-denied-{word} goto denied-{word}\n");
        text += &format!("add rule {table} log-allowed-{word} {}\n", log('A'));
    }
    text
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_table_of_the_version_before_is_taken_over_and_nothing_denied_passes_meanwhile() {
    on_a_node(|| {
        let mut policies = open();
        let delta = merged(isolated(Ingress, "10.9.1.2"), allowing([key(Ingress, "10.9.1.2", B, Part::All)]));
        apply(&mut policies, &delta);
        let (wanted, good) = (policies.current().clone(), ruleset());
        let failed = in_a_flood_of_denied_packets(20, |_| {
            run("nft", &[&as_before()]);
            let mut upgraded = open();
            let report = upgraded.restore(wanted.clone(), Instant::now());
            let expected = "chain denied-reply-in was missing";
            report
                .as_ref()
                .is_ok_and(|it| it.structure.as_deref() == Some(expected))
                .then_some(())
                .ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
        // It is repaired and not created again, so its chains are called where they were.
        let sorted = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> =
                text.lines().filter(|line| !line.contains("0x00")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let (now, good) = (sorted(&ruleset()), sorted(&good));
        assert!(now == good, "{:?}", now.iter().zip(&good).find(|(now, good)| now != good));
    });
}
