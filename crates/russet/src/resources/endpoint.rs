//! WorkloadEndpoint (calico-cni.md sections 2.2.1 and 2.2.2).

use std::net::IpAddr;

use russet_addr::{ContainerId, IfName, IpNet, NodeName};
use russet_model::{WorkloadEndpoint, WorkloadEndpointSpec, WorkloadNameError};
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{List, Number, Object, Text, TextOrNumber};
use super::{Definition, Problems, TableContext, check};

/// Labels that are derived from the endpoint, whatever the file has.
const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";
const PORT_PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
const QOS: &[Field] = &[
    Field("ingressBandwidth", Number),
    Field("egressBandwidth", Number),
    Field("ingressBurst", Number),
    Field("egressBurst", Number),
    Field("ingressPeakrate", Number),
    Field("egressPeakrate", Number),
    Field("ingressMinburst", Number),
    Field("egressMinburst", Number),
    Field("ingressPacketRate", Number),
    Field("egressPacketRate", Number),
    Field("ingressPacketBurst", Number),
    Field("egressPacketBurst", Number),
    Field("ingressMaxConnections", Number),
    Field("egressMaxConnections", Number),
    Field("dscp", TextOrNumber),
];

impl Definition for WorkloadEndpointSpec {
    const WORDS: &'static [&'static str] = &["wep", "weps", "endpoint", "endpoints"];
    const FIELDS: &'static [Field] = &[
        Field("orchestrator", Text),
        Field("workload", Text),
        Field("node", Text),
        Field("containerID", Text),
        Field("pod", Text),
        Field("endpoint", Text),
        Field("serviceAccountName", Text),
        Field("ipNetworks", List(&Text)),
        Field("ipNATs", List(&Object(&[Field("internalIP", Text), Field("externalIP", Text)]))),
        Field("ipv4Gateway", Text),
        Field("ipv6Gateway", Text),
        Field("profiles", List(&Text)),
        Field("interfaceName", Text),
        Field("mac", Text),
        Field(
            "ports",
            List(&Object(&[
                Field("name", Text),
                Field("protocol", TextOrNumber),
                Field("port", Number),
                Field("hostPort", Number),
                Field("hostIP", Text),
            ])),
        ),
        Field("allowSpoofedSourcePrefixes", List(&Text)),
        Field("qosControls", Object(QOS)),
    ];
    const STATUS: &'static [Field] = &[];

    fn heading(wide: bool) -> &'static [&'static str] {
        match wide {
            false => &["WORKLOAD", "NODE", "NETWORKS", "INTERFACE"],
            true => &["NAME", "WORKLOAD", "NODE", "NETWORKS", "INTERFACE", "PROFILES", "NATS"],
        }
    }

    fn row(endpoint: &WorkloadEndpoint, wide: bool, _seen: &TableContext) -> Vec<String> {
        let spec = &endpoint.spec;
        let joined = |texts: Vec<String>| texts.join(",");
        let workload = if spec.workload.is_empty() { &spec.pod } else { &spec.workload };
        let interface = spec.interface_name.as_ref().map(ToString::to_string).unwrap_or_default();
        let networks = joined(spec.ip_networks.iter().map(ToString::to_string).collect());
        let mut row = vec![workload.clone(), spec.node.clone(), networks, interface];
        if wide {
            row.insert(0, endpoint.metadata.name.clone());
            row.push(joined(spec.profiles.clone()));
            row.push(joined(
                spec.ip_nats.iter().map(|nat| format!("{} -> {}", nat.external, nat.internal)).collect(),
            ));
        }
        row
    }

    fn check(endpoint: &mut WorkloadEndpoint, problems: &mut Problems) {
        let namespace = endpoint.metadata.namespace.clone().unwrap_or_default();
        let labels = &mut endpoint.metadata.labels;
        labels.insert(NAMESPACE_LABEL.to_owned(), namespace);
        labels.insert(ORCHESTRATOR_LABEL.to_owned(), endpoint.spec.orchestrator.clone());
        named(endpoint, problems);
        let spec = &endpoint.spec;
        networks(spec, problems);
        ports(spec, problems);
        let id = &spec.container_id;
        let good = id.is_empty() || is_container_id(id);
        problems.unless(
            good,
            "spec.containerID",
            "letters, digits and '-' are wanted, with a letter or digit at both ends",
        );
        for (index, profile) in spec.profiles.iter().enumerate() {
            problems.unless(
                check::is_name(profile),
                &format!("spec.profiles[{index}]"),
                "it is no name of a profile",
            );
        }
    }
}

