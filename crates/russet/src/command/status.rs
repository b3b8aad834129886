//! `russet status`: the state of this node's agent, and which other nodes answer, on one screen.

pub mod cluster;
mod page;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use serde_json::json;

use super::ask::ask;
use super::place::Place;
use super::{Failure, PROBLEMS, runtime, stop_signal};
use crate::cli::status::StatusArgs;
use crate::cli::{Format, OutputArgs};
use crate::output;

pub use page::{Problem, facts, heading, milliseconds, peer_problem, peer_problems, problems};

/// The agent answers from memory, and from one dump of routes.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Clears a terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints the status once, or until it is interrupted.
pub fn run(args: StatusArgs) -> Result<ExitCode, Failure> {
    let StatusArgs { place, cluster, watch, output: OutputArgs { format } } = args;
    runtime()?.block_on(async {
        let source = match cluster {
            true => Source::Cluster(Box::new(Place::open_cluster(place).await?)),
            false => Source::Agent(Paths::new(&place.root).cni_socket()),
        };
        if !watch {
            let page = source.read(format).await?;
            output::print(&page.text);
            return Ok(page.code);
        }
        let stop = stop_signal()?;
        tokio::pin!(stop);
        loop {
            let page = source.read(format).await;
            if std::io::stdout().is_terminal() {
                output::print(CLEAR);
            }
            match &page {
                Ok(page) => output::print(&page.text),
                // It may be starting again.
                Err(error) => output::error(error.as_ref()),
            }
            tokio::select! {
                () = &mut stop => return page.map(|page| page.code),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    })
}

/// Where a page comes from.
enum Source {
    /// The agent at this socket.
    Agent(PathBuf),
    /// The records of all agents.
    Cluster(Box<Place>),
}

/// What is printed, and the exit code.
struct Page {
    text: String,
    code: ExitCode,
}

// === impl Source ===

impl Source {
    async fn read(&self, format: Format) -> Result<Page, Failure> {
        let is_wide = format == Format::Wide;
        let (text, has_problems) = match self {
            Self::Agent(socket) => {
                let status: AgentStatus =
                    ask(socket, (STATUS_PATH, AgentStatus::SCHEMA), &json!({}), TIMEOUT)?;
                let text = output::in_format(format, &status, || page::text(&status, is_wide));
                (text, !page::problems(&status).is_empty())
            }
            Self::Cluster(place) => {
                let status = cluster::read(place).await?;
                let text = output::in_format(format, &status, || cluster::text(&status, is_wide));
                (text, !status.problems.is_empty())
            }
        };
        let code = if has_problems { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS };
        Ok(Page { text, code })
    }
}
