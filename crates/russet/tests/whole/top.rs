//! `russet top` in a pseudo-terminal: what it shows, its keys, and the terminal after its end.

use std::fs;
use std::process::{Command, ExitStatus};

use russet_testkit::terminal::{Background, PseudoTerminal, Screen};
use russet_testkit::{Process, eventually, eventually_some};
use rustix::process::Signal;

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};
use crate::ui::{deny_all, screenshots, two_nodes};

/// `russet top` on a node.
struct Top {
    terminal: PseudoTerminal,
    process: Process,
}

// === impl Top ===

impl Top {
    fn start(node: &TestNode, size: (u16, u16), env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["top", "--interval", "1s", "--root"]).arg(node.root());
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color").envs(env.iter().copied());
        let (terminal, process) = PseudoTerminal::start(&mut command, size.0, size.1);
        Self { terminal, process }
    }

    /// Waits until the screen has all of these texts.
    #[track_caller]
    fn shows(&mut self, texts: &[&str]) -> Screen {
        let missing = |screen: &Screen| {
            let text = screen.text();
            texts.iter().find(|part| !text.contains(**part)).map(|part| format!("{part}:\n{text}"))
        };
        let mut last = None;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(TIMEOUT, || {
                last = missing(&self.terminal.screen());
                last.is_none()
            });
        }));
        assert!(found.is_ok(), "not shown: {}", last.unwrap_or_default());
        self.terminal.screen()
    }

    /// Presses a key, and waits until the screen has all of these texts.
    #[track_caller]
    fn press(&mut self, key: &str, texts: &[&str]) -> Screen {
        self.terminal.press(key);
        self.shows(texts)
    }

    /// Waits for its end, and meanwhile takes what it writes.
    fn exit_status(&mut self) -> ExitStatus {
        eventually_some(TIMEOUT, || {
            self.terminal.written();
            self.process.has_ended()
        })
    }

    /// Waits for its end, after which the terminal is as it was.
    #[track_caller]
    fn ends_well(mut self) {
        let status = self.exit_status();
        let written = self.terminal.written();
        assert!(status.success() && written.ends_with("\u{1b}[?1049l\u{1b}[?25h"), "{status}: {written:?}");
        let screen = self.terminal.screen();
        assert!(!screen.is_alternate && screen.is_cursor_shown && self.terminal.is_cooked());
        assert_eq!(screen.text().trim(), "", "nothing is left on the screen");
    }
}

/// Keeps a screen as text and as pictures, beside those of the page.
fn keep(name: &str, screen: &Screen) {
    let dir = screenshots();
    for (ending, content) in [
        ("txt", screen.text()),
        ("dark.svg", screen.svg(Background::Dark)),
        ("light.svg", screen.svg(Background::Light)),
    ] {
        let file = dir.join(format!("{name}.{ending}"));
        fs::write(&file, content).unwrap();
        println!("{}", file.display());
    }
}

#[test]
#[ignore = "root: two nodes on an etcd, a policy, a route that is deleted; kernel: vxlan, nfnetlink_log; tool: etcd, ip, ping"]
fn a_terminal_shows_the_node_as_keys_choose_also_without_its_agent() {
    let mut fabric = Fabric::new();
    let (mut nodes, pods, addresses) = two_nodes(&mut fabric);
    let a = &mut nodes[0];
    deny_all(a);
    let mut top = Top::start(a, (150, 30), &[]);
    keep(
        "top-state",
        &top.shows(&[
            "node-a: ready",
            "[1 State]",
            "No problems.",
            "datastore  etcd:http://10.77.0.1:2379",
            "1 reachable",
        ]),
    );
    keep("top-nodes", &top.press("2", &["[2 Nodes]", "node-b  reachable", "tunnel"]));
    let block = top.press("3", &["[3 Blocks]", "[#...................]   5%  3 of 64"]);
    keep("top-blocks", &block);
    keep("top-pods", &top.press("5", &["[5 Pods]", &pods[0].container, &addresses[1]]));
    keep("top-operations", &top.press("6", &["[6 Operations]", "ADD ", "done"]));

    top.press("4", &["[4 Flows]"]);
    // The first packets may have come before the policy.
    eventually(TIMEOUT, || {
        pods[0].pings(&["-W", "1", &addresses[1]]);
        top.terminal.screen().text().contains(" denied ")
    });
    let flows = ["denied only", " denied ", "icmp/8/0", "KubernetesNetworkPolicy default/deny-all"];
    keep("top-flows", &top.press("d", &flows));
    a.ip(&["route", "del", &format!("{}/32", addresses[0])]);
    keep("top-drift", &top.press("7", &["[7 Drift]", &format!("put route {}/32", addresses[0]), "restored"]));
    top.press("/no such text\r", &["None of ", "filter \"no such text\""]);
    top.press("/\u{1b}", &["put route"]);
    top.terminal.resize(40, 12);
    keep("top-small", &top.press("1", &["[1 State] 2  3  4  5  6  7", "No problems."]));
    top.press("\u{1b}[Z", &["[7 Drift]"]);

    top.terminal.resize(150, 30);
    a.stop_agent();
    keep("top-old", &top.press("5", &["old: node-a", "the agent does not answer since", &pods[0].container]));
    a.start_agent();
    eventually(TIMEOUT, || !top.terminal.screen().text().contains("does not answer"));
    top.process.signal(Signal::TERM);
    top.ends_well();
}

