//! What happened in a trial, kept for whoever has to find out why it failed.

use std::collections::VecDeque;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

/// Lines, of which the last are told on failure and all are in the artefacts.
pub struct Diary {
    began: Instant,
    place: PathBuf,
    kept: Mutex<(VecDeque<String>, File)>,
}

/// Lines that are told on failure.
const LAST: usize = 60;

// === impl Diary ===

impl Diary {
    /// In a directory of its own, which goes when all went well.
    pub fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("russet-chaos-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let file = File::create(place.join("operations.log")).unwrap();
        Self { began: Instant::now(), place, kept: Mutex::new((VecDeque::new(), file)) }
    }

    /// Where the artefacts of a failure are.
    pub fn place(&self) -> &Path {
        &self.place
    }

    pub fn note(&self, text: Arguments<'_>) {
        let line = format!("{:9.3} {text}", self.began.elapsed().as_secs_f64());
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A full disk spoils the file and not the trial.
        let _ = writeln!(kept.1, "{line}");
        kept.0.push_back(line);
        if kept.0.len() > LAST {
            kept.0.pop_front();
        }
    }
}

impl Drop for Diary {
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
