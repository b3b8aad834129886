//! Errors between a runtime and its plugins, in libcni's words, which people search for.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use russet_cni_spec::{CniError, ResultError, UnsupportedVersion, Verb, Version, code};
use russet_linux::execute::{ExecuteError, Finished};

/// A plugin failed (cni-runtime.md section 2.2).
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No directory holds the executable.
    #[error("failed to find plugin {kind:?} in path {dirs:?}")]
    NotFound {
        /// The plugin's type.
        kind: String,
        /// The directories that were searched.
        dirs: Vec<PathBuf>,
    },
    /// It could not be executed, or did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// It failed with an error object.
    #[error(transparent)]
    Cni(CniError),
    /// It failed without output.
    #[error("netplugin failed with no error message: {0}")]
    Silent(ExitStatus),
    /// It failed with text on standard error only.
    #[error("netplugin failed: {stderr:?}: {status}")]
    Stderr { stderr: String, status: ExitStatus },
    /// It failed, and its output is not an error object.
    #[error("netplugin failed but error parsing its diagnostic message {stdout:?}: {problem}")]
    Garbage { stdout: String, problem: String },
    /// It succeeded, and its output is not a result.
    #[error(transparent)]
    Result(#[from] ResultError),
}

/// An operation on a network failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// One plugin of an ADD or DEL.
    #[error("plugin {plugin} failed ({}): {source}", if *verb == Verb::Del { "delete" } else { "add" })]
    Plugin {
        /// `type="bridge"`, and its name if its object has one.
        plugin: String,
        verb: Verb,
        source: PluginError,
    },
    /// One plugin of a CHECK, STATUS or VERSION; unwrapped, so that the code is kept.
    #[error(transparent)]
    Bare(#[from] PluginError),
    /// One plugin of a GC.
    #[error("failed to GC plugin {kind}: {source}")]
    Gc {
        /// The plugin's type.
        kind: String,
        source: PluginError,
    },
    /// A stale attachment found by GC could not be detached.
    #[error("failed to delete stale attachment {container_id} {ifname}: {source}")]
    Stale { container_id: String, ifname: String, source: Box<RuntimeError> },
    /// The list's version is not supported.
    #[error(transparent)]
    Version(#[from] UnsupportedVersion),
    /// The list's version does not have the verb.
    #[error("configuration version {:?} does not support the {verb} command", version.as_str())]
    Unsupported {
        /// The list's version.
        version: Version,
        verb: Verb,
    },
    /// A plugin does not support the list's version.
    #[error("plugin {kind} does not support config version {version:?}")]
    PluginVersion {
        /// The plugin's type.
        kind: String,
        /// The list's version.
        version: String,
    },
    /// The cache entry exists and is invalid.
    #[error("failed to get network {network:?} cached result: {problem}")]
    Cached { network: String, problem: String },
    /// The cache could not be written.
    #[error("cache the result in {}: {source}", path.display())]
    CacheWrite {
        /// The file.
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<RuntimeError>),
}

// === impl PluginError ===

impl PluginError {
    /// The error of a plugin with a bad exit status (the table of cni-runtime.md section 2.2).
    pub(crate) fn from_finished(finished: Finished) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Finished { status, stdout, stderr } = finished;
        match (stdout.is_empty(), stderr.is_empty()) {
            (true, true) => Self::Silent(status),
            (true, false) => Self::Stderr { stderr: text(&stderr), status },
            (false, _) => match CniError::decode(&stdout) {
                Ok(error) => Self::Cni(error),
                Err(problem) => Self::Garbage { stdout: text(&stdout), problem },
            },
        }
    }

    /// The error object for this failure.
    pub fn to_cni(&self) -> CniError {
        let text = self.to_string();
        match self {
            Self::Cni(error) => error.clone(),
            Self::Execute(ExecuteError::Deadline(_)) => CniError::try_again_later(text, ""),
            Self::Execute(_) => CniError::io(text, ""),
            Self::Result(_) => CniError::decoding(text, ""),
            Self::NotFound { .. } => CniError::invalid_config(text, ""),
            Self::Silent(_) | Self::Stderr { .. } | Self::Garbage { .. } => CniError::internal(text, ""),
        }
    }
}

// === impl RuntimeError ===

impl RuntimeError {
    /// Combines `errors`; Ok if there are none.
    pub(crate) fn collect(mut errors: Vec<RuntimeError>) -> Result<(), RuntimeError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(RuntimeError::Several(errors)),
        }
    }

    /// The error object for this failure: the plugin's own code, and our context around its
    /// message.
    pub fn to_cni(&self) -> CniError {
        let code = match self {
            Self::Plugin { source, .. } | Self::Gc { source, .. } => source.to_cni().code,
            Self::Bare(source) => return source.to_cni(),
            Self::Stale { source, .. } => source.to_cni().code,
            Self::Version(_) | Self::Unsupported { .. } | Self::PluginVersion { .. } => {
                code::INCOMPATIBLE_VERSION
            }
            Self::Cached { .. } => code::DECODING,
            Self::CacheWrite { .. } => code::IO,
            Self::Several(errors) => errors.first().map_or(code::INTERNAL, |error| error.to_cni().code),
        };
        CniError::new(code, self.to_string(), "")
    }
}
