//! The operations on a network: chains forward and backward, with the cache between them (cni-runtime.md section 2.3).

use std::collections::HashSet;
use std::path::PathBuf;

use russet_addr::{ContainerId, NetworkName};
use russet_cni_spec::{CniError, CniResult, ConfigList, PluginConfig, ValidAttachment, Verb, Version};
use russet_linux::{NetNs, NetNsError};
use serde_json::Value;

use crate::cache::{Cache, Unusable};
use crate::request::Extras;
use crate::{Attachment, CacheEntry, Detached, PluginError, Runtime, RuntimeError};

// === impl Runtime ===

impl Runtime {
    /// Attaches: every plugin forward, each with the result of the one before; the last result is cached.
    ///
    /// The first failure stops the chain, and what the plugins before it made stays until DEL. Only when the cache
    /// cannot be written is the chain undone here: without its entry nobody would find the attachment again.
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

    /// Detaches: every plugin backward with the cached result, going on past failures; all of them are reported.
    /// The cache entry goes when all succeeded, and stays for another try when one did not.
    ///
    /// The plugins are those that the attachment was made with, as the cache has them; `list` is used where it has none. A namespace that was
    /// unmounted, so that its path is a plain file, is told to nobody: plugins would fail at it for as long as the file is there.
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

    /// Detaches everything that the cache has of this container, whatever networks there are by now: each with the configuration, the arguments and
    /// the namespace of its ADD, if that is still one.
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

    /// What the cache has of an attachment to the network of this name: for a DEL after the network's configuration has been removed.
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

    /// Compares an attachment with what it should be; the first plugin's complaint is the answer.
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

    /// Removes results from the cache whose writer died before they were whole. To be called at times; nobody takes them for results.
    pub fn tidy(&self) {
        self.cache().tidy();
    }

    /// Detaches every cached attachment of this network that is not in `valid`, then lets every plugin collect what
    /// it holds for others than those. Without `valid` no attachment is valid: every cached one goes, and the plugins get an empty list.
    pub fn gc(&self, list: &ConfigList, valid: Option<&[ValidAttachment]>) -> Result<(), RuntimeError> {
        let version = list.version()?;
        if list.disable_gc {
            return Ok(());
        }
        let keep: HashSet<_> = valid.into_iter().flatten().map(|it| (&it.container_id, &it.ifname)).collect();
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

    /// Asks every plugin whether it could serve ADD; the first that cannot gives the answer, its code included.
    pub fn status(&self, list: &ConfigList) -> Result<(), RuntimeError> {
        let version = list.version()?;
        if version.supports(Verb::Status) {
            for plugin in &list.plugins {
                self.execute(list, version, plugin, Verb::Status, None, Extras::default())?;
            }
        }
        Ok(())
    }

    /// The versions that a plugin says it speaks.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>, PluginError> {
        self.versions_in(&self.plugin_dirs, kind)
    }

    /// [`versions`](Self::versions) of the plugin that `dirs` have.
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

    /// Refuses a list with a plugin that is missing or does not speak its version; gives the union of the capabilities
    /// that the plugins declare.
    pub fn validate(&self, list: &ConfigList) -> Result<Vec<String>, RuntimeError> {
        let dirs = self.dirs_of(list);
        self.validate_by(list, |kind| self.versions_in(&dirs, kind))
    }

    /// [`validate`](Self::validate), for whoever knows what versions a plugin speaks.
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

    /// Every cached attachment that can be read, of every network.
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
