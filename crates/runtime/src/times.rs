//! The time of each execution of a plugin, and its stages inside Russet's plugins. Only for a
//! [`Runtime`](crate::Runtime) with [`Times`]: then a variable requests the stages from plugins,
//! and their report is removed from stderr.

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
    pub verb: Verb,
    /// From before its start until its end.
    pub elapsed: Duration,
    /// Whether its exit status was good.
    pub succeeded: bool,
    /// The stages of Russet's plugins: this one, and those that it called.
    pub inside: Vec<Timing>,
}

// === impl Times ===

impl Times {
    /// All executions so far; the list is empty afterwards.
    pub fn take(&self) -> Vec<PluginTime> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, time: PluginTime) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(time);
    }
}
