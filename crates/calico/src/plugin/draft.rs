//! The contents of an endpoint that are decided before anything is changed: labels, profiles, ports
//! and annotations (calico-cni.md sections 2.3 to 2.5).

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, host_net};
use russet_attach::{Attached, PodRoutes};
use russet_cni_spec::CniError;
use russet_kube::{Container, Namespace, Pod};
use russet_model::{EndpointPort, IpNat, WorkloadEndpointSpec};

use super::annotations::PodOptions;
use super::labels;
use super::workload::Workload;
use crate::conf::CalicoConf;

/// An endpoint without its addresses and its interface.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointDraft {
    /// Its labels, with those that every endpoint has.
    pub labels: BTreeMap<String, String>,
    pub profiles: Vec<String>,
    /// The prefix from which Kubernetes generated the pod's name.
    pub generate_name: Option<String>,
    /// The pod's service account.
    pub service_account: String,
    /// Ports with a name or with a port on the node.
    pub ports: Vec<EndpointPort>,
    /// Options from the pod's annotations.
    pub pod_options: PodOptions,
    /// The pod's routes.
    pub routes: PodRoutes,
}

// === impl EndpointDraft ===

impl EndpointDraft {
    /// For a container without a Kubernetes pod, or a pod with other policy than Kubernetes'.
    pub fn for_network(conf: &CalicoConf, workload: &Workload) -> Self {
        let mut labels = match workload.pod {
            Some(_) => BTreeMap::new(),
            None => labels::from_mesos(&conf.mesos_labels),
        };
        labels::force(&mut labels, &workload.namespace, workload.orchestrator(), "");
        Self {
            labels,
            profiles: vec![conf.network.to_string()],
            generate_name: None,
            service_account: String::new(),
            ports: Vec::new(),
            pod_options: PodOptions::default(),
            routes: PodRoutes::Default,
        }
    }

    /// For a pod with Kubernetes policy.
    pub fn from_pod(workload: &Workload, namespace: &Namespace, pod: &Pod) -> Result<Self, CniError> {
        let account = &pod.spec.service_account_name;
        let mut labels = pod.metadata.labels.clone();
        labels::force(&mut labels, &workload.namespace, workload.orchestrator(), account);
        let mut profiles = vec![format!("kns.{}", workload.namespace)];
        if !account.is_empty() {
            profiles.push(format!("ksa.{}.{account}", workload.namespace));
        }
        Ok(Self {
            labels,
            profiles,
            generate_name: Some(pod.metadata.generate_name.clone()).filter(|start| !start.is_empty()),
            service_account: account.clone(),
            ports: ports(pod),
            pod_options: PodOptions::read(&namespace.metadata.annotations, &pod.metadata.annotations)?,
            routes: PodRoutes::Default,
        })
    }

    /// The NATs from external addresses to the pod's address of the same family.
    pub fn nats(&self, addresses: &[IpAddr]) -> Result<Vec<IpNat>, CniError> {
        let nat = |external: &IpAddr| {
            let family = Family::of(*external);
            let internal = addresses.iter().copied().find(|address| Family::of(*address) == family);
            internal.map(|internal| IpNat { internal, external: *external }).ok_or_else(|| {
                let msg = format!("the annotation floatingIPs names {external}");
                CniError::invalid_config(msg, format!("and the pod has no {family} address"))
            })
        };
        self.pod_options.floating_ips.iter().flatten().map(nat).collect()
    }

    /// The endpoint's specification, once its interface exists.
    pub fn spec(
        &self,
        workload: &Workload,
        nets: Vec<IpNet>,
        nats: Vec<IpNat>,
        attached: &Attached,
    ) -> WorkloadEndpointSpec {
        WorkloadEndpointSpec {
            orchestrator: workload.orchestrator().to_owned(),
            node: workload.node.to_string(),
            container_id: workload.id.container.to_string(),
            pod: workload.pod.as_ref().map(|pod| pod.name.clone()).unwrap_or_default(),
            endpoint: workload.id.ifname.to_string(),
            service_account_name: self.service_account.clone(),
            ip_networks: nets.iter().map(|net| host_net(net.addr())).collect(),
            ip_nats: nats,
            profiles: self.profiles.clone(),
            interface_name: Some(attached.host_name.clone()),
            mac: Some(attached.pod_mac),
            ports: self.ports.clone(),
            allow_spoofed_source_prefixes: self.pod_options.allowed_sources.clone(),
            qos_controls: self.pod_options.qos.clone(),
            ..WorkloadEndpointSpec::default()
        }
    }
}

