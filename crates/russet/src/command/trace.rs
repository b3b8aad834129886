//! `russet trace`: the chains of nf_tables that packets between two ends pass on this node, and their verdicts.
//!
//! The kernel reports each step of a packet that the table of the trace has marked; [`way`] joins them. A thread reads, and another one
//! prints; signals only end them.

mod ends;
mod header;
mod printer;
mod rules;
mod table;
mod way;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use russet_agent::{FastPathMode, Paths};
use russet_model::time::rfc3339;
use russet_netlink::Socket;
use russet_nft::{Hook, TraceMonitor, Traced};
use serde::Serialize;

use super::{Failure, PROBLEMS, runtime, stop_signal};
use crate::cli::Format;
use crate::cli::trace::TraceArgs;
use crate::output;
use crate::settings::recorded;
use ends::Ends;
use header::{Header, ICMP};
use printer::Printer;
use rules::{Rules, hook_name, meaning};
use table::{MARKED_PER_S, TraceTable, Wanted};
use way::{End, Packet, Stage, Ways};

/// A trace while it runs.
struct Trace {
    monitor: TraceMonitor,
    table: TraceTable,
    /// Before the elements of the table time out.
    deadline: Instant,
    printer: Printer,
    rules: Rules,
    ways: Ways,
    ends: Ends,
    /// Names of interfaces by index.
    links: BTreeMap<u32, String>,
    format: Format,
    counts: Counts,
    /// The second in which packets are counted for the limit of the output, and how many were printed in it.
    second: (Instant, u64),
    /// When it was looked whether the table is there.
    looked: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    printed: u64,
    dropped: u64,
    /// Packets that were over, and not printed.
    suppressed: u64,
    /// Packets that were not printed because the output was not read.
    unread: u64,
    overruns: u64,
}

/// A packet, for programs.
#[derive(Debug, Serialize)]
struct PacketReport {
    at: String,
    direction: &'static str,
    from: String,
    to: String,
    source: IpAddr,
    destination: IpAddr,
    proto: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp: Option<String>,
    in_interface: Option<String>,
    out_interface: Option<String>,
    mark: u32,
    stages: Vec<StageReport>,
    /// Whether it is an answer whose addresses are still to be translated.
    translated: bool,
    /// `passed`, `dropped` or `unseen`.
    verdict: &'static str,
    reason: String,
    #[serde(skip)]
    what: String,
}

#[derive(Debug, Serialize)]
struct StageReport {
    hook: Option<&'static str>,
    table: String,
    chains: Vec<String>,
    rule: Option<String>,
    verdict: String,
    meaning: Option<&'static str>,
}

/// Exit code for a command line that makes no sense.
const USAGE: u8 = 2;
/// `IPPROTO_TCP`
const TCP: u8 = 6;
/// How long reading waits at most, so that signals and the end of packets are noticed.
const WAIT: Duration = Duration::from_millis(100);
/// How long the output and the summary may take when the trace is over.
const PRINTING: Duration = Duration::from_secs(1);
/// How often it is looked whether the table is there.
const LOOK: Duration = Duration::from_secs(1);
/// The elements of the table outlive the trace by this, so that no other trace takes the table for one that was left.
const SLACK: Duration = Duration::from_secs(2);
/// The most packets that are printed in a second.
const PRINTED_PER_S: u64 = 100;
/// The most steps that are read between two looks at the clock.
const STEPS_MAX: usize = 1000;

/// Traces until the time is over, or a signal.
pub fn run(args: TraceArgs) -> Result<ExitCode, Failure> {
    if args.port.is_some() && args.proto == Some(ICMP) {
        output::progress("error: ICMP has no ports; leave PORT away");
        return Ok(ExitCode::from(USAGE));
    }
    let runtime = runtime()?;
    let result = runtime.block_on(trace(args));
    // A look-up that a signal has ended may still wait in a thread.
    runtime.shutdown_background();
    result
}