/// The name must consist of node, orchestrator, workload and interface.
fn named(endpoint: &WorkloadEndpoint, problems: &mut Problems) {
    let given = &endpoint.metadata.name;
    match computed_name(&endpoint.spec) {
        Ok(name) if name == *given => {}
        Ok(name) => problems.add("metadata.name", &format!("{name:?} is wanted, which the spec amounts to")),
        Err(problem) => problems.add("spec", &problem),
    }
}

fn computed_name(spec: &WorkloadEndpointSpec) -> Result<String, String> {
    let missing = |name: &str| format!("{name} is missing");
    for (name, value) in
        [("node", &spec.node), ("orchestrator", &spec.orchestrator), ("endpoint", &spec.endpoint)]
    {
        if value.is_empty() {
            return Err(missing(name));
        }
    }
    let node = NodeName::new(spec.node.as_str()).map_err(|error| error.to_string())?;
    let interface = || IfName::new(spec.endpoint.as_str()).map_err(|error| error.to_string());
    let to_text = |error: WorkloadNameError| error.to_string();
    match spec.orchestrator.as_str() {
        "k8s" => WorkloadEndpointSpec::k8s_name(&node, &spec.pod, &interface()?).map_err(to_text),
        "cni" => {
            let id = ContainerId::new(spec.container_id.as_str()).map_err(|error| error.to_string())?;
            WorkloadEndpointSpec::cni_name(&node, &id, &interface()?).map_err(to_text)
        }
        "libnetwork" => Ok(others(spec, "libnetwork")?),
        _ if spec.workload.is_empty() => Err(missing("workload")),
        _ => Ok(others(spec, &spec.workload)?),
    }
}

/// The name under any other orchestrator.
fn others(spec: &WorkloadEndpointSpec, workload: &str) -> Result<String, String> {
    let node = NodeName::new(spec.node.as_str()).map_err(|error| error.to_string())?;
    let start = WorkloadEndpointSpec::name_prefix(&node, &spec.orchestrator, workload);
    let start = start.map_err(|error| error.to_string())?;
    let end = &spec.endpoint;
    if end.starts_with('-') || end.ends_with('-') {
        return Err(WorkloadNameError { part: end.clone() }.to_string());
    }
    Ok(start + &end.replace('-', "--"))
}

fn networks(spec: &WorkloadEndpointSpec, problems: &mut Problems) {
    for (index, net) in spec.ip_networks.iter().enumerate() {
        let single = net.prefix_len() == net.max_prefix_len();
        problems.unless(single, &format!("spec.ipNetworks[{index}]"), "one address is wanted, /32 or /128");
    }
    for (index, nat) in spec.ip_nats.iter().enumerate() {
        let at = format!("spec.ipNATs[{index}]");
        let alike = nat.internal.is_ipv4() == nat.external.is_ipv4();
        problems.unless(alike, &at, "both addresses must be of one family");
        let own = spec.ip_networks.iter().any(|net: &IpNet| net.contains(&nat.internal));
        problems.unless(own, &at, "internalIP is none of ipNetworks");
    }
    for (name, text, is_family) in [
        ("ipv4Gateway", &spec.ipv4_gateway, IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
        ("ipv6Gateway", &spec.ipv6_gateway, IpAddr::is_ipv6),
    ] {
        let good = text.is_empty() || text.parse::<IpAddr>().is_ok_and(|address| is_family(&address));
        problems.unless(good, &format!("spec.{name}"), "an address of that family is wanted");
    }
}

fn ports(spec: &WorkloadEndpointSpec, problems: &mut Problems) {
    for (index, port) in spec.ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        let protocol = match &port.protocol {
            Value::String(name) => PORT_PROTOCOLS.contains(&name.as_str()),
            number => matches!(number.as_u64(), Some(6 | 17 | 132)),
        };
        problems.unless(protocol, &format!("{at}.protocol"), "TCP, UDP or SCTP is wanted");
        problems.unless(port.port > 0, &format!("{at}.port"), "1 to 65535 is wanted");
        let useful = !port.name.is_empty() || port.host_port != 0;
        problems.unless(useful, &at, "a port without hostPort needs a name");
    }
}

