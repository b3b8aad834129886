//! Requests of the demo to its API server, as the cluster's administrator and from the outside host's namespace.

use std::path::Path;
use std::time::Duration;

use russet_kube::{CALL_DEADLINE, Client, Request, Source, Verb};
use russet_linux::NetNs;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::command::runtime;
use crate::demo::DemoError;
use crate::demo::lab::{self, OUTSIDE};

/// A client of the demo's API server.
pub struct Api {
    outside: NetNs,
    runtime: Runtime,
    client: Client,
}

/// Limit of an answer: the demo has some hundred pods.
const ANSWER_MAX_BYTES: usize = 64 << 20;
/// How long a look whether the server is ready may take.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

// === impl Api ===

impl Api {
    /// Reads a kubeconfig; connects to nothing yet.
    pub fn open(kubeconfig: &Path) -> Result<Self, DemoError> {
        let outside = NetNs::open(lab::namespace_path(OUTSIDE));
        let outside = outside.map_err(|e| DemoError::step(format!("open namespace {OUTSIDE}"), e))?;
        let runtime = runtime().map_err(|source| DemoError::io("start a runtime", source))?;
        let client = Client::new(Source::kubeconfig(kubeconfig));
        let client = client.map_err(|error| DemoError::step("use the kubeconfig of the demo", error))?;
        Ok(Self { outside, runtime, client })
    }

    /// Whether the server is ready, and has made the namespace in which every cluster begins.
    pub fn is_ready(&self) -> bool {
        let look = |path: &str| self.send(Verb::ReadOnce, path, Vec::new(), LOOK_DEADLINE).is_ok();
        look("readyz") && look("api/v1/namespaces/default")
    }

    /// An object or a list.
    pub fn get(&self, path: &str) -> Result<Value, DemoError> {
        self.call(Verb::Read, path, None)
    }

    pub fn create(&self, path: &str, object: &Value) -> Result<Value, DemoError> {
        self.call(Verb::Create, path, Some(object))
    }

    /// Changes some members; lists with a key, such as conditions, are merged.
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value, DemoError> {
        self.call(Verb::StrategicMerge, path, Some(change))
    }

    fn call(&self, verb: Verb, path: &str, body: Option<&Value>) -> Result<Value, DemoError> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let answer = self.send(verb, path, body, CALL_DEADLINE)?;
        serde_json::from_slice(&answer)
            .map_err(|error| DemoError::step(format!("read the answer for {path}"), error))
    }

    fn send(&self, verb: Verb, path: &str, body: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, DemoError> {
        let request = Request {
            operation: format!("{verb:?} {path}").to_lowercase(),
            verb,
            segments: path.split('/').map(str::to_owned).collect(),
            query: Vec::new(),
            body,
            deadline,
            limit_bytes: ANSWER_MAX_BYTES,
        };
        let sent = self.outside.with(|| self.runtime.block_on(self.client.request(&request)));
        let answer = sent.map_err(DemoError::namespace)?;
        let failed =
            |failure: russet_kube::Failure| DemoError::step("ask the demo's API server", failure.error);
        Ok(answer.map_err(failed)?.body.to_vec())
    }
}
