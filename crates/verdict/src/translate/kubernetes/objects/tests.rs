use proptest::prelude::*;
use serde_json::{Value, json};

use crate::ir::{Action, Protocol};
use crate::translate::document;
use crate::translate::testing::almost;
use crate::world::{Endpoint, Update};

/// The only update of a document.
fn update(value: Value) -> Update {
    let translated = document(&value).unwrap_or_else(|refused| panic!("{refused} of {value}"));
    assert_eq!((translated.updates.len(), &translated.problems), (1, &vec![]), "{value}");
    translated.updates.into_iter().next().unwrap()
}

fn pod(metadata: Value, spec: Value, status: Value) -> Value {
    let mut value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"},
        "spec": {"nodeName": "n1"}, "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
    for (member, more) in [("metadata", metadata), ("spec", spec), ("status", status)] {
        value[member].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    value
}

fn endpoint(value: Value) -> Option<Endpoint> {
    let Update::Endpoint(key, endpoint) = update(value) else { panic!("no endpoint") };
    assert_eq!(&*key.0, "pod/x/p");
    endpoint.map(|endpoint| (*endpoint).clone())
}

#[test]
fn a_namespace_is_a_profile_that_allows_all_and_has_its_labels() {
    let value =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x", "labels": {"team": "a"}}});
    let Update::Profile(name, Some(profile)) = update(value) else { panic!("no profile") };
    assert_eq!(
        (&*name, profile.ingress[0].action, profile.egress[0].action),
        ("kns.x", Action::Allow, Action::Allow)
    );
    let labels: Vec<_> = profile.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(
        labels,
        [("pcns.kubernetes.io/metadata.name", "x"), ("pcns.projectcalico.org/name", "x"), ("pcns.team", "a")]
    );
}

#[test]
fn a_service_account_is_a_profile_of_labels() {
    let value = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "s", "namespace": "x", "labels": {"team": "a"}}});
    let Update::Profile(name, Some(profile)) = update(value) else { panic!("no profile") };
    assert_eq!((&*name, profile.ingress.len() + profile.egress.len()), ("ksa.x.s", 0));
    assert_eq!(profile.labels.get("pcsa.team").map(|value| &**value), Some("a"));
    assert_eq!(profile.labels.get("pcsa.projectcalico.org/name").map(|value| &**value), Some("s"));
}

#[test]
fn a_pod_is_an_endpoint_with_the_labels_that_selectors_want() {
    let endpoint = endpoint(pod(
        json!({"labels": {"app": "web"}, "creationTimestamp": "1970-01-01T00:00:02Z"}),
        json!({"serviceAccountName": "s"}),
        json!({}),
    ))
    .unwrap();
    let labels: Vec<_> = endpoint.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(
        labels,
        [
            ("app", "web"),
            ("projectcalico.org/namespace", "x"),
            ("projectcalico.org/orchestrator", "k8s"),
            ("projectcalico.org/serviceaccount", "s")
        ]
    );
    assert_eq!(endpoint.profiles.iter().map(|name| &**name).collect::<Vec<_>>(), ["kns.x", "ksa.x.s"]);
    assert_eq!(endpoint.addresses.len(), 2);
    assert_eq!((&*endpoint.node, &*endpoint.name, endpoint.age), ("n1", "p", 2_000_000));
}

#[test]
fn p80_labels_of_pods_cannot_pretend_to_be_those_of_profiles() {
    let labels =
        json!({"labels": {"pcns.team": "a", "pcsa.team": "a", "projectcalico.org/namespace": "other"}});
    let endpoint = endpoint(pod(labels, json!({}), json!({}))).unwrap();
    assert!(!endpoint.labels.keys().any(|key| key.starts_with("pc")));
    assert_eq!(&*endpoint.labels["projectcalico.org/namespace"], "x");
}

#[test]
fn p27_p30_p50_pods_of_the_hosts_network_and_finished_pods_have_no_identity() {
    assert_eq!(endpoint(pod(json!({}), json!({"hostNetwork": true}), json!({}))), None);
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(endpoint(pod(json!({}), json!({}), json!({"phase": phase}))), None);
    }
    assert!(endpoint(pod(json!({}), json!({}), json!({"phase": "Running"}))).is_some());
    assert_eq!(endpoint(pod(json!({}), json!({"nodeName": ""}), json!({}))), None, "it has no node");
}

