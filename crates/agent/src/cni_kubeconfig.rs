//! The kubeconfig of Calico's plugins, which Go's plugins on this node and plugins without an agent use (kubernetes.md section 2.6). Its token is one
//! of the service account `calico-cni-plugin`, and is renewed long before it ends.

use std::path::PathBuf;
use std::time::Duration;

use russet_kube::{Client, Request, Verb};
use russet_linux::file::write_atomic_with_mode;
use russet_sync::{Backoff, random};
use serde_json::{Value, json};

/// Writes and renews the file.
pub struct CniKubeconfig {
    client: Client,
    path: PathBuf,
}

const ACCOUNT: &str = "calico-cni-plugin";
/// Where Calico's manifests have the account if this agent is not in a pod.
const NAMESPACE: &str = "kube-system";
/// The life of a token that is asked for, as Calico's agent does; the server may shorten it.
const LIFE_S: u64 = 86_400;
/// A part of a token's life, after which it is renewed.
const RENEW_PARTS: u64 = 4;
const RENEW_MIN_S: u64 = 5;
const DEADLINE: Duration = Duration::from_secs(10);
/// A token has a few kilobytes.
const ANSWER_MAX_BYTES: usize = 1 << 20;
const MODE: u32 = 0o600;
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

// === impl CniKubeconfig ===

impl CniKubeconfig {
    pub fn new(client: Client, path: PathBuf) -> Self {
        Self { client, path }
    }

    /// Never returns.
    pub async fn run(self) {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let pause = match self.renew().await {
                Ok(life_s) => {
                    backoff.reset();
                    let part = (life_s / RENEW_PARTS).max(RENEW_MIN_S);
                    // Nodes must not all renew at once.
                    Duration::from_secs(part - random() % (part / 4).max(1))
                }
                Err(error) => {
                    tracing::warn!(error, path = %self.path.display(), "the kubeconfig of Calico's plugins cannot be renewed");
                    backoff.pause()
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes the file with a new token, and returns the token's life in seconds.
    async fn renew(&self) -> Result<u64, String> {
        let namespace = self.client.own_namespace().unwrap_or_else(|| NAMESPACE.to_owned());
        let path = ["api", "v1", "namespaces", &namespace, "serviceaccounts", ACCOUNT, "token"];
        let request = Request {
            operation: format!("request a token of serviceaccounts {namespace}/{ACCOUNT}"),
            verb: Verb::Create,
            segments: path.map(str::to_owned).to_vec(),
            query: Vec::new(),
            body: json!({ "spec": { "expirationSeconds": LIFE_S } }).to_string().into_bytes(),
            deadline: DEADLINE,
            limit_bytes: ANSWER_MAX_BYTES,
        };
        let answer = self.client.request(&request).await.map_err(|failure| failure.error.to_string())?;
        let answer: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        let token =
            answer.pointer("/status/token").and_then(Value::as_str).ok_or("the answer has no token")?;
        let text = self.client.kubeconfig(token).map_err(|error| error.to_string())?;
        let _ = self.path.parent().map(std::fs::create_dir_all);
        write_atomic_with_mode(&self.path, text.as_bytes(), MODE).map_err(|error| error.to_string())?;
        tracing::debug!(path = %self.path.display(), "kubeconfig of Calico's plugins renewed");
        Ok(answer.pointer("/spec/expirationSeconds").and_then(Value::as_u64).unwrap_or(LIFE_S))
    }
}
