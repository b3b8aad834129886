//! Finds and runs one plugin of a chain: as a process, or inside this one if it is part of this
//! program.

use std::path::{Path, PathBuf};
use std::time::Instant;

use russet_cni_spec::relay::{TIMING_VARIABLE, Timing};
use russet_cni_spec::{ConfigList, PluginConfig, Verb, Version};
use russet_linux::execute::{Execution, Finished};
use serde_json::Value;

use crate::request::{self, Extras};
use crate::{Attachment, PluginError, PluginTime, Runtime, in_process};

/// How a plugin is run.
enum Runner<'a> {
    Process(PathBuf),
    Here(&'a std::sync::Arc<dyn crate::InProcess>),
}

/// The plugin that has a vendor directory of its own at any position of a chain.
const LOOPBACK: &str = "loopback";

// === impl Runtime ===

impl Runtime {
    /// The plugin directories of a network: with a vendor prefix, first the directory that is named
    /// after the first plugin (cni-runtime.md section 2.1).
    pub fn dirs_of(&self, list: &ConfigList) -> Vec<PathBuf> {
        self.dirs_for(list.plugins.iter().map(|plugin| plugin.kind.as_str()))
    }

    /// Fails if a plugin of the network, or an IPAM plugin of one, is missing. Then neither ADD nor
    /// DEL can succeed, so an attachment should not be started.
    pub fn require_plugins(&self, list: &ConfigList) -> Result<(), PluginError> {
        let dirs = self.dirs_of(list);
        for plugin in &list.plugins {
            self.place(&dirs, &plugin.kind)?;
            let ipam = plugin.object.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
            if let Some(kind) = ipam.filter(|kind| !kind.is_empty()) {
                self.place(&dirs, kind)?;
            }
        }
        Ok(())
    }

    pub(crate) fn dirs_for<'a>(&self, kinds: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        if let Some(prefix) = &self.vendor_prefix {
            let vendors = kinds.enumerate().filter(|(index, kind)| *index == 0 || *kind == LOOPBACK);
            for (_, kind) in vendors {
                let dir = prefix.join("opt").join(kind).join("bin");
                if !dirs.contains(&dir) {
                    dirs.push(dir);
                }
            }
        }
        dirs.extend(self.plugin_dirs.iter().cloned());
        dirs
    }

    pub(crate) fn execute(
        &self,
        list: &ConfigList,
        version: Version,
        plugin: &PluginConfig,
        verb: Verb,
        attachment: Option<&Attachment>,
        extras: Extras<'_>,
    ) -> Result<Vec<u8>, PluginError> {
        let stdin = request::stdin(list, version, plugin, extras);
        self.run(&self.dirs_of(list), &plugin.kind, verb, attachment, &stdin)
    }

    /// The first directory's regular file called `kind` (cni-runtime.md section 2.2).
    pub(crate) fn find(dirs: &[PathBuf], kind: &str) -> Result<PathBuf, PluginError> {
        let found = dirs.iter().map(|dir| dir.join(kind)).find(|path| path.is_file());
        found.ok_or_else(|| PluginError::NotFound { kind: kind.to_owned(), dirs: dirs.to_vec() })
    }

    /// A file in the directories is executed, unless it is this very program under the plugin's
    /// name; a plugin of this program needs no file.
    fn place(&self, dirs: &[PathBuf], kind: &str) -> Result<Runner<'_>, PluginError> {
        let found = Self::find(dirs, kind);
        let path: Option<&Path> = found.as_deref().ok();
        match self.in_process.as_ref().filter(|ours| ours.stands_for(kind, path)) {
            Some(ours) => Ok(Runner::Here(ours)),
            None => found.map(Runner::Process),
        }
    }

    /// Runs one plugin; on success, passes its standard error on.
    pub(crate) fn run(
        &self,
        dirs: &[PathBuf],
        kind: &str,
        verb: Verb,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        self.progress.iter().for_each(|progress| progress.begins(kind, verb));
        let began = Instant::now();
        let done = self.run_in(dirs, kind, verb, attachment, stdin);
        self.progress
            .iter()
            .for_each(|progress| progress.ended(kind, verb, began.elapsed(), done.as_ref().err()));
        let finished = done?;
        let _ = std::io::Write::write_all(&mut std::io::stderr(), &finished.stderr);
        Ok(finished.stdout)
    }

    fn run_in(
        &self,
        dirs: &[PathBuf],
        kind: &str,
        verb: Verb,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Finished, PluginError> {
        let place = self.place(dirs, kind)?;
        let mut env = request::env(verb, attachment, dirs);
        if self.times.is_some() {
            env.push((TIMING_VARIABLE, "1".into()));
        }
        let (deadline, began) = (self.plugin_deadline, Instant::now());
        let mut finished = match &place {
            Runner::Process(binary) => {
                Execution { binary, env: &env, stdin, deadline }.run().map_err(PluginError::from)
            }
            Runner::Here(ours) => in_process::run(ours, kind, &env, stdin, deadline),
        };
        self.note(kind, verb, began, &mut finished);
        let finished = finished?;
        if finished.status.success() { Ok(finished) } else { Err(PluginError::from_finished(finished)) }
    }

    /// Records the time of an execution, and removes the plugin's own timing from its standard
    /// error.
    fn note(&self, kind: &str, verb: Verb, began: Instant, finished: &mut Result<Finished, PluginError>) {
        let Some(times) = &self.times else { return };
        let elapsed = began.elapsed();
        let (succeeded, inside) = match finished {
            Ok(finished) => (finished.status.success(), Timing::take(&mut finished.stderr)),
            Err(_) => (false, Vec::new()),
        };
        times.add(PluginTime { plugin: kind.to_owned(), verb, elapsed, succeeded, inside });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_networks_vendor_comes_before_the_plugin_directories() {
        // cni-runtime.md section 2.1
        let mut runtime = Runtime::new(vec!["/bin1".into(), "/bin2".into()], "/cache");
        let dirs = |runtime: &Runtime, kinds: &[&str]| {
            let dirs = runtime.dirs_for(kinds.iter().copied());
            dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(dirs(&runtime, &["weave-net"]), ["/bin1", "/bin2"]);
        runtime.vendor_prefix = Some("/p".into());
        assert_eq!(dirs(&runtime, &["weave-net", "portmap"]), ["/p/opt/weave-net/bin", "/bin1", "/bin2"]);
        assert_eq!(dirs(&runtime, &["loopback"]), ["/p/opt/loopback/bin", "/bin1", "/bin2"]);
        let both = dirs(&runtime, &["a", "loopback", "loopback"]);
        assert_eq!(both, ["/p/opt/a/bin", "/p/opt/loopback/bin", "/bin1", "/bin2"]);
    }
}
