//! The log level of Calico's plugins, and the log file besides standard error (calico-cni.md
//! section 1.3).

use std::path::PathBuf;

use russet_cni_spec::CniError;

use super::fields::Fields;

/// `log_level` and `log_file_...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// `log_level`.
    pub level: LogLevel,
    /// `log_file_path`.
    pub file: Option<PathBuf>,
    /// `log_file_max_size`: a larger file is rotated.
    pub file_max_bytes: u64,
    /// `log_file_max_age`: rotated files are deleted after this many days.
    pub file_max_age_d: u32,
    /// `log_file_max_count`: how many rotated files are kept.
    pub file_max_count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warning,
    Info,
    Debug,
}

const MAX_SIZE_MB: u32 = 100;
const MAX_AGE_D: u32 = 30;
const MAX_COUNT: u32 = 10;

// === impl LogSettings ===

impl LogSettings {
    pub(super) fn read(root: &Fields<'_>) -> Result<Self, CniError> {
        let number = |key: &str, default: u32| {
            let given = root.number(key, 0..=u32::MAX)?;
            Ok::<u32, CniError>(given.filter(|number| *number != 0).unwrap_or(default))
        };
        Ok(Self {
            level: LogLevel::parse(root.text("log_level")?.as_deref().unwrap_or_default()),
            file: root.path("log_file_path")?,
            file_max_bytes: u64::from(number("log_file_max_size", MAX_SIZE_MB)?) * 1_000_000,
            file_max_age_d: number("log_file_max_age", MAX_AGE_D)?,
            file_max_count: number("log_file_max_count", MAX_COUNT)?,
        })
    }
}

// === impl LogLevel ===

impl LogLevel {
    /// Parses a level in any case of letters; unknown levels mean info, as for peers.
    fn parse(text: &str) -> Self {
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
