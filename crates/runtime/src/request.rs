//! A plugin's request: its environment and its stdin (cni-runtime.md sections 1.4 and 1.6).

use std::ffi::OsString;
use std::path::PathBuf;

use russet_addr::EndpointId;
use russet_cni_spec::{ATTACHMENT_KEYS, CniResult, ConfigList, PluginConfig, Verb, Version};
use serde_json::{Map, Value, json};

use crate::Attachment;

/// The parts of a request that differ from plugin to plugin and from verb to verb.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras<'a> {
    pub(crate) prev_result: Option<&'a CniResult>,
    pub(crate) capability_args: Option<&'a Map<String, Value>>,
    /// GC's list.
    pub(crate) valid: Option<&'a [EndpointId]>,
}

/// Members that only a runtime may write; a file's values of them are dropped.
const GENERATED: [&str; 3] = ["prevResult", "runtimeConfig", "capabilities"];

/// The request for one plugin: its object, and what the list and the runtime add.
pub(crate) fn stdin(
    list: &ConfigList,
    version: Version,
    plugin: &PluginConfig,
    extras: Extras<'_>,
) -> Vec<u8> {
    let mut object = plugin.object.clone();
    object.retain(|key, _| !GENERATED.contains(&key.as_str()) && !key.starts_with("cni.dev/"));
    object.insert("cniVersion".into(), version.as_str().into());
    object.insert("name".into(), list.name.as_str().into());
    if let Some(result) = extras.prev_result {
        object.insert("prevResult".into(), result.to_value());
    }
    let supplied = extras.capability_args.into_iter().flatten();
    let wanted = supplied.filter(|(key, _)| plugin.capabilities.contains(key));
    let runtime_config: Map<String, Value> =
        wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
    if !runtime_config.is_empty() {
        object.insert("runtimeConfig".into(), Value::Object(runtime_config));
    }
    if let Some(valid) = extras.valid {
        let entry =
            |it: &EndpointId| json!({"containerID": it.container.as_str(), "ifname": it.ifname.as_str()});
        let entries: Value = valid.iter().map(entry).collect();
        for key in ATTACHMENT_KEYS {
            object.insert(key.into(), entries.clone());
        }
    }
    Value::Object(object).to_string().into_bytes()
}

/// The environment; every variable is set, so that none of the runtime's own is inherited.
pub(crate) fn env(
    verb: Verb,
    attachment: Option<&Attachment>,
    dirs: &[PathBuf],
) -> Vec<(&'static str, OsString)> {
    let path = std::env::join_paths(dirs).unwrap_or_default();
    let of = |read: fn(&Attachment) -> OsString| attachment.map(read).unwrap_or_default();
    let mut vars = vec![
        ("CNI_COMMAND", verb.as_str().into()),
        ("CNI_CONTAINERID", of(|it| it.container_id.as_str().into())),
        ("CNI_NETNS", of(|it| it.netns.clone().into_os_string())),
        ("CNI_IFNAME", of(|it| it.ifname.as_str().into())),
        ("CNI_ARGS", of(|it| args(&it.args).into())),
        ("CNI_PATH", path),
    ];
    if verb == Verb::Version {
        // As in libcni: the first plugins checked these even for VERSION.
        vars.retain(|(key, _)| !matches!(*key, "CNI_NETNS" | "CNI_IFNAME" | "CNI_PATH"));
        vars.extend(["CNI_NETNS", "CNI_IFNAME", "CNI_PATH"].map(|key| (key, "dummy".into())));
    }
    vars
}

fn args(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(";")
}
