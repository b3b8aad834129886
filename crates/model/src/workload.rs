//! Workload endpoints: one interface of one pod, for peers that enforce policy (calico-cni.md
//! section 2.2; calico-ipam.md K10).

use std::net::IpAddr;

use russet_addr::{ContainerId, IfName, IpNet, Mac, NodeName};
use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Fields, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// A workload endpoint with its envelope.
pub type WorkloadEndpoint = Resource<WorkloadEndpointSpec>;

/// The content of an endpoint's record. All members are omitted if empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadEndpointSpec {
    /// `k8s`, `cni` or another.
    pub orchestrator: String,
    /// The workload, for other orchestrators.
    pub workload: String,
    /// The node's name.
    pub node: String,
    /// The container's ID.
    pub container_id: String,
    /// The pod's name.
    pub pod: String,
    /// The interface's name inside the pod.
    pub endpoint: String,
    /// The pod's service account.
    pub service_account_name: String,
    /// Its addresses, as /32 and /128.
    pub ip_networks: Vec<IpNet>,
    /// External addresses that are translated to it.
    pub ip_nats: Vec<IpNat>,
    /// Never set by plugins; kept for the program that set it.
    pub ipv4_gateway: String,
    /// The same.
    pub ipv6_gateway: String,
    /// Profiles whose rules and labels it has.
    pub profiles: Vec<String>,
    /// The interface's name on the node.
    pub interface_name: Option<IfName>,
    /// The interface's MAC inside the pod.
    pub mac: Option<Mac>,
    /// Ports of its containers that have a name or a port on the node.
    pub ports: Vec<EndpointPort>,
    /// Source addresses that it may use besides its own.
    pub allow_spoofed_source_prefixes: Vec<IpNet>,
    /// Limits on its traffic: `ingressBandwidth`, `egressMaxConnections`, ...
    pub qos_controls: Extra,
    /// Members that we do not know.
    pub extra: Extra,
}

/// An external address that is translated to one of the endpoint's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpNat {
    /// The endpoint's address.
    pub internal: IpAddr,
    /// The external address, of the same family.
    pub external: IpAddr,
}

/// A container's port. All members are written, empty or not.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointPort {
    /// Its name, which policies use.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP`; peers may write a number.
    pub protocol: Value,
    /// The port in the pod.
    pub port: u16,
    /// The port on the node; 0 is none.
    pub host_port: u16,
    /// The node's address that `host_port` is bound to; empty is all.
    pub host_ip: String,
}

/// A part of a name that peers would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part:.80?} cannot be part of a workload endpoint's name: it is empty or begins or ends with '-'")]
pub struct WorkloadNameError {
    /// The part.
    pub part: String,
}

// === impl WorkloadEndpointSpec ===

impl WorkloadEndpointSpec {
    /// The name of a Kubernetes pod's endpoint: `<node>-k8s-<pod>-<ifname>`, each `-` of a part doubled.
    pub fn k8s_name(node: &NodeName, pod: &str, ifname: &IfName) -> Result<String, WorkloadNameError> {
        joined([node.as_str(), "k8s", pod, ifname.as_str()])
    }

    /// The common prefix of the names of all endpoints of a workload, on any interface; it also
    /// covers workloads whose name starts with this one's and a `-`.
    pub fn name_prefix(
        node: &NodeName,
        orchestrator: &str,
        workload: &str,
    ) -> Result<String, WorkloadNameError> {
        joined([node.as_str(), orchestrator, workload]).map(|name| name + "-")
    }

    /// The name of any other container's endpoint: `<node>-cni-<container ID>-<ifname>`.
    pub fn cni_name(
        node: &NodeName,
        container: &ContainerId,
        ifname: &IfName,
    ) -> Result<String, WorkloadNameError> {
        joined([node.as_str(), "cni", container.as_str(), ifname.as_str()])
    }
}

fn joined<const N: usize>(parts: [&str; N]) -> Result<String, WorkloadNameError> {
    let bad = |part: &&str| part.is_empty() || part.starts_with('-') || part.ends_with('-');
    match parts.iter().find(|part| bad(part)) {
        Some(part) => Err(WorkloadNameError { part: (*part).to_owned() }),
        None => Ok(parts.map(|part| part.replace('-', "--")).join("-")),
    }
}

