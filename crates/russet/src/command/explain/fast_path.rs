//! Which path the packets of flows take on this node, as its agent knows it.

use std::time::Duration;

use russet_agent::Paths;
use russet_agent::fast_path::{
    ASKED_MAX, Ends, FAST_PATH_PATH, FastPathReport, FastPathRequest, Packets, Path, Taken,
};
use russet_verdict::explain::protocol_name;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Protocol;

use super::SHOWN_MAX;
use super::report::Report;
use crate::command::ask::{AskError, ask};

/// The agent reads the maps.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The agent's setting without a fast path, which is the default and need not be mentioned.
const OFF: &str = "off";

/// Asks the agent about the flows.
pub fn look(paths: &Paths, flows: &[Flow], report: &mut Report) {
    let ends = |flow: &Flow| Ends {
        source: flow.source,
        destination: flow.destination,
        protocol: flow.protocol.0,
        port: flow.destination_port,
    };
    let mut asked: Vec<Ends> = flows.iter().map(ends).collect();
    asked.dedup();
    asked.truncate(ASKED_MAX);
    let request = FastPathRequest { flows: asked };
    let question = (FAST_PATH_PATH, FastPathReport::SCHEMA);
    match ask::<FastPathReport>(&paths.cni_socket(), question, &request, TIMEOUT) {
        Ok(answer) => add(answer, report),
        // Then nothing is carried: the programs leave with the agent, and a note says that there is none.
        Err(AskError::NoAgent(_)) => {}
        Err(error) => report.note("fast-path", error.to_string()),
    }
}

fn add(answer: FastPathReport, report: &mut Report) {
    if answer.setting != OFF {
        answer.flows.iter().take(SHOWN_MAX).for_each(|taken| report.fact(text(taken)));
    }
    report.fast_path = answer.flows;
}

fn text(taken: &Taken) -> String {
    let Ends { source, destination, protocol, port } = taken.ends;
    let protocol = Protocol(protocol);
    let port = if protocol.has_ports() { format!("/{port}") } else { String::new() };
    let flow = format!("{source} -> {destination} {}{port}", protocol_name(protocol));
    let carried = |Packets { packets, bytes }: Packets| format!("{packets} packets ({bytes} bytes)");
    let (there, back) = (carried(taken.there), carried(taken.back));
    match (taken.path, &taken.why) {
        (Path::Fast, _) => {
            let flows = if taken.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", taken.flows) };
            format!(
                "fast: {flows} {flow} on the fast path of this node, which has carried {there} there and {back} back"
            )
        }
        (Path::Kernel, why) => {
            let why = why.as_deref().unwrap_or("the fast path carries none");
            format!("kernel: {flow} is not on the fast path of this node: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_named_with_what_was_carried_or_why_nothing_is() {
        let [source, destination] = ["10.1.0.2", "10.2.0.2"].map(|text| text.parse().unwrap());
        let ends = Ends { source, destination, protocol: 6, port: 80 };
        let packets = |packets| Packets { packets, bytes: packets * 100 };
        let (there, back) = (packets(12), packets(10));
        let fast = Taken { ends, path: Path::Fast, flows: 2, there, back, why: None };
        let wanted = "fast: 2 flows 10.1.0.2 -> 10.2.0.2 tcp/80 on the fast path of this node, which has carried \
                      12 packets (1200 bytes) there and 10 packets (1000 bytes) back";
        assert_eq!(text(&fast), wanted);
        let why = Some("it is off".to_owned());
        let kernel = Taken { path: Path::Kernel, flows: 0, why, ..fast.clone() };
        let wanted = "kernel: 10.1.0.2 -> 10.2.0.2 tcp/80 is not on the fast path of this node: it is off";
        assert_eq!(text(&kernel), wanted);
        let answer = |setting: &str| FastPathReport {
            schema: FastPathReport::SCHEMA,
            setting: setting.to_owned(),
            off: None,
            flows: vec![fast.clone(), kernel.clone()],
            interfaces: Vec::new(),
        };
        for (setting, lines) in [("auto", 2), ("off", 0)] {
            let mut report = Report::default();
            add(answer(setting), &mut report);
            assert_eq!((report.path.len(), report.fast_path.len()), (lines, 2));
        }
    }
}
