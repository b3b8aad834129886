//! What survives a restart: connections continue while agents are killed and the store's owner is
//! stopped.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use russet_linux::{NetNs, process};
use russet_testkit::{Process, eventually, pings, spawn_with_input};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::conversation::Conversation;
use crate::host::{HostState, Russet, demo_turn};
use crate::node::{Answer, TIMEOUT};

/// How long the store's owner is stopped.
const STORE_STOPPED: Duration = Duration::from_secs(30);

fn conversation(from: &Value, to: &Value, family: usize) -> Conversation {
    let netns = |pod: &Value| NetNs::open(pod["netns"].as_str().unwrap()).unwrap();
    Conversation::start(&netns(from), &netns(to), to["ips"][family].as_str().unwrap(), Duration::ZERO)
}

/// A process of the demo, restarted with the same arguments.
struct Agent {
    pid: u32,
    node: NetNs,
    command: Vec<String>,
}

impl Agent {
    fn of(node: &Value) -> Self {
        let pid = u32::try_from(node["agent_pid"].as_u64().unwrap()).unwrap();
        let cmdline = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let command = cmdline.split_terminator('\0').map(str::to_owned).collect();
        Self { pid, node: NetNs::open(node["netns"].as_str().unwrap()).unwrap(), command }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap(), signal).unwrap();
    }

    fn restart(&self) -> Process {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        process::in_netns(&mut command, &self.node).unwrap();
        Process::start(&mut command)
    }
}

/// Runs the plugin for `node` of the demo.
fn plugin(node: &str, verb: &str, container: &str, netns: &str) -> Answer {
    let config = json!({
        "cniVersion": "1.1.0", "name": "russet", "type": "russet",
        "agent_socket": format!("/run/russet-demo/{node}/run/russet/cni.sock"),
    });
    let env = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    let child = spawn_with_input(command.env_clear().envs(env), config.to_string());
    child.wait_with_output().unwrap().into()
}

fn store_pid() -> u32 {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&cmdline).contains("store\0serve\0--root\0/run/russet-demo/") {
            return entry.file_name().to_str().unwrap().parse().unwrap();
        }
    }
    panic!("the demo has no store");
}

#[test]
#[ignore = "root: makes network namespaces; takes 40 s"]
fn connections_survive_every_agents_death_and_a_stopped_store() {
    // kubernetes.md K91
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--keep"]).json();
    let pods = report["pods"].as_array().unwrap();
    let on = |node: &str| pods.iter().find(|pod| pod["node"] == node).unwrap();
    let conversations = [conversation(on("n1"), on("n2"), 0), conversation(on("n3"), on("n1"), 1)];

    let agents: Vec<Agent> = report["nodes"].as_array().unwrap().iter().map(Agent::of).collect();
    agents.iter().for_each(|agent| agent.signal(Signal::KILL));
    conversations.iter().for_each(Conversation::assert_alive);
    let restarted: Vec<_> = agents.iter().map(Agent::restart).collect();
    for node in ["n1", "n2", "n3"] {
        eventually(TIMEOUT, || plugin(node, "STATUS", "", "").status == 0);
    }
    conversations.iter().for_each(Conversation::assert_alive);

    let store = Pid::from_raw(i32::try_from(store_pid()).unwrap()).unwrap();
    kill_process(store, Signal::STOP).unwrap();
    let stopped = Instant::now();
    NetNs::create_named("rsdemo-late").unwrap();
    // An ADD meanwhile gets the code to try again, and leaves nothing.
    assert_eq!(plugin("n1", "ADD", "late", "/run/netns/rsdemo-late").code(), 11);
    while stopped.elapsed() < STORE_STOPPED {
        conversations.iter().for_each(Conversation::assert_alive);
    }
    kill_process(store, Signal::CONT).unwrap();
    eventually(TIMEOUT, || plugin("n1", "ADD", "late", "/run/netns/rsdemo-late").status == 0);
    let late = plugin("n1", "ADD", "late", "/run/netns/rsdemo-late").addresses();
    let target: IpAddr = late[0].parse().unwrap();
    assert!(pings("rsdemo-n3-p1", &target.to_string()));
    assert_eq!(plugin("n1", "DEL", "late", "/run/netns/rsdemo-late").status, 0);

    conversations.into_iter().for_each(Conversation::finish);
    drop(restarted);
    assert!(Russet::demo(&["--clean"]).output().status.success());
    assert_eq!(HostState::now(), before);
}