#[test]
fn p31_a_pod_that_is_being_deleted_keeps_its_identity_until_its_address_is_released() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(endpoint(pod(deleted, json!({}), json!({}))).is_some());
    let released = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"cni.projectcalico.org/podIP": ""}});
    assert_eq!(endpoint(pod(released, json!({}), json!({}))), None);
}

#[test]
fn addresses_come_from_the_status_or_from_annotations() {
    let addresses = |metadata, status| endpoint(pod(metadata, json!({}), status)).unwrap().addresses;
    let texts = |value| addresses(json!({}), value).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(json!({"podIPs": [], "podIP": "10.0.0.2"})), ["10.0.0.2"]);
    let annotations = json!({"annotations": {"cni.projectcalico.org/podIPs": "10.0.0.3/32,fd00::3/128"}});
    assert_eq!(addresses(annotations, json!({"podIPs": null})).len(), 2);
}

#[test]
fn named_ports_of_all_containers_count_and_names_may_occur_twice() {
    let spec = json!({
        "initContainers": [{"ports": [{"name": "web", "containerPort": 81}]}],
        "containers": [{"ports": [{"name": "web", "containerPort": 80}, {"containerPort": 9}]},
                       {"ports": [{"name": "web", "containerPort": 80, "protocol": "UDP"}]}, {}]});
    let ports = endpoint(pod(json!({}), spec, json!({}))).unwrap().ports;
    let found: Vec<_> = ports.iter().map(|port| (&*port.name, port.protocol, port.port)).collect();
    assert_eq!(found, [("web", Protocol::TCP, 80), ("web", Protocol::TCP, 81), ("web", Protocol::UDP, 80)]);
}

#[test]
fn a_port_that_cannot_be_read_is_left_out_and_reported() {
    let spec = json!({"containers": [{"ports": [{"name": "web"}, {"name": "ok", "containerPort": 1}]}]});
    let translated = document(&pod(json!({}), spec, json!({}))).unwrap();
    assert_eq!(&*translated.problems[0].path, "spec.containers[0].ports[0].containerPort");
    let Update::Endpoint(_, Some(endpoint)) = &translated.updates[0] else { panic!("no endpoint") };
    assert_eq!(endpoint.ports.len(), 1);
}

#[test]
fn a_node_has_all_addresses_of_its_status() {
    let value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"role": "cp"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"},
            {"type": "ExternalIP", "address": "2001:db8::1"}]}});
    let Update::Node(name, Some(node)) = update(value) else { panic!("no node") };
    assert_eq!((name.as_str(), node.addresses.len(), node.labels.len()), ("n1", 2, 1));
}

const MEMBERS: &[&str] = &[
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "spec",
    "status",
    "nodeName",
    "hostNetwork",
    "podIPs",
    "ip",
    "containers",
    "ports",
    "containerPort",
    "protocol",
    "addresses",
    "address",
    "endpoints",
    "port",
    "kubernetes.io/service-name",
    "items",
    "kind",
    "apiVersion",
];
const TEXTS: &[&str] = &["x", "10.0.0.1", "TCP", "n1", "v1", "Pod", "PodList", "Namespace"];

proptest! {
    #[test]
    fn arbitrary_objects_never_end_the_process(value in almost(MEMBERS, TEXTS)) {
        let _ = document(&value);
        for (api, kind) in [("v1", "Pod"), ("v1", "Namespace"), ("v1", "ServiceAccount"), ("v1", "Node"),
            ("discovery.k8s.io/v1", "EndpointSlice"), ("v1", "PodList"), ("v1", "List")]
        {
            let mut value = value.clone();
            if let Some(members) = value.as_object_mut() {
                members.extend([("apiVersion".to_owned(), api.into()), ("kind".to_owned(), kind.into())]);
                members.entry("metadata").or_insert_with(|| json!({"name": "a", "namespace": "b"}));
            }
            let _ = document(&value);
        }
    }
}
