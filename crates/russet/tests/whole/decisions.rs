//! The table of decisions of a node whose agent is started again, and which other programs change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_linux::NetNs;
use russet_nft::monitor::{Event, Monitor, Object};
use russet_nft::{Nft, Table, Transaction};
use russet_policy::decisions_table;
use russet_testkit::{bound, eventually, eventually_some, let_pass};
use serde_json::{Value, json};

use crate::flows::{Setup, resource};
use crate::node::TIMEOUT;
use crate::syscall_killer::{FailingCalls, KINDS, STEPS_MAX, SyscallKiller};

/// What the log says when decisions are written or found.
const IN_FORCE: &str = "policies are in force";

/// Two pods of a node that are reached by ICMP only.
fn decided_setup() -> Setup {
    let setup = Setup::new();
    let spec = json!({ "selector": "all()", "types": ["Ingress"],
        "ingress": [{ "action": "Allow", "protocol": "ICMP" }] });
    setup.apply(&resource("GlobalNetworkPolicy", "icmp", spec));
    eventually(TIMEOUT, || decided(&setup).is_some_and(|text| text.contains(&setup.addresses[1])));
    setup
}

/// What is decided about each pod's ingress where nothing else is; none without the table.
fn decided(setup: &Setup) -> Option<String> {
    let mut command = Command::new("nft");
    command.args(["list", "map", "inet", "russet-decisions", "in4e"]);
    let answer = setup.node.output(&mut command, "");
    (answer.status == 0).then_some(answer.stdout)
}

