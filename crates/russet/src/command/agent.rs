//! `russet agent`.

use super::{Failure, logging, runtime, stop_signal};
use crate::cli::AgentArgs;
use crate::settings;

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(args: AgentArgs) -> Result<(), Failure> {
    let (config, log) = settings::agent(args)?;
    logging::start(&log)?;
    let stop = async {
        if let Err(error) = stop_signal().await {
            tracing::warn!(%error, "signals cannot be heard; the agent stops");
        }
    };
    Ok(runtime()?.block_on(russet_agent::run(config, stop))?)
}
