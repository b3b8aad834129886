//! The conversation with the node's server, stock or ours (cni-runtime.md section 4.1): one POST for each verb, over a socket that only root may use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_cni_spec::plugin::{Outcome, Request};
use russet_cni_spec::relay::{self, ExchangeError, HTTP_PATH, RelayRequest, RelayResponse};
use russet_cni_spec::{CniError, Verb, base64, code};
use serde_json::{Map, Value};

use super::NAME;
use crate::failure;

/// Where the server has its socket and its configuration.
const RUN_DIR: &str = "var/run/openshift-sdn/cniserver";
/// The stock path of all requests.
const PATH: &str = "/";
/// The name under which stock plugins address it.
const HOST: &str = "dummy";
/// Longest part of a server's text that an error repeats; the stock server sends what its scripts print.
const TEXT_MAX_CHARS: usize = 1024;
/// Runtimes allow GC and CHECK 30 seconds, and poll STATUS every 5.
const TELL_DEADLINE: Duration = Duration::from_secs(20);
const STATUS_DEADLINE: Duration = Duration::from_secs(4);
/// How much longer than the server we wait: its own "try again", with the reason, shall win.
const GRACE: Duration = Duration::from_secs(1);

/// The server.
pub struct Server {
    dir: PathBuf,
}

/// Why there is no answer, or none that helps.
#[derive(Debug)]
pub enum Unanswered {
    /// Nobody listens: nothing has been done.
    Nobody(CniError),
    /// The answer was lost, or is a refusal.
    Failed(CniError),
}

// === impl Unanswered ===

impl Unanswered {
    /// Why.
    pub fn error(&self) -> &CniError {
        match self {
            Self::Nobody(error) | Self::Failed(error) => error,
        }
    }

    /// For the runtime.
    pub fn into_error(self) -> CniError {
        match self {
            Self::Nobody(error) | Self::Failed(error) => error,
        }
    }
}

// === impl Server ===

impl Server {
    /// The server of the machine whose files lie below `root`.
    pub fn below(root: &Path) -> Self {
        Self { dir: root.join(RUN_DIR) }
    }

    /// What it wants of every interface.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Asks for an address and for the way to it; gives the server's result as it came.
    pub fn add(&self, request: &Request, host_veth: &IfName, end: Instant) -> Result<Vec<u8>, Unanswered> {
        self.post(&body(request, Verb::Add, Some(host_veth)), end)
    }

    /// Has it take both back.
    pub fn del(&self, request: &Request, end: Instant) -> Result<(), Unanswered> {
        self.send(&self.del_body(request), end)
    }

    /// What [`del`](Self::del) sends.
    pub fn del_body(&self, request: &Request) -> Vec<u8> {
        body(request, Verb::Del, None)
    }

    /// Sends a request that was made before.
    pub fn send(&self, body: &[u8], end: Instant) -> Result<(), Unanswered> {
        self.post(body, end).map(drop)
    }

    /// Verbs that the stock protocol does not have, in the form that our agent knows. A stock server, which has no such path, does nothing for them.
    pub fn tell(&self, request: &Request) -> Result<(), CniError> {
        let verb = request.env.verb();
        let deadline = if verb == Verb::Status { STATUS_DEADLINE } else { TELL_DEADLINE };
        let (env, config) = (request.env.vars.clone(), request.stdin.clone());
        let message = RelayRequest { plugin: NAME.to_owned(), env, config, deadline, timing: false };
        let posted = relay::post_to(&self.socket(), HOST, HTTP_PATH, &message.encode(), deadline + GRACE);
        let response = posted.map_err(|failure| match unanswered(failure).into_error() {
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

    fn post(&self, body: &[u8], end: Instant) -> Result<Vec<u8>, Unanswered> {
        let limit = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let response = relay::post_to(&self.socket(), HOST, PATH, body, limit).map_err(unanswered)?;
        match response.status {
            200 => Ok(response.body),
            status => Err(Unanswered::Failed(refusal(status, &response))),
        }
    }
}

/// The stock request: the variables sorted, `hostVeth` for ADD alone. The stock plugin sends its whole environment; ours only what is a request's.
pub(super) fn body(request: &Request, verb: Verb, host_veth: Option<&IfName>) -> Vec<u8> {
    let mut env: BTreeMap<&str, &str> =
        request.env.vars.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    env.insert("CNI_COMMAND", verb.as_str());
    // The server wants the keys, even without a value.
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

fn unanswered(failure: ExchangeError) -> Unanswered {
    match failure {
        ExchangeError::Connect(error) if relay::nobody_listens(error.kind()) => {
            Unanswered::Nobody(CniError::try_again_later("failed to send CNI request", error))
        }
        ExchangeError::Connect(error) => {
            Unanswered::Failed(CniError::try_again_later("failed to send CNI request", error))
        }
        ExchangeError::Lost(error) => {
            Unanswered::Failed(CniError::try_again_later("failed to read CNI result", error))
        }
    }
}

/// A stock server refuses everything with 400; ours says with 503 that the same request may do better later.
fn refusal(status: u16, response: &RelayResponse) -> CniError {
    let text: String = String::from_utf8_lossy(&response.body).chars().take(TEXT_MAX_CHARS).collect();
    let msg = format!("CNI request failed with status {status}: '{text}'");
    match status {
        503 => CniError::try_again_later(msg, ""),
        _ => CniError::new(failure::SERVER, msg, ""),
    }
}
