//! What configurations of v1.11 mean where those of v3 mean something else.

use russet_addr::NodeName;
use russet_cni_spec::CniError;
use russet_store_etcd::Settings as EtcdSettings;

use crate::conf::{CalicoConf, EtcdMembers};

/// The etcd that plugins of v1.11 used by default.
const V1_AUTHORITY: &str = "127.0.0.1:2379";

// === impl CalicoConf ===

impl CalicoConf {
    /// The name by which v1.11's plugins know this node: `nodename`, otherwise `hostname`,
    /// otherwise the host's name, with upper case, without the file.
    pub fn v1_node_name(&self) -> Result<NodeName, CniError> {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.nodename.clone().or_else(|| self.hostname.clone()).unwrap_or_else(host);
        NodeName::new(name).map_err(|error| CniError::invalid_config("the node's name cannot be used", error))
    }
}

// === impl EtcdMembers ===

impl EtcdMembers {
    /// The settings for the etcd of a v1.11 configuration, which may name it by authority and
    /// scheme, or not at all (calico-cni.md section 1.2).
    pub fn v1_settings(&self) -> Result<EtcdSettings, CniError> {
        let authority = self.authority.as_deref().unwrap_or(V1_AUTHORITY);
        let one = || format!("{}://{authority}", self.scheme.as_deref().unwrap_or("http"));
        let endpoints = self.endpoints.clone().unwrap_or_else(one);
        Self { endpoints: Some(endpoints), ..self.clone() }.settings()
    }
}
