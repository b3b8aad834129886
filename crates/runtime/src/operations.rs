//! The operations on a network: chains forward and backward, with the cache between them
//! (cni-runtime.md section 2.3).

use std::collections::HashSet;
use std::path::PathBuf;

use russet_addr::{ContainerId, EndpointId, NetworkName};
use russet_cni_spec::{CniError, CniResult, ConfigList, PluginConfig, Verb, Version};
use russet_linux::{NetNs, NetNsError};
use serde_json::Value;

use crate::cache::{Cache, Unusable};
use crate::request::Extras;
use crate::{Attachment, CacheEntry, Detached, PluginError, Runtime, RuntimeError};

// === impl Runtime ===

impl Runtime {
    /// Attaches: runs every plugin forward, each with the previous result; the last result is
    /// cached.
    ///
    /// The first failure stops the chain, and the objects of earlier plugins stay until DEL. Only
    /// if the cache cannot be written is the chain undone here: without its entry the attachment
    /// could not be found again.
    pub fn add(&self, list: &ConfigList, attachment: &Attachment) -> Result<CniResult, RuntimeError> {
        let version = list.version()?;
        let mut previous: Option<CniResult> = None;
        for plugin in &list.plugins {
            let extras = Extras {
                prev_result: previous.as_ref(),
                capability_args: Some(&attachment.capability_args),
                valid: None,
            };
            let stdout = self.execute(list, version, plugin, Verb::Add, Some(attachment), extras);
            let result = stdout.and_then(|stdout| {
                let result = CniResult::decode(&stdout, version)?;
                result.validate()?;
                Ok(result.convert(version)?)
            });
            previous = Some(result.map_err(|source| failed(plugin, Verb::Add, source))?);
        }
        let result = previous.unwrap_or_else(|| CniResult::empty(version));
        if let Err((path, source)) = self.cache().write(list, attachment, &result) {
            let mut errors = vec![RuntimeError::CacheWrite { path, source }];
            errors.extend(self.del_chain(list, version, attachment, Some(&result)));
            RuntimeError::collect(errors)?;
        }
        Ok(result)
    }

    /// Detaches: runs every plugin backward with the cached result, continues after failures, and
    /// reports all of them. The cache entry is removed when all succeeded, and stays for another
    /// try otherwise.
    ///
    /// The plugins are those of the attachment's cache entry; `list` is used if there is none. The
    /// path of a namespace that was unmounted, and is now a plain file, is not passed on: plugins
    /// would fail for as long as the file exists.
    pub fn del(&self, list: &ConfigList, attachment: &Attachment) -> Result<(), RuntimeError> {
        let unmounted = matches!(NetNs::open(&attachment.netns), Err(NetNsError::NotANamespace { .. }));
        let without = unmounted.then(|| Attachment { netns: PathBuf::new(), ..attachment.clone() });
        let attachment = without.as_ref().unwrap_or(attachment);
        let cached = self.cache().read(list, attachment);
        let foreign = matches!(cached, Err(Unusable::Foreign));
        let entry = cached.ok();
        let then = entry.as_ref().and_then(|entry| entry.list().ok());
        let then = then.filter(|then| then.name == list.name && then.version().is_ok());
        let list = then.as_ref().unwrap_or(list);
        let version = list.version()?;
        let previous = entry.and_then(|entry| entry.result(version).ok());
        let errors = self.del_chain(list, version, attachment, previous.as_ref());
        if errors.is_empty() && !foreign {
            self.cache().remove(list, attachment);
        }
        RuntimeError::collect(errors)
    }

    /// Detaches every cached attachment of this container, whatever networks exist by now: each
    /// with the configuration, the arguments and the namespace of its ADD, if that still exists.
    pub fn del_cached(&self, container_id: &ContainerId) -> Result<Detached, RuntimeError> {
        let (known, unreadable) = self.cache().entries_of(container_id);
        let mut detached = Detached { entries: Vec::new(), unreadable };
        let mut errors = Vec::new();
        for entry in known {
            let mut attachment = entry.attachment.clone();
            if NetNs::open(&attachment.netns).is_err_and(|error| error.is_gone()) {
                attachment.netns = PathBuf::new();
            }
            let done = entry.list().map_err(|problem| RuntimeError::Cached {
                network: entry.network.to_string(),
                problem: problem.to_string(),
            });
            match done.and_then(|list| self.del(&list, &attachment)) {
                Ok(()) => detached.entries.push(entry),
                Err(error) => errors.push(error),
            }
        }
        RuntimeError::collect(errors).map(|()| detached)
    }

    /// The cache entry of an attachment to the network of this name: for a DEL after the network's
    /// configuration has been removed.
    pub fn cached(&self, network: &NetworkName, attachment: &Attachment) -> Option<CacheEntry> {
        self.cache().find(network, attachment)
    }

    fn del_chain(
        &self,
        list: &ConfigList,
        version: Version,
        attachment: &Attachment,
        previous: Option<&CniResult>,
    ) -> Vec<RuntimeError> {
        let prev_result = previous.filter(|_| version >= Version::V0_4_0);
        let extras = Extras { prev_result, capability_args: Some(&attachment.capability_args), valid: None };
        let del = |plugin| {
            let done = self.execute(list, version, plugin, Verb::Del, Some(attachment), extras);
            done.err().map(|source| failed(plugin, Verb::Del, source))
        };
        list.plugins.iter().rev().filter_map(del).collect()
    }