fn log_lines(setup: &Setup, text: &str) -> usize {
    setup.node.log().matches(text).count()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn what_another_program_changes_in_the_decisions_is_undone_and_logged() {
    // policy.md P124
    let setup = decided_setup();
    let good = decided(&setup);
    for damage in [
        ["delete", "table", "inet", "russet-decisions", ""],
        ["flush", "map", "inet", "russet-decisions", "in4e"],
    ] {
        let arguments: Vec<&str> = damage.into_iter().filter(|it| !it.is_empty()).collect();
        let logged = log_lines(&setup, "another program changed table inet russet-decisions");
        setup.node.inside("nft", &arguments);
        eventually(TIMEOUT, || decided(&setup) == good);
        eventually(TIMEOUT, || {
            log_lines(&setup, "another program changed table inet russet-decisions") > logged
        });
        assert!(setup.ping(0, 1), "{damage:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn an_agent_that_is_started_again_writes_no_decision_and_no_packet_is_lost() {
    // policy.md P122
    let mut setup = decided_setup();
    let good = decided(&setup);
    let mut monitor = setup.node.netns().run_in_thread(Monitor::open).unwrap().unwrap();
    let mut ping = Command::new("ip");
    ping.args(["netns", "exec", &setup.pods[0].netns_name, "ping", "-q", "-i", "0.01", "-c", "1000"]);
    let ping = ping.arg(&setup.addresses[1]).stdout(Stdio::piped()).spawn().unwrap();
    setup.node.kill_agent();
    let logged = log_lines(&setup, IN_FORCE);
    setup.node.start_agent();
    eventually(TIMEOUT, || log_lines(&setup, IN_FORCE) > logged);
    let said = ping.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(" 0% packet loss"), "{said}");
    assert_eq!(decided(&setup), good);
    let is_decision = |event: &Event| match event {
        Event::Overrun => true,
        Event::Committed(commit) => {
            let mut changes = commit.changes.iter();
            // A new agent has connections judged again, and ends the sampling of flows: no decisions.
            changes.any(|change| {
                change.object == Object::Elements
                    && change.table == decisions_table()
                    && !["fresh", "sampled"].contains(&change.name.as_str())
            })
        }
    };
    let mut events = std::iter::from_fn(|| monitor.next(Duration::ZERO).unwrap());
    assert_eq!(events.find(is_decision), None);
}

/// What the policy lets in: ICMP, or TCP at many ports.
fn admitted(is_icmp: bool) -> Value {
    let rule = match is_icmp {
        true => json!({ "action": "Allow", "protocol": "ICMP" }),
        false => json!({ "action": "Allow", "protocol": "TCP",
            "destination": { "ports": (1..=200).map(|n| 2 * n).collect::<Vec<_>>() } }),
    };
    let spec = json!({ "selector": "all()", "types": ["Ingress"], "ingress": [rule] });
    resource("GlobalNetworkPolicy", "icmp", spec)
}

/// The elements of all sets and maps by which packets are judged.
fn elements(setup: &Setup) -> BTreeMap<String, BTreeSet<String>> {
    let table = setup.node.inside("nft", &["-j", "list", "table", "inet", "russet-decisions"]);
    let table: Value = serde_json::from_str(&table).unwrap();
    let objects = table["nftables"].as_array().unwrap().iter();
    let sets = objects.filter_map(|object| object.get("set").or_else(|| object.get("map")));
    let sets = sets.map(|set| {
        let elements = set["elem"].as_array().into_iter().flatten().map(Value::to_string).collect();
        (set["name"].as_str().unwrap().to_owned(), elements)
    });
    sets.filter(|(name, _)| !["fresh", "sampled"].contains(&name.as_str())).collect()
}

/// Datagrams from the first pod to the second one, which no policy of the test allows.
struct DeniedDatagrams {
    over: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

// === impl DeniedDatagrams ===

impl DeniedDatagrams {
    fn start(setup: &Setup) -> Self {
        let [from, to] = setup.pods.each_ref().map(|pod| NetNs::open(pod.path()).unwrap());
        let target = format!("{}:2", setup.addresses[1]);
        let receiver = to.with(|| bound(|| UdpSocket::bind(&target))).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let sender = from.with(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut arrived, mut buffer) = (0, [0; 8]);
            while !is_over.load(Ordering::Relaxed) {
                sender.send_to(b"x", &target).unwrap();
                arrived += usize::from(receiver.recv(&mut buffer).is_ok());
                let_pass(Duration::from_millis(1));
            }
            arrived
        });
        Self { over, thread }
    }

    /// How many arrived.
    fn finish(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Kills the agent at each system call of a change of policies, one after the other. Returns how many times.
fn killed_at_each_change(setup: &mut Setup) -> usize {
    let documents = [admitted(true), admitted(false)];
    let before = elements(setup);
    setup.apply(&documents[1]);
    let after = eventually_some(TIMEOUT, || Some(elements(setup)).filter(|now| *now != before));
    let mut kills = 0;
    for kind in KINDS {
        for nth in 1..=STEPS_MAX {
            setup.apply(&documents[0]);
            eventually(TIMEOUT, || elements(setup) == before);
            let killer = SyscallKiller::wait_for(setup.node.agent_pid(), kind, nth);
            let _ = setup.try_apply(&documents[1]);
            eventually(TIMEOUT, || setup.node.has_lost_its_agent() || elements(setup) == after);
            if setup.node.has_lost_its_agent() {
                killer.done();
            } else {
                killer.detach();
            }
            let found = elements(setup);
            assert!(found == before || found == after, "{kind} {nth}: {found:#?}");
            if setup.node.agent_lives() {
                break;
            }
            assert!(nth < STEPS_MAX, "{kind}: there is no end");
            kills += 1;
            setup.node.start_agent();
            setup.apply(&documents[1]);
            eventually(TIMEOUT, || elements(setup) == after);
        }
    }
    kills
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping, strace; takes a minute"]
fn an_agent_killed_at_any_step_of_a_change_leaves_the_old_decisions_or_the_new_ones() {
    // policy.md P121
    let mut setup = decided_setup();
    let datagrams = DeniedDatagrams::start(&setup);
    let kills = killed_at_each_change(&mut setup);
    assert!(kills >= 3, "the agent was killed {kills} times");
    assert_eq!(datagrams.finish(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn without_a_client_no_connection_that_passes_is_logged() {
    let setup = decided_setup();
    let before = elements(&setup);
    setup.apply(&admitted(false));
    eventually(TIMEOUT, || elements(&setup) != before);
    let sampled = setup.node.inside("nft", &["list", "set", "inet", "russet-decisions", "sampled"]);
    assert!(!sampled.contains("elements"), "{sampled}");
}

/// Commits of another program, one directly after the other: each makes the generation stale at which the agent reads the tables and commits.
struct ForeignCommits {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

// === impl ForeignCommits ===

impl ForeignCommits {
    fn start(setup: &Setup) -> Self {
        let mut nft = setup.node.netns().run_in_thread(Nft::open).unwrap().unwrap();
        let table = Table::inet("unrelated");
        let mut change = Transaction::new();
        change.add_table(&table).delete_table(&table);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                nft.commit(&change).unwrap();
            }
        });
        Self { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Changes that the kernel did not take at once, as the agent counts them.
fn counted_errors(setup: &Setup) -> u64 {
    let metrics = setup.node.get("/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix("russet_policy_apply_errors_total "));
    value.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

/// Applies what lets in TCP instead of ICMP while something stands in the way of the agent's commits, until `end` is called. `reason` is the kernel's error.
fn is_logged_and_counted<T>(setup: &Setup, reason: &str, start: impl Fn() -> T, end: impl Fn(T)) {
    const NOT_YET: &str = "decisions of policies are not in force yet; it is tried again";
    let [icmp, tcp] = [admitted(true), admitted(false)];
    let lines = |text: &str| {
        let log = setup.node.log();
        let is_it = |line: &&str| line.contains(" WARN ") && line.contains(NOT_YET) && line.contains(text);
        log.lines().filter(is_it).count() as u64
    };
    let (before, errors, logged) = (elements(setup), counted_errors(setup), lines(""));
    let obstacle = start();
    setup.apply(&tcp);
    eventually(TIMEOUT, || lines(reason) > 0);
    assert!(setup.ping(0, 1), "what was in force stays in force");
    end(obstacle);
    eventually(TIMEOUT, || elements(setup) != before && !setup.ping(0, 1));
    // Some of them may say what the end of it interrupted.
    let (lines, counted) = (lines("") - logged, counted_errors(setup) - errors);
    println!("{reason}: {lines} lines, {counted} counted");
    assert_eq!(lines, counted, "{reason}");
    setup.apply(&icmp);
    eventually(TIMEOUT, || elements(setup) == before);
    assert_eq!(counted_errors(setup), errors + counted, "{reason}: a change that is made is no error");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping, strace"]
fn a_change_that_the_kernel_does_not_take_is_logged_counted_and_made_later() {
    // policy.md P125
    let setup = decided_setup();
    let datagrams = DeniedDatagrams::start(&setup);
    let without_memory = || FailingCalls::of(setup.node.agent_pid(), "policies", "sendto", "ENOMEM");
    is_logged_and_counted(&setup, "Cannot allocate memory", without_memory, FailingCalls::end);
    let conflicts = || ForeignCommits::start(&setup);
    // Reading what there is takes longer than the time between two commits.
    is_logged_and_counted(&setup, "the tables kept changing", conflicts, ForeignCommits::end);
    assert_eq!(datagrams.finish(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: nft, ping"]
fn a_policy_that_is_not_enforced_as_written_is_named_until_it_is() {
    // The embedded store has no Services.
    let setup = decided_setup();
    let policy = |kind: &str, destination: Value| {
        let rule = json!({ "action": "Allow", "destination": destination });
        resource(kind, "web", json!({ "types": ["Egress"], "egress": [rule] }))
    };
    let services = || json!({ "services": { "name": "web", "namespace": "default" } });
    let ready = || setup.node.get("/readyz?verbose");
    // What is staged is not in force as it is.
    setup.apply(&policy("StagedGlobalNetworkPolicy", services()));
    setup.apply(&policy("GlobalNetworkPolicy", services()));
    let line = || {
        let ready = ready();
        let mut lines = ready.lines();
        lines.find(|line| line.contains("policies as written")).map(str::to_owned)
    };
    let line = eventually_some(TIMEOUT, line);
    assert!(
        line.contains("NOT ENFORCED as written: GlobalNetworkPolicy ") && !line.contains("more"),
        "{line}"
    );
    setup.apply(&policy("GlobalNetworkPolicy", json!({ "nets": ["192.0.2.0/24"] })));
    eventually(TIMEOUT, || !ready().contains("policies as written"));
}
