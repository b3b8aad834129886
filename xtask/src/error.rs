//! What can go wrong in a task; printed once, by `main`.

use std::{fmt, io};

/// The result of a step of a task.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a task ended early.
#[derive(Debug)]
pub enum Error {
    /// The command line is wrong.
    Usage(String),
    /// The operating system refused `operation`.
    Io { operation: String, source: io::Error },
    /// A program that the task needs ended badly.
    Program { command: String, why: String },
    /// The task looked at something and it is not as it must be.
    Found(String),
}

// === impl Error ===

impl Error {
    /// For `map_err`: names the operation that an I/O error stopped.
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation: operation.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Found(text) => f.write_str(text),
            Self::Io { operation, source } => write!(f, "{operation}: {source}"),
            Self::Program { command, why } => write!(f, "{command}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<lexopt::Error> for Error {
    fn from(error: lexopt::Error) -> Self {
        Self::Usage(error.to_string())
    }
}
