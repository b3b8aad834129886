//! The flows of a file, or of this node's agent.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use russet_agent::Paths;
use russet_agent::flows::{
    ALLOWED, ANSWER_MAX, DENIED, FLOWS_MAX as KEPT_MAX, FLOWS_PATH, FROM_OLDEST, FlowEnd, FlowRecord,
    FlowsReport, FlowsRequest,
};
use russet_model::time::parse_rfc3339;
use russet_verdict::explain::Probe;
use russet_verdict::ir::{Direction, Protocol};
use russet_verdict::recommend::{End, FLOWS_MAX, Record, Window};
use serde::de::Error as _;

use crate::command::ask::{self, AskError};

/// The name that means standard input.
pub const STDIN: &str = "-";
/// A week of a node at the most flows a second that the kernel logs has about so much.
const FILE_MAX: u64 = 4 << 30;
/// A record has some hundred bytes; a report of an agent fits into this, too.
const ENTRY_MAX: u64 = 16 << 20;
/// So many characters of a text of a record are in an error, and of an error that quotes one.
const QUOTED_MAX: usize = 40;
const WHY_MAX: usize = 200;
/// The agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("{0} is larger than 4 GiB: give the records of fewer days or nodes")]
    TooLarge(String),
    #[error(
        "{file}, line {line}: {why}; lines are as `russet flows -f -o json` prints them: delete this one, for example if the collecting command was stopped within it"
    )]
    Line { file: String, line: u64, why: String },
    #[error(
        "{0} has more than {FLOWS_MAX} different flows: give one namespace by --namespace, or a shorter --window"
    )]
    TooMany(String),
    #[error(transparent)]
    Agent(#[from] AskError),
    #[error("the agent sees no flows: {0}")]
    Unread(String),
}

/// Keeps what is wanted of records.
pub struct Reader {
    pub window: Window,
    /// Only flows with an end in it are kept.
    pub namespace: Option<String>,
    /// The addresses of its pods, for records that have no names.
    pub addresses: BTreeSet<IpAddr>,
    /// Only flows that were seen since then.
    pub oldest: Option<SystemTime>,
}

// === impl Reader ===

impl Reader {
    /// Reads a file of records, one a line, or of reports of agents.
    pub fn read_file(&mut self, path: &Path) -> Result<(), InputError> {
        let is_stdin = path.as_os_str() == STDIN;
        let file = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let failed = |source| InputError::Read { file: file.clone(), source };
        if is_stdin {
            return self.read(&file, io::stdin().lock());
        }
        self.read(&file, BufReader::new(File::open(path).map_err(failed)?))
    }

    fn read(&mut self, file: &str, input: impl BufRead) -> Result<(), InputError> {
        let failed = |source| InputError::Read { file: file.to_owned(), source };
        let mut input = input.take(FILE_MAX + 1);
        let (mut entry, mut line, mut first) = (Vec::new(), 0, 1);
        loop {
            let before = entry.len();
            let room = ENTRY_MAX.saturating_sub(before as u64) + 1;
            let read = input.by_ref().take(room).read_until(b'\n', &mut entry).map_err(failed)?;
            line += 1;
            if input.limit() == 0 {
                return Err(InputError::TooLarge(file.to_owned()));
            }
            let ends = read == 0 || entry.len() as u64 > ENTRY_MAX;
            let last = entry.get(before..).unwrap_or_default().trim_ascii_end();
            // A report is printed over many lines, of which the last is the only one that is this.
            if !ends && before > 0 && last != b"}" {
                continue;
            }
            if !entry.trim_ascii().is_empty() {
                let wrong = |error: serde_json::Error| {
                    let why = error.to_string().chars().take(WHY_MAX).collect();
                    InputError::Line { file: file.to_owned(), line: first, why }
                };
                match self.entry(&entry) {
                    Ok(Ok(())) => {}
                    Ok(Err(())) => return Err(InputError::TooMany(file.to_owned())),
                    Err(error) if error.is_eof() && !ends => continue,
                    Err(error) => return Err(wrong(error)),
                }
            }
            if read == 0 {
                return Ok(());
            }
            entry.clear();
            first = line + 1;
        }
    }

    /// Adds the records of an entry; an error within is that there are too many flows.
    fn entry(&mut self, text: &[u8]) -> Result<Result<(), ()>, serde_json::Error> {
        let records = match serde_json::from_slice::<FlowRecord>(text) {
            Ok(record) => vec![record],
            Err(error) if error.is_syntax() || error.is_eof() => return Err(error),
            Err(error) => match serde_json::from_slice::<FlowsReport>(text) {
                Ok(report) => report.flows,
                Err(_) => return Err(error),
            },
        };
        for record in records {
            if self.add(record)?.is_err() {
                return Ok(Err(()));
            }
        }
        Ok(Ok(()))
    }

