//! The plugin's side of an invocation: all checks before any work, and exactly one document
//! afterwards.
//!
//! Called by the relay, by `russet cni-direct`, by the agent for each request, and by every plugin
//! that is its own executable.

use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::env::Vars;
use crate::relay::Timing;
use crate::{CniError, CniResult, Env, NetworkConfig, Verb, Version, process_vars};

/// Limit of a configuration. The largest real ones, a GC with the attachments of 500 pods under
/// both keys, have 100 KiB.
pub const STDIN_MAX_BYTES: usize = 1024 * 1024;

/// A request that passed every check.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The verb, its target, the arguments.
    pub env: Env,
    /// The configuration.
    pub config: NetworkConfig,
    /// The configuration unchanged, for delegated plugins.
    pub stdin: Vec<u8>,
}

// === impl Request ===

impl Request {
    /// The request of a process with these variables and this stdin, for callers that make requests
    /// themselves. VERSION is an error, because it needs no work.
    pub fn new<V: Into<String>>(
        vars: impl IntoIterator<Item = (impl Into<String>, V)>,
        stdin: Vec<u8>,
    ) -> Result<Self, CniError> {
        match prepare(vars.into_iter().map(|(key, value)| (key.into(), value.into())), stdin, "")? {
            Prepared::Request(request) => Ok(*request),
            Prepared::Answer(_) => Err(CniError::internal("VERSION needs no work", "")),
        }
    }
}

/// The result of the checks of an invocation.
#[derive(Debug, Clone, PartialEq)]
pub enum Prepared {
    /// Work to do.
    Request(Box<Request>),
    /// The answer: VERSION, or the about text for a user who runs the plugin by hand.
    Answer(Outcome),
}

/// The output of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// One JSON document, or nothing.
    pub stdout: Vec<u8>,
    /// For users.
    pub stderr: String,
    /// For measurements, after that; only on request.
    pub timing: Option<Timing>,
    /// 0, or 1 with an error object on stdout.
    pub exit_code: u8,
}

/// Checks an invocation in the order of Go's skel (cni-runtime.md section 1.5). `about` is the text
/// for users. The agent passes the variables of the request's body, executables those of
/// [`process_vars`].
///
/// [`process_vars`]: crate::process_vars
pub fn prepare(
    vars: impl IntoIterator<Item = (String, String)>,
    stdin: Vec<u8>,
    about: &str,
) -> Result<Prepared, CniError> {
    let vars = Vars::new(vars);
    if vars.is_idle() {
        let stderr = format!("{about}\nCNI protocol versions supported: {}\n", Version::list());
        return Ok(Prepared::Answer(Outcome { stderr, ..Outcome::default() }));
    }
    let verb = vars.verb()?;
    if stdin.len() > STDIN_MAX_BYTES {
        return Err(too_large());
    }
    if verb == Verb::Version {
        return Ok(Prepared::Answer(Outcome { stdout: version_document(&stdin), ..Outcome::default() }));
    }
    let config = NetworkConfig::parse(&stdin)?;
    let version = config.cni_version;
    if !version.supports(verb) {
        let msg = format!("config version does not allow {verb}");
        let details = format!("cniVersion is {version}, {verb} came with {}", verb.since());
        return Err(CniError::incompatible_version(msg, details).in_version(version));
    }
    let env = vars.check(verb, &config.name).map_err(|error| error.in_version(version))?;
    let missing = || CniError::internal("VERSION was not answered", "").in_version(version);
    Ok(Prepared::Request(Box::new(Request { env: env.ok_or_else(missing)?, config, stdin })))
}

/// [`prepare`] for an executable, with the variables and stdin of the process. If a user runs the
/// plugin by hand, it does not wait for stdin.
pub fn prepare_process(about: &str) -> Result<Prepared, CniError> {
    let vars = process_vars()?;
    let checked = Vars::new(vars.iter().cloned());
    let wants_stdin = !checked.is_idle() && checked.verb().is_ok();
    let stdin = if wants_stdin { read_stdin(std::io::stdin().lock())? } else { Vec::new() };
    prepare(vars, stdin, about)
}

/// Reads the configuration, at most [`STDIN_MAX_BYTES`] of it.
pub fn read_stdin(from: impl Read) -> Result<Vec<u8>, CniError> {
    let mut bytes = Vec::new();
    let limit = STDIN_MAX_BYTES as u64 + 1;
    from.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| CniError::io("error reading from stdin", error))?;
    if bytes.len() > STDIN_MAX_BYTES { Err(too_large()) } else { Ok(bytes) }
}

/// Prints the outcome and returns the exit code. A closed stdout is not an error of the plugin.
pub fn finish(outcome: &Outcome) -> ExitCode {
    let _ = std::io::stderr().write_all(outcome.stderr.as_bytes());
    if let Some(timing) = &outcome.timing {
        let _ = std::io::stderr().write_all(timing.line().as_bytes());
    }
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(&outcome.stdout).and_then(|()| stdout.flush());
    ExitCode::from(outcome.exit_code)
}

fn too_large() -> CniError {
    let details = format!("at most {STDIN_MAX_BYTES} bytes are read");
    CniError::io("the network configuration on stdin is too large", details)
}

/// The specification requires the caller's version in the answer; an unsupported one gets our
/// newest, as in Go.
fn version_document(stdin: &[u8]) -> Vec<u8> {
    let requested = serde_json::from_slice::<Value>(stdin).ok();
    let requested = requested.as_ref().and_then(|value| value.get("cniVersion")?.as_str());
    let version = requested.and_then(|text| text.parse().ok()).unwrap_or(Version::LATEST);
    let all: Vec<Value> = Version::ALL.iter().map(|version| version.as_str().into()).collect();
    let mut object = Map::new();
    object.insert("cniVersion".into(), version.as_str().into());
    object.insert("supportedVersions".into(), all.into());
    Value::Object(object).to_string().into_bytes()
}

// === impl Outcome ===

impl Outcome {
    /// Success: a result for ADD, in the version of the configuration, empty for the other verbs.
    pub fn success(result: Option<&CniResult>) -> Self {
        Self { stdout: result.map(CniResult::encode).unwrap_or_default(), ..Self::default() }
    }

    /// Failure: the error object, and 1.
    pub fn failure(error: &CniError) -> Self {
        Self { stdout: error.encode(), exit_code: 1, ..Self::default() }
    }

    /// Whether the exit code is 0.
    pub const fn is_success(&self) -> bool {
        self.exit_code == 0
    }
}

impl From<Result<Option<CniResult>, CniError>> for Outcome {
    fn from(done: Result<Option<CniResult>, CniError>) -> Self {
        match done {
            Ok(result) => Self::success(result.as_ref()),
            Err(error) => Self::failure(&error),
        }
    }
}

#[cfg(test)]
mod tests;
