//! The network configuration that an installation writes.

use std::path::Path;

use serde_json::json;

/// The conflist. `portmap`: whether the plugin exists, and whether it is Russet's. Other
/// implementations do not support CNI 1.1.0, so a list with one of them does not declare 1.1.0: the
/// runtime can then call neither GC nor STATUS, but the list works. `root`: the network is used on
/// this machine below that directory, and not inside an image with that root.
pub fn conflist(command: &Path, portmap: Option<bool>, root: Option<&Path>) -> String {
    let mut list = json!({
        "cniVersion": "1.0.0",
        "name": "russet",
        "plugins": [{ "type": "russet", "russet_path": command }],
    });
    if let Some(root) = root {
        let plugin = &mut list["plugins"][0];
        plugin["agent_socket"] = json!(russet_agent::Paths::new(root).cni_socket());
        plugin["root"] = json!(root);
    }
    if portmap != Some(false) {
        list["cniVersions"] = json!(["1.0.0", "1.1.0"]);
    }
    if let (Some(_), Some(plugins)) = (portmap, list["plugins"].as_array_mut()) {
        plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    }
    format!("{list:#}\n")
}
