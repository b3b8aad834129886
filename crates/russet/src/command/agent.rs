//! `russet agent`.

use std::time::Duration;

use super::{Failure, logging, runtime, stop_signal};
use crate::cli::AgentArgs;
use crate::settings;

/// How long blocking work may take after everything else has ended. Slower work (a plugin or the
/// kernel hangs) ends with the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT. The process must end afterwards.
pub fn run(args: AgentArgs) -> Result<(), Failure> {
    let (config, log, effective) = settings::agent(args)?;
    logging::start(&log)?;
    let stop = async {
        match stop_signal() {
            Ok(signal) => signal.await,
            Err(error) => tracing::warn!(%error, "signals cannot be heard; the agent stops"),
        }
    };
    let node = russet_agent::take_node(&config)?;
    // Before anything is served: plugins that work without an agent use what is recorded.
    settings::recorded::keep(&config.paths, &effective)?;
    if let Some(place) = effective.password_variable() {
        tracing::warn!(
            place,
            "etcd's password is in the environment of this agent only: plugins that run while no agent does, and other commands of this node, will fail. Put it into a file that only root reads, and give --etcd-password-file"
        );
    }
    let runtime = runtime()?;
    let done = runtime.block_on(russet_agent::run(config, &node, stop));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    // The next agent reverts what this one left unfinished; a thread that still runs would then
    // finish it concurrently. So the kernel releases the node's lock when the last thread has
    // ended.
    Box::leak(Box::new(node));
    Ok(done?)
}
