//! Objects as Go writes them, and what they are as records.

use serde::de::DeserializeSeed;
use serde_json::{Value, json};

use super::*;
use crate::place::Place;
use russet_addr::NodeName;
use russet_model::{HandleId, Prefix, ResourceKind};

fn form(group: Group) -> Form {
    Form { group, interface_prefix: "cali".to_owned() }
}

/// The record of an object: key and value.
fn record(collection: Collection, group: Group, object: &Value) -> (String, Value) {
    let Converted { key, value } = to_record(collection, &form(group), object).unwrap().unwrap();
    (key.as_str().to_owned(), serde_json::from_slice(&value.unwrap()).unwrap())
}

fn object(
    key: &Key,
    value: &Value,
    companion: Option<&Companion>,
    group: Group,
) -> Result<Value, ConvertError> {
    let Place::Object(place) = Place::of(key, "create").unwrap() else { panic!("{key} has no object") };
    to_object(&place, key, value.to_string().as_bytes(), companion, group)
}

/// What reading and writing make of an object.
fn rewritten(collection: Collection, group: Group, stored: &Value) -> Value {
    let Converted { key, value } = to_record(collection, &form(group), stored).unwrap().unwrap();
    let value: Value = serde_json::from_slice(&value.unwrap()).unwrap();
    object(&key, &value, Companion::of(stored).as_ref(), group).unwrap()
}

/// The block of calico-ipam.md TV25, as the server returns it.
fn block() -> Value {
    json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
        "metadata": { "name": "10-1-0-16-29", "resourceVersion": "812", "uid": "0568683f-e1fb-4b6e-8f86-72dcafa2da7e", "generation": 3,
            "creationTimestamp": "2026-01-02T03:00:00Z", "managedFields": [{ "manager": "calico-ipam" }],
            "annotations": { "projectcalico.org/metadata": "{\"creationTimestamp\":null}", "x/y": "z" } },
        "spec": { "cidr": "10.1.0.16/29", "affinity": "host:node-a", "affinityClaimTime": "2026-01-02T03:00:00Z",
            "allocations": [0, null, null, null, null, null, null, null], "unallocated": [1, 2, 3, 4, 5, 6, 7],
            "attributes": [{ "handle_id": "k8s-pod-network.aaaa", "secondary": { "node": "node-a", "pod": "web-0" } }],
            "sequenceNumber": 1_767_322_800_000_000_001_u64, "sequenceNumberForAllocation": { "0": 1_767_322_800_000_000_000_u64 },
            "deleted": false, "strictAffinity": false, "future": { "b": 1, "a": 2 } } })
}

#[test]
fn a_block_of_a_peer_is_read_and_written_back_as_it_was() {
    // kubernetes.md K22 and K23; calico-ipam.md TV25
    let stored = block();
    let (key, value) = record(Collection::Blocks, Group::V1, &stored);
    assert_eq!(key, "/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29");
    assert_eq!(value["affinity_claim_time"], "2026-01-02T03:00:00Z");
    assert_eq!(value["sequenceNumber"], 1_767_322_800_000_000_001_u64);
    assert_eq!((&value["affinityClaimTime"], &value["strictAffinity"]), (&Value::Null, &Value::Null));
    russet_model::Block::decode(value.to_string().as_bytes()).unwrap();
    let written = rewritten(Collection::Blocks, Group::V1, &stored);
    assert_eq!(written["spec"], stored["spec"], "the spec, with the unknown member");
    assert_eq!(written["metadata"]["annotations"], stored["metadata"]["annotations"]);
    assert_eq!(written["metadata"]["resourceVersion"], "812");
    assert_eq!(written["metadata"]["uid"], stored["metadata"]["uid"]);
    assert_eq!(written["metadata"]["managedFields"], Value::Null);
}

