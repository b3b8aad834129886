//! Observes a chain as it runs.

use std::fmt::Debug;
use std::time::Duration;

use russet_cni_spec::Verb;

use crate::PluginError;

/// Called for each plugin, on the thread that runs the chain.
pub trait Progress: Debug + Send + Sync {
    /// Before the plugin is started.
    fn begins(&self, plugin: &str, verb: Verb);

    /// When it has ended.
    fn ended(&self, plugin: &str, verb: Verb, elapsed: Duration, failure: Option<&PluginError>);
}
