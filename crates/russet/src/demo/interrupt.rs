//! Ctrl-C: a thread of its own receives it, and the demo checks it between and during waits.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::DemoError;
use crate::command::{runtime, stop_signal};

/// Whether a signal has requested the demo to stop.
#[derive(Clone)]
pub struct Interrupt {
    state: Arc<(Mutex<bool>, Condvar)>,
}

// === impl Interrupt ===

impl Interrupt {
    /// From now on SIGINT and SIGTERM no longer end the process, but make [`check`](Self::check)
    /// fail.
    pub fn listen() -> Result<Self, DemoError> {
        let failed = |source| DemoError::io("listen for Ctrl-C", source);
        let interrupt = Self { state: Arc::default() };
        let heard = interrupt.clone();
        let runtime = runtime().map_err(failed)?;
        // Before anything is made: a signal that came while the thread begins would leave it behind.
        let signal = {
            let _entered = runtime.enter();
            stop_signal().map_err(failed)?
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                runtime.block_on(signal);
                *heard.state.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
                heard.state.1.notify_all();
            })
            .map_err(failed)?;
        Ok(interrupt)
    }

    /// Fails once a stop was requested.
    pub fn check(&self) -> Result<(), DemoError> {
        self.wait(Duration::ZERO)
    }

    /// Waits until a stop is requested.
    pub fn wait_for_ever(&self) {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.state.1.wait_while(state, |interrupted| !*interrupted));
    }

    /// Waits for `time`, or until a stop is requested.
    pub fn wait(&self, time: Duration) -> Result<(), DemoError> {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.state.1.wait_timeout_while(state, time, |interrupted| !*interrupted);
        let interrupted = *waited.unwrap_or_else(PoisonError::into_inner).0;
        if interrupted { Err(DemoError::Interrupted) } else { Ok(()) }
    }
}