#[test]
fn tv25_records_are_the_same_as_kubernetes_objects() {
    // calico-ipam.md TV25
    let affinity = Key::affinity(&NodeName::new("node-a").unwrap(), "10.1.0.16/29".parse().unwrap());
    let labels = json!({ "projectcalico.org/hostname-hash": "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA",
        "projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4" });
    let written =
        object(&affinity, &json!({ "state": "confirmed", "deleted": false }), None, Group::V1).unwrap();
    assert_eq!(
        (&written["kind"], &written["apiVersion"]),
        (&json!("BlockAffinity"), &json!("crd.projectcalico.org/v1"))
    );
    assert_eq!(
        (&written["metadata"]["name"], &written["metadata"]["labels"]),
        (&json!("node-a-10-1-0-16-29"), &labels)
    );
    let spec = json!({ "state": "confirmed", "node": "node-a", "type": "host", "cidr": "10.1.0.16/29", "deleted": "false" });
    assert_eq!(written["spec"], spec);
    let handle = Key::handle(&HandleId::new("k8s-pod-network.aaaa").unwrap());
    let value = json!({ "block": { "10.1.0.16/29": 1 }, "deleted": false });
    let written = object(&handle, &value, None, Group::V1).unwrap();
    assert_eq!(
        (&written["kind"], &written["metadata"]["name"]),
        (&json!("IPAMHandle"), &json!("k8s-pod-network.aaaa"))
    );
    assert_eq!(
        written["spec"],
        json!({ "handleID": "k8s-pod-network.aaaa", "block": { "10.1.0.16/29": 1 }, "deleted": false })
    );
    // TV2, as etcd holds it.
    let value = json!({ "cidr": "10.1.0.16/29", "affinity": "host:node-a", "affinity_claim_time": "2026-01-02T03:00:00Z",
        "allocations": [0, null, null, null, null, null, null, null], "unallocated": [1, 2, 3, 4, 5, 6, 7],
        "attributes": [{ "handle_id": "k8s-pod-network.aaaa", "secondary": { "node": "node-a", "pod": "web-0" } }],
        "sequenceNumber": 1_767_322_800_000_000_001_u64, "sequenceNumberForAllocation": { "0": 1_767_322_800_000_000_000_u64 }, "deleted": false });
    let written = object(&Key::block("10.1.0.16/29".parse().unwrap()), &value, None, Group::V1).unwrap();
    let mut expected = block();
    expected["spec"].as_object_mut().unwrap().remove("future");
    assert_eq!((&written["kind"], &written["spec"]), (&json!("IPAMBlock"), &expected["spec"]));
    assert_eq!(written["metadata"]["annotations"], json!({ METADATA: "{\"creationTimestamp\":null}" }));
}

#[test]
fn a_new_block_has_what_the_schema_requires() {
    // kubernetes.md section 1.5, section 7.8, K09
    let key = Key::block("10.65.174.128/26".parse().unwrap());
    let value = json!({ "cidr": "10.65.174.128/26", "affinity": null, "allocations": [null], "unallocated": [0], "attributes": null,
        "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "deleted": false });
    let written = object(&key, &value, None, Group::V1).unwrap();
    assert_eq!(
        written,
        json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
            "metadata": { "name": "10-65-174-128-26", "annotations": { "projectcalico.org/metadata": "{\"creationTimestamp\":null}" } },
            "spec": { "cidr": "10.65.174.128/26", "allocations": [null], "unallocated": [0], "attributes": [], "sequenceNumber": 7,
                "sequenceNumberForAllocation": {}, "deleted": false, "strictAffinity": false } })
    );
    assert_eq!(
        object(&key, &value, None, Group::V3).unwrap()["metadata"],
        json!({ "name": "10-65-174-128-26" })
    );
}