impl Spec for WorkloadEndpointSpec {
    const KIND: ResourceKind = ResourceKind::WorkloadEndpoint;
    const WHAT: &'static str = "workload endpoint";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let mut text = |name| fields.string(name).map(Option::unwrap_or_default);
        let mut spec = Self {
            orchestrator: text("orchestrator")?,
            workload: text("workload")?,
            node: text("node")?,
            container_id: text("containerID")?,
            pod: text("pod")?,
            endpoint: text("endpoint")?,
            service_account_name: text("serviceAccountName")?,
            ..Self::default()
        };
        spec.ip_networks = nets(&mut fields, "ipNetworks")?;
        spec.ip_nats = fields
            .objects("ipNATs")?
            .unwrap_or_default()
            .into_iter()
            .map(IpNat::read)
            .collect::<Result<_, _>>()?;
        spec.ipv4_gateway = fields.string("ipv4Gateway")?.unwrap_or_default();
        spec.ipv6_gateway = fields.string("ipv6Gateway")?.unwrap_or_default();
        spec.profiles = fields.strings("profiles")?;
        spec.interface_name = fields.text("interfaceName")?;
        spec.mac = fields.text("mac")?;
        let ports = fields.objects("ports")?.unwrap_or_default();
        spec.ports = ports.into_iter().map(EndpointPort::read).collect::<Result<_, _>>()?;
        spec.allow_spoofed_source_prefixes = nets(&mut fields, "allowSpoofedSourcePrefixes")?;
        spec.qos_controls = fields.object("qosControls")?.map(Fields::rest).unwrap_or_default();
        spec.extra = fields.rest();
        Ok(spec)
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_string("orchestrator", &self.orchestrator)
            .put_string("workload", &self.workload)
            .put_string("node", &self.node)
            .put_string("containerID", &self.container_id)
            .put_string("pod", &self.pod)
            .put_string("endpoint", &self.endpoint)
            .put_string("serviceAccountName", &self.service_account_name)
            .put_list("ipNetworks", &self.ip_networks)
            .put_some("ipNATs", list(&self.ip_nats, IpNat::to_value))
            .put_string("ipv4Gateway", &self.ipv4_gateway)
            .put_string("ipv6Gateway", &self.ipv6_gateway)
            .put_list("profiles", &self.profiles)
            .put_text("interfaceName", self.interface_name.as_ref())
            .put_text("mac", self.mac)
            .put_some("ports", list(&self.ports, EndpointPort::to_value))
            .put_list("allowSpoofedSourcePrefixes", &self.allow_spoofed_source_prefixes)
            .put_some("qosControls", (!self.qos_controls.is_empty()).then(|| self.qos_controls.clone()))
            .finish(&self.extra)
    }
}

fn nets(fields: &mut Fields, name: &str) -> Result<Vec<IpNet>, DecodeError> {
    let texts = fields.strings(name)?;
    let parse = |(index, text): (usize, String)| {
        text.parse().map_err(|_| {
            fields.error(&format!("{name}[{index}]"), format!("{text:.60?} is no address prefix"))
        })
    };
    texts.into_iter().enumerate().map(parse).collect()
}

fn list<T>(items: &[T], to_value: impl Fn(&T) -> Value) -> Option<Vec<Value>> {
    (!items.is_empty()).then(|| items.iter().map(to_value).collect())
}

// === impl IpNat ===

impl IpNat {
    fn read(mut fields: Fields) -> Result<Self, DecodeError> {
        let missing = |fields: &Fields, name| fields.error(name, "it is missing");
        let internal = fields.text("internalIP")?.ok_or_else(|| missing(&fields, "internalIP"))?;
        let external = fields.text("externalIP")?.ok_or_else(|| missing(&fields, "externalIP"))?;
        Ok(Self { internal, external })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put("internalIP", self.internal.to_string())
            .put("externalIP", self.external.to_string())
            .finish(&Extra::new())
    }
}

// === impl EndpointPort ===

