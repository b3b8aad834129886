//! The default network, for daemons: `sandbox` and the CRI server ask [`Networks`] at each sandbox.
//!
//! A thread of its own watches the configuration directory and the plugins' (cni-runtime.md section
//! 3.4): inotify reports every change, also links, files moved in and directories made again, and a
//! slow poll finds changes without an event. A scan of the directories takes the first valid file;
//! if there is none any more, the previous network stays in use.

mod survey;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use russet_cni_spec::ConfigList;
use russet_linux::watch::{DirWatch, WakeHandle, Woken};

use survey::{Found, Surveyor};
pub use survey::{Skipped, Unready, Why};

use crate::{ConfigDir, Runtime};

/// The watched default network; clones share it, and dropping the last one ends the watch.
#[derive(Debug, Clone)]
pub struct Networks {
    shared: Arc<Shared>,
    _watching: Arc<Watching>,
}

/// The watch could not be started.
#[derive(Debug, thiserror::Error)]
#[error("watch network configurations in {}: {source}", dir.display())]
pub struct WatchError {
    /// The directory.
    pub dir: PathBuf,
    pub source: io::Error,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state: RwLock<State>,
}

/// The result of the last scan, and the network in use.
#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Found>>,
    /// Why the last scan found no usable network.
    unready: Option<Unready>,
    skipped: Vec<Skipped>,
    generation: u64,
}

/// Ends the thread when the last clone is dropped.
#[derive(Debug)]
struct Watching(Arc<WakeHandle>);

/// The timing of the thread.
#[derive(Debug, Clone, Copy)]
struct ScanTiming {
    /// The interval of scans without events.
    poll: Duration,
    /// How long it must be quiet after a change: an installer writes several files, and some write
    /// them in place.
    settle: Duration,
    /// The limit for all the changes together.
    settle_limit: Duration,
}

/// dockershim polled every 5 seconds.
const SCAN_TIMING: ScanTiming = ScanTiming {
    poll: Duration::from_secs(5),
    settle: Duration::from_millis(50),
    settle_limit: Duration::from_secs(1),
};

// === impl Networks ===

impl Networks {
    /// Scans, and continues in the background. `runtime` has the plugin directories: a network with
    /// a plugin that is missing or does not support its version is skipped until the plugin is
    /// there.
    pub fn watch(dir: ConfigDir, runtime: Runtime) -> Result<Self, WatchError> {
        Self::watch_at(dir, runtime, SCAN_TIMING)
    }

    fn watch_at(dir: ConfigDir, runtime: Runtime, timing: ScanTiming) -> Result<Self, WatchError> {
        let path = dir.path().to_owned();
        let failed = |source| WatchError { dir: path.clone(), source };
        let mut surveyor = Surveyor::new(dir, runtime);
        let shared = Arc::new(Shared { dir: path.clone(), state: RwLock::default() });
        let watch = shared.look(&mut surveyor);
        let call = Arc::new(WakeHandle::new().map_err(failed)?);
        let (of_thread, until) = (Arc::clone(&shared), Arc::clone(&call));
        let thread = std::thread::Builder::new().name("networks".into());
        thread.spawn(move || of_thread.go_on(&mut surveyor, watch, &until, timing)).map_err(failed)?;
        Ok(Self { shared, _watching: Arc::new(Watching(call)) })
    }

    /// The default network: the first valid file, or else the last one that was; or why there never
    /// was one.
    pub fn current(&self) -> Result<Arc<ConfigList>, Unready> {
        let state = self.shared.read();
        match (&state.current, &state.unready) {
            (Some(found), _) => Ok(Arc::clone(&found.list)),
            (None, Some(unready)) => Err(unready.clone()),
            (None, None) => Err(Unready::Empty { dir: self.shared.dir.clone() }),
        }
    }

    /// The file of [`current`](Self::current).
    pub fn file(&self) -> Option<PathBuf> {
        self.shared.read().current.as_ref().map(|found| found.path.clone())
    }

    /// Why no file in the directory is valid now, also while an earlier network is still in use.
    pub fn problem(&self) -> Option<Unready> {
        self.shared.read().unready.clone()
    }

    /// The invalid files, in their order.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.shared.read().skipped.clone()
    }

    /// How many times [`current`](Self::current) has changed; 0 while there never was one.
    pub fn changed(&self) -> u64 {
        self.shared.read().generation
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }
}

// === impl Shared ===

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scans, with a watch that was armed before, so that no change is missed in between; returns
    /// the watch for the next scan. None if the machine is out of watches.
    fn look(&self, surveyor: &mut Surveyor) -> Option<DirWatch> {
        loop {
            let dirs = surveyor.dirs();
            let watch = DirWatch::arm(&dirs);
            self.take_in(surveyor);
            // The new network may have its plugins in other directories.
            if surveyor.dirs() == dirs {
                return watch.ok();
            }
        }
    }

    /// No lock is held while files are read and plugins are run.
    fn take_in(&self, surveyor: &mut Surveyor) {
        let current = self.read().current.clone();
        let survey = surveyor.survey(current.as_deref());
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.skipped = survey.skipped;
        match survey.found {
            Ok(found) => {
                let another = state.current.as_ref().is_none_or(|current| current.list != found.list);
                state.generation += u64::from(another);
                state.current = Some(Arc::new(found));
                state.unready = None;
            }
            Err(unready) => state.unready = Some(unready),
        }
    }

    /// Runs until the last clone is dropped.
    fn go_on(
        &self,
        surveyor: &mut Surveyor,
        mut watch: Option<DirWatch>,
        call: &WakeHandle,
        timing: ScanTiming,
    ) {
        let heard = |watch: Option<DirWatch>| watch.map(|watch| settled(&watch, call, timing));
        while !is_called(heard(watch), || call.wait(timing.poll), timing.poll) {
            watch = self.look(surveyor);
        }
    }
}

/// Whether the watch was ended. Without a working watch the poll alone sets the interval, by the
/// clock if need be.
fn is_called(
    heard: Option<io::Result<Woken>>,
    call: impl FnOnce() -> io::Result<bool>,
    poll: Duration,
) -> bool {
    match heard {
        Some(Ok(woken)) => woken == Woken::Called,
        None | Some(Err(_)) => call().unwrap_or_else(|_| {
            // Nothing unparks it: an immediate failure must not spin.
            std::thread::park_timeout(poll);
            false
        }),
    }
}

/// Waits for a change, and then for quiet.
fn settled(watch: &DirWatch, call: &WakeHandle, timing: ScanTiming) -> io::Result<Woken> {
    let mut woken = watch.wait(call, timing.poll)?;
    let began = std::time::Instant::now();
    while woken == Woken::Changed && began.elapsed() < timing.settle_limit {
        woken = watch.wait(call, timing.settle)?;
    }
    Ok(woken)
}

// === impl Watching ===

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.call();
    }
}

#[cfg(test)]
mod tests;
