//! The table of decisions of a node whose agent is started again, and which other programs change.

use std::process::{Command, Stdio};

use russet_nft::monitor::{Event, Monitor, Object};
use russet_policy::decisions_table;
use russet_testkit::eventually;
use serde_json::json;

use crate::flows::{Setup, resource};
use crate::node::TIMEOUT;

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
    let mut events = std::iter::from_fn(|| monitor.next(std::time::Duration::ZERO).unwrap());
    assert_eq!(events.find(is_decision), None);
}
