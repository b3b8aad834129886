//! The network configuration that an installation writes.

use std::path::Path;

use serde_json::json;

/// The conflist. `portmap`: whether the plugin exists, and whether it is Russet's. Other
/// implementations do not support CNI 1.1.0, so a list with one of them does not declare 1.1.0: the
/// runtime can then call neither GC nor STATUS, but the list works. `root`: the network is used on
/// this machine below that directory, and not inside an image with that root.
pub fn conflist(command: &Path, portmap: Option<bool>, root: Option<&Path>) -> String {
    let mut russet = json!({ "type": "russet", "russet_path": command });
    let mut ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    if let Some(root) = root {
        // Each plugin is a process of its own, and would otherwise look for the agent of /.
        for plugin in [&mut russet, &mut ports] {
            plugin["russet_path"] = json!(command);
            plugin["agent_socket"] = json!(russet_agent::Paths::new(root).cni_socket());
            plugin["root"] = json!(root);
        }
    }
    let plugins = if portmap.is_some() { json!([russet, ports]) } else { json!([russet]) };
    let mut list = json!({ "cniVersion": "1.0.0", "name": "russet", "plugins": plugins });
    if portmap != Some(false) {
        list["cniVersions"] = json!(["1.0.0", "1.1.0"]);
    }
    format!("{list:#}\n")
}
