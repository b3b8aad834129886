//! Programs that enforce policies by a chain for each: the time to load 10,000 of them with four rules
//! each, and to load one rule more.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use russet_linux::{NetNs, process};
use serde_json::{Value, json};

use crate::Result;

const POLICIES: usize = 10_000;

/// A program, its arguments, everything that it loads, and the rule more.
struct Peer {
    command: (&'static str, &'static [&'static str]),
    all: String,
    more: String,
}

/// Loads into a namespace of its own.
pub fn load(program: &str) -> Result<Value> {
    let peer = match program {
        "nft" => nft(),
        "iptables-nft" => iptables("iptables-nft-restore"),
        "iptables-legacy" => iptables("iptables-legacy-restore"),
        _ => return Err(format!("no program {program:?}").into()),
    };
    let netns = NetNs::create_unnamed()?;
    let all = peer.feed(&netns, &peer.all)?;
    let more = peer.feed(&netns, &peer.more)?;
    Ok(json!({ "all_ms": all, "more_ms": more }))
}

fn nft() -> Peer {
    let mut all = "table inet peer {\n".to_owned();
    for policy in 0..POLICIES {
        let _ = writeln!(all, " chain policy-{policy} {{");
        for rule in 0..4 {
            let _ = writeln!(all, "  ip saddr {} tcp dport {} accept", source(policy), 80 + rule);
        }
        all.push_str(" }\n");
    }
    all.push_str("}\n");
    let more = "add rule inet peer policy-77 ip saddr 10.0.0.1 tcp dport 99 accept\n".to_owned();
    Peer { command: ("nft", &["-f", "-"]), all, more }
}

fn iptables(program: &'static str) -> Peer {
    let mut all = "*filter\n".to_owned();
    for policy in 0..POLICIES {
        let _ = writeln!(all, ":policy-{policy} - [0:0]");
    }
    for (policy, rule) in (0..POLICIES).flat_map(|policy| (0..4).map(move |rule| (policy, rule))) {
        let (source, port) = (source(policy), 80 + rule);
        let _ = writeln!(all, "-A policy-{policy} -s {source} -p tcp -m tcp --dport {port} -j ACCEPT");
    }
    all.push_str("COMMIT\n");
    let more = "*filter\n-A policy-77 -s 10.0.0.1 -p tcp -m tcp --dport 99 -j ACCEPT\nCOMMIT\n".to_owned();
    Peer { command: (program, &["--noflush"]), all, more }
}

fn source(policy: usize) -> String {
    format!("10.{}.{}.1", policy / 256, policy % 256)
}

// === impl Peer ===

impl Peer {
    /// The milliseconds that the program takes for it, its start included.
    fn feed(&self, netns: &NetNs, text: &str) -> Result<f64> {
        use std::io::Write as _;
        let (program, arguments) = self.command;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        let begun = Instant::now();
        let mut child = process::in_netns(&mut command, netns)?.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(text.as_bytes())?;
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("{program}: {status}").into());
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}