    fn add(&mut self, record: FlowRecord) -> Result<Result<(), ()>, serde_json::Error> {
        let record = converted(record).map_err(serde_json::Error::custom)?;
        if self.oldest.is_some_and(|oldest| record.last < oldest) {
            return Ok(Ok(()));
        }
        let is_in = |end: &End, namespace: &String| match end.name.split_once('/') {
            Some((of, _)) => of == namespace,
            None => self.addresses.contains(&end.address),
        };
        let ends = [&record.source, &record.destination];
        let wanted = self.namespace.as_ref().is_none_or(|it| ends.iter().any(|end| is_in(end, it)));
        Ok(self.window.add(record, wanted).map_err(|_| ()))
    }

    /// Asks this node's agent for all flows that it has.
    pub fn ask_agent(&mut self, paths: &Paths) -> Result<(), InputError> {
        self.ask_all(|request| asked(paths, request))
    }

    fn ask_all(
        &mut self,
        ask: impl Fn(&FlowsRequest) -> Result<FlowsReport, InputError>,
    ) -> Result<(), InputError> {
        let mut request = FlowsRequest { limit: ANSWER_MAX, ..FlowsRequest::default() };
        let mut report = ask(&request)?;
        // The first answer has the last flows. If that is not all, they are asked for from the oldest on.
        if report.flows.len() >= ANSWER_MAX {
            request.after = FROM_OLDEST;
            report = ask(&request)?;
        }
        for _ in 0..=KEPT_MAX.div_ceil(ANSWER_MAX) {
            let (count, next) = (report.flows.len(), report.next);
            for record in report.flows {
                let added = self.add(record).map_err(|error| AskError::NoReport(error.to_string()))?;
                added.map_err(|()| InputError::TooMany("the agent".to_owned()))?;
            }
            if count < ANSWER_MAX {
                break;
            }
            request.after = next;
            report = ask(&request)?;
        }
        Ok(())
    }
}

fn asked(paths: &Paths, request: &FlowsRequest) -> Result<FlowsReport, InputError> {
    let to = (FLOWS_PATH, FlowsReport::SCHEMA);
    let report: FlowsReport = ask::ask(&paths.cni_socket(), to, request, TIMEOUT)?;
    match report.unread {
        Some(reason) => Err(InputError::Unread(crate::output::visible(&reason))),
        None => Ok(report),
    }
}

/// The front of a text, in quotes.
fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED_MAX).collect::<String>())
}

/// A record as the recommendation takes it, or what is wrong with it.
fn converted(record: FlowRecord) -> Result<Record, String> {
    let decision = record.decision;
    let time = |text: &str| parse_rfc3339(text).ok_or_else(|| format!("{} is no time", quoted(text)));
    let direction = match &*decision.direction {
        "ingress" => Direction::Ingress,
        "egress" => Direction::Egress,
        other => return Err(format!("direction: {} is not ingress or egress", quoted(other))),
    };
    let allowed = match &*record.verdict {
        ALLOWED => true,
        DENIED => false,
        other => return Err(format!("verdict: {} is not {ALLOWED} or {DENIED}", quoted(other))),
    };
    if decision.source.address.is_ipv4() != decision.destination.address.is_ipv4() {
        return Err("source and destination have addresses of two families".to_owned());
    }
    let (protocol, port) = service(&decision.proto, decision.port, decision.icmp.as_deref())
        .ok_or_else(|| format!("proto: {} is not known", quoted(&decision.proto)))?;
    let end = |end: FlowEnd| End { name: end.name, address: end.address };
    Ok(Record {
        direction,
        allowed,
        source: end(decision.source),
        destination: end(decision.destination),
        protocol,
        port,
        count: record.packets,
        first: time(&record.first)?,
        last: time(&record.last)?,
    })
}

