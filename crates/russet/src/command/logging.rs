//! Sets up the log: one line an event on standard error.

use tracing::Subscriber;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::LogFormat;
use crate::settings::Logging;

/// A level or filter that means nothing.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid log level {level:?}: error, warn, info, debug, trace, or a filter such as info,russet_agent=debug is wanted"
)]
pub struct LogLevelError {
    level: String,
}

/// Starts logging; called once, before anything is worth a line.
pub fn start(logging: &Logging) -> Result<(), LogLevelError> {
    subscriber(logging)?.init();
    Ok(())
}

/// Its level is the filter's: what nobody wants costs a comparison.
fn subscriber(logging: &Logging) -> Result<impl Subscriber + Send + Sync, LogLevelError> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    let lines = match logging.format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines).with(filter(&logging.level)?))
}

/// Levels of parts of the program, and one for the rest, with commas between. Errors of what is not named are logged whatever is.
fn filter(level: &str) -> Result<Targets, LogLevelError> {
    let refused = || LogLevelError { level: level.to_owned() };
    // What parses this takes blanks for a part of the name, nothing for a level, and any word alone, as a misspelt level, for a name.
    let parts: Vec<&str> = level.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if !parts.iter().all(|part| means_something(part)) {
        return Err(refused());
    }
    let filter: Targets = parts.join(",").parse().map_err(|_| refused())?;
    Ok(match filter.default_level() {
        Some(_) => filter,
        None => filter.with_default(LevelFilter::ERROR),
    })
}

/// A level, or a part of the program with one. Whoever wrote anything else would get next to no log.
fn means_something(part: &str) -> bool {
    let has_name =
        part.contains('=') && !part.contains(|letter: char| letter == '[' || letter.is_whitespace());
    has_name || part.parse::<LevelFilter>().is_ok()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_is_for_all_and_a_filter_for_what_it_names_with_errors_of_the_rest() {
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
    fn what_is_no_level_is_refused_with_the_levels_that_there_are() {
        let wrong = ["inof", "russet_agent=loud", "info,russet", "[span]=debug", "russet_agent =debug"];
        for wrong in wrong {
            let error = filter(wrong).map(drop).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("debug, trace"), "{error}");
        }
    }

    #[test]
    fn what_nobody_logs_is_dropped_before_it_is_looked_at() {
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
