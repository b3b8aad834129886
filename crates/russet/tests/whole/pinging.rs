//! Pings from one pod to another that continue whatever a test does to the programs around them:
//! none may be lost.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::{eventually, require_tool};
use rustix::process::{Pid, Signal, kill_process};

use crate::node::{TIMEOUT, TestPod};

/// Fifty pings a second.
pub struct Pinging {
    ping: Child,
    /// The output of `ping`, read as it comes: a full pipe would stop it.
    output: std::thread::JoinHandle<String>,
}

// === impl Pinging ===

impl Pinging {
    /// Starts when the address answers.
    pub fn start(from: &TestPod, address: &str) -> Self {
        let netns = NetNs::open_named(&from.netns_name).unwrap();
        let command = |args: &[&str]| {
            let mut ping = Command::new(require_tool("ping"));
            ping.args(args).arg(address).stdin(Stdio::null()).stdout(Stdio::piped());
            process::in_netns(&mut ping, &netns).unwrap();
            ping
        };
        eventually(TIMEOUT, || command(&["-c", "1", "-W", "1"]).output().unwrap().status.success());
        let mut ping = command(&["-n", "-i", "0.02"]).spawn().unwrap();
        let mut stdout = ping.stdout.take().unwrap();
        let read = move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        };
        Self { ping, output: std::thread::spawn(read) }
    }

    /// Ends it; every ping but the last, which may be in progress, must have been answered.
    pub fn finish(mut self) {
        kill_process(Pid::from_child(&self.ping), Signal::INT).unwrap();
        self.ping.wait().unwrap();
        let output = self.output.join().unwrap();
        // An ICMP error has a number, too.
        let replies = output.lines().filter(|line| line.contains(" bytes from "));
        let words = replies.flat_map(str::split_whitespace);
        let numbers = words.filter_map(|word| word.strip_prefix("icmp_seq=")?.parse::<u32>().ok());
        let answered: BTreeSet<u32> = numbers.collect();
        let last = *answered.last().expect("no ping was answered");
        let lost: Vec<u32> = (1..last).filter(|number| !answered.contains(number)).collect();
        assert!(lost.is_empty(), "of {last} pings these were lost: {lost:?}");
        println!("{last} pings, none lost");
    }
}