/// The ports that have a name or a port on the node, of all containers that run as long as the pod
/// does.
fn ports(pod: &Pod) -> Vec<EndpointPort> {
    let sidecar = |container: &&Container| container.restart_policy == "Always";
    let containers = pod.spec.containers.iter().chain(pod.spec.init_containers.iter().filter(sidecar));
    let listed = containers.flat_map(|container| &container.ports);
    let known = listed.filter(|port| !port.name.is_empty() || port.host_port != 0);
    let endpoint_port = |port: &russet_kube::ContainerPort| EndpointPort {
        name: port.name.clone(),
        protocol: if port.protocol.is_empty() { "TCP" } else { &port.protocol }.into(),
        port: port.container_port,
        host_port: port.host_port,
        host_ip: port.host_ip.clone(),
    };
    known.map(endpoint_port).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload() -> Workload {
        let pod = russet_attach::Pod { namespace: "test".into(), name: "web-0".into() };
        Workload {
            node: "n1".parse().unwrap(),
            namespace: "test".into(),
            pod: Some(pod),
            id: "net/c1/eth0".parse().unwrap(),
        }
    }

    fn draft(pod: Value) -> EndpointDraft {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        EndpointDraft::from_pod(&workload(), &Namespace::default(), &pod).unwrap()
    }

    #[test]
    fn oracle_25_a_pods_labels_and_profiles_are_those_of_its_namespace_and_account() {
        let pod = json!({"metadata": {"labels": {"app": "web", "projectcalico.org/namespace": "forged"}},
            "spec": {"serviceAccountName": "default"}});
        let draft = draft(pod);
        assert_eq!(draft.profiles, ["kns.test", "ksa.test.default"]);
        let labels = json!({"app": "web", "projectcalico.org/namespace": "test",
            "projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "default"});
        assert_eq!(json!(draft.labels), labels);
    }

    #[test]
    fn oracle_26_a_named_port_is_recorded_without_a_port_on_the_node() {
        let container = json!({"ports": [
            {"name": "anything", "containerPort": 555, "protocol": "TCP"},
            {"containerPort": 80},
            {"containerPort": 81, "hostPort": 8081, "hostIP": "10.0.0.1"},
        ]});
        let sidecar = json!({"restartPolicy": "Always", "ports": [{"name": "s", "containerPort": 1}]});
        let init = json!({"ports": [{"name": "i", "containerPort": 2}]});
        let draft = draft(json!({"spec": {"containers": [container], "initContainers": [sidecar, init]}}));
        let shown: Vec<(&str, u16, u16, &str)> =
            draft.ports.iter().map(|p| (p.name.as_str(), p.port, p.host_port, p.host_ip.as_str())).collect();
        assert_eq!(shown, [("anything", 555, 0, ""), ("", 81, 8081, "10.0.0.1"), ("s", 1, 0, "")]);
        assert!(draft.ports.iter().all(|port| port.protocol == "TCP"));
    }

    #[test]
    fn oracle_52_the_beginning_of_a_generated_name_is_kept() {
        let draft = draft(json!({"metadata": {"generateName": "web-"}}));
        assert_eq!(draft.generate_name.as_deref(), Some("web-"));
    }

    #[test]
    fn oracle_44_a_floating_address_of_each_family_leads_to_the_pods_of_that_family() {
        let floating = r#"["1.1.1.1","2001:db8::1"]"#;
        let draft =
            draft(json!({"metadata": {"annotations": {"cni.projectcalico.org/floatingIPs": floating}}}));
        let addresses = ["10.0.0.5", "fd00::5"].map(|text| text.parse().unwrap());
        let nats = draft.nats(&addresses).unwrap();
        assert_eq!((nats[0].internal, nats[1].internal), (addresses[0], addresses[1]));
        let error = draft.nats(&addresses[..1]).unwrap_err();
        assert!(error.msg.contains("2001:db8::1"), "{error}");
    }
}
