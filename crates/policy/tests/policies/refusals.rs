//! What the kernel refuses: changes that it has no memory for, and connections for which it has no room. Nothing opens by it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use russet_policy::{Decisions, Policies};
use russet_testkit::{eventually, run};
use russet_verdict::ir::Direction::Ingress;
use russet_verdict::table::{Delta, Part};

use crate::world::*;

const LOCAL: &str = "10.9.1.2";
/// Longer than a change takes that is tried again.
const SOON: Duration = Duration::from_secs(20);

/// The pod `a` hears only the pod with this identity.
fn only(peer: u32) -> Delta {
    merged(isolated(Ingress, LOCAL), allowing([key(Ingress, LOCAL, peer, Part::All)]))
}

/// What makes `only(from)` of `only(to)`.
fn change(from: u32, to: u32) -> Delta {
    let [from, to] = [from, to].map(|peer| key(Ingress, LOCAL, peer, Part::All));
    merged(forbidding([from]), allowing([to]))
}

fn decided(delta: &Delta) -> Decisions {
    let mut decisions = Decisions::default();
    decisions.apply(delta, &BTreeSet::new());
    decisions
}

/// Says to the next test that it is the program whose system call fails.
const CHANGES: &str = "RUSSET_TEST_CHANGES";
/// What that program writes if the failure was not one of those that are repeated where they occur.
const FAILED: &str = "a call failed:";

/// Changes one state to the other, and tries again after a failure as the agent does. A change that fails has not been made,
/// or it has and only the answer was lost.
fn change_with_a_failure() {
    let states = [B, C].map(|peer| decided(&only(peer)));
    let mut policies = loop {
        match Policies::open(russet_policy::PolicySettings::default()) {
            Ok(policies) => break policies,
            Err(error) => println!("{FAILED} {error}"),
        }
    };
    assert_eq!(policies.current(), &states[0]);
    if let Err(error) = policies.apply(&change(B, C), &BTreeSet::new(), Instant::now()) {
        println!("{FAILED} {error}");
        assert_eq!(policies.current(), &states[0]);
        let found = loop {
            // The call that fails may be one of these.
            if let Ok(found) = Policies::open(russet_policy::PolicySettings::default()) {
                break found;
            }
        };
        assert!(states.contains(found.current()), "neither of both states");
        while let Err(error) = policies.restore(states[1].clone(), Instant::now()) {
            println!("{FAILED} {error}");
        }
    }
    assert_eq!(policies.current(), &states[1]);
}

/// Runs [`change_with_a_failure`], whose system call `number` of this name fails: none if there are not so many, or whether
/// it took another attempt.
fn fails_at(syscall: &str, error: &str, number: usize) -> Option<bool> {
    const THIS: &str = "refusals::a_change_for_which_the_kernel_has_no_memory_is_made_later";
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("strace");
    command.args(["-f", "-o", trace.path().to_str().unwrap(), "-e", &format!("trace={syscall}"), "-e"]);
    command.arg(format!("inject={syscall}:error={error}:when={number}"));
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", THIS, "--nocapture"]).env(CHANGES, "1");
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{syscall} {number}: {error}\n{text}");
    let is_injected = std::fs::read_to_string(trace.path()).unwrap().contains("INJECTED");
    is_injected.then(|| text.contains(FAILED))
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, strace"]
fn a_change_for_which_the_kernel_has_no_memory_is_made_later() {
    // policy.md P125
    if std::env::var_os(CHANGES).is_some() {
        return change_with_a_failure();
    }
    on_a_node(|| {
        open().restore(decided(&only(B)), Instant::now()).unwrap();
        let server = udp(Some("a"), LOCAL, 53);
        let [former, later] =
            [("b", "10.9.2.2"), ("c", "10.9.3.2")].map(|(netns, own)| udp(Some(netns), own, 5353));
        // Requests that are not sent, and answers that do not fit into the socket's buffer.
        for (syscall, error) in [("sendto", "ENOMEM"), ("recvfrom", "ENOBUFS")] {
            let (mut number, mut failed) = (1, 0);
            loop {
                // The flow is in progress when the change forbids it.
                assert!(sends(&former, &server) && !sends(&later, &server), "{syscall} {number}");
                let has_failed = fails_at(syscall, error, number);
                assert_eq!(open().current(), &decided(&only(C)), "{syscall} {number}");
                assert!(!sends(&former, &server) && sends(&later, &server), "{syscall} {number}");
                open().restore(decided(&only(B)), Instant::now()).unwrap();
                let Some(has_failed) = has_failed else { break };
                failed += usize::from(has_failed);
                number += 1;
            }
            println!("each of {} calls of {syscall} failed; {failed} took another attempt", number - 1);
            assert!(failed > 0);
        }
    });
}

fn number_in(path: &str) -> u32 {
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Has the node follow as many connections as it may. None of them gives way to a new one: packets went both ways.
fn fill_conntrack() {
    let knob = |name: &str| number_in(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
    let file = tempfile::NamedTempFile::new().unwrap();
    eventually(SOON, || {
        let (count, max) = (knob("count"), knob("max"));
        let mut text = String::new();
        for number in count..max {
            let [_, high, middle, low] = number.to_be_bytes();
            writeln!(
                text,
                "-I -p tcp -s 172.{}.{middle}.{low} -d 203.0.113.1 --sport 1000 --dport 80 --state ESTABLISHED \
                 -u ASSURED,SEEN_REPLY -t 3600",
                16 + high
            )
            .unwrap();
        }
        std::fs::write(file.path(), text).unwrap();
        if count < max {
            run("conntrack", &["-R", file.path().to_str().unwrap()]);
        }
        knob("count") >= max
    });
}

/// How many packets the kernel has dropped because there was no room for their connection.
fn dropped_by_conntrack() -> u64 {
    let text = run("conntrack", &["-S"]);
    let drops = text.split_whitespace().filter_map(|word| word.strip_prefix("drop="));
    drops.map(|count| count.parse::<u64>().unwrap()).sum()
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, conntrack"]
fn where_the_table_of_connections_is_full_no_new_one_passes_and_others_are_judged_as_before() {
    // policy.md P127
    on_a_node(|| {
        let mut policies = open();
        apply(&mut policies, &only(B));
        let server = listen(Some("a"), LOCAL, 80);
        let (client, accepted) = connected(Some("b"), LOCAL, &server);
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        fill_conntrack();
        let before = dropped_by_conntrack();
        // The one that is allowed, and the one that is not.
        connect(Some("b"), LOCAL, 80, false);
        connect(Some("c"), LOCAL, 80, false);
        assert!(!pings("b", LOCAL) && !pings("c", LOCAL));
        assert!(dropped_by_conntrack() >= before + 4);
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        // A change cuts what it forbids.
        apply(&mut policies, &change(B, 1000));
        assert!(!carries(&client, &accepted, false) && !carries(&accepted, &client, false));
        run("conntrack", &["-F"]);
        apply(&mut policies, &change(1000, B));
        connect(Some("b"), LOCAL, 80, true);
        connect(Some("c"), LOCAL, 80, false);
    });
}
