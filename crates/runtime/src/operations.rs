//! The operations on a network: chains forward and backward, with the cache between them (cni-runtime.md section 2.3).

use std::collections::HashSet;
use std::path::PathBuf;

use russet_cni_spec::{CniError, CniResult, ConfigList, PluginConfig, ValidAttachment, Verb, Version};
use russet_linux::execute::Execution;
use serde_json::Value;

use crate::cache::{Cache, Unusable};
use crate::request::{self, Extras};
use crate::{Attachment, CacheEntry, PluginError, Runtime, RuntimeError};

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
    pub fn del(&self, list: &ConfigList, attachment: &Attachment) -> Result<(), RuntimeError> {
        let version = list.version()?;
        let cached = self.cache().read(list, attachment);
        let foreign = matches!(cached, Err(Unusable::Foreign));
        let previous = cached.ok().and_then(|entry| entry.result(version).ok());
        let errors = self.del_chain(list, version, attachment, previous.as_ref());
        if errors.is_empty() && !foreign {
            self.cache().remove(list, attachment);
        }
        RuntimeError::collect(errors)
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

    /// Detaches every cached attachment of this network that is not in `valid`, then lets every plugin collect what
    /// it holds for others than those. Without `valid` every cached attachment goes, and the plugins are told nothing.
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
            let extras = Extras { valid, ..Extras::default() };
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
        let stdin = format!("{{\"cniVersion\":\"{}\"}}", Version::LATEST);
        let stdout = match self.run(kind, Verb::Version, None, stdin.as_bytes()) {
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
        let version = list.version()?;
        let mut capabilities = Vec::new();
        for plugin in &list.plugins {
            if !self.versions(&plugin.kind)?.iter().any(|known| known == version.as_str()) {
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

    fn execute(
        &self,
        list: &ConfigList,
        version: Version,
        plugin: &PluginConfig,
        verb: Verb,
        attachment: Option<&Attachment>,
        extras: Extras<'_>,
    ) -> Result<Vec<u8>, PluginError> {
        let stdin = request::stdin(list, version, plugin, extras);
        self.run(&plugin.kind, verb, attachment, &stdin)
    }

    /// The first directory's regular file called `kind` (cni-runtime.md section 2.2).
    fn find(&self, kind: &str) -> Result<PathBuf, PluginError> {
        let dirs = &self.plugin_dirs;
        let found = dirs.iter().map(|dir| dir.join(kind)).find(|path| path.is_file());
        found.ok_or_else(|| PluginError::NotFound { kind: kind.to_owned(), dirs: dirs.clone() })
    }

    /// Runs one plugin; what it says to people on success is passed on.
    fn run(
        &self,
        kind: &str,
        verb: Verb,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        let binary = self.find(kind)?;
        let env = request::env(verb, attachment, &self.plugin_dirs);
        let deadline = self.plugin_deadline;
        let finished = Execution { binary: &binary, env: &env, stdin, deadline }.run()?;
        if !finished.status.success() {
            return Err(PluginError::of(finished));
        }
        let _ = std::io::Write::write_all(&mut std::io::stderr(), &finished.stderr);
        Ok(finished.stdout)
    }
}

fn failed(plugin: &PluginConfig, verb: Verb, source: PluginError) -> RuntimeError {
    let name = plugin.object.get("name").and_then(Value::as_str);
    let name = name.map(|name| format!(" name={name:?}")).unwrap_or_default();
    RuntimeError::Plugin { plugin: format!("type={:?}{name}", plugin.kind), verb, source }
}
