//! The small executable that container runtimes run: it passes the request to the agent and prints
//! the answer.
//!
//! It uses no kernel interface and no datastore. Without an agent it becomes `russet cni-direct`,
//! which does the same work with the same code, except for STATUS: without an agent the node is not
//! ready, unless the plugin needs none ([`Plugin::works_without_agent`]). `russet-cni`
//! only calls [`main`]; `russet` calls it too when it is run under that name.

mod direct;
mod http;
mod message;
mod timing;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub use http::{Failure as ExchangeError, post, post_to};
pub use message::{RelayRequest, RelayResponse, STDERR_HEADER, STDERR_MAX_BYTES};
pub use timing::{TIMING_HEADER, TIMING_VARIABLE, Timing, wants_timing};

use crate::plugin::{self, Outcome, Prepared, Request};
use crate::table::{self, Needs, Plugin};
use crate::{CniError, NetworkConfig, Verb, Version, code};

/// The agent's socket, unless the configuration has another `agent_socket`.
pub const DEFAULT_SOCKET: &str = "/run/russet/cni.sock";

/// The path of the agent's HTTP interface.
pub const HTTP_PATH: &str = "/v1/cni";

/// The argument with which `russet` does the work of a request itself.
pub const DIRECT_COMMAND: &str = "cni-direct";

/// The variable with the plugin's name for [`DIRECT_COMMAND`]. It is a variable, because an older
/// command would refuse an argument.
pub const DIRECT_PLUGIN: &str = "RUSSET_CNI_PLUGIN";

/// A text that only our executables contain: it identifies a copy under a plugin's name.
pub const MARK: &str =
    "install the russet command beside the plugin, or set russet_path in the configuration";

/// For ADD, CHECK and DEL: the shortest timeout of a runtime is CRI-O's minute for DEL; the answer
/// comes earlier.
const WORK_DEADLINE: Duration = Duration::from_secs(55);
/// For ADD and CHECK of Calico's plugins, whose IPAM has 90 s after it got its lock (calico-ipam.md
/// section 4.2), and waits some time for the lock.
const CALICO_DEADLINE: Duration = Duration::from_secs(115);
/// CRI-O allows GC 30 seconds.
const GC_DEADLINE: Duration = Duration::from_secs(25);
/// Runtimes poll STATUS every 5 seconds.
const STATUS_DEADLINE: Duration = Duration::from_secs(4);
/// How much longer the plugin waits than the agent, so that the agent's own "try again", with its
/// reason, arrives first.
const GRACE: Duration = Duration::from_secs(1);

/// The executable that calls [`main`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executable {
    /// The small plugin; the command is another file.
    Plugin,
    /// The `russet` command itself, run by a runtime as a plugin.
    Command,
}

/// The whole program; `args` are those of the process, with the executable's name first.
pub fn main(args: impl IntoIterator<Item = OsString>, executable: Executable) -> ExitCode {
    let mut args = args.into_iter();
    let plugin = plugin_name(args.next().unwrap_or_default());
    let outcome = match args.next() {
        Some(argument) if argument == DIRECT_COMMAND => Outcome::failure(&not_the_command()),
        Some(argument) if argument == "-v" || argument == "--version" => version(),
        Some(argument) if argument == "-t" && needs(&plugin) == Some(Needs::Datastore) => {
            Outcome::failure(&self_test(&plugin))
        }
        _ => run(&plugin, executable).unwrap_or_else(|error| Outcome::failure(&error)),
    };
    plugin::finish(&outcome)
}

/// Calico's plugins answer `-v` (calico-cni.md section 1.1).
fn version() -> Outcome {
    let stdout = format!("Russet {}\n", env!("CARGO_PKG_VERSION")).into_bytes();
    Outcome { stdout, ..Outcome::default() }
}

/// With `-t`, Calico's plugins test whether the datastore answers (calico-cni.md section 1.1): that
/// is STATUS for the configuration on stdin, whatever its version. Returns only if the
/// configuration cannot be read.
fn self_test(plugin: &str) -> CniError {
    let config = plugin::read_stdin(std::io::stdin().lock()).and_then(|stdin| {
        let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&stdin)
            .map_err(|error| CniError::decoding("failed to decode the network configuration", error))?;
        config.insert("cniVersion".into(), Version::LATEST.as_str().into());
        Ok(serde_json::Value::Object(config).to_string())
    });
    match config {
        Ok(config) => direct::exec_status(plugin, config.as_bytes()),
        Err(error) => error,
    }
}

