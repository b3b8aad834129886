//! The tables of known keys and their types (cni-runtime.md sections 1.2 and 1.12; for plugins, the
//! configurations of containernetworking/plugins 1.9.1 and our own docs/plugins.md).

use serde_json::{Map, Value};

use super::Document;
use super::json::join;
use super::names::nearest;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    /// A whole number, not negative.
    Number,
    /// true or false.
    Switch,
    /// true or false, also as text in any case.
    LooseSwitch,
    Object,
    Array,
    /// An array of texts.
    Texts,
}

use Shape::{Array, LooseSwitch, Number, Object, Switch, Text, Texts};

type Table = &'static [(&'static str, Shape)];

/// The known keys of one object.
pub(super) struct Keys {
    tables: Vec<Table>,
    /// Whether an unknown key is an error.
    closed: bool,
    place: Place,
}

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    List,
    Plugin,
    Ipam,
    Dns,
}

const LIST: Table = &[
    ("cniVersion", Text),
    ("cniVersions", Texts),
    ("name", Text),
    ("disableCheck", LooseSwitch),
    ("disableGC", LooseSwitch),
    ("loadOnlyInlinedPlugins", LooseSwitch),
    ("plugins", Array),
];
const PLUGIN: Table = &[
    ("cniVersion", Text),
    ("name", Text),
    ("type", Text),
    ("capabilities", Object),
    ("ipam", Object),
    ("dns", Object),
    ("args", Object),
];
/// The keys of all of Russet's plugins, under their own and the reference plugins' names
/// (docs/plugins.md): the agent's socket, the node and the command.
const OURS: Table = &[("agent_socket", Text), ("root", Text), ("russet_path", Text)];
const DNS: Table = &[("nameservers", Texts), ("domain", Text), ("search", Texts), ("options", Texts)];

/// The keys of plugins besides [`PLUGIN`].
const PLUGINS: &[(&str, Table)] = &[
    (
        "bridge",
        &[
            ("bridge", Text),
            ("isGateway", Switch),
            ("isDefaultGateway", Switch),
            ("forceAddress", Switch),
            ("ipMasq", Switch),
            ("ipMasqBackend", Text),
            ("mtu", Number),
            ("hairpinMode", Switch),
            ("promiscMode", Switch),
            ("vlan", Number),
            ("vlanTrunk", Array),
            ("preserveDefaultVlan", Switch),
            ("macspoofchk", Switch),
            ("enabledad", Switch),
            ("disableContainerInterface", Switch),
            ("portIsolation", Switch),
            ("sourceGuard", Switch),
            ("allowedSourcePrefixes", Array),
        ],
    ),
    (
        "macvlan",
        &[
            ("master", Text),
            ("mode", Text),
            ("mtu", Number),
            ("mac", Text),
            ("linkInContainer", Switch),
            ("bcqueuelen", Number),
        ],
    ),
    ("loopback", &[]),
    (
        "portmap",
        &[
            ("snat", Switch),
            ("masqAll", Switch),
            ("conditionsV4", Texts),
            ("conditionsV6", Texts),
            ("markMasqBit", Number),
            ("externalSetMarkChain", Text),
            ("backend", Text),
        ],
    ),
    (
        "bandwidth",
        &[
            ("ingressRate", Number),
            ("ingressBurst", Number),
            ("egressRate", Number),
            ("egressBurst", Number),
            ("shapedSubnets", Texts),
            ("unshapedSubnets", Texts),
        ],
    ),
    ("flannel", &[("subnetFile", Text), ("dataDir", Text), ("delegate", Object)]),
];
/// Keys of known type, of plugins whose other keys are unknown.
const USUAL: Table = &[
    ("mtu", Number),
    ("ipMasq", Switch),
    ("isGateway", Switch),
    ("isDefaultGateway", Switch),
    ("hairpinMode", Switch),
    ("master", Text),
    ("mode", Text),
    ("sysctl", Object),
    ("ipv4_pools", Texts),
    ("ipv6_pools", Texts),
];
/// The keys of IPAM plugins besides `type`.
const IPAMS: &[(&str, Table)] = &[
    (
        "host-local",
        &[
            ("type", Text),
            ("ranges", Array),
            ("subnet", Text),
            ("rangeStart", Text),
            ("rangeEnd", Text),
            ("gateway", Text),
            ("routes", Array),
            ("dataDir", Text),
            ("resolvConf", Text),
        ],
    ),
    ("static", &[("type", Text), ("addresses", Array), ("routes", Array), ("dns", Object)]),
];
const ANY_IPAM: Table = &[("type", Text), ("routes", Array)];

