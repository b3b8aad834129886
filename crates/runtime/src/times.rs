//! What each execution of a plugin took, and where plugins of ours say that the time went. Only for a [`Runtime`](crate::Runtime) with
//! [`Times`]: then plugins are asked for it by a variable, and their answer is taken out of what they print on stderr.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russet_cni_spec::Verb;
use russet_cni_spec::relay::Timing;

/// Executions in their order; clones share the list.
#[derive(Debug, Clone, Default)]
pub struct Times(Arc<Mutex<Vec<PluginTime>>>);

/// One execution of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginTime {
    /// The plugin's type.
    pub plugin: String,
    /// What it was asked for.
    pub verb: Verb,
    /// From before it was started until it had ended.
    pub elapsed: Duration,
    /// Whether its exit status was good.
    pub succeeded: bool,
    /// What plugins of ours said: this one, and those that it called.
    pub inside: Vec<Timing>,
}

// === impl Times ===

impl Times {
    /// Everything so far; the list is empty afterwards.
    pub fn take(&self) -> Vec<PluginTime> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, time: PluginTime) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(time);
    }
}
