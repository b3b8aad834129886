//! `russet cni-direct`: one CNI request on a node without an agent, by the same code and under the
//! locks that serialise such requests.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use russet_agent::{Direct, Paths, RequestLog, Stages};
use russet_cni_spec::plugin::{Outcome, finish, prepare_process};
use russet_cni_spec::relay::{DIRECT_PLUGIN, wants_timing};
use russet_cni_spec::{Call, CniError, Prepared, Request};

use super::runtime;
use crate::cli::NodeArgs;
use crate::settings::{self, SettingsError};

/// Executes the request in this process's environment and standard input.
pub fn run(args: NodeArgs) -> ExitCode {
    let outcome = answer(args).unwrap_or_else(|error| Outcome::failure(&error));
    finish(&outcome)
}

fn answer(args: NodeArgs) -> Result<Outcome, CniError> {
    match prepare_process("CNI russet plugin, without an agent")? {
        Prepared::Answer(outcome) => Ok(outcome),
        Prepared::Request(request) => {
            // An older plugin does not pass its name.
            let plugin = std::env::var(DIRECT_PLUGIN).unwrap_or_else(|_| request.config.kind.clone());
            Ok(carry_out(args, &plugin, &request, wants_timing()))
        }
    }
}

/// Executes a plugin's request in this process, on a runtime of its own.
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
    if let Some(root) = root_of(request) {
        args.root = root;
    }
    let paths = Paths::new(&args.root);
    let is_add = matches!(request.env.call, Call::Add(_));
    let config = || settings::direct(args, is_add).map_err(refusal);
    let runtime = runtime().map_err(|error| CniError::internal("start the runtime", error))?;
    let local = tokio::task::LocalSet::new();
    let work = stages.record(russet_agent::direct(&paths, config, plugin, request, log));
    let done = local.block_on(&runtime, work);
    // A thread that hangs in a dead file system must not delay the answer.
    runtime.shutdown_background();
    done
}

/// The root of the request's node: it distinguishes several nodes on one machine, and a runtime
/// sets no flags. The socket in the request identifies the root of a node whose agent has another
/// one.
fn root_of(request: &Request) -> Option<PathBuf> {
    let text = |key| request.config.settings.get(key).and_then(|value| value.as_str());
    let of_socket = || {
        let socket = Path::new(text("agent_socket")?);
        let below_root = Paths::new("/").cni_socket();
        let above = socket.ancestors().nth(below_root.components().count() - 1)?;
        (Paths::new(above).cni_socket() == socket).then(|| above.to_owned())
    };
    text("root").map(PathBuf::from).or_else(of_socket)
}

/// The node's store is unknown only until an agent starts, so that error is temporary. Any other
/// error is a mistake in the settings.
fn refusal(error: SettingsError) -> CniError {
    match error {
        SettingsError::Doubt(_) | SettingsError::Disagree(_) | SettingsError::Unseen { .. } => {
            CniError::try_again_later("without its agent it is not certain which store is this node's", error)
        }
        other => CniError::invalid_config("the node's settings cannot be used", other),
    }
}

#[cfg(test)]
mod tests {
    use russet_cni_spec::plugin::prepare;

    use super::*;

    fn root(members: &str) -> Option<PathBuf> {
        let config = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"russet"{members}}}"#);
        let vars = [("CNI_COMMAND".to_owned(), "STATUS".to_owned()), ("CNI_PATH".to_owned(), "/".to_owned())];
        match prepare(vars, config.into_bytes(), "test").unwrap() {
            Prepared::Request(request) => root_of(&request),
            Prepared::Answer(outcome) => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn the_agents_socket_identifies_the_nodes_root() {
        assert_eq!(root(""), None);
        assert_eq!(root(r#","agent_socket":"/srv/a/run/russet/cni.sock""#), Some("/srv/a".into()));
        assert_eq!(root(r#","agent_socket":"/run/russet/cni.sock""#), Some("/".into()));
        assert_eq!(root(r#","agent_socket":"/elsewhere/agent.sock""#), None);
        assert_eq!(root(r#","root":"/b","agent_socket":"/srv/a/run/russet/cni.sock""#), Some("/b".into()));
    }
}
