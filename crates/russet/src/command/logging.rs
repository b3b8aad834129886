//! Sets up the log: one line per event on standard error.

use tracing::Subscriber;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::LogFormat;
use crate::settings::Logging;

/// A level or filter that is not valid.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid log level {level:?}: error, warn, info, debug, trace, or a filter such as info,russet_agent=debug is wanted"
)]
pub struct LogLevelError {
    level: String,
}

/// Starts logging; called once, before the first event.
pub fn start(logging: &Logging) -> Result<(), LogLevelError> {
    subscriber(logging)?.init();
    Ok(())
}

/// Disables uninteresting events by the subscriber's level: an event below it costs one comparison.
fn subscriber(logging: &Logging) -> Result<impl Subscriber + Send + Sync, LogLevelError> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    let lines = match logging.format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines).with(filter(&logging.level)?))
}

/// Parses levels of targets, and one for the rest, separated by commas. Errors of targets that are
/// not named are always logged.
fn filter(level: &str) -> Result<Targets, LogLevelError> {
    let refused = || LogLevelError { level: level.to_owned() };
    // The library's parser accepts blanks in names, empty levels, and any single word as a target's
    // name, even a misspelt level.
    let parts: Vec<&str> = level.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if !parts.iter().all(|part| is_directive(part)) {
        return Err(refused());
    }
    let filter: Targets = parts.join(",").parse().map_err(|_| refused())?;
    Ok(match filter.default_level() {
        Some(_) => filter,
        None => filter.with_default(LevelFilter::ERROR),
    })
}

/// Whether this is a level, or a target with a level. Anything else would silence nearly all of the
/// log.
fn is_directive(part: &str) -> bool {
    let has_name =
        part.contains('=') && !part.contains(|letter: char| letter == '[' || letter.is_whitespace());
    has_name || part.parse::<LevelFilter>().is_ok()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_applies_to_all_targets_and_a_filter_keeps_errors_of_the_rest() {
        let logs = |filter: &str, target, level| super::filter(filter).unwrap().would_enable(target, &level);
        assert!(logs("info", "russet_agent::book", Level::INFO));
        assert!(!logs("info", "russet_agent::book", Level::DEBUG));
        assert!(logs("russet_agent=debug", "russet_agent::book", Level::DEBUG));
        assert!(logs("russet_agent=debug", "russet_store", Level::ERROR));
        assert!(!logs("russet_agent=debug", "russet_store", Level::WARN));
        for filter in ["warn, russet_agent=debug", " russet_agent=debug ,,warn,"] {
            assert!(logs(filter, "russet_agent::book", Level::DEBUG), "{filter:?}");
            assert!(logs(filter, "russet_store", Level::WARN), "{filter:?}");
            assert!(!logs(filter, "russet_store", Level::INFO), "{filter:?}");
        }
        assert!(logs("", "russet_store", Level::ERROR) && !logs("", "russet_store", Level::WARN));
        assert!(!logs("off", "russet_store", Level::ERROR));
    }

    #[test]
    fn an_unknown_level_is_refused_and_the_error_lists_the_levels() {
        let wrong = ["inof", "russet_agent=loud", "info,russet", "[span]=debug", "russet_agent =debug"];
        for wrong in wrong {
            let error = filter(wrong).map(drop).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("debug, trace"), "{error}");
        }
    }

    #[test]
    fn disabled_events_are_dropped_before_formatting() {
        for (level, expected) in [
            ("info", LevelFilter::INFO),
            ("warn,russet_agent=debug", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
        ] {
            for format in [LogFormat::Text, LogFormat::Json] {
                let subscriber = subscriber(&Logging { level: level.to_owned(), format }).unwrap();
                assert_eq!(subscriber.max_level_hint(), Some(expected), "{level} {format:?}");
            }
        }
    }
}
