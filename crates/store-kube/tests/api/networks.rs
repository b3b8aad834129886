//! OpenShift's networks (kubernetes.md section 6).

use russet_addr::NodeName;
use russet_model::Key;
use russet_model::openshift::{
    ClusterNetwork, HostSubnet, Namespace, NetId, NetNamespace, clusternetwork_key, everything,
    hostsubnet_key, netid_key, netids, netnamespace_key,
};
use russet_store::{Event, Step, Store as _, StoreError};
use serde_json::{Value, json};

use crate::bench::{Bench, next};

const GROUP: &str = "network.openshift.io";

/// A cluster with a network, a node and a namespace, as OpenShift's programs write them.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.server.install(GROUP);
    bench.server.put(object("ClusterNetwork", "default", json!({
        "clusterNetworks": [{ "CIDR": "10.128.0.0/14", "hostSubnetLength": 9, "zone": "a" }],
        "network": "10.128.0.0/14", "hostsubnetlength": 9, "serviceNetwork": "172.30.0.0/16",
        "pluginName": "redhat/openshift-ovs-multitenant", "vxlanPort": 4789, "mtu": 1450, "fromTheFuture": { "a": [1] },
    })));
    bench.server.put(object(
        "HostSubnet",
        "n1",
        json!({ "host": "n1", "hostIP": "192.0.2.1", "subnet": "10.128.0.0/23" }),
    ));
    bench.server.put(tenant(17));
    bench
}

fn object(kind: &str, name: &str, members: Value) -> Value {
    let mut object =
        json!({ "kind": kind, "apiVersion": "network.openshift.io/v1", "metadata": { "name": name } });
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}

fn tenant(netid: u32) -> Value {
    object("NetNamespace", "red", json!({ "netname": "red", "netid": netid, "x": 1 }))
}

fn red() -> Key {
    netnamespace_key(&Namespace::new("red").unwrap())
}

#[tokio::test]
async fn the_clusters_network_is_read_with_all_its_members_and_never_written() {
    // kubernetes.md K124
    let bench = bench();
    let before = bench.server.object(&format!("ClusterNetwork.{GROUP}"), "", "default").unwrap();
    let record = bench.get(&clusternetwork_key()).await.unwrap();
    let network = ClusterNetwork::decode(&record.value).unwrap();
    assert_eq!((network.networks.len(), network.mtu), (1, Some(1450)));
    assert_eq!(network.extra["fromTheFuture"], json!({ "a": [1] }));
    let value: Value = serde_json::from_slice(&record.value).unwrap();
    for member in before.as_object().unwrap().keys().filter(|member| *member != "metadata") {
        assert_eq!(value[member], before[member], "{member}");
    }

    let since = bench.server.seen().len();
    let key = clusternetwork_key();
    for step in [
        Step::create(key.clone(), network.encode()),
        Step::put(key.clone(), network.encode()),
        Step::update(key.clone(), network.encode(), record.revision),
        Step::delete(key.clone(), Some(record.revision)),
        Step::delete(key, None),
    ] {
        let error = bench.one(step).await.unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    }
    assert_eq!(bench.server.seen().len(), since, "no request was sent");
    assert_eq!(bench.server.object(&format!("ClusterNetwork.{GROUP}"), "", "default"), Some(before));
}

#[tokio::test]
async fn nodes_follow_openshifts_networks_and_leave_them_to_one_writer() {
    // kubernetes.md sections 6.2 and 6.5
    let bench = bench();
    let mut watch = bench.store.watch(&everything()).await.unwrap();
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("a watch begins with everything") };
    let value = |key: &Key| {
        let found = snapshot.records.iter().find(|record| record.key == *key);
        found.unwrap_or_else(|| panic!("{key} is missing")).value.clone()
    };
    assert_eq!(snapshot.records.len(), 3);
    ClusterNetwork::decode(&value(&clusternetwork_key())).unwrap();
    let host = NodeName::new("n1").unwrap();
    let subnet = HostSubnet::decode(&value(&hostsubnet_key(&host))).unwrap();
    assert_eq!(subnet.subnet.to_string(), "10.128.0.0/23");
    assert_eq!(NetNamespace::decode(&value(&red())).unwrap().netid, NetId::new(17).unwrap());

    bench.server.put(tenant(18));
    let Event::Put(record) = next(&mut watch).await else { panic!("its ID has changed") };
    let tenant = NetNamespace::decode(&record.value).unwrap();
    assert_eq!((record.key, tenant.netid.number()), (red(), 18));
    assert_eq!(tenant.extra["x"], 1);
    bench.server.delete(&format!("NetNamespace.{GROUP}"), "", "red");
    assert!(matches!(next(&mut watch).await, Event::Deleted { key, .. } if key == red()));

    // What guards assignments elsewhere does not exist here, and a node does not assign.
    let error = bench.store.get(&netid_key(NetId::new(17).unwrap())).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    assert!(bench.store.list(&netids()).await.is_err());
    let error = bench.one(Step::create(red(), tenant.encode())).await.unwrap_err();
    assert!(error.to_string().contains("russet controller --openshift"), "{error}");
}
