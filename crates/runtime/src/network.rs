//! The default network, for processes that run all the time: `sandbox` and the CRI server ask [`Networks`] at each sandbox.
//!
//! A thread of its own watches the configuration directory and the plugins' (cni-runtime.md section 3.4): every change is heard of, also
//! links, files moved in and directories made again, and a slow poll sees what inotify cannot tell. A look at the directories takes the
//! first file that can be used; when there is none any more, the network that was in use stays.

mod survey;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use russet_cni_spec::ConfigList;
use russet_linux::watch::{Call, DirWatch, Woken};

use survey::{Found, Surveyor};
pub use survey::{Skipped, Unready, Why};

use crate::{ConfigDir, Runtime};

/// The watched default network; clones share it, and the last one's end ends the watching.
#[derive(Debug, Clone)]
pub struct Networks {
    shared: Arc<Shared>,
    _watching: Arc<Watching>,
}

/// The watching could not begin.
#[derive(Debug, thiserror::Error)]
#[error("watch network configurations in {}: {source}", dir.display())]
pub struct WatchError {
    /// The directory.
    pub dir: PathBuf,
    /// Why.
    pub source: io::Error,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    state: RwLock<State>,
}

/// What the last look found, and what is in use.
#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Found>>,
    /// Why the last look found nothing to use.
    unready: Option<Unready>,
    skipped: Vec<Skipped>,
    generation: u64,
}

/// Ends the thread when nobody asks any more.
#[derive(Debug)]
struct Watching(Arc<Call>);

/// How patient the thread is.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Between looks when nothing is heard.
    poll: Duration,
    /// How long it must be quiet after a change: an installer writes several files, and some write them in place.
    settle: Duration,
    /// For all the changes together.
    settle_limit: Duration,
}

/// dockershim looked every 5 seconds.
const PACE: Pace = Pace {
    poll: Duration::from_secs(5),
    settle: Duration::from_millis(50),
    settle_limit: Duration::from_secs(1),
};

// === impl Networks ===

impl Networks {
    /// Looks, and goes on looking. `runtime` says where plugins are: a network with a plugin that is missing or does not speak its version is
    /// skipped until there is one.
    pub fn watch(dir: ConfigDir, runtime: Runtime) -> Result<Self, WatchError> {
        Self::watch_at(dir, runtime, PACE)
    }

    fn watch_at(dir: ConfigDir, runtime: Runtime, pace: Pace) -> Result<Self, WatchError> {
        let path = dir.path().to_owned();
        let failed = |source| WatchError { dir: path.clone(), source };
        let mut surveyor = Surveyor::new(dir, runtime);
        let shared = Arc::new(Shared { dir: path.clone(), state: RwLock::default() });
        let watch = shared.look(&mut surveyor);
        let call = Arc::new(Call::new().map_err(failed)?);
        let (of_thread, until) = (Arc::clone(&shared), Arc::clone(&call));
        let thread = std::thread::Builder::new().name("networks".into());
        thread.spawn(move || of_thread.go_on(&mut surveyor, watch, &until, pace)).map_err(failed)?;
        Ok(Self { shared, _watching: Arc::new(Watching(call)) })
    }

    /// The default network: the first file that can be used now, or else the last one that could; or why there never was one.
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

    /// Why nothing in the directory can be used now, also when a network from before is still in use.
    pub fn problem(&self) -> Option<Unready> {
        self.shared.read().unready.clone()
    }

    /// The files that cannot be used, in their order.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.shared.read().skipped.clone()
    }

    /// How often [`current`](Self::current) has become another one; 0 while there never was one.
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

    /// Looks, with a watch armed before, so that no change falls between the two: what is to be waited on until the next look. None if the machine is out of
    /// watches.
    fn look(&self, surveyor: &mut Surveyor) -> Option<DirWatch> {
        loop {
            let dirs = surveyor.dirs();
            let watch = DirWatch::arm(&dirs);
            self.take_in(surveyor);
            // What was found may have its plugins elsewhere.
            if surveyor.dirs() == dirs {
                return watch.ok();
            }
        }
    }

    /// No lock is held while files are read and plugins are asked.
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

    /// Until somebody calls.
    fn go_on(&self, surveyor: &mut Surveyor, mut watch: Option<DirWatch>, call: &Call, pace: Pace) {
        let heard = |watch: Option<DirWatch>| watch.map(|watch| settled(&watch, call, pace));
        while !is_called(heard(watch), || call.wait(pace.poll), pace.poll) {
            watch = self.look(surveyor);
        }
    }
}

/// Whether somebody called. Where there is no watch, or it cannot be waited on, the poll alone sets the pace, by the clock if need be.
fn is_called(
    heard: Option<io::Result<Woken>>,
    call: impl FnOnce() -> io::Result<bool>,
    poll: Duration,
) -> bool {
    match heard {
        Some(Ok(woken)) => woken == Woken::Called,
        None | Some(Err(_)) => call().unwrap_or_else(|_| {
            // Nobody unparks it: what fails at once must not spin.
            std::thread::park_timeout(poll);
            false
        }),
    }
}

/// Waits for a change, and then for its end.
fn settled(watch: &DirWatch, call: &Call, pace: Pace) -> io::Result<Woken> {
    let mut woken = watch.wait(call, pace.poll)?;
    let began = std::time::Instant::now();
    while woken == Woken::Changed && began.elapsed() < pace.settle_limit {
        woken = watch.wait(call, pace.settle)?;
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