impl EndpointPort {
    fn read(mut fields: Fields) -> Result<Self, DecodeError> {
        let mut number = |name: &str| {
            let number = fields.unsigned(name)?.unwrap_or_default();
            u16::try_from(number).map_err(|_| fields.error(name, format!("{number} is no port")))
        };
        let (port, host_port) = (number("port")?, number("hostPort")?);
        let name = fields.string("name")?.unwrap_or_default();
        let host_ip = fields.string("hostIP")?.unwrap_or_default();
        let protocol = fields.value("protocol").unwrap_or(Value::Null);
        if !(protocol.is_null() || protocol.is_string() || protocol.is_u64()) {
            return Err(fields.error("protocol", "a name or a number is wanted"));
        }
        Ok(Self { name, protocol, port, host_port, host_ip })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put("name", self.name.as_str())
            .put("protocol", self.protocol.clone())
            .put("port", self.port)
            .put("hostPort", self.host_port)
            .put("hostIP", self.host_ip.as_str())
            .finish(&Extra::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calicos() {
        // calico-cni.md section 2.2.1
        let name = |node: &str, pod, ifname: &str| {
            WorkloadEndpointSpec::k8s_name(&node.parse().unwrap(), pod, &ifname.parse().unwrap())
        };
        assert_eq!(name("worker-1", "web-0", "eth0").unwrap(), "worker--1-k8s-web--0-eth0");
        assert_eq!(
            name("ip-10-0-0-1.ec2.internal", "a--b", "net1").unwrap(),
            "ip--10--0--0--1.ec2.internal-k8s-a----b-net1"
        );
        let cni = WorkloadEndpointSpec::cni_name(
            &"n1".parse().unwrap(),
            &"f00d".parse().unwrap(),
            &"eth0".parse().unwrap(),
        );
        assert_eq!(cni.unwrap(), "n1-cni-f00d-eth0");
        assert!(name("n1", "web-", "eth0").is_err() && name("n1", "", "eth0").is_err());
    }

    #[test]
    fn an_endpoint_survives_a_round_trip_byte_for_byte() {
        // calico-cni.md section 2.2.2
        let text = r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"worker--1-k8s-web--0-eth0","generateName":"web-","namespace":"shop","uid":"0d3f","creationTimestamp":"2026-08-22T10:00:00Z","labels":{"app":"web","projectcalico.org/namespace":"shop","projectcalico.org/orchestrator":"k8s","projectcalico.org/serviceaccount":"web-sa"}},"spec":{"orchestrator":"k8s","node":"worker-1","containerID":"4be1","pod":"web-0","endpoint":"eth0","serviceAccountName":"web-sa","ipNetworks":["10.65.7.13/32","fd00:65::7:d/128"],"ipNATs":[{"internalIP":"10.65.7.13","externalIP":"203.0.113.9"}],"profiles":["kns.shop","ksa.shop.web-sa"],"interfaceName":"calia4fc3c48bd8","mac":"8e:01:7c:aa:10:f3","ports":[{"name":"http","protocol":"TCP","port":8080,"hostPort":0,"hostIP":""}],"allowSpoofedSourcePrefixes":["192.0.2.0/24"],"qosControls":{"egressBandwidth":1000000}}}"#;
        let endpoint = WorkloadEndpoint::decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(endpoint.encode()).unwrap(), text);
    }
    #[test]
    fn the_members_of_the_example_become_fields() {
        // calico-cni.md section 2.2.2
        let text = r#"{"kind":"WorkloadEndpoint","metadata":{"name":"e"},"spec":{"ipNATs":[{"internalIP":"10.65.7.13","externalIP":"203.0.113.9"}],"ports":[{"name":"dns","protocol":"UDP","port":53}],"allowSpoofedSourcePrefixes":["192.0.2.0/24"],"qosControls":{"egressBandwidth":1000000}}}"#;
        let spec = WorkloadEndpoint::decode(text.as_bytes()).unwrap().spec;
        assert_eq!(spec.ip_nats[0].external, "203.0.113.9".parse::<IpAddr>().unwrap());
        let port = EndpointPort {
            name: "dns".into(),
            protocol: "UDP".into(),
            port: 53,
            host_port: 0,
            host_ip: String::new(),
        };
        assert_eq!(spec.ports, [port]);
        assert_eq!(spec.allow_spoofed_source_prefixes, ["192.0.2.0/24".parse().unwrap()]);
        assert!(spec.extra.is_empty() && spec.qos_controls["egressBandwidth"] == 1_000_000);
        for bad in [r#""ports":[{"port":65536}]"#, r#""ports":[{"protocol":{}}]"#, r#""ipNATs":[{}]"#] {
            let text = format!(r#"{{"kind":"WorkloadEndpoint","metadata":{{"name":"e"}},"spec":{{{bad}}}}}"#);
            assert!(WorkloadEndpoint::decode(text.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_prefix_of_a_workload_covers_its_interfaces_and_those_of_longer_names() {
        // calico-cni.md section 2.2.1
        let node = "n1".parse().unwrap();
        let prefix = WorkloadEndpointSpec::name_prefix(&node, "k8s", "mypod").unwrap();
        assert_eq!(prefix, "n1-k8s-mypod-");
        for pod in ["mypod", "mypod-x"] {
            let name = WorkloadEndpointSpec::k8s_name(&node, pod, &"eth0".parse().unwrap()).unwrap();
            assert!(name.starts_with(&prefix), "{name}");
        }
    }
}
