//! Pings from one pod to another that continue whatever a test does to the programs around them.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::{Process, eventually, require_tool};
use rustix::process::Signal;

use crate::node::{TIMEOUT, TestPod};

/// Pings at an interval.
pub struct Pinging {
    ping: Process,
    /// The output of `ping`, read as it comes: a full pipe would stop it.
    output: std::thread::JoinHandle<String>,
}

/// What was answered of all pings but the last, which may have been in progress.
pub struct Replies {
    pub sent: u32,
    pub lost: Vec<u32>,
}

// === impl Pinging ===

impl Pinging {
    /// Fifty a second; starts when the address answers.
    pub fn start(from: &TestPod, address: &str) -> Self {
        Self::start_every(from, address, "0.02")
    }

    /// The same at an interval in seconds.
    pub fn start_every(from: &TestPod, address: &str, interval_s: &str) -> Self {
        eventually(TIMEOUT, || from.pings(&["-W", "1", address]));
        Self::begin(from, address, interval_s)
    }

    /// The same, whether or not the address answers.
    pub fn begin(from: &TestPod, address: &str, interval_s: &str) -> Self {
        let netns = NetNs::open_named(&from.netns_name).unwrap();
        let mut command = Command::new(require_tool("ping"));
        command.args(["-n", "-D", "-i", interval_s, address]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut ping = Process::start(process::in_netns(&mut command, &netns).unwrap());
        let mut stdout = ping.stdout.take().unwrap();
        let read = move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        };
        Self { ping, output: std::thread::spawn(read) }
    }

    /// Ends it.
    pub fn stop(self) -> Replies {
        self.ping.end(Signal::INT);
        let output = self.output.join().unwrap();
        // An ICMP error has a number, too.
        let reply = |line: &str| {
            let at_s: f64 = line.strip_prefix('[')?.split_once(']')?.0.parse().ok()?;
            let number = line.split_whitespace().find_map(|word| word.strip_prefix("icmp_seq="))?;
            line.contains(" bytes from ").then_some((number.parse::<u32>().ok()?, at_s))
        };
        let replies: Vec<(u32, f64)> = output.lines().filter_map(reply).collect();
        let answered: BTreeSet<u32> = replies.iter().map(|(number, _)| *number).collect();
        let sent = *answered.last().expect("no ping was answered");
        let lost: Vec<u32> = (1..sent).filter(|number| !answered.contains(number)).collect();
        let gaps = replies.windows(2).map(|pair| (pair[1].1 - pair[0].1) * 1000.0);
        let longest_ms = gaps.fold(0.0, f64::max);
        println!("{} of {sent} pings lost, at most {longest_ms:.1} ms without a reply", lost.len());
        Replies { sent, lost }
    }

    /// Ends it; many pings must have been sent, and none answered.
    pub fn finish_unanswered(self) {
        self.ping.end(Signal::INT);
        let output = self.output.join().unwrap();
        let sent =
            output.lines().find_map(|line| line.split_once(" packets transmitted")?.0.parse::<u32>().ok());
        assert!(sent.is_some_and(|sent| sent > 100) && !output.contains(" bytes from "), "{output}");
    }

    /// Ends it; no ping may have been lost.
    pub fn finish(self) {
        let Replies { sent, lost } = self.stop();
        assert!(lost.is_empty(), "of {sent} pings these were lost: {lost:?}");
    }
}
