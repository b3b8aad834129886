//! The exchange with the node's server, OpenShift's or ours (cni-runtime.md section 4.1): one POST
//! for each verb, over a socket that only root may use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_cni_spec::plugin::{Outcome, Request};
use russet_cni_spec::relay::{self, ExchangeError, HTTP_PATH, RelayRequest, RelayResponse};
use russet_cni_spec::{CniError, Verb, base64, code};
use russet_wiring::failure;
use serde_json::{Map, Value};

use super::NAME;

/// The directory of the server's socket and configuration.
const RUN_DIR: &str = "var/run/openshift-sdn/cniserver";
/// The path of all requests of OpenShift's protocol.
const PATH: &str = "/";
/// The value of `Host` that OpenShift's plugins send.
const HOST: &str = "dummy";
/// Limit of the server's text in an error; OpenShift's server sends the output of its scripts.
const TEXT_MAX_CHARS: usize = 1024;
/// Runtimes allow GC and CHECK 30 seconds, and poll STATUS every 5 seconds.
const RELAY_DEADLINE: Duration = Duration::from_secs(20);
const STATUS_DEADLINE: Duration = Duration::from_secs(4);
/// How much longer than the server the plugin waits, so that the server's own "try again", with the
/// reason, comes first.
const GRACE: Duration = Duration::from_secs(1);

pub struct Server {
    dir: PathBuf,
}

/// Why a request failed.
#[derive(Debug)]
pub enum RequestFailure {
    /// There is no listener: nothing has been done.
    NoListener(CniError),
    /// The answer was lost, or is a refusal.
    Failed(CniError),
}

// === impl RequestFailure ===

impl RequestFailure {
    pub fn error(&self) -> &CniError {
        match self {
            Self::NoListener(error) | Self::Failed(error) => error,
        }
    }

    /// The error for the runtime.
    pub fn into_error(self) -> CniError {
        match self {
            Self::NoListener(error) | Self::Failed(error) => error,
        }
    }
}

// === impl Server ===

impl Server {
    /// The server of the machine whose files lie below `root`.
    pub fn below(root: &Path) -> Self {
        Self { dir: root.join(RUN_DIR) }
    }

    /// The path of the server's settings.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Requests an address and the connection of the host interface; returns the server's result
    /// undecoded.
    pub fn add(
        &self,
        request: &Request,
        host_veth: &IfName,
        end: Instant,
    ) -> Result<Vec<u8>, RequestFailure> {
        self.post(&body(request, Verb::Add, Some(host_veth)), end)
    }

    /// Asks the server to release what ADD requested.
    pub fn del(&self, request: &Request, end: Instant) -> Result<(), RequestFailure> {
        self.send(&self.del_body(request), end)
    }

    /// The request body of [`del`](Self::del).
    pub fn del_body(&self, request: &Request) -> Vec<u8> {
        body(request, Verb::Del, None)
    }

    /// Sends a prepared request.
    pub fn send(&self, body: &[u8], end: Instant) -> Result<(), RequestFailure> {
        self.post(body, end).map(drop)
    }

    /// Verbs that OpenShift's protocol does not have, in the form that our agent understands.
    /// OpenShift's server has no such path and does nothing for them.
    pub fn relay(&self, request: &Request) -> Result<(), CniError> {
        let verb = request.env.verb();
        let deadline = if verb == Verb::Status { STATUS_DEADLINE } else { RELAY_DEADLINE };
        let (env, config) = (request.env.vars.clone(), request.stdin.clone());
        let message = RelayRequest { plugin: NAME.to_owned(), env, config, deadline, timing: false };
        let posted = relay::post_to(&self.socket(), HOST, HTTP_PATH, &message.encode(), deadline + GRACE);
        let response = posted.map_err(|failure| match request_failure(failure).into_error() {
            error if verb == Verb::Status => CniError { code: code::NOT_AVAILABLE, ..error },
            error => error,
        })?;
        if matches!(response.status, 404 | 405) {
            return Ok(());
        }
        let outcome: Outcome = response.into_outcome(verb)?;
        if outcome.is_success() {
            return Ok(());
        }
        Err(CniError::decode(&outcome.stdout)
            .unwrap_or_else(|why| CniError::io("the server's answer is no error", why)))
    }

    fn post(&self, body: &[u8], end: Instant) -> Result<Vec<u8>, RequestFailure> {
        let limit = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let response = relay::post_to(&self.socket(), HOST, PATH, body, limit).map_err(request_failure)?;
        match response.status {
            200 => Ok(response.body),
            status => Err(RequestFailure::Failed(refusal(status, &response))),
        }
    }
}

/// A request of OpenShift's protocol: sorted variables, `hostVeth` for ADD only. OpenShift's plugin
/// sends its whole environment; ours sends only the request's variables.
pub(super) fn body(request: &Request, verb: Verb, host_veth: Option<&IfName>) -> Vec<u8> {
    let mut env: BTreeMap<&str, &str> =
        request.env.vars.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    env.insert("CNI_COMMAND", verb.as_str());
    // The server requires these keys, even without a value.
    for key in ["CNI_NETNS", "CNI_ARGS"] {
        env.entry(key).or_default();
    }
    let env: Map<String, Value> =
        env.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    let mut object = Map::new();
    object.insert("env".to_owned(), env.into());
    object.insert("config".to_owned(), base64::encode(&request.stdin).into());
    if let Some(name) = host_veth {
        object.insert("hostVeth".to_owned(), name.as_str().into());
    }
    Value::Object(object).to_string().into_bytes()
}

fn request_failure(failure: ExchangeError) -> RequestFailure {
    match failure {
        ExchangeError::Connect(error) if relay::is_not_listening(error.kind()) => {
            RequestFailure::NoListener(CniError::try_again_later("failed to send CNI request", error))
        }
        ExchangeError::Connect(error) => {
            RequestFailure::Failed(CniError::try_again_later("failed to send CNI request", error))
        }
        ExchangeError::Lost(error) => {
            RequestFailure::Failed(CniError::try_again_later("failed to read CNI result", error))
        }
    }
}

/// OpenShift's server refuses everything with 400; ours says with 503 that the same request may
/// succeed later.
fn refusal(status: u16, response: &RelayResponse) -> CniError {
    let text: String = String::from_utf8_lossy(&response.body).chars().take(TEXT_MAX_CHARS).collect();
    let msg = format!("CNI request failed with status {status}: '{text}'");
    match status {
        503 => CniError::try_again_later(msg, ""),
        _ => CniError::new(failure::SERVER, msg, ""),
    }
}