/// The protocol, and the destination port or the message of ICMP.
fn service(proto: &str, port: Option<u16>, icmp: Option<&str>) -> Option<(Protocol, u16)> {
    let named = || format!("{proto}/1").parse::<Probe>().or_else(|_| proto.parse()).ok();
    let number = proto.parse().ok().map(Protocol);
    let protocol = number.or_else(|| named().map(|probe| probe.protocol))?;
    let message = icmp.and_then(|text| text.split_once('/'));
    let message = message.and_then(|(kind, code)| Some((kind.parse::<u8>().ok()?, code.parse::<u8>().ok()?)));
    let message = message.map_or(0, |(kind, code)| u16::from_be_bytes([kind, code]));
    Some((protocol, port.unwrap_or(message)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use russet_agent::flows::FlowLog;
    use russet_verdict::flow::Flow;
    use serde_json::{Value, json};

    use super::*;

    fn line(source: &str, destination: &str, port: u16) -> Value {
        json!({"id": 7, "first": "2026-11-27T15:00:00Z", "last": "2026-11-27T15:00:01Z", "packets": 2,
            "verdict": "allowed", "direction": "ingress",
            "source": {"name": source, "address": "10.0.0.1"},
            "destination": {"name": destination, "address": "10.0.0.2"},
            "proto": "tcp", "port": port, "icmp": null, "policies": [], "rule": null, "reason": "", "pending": null})
    }

    fn read(text: &str) -> Result<usize, String> {
        let addresses = ["10.0.0.2".parse().unwrap()].into();
        let namespace = Some("shop".into());
        let mut reader = Reader { window: Window::default(), namespace, addresses, oldest: None };
        reader.read("f", text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(reader.window.finish().0.len())
    }

    #[test]
    fn lines_and_reports_are_read_and_other_namespaces_left_out() {
        let (one, two) = (line("shop/a", "shop/b", 80), line("x/a", "shop/b", 81));
        let other = line("x/a", "y/b", 82);
        assert_eq!(read(&format!("{one}\n\n{two}\n{other}\n{one}")), Ok(2));
        // A pod of the namespace whose name was not known.
        assert_eq!(read(&line("x/a", "10.0.0.2", 83).to_string()), Ok(1));
        assert_eq!(read(&line("10.0.0.1", "y/b", 83).to_string()), Ok(0));
        let report = json!({"schema": 1, "unread": null, "flows": [one, other], "next": 7, "missed": 0,
            "packets": {"denied": 0, "suppressed": 0, "lost": 0}});
        let report = crate::output::json(&report);
        assert_eq!(read(&format!("{report}{two}\n{report}")), Ok(2));
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error_with_its_number() {
        let one = line("shop/a", "shop/b", 80);
        let changed = |member: &str, value: Value| {
            let mut line = one.clone();
            line[member] = value;
            line.to_string()
        };
        let cut = one.to_string()[..40].to_owned();
        for (wrong, why) in [
            (cut.clone(), "while parsing"),
            (format!("{cut}{one}"), "expected"),
            ("hello".to_owned(), "expected value"),
            ("{}".to_owned(), "missing field"),
            (changed("first", json!("yesterday")), "is no time"),
            (changed("verdict", json!("maybe")), "verdict"),
            (changed("direction", json!("up")), "direction"),
            (changed("proto", json!("\u{1b}")), "proto"),
            (changed("source", json!({"name": "x", "address": "::1"})), "two families"),
        ] {
            let error = read(&format!("{one}\n{wrong}\n")).unwrap_err();
            assert!(error.starts_with("f, line 2: ") && error.contains(why), "{error}");
            assert!(error.contains("delete this one"), "{error}");
        }
    }

    #[test]
    fn an_error_has_only_the_front_of_what_a_record_says() {
        let long = "\u{1f980}".repeat(1_000_000);
        for member in ["first", "id", "verdict", "direction", "proto"] {
            let mut one = line("shop/a", "shop/b", 80);
            one[member] = json!(long);
            let error = read(&one.to_string()).unwrap_err();
            assert!(error.chars().count() < 500 && error.contains('\u{1f980}'), "{member}: {}", error.len());
        }
    }

    #[test]
    fn an_agents_flows_are_all_read_also_the_first_one() {
        for count in [1, 499, 500, 501, 1100] {
            let log = FlowLog::default();
            for port in 1..=count {
                let decision = serde_json::from_value(line("shop/a", "shop/b", port)).unwrap();
                let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|it| it.parse().unwrap());
                let protocol = Protocol::TCP;
                let flow = Flow { source, destination, protocol, source_port: 9, destination_port: port };
                log.add(true, &flow, decision, Instant::now());
            }
            let addresses = BTreeSet::new();
            let mut reader = Reader { window: Window::default(), namespace: None, addresses, oldest: None };
            reader.ask_all(|request| Ok(log.report(request))).unwrap();
            let ports: Vec<u16> = reader.window.finish().0.iter().map(|flow| flow.port).collect();
            assert_eq!(ports, (1..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_entry_without_an_end_is_refused() {
        let error = read(&"x".repeat(usize::try_from(ENTRY_MAX).unwrap() + 10)).unwrap_err();
        assert!(error.starts_with("f, line 1: "), "{error}");
        assert!(read(&"{\n".repeat(9_000_000)).is_err());
    }

    #[test]
    fn protocols_are_read_as_the_log_writes_them() {
        for (proto, port, icmp, wanted) in [
            ("tcp", Some(80), None, Some((Protocol::TCP, 80))),
            ("icmp", None, Some("8/0"), Some((Protocol::ICMP, 8 << 8))),
            ("icmpv6", None, Some("128/0"), Some((Protocol::ICMPV6, 128 << 8))),
            ("47", None, None, Some((Protocol(47), 0))),
            ("none", None, None, None),
        ] {
            assert_eq!(service(proto, port, icmp), wanted, "{proto}");
        }
    }
}
