//! The reference plugins in Go, as Debian has them: `bridge` and `ptp`, each with `host-local`.

use std::path::Path;

use serde_json::{Value, json};

use crate::bench::cni::subject::Subject;
use crate::bench::cni::{GO_BRIDGE, GO_PTP};

const PLUGINS: &str = "/usr/lib/cni";

/// `bridge` as dataplane.md section 7 configures it.
pub fn bridge(directory: &Path) -> Subject {
    let options = json!({ "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true });
    subject(GO_BRIDGE, "bridge", options, "10.251.0.0/16", directory)
}

/// `ptp` as dataplane.md section 7 configures it.
pub fn ptp(directory: &Path) -> Subject {
    subject(GO_PTP, "ptp", json!({ "ipMasq": false }), "10.252.0.0/16", directory)
}

/// A reference plugin with host-local IPAM.
fn subject(name: &'static str, plugin: &str, options: Value, subnet: &str, directory: &Path) -> Subject {
    let mut config = options;
    config["cniVersion"] = json!("1.0.0");
    config["name"] = json!(format!("bench-{plugin}"));
    config["type"] = json!(plugin);
    config["ipam"] = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": subnet }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dataDir": directory,
    });
    Subject::new(name, &Path::new(PLUGINS).join(plugin), &config)
}
