//! Reports the running chain on standard error: the current plugin, and its result.

use std::io::Write as _;
use std::time::Duration;

use russet_cni_spec::Verb;
use russet_runtime::{PluginError, Progress};

use crate::output::visible;

/// Prints progress for people.
#[derive(Debug)]
pub struct OnTerminal;

/// Escapes the plugin's name, which comes from a configuration.
fn beginning(plugin: &str, verb: Verb) -> String {
    format!("{verb} {} ...", visible(plugin))
}

fn line(elapsed: Duration, failure: Option<&PluginError>) -> String {
    let ms = elapsed.as_secs_f64() * 1000.0;
    // The reason is printed at the end, once.
    if failure.is_some() { format!(" failed after {ms:.1} ms\n") } else { format!(" {ms:.1} ms\n") }
}

// === impl OnTerminal ===

impl Progress for OnTerminal {
    /// Without a newline, so that a waiting user sees which plugin is running.
    fn begins(&self, plugin: &str, verb: Verb) {
        let _ = std::io::stderr().write_all(beginning(plugin, verb).as_bytes());
    }

    fn ended(&self, _plugin: &str, _verb: Verb, elapsed: Duration, failure: Option<&PluginError>) {
        let _ = std::io::stderr().write_all(line(elapsed, failure).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_a_plugin_name_are_escaped() {
        assert_eq!(beginning("bridge", Verb::Add), "ADD bridge ...");
        assert_eq!(beginning("a\u{1b}[2J\r\nb", Verb::Del), "DEL a\\u{1b}[2J\\r\\nb ...");
    }

    #[test]
    fn a_plugins_line_ends_with_its_time_and_a_failures_says_so() {
        assert_eq!(line(Duration::from_micros(12_340), None), " 12.3 ms\n");
        let failure = PluginError::NotFound { kind: "a".into(), dirs: Vec::new() };
        assert_eq!(line(Duration::from_millis(2), Some(&failure)), " failed after 2.0 ms\n");
    }
}
