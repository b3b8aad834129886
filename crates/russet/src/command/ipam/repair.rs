//! `russet ipam repair`: releases leaked addresses, by the agent if one runs, and otherwise by
//! itself.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::repair::{self, Options, REPAIR_PATH, RepairRequest, Report, Seen};

use super::super::ask::{AskError, ask};
use super::super::{Failure, PROBLEMS, place};
use super::Place;
use crate::cli::repair::RepairArgs;
use crate::cli::store::StoreChoice;
use crate::{output, settings};

/// How much longer than the grace period a repair may take: the agent's own periodic repair and
/// requests for pods may come first.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1200);

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
fn ask_agent(socket: &Path, options: Options) -> Result<Option<Report>, AskError> {
    let grace_ms = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
    let request = RepairRequest { grace_ms, dry_run: options.dry_run };
    match ask(socket, (REPAIR_PATH, Report::SCHEMA), &request, options.grace + REPAIR_TIMEOUT) {
        Err(AskError::NoAgent(_)) => Ok(None),
        answer => answer.map(Some),
    }
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
