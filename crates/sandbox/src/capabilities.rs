//! CNI_ARGS and the values of capabilities for a pod's plugins (cni-runtime.md sections 1.12 and
//! A.2).

use serde_json::{Map, Value, json};

use crate::{Config, PortMapping, SandboxId, quantity};

/// The burst size without a limit, as dockershim and CRI-O set it (cni-runtime.md section 3.1).
const BURST_BITS: u64 = i32::MAX as u64;
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The bandwidths that Kubernetes accepts: 1k to 1P.
const RATE_BITS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// `CNI_ARGS`: the pod's identity, under dockershim's keys.
pub(crate) fn args(config: &Config, id: &SandboxId) -> Vec<(String, String)> {
    let metadata = &config.metadata;
    let pairs = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &metadata.namespace),
        ("K8S_POD_NAME", &metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id.as_str()),
        ("K8S_POD_UID", &metadata.uid),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// The values of the capabilities that this pod uses. An invalid bandwidth annotation is an error:
/// without its limit the pod would use others' bandwidth.
pub(crate) fn capability_args(config: &Config) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    let ports: Vec<Value> =
        config.port_mappings.iter().filter(|port| port.host_port != 0).map(port).collect();
    if !ports.is_empty() {
        values.insert("portMappings".into(), ports.into());
    }
    let bandwidth = bandwidth(config)?;
    if !bandwidth.is_empty() {
        values.insert("bandwidth".into(), bandwidth.into());
    }
    if let Some(dns) = config.dns.as_ref().filter(|dns| !dns.is_empty()) {
        let value = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        values.insert("dns".into(), value);
    }
    if !config.annotations.is_empty() {
        values.insert("io.kubernetes.cri.pod-annotations".into(), json!(config.annotations));
    }
    Ok(values)
}

fn port(port: &PortMapping) -> Value {
    json!({
        "hostPort": port.host_port,
        "containerPort": port.container_port,
        "protocol": port.protocol.as_str(),
        "hostIP": port.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    })
}

fn bandwidth(config: &Config) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    for (annotation, rate, burst) in
        [(INGRESS, "ingressRate", "ingressBurst"), (EGRESS, "egressRate", "egressBurst")]
    {
        let Some(text) = config.annotations.get(annotation) else { continue };
        let bits = quantity::parse(text).filter(|bits| RATE_BITS.contains(bits));
        let bits =
            bits.ok_or_else(|| format!("annotation {annotation}: {text:?} is no bandwidth from 1k to 1P"))?;
        values.insert(rate.into(), bits.into());
        values.insert(burst.into(), BURST_BITS.into());
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dns, Protocol};

    #[test]
    fn a_plain_pod_has_no_capability_args() {
        assert!(capability_args(&Config::default()).unwrap().is_empty());
    }

    #[test]
    fn every_setting_becomes_its_capability() {
        // cni-runtime.md sections 1.12 and A.2, in the spelling of the conventions
        let mut config = Config::default();
        let port =
            |host_port| PortMapping { protocol: Protocol::Udp, container_port: 80, host_port, host_ip: None };
        config.port_mappings = vec![port(18080), port(0)];
        config.annotations.insert(INGRESS.into(), "10M".into());
        config.annotations.insert(EGRESS.into(), "5M".into());
        let servers = vec!["10.96.0.10".parse().unwrap()];
        let searches = vec!["ns1.svc.cluster.local".into()];
        config.dns = Some(Dns { servers, searches, options: vec!["ndots:5".into()] });
        let expected = json!({
            "portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "udp", "hostIP": ""}],
            "bandwidth": {"ingressRate": 10000000, "ingressBurst": 2147483647, "egressRate": 5000000, "egressBurst": 2147483647},
            "dns": {"servers": ["10.96.0.10"], "searches": ["ns1.svc.cluster.local"], "options": ["ndots:5"]},
            "io.kubernetes.cri.pod-annotations": {INGRESS: "10M", EGRESS: "5M"},
        });
        assert_eq!(Value::Object(capability_args(&config).unwrap()), expected);
    }

    #[test]
    fn an_invalid_bandwidth_is_refused() {
        for text in ["", "fast", "-1M", "999", "2P"] {
            let mut config = Config::default();
            config.annotations.insert(INGRESS.into(), text.into());
            assert!(capability_args(&config).unwrap_err().contains(INGRESS), "{text}");
        }
    }

    #[test]
    fn cni_args_identify_the_pod() {
        let mut config = Config::default();
        (config.metadata.name, config.metadata.namespace, config.metadata.uid) =
            ("web".into(), "ns1".into(), "u".into());
        let id = SandboxId::random().unwrap();
        let args: Vec<String> =
            args(&config, &id).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID=u"
        );
        assert_eq!(args.join(";"), expected);
    }
}