#[test]
fn an_affinity_has_its_labels_on_the_object_and_in_the_annotation() {
    // kubernetes.md K24, section 7.8
    let key = Key::affinity(&NodeName::new("node-a").unwrap(), "10.65.174.128/26".parse().unwrap());
    let value = json!({ "state": "pending", "deleted": false });
    let written = object(&key, &value, None, Group::V1).unwrap();
    let labels = json!({ "projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": "4",
        "projectcalico.org/hostname-hash": "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA" });
    assert_eq!(written["metadata"]["labels"], labels);
    let carried: Value =
        serde_json::from_str(written["metadata"]["annotations"][METADATA].as_str().unwrap()).unwrap();
    assert_eq!(carried, json!({ "creationTimestamp": null, "labels": labels }));
    let spec = json!({ "cidr": "10.65.174.128/26", "deleted": "false", "node": "node-a", "state": "pending", "type": "host" });
    assert_eq!(written["spec"], spec);
    assert_eq!(object(&key, &value, None, Group::V3).unwrap()["spec"]["deleted"], json!(false));
    assert_eq!(record(Collection::Affinities, Group::V1, &written), (key.as_str().to_owned(), value));
    // An old peer's affinity without type and labels gets both when it is written.
    let mut old = written;
    old["metadata"] = json!({ "name": "node-a-10-65-174-128-26", "uid": "u", "resourceVersion": "5" });
    old["spec"].as_object_mut().unwrap().remove("type");
    assert!(!ipam::is_labelled(&old));
    let repaired = rewritten(Collection::Affinities, Group::V1, &old);
    assert!(ipam::is_labelled(&repaired), "{repaired}");
}

#[test]
fn an_affinity_of_a_load_balancer_is_virtual() {
    // kubernetes.md section 1.5; calico-ipam.md K3
    let key = Key::from_stored("/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.1.0.0-26");
    let value = json!({ "state": "confirmed", "deleted": false });
    let written = object(&key, &value, None, Group::V1).unwrap();
    assert_eq!(
        (&written["spec"]["type"], &written["spec"]["node"]),
        (&json!("virtual"), &json!("load-balancer"))
    );
    assert_eq!(written["metadata"]["labels"]["projectcalico.org/affinity-type"], "virtual");
    assert_eq!(record(Collection::Affinities, Group::V1, &written), (key.as_str().to_owned(), value));
}

#[test]
fn handles_of_any_spelling_share_an_object_that_keeps_the_first_one() {
    // kubernetes.md K27
    let key = |id: &str| Key::handle(&HandleId::new(id).unwrap());
    let value = json!({ "block": { "10.1.0.16/29": 1 }, "deleted": false });
    let mut written = object(&key("k8s-pod-network.ABC"), &value, None, Group::V1).unwrap();
    assert_eq!(written["metadata"]["name"], "k8s-pod-network.abc");
    assert_eq!(
        written["spec"],
        json!({ "block": { "10.1.0.16/29": 1 }, "deleted": false, "handleID": "k8s-pod-network.ABC" })
    );
    written["metadata"]["uid"] = json!("u");
    written["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(
        record(Collection::Handles, Group::V1, &written),
        (key("k8s-pod-network.ABC").to_string(), value.clone())
    );
    let other =
        object(&key("k8s-pod-network.abc"), &value, Companion::of(&written).as_ref(), Group::V1).unwrap();
    assert_eq!(other["spec"]["handleID"], "k8s-pod-network.ABC");
}

#[test]
fn objects_that_a_peer_has_marked_as_deleted_have_no_record() {
    // kubernetes.md section 1.12
    for (collection, mark) in [
        (Collection::Blocks, json!(true)),
        (Collection::Affinities, json!("true")),
        (Collection::Handles, json!(true)),
    ] {
        let mut object = block();
        object["spec"]["deleted"] = mark;
        object["spec"]["node"] = json!("node-a");
        object["spec"]["handleID"] = json!("a.b");
        assert_eq!(
            to_record(collection, &form(Group::V1), &object).unwrap().unwrap().value,
            None,
            "{collection:?}"
        );
    }
}

