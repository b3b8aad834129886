//! Errors of containerd, registries and images.

use std::path::PathBuf;

use tonic::Code;

use crate::ReferenceError;

/// A call to containerd failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No server listens on the socket.
    #[error("connect to containerd at {}: {}", socket.display(), innermost(source))]
    Connect { socket: PathBuf, source: tonic::transport::Error },
    /// The name of a namespace or lease is not valid in a header.
    #[error("{0:?} is not valid in a header for containerd")]
    Header(String),
    /// It answered with an error, or its connection broke.
    #[error("containerd, {operation} {subject}: {:?}: {}", source.code(), source.message())]
    Call {
        /// The operation, for example `create container`.
        operation: &'static str,
        /// The subject of the operation.
        subject: String,
        source: Box<tonic::Status>,
    },
    /// It did not answer in time.
    #[error("containerd, {operation} {subject}: no answer within {limit_s} s")]
    Late {
        operation: &'static str,
        subject: String,
        /// The timeout.
        limit_s: u64,
    },
    /// Its answer is invalid.
    #[error("containerd, {operation} {subject}: {reason}")]
    Answer { operation: &'static str, subject: String, reason: String },
}

/// A request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The connection could not be made, or broke.
    #[error("{url}: {source}")]
    Connection { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// It requires credentials, and does not accept the given ones.
    #[error("{url}: 401 Unauthorized: {reason}")]
    Unauthorized { url: String, reason: String },
    /// It answered with an error.
    #[error("{url}: status {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Status {
        url: String,
        /// HTTP's status.
        status: u16,
        /// The beginning of its message.
        detail: String,
    },
    /// Its answer is invalid.
    #[error("{url}: {reason}")]
    Answer { url: String, reason: String },
}

/// One attempt of a pull failed.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("{who}: {source}")]
    Registry {
        /// The credential of the attempt.
        who: String,
        source: RegistryError,
    },
    #[error("{0}")]
    Containerd(#[from] CallError),
}

/// An image is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its name is invalid.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Its presence could not be checked, so nothing was pulled.
    #[error("inspect image {image}: {source}")]
    Inspect { image: String, source: CallError },
    /// Every attempt to pull it failed.
    #[error("pull image {image}: {}", listed(attempts))]
    Pull {
        image: String,
        /// The errors of all attempts, in order.
        attempts: Vec<PullError>,
    },
    /// It exists, and is invalid.
    #[error("image {image}: {reason}")]
    Broken { image: String, reason: String },
    /// It exists, and could not be read or unpacked.
    #[error("unpack image {image}: {source}")]
    Unpack { image: String, source: CallError },
}

// === impl CallError ===

impl CallError {
    /// Whether the subject does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether the subject exists already.
    pub fn is_already_there(&self) -> bool {
        self.code() == Some(Code::AlreadyExists)
    }

    /// Whether the subject is in a wrong state for the operation.
    pub fn is_precondition(&self) -> bool {
        self.code() == Some(Code::FailedPrecondition)
    }

    /// Whether containerd has answered. Otherwise it may still work on the call.
    pub fn is_answered(&self) -> bool {
        let lost = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded];
        self.code().is_some_and(|code| !lost.contains(&code))
    }

    fn code(&self) -> Option<Code> {
        match self {
            Self::Call { source, .. } => Some(source.code()),
            _ => None,
        }
    }
}

fn listed(attempts: &[PullError]) -> String {
    let texts: Vec<String> = attempts.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// tonic's message is "transport error"; the reason is its innermost source.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
