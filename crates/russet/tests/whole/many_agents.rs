//! A cluster of many agents on one etcd: all of it on one screen, and what the probes of each node cost.
//!
//! `RUSSET_AGENTS` says how many, at most 240, and `RUSSET_COMMAND` which executable they are. On one machine all namespaces share
//! the neighbour table of the kernel: with more than about 60 raise `net.ipv4.neigh.default.gc_thresh3` first.
//! `cargo xtask bench agents` runs this with 200, has what was measured written to the file that `RUSSET_MEASURED` names, and compares it with its goals.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use russet_linux::process;
use russet_testkit::{Process, eventually, let_pass};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::TestNode;

/// How many agents the suite starts: more than are probed at a time, and few enough for the neighbour table that all tests share.
const AGENTS: usize = 18;
/// At most, as many addresses as the network of the test has.
const MOST: usize = 240;
/// How long each agent may take on a machine that starts all of them at once.
const START_OF_ONE: Duration = Duration::from_secs(3);
/// For how long the traffic of probes is counted.
const COUNTED: Duration = Duration::from_secs(20);
/// How often the command is run for its time.
const RUNS: usize = 9;

struct Cluster {
    command: PathBuf,
    nodes: Vec<TestNode>,
    agents: Vec<Process>,
    _fabric: Fabric,
}

/// Packets and bytes that a node's tunnel device has sent.
#[derive(Clone, Copy)]
struct Sent {
    packets: u64,
    bytes: u64,
}

impl Cluster {
    fn start(count: usize) -> Self {
        let command = std::env::var_os("RUSSET_COMMAND");
        let command = command.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_russet")), PathBuf::from);
        let mut fabric = Fabric::new();
        let names = (0..count).map(|number| format!("node-{number:03}"));
        let nodes: Vec<TestNode> = names.map(|name| fabric.node(&name, &["--ipv6-pool", "none"])).collect();
        let agents = nodes.iter().map(|node| node.spawn_agent_by(Command::new(&command))).collect();
        Self { command, nodes, agents, _fabric: fabric }
    }

    /// The report of `russet status --cluster`, as the node with this number sees it, and how long it took.
    fn status(&self, number: usize) -> (Duration, Value) {
        let node = &self.nodes[number];
        let mut command = Command::new(&self.command);
        command.args(["status", "--cluster", "-o", "json", "--root"]).arg(node.root()).stdin(Stdio::null());
        let began = Instant::now();
        let output = process::in_netns(&mut command, node.netns()).unwrap().output().unwrap();
        (began.elapsed(), serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    fn sent(&self, number: usize) -> Sent {
        let text = self.nodes[number].ip(&["-j", "-s", "link", "show", "vxlan.calico"]);
        let links: Value = serde_json::from_str(&text).unwrap();
        let of = |member: &str| links[0]["stats64"]["tx"][member].as_u64().unwrap();
        Sent { packets: of("packets"), bytes: of("bytes") }
    }
}

fn count(report: &Value, state: &str) -> usize {
    let nodes = report["nodes"].as_array().into_iter().flatten();
    nodes.filter(|node| node["state"] == state).count()
}

#[test]
#[ignore = "root: many nodes on an etcd; kernel: vxlan; tool: etcd, ip"]
fn a_cluster_of_many_agents_is_on_one_screen_and_each_probes_a_few_others() {
    let wanted = std::env::var("RUSSET_AGENTS").map_or(AGENTS, |count| count.parse().unwrap()).min(MOST);
    let began = Instant::now();
    let mut cluster = Cluster::start(wanted);
    let deadline = START_OF_ONE * u32::try_from(wanted).unwrap();
    eventually(deadline, || {
        let ended = cluster.agents.iter_mut().position(|agent| agent.has_ended().is_some());
        assert!(ended.is_none(), "an agent ended: {}", cluster.nodes[ended.unwrap()].log());
        count(&cluster.status(0).1, "ready") == wanted
    });
    let start = began.elapsed();
    println!("{wanted} agents were ready after {:.1} s", start.as_secs_f64());
    let mut times: Vec<Duration> = (0..RUNS).map(|run| cluster.status(run % wanted).0).collect();
    times.sort();
    println!("status --cluster: {:?} (median of {RUNS}; at most {:?})", times[RUNS / 2], times[RUNS - 1]);

    let before: Vec<Sent> = (0..wanted).map(|number| cluster.sent(number)).collect();
    let counting = Instant::now();
    if std::env::var_os("RUSSET_AGENTS").is_some() {
        // For a rate that is worth a line in a document.
        let_pass(COUNTED);
    }
    // Every node probes, and answers others' probes.
    eventually(deadline, || {
        before.iter().enumerate().all(|(number, from)| cluster.sent(number).packets > from.packets)
    });
    let after: Vec<Sent> = (0..wanted).map(|number| cluster.sent(number)).collect();
    let seconds = counting.elapsed().as_secs_f64();
    let rate = |of: fn(&Sent) -> u64| -> Vec<f64> {
        let pairs = before.iter().zip(&after);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let mut rates: Vec<f64> = pairs.map(|(from, to)| (of(to) - of(from)) as f64 / seconds).collect();
        rates.sort_by(f64::total_cmp);
        rates
    };
    let (packets, bytes) = (rate(|sent| sent.packets), rate(|sent| sent.bytes));
    println!(
        "through a node's tunnel: {:.1} packets and {:.0} bytes a second (median), at most {:.1} and {:.0}",
        packets[wanted / 2],
        bytes[wanted / 2],
        packets[wanted - 1],
        bytes[wanted - 1]
    );
    if let Some(file) = std::env::var_os("RUSSET_MEASURED") {
        let times_ms: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        let measured = json!({ "start_s": [start.as_secs_f64()], "status_ms": times_ms, "packets_per_s": packets, "bytes_per_s": bytes });
        std::fs::write(file, measured.to_string()).unwrap();
    }
    // All of them reach all that they probe; one that started early may have asked others before they were there.
    eventually(deadline, || {
        let (_, report) = cluster.status(wanted - 1);
        count(&report, "ready") == wanted && report["problems"] == json!([])
    });
}