/// Whether an executable with this name is one of the known plugins, whatever its arguments.
pub fn is_plugin(argv0: &OsStr) -> bool {
    works_without_agent(&plugin_name(argv0.to_owned()))
}

fn works_without_agent(plugin: &str) -> bool {
    table::find(plugin).is_some_and(Plugin::works_without_agent)
}

fn needs(plugin: &str) -> Option<Needs> {
    table::find(plugin).map(|plugin| plugin.needs)
}

fn run(plugin: &str, executable: Executable) -> Result<Outcome, CniError> {
    let about = format!("CNI {plugin} plugin (Russet {})", env!("CARGO_PKG_VERSION"));
    match plugin::prepare_process(&about)? {
        Prepared::Answer(outcome) => Ok(outcome),
        Prepared::Request(request) => {
            let version = request.config.cni_version;
            relay(plugin, *request, executable).map_err(|error| error.in_version(version))
        }
    }
}

fn relay(plugin: &str, request: Request, executable: Executable) -> Result<Outcome, CniError> {
    match ask_agent(plugin, &request, wants_timing())? {
        Some(outcome) => Ok(outcome),
        None => Err(direct::exec(plugin, &request, executable)),
    }
}

/// For callers that can do a plugin's work themselves: the agent's answer. None if the work is to
/// be done without an agent.
pub fn ask_agent(plugin: &str, request: &Request, timing: bool) -> Result<Option<Outcome>, CniError> {
    if needs(plugin) == Some(Needs::Server) {
        return Ok(None);
    }
    let needs_agent = request.env.verb() == Verb::Status && !works_without_agent(plugin);
    match send_to_agent(plugin, request, Duration::ZERO, timing)? {
        AgentAnswer::Answered(outcome) => Ok(Some(outcome)),
        AgentAnswer::NoAgent(error) if needs_agent => Err(error),
        AgentAnswer::NoAgent(_) => Ok(None),
    }
}

/// For [`DIRECT_COMMAND`], in case an agent has started meanwhile: passes it the request. None if
/// there is no agent. `waited` is the time that the runtime has waited already.
pub fn hand_over(plugin: &str, request: &Request, waited: Duration) -> Result<Option<Outcome>, CniError> {
    match send_to_agent(plugin, request, waited, wants_timing())? {
        AgentAnswer::Answered(outcome) => Ok(Some(outcome)),
        AgentAnswer::NoAgent(_) => Ok(None),
    }
}

/// The result of a request to the agent that was not lost.
enum AgentAnswer {
    Answered(Outcome),
    /// There is no agent; the error is for plugins that need one.
    NoAgent(CniError),
}

