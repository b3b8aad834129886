//! The log of one request, written to the runtime's standard error. Calico's plugins also write it
//! to the file that their configuration names.
//!
//! The agent sends the lines with its answer, so that they appear where they would without an
//! agent.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::time::SystemTime;

use russet_model::time;

use crate::target::Target;

/// Lines about one request.
pub struct RequestLog {
    plugin: String,
    level: Cell<LogLevel>,
    text: RefCell<String>,
}

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

/// More than any request writes; the limit matters because a list of pools could have any length.
const TEXT_MAX_BYTES: usize = 8 * 1024;

// === impl RequestLog ===

impl RequestLog {
    /// An empty log of a plugin; it keeps `Info` and above until the configuration sets another
    /// level.
    pub fn new(plugin: impl Into<String>) -> Self {
        Self { plugin: plugin.into(), level: Cell::new(LogLevel::Info), text: RefCell::default() }
    }

    /// Sets the least important level that is kept from now on.
    pub fn set_level(&self, level: LogLevel) {
        self.level.set(level);
    }

    pub fn debug(&self, message: impl Display) {
        self.line(LogLevel::Debug, &message);
    }

    pub fn info(&self, message: impl Display) {
        self.line(LogLevel::Info, &message);
    }

    /// The same, with the fields that identify the container's interface.
    pub fn fact(&self, message: impl Display, target: &Target) {
        self.info(format!("{message} {}", target.log_fields()));
    }

    pub fn warn(&self, message: impl Display) {
        self.line(LogLevel::Warning, &message);
    }

    pub fn error(&self, message: impl Display) {
        self.line(LogLevel::Error, &message);
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        self.text.borrow().clone()
    }

    /// `2026-01-02 03:04:05.678 [INFO][1234] calico-ipam: message`, as Calico's plugins print it
    /// but without the name of a source file; in UTC.
    fn line(&self, level: LogLevel, message: &dyn Display) {
        if level > self.level.get() {
            return;
        }
        let now = SystemTime::now();
        let millis = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
        let now = time::rfc3339(now).replace('T', " ").replace('Z', "");
        let head =
            format!("{now}.{millis:03} [{}][{}] {}: ", level.as_str(), std::process::id(), self.plugin);
        let message: String =
            message.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut text = self.text.borrow_mut();
        if text.len() + head.len() + message.len() < TEXT_MAX_BYTES {
            text.push_str(&head);
            text.push_str(&message);
            text.push('\n');
        }
    }
}

// === impl LogLevel ===

impl LogLevel {
    /// Parses a level in any case of letters; unknown levels mean info, as for peers.
    pub fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "debug" | "trace" => Self::Debug,
            "warning" | "warn" => Self::Warning,
            "error" | "fatal" | "panic" => Self::Error,
            _ => Self::Info,
        }
    }

    /// The level's name in a log line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warning => "WARNING",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_level_and_no_control_characters() {
        let log = RequestLog::new("calico-ipam");
        log.info("handle=net.\u{1b}[2Jabc\nx");
        log.debug("not worth it");
        let text = log.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains(" [INFO][") && text.contains("] calico-ipam: handle=net. [2Jabc x\n"),
            "{text}"
        );
        log.set_level(LogLevel::Error);
        log.warn("no");
        log.error("yes");
        assert!(log.text().ends_with("calico-ipam: yes\n"));
    }

    #[test]
    fn a_log_is_limited_in_size() {
        let log = RequestLog::new("calico-ipam");
        for _ in 0..1000 {
            log.info("x".repeat(100));
        }
        assert!(log.text().len() < TEXT_MAX_BYTES && log.text().ends_with("x\n"));
    }
}
