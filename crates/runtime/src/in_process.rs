//! The short cut for plugins that are part of this program: no process is started for them.
//!
//! What a process gives is kept: its variables and its stdin are the call's, its answer is its output and its exit code, a deadline ends
//! the waiting. Each call has a thread of its own. A thread cannot be killed: one that does not come back
//! goes on alone, and what it might still do is kept from the next call by the locks that the plugins' requests take anyway. A panic ends the program,
//! as release builds end at any panic: what was half done is found again when it is started anew, as after kill -9.

use std::ffi::OsString;
use std::fmt::Debug;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use russet_cni_spec::{CniError, Outcome};
use russet_linux::execute::{ExecuteError, Finished};

use crate::PluginError;

/// The plugins that this program is itself.
pub trait InProcess: Debug + Send + Sync {
    /// Whether it can do the work of the plugin `kind`, for which `found` is the executable in the plugin directories, if there is one.
    /// Somebody else's executable must be left to do its own work.
    fn stands_for(&self, kind: &str, found: Option<&Path>) -> bool;

    /// Does what the executable would do with these variables and this stdin. May block.
    fn run(&self, call: Call) -> Outcome;
}

/// One execution that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The plugin's type.
    pub kind: String,
    /// What its environment would have besides this process's own.
    pub vars: Vec<(String, String)>,
    /// What it would read.
    pub stdin: Vec<u8>,
}

/// How many calls have a thread.
#[derive(Debug)]
struct Seats {
    taken: AtomicUsize,
    max: usize,
}

/// One of the threads that calls are on, for as long as it lives.
#[derive(Debug)]
struct Seat(&'static Seats);

/// The threads of this program, the forgotten ones included. `russet cri` has some 50 chains at once (its crews), each with one call at a time; the others
/// are for those that do not come back, so that a file system or a kernel that hangs costs a known number of stacks, and not one more each minute.
static SEATS: Seats = Seats { taken: AtomicUsize::new(0), max: 128 };

/// Runs the plugin on a thread of its own.
pub(crate) fn run(
    ours: &Arc<dyn InProcess>,
    kind: &str,
    env: &[(&'static str, OsString)],
    stdin: &[u8],
    deadline: Duration,
) -> Result<Finished, PluginError> {
    let Some(call) = Call::new(kind, env, stdin) else {
        return Err(PluginError::Cni(CniError::environment("a variable is no UTF-8 text", "")));
    };
    let seat = SEATS.take().ok_or_else(too_many)?;
    let (answer, answered) = sync_channel(1);
    let work = Arc::clone(ours);
    let thread = std::thread::Builder::new().name(format!("cni {kind}"));
    let started = thread.spawn(move || {
        let _seat = seat;
        // Nobody waits any more after the deadline.
        let _ = answer.send(work.run(call));
    });
    started.map_err(ExecuteError::Io)?;
    match answered.recv_timeout(deadline) {
        Ok(outcome) => Ok(finished(outcome)),
        Err(RecvTimeoutError::Timeout) => Err(ExecuteError::Deadline(deadline).into()),
        // Only where a build unwinds.
        Err(RecvTimeoutError::Disconnected) => {
            Err(PluginError::Cni(CniError::internal("the plugin ended without an answer", "")))
        }
    }
}

fn too_many() -> PluginError {
    let details = format!("at most {} at a time", SEATS.max);
    PluginError::Cni(CniError::try_again_later("too many requests inside this process", details))
}

/// The outcome as a process would have left it.
fn finished(outcome: Outcome) -> Finished {
    let mut stderr = outcome.stderr.into_bytes();
    if let Some(timing) = outcome.timing {
        stderr.extend(timing.line().into_bytes());
    }
    let status = ExitStatus::from_raw(i32::from(outcome.exit_code) << 8);
    Finished { status, stdout: outcome.stdout, stderr }
}

// === impl Call ===

impl Call {
    /// None where a variable is no text.
    fn new(kind: &str, env: &[(&'static str, OsString)], stdin: &[u8]) -> Option<Self> {
        let text =
            |(key, value): &(&'static str, OsString)| Some(((*key).to_owned(), value.to_str()?.to_owned()));
        let vars = env.iter().map(text).collect::<Option<_>>()?;
        Some(Self { kind: kind.to_owned(), vars, stdin: stdin.to_vec() })
    }

    /// A variable's value.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.vars.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

// === impl Seats ===

impl Seats {
    fn take(&'static self) -> Option<Seat> {
        let free = |taken: usize| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Seat(self))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_seats_and_one_that_is_left_is_free_again() {
        static TWO: Seats = Seats { taken: AtomicUsize::new(0), max: 2 };
        let (first, _second) = (TWO.take().unwrap(), TWO.take().unwrap());
        assert!(TWO.take().is_none());
        drop(first);
        assert!(TWO.take().is_some());
        let PluginError::Cni(error) = too_many() else { panic!("no error of CNI's") };
        assert_eq!(error.code, russet_cni_spec::code::TRY_AGAIN_LATER);
    }
}
