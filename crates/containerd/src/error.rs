//! What can go wrong with containerd, registries and images.

use std::path::PathBuf;

use tonic::Code;

use crate::ReferenceError;

/// containerd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens.
    #[error("connect to containerd at {}: {}", socket.display(), innermost(source))]
    Connect {
        /// Where it should listen.
        socket: PathBuf,
        /// Why not.
        source: tonic::transport::Error,
    },
    /// The name that namespaces or leases are asked with is none that fits a header.
    #[error("containerd cannot be told {0:?}")]
    Header(String),
    /// It answered with an error, or its connection broke.
    #[error("containerd, {operation} {subject}: {:?}: {}", source.code(), source.message())]
    Call {
        /// What it was asked for, as in `create container`.
        operation: &'static str,
        /// What it was asked about.
        subject: String,
        /// Its answer.
        source: Box<tonic::Status>,
    },
    /// It did not answer in time.
    #[error("containerd, {operation} {subject}: no answer within {limit_s} s")]
    Late {
        /// What it was asked for.
        operation: &'static str,
        /// What it was asked about.
        subject: String,
        /// How long it was given.
        limit_s: u64,
    },
    /// It answered something that makes no sense.
    #[error("containerd, {operation} {subject}: {reason}")]
    Answer {
        /// What it was asked for.
        operation: &'static str,
        /// What it was asked about.
        subject: String,
        /// What is wrong with its answer.
        reason: String,
    },
}

/// A registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The connection could not be made, or broke.
    #[error("{url}: {source}")]
    Connection {
        /// What was asked for.
        url: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It wants to know who asks, and does not take what it was told.
    #[error("{url}: 401 Unauthorized: {reason}")]
    Unauthorized {
        /// What was asked for.
        url: String,
        /// What it was told.
        reason: String,
    },
    /// It answered with an error.
    #[error("{url}: status {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP's status.
        status: u16,
        /// The beginning of what it said.
        detail: String,
    },
    /// It answered something that makes no sense.
    #[error("{url}: {reason}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

/// One attempt of a pull failed.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The registry.
    #[error("{who}: {source}")]
    Registry {
        /// As whom it was asked.
        who: String,
        /// What happened.
        source: RegistryError,
    },
    /// containerd.
    #[error("{0}")]
    Containerd(#[from] CallError),
}

/// An image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its name is none.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Whether it is there is unknown, so that nothing was pulled.
    #[error("inspect image {image}: {source}")]
    Inspect {
        /// Its name.
        image: String,
        /// Why it is unknown.
        source: CallError,
    },
    /// Every way to pull it failed.
    #[error("pull image {image}: {}", listed(attempts))]
    Pull {
        /// Its name.
        image: String,
        /// What each attempt came to, in their order.
        attempts: Vec<PullError>,
    },
    /// It is there, and of no use.
    #[error("image {image}: {reason}")]
    Broken {
        /// Its name.
        image: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is there, and could not be read or unpacked.
    #[error("unpack image {image}: {source}")]
    Unpack {
        /// Its name.
        image: String,
        /// Why.
        source: CallError,
    },
}

// === impl CallError ===

impl CallError {
    /// Whether what was asked about is not there.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether what was to be made is there already.
    pub fn is_already_there(&self) -> bool {
        self.code() == Some(Code::AlreadyExists)
    }

    /// Whether it is in no state for what was asked.
    pub fn is_precondition(&self) -> bool {
        self.code() == Some(Code::FailedPrecondition)
    }

    /// Whether containerd has said what became of it. Otherwise it may still be at it.
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

/// tonic says "transport error" and hides the reason behind it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