fn send_to_agent(
    plugin: &str,
    request: &Request,
    waited: Duration,
    timing: bool,
) -> Result<AgentAnswer, CniError> {
    let verb = request.env.verb();
    let socket = agent_socket(&request.config)?;
    let calico = needs(plugin) == Some(Needs::Datastore);
    let deadline = deadline(verb, calico).saturating_sub(waited);
    let mut env = request.env.vars.clone();
    if calico {
        env.extend(request.env.overrides.iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
    let config = request.stdin.clone();
    let message = RelayRequest { plugin: plugin.to_owned(), env, config, deadline, timing };
    match http::post(&socket, HTTP_PATH, &message.encode(), deadline + GRACE) {
        Ok(response) => response.into_outcome(verb).map(AgentAnswer::Answered),
        Err(failure) => {
            let no_agent =
                matches!(&failure, http::Failure::Connect(error) if is_not_listening(error.kind()));
            let error = unanswered(verb, &socket, failure);
            if no_agent { Ok(AgentAnswer::NoAgent(error)) } else { Err(error) }
        }
    }
}

/// Only these two errors mean that there is no agent. Any other may mean a busy agent, which might
/// then work on the same pod as this process.
pub fn is_not_listening(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Part of STATUS on a node without an agent. ADD works there, but the node should not get new
/// pods: it does not follow route changes of other nodes, repair drift, or notice the loss of the
/// underlay.
fn without_agent(socket: &Path) -> String {
    // Several nodes on one machine have roots of their own, each with a socket at the same place.
    let root = socket.to_str().and_then(|socket| socket.strip_suffix(DEFAULT_SOCKET)).unwrap_or_default();
    let option = if root.is_empty() { String::new() } else { format!(" --root {root}") };
    format!(
        "; start `russet agent{option}`: without it the node's routes and rules are not kept up, and only pods that start all the same are attached"
    )
}

fn unanswered(verb: Verb, socket: &Path, failure: http::Failure) -> CniError {
    let mut details = format!("{}: {failure}", socket.display());
    if verb == Verb::Status {
        details.push_str(&without_agent(socket));
    }
    let (code, msg) = match &failure {
        _ if verb == Verb::Status => (code::NOT_AVAILABLE, "the russet agent is not available"),
        http::Failure::Connect(error) if error.kind() != ErrorKind::TimedOut => {
            (code::IO, "cannot connect to the russet agent")
        }
        _ => (code::TRY_AGAIN_LATER, "the russet agent did not answer; try again"),
    };
    CniError::new(code, msg, details)
}

fn deadline(verb: Verb, calico: bool) -> Duration {
    match verb {
        Verb::Gc => GC_DEADLINE,
        Verb::Status | Verb::Version => STATUS_DEADLINE,
        Verb::Add | Verb::Check if calico => CALICO_DEADLINE,
        Verb::Add | Verb::Check | Verb::Del => WORK_DEADLINE,
    }
}

/// The plugin that the caller wants: the base name of the executable that the runtime started.
fn plugin_name(argv0: OsString) -> String {
    let path = PathBuf::from(argv0);
    match path.file_name().and_then(|name| name.to_str()) {
        None | Some("russet-cni") => "russet".into(),
        Some(name) => name.into(),
    }
}

/// A path in the configuration. Relative ones are refused, because they would depend on the
/// runtime.
fn path_setting(config: &NetworkConfig, key: &str) -> Result<Option<PathBuf>, CniError> {
    let Some(value) = config.settings.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let path = value.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
    let wrong = || CniError::invalid_config(format!("{key} is not an absolute path"), value);
    path.map(Some).ok_or_else(wrong)
}

fn agent_socket(config: &NetworkConfig) -> Result<PathBuf, CniError> {
    Ok(path_setting(config, "agent_socket")?.unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

/// Without this a copy of the small executable with the name `russet` would execute itself forever.
fn not_the_command() -> CniError {
    CniError::io(format!("{DIRECT_COMMAND}: this is the CNI plugin, not the russet command"), MARK)
        .in_version(Version::LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_that_a_plugin_misses_is_named_with_its_root() {
        for (socket, command) in [
            (DEFAULT_SOCKET, "`russet agent`"),
            ("/srv/b/run/russet/cni.sock", "`russet agent --root /srv/b`"),
            ("/srv/b.sock", "`russet agent`"),
        ] {
            let text = without_agent(Path::new(socket));
            assert!(text.starts_with(&format!("; start {command}: ")), "{text}");
        }
    }

    #[test]
    fn the_plugin_is_named_by_the_executable() {
        for (argv0, name) in [("/opt/cni/bin/russet", "russet"), ("./russet-cni", "russet"), ("", "russet")] {
            assert_eq!(plugin_name(argv0.into()), name);
        }
        assert_eq!(plugin_name("/opt/cni/bin/loopback".into()), "loopback");
    }

    #[test]
    fn paths_in_the_configuration_are_absolute() {
        let config = |value: &str| {
            let text = format!(r#"{{"name":"n","agent_socket":{value}}}"#);
            path_setting(&NetworkConfig::parse(text.as_bytes()).unwrap(), "agent_socket")
        };
        assert_eq!(config("\"/run/a.sock\"").unwrap(), Some("/run/a.sock".into()));
        assert_eq!(config("null").unwrap(), None);
        for bad in ["\"run/a.sock\"", "\"\"", "7"] {
            assert_eq!(config(bad).unwrap_err().code, code::INVALID_CONFIG, "{bad}");
        }
    }

    #[test]
    fn the_agents_deadline_ends_before_the_runtimes() {
        // cni-runtime.md section 3.4: CRI-O gives DEL a minute and GC 30 s
        for calico in [false, true] {
            assert!(deadline(Verb::Del, calico) + GRACE < Duration::from_secs(60), "{calico}");
        }
        assert!(deadline(Verb::Gc, true) + GRACE < Duration::from_secs(30));
    }
}
