//! `russet cni-direct`: one CNI request on a node without an agent, by the same code and under the locks that keep such requests apart.

use std::process::ExitCode;

use russet_agent::{Direct, RequestLog, Stages};
use russet_cni_spec::plugin::{Outcome, finish, prepare_process};
use russet_cni_spec::relay::{DIRECT_PLUGIN, wants_timing};
use russet_cni_spec::{CniError, Prepared, Request};

use super::runtime;
use crate::cli::NodeArgs;
use crate::settings;

/// Carries out the request of this process's environment and standard input.
pub fn run(args: NodeArgs) -> ExitCode {
    let outcome = answer(args).unwrap_or_else(|error| Outcome::failure(&error));
    finish(&outcome)
}

fn answer(args: NodeArgs) -> Result<Outcome, CniError> {
    match prepare_process("CNI russet plugin, without an agent")? {
        Prepared::Answer(outcome) => Ok(outcome),
        Prepared::Request(request) => {
            // An older plugin does not say which one it is.
            let plugin = std::env::var(DIRECT_PLUGIN).unwrap_or_else(|_| request.config.kind.clone());
            Ok(carry_out(args, &plugin, &request, wants_timing()))
        }
    }
}

/// Does a plugin's work in this process, on a runtime of its own.
pub fn carry_out(args: NodeArgs, plugin: &str, request: &Request, timing: bool) -> Outcome {
    let log = RequestLog::new(plugin);
    let stages = Stages::begin();
    let done = match work(args, plugin, request, &log, &stages) {
        Ok(Direct::HandedOver(outcome)) => return outcome,
        Ok(Direct::Done(result)) => Ok(result),
        Err(error) => Err(error.in_version(request.config.cni_version)),
    };
    let timing = timing.then(|| stages.spent().timing(plugin));
    Outcome { stderr: log.text(), timing, ..done.into() }
}

fn work(
    mut args: NodeArgs,
    plugin: &str,
    request: &Request,
    log: &RequestLog,
    stages: &Stages,
) -> Result<Direct, CniError> {
    // Several nodes on one machine are told apart by their root, and a runtime sets no flags.
    if let Some(root) = request.config.settings.get("root").and_then(|root| root.as_str()) {
        args.root = root.into();
    }
    let (config, _) = settings::direct(args)
        .map_err(|e| CniError::invalid_config("the node's settings cannot be used", e))?;
    let runtime = runtime().map_err(|error| CniError::internal("start the runtime", error))?;
    let local = tokio::task::LocalSet::new();
    let work = stages.of(russet_agent::direct(&config, plugin, request, log));
    let done = local.block_on(&runtime, work);
    // A thread that a dead file system holds must not hold the answer, too.
    runtime.shutdown_background();
    done
}