/// The capabilities that runtimes know.
const CAPABILITIES: [&str; 12] = [
    "portMappings",
    "ipRanges",
    "bandwidth",
    "dns",
    "ips",
    "mac",
    "infinibandGUID",
    "deviceID",
    "aliases",
    "cgroupPath",
    "io.kubernetes.cri.pod-annotations",
    "podAnnotations",
];

/// The name of a value's type, for people.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A boolean of a list, as libcni parses it.
pub(super) fn is_true(value: &Value) -> bool {
    value.as_bool().unwrap_or_else(|| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("true")))
}

fn table_of(tables: &[(&str, Table)], kind: &str) -> Option<Table> {
    tables.iter().find(|(name, _)| *name == kind).map(|(_, table)| *table)
}

fn has(table: Table, key: &str) -> bool {
    table.iter().any(|(name, _)| *name == key)
}

/// Whether any of the tables has it, without the keys that are everywhere.
fn in_some(tables: &[(&str, Table)], key: &str) -> bool {
    key != "type" && tables.iter().any(|(_, table)| has(table, key))
}

/// Whether people use the key for notes.
fn is_note(key: &str) -> bool {
    key.starts_with(['_', '/', '#', '$']) || key.starts_with("x-") || key == "comment"
}

// === impl Keys ===

impl Keys {
    pub(super) fn of_list() -> Self {
        Self { tables: vec![LIST], closed: true, place: Place::List }
    }

    pub(super) fn of_plugin(kind: &str) -> Self {
        let own = table_of(PLUGINS, kind);
        Self { tables: vec![PLUGIN, OURS, own.unwrap_or(USUAL)], closed: own.is_some(), place: Place::Plugin }
    }

    pub(super) fn of_ipam(kind: &str) -> Self {
        let own = table_of(IPAMS, kind);
        Self { tables: vec![own.unwrap_or(ANY_IPAM)], closed: own.is_some(), place: Place::Ipam }
    }

    pub(super) fn of_dns() -> Self {
        Self { tables: vec![DNS], closed: true, place: Place::Dns }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.tables.iter().flat_map(|table| table.iter().map(|(name, _)| *name))
    }

    fn shape(&self, key: &str) -> Option<Shape> {
        self.tables
            .iter()
            .flat_map(|table| table.iter())
            .find(|(name, _)| *name == key)
            .map(|(_, shape)| *shape)
    }

    /// Where a misplaced key belongs.
    fn misplaced(&self, key: &str) -> Option<&'static str> {
        match self.place {
            Place::List
                if key != "name"
                    && ([PLUGIN, OURS].iter().any(|it| has(it, key)) || in_some(PLUGINS, key)) =>
            {
                Some("it belongs to a plugin: into one of the objects in 'plugins'")
            }
            Place::Plugin if !has(PLUGIN, key) && has(LIST, key) => {
                Some("it belongs to the list: beside 'plugins', not inside")
            }
            Place::Plugin if self.closed && in_some(IPAMS, key) => Some("it belongs into 'ipam'"),
            Place::Ipam if matches!(key, "capabilities" | "args") => {
                Some("it belongs to the plugin: beside 'ipam', not inside")
            }
            _ => None,
        }
    }

    /// What is wrong with a key that is not in the tables, if anything.
    fn unknown(&self, key: &str) -> Option<String> {
        if let Some(place) = self.misplaced(key) {
            return Some(format!("'{key}' is in the wrong place: {place}"));
        }
        let near = nearest(key, self.names());
        match (near, self.closed) {
            (Some(name), true) => Some(format!("unknown key '{key}': is '{name}' meant?")),
            (Some("capabilities"), false) => Some(format!("unknown key '{key}': is 'capabilities' meant?")),
            (None, true) if !is_note(key) => Some(format!("unknown key '{key}': no plugin reads it")),
            _ => None,
        }
    }
}