#[test]
#[ignore = "root: a node with an agent"]
fn the_terminal_is_as_it_was_after_each_way_to_end() {
    let node = TestNode::start(&[]);
    for key in ["q", "\u{1b}", "\u{3}"] {
        let mut top = Top::start(&node, (80, 24), &[]);
        assert!(top.shows(&["node-a: ready"]).is_alternate && !top.terminal.is_cooked());
        top.terminal.press(key);
        top.ends_well();
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = Top::start(&node, (80, 24), &[("NO_COLOR", "1")]);
        top.shows(&["node-a: ready"]);
        assert!(!top.terminal.written().contains("\u{1b}[38;5;"), "NO_COLOR");
        top.process.signal(signal);
        top.ends_well();
    }
    // A terminal that is closed ends it, too.
    let mut top = Top::start(&node, (80, 24), &[]);
    top.shows(&["node-a: ready"]);
    drop(top.terminal);
    eventually(TIMEOUT, || top.process.has_ended().is_some());
}

#[test]
#[ignore = "root: a node with an agent and a pod; tool: ip"]
fn once_everything_is_printed_and_without_a_terminal_nothing_else() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let address = node.add(&pod).addresses().remove(0);
    let answer = eventually_some(TIMEOUT, || {
        let answer = node.russet(&["top", "--once"]);
        // A machine with other work needs longer than a moment for the first reading of blocks.
        answer.stdout.contains("\nBlocks\nNODE ").then_some(answer)
    });
    assert_eq!((answer.status, answer.stderr.as_str()), (0, ""), "{answer:?}");
    assert!(answer.stdout.starts_with("node-a: ready, no problems (agent "), "{answer:?}");
    let parts =
        ["\nNodes\n", "\nBlocks\nNODE ", "\nFlows\n", "\nPods\nPOD ", "\nOperations\nBEGAN ", "\nDrift\n"];
    for part in parts.into_iter().chain([pod.container.as_str(), address.as_str(), "  ADD "]) {
        assert!(answer.stdout.contains(part), "{part}: {}", answer.stdout);
    }
    println!("{}", answer.stdout);

    let answer = node.russet(&["top"]);
    assert!(answer.status == 2 && answer.stderr.contains("russet top --once"), "{answer:?}");
    let mut top = Top::start(&node, (120, 24), &[("TERM", "dumb")]);
    assert_eq!(top.exit_status().code(), Some(2));
    let written = top.terminal.written();
    assert!(written.contains("russet status --watch") && !written.contains('\u{1b}'), "{written:?}");
    node.stop_agent();
    let answer = node.russet(&["top", "--once"]);
    assert!(answer.status == 1 && answer.stderr.contains("systemctl start russet-agent"), "{answer:?}");
    let mut top = Top::start(&node, (120, 24), &[]);
    assert_eq!(top.exit_status().code(), Some(1));
    let written = top.terminal.written();
    assert!(written.contains("no agent runs at") && !written.contains('\u{1b}'), "{written:?}");
}
