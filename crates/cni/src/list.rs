//! Configuration files: a network's name, version and chain of plugins, as administrators write them.

use russet_addr::{NameError, NetworkName};
use serde_json::{Map, Value};

use crate::field::{self, Object};
use crate::version::{VersionSyntax, select};
use crate::{FieldError, UnsupportedVersion, Version};

/// A network: a `.conflist`, or a `.conf` converted into a list of one plugin (cni-runtime.md
/// sections 1.2 and 2.1).
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigList {
    /// The version chosen from `cniVersion` and `cniVersions`; possibly an unsupported one.
    pub cni_version: String,
    /// The network's name.
    pub name: NetworkName,
    /// CHECK succeeds without calling the plugins.
    pub disable_check: bool,
    /// GC does nothing.
    pub disable_gc: bool,
    /// Plugins in the directory named after the network are not appended.
    pub load_only_inlined_plugins: bool,
    /// The chain.
    pub plugins: Vec<PluginConfig>,
    /// The document for the result cache, with the whole chain inlined.
    pub bytes: Vec<u8>,
}

/// One plugin of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConfig {
    /// `type`: the executable's name.
    pub kind: String,
    /// The capabilities that it declares as true.
    pub capabilities: Vec<String>,
    /// The whole object, unchanged.
    pub object: Map<String, Value>,
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not JSON.
    #[error("error parsing configuration: {0}")]
    Json(#[from] serde_json::Error),
    /// It is JSON, but not an object.
    #[error("error parsing configuration: an object is wanted")]
    NotAnObject,
    /// A member is wrong.
    #[error("error parsing configuration: {0}")]
    Field(#[from] FieldError),
    /// `cniVersion` or an element of `cniVersions` is no version.
    #[error("error parsing configuration: {0}")]
    Version(#[from] VersionSyntax),
    /// No name.
    #[error("error parsing configuration: no name")]
    NoName,
    /// A bad name.
    #[error("error parsing configuration: {0}")]
    Name(#[from] NameError),
    /// A single plugin's configuration without the plugin's name.
    #[error("error parsing configuration: no 'type'; is this a conflist?")]
    NoType,
    /// A list in a file for a single plugin's configuration.
    #[error("error parsing configuration: 'plugins' makes this a list, which belongs into a .conflist")]
    IsList,
    /// No plugins, neither inlined nor in the network's directory.
    #[error("no plugin configs found")]
    NoPlugins,
}

// === impl ConfigList ===

impl ConfigList {
    /// Decodes a `.conflist`. The chain may be empty, to be filled from the network's directory;
    /// [`require_plugins`](Self::require_plugins) checks it at the end.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let object = object_of(bytes)?;
        let only_inlined = field::switch(&object, "loadOnlyInlinedPlugins")?;
        let plugins = field::objects(&object, "plugins", PluginConfig::read)?;
        let given = field::present(&object, "plugins").is_some();
        if plugins.is_empty() && (given || only_inlined) {
            return Err(ConfigError::NoPlugins);
        }
        Ok(Self {
            cni_version: version_of(&object)?,
            name: name_of(&object)?,
            disable_check: field::switch(&object, "disableCheck")?,
            disable_gc: field::switch(&object, "disableGC")?,
            load_only_inlined_plugins: only_inlined,
            plugins,
            bytes: bytes.to_vec(),
        })
    }

    /// Decodes a `.conf` or `.json` and converts it into a list of one: the whole object, including
    /// its name, is the plugin.
    pub fn parse_single(bytes: &[u8]) -> Result<Self, ConfigError> {
        let object = object_of(bytes)?;
        if object.contains_key("plugins") {
            return Err(ConfigError::IsList);
        }
        if field::text(&object, "type")?.is_empty() {
            return Err(ConfigError::NoType);
        }
        let plugin = PluginConfig::read(&object)?;
        let cni_version = version_of(&object)?;
        let name = name_of(&object)?;
        let mut list = Map::new();
        list.insert("cniVersion".into(), cni_version.as_str().into());
        list.insert("name".into(), name.as_str().into());
        list.insert("plugins".into(), Value::Array(vec![Value::Object(object)]));
        Ok(Self {
            cni_version,
            name,
            disable_check: false,
            disable_gc: false,
            load_only_inlined_plugins: true,
            plugins: vec![plugin],
            bytes: Value::Object(list).to_string().into_bytes(),
        })
    }

    /// Appends a plugin from a file in the network's directory. From then on the document has the
    /// whole chain inlined, because a DEL that uses the cached document must not depend on the
    /// directory's later content.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ConfigError> {
        let appended = object_of(bytes)?;
        let plugin = PluginConfig::read(&appended)?;
        let mut document = object_of(&self.bytes)?;
        match document.entry("plugins").or_insert(Value::Null) {
            Value::Array(plugins) => plugins.push(Value::Object(appended)),
            absent => *absent = Value::Array(vec![Value::Object(appended)]),
        }
        document.insert("loadOnlyInlinedPlugins".into(), true.into());
        self.bytes = Value::Object(document).to_string().into_bytes();
        self.load_only_inlined_plugins = true;
        self.plugins.push(plugin);
        Ok(())
    }

    /// Refuses a chain without plugins.
    pub fn require_plugins(self) -> Result<Self, ConfigError> {
        if self.plugins.is_empty() { Err(ConfigError::NoPlugins) } else { Ok(self) }
    }

    /// The chosen version, if it is supported.
    pub fn version(&self) -> Result<Version, UnsupportedVersion> {
        Version::of_config(&self.cni_version)
    }
}

fn object_of(bytes: &[u8]) -> Result<Object, ConfigError> {
    match serde_json::from_slice(bytes)? {
        Value::Object(object) => Ok(object),
        _ => Err(ConfigError::NotAnObject),
    }
}

fn name_of(object: &Object) -> Result<NetworkName, ConfigError> {
    match field::text(object, "name")? {
        "" => Err(ConfigError::NoName),
        name => Ok(NetworkName::new(name)?),
    }
}

fn version_of(object: &Object) -> Result<String, ConfigError> {
    let single = field::text(object, "cniVersion")?;
    let offered = field::texts(object, "cniVersions")?;
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    Ok(select(single, &offered)?)
}

// === impl PluginConfig ===

impl PluginConfig {
    fn read(object: &Object) -> Result<Self, FieldError> {
        let kind = field::text(object, "type")?;
        if let Err(rule) = check_kind(kind) {
            return Err(FieldError::new("type", rule));
        }
        let declared = field::object(object, "capabilities")?;
        let mut capabilities = Vec::new();
        for key in declared.iter().flat_map(|declared| declared.keys()) {
            let declared = declared.map_or(Ok(false), |declared| field::boolean(declared, key));
            if declared.map_err(|error| error.within("capabilities"))? {
                capabilities.push(key.clone());
            }
        }
        Ok(Self { kind: kind.to_owned(), capabilities, object: object.clone() })
    }
}

/// A plugin's name becomes part of a path: CVE-2021-20206 ran `../../anything`.
fn check_kind(kind: &str) -> Result<(), &'static str> {
    match kind {
        "" => Err("it is missing"),
        "." | ".." => Err("it must not be . or .."),
        _ if kind.contains(['/', '\\', '\0']) => Err("it must be a name, not a path"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