#[test]
fn settings_have_other_names_in_the_older_group() {
    // kubernetes.md section 1.5; calico-ipam.md section 1.7
    let value = json!({ "auto_allocate_blocks": true, "maxBlocksPerHost": 2, "kubeVirtVMAddressPersistence": "Enabled" });
    for (group, kind) in [(Group::V1, "IPAMConfig"), (Group::V3, "IPAMConfiguration")] {
        let written = object(&Key::ipam_config(), &value, None, group).unwrap();
        let spec = json!({ "strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 2, "kubeVirtVMAddressPersistence": "Enabled" });
        assert_eq!((&written["kind"], &written["spec"]), (&json!(kind), &spec));
        assert_eq!(record(Collection::IpamConfig, group, &written).1, value);
    }
}

#[test]
fn a_pool_of_the_older_group_carries_its_metadata_in_an_annotation() {
    // kubernetes.md section 1.4, K23, K26
    let carried = r#"{"uid":"00000000-0000-4000-8000-000000000000","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"team":"a"},"annotations":{"note":"b"}}"#;
    let stored = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
        "metadata": { "name": "p", "uid": "0568683f-e1fb-4b6e-8f86-72dcafa2da7e", "resourceVersion": "9", "creationTimestamp": "2026-01-02T00:00:00Z",
            "labels": { "projectcalico.org/tier": "x", "team": "old" }, "annotations": { METADATA: carried, "x/y": "z" }, "finalizers": ["f"] },
        "spec": { "cidr": "10.1.0.0/16", "future": [1] } });
    let collection = Collection::Custom(ResourceKind::IpPool);
    let (key, value) = record(collection, Group::V1, &stored);
    assert_eq!(key, Key::pool("p").unwrap().as_str());
    assert_eq!(
        value,
        json!({ "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": { "name": "p", "uid": "a01616fc-87df-4b76-8f61-4e3bf5455b7e", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "projectcalico.org/tier": "x", "team": "a" }, "annotations": { "note": "b", "x/y": "z" } },
            "spec": { "cidr": "10.1.0.0/16", "future": [1] } })
    );
    let written = rewritten(collection, Group::V1, &stored);
    assert_eq!(written["spec"], stored["spec"]);
    let metadata = &written["metadata"];
    assert_eq!((&metadata["annotations"]["x/y"], &metadata["finalizers"]), (&json!("z"), &json!(["f"])));
    assert_eq!(metadata["labels"], json!({ "projectcalico.org/tier": "x", "team": "a" }));
    assert_eq!(metadata["annotations"].get("note"), None, "it is in the annotation only, as before");
    let carried: Value = serde_json::from_str(metadata["annotations"][METADATA].as_str().unwrap()).unwrap();
    assert_eq!(
        (&carried["annotations"], &carried["name"]),
        (&json!({ "note": "b", "x/y": "z" }), &Value::Null)
    );
}

#[test]
fn a_pool_of_the_native_group_is_what_it_is() {
    // kubernetes.md section 1.4
    let stored = json!({ "apiVersion": "projectcalico.org/v3", "kind": "IPPool",
        "metadata": { "name": "p", "uid": "u", "resourceVersion": "9", "creationTimestamp": "2026-01-02T00:00:00Z", "labels": { "team": "a" }, "finalizers": ["f"] },
        "spec": { "cidr": "10.1.0.0/16" }, "status": { "conditions": [{ "type": "Allocatable", "status": "False" }] } });
    let collection = Collection::Custom(ResourceKind::IpPool);
    let (_, value) = record(collection, Group::V3, &stored);
    assert_eq!((&value["metadata"]["uid"], &value["status"]), (&json!("u"), &stored["status"]));
    let mut written = rewritten(collection, Group::V3, &stored);
    let mut expected = stored;
    expected["metadata"].as_object_mut().unwrap().sort_keys();
    written["metadata"].as_object_mut().unwrap().sort_keys();
    assert_eq!(written, expected);
}

#[test]
fn policies_are_read_under_their_names_and_not_written_to_the_older_group() {
    // kubernetes.md sections 1.3 and 1.4
    let policy = json!({ "metadata": { "name": "default.allow", "uid": "u", "resourceVersion": "9" }, "spec": { "order": 1 } });
    let collection = Collection::Custom(ResourceKind::GlobalNetworkPolicy);
    let (key, value) = record(collection, Group::V1, &policy);
    assert!(key.ends_with("/globalnetworkpolicies/allow"), "{key}");
    let error = object(&Key::from_stored(key), &value, None, Group::V1).unwrap_err();
    assert!(error.to_string().contains("not written"), "{error}");
    let (key, _) = record(Collection::Custom(ResourceKind::StagedGlobalNetworkPolicy), Group::V1, &policy);
    assert!(key.ends_with("/stagedglobalnetworkpolicies/allow"), "{key}");
}

