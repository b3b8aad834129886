//! The log of one request of Calico's plugins, written to the runtime's standard error and to the
//! file that the configuration names.
//!
//! The agent sends the lines with its answer, so that they appear where they would without an
//! agent.

mod file;

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::time::SystemTime;

use russet_model::time;

use crate::calico_conf::{LogLevel, LogSettings};
use crate::target::Target;

/// Lines about one request.
pub struct RequestLog {
    plugin: String,
    level: Cell<LogLevel>,
    text: RefCell<String>,
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
    pub(crate) fn set_level(&self, level: LogLevel) {
        self.level.set(level);
    }

    pub(crate) fn debug(&self, message: impl Display) {
        self.line(LogLevel::Debug, &message);
    }

    pub(crate) fn info(&self, message: impl Display) {
        self.line(LogLevel::Info, &message);
    }

    /// The same, with the fields that identify the container's interface.
    pub(crate) fn fact(&self, message: impl Display, target: &Target) {
        self.info(format!("{message} {}", target.log_fields()));
    }

    pub(crate) fn warn(&self, message: impl Display) {
        self.line(LogLevel::Warning, &message);
    }

    pub(crate) fn error(&self, message: impl Display) {
        self.line(LogLevel::Error, &message);
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        self.text.borrow().clone()
    }

    /// Appends the lines to the file that the configuration names, if any.
    pub(crate) async fn save(&self, settings: &LogSettings) {
        file::append(settings, self.text()).await;
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
