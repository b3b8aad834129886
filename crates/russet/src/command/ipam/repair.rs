//! `russet ipam repair`: releases leaked addresses, by the agent if one runs, and otherwise by
//! itself.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::repair::{self, Options, REPAIR_PATH, RepairRequest, Report, Seen};
use russet_cni_spec::relay::{ExchangeError, is_not_listening, post};

use super::super::{Failure, PROBLEMS, place};
use super::Place;
use crate::cli::repair::RepairArgs;
use crate::cli::store::StoreChoice;
use crate::{output, settings};

/// How much longer than the grace period a repair may take: the agent's own periodic repair and
/// requests for pods may come first.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1200);

#[derive(Debug, thiserror::Error)]
enum AgentError {
    /// The agent did not answer.
    #[error("ask the agent at {socket}: {source}")]
    Exchange { socket: String, source: ExchangeError },
    /// The agent could not check, or refuses.
    #[error("the agent could not look for leaks: {0}")]
    Refused(String),
    /// The agent speaks another version.
    #[error("the agent's answer is no report: {0}; is it as new as this command?")]
    NoReport(String),
}

/// Checks twice, and prints the result.
pub async fn run(choice: StoreChoice, args: RepairArgs) -> Result<ExitCode, Failure> {
    let options = Options { grace: args.grace.0, dry_run: args.dry_run };
    let report = if args.gone_nodes {
        output::progress(&format!(
            "comparing the addresses of nodes without a record, twice if one seems leaked, {} apart",
            args.grace
        ));
        let place = Place::open(choice).await?;
        let node = settings::node_name(&place.paths)?;
        repair::gone_nodes(place.store.clone(), &node, options).await?
    } else {
        here(choice, &args, options).await?
    };
    output::print_as(args.output.format, &report, || text(&report));
    let bad = report.has_leaks_left();
    Ok(if bad { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

/// Repairs this node's addresses.
async fn here(choice: StoreChoice, args: &RepairArgs, options: Options) -> Result<Report, Failure> {
    let verbose = choice.verbose;
    let at = settings::repair(choice, args)?;
    place::announce(&at.chosen, verbose);
    output::progress(&format!(
        "comparing this node's addresses, twice if one seems leaked, {} apart",
        args.grace
    ));
    if let Some(report) = ask_agent(&at.chosen.paths.cni_socket(), options)? {
        return Ok(report);
    }
    let socket = at.chosen.paths.cni_socket();
    output::progress(&format!("no agent listens at {}: this command compares by itself", socket.display()));
    Place::require(&at.chosen)?;
    Ok(repair::run_without_agent(&at.chosen.paths, &at.chosen.location, &at.node, at.caches, options).await?)
}

/// The agent's report; None if no agent runs.
fn ask_agent(socket: &Path, options: Options) -> Result<Option<Report>, AgentError> {
    let grace_ms = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
    let request = RepairRequest { grace_ms, dry_run: options.dry_run };
    let body = serde_json::to_vec(&request).map_err(|error| AgentError::NoReport(error.to_string()))?;
    let answer = match post(socket, REPAIR_PATH, &body, options.grace + REPAIR_TIMEOUT) {
        Err(ExchangeError::Connect(error)) if is_not_listening(error.kind()) => return Ok(None),
        Err(source) => return Err(AgentError::Exchange { socket: socket.display().to_string(), source }),
        Ok(answer) => answer,
    };
    if answer.status != 200 {
        let reason = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        let reason = reason.and_then(|reason| reason["error"].as_str().map(str::to_owned));
        return Err(AgentError::Refused(reason.unwrap_or_else(|| format!("status {}", answer.status))));
    }
    let report: Report =
        serde_json::from_slice(&answer.body).map_err(|error| AgentError::NoReport(error.to_string()))?;
    if report.schema != Report::SCHEMA {
        let reason = format!("its schema is {}, this version reads {}", report.schema, Report::SCHEMA);
        return Err(AgentError::NoReport(reason));
    }
    Ok(Some(report))
}

fn text(report: &Report) -> String {
    let whose =
        report.node.as_ref().map_or_else(|| "nodes without a record".to_owned(), |n| format!("node {n}"));
    let mut text = format!("compared {}\n", seen(&whose, &report.seen));
    for finding in &report.findings {
        let subject = format!("{}: {}", finding.outcome, finding.subject);
        text.push_str(&output::visible(&subject));
        text.push('\n');
        for line in &finding.evidence {
            text.push_str(&format!("  {}\n", output::visible(line)));
        }
    }
    let left = report.findings.iter().filter(|finding| finding.outcome.is_left()).count();
    let released =
        report.findings.iter().filter(|finding| finding.outcome == repair::Outcome::Released).count();
    text + &format!("{released} leaks repaired, {left} left\n")
}

fn seen(whose: &str, seen: &Seen) -> String {
    let mut text = format!("{} addresses of {whose} in {} blocks", seen.entries, seen.blocks);
    if let Some(handles) = seen.handles {
        text.push_str(&format!(", {handles} handles"));
    }
    if let Some(machine) = &seen.machine {
        text.push_str(&format!(
            ", {} links, {} addresses with a route, {} network namespaces, {} cached attachments",
            machine.links, machine.routes, machine.namespaces, machine.cached
        ));
        if machine.unseen_processes > 0 {
            text.push_str(&format!(
                " (the namespaces of {} processes could not be seen)",
                machine.unseen_processes
            ));
        }
    }
    if let Some(endpoints) = seen.endpoints {
        text.push_str(&format!(", {endpoints} endpoints"));
    }
    text
}