#[test]
fn a_staged_policy_of_kubernetes_keeps_its_name_and_the_form_that_etcd_has() {
    // policy.md section 1.9
    let policy = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "StagedKubernetesNetworkPolicy",
        "metadata": { "name": "default.allow", "namespace": "shop", "resourceVersion": "9", "creationTimestamp": null },
        "spec": { "stagedAction": "Set", "podSelector": {} } });
    let collection = Collection::Custom(ResourceKind::StagedKubernetesNetworkPolicy);
    for group in [Group::V1, Group::V3] {
        let (key, value) = record(collection, group, &policy);
        assert!(key.ends_with("/stagedkubernetesnetworkpolicies/shop/default.allow"), "{key}");
        assert_eq!((&value["kind"], &value["spec"]), (&policy["kind"], &policy["spec"]));
        object(&Key::from_stored(key), &value, None, group).unwrap();
    }
}

fn node() -> Value {
    json!({ "kind": "Node", "metadata": { "name": "node-a", "uid": "0568683f-e1fb-4b6e-8f86-72dcafa2da7e", "resourceVersion": "5",
            "labels": { "zone": "k8s" },
            "annotations": { "projectcalico.org/IPv4Address": "10.0.0.7/24", "projectcalico.org/IPv6Address": "rubbish",
                "projectcalico.org/IPv4VXLANTunnelAddr": "10.1.0.1", "projectcalico.org/VXLANTunnelMACAddr": "66:93:7f:54:d5:53",
                "projectcalico.org/ASNumber": "64512", "projectcalico.org/labels": "{\"zone\":\"calico\",\"rack\":\"7\"}", "other": "kept" } },
        "spec": { "podCIDRs": ["10.244.1.0/24"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.7" }, { "type": "Hostname", "address": "node-a" }] } })
}

#[test]
fn a_node_is_read_from_its_annotations() {
    // kubernetes.md section 1.7, K29
    let (key, value) = record(Collection::Nodes, Group::V1, &node());
    assert_eq!(key, Key::node(&NodeName::new("node-a").unwrap()).as_str());
    let decoded = russet_model::Node::decode(value.to_string().as_bytes()).unwrap();
    assert_eq!(decoded.spec.bgp.as_ref().unwrap().ipv4_address, Some("10.0.0.7/24".parse().unwrap()));
    assert_eq!(decoded.spec.bgp.unwrap().ipv6_address, None, "an invalid one is missing");
    assert_eq!(decoded.spec.ipv4_vxlan_tunnel_addr, Some("10.1.0.1".parse().unwrap()));
    assert_eq!(value["metadata"]["labels"], json!({ "zone": "k8s", "rack": "7" }));
    assert_eq!(value["metadata"]["annotations"], json!({ "other": "kept" }));
    assert_eq!(value["spec"]["addresses"], json!([{ "address": "10.0.0.7", "type": "InternalIP" }]));
    assert_eq!(value["spec"]["orchRefs"], json!([{ "nodeName": "node-a", "orchestrator": "k8s" }]));
    assert_eq!(
        (&value["spec"]["bgp"]["asNumber"], &value["status"]["podCIDRs"][0]),
        (&json!(64512), &json!("10.244.1.0/24"))
    );
}

#[test]
fn a_watch_reads_of_a_node_what_its_record_and_companion_need() {
    let mut whole = node();
    whole["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
    whole["metadata"]["managedFields"] = json!([{ "manager": "kubelet" }]);
    whole["status"]["images"] = json!([{ "names": ["registry.example/image"] }]);
    let (text, members) = (whole.to_string(), Collection::Nodes.read_members());
    let read = members.deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
    assert!(read["metadata"].get("managedFields").is_none() && read["status"].get("images").is_none());
    assert_eq!(record(Collection::Nodes, Group::V1, &read), record(Collection::Nodes, Group::V1, &whole));
    assert_eq!(Companion::of(&read), Companion::of(&whole));
}

#[test]
fn of_a_node_only_the_changed_annotations_are_written() {
    // kubernetes.md section 1.7
    let companion = Companion::of(&node()).unwrap();
    let (_, mut value) = record(Collection::Nodes, Group::V1, &node());
    let patch = |value: &Value| node_patch(value.to_string().as_bytes(), &companion);
    assert_eq!(patch(&value).unwrap(), None, "nothing has changed, and the invalid annotation is not ours");
    value["spec"]["ipv4VXLANTunnelAddr"] = json!("10.1.0.2");
    value["spec"]["bgp"].as_object_mut().unwrap().remove("asNumber");
    let annotations =
        json!({ "projectcalico.org/IPv4VXLANTunnelAddr": "10.1.0.2", "projectcalico.org/ASNumber": null });
    assert_eq!(patch(&value).unwrap(), Some(json!({ "metadata": { "annotations": annotations } })));
    value["metadata"]["labels"]["zone"] = json!("b");
    assert!(patch(&value).unwrap_err().to_string().contains("kubectl"));
}

fn pod(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({ "kind": "Pod", "metadata": { "name": "web-0", "namespace": "shop", "uid": "0d3f", "resourceVersion": "7",
            "generateName": "web-", "labels": { "app": "web" }, "annotations": { "cni.projectcalico.org/containerID": "4be1" } },
        "spec": { "nodeName": "node-a", "serviceAccountName": "web-sa" }, "status": { "phase": "Running" } });
    change(&mut pod);
    pod
}

fn endpoint(change: impl FnOnce(&mut Value)) -> Option<Value> {
    let converted = to_record(Collection::Pods, &form(Group::V1), &pod(change)).unwrap()?;
    assert_eq!(converted.key, Key::workload_endpoint("shop", "node--a-k8s-web--0-eth0").unwrap());
    Some(serde_json::from_slice(&converted.value.unwrap()).unwrap())
}

#[test]
fn an_endpoint_is_its_pod() {
    // kubernetes.md K31
    let whole = endpoint(|_| {}).unwrap();
    assert_eq!(whole["metadata"]["uid"], "0d3f", "not Calico's form of UIDs");
    assert_eq!(whole["spec"]["interfaceName"], "calia4fc3c48bd8");
    assert_eq!(whole["spec"]["profiles"], json!(["kns.shop", "ksa.shop.web-sa"]));
    assert_eq!((&whole["spec"]["containerID"], &whole["spec"]["node"]), (&json!("4be1"), &json!("node-a")));
    let labels = json!({ "app": "web", "projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "web-sa" });
    assert_eq!(whole["metadata"]["labels"], labels);
    assert!(endpoint(|pod| pod["spec"]["hostNetwork"] = json!(true)).is_none());
    assert!(endpoint(|pod| pod["spec"]["nodeName"] = json!("")).is_none());
    for (length, is_label) in [(62, true), (63, false)] {
        let whole = endpoint(|pod| pod["spec"]["serviceAccountName"] = json!("s".repeat(length))).unwrap();
        assert_eq!(
            whole["metadata"]["labels"].get("projectcalico.org/serviceaccount").is_some(),
            is_label,
            "{length}"
        );
    }
    let ports = endpoint(|pod| {
        pod["spec"]["initContainers"] =
            json!([{ "name": "i", "ports": [{ "name": "dns", "protocol": "UDP", "containerPort": 53 }] }]);
        pod["spec"]["containers"] = json!([{ "name": "c", "ports": [{ "containerPort": 80 }, { "containerPort": 81, "hostPort": 8081 }] }]);
    });
    let port = |name, protocol, port, host_port| json!({ "name": name, "protocol": protocol, "port": port, "hostPort": host_port, "hostIP": "" });
    assert_eq!(
        ports.unwrap()["spec"]["ports"],
        json!([port("", "TCP", 81, 8081), port("dns", "UDP", 53, 0)])
    );
}

#[test]
fn addresses_come_from_the_first_source_that_has_any() {
    // kubernetes.md K31
    let nets =
        |change: &dyn Fn(&mut Value)| endpoint(|pod| change(pod)).unwrap()["spec"]["ipNetworks"].clone();
    let annotate = |pod: &mut Value, name: &str, text: &str| {
        pod["metadata"]["annotations"][format!("cni.projectcalico.org/{name}")] = json!(text);
    };
    assert_eq!(nets(&|_| {}), Value::Null);
    assert_eq!(nets(&|pod| annotate(pod, "podIP", "10.1.0.1/32")), json!(["10.1.0.1/32"]));
    let both = |pod: &mut Value| {
        annotate(pod, "podIP", "10.1.0.1/32");
        annotate(pod, "podIPs", "10.1.0.2/32,fd00::2/128");
    };
    assert_eq!(nets(&both), json!(["10.1.0.2/32", "fd00::2/128"]));
    let published = |pod: &mut Value| {
        both(pod);
        pod["status"]["podIP"] = json!("10.1.0.3");
    };
    assert_eq!(nets(&published), json!(["10.1.0.3/32"]));
    let listed = |pod: &mut Value| {
        published(pod);
        pod["status"]["podIPs"] = json!([{ "ip": "10.1.0.4" }, { "ip": "fd00::4" }]);
    };
    assert_eq!(nets(&listed), json!(["10.1.0.4/32", "fd00::4/128"]));
    for phase in ["Succeeded", "Failed", "Completed"] {
        let ended = |pod: &mut Value| {
            listed(pod);
            pod["status"]["phase"] = json!(phase);
        };
        assert_eq!(nets(&ended), Value::Null, "{phase}");
    }
    let leaving = |pod: &mut Value| {
        listed(pod);
        annotate(pod, "podIP", "");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    };
    assert_eq!(nets(&leaving), Value::Null);
}

#[test]
fn annotations_of_a_pod_become_members_and_invalid_ones_an_error() {
    // kubernetes.md K31 and K32
    let change = |floating: &str| {
        pod(|pod| {
            pod["status"]["podIP"] = json!("10.1.0.3");
            pod["metadata"]["annotations"]["cni.projectcalico.org/floatingIPs"] = json!(floating);
            pod["metadata"]["annotations"]["cni.projectcalico.org/allowedSourcePrefixes"] =
                json!("[\"192.0.2.0/24\"]");
        })
    };
    let (_, value) = record(Collection::Pods, Group::V1, &change(r#"["203.0.113.9","2001:db8::9"]"#));
    assert_eq!(value["spec"]["ipNATs"], json!([{ "internalIP": "10.1.0.3", "externalIP": "203.0.113.9" }]));
    assert_eq!(value["spec"]["allowSpoofedSourcePrefixes"], json!(["192.0.2.0/24"]));
    for wrong in ["rubbish", r#"["x"]"#] {
        let error = to_record(Collection::Pods, &form(Group::V1), &change(wrong)).unwrap_err();
        assert!(error.to_string().contains("floatingIPs"), "{error}");
    }
}

#[test]
fn an_endpoint_is_written_as_annotations() {
    // kubernetes.md section 2.4, section 7.8
    let (_, mut value) = record(Collection::Pods, Group::V1, &pod(|_| {}));
    assert_eq!(pod_patch(value.to_string().as_bytes()).unwrap(), json!({ "metadata": {} }));
    value["spec"]["ipNetworks"] = json!(["10.65.174.128/32"]);
    value["spec"]["containerID"] = json!("aaaa1111");
    assert_eq!(
        pod_patch(value.to_string().as_bytes()).unwrap(),
        json!({ "metadata": { "annotations": { "cni.projectcalico.org/containerID": "aaaa1111",
            "cni.projectcalico.org/podIP": "10.65.174.128/32", "cni.projectcalico.org/podIPs": "10.65.174.128/32" } } })
    );
    let emptied = json!({ "cni.projectcalico.org/podIP": "", "cni.projectcalico.org/podIPs": "" });
    assert_eq!(pod_deletion(), json!({ "metadata": { "annotations": emptied } }));
}

#[test]
fn profiles_are_namespaces_and_service_accounts() {
    // kubernetes.md K33, section 1.9
    let namespace = json!({ "metadata": { "name": "shop", "uid": "0568683f-e1fb-4b6e-8f86-72dcafa2da7e", "resourceVersion": "3", "labels": { "team": "a" } } });
    let (key, value) = record(Collection::Namespaces, Group::V1, &namespace);
    assert_eq!(key, Key::profile("kns.shop").unwrap().as_str());
    assert_eq!(
        value["spec"]["labelsToApply"],
        json!({ "pcns.team": "a", "pcns.projectcalico.org/name": "shop" })
    );
    assert_eq!(value["metadata"]["uid"], "a01616fc-87df-4b76-8f61-4e3bf5455b7e");
    russet_model::Profile::decode(value.to_string().as_bytes()).unwrap();
    let account = json!({ "metadata": { "name": "web", "namespace": "shop", "resourceVersion": "4" } });
    let (key, value) = record(Collection::ServiceAccounts, Group::V1, &account);
    assert_eq!(key, Key::profile("ksa.shop.web").unwrap().as_str());
    assert_eq!(value["spec"], json!({ "labelsToApply": { "pcsa.projectcalico.org/name": "web" } }));
    assert!(Prefix::resources(ResourceKind::Profile).covers(&Key::from_stored(key)));
}

#[test]
fn rubbish_is_an_error_that_says_what_is_wrong() {
    let block = |spec: Value| {
        to_record(Collection::Blocks, &form(Group::V1), &json!({ "metadata": { "name": "x" }, "spec": spec }))
    };
    for (spec, reason) in
        [(json!({}), "spec.cidr"), (json!({ "cidr": "10.1.0.1/26" }), ""), (Value::Null, "no spec")]
    {
        let error = block(spec).unwrap_err().to_string();
        assert!(error.contains(reason) && !error.is_empty(), "{error}");
    }
    let key = Key::block("10.1.0.0/26".parse().unwrap());
    let Place::Object(place) = Place::of(&key, "create").unwrap() else { panic!() };
    for wrong in ["", "[]", "7"] {
        assert!(to_object(&place, &key, wrong.as_bytes(), None, Group::V1).is_err(), "{wrong}");
    }
}

#[test]
fn a_nodes_addresses_for_probes_are_annotations_that_are_written() {
    // kubernetes.md section 1.7; the other annotations of a node are Kubernetes' own
    let companion = Companion::of(&node()).unwrap();
    let (_, mut value) = record(Collection::Nodes, Group::V1, &node());
    let patch = |value: &Value| node_patch(value.to_string().as_bytes(), &companion);
    value["metadata"]["annotations"]["russet.dev/probe-address-v4"] = json!("10.1.0.9");
    let written = json!({ "metadata": { "annotations": { "russet.dev/probe-address-v4": "10.1.0.9" } } });
    assert_eq!(patch(&value).unwrap(), Some(written));
    value["metadata"]["annotations"]["other"] = json!("changed");
    assert!(patch(&value).unwrap_err().to_string().contains("kubectl"));

    let mut object = node();
    object["metadata"]["annotations"] = json!({ "russet.dev/probe-address-v6": "fd00::9" });
    let companion = Companion::of(&object).unwrap();
    let (_, mut value) = record(Collection::Nodes, Group::V1, &object);
    assert_eq!(value["metadata"]["annotations"]["russet.dev/probe-address-v6"], "fd00::9");
    value["metadata"].as_object_mut().unwrap().remove("annotations");
    let removed = node_patch(value.to_string().as_bytes(), &companion).unwrap().unwrap();
    assert_eq!(removed, json!({ "metadata": { "annotations": { "russet.dev/probe-address-v6": null } } }));
}
