//! The log level of Calico's plugins, and the log file besides standard error (calico-cni.md
//! section 1.3).

use std::path::PathBuf;

use russet_cni_spec::CniError;
use russet_wiring::{LogLevel, RequestLog};

use super::fields::Fields;
use super::log_file;

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

    /// Appends the lines of a request to the file, if there is one.
    pub async fn save(&self, log: &RequestLog) {
        log_file::append(self, log.text()).await;
    }
}
