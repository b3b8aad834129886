//! Which HostSubnets are created, changed and deleted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::Ipv4Net;
use russet_model::openshift::{ClusterNetwork, HostSubnet};
use serde_json::{Value, json};

use super::{Kind, NodeFacts, Plan, Write, annotation, name_of};

/// The UID of the node for which a subnet was made (kubernetes.md section 6.1).
const NODE_UID: &str = "pod.network.openshift.io/node-uid";
/// A subnet without a node, such as that of an F5 load balancer.
const ASSIGNED: &str = "pod.network.openshift.io/assign-subnet";

/// What becomes of a subnet.
enum Fate {
    Deleted,
    Changed(Value),
    Unchanged,
}

/// The plan for all subnets.
pub(super) fn plan(network: &ClusterNetwork, subnets: &[Value], nodes: &BTreeMap<String, NodeFacts>) -> Plan {
    let mut plan = Plan::default();
    // With those that this plan deletes: other nodes still have routes to them.
    let mut taken: Vec<Ipv4Net> = network.service_network.into_iter().collect();
    let mut served = BTreeSet::new();
    for object in subnets {
        let Some(name) = name_of(object) else { continue };
        match HostSubnet::decode(object.to_string().as_bytes()) {
            Ok(subnet) => taken.push(subnet.subnet),
            Err(error) => _ = plan.refused.insert(format!("HostSubnet {name} cannot be used: {error}")),
        }
        match fate(object, nodes.get(name)) {
            Fate::Deleted => {
                plan.writes.push(Write::Delete(Kind::HostSubnet, object.clone()));
                continue;
            }
            Fate::Changed(object) => plan.writes.push(Write::Replace(Kind::HostSubnet, object)),
            Fate::Unchanged => {}
        }
        served.insert(name);
    }
    let mut free = free(network, taken);
    for (name, (uid, address)) in nodes {
        let Some(address) = address.filter(|_| !served.contains(name.as_str())) else { continue };
        let Some(subnet) = free.next() else {
            plan.refused.insert(format!("node {name} gets no HostSubnet: every subnet is in use"));
            continue;
        };
        let members = json!({ "host": name, "hostIP": address, "subnet": subnet.to_string() });
        let mut object = Kind::HostSubnet.object(name, members);
        stamp(&mut object, uid);
        plan.writes.push(Write::Create(Kind::HostSubnet, object));
    }
    plan
}

fn fate(object: &Value, node: Option<&NodeFacts>) -> Fate {
    let made_for = annotation(object, NODE_UID);
    if made_for.is_none() && annotation(object, ASSIGNED).is_some() {
        return Fate::Unchanged;
    }
    let Some((uid, address)) = node else { return Fate::Deleted };
    if made_for.is_some_and(|other| other != uid) {
        return Fate::Deleted;
    }
    let mut now = object.clone();
    stamp(&mut now, uid);
    if let (Some(address), Some(members)) = (address, now.as_object_mut()) {
        members.insert("hostIP".to_owned(), json!(address));
    }
    if now == *object { Fate::Unchanged } else { Fate::Changed(now) }
}

/// Writes down for which node a subnet is.
fn stamp(object: &mut Value, uid: &str) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(NODE_UID.to_owned(), json!(uid));
    }
}

/// The subnets that overlap none of these, in order.
fn free(network: &ClusterNetwork, taken: Vec<Ipv4Net>) -> impl Iterator<Item = Ipv4Net> {
    let all = network.networks.iter().filter_map(|pods| {
        let length = 32u8.checked_sub(pods.host_subnet_length)?;
        pods.cidr.subnets(length).ok()
    });
    all.flatten().filter(move |net| !taken.iter().any(|other| other.contains(net) || net.contains(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> ClusterNetwork {
        let object = json!({ "clusterNetworks": [{ "CIDR": "10.128.0.0/21", "hostSubnetLength": 9 }], "serviceNetwork": "10.128.2.0/24" });
        ClusterNetwork::decode(object.to_string().as_bytes()).unwrap()
    }

    fn subnet(name: &str, subnet: &str, annotations: Value) -> Value {
        let mut object = Kind::HostSubnet
            .object(name, json!({ "host": name, "hostIP": "192.0.2.1", "subnet": subnet, "x": 1 }));
        object["metadata"]["annotations"] = annotations;
        object
    }

    fn nodes(all: &[(&str, &str, Option<&str>)]) -> BTreeMap<String, NodeFacts> {
        let facts = |(name, uid, address): &(&str, &str, Option<&str>)| {
            ((*name).to_owned(), ((*uid).to_owned(), address.map(|address| address.parse().unwrap())))
        };
        all.iter().map(facts).collect()
    }

    #[test]
    fn the_subnet_of_an_older_node_is_replaced_and_one_without_a_node_stays() {
        // kubernetes.md K120, section 6.3
        let f5 = subnet("f5", "10.128.6.0/23", json!({ ASSIGNED: "true" }));
        let old = subnet("n1", "10.128.0.0/23", json!({ NODE_UID: "old" }));
        let gone = subnet("n2", "10.128.4.0/23", json!({ NODE_UID: "gone" }));
        let one = nodes(&[("n1", "new", Some("192.0.2.7"))]);
        let plan_now = plan(&network(), &[f5.clone(), old.clone(), gone.clone()], &one);
        let deleted = [&old, &gone].map(|object| Write::Delete(Kind::HostSubnet, object.clone()));
        assert_eq!(plan_now.writes, deleted, "every subnet is in use until they are gone");
        assert!(plan_now.refused.first().unwrap().contains("node n1"), "{plan_now:?}");
        let next = plan(&network(), &[f5], &one);
        let mut made = Kind::HostSubnet
            .object("n1", json!({ "host": "n1", "hostIP": "192.0.2.7", "subnet": "10.128.0.0/23" }));
        stamp(&mut made, "new");
        assert_eq!(next.writes, [Write::Create(Kind::HostSubnet, made)]);
    }

    #[test]
    fn nodes_get_subnets_that_overlap_nothing_once_they_have_an_address() {
        let all =
            nodes(&[("n1", "u1", Some("192.0.2.1")), ("n2", "u2", None), ("n3", "u3", Some("192.0.2.3"))]);
        // A quarter of the third one; the services have a part of the second.
        let odd = subnet("f5", "10.128.4.128/25", json!({ ASSIGNED: "true" }));
        let plan = plan(&network(), &[odd], &all);
        let made = |write: &Write| match write {
            Write::Create(_, object) => (name_of(object).unwrap().to_owned(), object["subnet"].clone()),
            other => panic!("{other:?}"),
        };
        let made: Vec<_> = plan.writes.iter().map(made).collect();
        assert_eq!(
            made,
            [("n1".to_owned(), json!("10.128.0.0/23")), ("n3".to_owned(), json!("10.128.6.0/23"))]
        );
    }

    #[test]
    fn a_changed_address_and_a_missing_stamp_are_written_and_the_rest_is_kept() {
        let all = nodes(&[("n1", "u1", Some("192.0.2.7"))]);
        let before = subnet("n1", "10.128.0.0/23", json!({ "mine": "kept" }));
        let plan_now = plan(&network(), &[before], &all);
        let mut after = subnet("n1", "10.128.0.0/23", json!({ "mine": "kept", NODE_UID: "u1" }));
        after["hostIP"] = json!("192.0.2.7");
        assert_eq!(plan_now.writes, [Write::Replace(Kind::HostSubnet, after.clone())]);
        assert_eq!(plan(&network(), &[after], &all), Plan::default());
    }
}
