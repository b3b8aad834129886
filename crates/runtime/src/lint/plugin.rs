//! Checks one plugin of a chain: its name, keys, executable and position.

use russet_cni_spec::table::{self, PluginKind};
use serde_json::{Map, Value};

use super::json::join;
use super::keys::Keys;
use super::{Chain, Document};
use crate::PluginError;

/// Other vendors' plugins that modify the result of an earlier one.
const CHAINED: [&str; 4] = ["tuning", "firewall", "sbr", "vrf"];
/// Plugins that do nothing without a capability, and the keys that replace it.
const NEEDS: [(&str, &str, &[&str]); 2] =
    [("portmap", "portMappings", &[]), ("bandwidth", "bandwidth", &["ingressRate", "egressRate"])];

/// It derives the delegate's `ipam` from its own, and adds type and ranges itself.
const FLANNEL: &str = "flannel";
const FLANNEL_IPAM: &str = "host-local";

/// Whether the plugin modifies the result of an earlier one.
fn is_chained(kind: &str) -> bool {
    let ours = table::find(kind).is_some_and(|plugin| plugin.kind == PluginKind::Meta);
    ours || CHAINED.contains(&kind)
}

/// Plugins that masquerade only with `ipMasq`.
const MASQUERADING: [&str; 2] = ["bridge", "ptp"];
/// The message if [`sends_unanswered`] holds.
pub(super) const UNANSWERED: &str = "pods have a default route, and what they send outside keeps their own addresses: it is answered only by hosts with a route back. \"ipMasq\": true gives it the node's address";

/// Whether pods get a default route without masquerade, so that answers from other hosts do not
/// find a way back.
pub(super) fn sends_unanswered(kind: &str, object: &Map<String, Value>) -> bool {
    let is_on = |key: &str| object.get(key).is_some_and(|value| *value == true);
    let routes = object.get("ipam").and_then(|ipam| ipam.get("routes")).and_then(Value::as_array);
    let is_default = |route: &Value| {
        let dst = route.get("dst").and_then(Value::as_str);
        dst.is_some_and(|dst| dst == "0.0.0.0/0" || dst == "::/0")
    };
    let has_default = is_on("isDefaultGateway") || routes.is_some_and(|routes| routes.iter().any(is_default));
    MASQUERADING.contains(&kind) && has_default && !is_on("ipMasq")
}

// === impl Document ===

impl Document {
    /// `at` is empty if the plugin is the whole file.
    pub(super) fn plugin(
        &mut self,
        at: &str,
        object: &Map<String, Value>,
        in_list: bool,
        chain: &mut Chain<'_>,
    ) {
        let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
        self.keys(at, object, &Keys::of_plugin(kind));
        if in_list {
            for key in ["name", "cniVersion"].into_iter().filter(|key| object.contains_key(*key)) {
                self.warn(
                    &join(at, key),
                    format!("a plugin gets the list's '{key}'; this one is thrown away"),
                );
            }
        }
        self.place(at, kind, chain);
        let capabilities = object.get("capabilities").and_then(Value::as_object);
        if let Some(declared) = capabilities {
            self.capabilities(&join(at, "capabilities"), declared);
        }
        self.purpose(at, kind, object, capabilities);
        if sends_unanswered(kind, object) {
            self.warn(at, UNANSWERED);
        }
        if let Some(dns) = object.get("dns").and_then(Value::as_object) {
            self.keys(&join(at, "dns"), dns, &Keys::of_dns());
        }
        self.executable(&join(at, "type"), kind, !object.contains_key("type"), chain);
        if let Some(ipam) = object.get("ipam").and_then(Value::as_object) {
            self.ipam(&join(at, "ipam"), kind, ipam, chain);
        }
    }

    fn ipam(&mut self, at: &str, of: &str, ipam: &Map<String, Value>, chain: &mut Chain<'_>) {
        let kind = ipam.get("type").and_then(Value::as_str).unwrap_or_default();
        if of == FLANNEL && kind.is_empty() {
            self.keys(at, ipam, &Keys::of_ipam(FLANNEL_IPAM));
            return;
        }
        self.keys(at, ipam, &Keys::of_ipam(kind));
        if ipam.is_empty() {
            return;
        }
        if kind.is_empty() {
            self.warn(at, "no 'type': which IPAM plugin is it? Without one there are no addresses");
            return;
        }
        self.executable(&join(at, "type"), kind, false, chain);
        self.ranges(at, kind, ipam, &mut chain.ranges);
    }

    /// Checks what the plugin needs of earlier ones.
    fn place(&mut self, at: &str, kind: &str, chain: &Chain<'_>) {
        use russet_cni_spec::Version;
        let at = join(at, "type");
        if chain.before == 0 && is_chained(kind) {
            self.fail(
                &at,
                format!("{kind} works on what a plugin before it made, and there is none before it"),
            );
        }
        if chain.before == 1
            && let Some(version) = chain.version.filter(|version| *version < Version::V0_3_0)
        {
            self.fail(
                &at,
                format!("{version} knows no chains: plugins get each other's results from 0.3.0 on"),
            );
        }
    }

    fn purpose(
        &mut self,
        at: &str,
        kind: &str,
        object: &Map<String, Value>,
        declared: Option<&Map<String, Value>>,
    ) {
        let Some((_, capability, instead)) = NEEDS.iter().find(|(name, ..)| *name == kind) else { return };
        let declares = declared.and_then(|declared| declared.get(*capability)).is_some_and(|it| it == true);
        if !declares && !instead.iter().any(|key| object.contains_key(*key)) {
            let needed = format!("\"capabilities\": {{\"{capability}\": true}}");
            self.warn(at, format!("{kind} gets no input, and does nothing, without {needed}"));
        }
    }

    /// Whether the plugin can be executed, and supports the version. Plugins inside the runtime's
    /// program need no file.
    fn executable(&mut self, at: &str, kind: &str, missing: bool, chain: &Chain<'_>) {
        if kind.is_empty() {
            let text = if missing { "no 'type': which plugin is it?" } else { "the type is empty" };
            // A type that is not text has been reported already.
            self.fail(at, text);
            return;
        }
        if kind.contains(['/', '\\', '\0']) || matches!(kind, "." | "..") {
            self.fail(at, "a plugin's type is its file's name, without a directory");
            return;
        }
        let Some(runtime) = chain.runtime else { return };
        match runtime.versions_in(&chain.dirs, kind) {
            Ok(versions) => {
                let Some(version) = chain.version else { return };
                if !versions.iter().any(|known| known == version.as_str()) {
                    let known = versions.join(", ");
                    self.fail(at, format!("{kind} does not speak version {version}; it speaks {known}"));
                }
            }
            Err(PluginError::NotFound { dirs, .. }) => {
                let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                self.fail(at, format!("there is no executable '{kind}' in {}", dirs.join(" or ")));
            }
            Err(error) => self.fail(at, format!("{kind} does not say which versions it speaks: {error}")),
        }
    }
}
