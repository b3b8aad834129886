//! The events of a trial, kept for the analysis of a failure.

use std::collections::VecDeque;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

/// Lines: a failure prints the last ones, and the artefacts have all.
pub struct EventLog {
    began: Instant,
    place: PathBuf,
    kept: Mutex<(VecDeque<String>, File)>,
}

/// How many lines a failure prints.
const LAST: usize = 60;

// === impl EventLog ===

impl EventLog {
    /// In a directory of its own, which is deleted after a success.
    pub fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("russet-chaos-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let file = File::create(place.join("operations.log")).unwrap();
        Self { began: Instant::now(), place, kept: Mutex::new((VecDeque::new(), file)) }
    }

    /// The directory of a failure's artefacts.
    pub fn place(&self) -> &Path {
        &self.place
    }

    pub fn note(&self, text: Arguments<'_>) {
        let line = format!("{:9.3} {text}", self.began.elapsed().as_secs_f64());
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A full disk must not fail the trial.
        let _ = writeln!(kept.1, "{line}");
        kept.0.push_back(line);
        if kept.0.len() > LAST {
            kept.0.pop_front();
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.place);
            return;
        }
        let kept = self.kept.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        eprintln!("--- the last {} entries of {}", kept.0.len(), self.place.join("operations.log").display());
        kept.0.iter().for_each(|line| eprintln!("{line}"));
    }
}
