//! What a plugin of Calico's says about one request: on the runtime's standard error, and in the file that the configuration names.
//!
//! The agent sends it with the answer, so that it stands where it stands without an agent.

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

/// More than any request has to say; a list of pools could be of any length.
const TEXT_MAX_BYTES: usize = 8 * 1024;

// === impl RequestLog ===

impl RequestLog {
    /// An empty log of a plugin; everything from `Info` up is kept until the configuration says otherwise.
    pub fn new(plugin: impl Into<String>) -> Self {
        Self { plugin: plugin.into(), level: Cell::new(LogLevel::Info), text: RefCell::default() }
    }

    /// From now on only what is at least so important is kept.
    pub(crate) fn set_level(&self, level: LogLevel) {
        self.level.set(level);
    }

    /// For who looks for a fault.
    pub(crate) fn debug(&self, message: impl Display) {
        self.line(LogLevel::Debug, &message);
    }

    /// What was asked and given.
    pub(crate) fn info(&self, message: impl Display) {
        self.line(LogLevel::Info, &message);
    }

    /// The same about the interface of one container.
    pub(crate) fn fact(&self, message: impl Display, target: &Target) {
        self.info(format!("{message} {}", target.log_fields()));
    }

    /// What looks wrong.
    pub(crate) fn warn(&self, message: impl Display) {
        self.line(LogLevel::Warning, &message);
    }

    /// What failed.
    pub(crate) fn error(&self, message: impl Display) {
        self.line(LogLevel::Error, &message);
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        self.text.borrow().clone()
    }

    /// Adds the lines to the file that the configuration names, if it names one.
    pub(crate) async fn save(&self, settings: &LogSettings) {
        file::append(settings, self.text()).await;
    }

    /// `2026-01-02 03:04:05.678 [INFO][1234] calico-ipam: message`, as Calico's plugins have it but for the name of a source file; in UTC.
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
    fn a_log_has_an_end() {
        let log = RequestLog::new("calico-ipam");
        for _ in 0..1000 {
            log.info("x".repeat(100));
        }
        assert!(log.text().len() < TEXT_MAX_BYTES && log.text().ends_with("x\n"));
    }
}