async fn trace(args: TraceArgs) -> Result<ExitCode, Failure> {
    // Before the table: a signal ends the trace then, and not the process.
    let mut stop = pin!(stop_signal()?);
    let paths = Paths::new(&args.place.root);
    let ends = tokio::select! {
        ends = ends::find(&paths, (&args.from, &args.to), args.place) => ends?,
        () = &mut stop => return Err("stopped while addresses were looked up; no packet was traced".into()),
    };
    let protocol = args.proto.or(args.port.map(|_| TCP));
    let wanted = Wanted { pairs: ends.pairs.clone(), protocol, port: args.port };
    notes(&paths).iter().for_each(|note| output::progress(note));
    let trace = Trace::begin(wanted, ends, args.output.format, args.duration.0)?;
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    let mut work = tokio::task::spawn_blocking(move || trace.run(&flag).map_err(|error| error.to_string()));
    let counts = tokio::select! {
        counts = &mut work => counts,
        () = stop => {
            is_stopped.store(true, Ordering::Relaxed);
            work.await
        }
    };
    Ok(if counts??.dropped > 0 { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

/// What a trace does not see on this node.
fn notes(paths: &Paths) -> Vec<String> {
    let config = recorded::look(paths).known.and_then(|known| known.config(paths.clone()).ok());
    let is_on = config.is_some_and(|config| config.fast_path != FastPathMode::Off);
    let note = "note: the fast path is on, and packets that it carries are not traced; this start lets the kernel decide about the next packets of each flow, which are (docs/fast-path.md)";
    is_on.then(|| note.to_owned()).into_iter().collect()
}

// === impl Trace ===

impl Trace {
    fn begin(wanted: Wanted, ends: Ends, format: Format, duration: Duration) -> Result<Self, Failure> {
        let monitor = TraceMonitor::open().map_err(|error| format!("{error}; a trace needs root"))?;
        let begun = Instant::now();
        let table = TraceTable::install(&wanted, duration + SLACK)?;
        let printer = Printer::start(io::stdout())?;
        let trace = Self {
            monitor,
            table,
            deadline: begun + duration,
            printer,
            rules: Rules::read()?,
            ways: Ways::new(wanted),
            ends,
            links: BTreeMap::new(),
            format,
            counts: Counts::default(),
            second: (begun, 0),
            looked: begun,
        };
        trace.announce(duration);
        Ok(trace)
    }

    fn announce(&self, duration: Duration) {
        for (from, to) in &self.ends.pairs {
            let (from, to) = (self.name(*from), self.name(*to));
            output::progress(&format!("tracing {from} <-> {to} for {} s", duration.as_secs()));
        }
    }

    fn name(&self, address: IpAddr) -> String {
        match self.ends.names.get(&address) {
            Some(name) => output::visible(&format!("{name} ({address})")),
            None => address.to_string(),
        }
    }

    /// Traces until the deadline, a stop, the end of the output's reader, or that of the table.
    fn run(mut self, is_stopped: &AtomicBool) -> Result<Counts, Failure> {
        while Instant::now() < self.deadline && !is_stopped.load(Ordering::Relaxed) {
            self.read()?;
            let now = Instant::now();
            while let Some(packet) = self.ways.next(now) {
                self.show(packet);
            }
            self.rules.pause();
            let is_due = now.saturating_duration_since(self.looked) >= LOOK;
            if !self.printer.has_reader() || (is_due && self.table.seen().is_err()) {
                break;
            }
            if is_due {
                self.looked = now;
            }
        }
        // Packets that are on their way now are none of those that ended nowhere.
        for packet in self.ways.rest() {
            if packet.end != End::Unseen {
                self.show(packet);
            }
        }
        let seen = self.table.seen();
        let removed = self.table.remove();
        let left = self.printer.finish(PRINTING);
        self.counts.printed -= left;
        self.counts.unread += left;
        let summary = summary(&self.counts, &self.ways, *seen.as_ref().unwrap_or(&0));
        // Standard error may be the same pipe, which is not read.
        let mut printer = Printer::start(io::stderr())?;
        printer.print(summary);
        printer.finish(PRINTING);
        seen?;
        removed?;
        Ok(self.counts)
    }

    fn read(&mut self) -> Result<(), Failure> {
        let mut wait = WAIT;
        for _ in 0..STEPS_MAX {
            match self.monitor.next(wait)? {
                Some(Traced::Event(event)) => {
                    let now = Instant::now();
                    // Later, the table may be another trace's with the same name.
                    if now >= self.deadline {
                        break;
                    }
                    let is_own = self.table.is(&event.table);
                    self.ways.take(event, is_own, (now, SystemTime::now()));
                }
                Some(Traced::Overrun) => self.counts.overruns += 1,
                None => break,
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    fn show(&mut self, packet: Packet) {
        self.counts.dropped += u64::from(packet.end == End::Dropped);
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            self.second = (Instant::now(), 0);
        }
        if self.second.1 >= PRINTED_PER_S {
            self.counts.suppressed += 1;
            return;
        }
        self.second.1 += 1;
        let report = self.report(&packet);
        let text = match self.format {
            Format::Json => serde_json::to_string(&report).unwrap_or_default() + "\n",
            Format::Yaml => format!("---\n{}", output::in_format(self.format, &report, String::new)),
            Format::Table | Format::Wide => text(&report),
        };
        let is_taken = self.printer.print(text);
        *(if is_taken { &mut self.counts.printed } else { &mut self.counts.unread }) += 1;
    }

    fn report(&mut self, packet: &Packet) -> PacketReport {
        let header = packet.header;
        let is_translated = packet.is_translated;
        let stages: Vec<StageReport> = packet.stages.iter().map(|stage| self.stage(stage)).collect();
        let [in_interface, out_interface] =
            [packet.in_index, packet.out_index].map(|index| index.map(|index| self.link(index)));
        let out = out_interface.as_deref();
        let (verdict, reason) = match packet.end {
            End::Passed(Hook::Input) => ("passed", "passed: delivered to this node".to_owned()),
            End::Passed(_) => ("passed", format!("passed: leaves by {}", out.unwrap_or("an interface"))),
            End::Dropped => ("dropped", self.dropped(packet)),
            End::Unseen => ("unseen", unseen(packet)),
        };
        PacketReport {
            at: rfc3339(packet.at),
            direction: if packet.is_back { "B -> A" } else { "A -> B" },
            from: self.name(header.source),
            to: self.name(header.destination),
            source: header.source,
            destination: header.destination,
            proto: header.protocol_name(),
            source_port: header.ports.map(|(from, _)| from),
            destination_port: header.ports.map(|(_, to)| to),
            icmp: header.icmp.map(|(kind, code)| format!("{kind}/{code}")),
            in_interface,
            out_interface,
            mark: packet.mark,
            stages,
            translated: is_translated,
            verdict,
            reason,
            what: header.what() + if is_translated { ", an answer before translation" } else { "" },
        }
    }

    fn stage(&mut self, stage: &Stage) -> StageReport {
        StageReport {
            hook: self.rules.hook(stage).map(hook_name),
            table: stage.table.to_string(),
            chains: stage.chains.clone(),
            rule: self.rules.rule(stage),
            verdict: stage.verdict.as_ref().map_or_else(|| "other".to_owned(), ToString::to_string),
            meaning: meaning(stage),
        }
    }

    /// What dropped a packet, and which command says why.
    fn dropped(&self, packet: &Packet) -> String {
        let Some(stage) = packet.dropped_by() else { return "dropped".to_owned() };
        let by = format!("dropped by {} {}", stage.table, stage.chains.last().map_or("", String::as_str));
        let is_of_policies = matches!(stage.table.name.as_str(), "russet-decisions" | "russet-hosts");
        // Policies are asked by the ends of the connection, and of a translated answer they are not known.
        if !is_of_policies || packet.is_translated {
            return by;
        }
        // Of an answer the question is whether its request is allowed.
        let is_of_request = packet.is_back && stage.chains.iter().any(|chain| chain.contains("reply"));
        let (from, to, asked) = question(&packet.header, is_of_request);
        let [from, to] =
            [from, to].map(|address| self.ends.names.get(&address).cloned().unwrap_or(address.to_string()));
        format!("{by}; `russet explain {from} {to}{asked}` names the policy")
    }

    fn link(&mut self, index: u32) -> String {
        if !self.links.contains_key(&index) {
            // Interfaces come and go; one that is gone is shown by its index.
            let links = Socket::route().and_then(|mut socket| socket.links()).unwrap_or_default();
            self.links = links.into_iter().map(|link| (link.index, link.name)).collect();
            self.links.entry(index).or_insert_with(|| format!("if{index}"));
        }
        self.links.get(&index).cloned().unwrap_or_default()
    }
}

/// What was traced and what was not, in lines.
fn summary(counts: &Counts, ways: &Ways, seen: u64) -> String {
    let Counts { printed, dropped, suppressed, unread, overruns } = *counts;
    let mut text = format!("{printed} packets traced, {dropped} dropped\n");
    let left_out = seen.saturating_sub(ways.marked) + suppressed + ways.crowded;
    if left_out > 0 {
        text += &format!(
            "{left_out} more packets were not traced: at most {MARKED_PER_S} a second are marked by a rule, and {PRINTED_PER_S} printed\n"
        );
    }
    if unread > 0 {
        text += &format!(
            "{unread} more packets were traced and not printed, because the output was not read in time; write it to a file\n"
        );
    }
    if overruns > 0 {
        text += &format!(
            "steps of packets were lost {overruns} times, because they came too fast: ways may be incomplete; give PORT or --proto\n"
        );
    }
    text
}

/// The ends and the third word of the question for `russet explain`: a port if it is known, else only ICMP.
fn question(header: &Header, is_of_request: bool) -> (IpAddr, IpAddr, String) {
    let (mut from, mut to) = (header.source, header.destination);
    let mut port = header.ports.map(|(_, to)| to);
    if is_of_request {
        (from, to) = (to, from);
        port = header.ports.map(|(from, _)| from);
    }
    let proto = header.protocol_name();
    let asked = match port {
        Some(port) if proto == "tcp" => format!(" {port}"),
        Some(port) => format!(" {port}/{proto}"),
        None if proto == "icmp" => " icmp".to_owned(),
        None => String::new(),
    };
    (from, to, asked)
}

/// Where a packet was seen last.
fn unseen(packet: &Packet) -> String {
    let last = packet.stages.last();
    let behind = last.map_or_else(String::new, |stage| {
        format!(" behind {} {}", stage.table, stage.chains.first().map_or("", String::as_str))
    });
    format!(
        "not seen{behind}: dropped outside of these chains (no route, rp_filter, TTL expired, larger than the MTU and not to be fragmented, iptables-legacy), or taken by a program"
    )
}

fn text(report: &PacketReport) -> String {
    let PacketReport { at, direction, from, to, what, in_interface, mark, stages, reason, .. } = report;
    let came = in_interface.as_ref().map_or_else(|| "from this node".to_owned(), |name| format!("in {name}"));
    let mark = if *mark == 0 { String::new() } else { format!("  mark {mark:#x}") };
    let mut lines = vec![format!("{at}  {direction}  {from} -> {to}  {what}  {came}{mark}")];
    for stage in stages {
        let StageReport { hook, table, chains, rule, verdict, meaning } = stage;
        let rule = rule.as_ref().map(|rule| format!("  {rule}")).unwrap_or_default();
        let meaning = meaning.map(|meaning| format!("  [{meaning}]")).unwrap_or_default();
        let hook = hook.unwrap_or("-");
        lines.push(format!("  {hook:<11} {table} {}: {verdict}{rule}{meaning}", chains.join(" > ")));
    }
    lines.push(format!("  {reason}"));
    lines.iter().map(|line| output::visible(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_a_block_of_lines_without_control_characters() {
        let stage = StageReport {
            hook: Some("postrouting"),
            table: "inet t".into(),
            chains: vec!["base".into(), "hostile\u{1b}[2J\n".into()],
            rule: Some("rule 9 (immediate)".into()),
            verdict: "drop".into(),
            meaning: Some("policies: denied"),
        };
        let report = PacketReport {
            at: "2026-11-29T06:00:00Z".into(),
            direction: "A -> B",
            from: "shop/web (10.0.0.1)".into(),
            to: "10.0.0.2".into(),
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            proto: "tcp".into(),
            source_port: Some(9),
            destination_port: Some(80),
            icmp: None,
            in_interface: Some("russ1".into()),
            out_interface: None,
            mark: 0x10,
            stages: vec![stage],
            translated: false,
            verdict: "dropped",
            reason: "dropped by inet t base".into(),
            what: "tcp 9 -> 80 SYN".into(),
        };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "2026-11-29T06:00:00Z  A -> B  shop/web (10.0.0.1) -> 10.0.0.2  tcp 9 -> 80 SYN  in russ1  mark 0x10"
        );
        assert!(lines[1].starts_with("  postrouting inet t base > hostile"), "{text}");
        assert!(lines[1].ends_with(": drop  rule 9 (immediate)  [policies: denied]"), "{text}");
        assert_eq!((lines.len(), lines[2]), (3, "  dropped by inet t base"));
        assert!(lines.iter().all(|line| !line.chars().any(char::is_control)));
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.lines().count() == 1 && !json.contains("\"what\"") && !json.contains("icmp"), "{json}");
    }

    #[test]
    fn a_question_has_a_port_that_is_known_or_icmp_and_no_other_protocol() {
        use header::tests::ipv4;
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let asked = |protocol, transport: &[u8], is_of_request| {
            let header = Header::read(&ipv4(a, b, protocol), transport).unwrap();
            let (from, to, asked) = question(&header, is_of_request);
            format!("{from} {to}{asked}")
        };
        assert_eq!(asked(6, &[0, 9, 0, 80], false), "10.0.0.1 10.0.0.2 80");
        assert_eq!(asked(17, &[0, 53, 0, 9], true), "10.0.0.2 10.0.0.1 53/udp");
        assert_eq!(asked(1, &[], false), "10.0.0.1 10.0.0.2 icmp");
        // GRE, and a later fragment.
        assert_eq!(asked(47, &[0, 9, 0, 80], false), "10.0.0.1 10.0.0.2");
        assert_eq!(asked(17, &[], false), "10.0.0.1 10.0.0.2");
    }

    #[test]
    fn packets_that_were_not_printed_are_named_with_the_reason() {
        let ways = Ways::new(Wanted::default());
        let counts = Counts { printed: 3, unread: 2, ..Counts::default() };
        let text = summary(&counts, &ways, 7);
        assert!(text.starts_with("3 packets traced, 0 dropped\n7 more packets were not traced"), "{text}");
        assert!(text.contains("2 more packets were traced and not printed, because the output"), "{text}");
    }
}