    /// Compares an attachment with its desired state; returns the first plugin's error.
    pub fn check(&self, list: &ConfigList, attachment: &Attachment) -> Result<(), RuntimeError> {
        let version = list.version()?;
        if !version.supports(Verb::Check) {
            return Err(RuntimeError::Unsupported { version, verb: Verb::Check });
        }
        if list.disable_check {
            return Ok(());
        }
        let corrupt = |problem| RuntimeError::Cached { network: list.name.to_string(), problem };
        let previous = match self.cache().read(list, attachment) {
            Ok(entry) => Some(entry.result(version).map_err(|error| corrupt(error.to_string()))?),
            Err(Unusable::Absent | Unusable::Foreign) => None,
            Err(Unusable::Corrupt(problem)) => return Err(corrupt(problem)),
        };
        let capability_args = Some(&attachment.capability_args);
        let extras = Extras { prev_result: previous.as_ref(), capability_args, valid: None };
        for plugin in &list.plugins {
            self.execute(list, version, plugin, Verb::Check, Some(attachment), extras)?;
        }
        Ok(())
    }

    /// Removes half-written results of dead writers. To be called periodically.
    pub fn tidy(&self) {
        self.cache().tidy();
    }

    /// Detaches every cached attachment of this network that is not in `valid`, then lets every
    /// plugin release what it holds for others. Without `valid` no attachment is valid: every
    /// cached one is detached, and the plugins get an empty list.
    pub fn gc(&self, list: &ConfigList, valid: Option<&[EndpointId]>) -> Result<(), RuntimeError> {
        let version = list.version()?;
        if list.disable_gc {
            return Ok(());
        }
        let keep: HashSet<_> = valid.into_iter().flatten().map(|it| (&it.container, &it.ifname)).collect();
        let mut errors = Vec::new();
        for entry in self.cache().entries() {
            let attachment = &entry.attachment;
            let kept = keep.contains(&(&attachment.container_id, &attachment.ifname));
            if entry.network != list.name || kept {
                continue;
            }
            if let Err(source) = self.del(list, attachment) {
                errors.push(RuntimeError::Stale {
                    container_id: attachment.container_id.to_string(),
                    ifname: attachment.ifname.to_string(),
                    source: Box::new(source),
                });
            }
        }
        if version.supports(Verb::Gc) {
            let extras = Extras { valid: Some(valid.unwrap_or_default()), ..Extras::default() };
            for plugin in &list.plugins {
                let done = self.execute(list, version, plugin, Verb::Gc, None, extras);
                errors
                    .extend(done.err().map(|source| RuntimeError::Gc { kind: plugin.kind.clone(), source }));
            }
        }
        RuntimeError::collect(errors)
    }

    /// STATUS of every plugin; returns the first error, its code included.
    pub fn status(&self, list: &ConfigList) -> Result<(), RuntimeError> {
        let version = list.version()?;
        if version.supports(Verb::Status) {
            for plugin in &list.plugins {
                self.execute(list, version, plugin, Verb::Status, None, Extras::default())?;
            }
        }
        Ok(())
    }

    /// The versions that a plugin supports.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>, PluginError> {
        self.versions_in(&self.plugin_dirs, kind)
    }

    /// [`versions`](Self::versions) of the plugin in `dirs`.
    pub fn versions_in(&self, dirs: &[PathBuf], kind: &str) -> Result<Vec<String>, PluginError> {
        let stdin = format!("{{\"cniVersion\":\"{}\"}}", Version::LATEST);
        let stdout = match self.run(dirs, kind, Verb::Version, None, stdin.as_bytes()) {
            // Plugins of 0.1.0 do not know the verb.
            Err(PluginError::Cni(CniError { msg, .. })) if msg == "unknown CNI_COMMAND: VERSION" => {
                return Ok(vec![Version::V0_1_0.to_string()]);
            }
            stdout => stdout?,
        };
        let document: Value = serde_json::from_slice(&stdout)
            .map_err(|error| PluginError::Result(russet_cni_spec::ResultError::Json(error)))?;
        let versions = document.get("supportedVersions").and_then(Value::as_array).into_iter().flatten();
        Ok(versions.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Refuses a list with a plugin that is missing or does not support its version; returns the
    /// union of the plugins' capabilities.
    pub fn validate(&self, list: &ConfigList) -> Result<Vec<String>, RuntimeError> {
        let dirs = self.dirs_of(list);
        self.validate_by(list, |kind| self.versions_in(&dirs, kind))
    }

    /// [`validate`](Self::validate), for a caller that knows the plugins' versions.
    pub(crate) fn validate_by(
        &self,
        list: &ConfigList,
        mut versions: impl FnMut(&str) -> Result<Vec<String>, PluginError>,
    ) -> Result<Vec<String>, RuntimeError> {
        let version = list.version()?;
        let mut capabilities = Vec::new();
        for plugin in &list.plugins {
            if !versions(&plugin.kind)?.iter().any(|known| known == version.as_str()) {
                let version = version.to_string();
                return Err(RuntimeError::PluginVersion { kind: plugin.kind.clone(), version });
            }
            capabilities.extend(plugin.capabilities.iter().cloned());
        }
        capabilities.sort();
        capabilities.dedup();
        Ok(capabilities)
    }

    /// Every readable cache entry, of every network.
    pub fn attachments(&self) -> Vec<CacheEntry> {
        self.cache().entries()
    }

    fn cache(&self) -> Cache {
        Cache::new(&self.cache_dir)
    }
}

fn failed(plugin: &PluginConfig, verb: Verb, source: PluginError) -> RuntimeError {
    let name = plugin.object.get("name").and_then(Value::as_str);
    let name = name.map(|name| format!(" name={name:?}")).unwrap_or_default();
    RuntimeError::Plugin { plugin: format!("type={:?}{name}", plugin.kind), verb, source }
}