fn is_container_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    let ends = [bytes.first(), bytes.last()].into_iter().flatten().all(u8::is_ascii_alphanumeric);
    ends && bytes.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoint(name: &str, spec: Value) -> WorkloadEndpoint {
        let metadata = json!({ "name": name, "namespace": "shop" });
        let text = json!({ "kind": "WorkloadEndpoint", "metadata": metadata, "spec": spec }).to_string();
        WorkloadEndpoint::decode(text.as_bytes()).unwrap()
    }

    fn problems(name: &str, spec: Value) -> String {
        let mut problems = Problems::default();
        WorkloadEndpointSpec::check(&mut endpoint(name, spec), &mut problems);
        problems.to_string()
    }

    fn pod(more: Value) -> Value {
        let mut spec = json!({ "orchestrator": "k8s", "node": "worker-1", "pod": "web-0", "endpoint": "eth0",
            "ipNetworks": ["10.65.7.13/32"] });
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        spec
    }

    const NAME: &str = "worker--1-k8s-web--0-eth0";

    #[test]
    fn calicos_derived_labels_are_set() {
        let mut endpoint = endpoint(NAME, pod(json!({})));
        let mut problems = Problems::default();
        WorkloadEndpointSpec::check(&mut endpoint, &mut problems);
        assert!(problems.is_empty(), "{problems}");
        assert_eq!(endpoint.metadata.labels[NAMESPACE_LABEL], "shop");
        assert_eq!(endpoint.metadata.labels[ORCHESTRATOR_LABEL], "k8s");
        assert_eq!(
            WorkloadEndpointSpec::row(&endpoint, false, &TableContext::elsewhere()),
            ["web-0", "worker-1", "10.65.7.13/32", ""]
        );
        assert_eq!(
            WorkloadEndpointSpec::row(&endpoint, true, &TableContext::elsewhere()).len(),
            WorkloadEndpointSpec::heading(true).len()
        );
    }

    #[test]
    fn the_name_must_match_the_spec() {
        // calico-cni.md section 2.2.1
        assert!(problems("web-0", pod(json!({}))).contains(NAME));
        let cni = json!({ "orchestrator": "cni", "node": "n1", "containerID": "f00d", "endpoint": "eth0" });
        assert_eq!(problems("n1-cni-f00d-eth0", cni), "");
        let libnetwork = json!({ "orchestrator": "libnetwork", "node": "n1", "endpoint": "e-1" });
        assert_eq!(problems("n1-libnetwork-libnetwork-e--1", libnetwork), "");
        let other =
            json!({ "orchestrator": "openstack", "workload": "vm-1", "node": "n1", "endpoint": "e1" });
        assert_eq!(problems("n1-openstack-vm--1-e1", other), "");
        assert!(problems(NAME, json!({ "node": "n1" })).contains("orchestrator is missing"));
    }

    #[test]
    fn what_calicos_api_refuses_is_refused() {
        // calico-cni.md section 2.2.2, row "validation"
        for (more, problem) in [
            (json!({ "ipNetworks": ["10.0.0.0/24"] }), "/32 or /128"),
            (
                json!({ "ipNATs": [{ "internalIP": "10.9.9.9", "externalIP": "1.2.3.4" }] }),
                "none of ipNetworks",
            ),
            (json!({ "ipNATs": [{ "internalIP": "10.65.7.13", "externalIP": "fd00::1" }] }), "one family"),
            (json!({ "ipv4Gateway": "fd00::1" }), "spec.ipv4Gateway"),
            (json!({ "containerID": "-x" }), "spec.containerID"),
            (json!({ "profiles": ["Kns"] }), "spec.profiles[0]"),
            (json!({ "ports": [{ "name": "a", "protocol": "ICMP", "port": 1 }] }), "TCP, UDP or SCTP"),
            (json!({ "ports": [{ "name": "a", "protocol": "TCP" }] }), "1 to 65535"),
            (json!({ "ports": [{ "protocol": "TCP", "port": 80 }] }), "needs a name"),
        ] {
            let found = problems(NAME, pod(more.clone()));
            assert!(found.contains(problem), "{more}: {found}");
        }
    }
}
