//! Runs plugins that are part of this program without a process.
//!
//! The behaviour is that of a process: the call has its own variables and stdin, its answer is the
//! output and the exit code, and a deadline ends the wait. Each call has a thread of its own. A
//! thread cannot be killed: one that hangs continues alone, and the locks that the plugins'
//! requests take anyway keep it from interfering with the next call. A panic ends the program, as
//! in all release builds: the next start recovers, as after kill -9.

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

/// The plugins that this program contains.
pub trait InProcess: Debug + Send + Sync {
    /// Whether it can do the work of the plugin `kind`, for which `found` is the executable in the
    /// plugin directories, if there is one. A foreign executable must be executed itself.
    fn stands_for(&self, kind: &str, found: Option<&Path>) -> bool;

    /// Does the work of the executable with these variables and this stdin. May block.
    fn run(&self, call: Call) -> Outcome;
}

/// One call of a plugin without a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The plugin's type.
    pub kind: String,
    /// The variables of its environment besides this process's own.
    pub vars: Vec<(String, String)>,
    /// Its standard input.
    pub stdin: Vec<u8>,
}

/// The limit of concurrent calls.
#[derive(Debug)]
struct CallLimit {
    taken: AtomicUsize,
    max: usize,
}

/// The permit of a call's thread, for as long as the thread lives.
#[derive(Debug)]
struct CallPermit(&'static CallLimit);

/// Includes threads that hang. `russet cri` has some 50 concurrent chains (its pools), each with
/// one call at a time; the other permits are for hanging threads, so that a file system or a kernel
/// that hangs costs a limited number of stacks, and not one more each minute.
static CALL_LIMIT: CallLimit = CallLimit { taken: AtomicUsize::new(0), max: 128 };

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
    let permit = CALL_LIMIT.take().ok_or_else(too_many)?;
    let (answer, answered) = sync_channel(1);
    let work = Arc::clone(ours);
    let thread = std::thread::Builder::new().name(format!("cni {kind}"));
    let started = thread.spawn(move || {
        let _permit = permit;
        // After the deadline there is no receiver any more.
        let _ = answer.send(work.run(call));
    });
    started.map_err(ExecuteError::Io)?;
    match answered.recv_timeout(deadline) {
        Ok(outcome) => Ok(finished(outcome)),
        Err(RecvTimeoutError::Timeout) => Err(ExecuteError::Deadline(deadline).into()),
        // Only in a build that unwinds.
        Err(RecvTimeoutError::Disconnected) => {
            Err(PluginError::Cni(CniError::internal("the plugin ended without an answer", "")))
        }
    }
}

fn too_many() -> PluginError {
    let details = format!("at most {} at a time", CALL_LIMIT.max);
    PluginError::Cni(CniError::try_again_later("too many requests inside this process", details))
}

/// The outcome in the form of an ended process.
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
    /// None if a variable is not UTF-8.
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

// === impl CallLimit ===

impl CallLimit {
    fn take(&'static self) -> Option<CallPermit> {
        let free = |taken: usize| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| CallPermit(self))
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_limited_and_reusable() {
        static TWO: CallLimit = CallLimit { taken: AtomicUsize::new(0), max: 2 };
        let (first, _second) = (TWO.take().unwrap(), TWO.take().unwrap());
        assert!(TWO.take().is_none());
        drop(first);
        assert!(TWO.take().is_some());
        let PluginError::Cni(error) = too_many() else { panic!("no error of CNI's") };
        assert_eq!(error.code, russet_cni_spec::code::TRY_AGAIN_LATER);
    }
}
