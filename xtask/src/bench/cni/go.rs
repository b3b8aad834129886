//! The reference plugins in Go, as Debian has them: `bridge` and `ptp`, each with `host-local`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bench::cni::subject::Subject;
use crate::bench::cni::{GO_BRIDGE, GO_PTP};

/// A reference plugin with host-local IPAM.
pub struct Go {
    name: &'static str,
    plugin: PathBuf,
    config: String,
}

const PLUGINS: &str = "/usr/lib/cni";

// === impl Go ===

impl Go {
    /// `bridge` as dataplane.md section 7 configures it.
    pub fn bridge(directory: &Path) -> Self {
        let options = json!({ "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true });
        Self::new(GO_BRIDGE, "bridge", options, "10.251.0.0/16", directory)
    }

    /// `ptp` as dataplane.md section 7 configures it.
    pub fn ptp(directory: &Path) -> Self {
        Self::new(GO_PTP, "ptp", json!({ "ipMasq": false }), "10.252.0.0/16", directory)
    }

    fn new(name: &'static str, plugin: &str, options: Value, subnet: &str, directory: &Path) -> Self {
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
        Self { name, plugin: Path::new(PLUGINS).join(plugin), config: config.to_string() }
    }
}

impl Subject for Go {
    fn name(&self) -> &'static str {
        self.name
    }

    fn plugin(&self) -> &Path {
        &self.plugin
    }

    fn config(&self) -> &str {
        &self.config
    }
}
