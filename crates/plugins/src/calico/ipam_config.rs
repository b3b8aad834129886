//! The configuration that IPAM plugins get: the request's own, with the node's pod prefixes in the place of their names (calico-cni.md section 2.5.1).

use russet_addr::NodeName;
use russet_cni_spec::CniError;
use russet_kube::absent_is_none;
use serde_json::{Map, Value};

use super::kubernetes_failed;
use super::pod_cidr::{self, PodCidrs};
use crate::calico_conf::CalicoConf;
use crate::{Clusters, RequestLog};

/// The section `ipam`; empty where there is none.
pub fn section(stdin: &[u8]) -> Result<Map<String, Value>, CniError> {
    Ok(decoded(stdin)?.get("ipam").and_then(Value::as_object).cloned().unwrap_or_default())
}

/// The configuration with the prefixes that Kubernetes gave the node; none where it names no such prefix.
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
    let filled = filled(stdin, &PodCidrs::of_node(&name, &texts)?)?;
    log.info(format!("Calico CNI passing podCidr to {} IPAM: {}", conf.ipam.kind, texts.join(",")));
    Ok(Some(filled))
}

/// The configuration for a DEL, which asks no API server: prefixes that hold everything; none where it names no prefix of the node.
pub fn with_dummies(stdin: &[u8]) -> Result<Option<Vec<u8>>, CniError> {
    if !pod_cidr::wanted(&section(stdin)?) {
        return Ok(None);
    }
    filled(stdin, &PodCidrs::dummies()).map(Some)
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