// === impl Shape ===

impl Shape {
    fn fits(self, value: &Value) -> bool {
        match self {
            Text => value.is_string(),
            Number => value.is_u64(),
            Switch => value.is_boolean(),
            LooseSwitch => {
                let named = |text: &str| ["true", "false"].iter().any(|it| text.eq_ignore_ascii_case(it));
                value.is_boolean() || value.as_str().is_some_and(named)
            }
            Object => value.is_object(),
            Array => value.is_array(),
            Texts => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
        }
    }

    const fn wanted(self) -> &'static str {
        match self {
            Text => "text",
            Number => "a whole number",
            Switch | LooseSwitch => "true or false, without quotation marks,",
            Object => "an object",
            Array => "an array",
            Texts => "an array of texts",
        }
    }
}

// === impl Document ===

impl Document {
    /// Compares an object's keys with the known ones. null counts as absent.
    pub(super) fn keys(&mut self, path: &str, object: &Map<String, Value>, keys: &Keys) {
        for (key, value) in object {
            let at = join(path, key);
            let generated =
                matches!(key.as_str(), "prevResult" | "runtimeConfig") || key.starts_with("cni.dev/");
            if generated {
                self.warn(
                    &at,
                    format!("'{key}' is what a runtime writes; what a file says there is thrown away"),
                );
            } else if let Some(shape) = keys.shape(key) {
                if !value.is_null() && !shape.fits(value) {
                    self.fail(&at, format!("{} is wanted, this is {}", shape.wanted(), shown(value)));
                }
            } else if let Some(text) = keys.unknown(key) {
                self.warn(&at, text);
            }
        }
    }

    /// The capabilities that a plugin declares.
    pub(super) fn capabilities(&mut self, path: &str, declared: &Map<String, Value>) {
        for (key, value) in declared {
            let at = join(path, key);
            if !value.is_boolean() {
                self.fail(&at, format!("true or false is wanted, this is {}", shown(value)));
            }
            if !CAPABILITIES.contains(&key.as_str())
                && let Some(name) = nearest(key, CAPABILITIES)
            {
                self.warn(&at, format!("no runtime knows the capability '{key}': is '{name}' meant?"));
            }
        }
    }
}

/// A value's type, and the value if it is short.
pub(super) fn shown(value: &Value) -> String {
    const SHOWN_MAX_CHARS: usize = 40;
    let text = value.to_string();
    match text.chars().count() <= SHOWN_MAX_CHARS && !value.is_null() {
        true => format!("{}: {text}", kind_of(value)),
        false => kind_of(value).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use russet_cni_spec::table::{self, PluginKind};

    use super::*;

    /// Plugins whose own readers report what they cannot use.
    const OPEN: [&str; 4] = ["russet", "calico", "calico-ipam", "openshift-sdn"];

    #[test]
    fn the_keys_of_every_plugin_are_listed_or_left_to_its_reader() {
        for plugin in &table::PLUGINS {
            let tables = if plugin.kind == PluginKind::Ipam { IPAMS } else { PLUGINS };
            let listed = table_of(tables, plugin.name).is_some();
            assert!(listed != OPEN.contains(&plugin.name), "{}: its keys are listed: {listed}", plugin.name);
        }
    }
}
