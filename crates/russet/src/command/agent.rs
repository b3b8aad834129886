//! `russet agent`.

use std::time::Duration;

use super::{Failure, logging, runtime, stop_signal};
use crate::cli::AgentArgs;
use crate::settings;

/// How long work that blocks may take when everything else has ended. What takes longer (a plugin that hangs, a kernel that does) ends with the process.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT. The process is to end with it.
pub fn run(args: AgentArgs) -> Result<(), Failure> {
    let (config, log, effective) = settings::agent(args)?;
    logging::start(&log)?;
    let stop = async {
        match stop_signal() {
            Ok(asked) => asked.await,
            Err(error) => tracing::warn!(%error, "signals cannot be heard; the agent stops"),
        }
    };
    let node = russet_agent::take_node(&config)?;
    // Before anything is served: plugins that work while no agent runs use what is recorded.
    settings::recorded::keep(&config.paths, &effective)?;
    let runtime = runtime()?;
    let done = runtime.block_on(russet_agent::run(config, &node, stop));
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    // The next agent undoes what this one has begun; a thread that is still at work would finish it behind its back. So the kernel gives the node back
    // when the last thread has ended.
    Box::leak(Box::new(node));
    Ok(done?)
}
