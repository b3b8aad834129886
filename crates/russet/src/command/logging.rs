//! Sets up the log: one line an event on standard error.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;
use crate::settings::Logging;

/// A level or filter that `tracing` does not understand.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid log level {level:?}: error, warn, info, debug, trace, or a filter such as russet_agent=debug is wanted"
)]
pub struct LogLevelError {
    level: String,
}

/// Starts logging; called once, before anything is worth a line.
pub fn start(logging: &Logging) -> Result<(), LogLevelError> {
    let level = &logging.level;
    let filter = EnvFilter::try_new(level).map_err(|_| LogLevelError { level: level.clone() })?;
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true);
    match logging.format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
