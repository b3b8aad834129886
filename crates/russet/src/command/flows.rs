//! `russet flows`: asks the agent which flows policies denied or let pass, and what decided.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::fast_path::Path;
use russet_agent::flows::{
    ALLOWED, Decision, FLOWS_PATH, FlowEnd, FlowRecord, FlowsReport, FlowsRequest, Packets, WAIT_MAX,
};

use super::ask::{self, AskError};
use super::{FAILED, Failure};
use crate::cli::Format;
use crate::cli::flows::FlowsArgs;
use crate::output;

/// The agent answers from memory; a waiting answer takes so much longer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most flows of an answer while flows are followed.
const FOLLOWED_MAX: usize = 200;

/// Prints the flows that the agent has, and with `--follow` those that come.
pub fn run(args: FlowsArgs) -> Result<ExitCode, Failure> {
    let paths = Paths::new(&args.root);
    let mut request = FlowsRequest {
        after: 0,
        limit: usize::from(args.last),
        denied: args.denied,
        pod: args.pod,
        policy: args.policy,
        wait_ms: 0,
    };
    let format = args.output.format;
    let mut report = ask(&paths, &request, TIMEOUT)?;
    if args.last == 0 {
        report.flows.clear();
    }
    if !args.follow {
        output::print_as(format, &report, || report.flows.iter().map(|flow| line(flow) + "\n").collect());
    }
    notes(&report).iter().for_each(|note| output::progress(&output::visible(note)));
    if report.unread.is_some() {
        return Ok(ExitCode::from(FAILED));
    }
    if args.follow {
        request.limit = FOLLOWED_MAX;
        request.wait_ms = u64::try_from(WAIT_MAX.as_millis())?;
        follow(&paths, request, report, format)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what an answer has and asks for what follows, until nothing reads the output any more.
fn follow(
    paths: &Paths,
    mut request: FlowsRequest,
    mut report: FlowsReport,
    format: Format,
) -> Result<(), Failure> {
    loop {
        if report.missed > 0 {
            output::progress(&format!("{} flows were not kept until they could be shown", report.missed));
        }
        let text: String = report.flows.iter().map(|flow| one(flow, format)).collect();
        let mut out = io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
        drop(out);
        request.after = report.next;
        report = ask(paths, &request, WAIT_MAX + TIMEOUT)?;
    }
}

fn ask(paths: &Paths, request: &FlowsRequest, timeout: Duration) -> Result<FlowsReport, AskError> {
    ask::ask(&paths.cni_socket(), (FLOWS_PATH, FlowsReport::SCHEMA), request, timeout)
}

/// What a reader of the flows should know.
fn notes(report: &FlowsReport) -> Vec<String> {
    let Packets { denied, suppressed, lost } = report.packets;
    let mut notes: Vec<String> =
        report.unread.iter().map(|reason| format!("flows are not seen: {reason}")).collect();
    if suppressed > 0 {
        notes.push(format!(
            "{suppressed} of {denied} denied packets since the agent's start are not among the flows: the kernel logs at most 100 a second"
        ));
    }
    if lost > 0 {
        notes.push(format!("{lost} logged packets since the agent's start were lost before they were named"));
    }
    notes
}

/// A flow, as it is followed.
fn one(flow: &FlowRecord, format: Format) -> String {
    match format {
        Format::Json => serde_json::to_string(flow).unwrap_or_default() + "\n",
        Format::Yaml => format!("---\n{}", output::in_format(format, flow, String::new)),
        Format::Table | Format::Wide => line(flow) + "\n",
    }
}

fn line(flow: &FlowRecord) -> String {
    let Decision { direction, source, destination, reason, pending, .. } = &flow.decision;
    let by: Vec<String> = flow.decision.policies.iter().map(ToString::to_string).collect();
    let by = if by.is_empty() { String::new() } else { format!("  [{}]", by.join(", ")) };
    let pending = pending.as_ref().map_or_else(String::new, |pending| {
        let by: Vec<String> = pending.policies.iter().map(ToString::to_string).collect();
        format!("  pending: {} by {}", pending.verdict, by.join(", "))
    });
    let packets = if flow.packets > 1 { format!(" x{}", flow.packets) } else { String::new() };
    let path = path(flow).map_or_else(String::new, |path| format!("  {path}"));
    output::visible(&format!(
        "{}  {} {direction}  {} -> {} {}{packets}{path}  {reason}{by}{pending}",
        flow.last,
        flow.verdict.to_uppercase(),
        end(source),
        end(destination),
        flow.decision.what(),
    ))
}

/// The path that packets take which are let pass.
fn path(flow: &FlowRecord) -> Option<String> {
    let path = match flow.path {
        Path::Kernel => "kernel",
        Path::Fast => "fast",
    };
    let carried = flow.carried.map(|it| format!(" ({} packets, {} bytes carried)", it.packets, it.bytes));
    (flow.verdict == ALLOWED).then(|| format!("{path}{}", carried.unwrap_or_default()))
}

fn end(end: &FlowEnd) -> String {
    let address = end.address.to_string();
    if end.name == address { address } else { format!("{} ({address})", end.name) }
}

#[cfg(test)]
mod tests {
    use russet_agent::fast_path::Packets as Carried;
    use russet_agent::flows::{Pending, PolicyName};

    use super::*;

    fn policy(kind: &str, namespace: Option<&str>, name: &str) -> PolicyName {
        PolicyName { kind: kind.into(), namespace: namespace.map(str::to_owned), name: name.into() }
    }

    fn record() -> FlowRecord {
        let at = "2026-11-27T15:00:00Z".to_owned();
        FlowRecord {
            id: 7,
            first: at.clone(),
            last: at,
            packets: 3,
            verdict: "denied".into(),
            path: Path::Kernel,
            carried: None,
            decision: Decision {
                direction: "ingress".into(),
                source: FlowEnd { name: "10.1.0.2".into(), address: "10.1.0.2".parse().unwrap() },
                destination: FlowEnd { name: "shop/db".into(), address: "10.1.0.9".parse().unwrap() },
                proto: "tcp".into(),
                port: Some(5432),
                icmp: None,
                policies: vec![policy("KubernetesNetworkPolicy", Some("shop"), "db-in")],
                rule: None,
                reason: "no rule matches, and tier default denies at its end".into(),
                pending: None,
            },
        }
    }

    #[test]
    fn a_flow_is_one_line_without_control_characters() {
        let mut flow = record();
        assert_eq!(
            line(&flow),
            "2026-11-27T15:00:00Z  DENIED ingress  10.1.0.2 -> shop/db (10.1.0.9) tcp/5432 x3  \
             no rule matches, and tier default denies at its end  [KubernetesNetworkPolicy shop/db-in]"
        );
        flow.packets = 1;
        (flow.decision.port, flow.decision.icmp) = (None, Some("8/0".into()));
        flow.decision.proto = "icmp".into();
        flow.decision.policies.clear();
        flow.decision.reason = "hostile\u{1b}[2J\nname".into();
        let policies = vec![policy("StagedGlobalNetworkPolicy", None, "soon")];
        flow.decision.pending = Some(Pending { verdict: "allowed".into(), policies });
        let line = line(&flow);
        assert!(line.contains(" icmp/8/0  hostile"), "{line}");
        assert!(line.ends_with("  pending: allowed by StagedGlobalNetworkPolicy soon"), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(one(&flow, Format::Json).lines().count(), 1);
    }

    #[test]
    fn a_flow_that_passes_names_the_path_of_its_packets() {
        let mut flow = record();
        flow.verdict = "allowed".into();
        assert!(line(&flow).contains(" tcp/5432 x3  kernel  no rule"), "{}", line(&flow));
        (flow.path, flow.carried) = (Path::Fast, Some(Carried { packets: 120, bytes: 9000 }));
        let text = " tcp/5432 x3  fast (120 packets, 9000 bytes carried)  no rule";
        assert!(line(&flow).contains(text), "{}", line(&flow));
        let json: serde_json::Value = serde_json::from_str(&one(&flow, Format::Json)).unwrap();
        assert_eq!((&json["path"], &json["carried"]["packets"]), (&"fast".into(), &120.into()));
        // Records of earlier versions have none.
        let mut earlier = json;
        let members = earlier.as_object_mut().unwrap();
        members.retain(|name, _| name != "path" && name != "carried");
        let read: FlowRecord = serde_json::from_value(earlier).unwrap();
        assert_eq!((read.path, read.carried), (Path::Kernel, None));
    }

    #[test]
    fn what_is_not_among_the_flows_is_said() {
        let packets = Packets { denied: 1000, suppressed: 900, lost: 2 };
        let report = FlowsReport {
            schema: FlowsReport::SCHEMA,
            unread: Some("taken".into()),
            flows: Vec::new(),
            next: 0,
            missed: 0,
            packets,
        };
        let notes = notes(&report);
        assert_eq!(notes.len(), 3);
        assert!(
            notes[0].ends_with("taken") && notes[1].starts_with("900 of 1000") && notes[2].starts_with("2 ")
        );
    }
}
