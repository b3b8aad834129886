//! The configuration for IPAM plugins: that of the request, with the node's pod prefixes in place
//! of their names (calico-cni.md section 2.5.1).

use russet_addr::NodeName;
use russet_cni_spec::CniError;
use russet_kube::absent_is_none;
use russet_wiring::RequestLog;
use serde_json::{Map, Value};

use super::kubernetes_failed;
use super::pod_cidr::{self, PodCidrs};
use crate::Clusters;
use crate::conf::CalicoConf;

/// The section `ipam`; empty if there is none.
pub fn section(stdin: &[u8]) -> Result<Map<String, Value>, CniError> {
    Ok(decoded(stdin)?.get("ipam").and_then(Value::as_object).cloned().unwrap_or_default())
}

/// The configuration with the node's pod prefixes from Kubernetes; `None` if it does not refer to
/// them.
pub async fn with_pod_cidrs(
    stdin: &[u8],
    clusters: &Clusters,
    conf: &CalicoConf,
    node: &NodeName,
    log: &RequestLog,
) -> Result<Option<Vec<u8>>, CniError> {
    if !pod_cidr::wanted(&section(stdin)?) {
        return Ok(None);
    }
    log.info("Calico CNI fetching podCidr from Kubernetes");
    let name = conf.kubernetes.node_name.clone().unwrap_or_else(|| node.to_string());
    let node = absent_is_none(clusters.open(&conf.kubernetes)?.node(&name).await)
        .map_err(|error| kubernetes_failed("the node's pod prefixes could not be read", error))?
        .ok_or_else(|| {
            let msg = format!("there is no Kubernetes node {name}");
            CniError::invalid_config(msg, "set kubernetes.node_name")
        })?;
    let texts = node.pod_cidrs();
    let filled = filled(stdin, &PodCidrs::from_node(&name, &texts)?)?;
    log.info(format!("Calico CNI passing podCidr to {} IPAM: {}", conf.ipam.kind, texts.join(",")));
    Ok(Some(filled))
}

/// The configuration for a DEL, which must not depend on the API server: prefixes that contain
/// every address; `None` if it does not refer to pod prefixes.
pub fn with_catch_all_cidrs(stdin: &[u8]) -> Result<Option<Vec<u8>>, CniError> {
    if !pod_cidr::wanted(&section(stdin)?) {
        return Ok(None);
    }
    filled(stdin, &PodCidrs::catch_all()).map(Some)
}

fn filled(stdin: &[u8], cidrs: &PodCidrs) -> Result<Vec<u8>, CniError> {
    let mut config = decoded(stdin)?;
    if let Some(ipam) = config.get_mut("ipam").and_then(Value::as_object_mut) {
        cidrs.fill(ipam)?;
    }
    Ok(Value::Object(config).to_string().into_bytes())
}

fn decoded(stdin: &[u8]) -> Result<Map<String, Value>, CniError> {
    serde_json::from_slice(stdin)
        .map_err(|error| CniError::decoding("failed to decode the network configuration", error))
}
