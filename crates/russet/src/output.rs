//! Printing for people and for programs. A closed pipe ends the output, not the program.

use std::io::{self, Write};
use std::time::Duration;

use russet_model::ResourceKind;
use serde::Serialize;

use crate::cli::Format;

mod table;
mod yaml;

pub use table::{table, visible};
pub use yaml::of_json as yaml_of_json;

/// Prints `text` to standard output; ignores a closed pipe.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints `value` for programs, or the table from `text` for people.
pub fn print_as(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) {
    print(&in_format(format, value, text));
}

/// Returns what [`print_as`] prints.
pub fn in_format(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> String {
    match format {
        Format::Json => json(value),
        Format::Yaml => yaml_of_json(&json(value)),
        Format::Table | Format::Wide => text(),
    }
}

/// Prints a progress line to standard error.
pub fn progress(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints an error and all its sources, in one line.
pub fn error(error: &dyn std::error::Error) {
    progress(&format!("error: {}", error_text(error)));
}

/// An error and all its sources, in one line.
pub fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Errors that name their source in their own text need not be repeated.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// `value` as indented JSON that ends with a newline.
pub fn json(value: &impl Serialize) -> String {
    let mut text =
        serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    text.push('\n');
    text
}

/// A resource in the format of `-o name`: `ippool/blue`.
pub fn short_name(kind: ResourceKind, name: &str) -> String {
    visible(&format!("{}/{name}", kind.kind().to_lowercase()))
}

/// A time span in at most two units: `42s`, `7m5s`, `3h12m`, `5d3h`.
pub fn age(span: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = span.as_secs();
    let first = UNITS.iter().position(|(size, _)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let mut rest = seconds;
    let mut text = String::new();
    for (size, unit) in UNITS.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 || text.is_empty() {
            text += &format!("{count}{unit}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_at_most_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (425, "7m5s"),
            (11_530, "3h12m"),
            (86_400, "1d"),
            (90_061, "1d1h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
