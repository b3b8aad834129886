//! Questions to the node's agent, on its socket.

use std::path::Path;
use std::time::Duration;

use russet_cni_spec::relay::{ExchangeError, is_not_listening, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output;

/// The agent did not answer, or not as expected.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent runs at {0}; start it (systemctl start russet-agent), or give --root")]
    NoAgent(String),
    #[error("ask the agent at {socket}: {source}")]
    Exchange { socket: String, source: ExchangeError },
    #[error("the agent at {socket} answers: {reason}")]
    Refused { socket: String, reason: String },
    /// Earlier versions do not have its path.
    #[error(
        "the agent at {0} does not know this question, so it is of an earlier version than this command; restart it: systemctl restart russet-agent"
    )]
    Earlier(String),
    /// The agent is of another version.
    #[error("the agent's answer is no report: {0}; is it as new as this command?")]
    NoReport(String),
}

#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

/// The agent's answer to `request`, whose member `schema` must have this value.
pub fn ask<A: DeserializeOwned>(
    socket: &Path,
    (path, schema): (&str, u32),
    request: &impl Serialize,
    timeout: Duration,
) -> Result<A, AskError> {
    let no_report = |error: serde_json::Error| AskError::NoReport(error.to_string());
    let shown = || socket.display().to_string();
    let body = serde_json::to_vec(request).map_err(no_report)?;
    let answer = match post(socket, path, &body, timeout) {
        Err(ExchangeError::Connect(error)) if is_not_listening(error.kind()) => {
            return Err(AskError::NoAgent(shown()));
        }
        answer => answer.map_err(|source| AskError::Exchange { socket: shown(), source })?,
    };
    if answer.status != 200 {
        let said: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        return Err(match said["error"].as_str() {
            Some(error) => AskError::Refused { socket: shown(), reason: output::visible(error) },
            None if answer.status == 404 => AskError::Earlier(shown()),
            None => AskError::NoReport(format!("status {}", answer.status)),
        });
    }
    let found: Schema = serde_json::from_slice(&answer.body).map_err(no_report)?;
    if found.schema != schema {
        let reason = format!("its schema is {}, this version reads {schema}", found.schema);
        return Err(AskError::NoReport(reason));
    }
    serde_json::from_slice(&answer.body).map_err(no_report)
}

#[cfg(test)]
pub mod testing {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use russet_agent::Paths;

    /// What a question comes to whose body is an empty object, at a node whose agent gives this answer.
    pub fn asked<T>((status, body): (&str, &str), question: impl FnOnce(&Paths) -> T) -> T {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        std::fs::create_dir_all(paths.cni_socket().parent().unwrap()).unwrap();
        let listener = UnixListener::bind(paths.cni_socket()).unwrap();
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        let agent = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let (mut request, mut bytes) = (Vec::new(), [0; 512]);
            while !request.ends_with(b"{}") {
                let read = connection.read(&mut bytes).unwrap();
                assert!(read > 0, "the question ended early: {}", String::from_utf8_lossy(&request));
                request.extend_from_slice(&bytes[..read]);
            }
            connection.write_all(answer.as_bytes()).unwrap();
        });
        let asked = question(&paths);
        agent.join().unwrap();
        asked
    }
}
