//! `russet status`: the state of this node's agent, and which other nodes answer, on one screen.

mod page;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::status::{AgentStatus, STATUS_PATH};
use serde_json::json;

use super::ask::{AskError, ask};
use super::{Failure, PROBLEMS, runtime, stop_signal};
use crate::cli::Format;
use crate::cli::status::StatusArgs;
use crate::output;

pub use page::{Problem, peer_problems};

/// The agent answers from memory, and from one dump of routes.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Clears a terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints the status once, or until it is interrupted.
pub fn run(args: StatusArgs) -> Result<ExitCode, Failure> {
    if !args.watch {
        let status = read(&args)?;
        show(&args, &status);
        return Ok(code(&status));
    }
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        tokio::pin!(stop);
        loop {
            let status = read(&args);
            if std::io::stdout().is_terminal() {
                output::print(CLEAR);
            }
            match &status {
                Ok(status) => show(&args, status),
                // It may be starting again.
                Err(error) => output::error(error),
            }
            tokio::select! {
                () = &mut stop => return status.map(|status| code(&status)).map_err(Failure::from),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    })
}

fn read(args: &StatusArgs) -> Result<AgentStatus, AskError> {
    let socket = Paths::new(&args.root).cni_socket();
    ask(&socket, (STATUS_PATH, AgentStatus::SCHEMA), &json!({}), TIMEOUT)
}

fn show(args: &StatusArgs, status: &AgentStatus) {
    let is_wide = args.output.format == Format::Wide;
    output::print_as(args.output.format, status, || page::text(status, is_wide));
}

fn code(status: &AgentStatus) -> ExitCode {
    match page::problems(status).is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(PROBLEMS),
    }
}
