//! OpenShift's networks, as its SDN master makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use russet_controller::Settings;
use serde_json::{Value, json};

use crate::bench::{Bench, settings, until};

const GROUP: &str = "network.openshift.io";
const UID: &str = "pod.network.openshift.io/node-uid";
const CHANGE: &str = "pod.network.openshift.io/multitenant.change-network";
const NAMESPACES: usize = 200;

fn object(kind: &str, name: &str, members: Value) -> Value {
    let mut object =
        json!({ "kind": kind, "apiVersion": "network.openshift.io/v1", "metadata": { "name": name } });
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}

/// A cluster of OpenShift whose network has members that are not known here.
async fn bench(mode: &str) -> Bench {
    let bench = Bench::with(&[]).await;
    bench.server.install(GROUP);
    bench.server.put(object("ClusterNetwork", "default", json!({
        "clusterNetworks": [{ "CIDR": "10.128.0.0/14", "hostSubnetLength": 9, "zone": "a" }], "serviceNetwork": "172.30.0.0/16",
        "pluginName": format!("redhat/openshift-ovs-{mode}"), "fromTheFuture": { "a": [1] },
    })));
    bench
}

fn replica(identity: &str) -> Settings {
    Settings { openshift: Some(Duration::from_millis(200)), ..settings(identity) }
}

fn namespace(bench: &Bench, name: &str) {
    bench.server.put(json!({ "kind": "Namespace", "metadata": { "name": name } }));
}

fn found(bench: &Bench, kind: &str, name: &str) -> Option<Value> {
    bench.server.object(&format!("{kind}.{GROUP}"), "", name)
}

/// The network ID of each namespace.
fn ids(bench: &Bench) -> BTreeMap<String, u64> {
    let all = bench.server.objects(&format!("NetNamespace.{GROUP}"));
    let id = |object: &Value| {
        (object["metadata"]["name"].as_str().unwrap().to_owned(), object["netid"].as_u64().unwrap())
    };
    all.iter().map(id).collect()
}

fn id(bench: &Bench, name: &str) -> Option<u64> {
    ids(bench).get(name).copied()
}

/// Requests a change of a namespace's network.
fn request(bench: &Bench, name: &str, change: &str) {
    let mut tenant = found(bench, "NetNamespace", name).unwrap();
    tenant["metadata"]["annotations"] = json!({ CHANGE: change, "mine": "kept" });
    tenant["fromTheFuture"] = json!(true);
    bench.server.put(tenant);
}

/// Names of namespaces that would all have the ID of another one if each were alone: FNV-1a spreads them over
/// the IDs.
fn colliding_names() -> Vec<String> {
    const IDS: u32 = (1 << 24) - 10;
    let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let (mut by_id, mut names): (BTreeMap<u32, String>, Vec<String>) = Default::default();
    for number in 0_u32.. {
        let name = format!("project-{number}");
        let start = name.bytes().fold(0x811c_9dc5, mix) % IDS;
        if let Some(other) = by_id.remove(&start) {
            names.extend([name, other]);
        } else {
            by_id.insert(start, name);
        }
        if names.len() >= NAMESPACES {
            break;
        }
    }
    names
}

#[tokio::test]
async fn two_hundred_namespaces_get_an_id_each_although_the_leader_dies_in_the_middle() {
    // kubernetes.md K121, section 6.5
    let bench = bench("multitenant").await;
    namespace(&bench, "default");
    let names = colliding_names();
    let first = async {
        until("it works", async || id(&bench, "default") == Some(0)).await;
        bench.server.silence_after_writes(NAMESPACES / 3);
        names.iter().for_each(|name| namespace(&bench, name));
        until("its last write has no answer", async || bench.server.writes_left() == Some(0)).await;
    };
    tokio::select! {
        () = first => {}
        // Dropped then, as by a kill.
        _ = bench.run(replica("a"), |_| false) => {}
    }
    let before = ids(&bench);
    assert!((2..names.len()).contains(&before.len()), "{}", before.len());
    bench.server.speak();
    tokio::select! {
        () = until("all have an ID", async || ids(&bench).len() > names.len()) => {}
        _ = bench.run(replica("b"), |_| false) => {}
    }
    let after = ids(&bench);
    assert!(before.iter().all(|(name, id)| after[name] == *id), "what the first one assigned stays");
    assert!(names.iter().all(|name| after[name] >= 10));
    assert_eq!(after.values().collect::<BTreeSet<_>>().len(), names.len() + 1, "each ID once: {after:?}");
}

#[tokio::test]
async fn annotations_join_isolate_and_make_global() {
    // kubernetes.md K122 and K124
    let bench = bench("multitenant").await;
    let network = found(&bench, "ClusterNetwork", "default");
    ["default", "red", "blue"].iter().for_each(|name| namespace(&bench, name));
    let is_done = |name: &str| {
        let tenant = found(&bench, "NetNamespace", name).unwrap();
        let is_done = tenant["metadata"]["annotations"] == json!({ "mine": "kept" });
        assert!(!is_done || tenant["fromTheFuture"] == true, "{tenant}");
        is_done
    };
    let changes = async {
        until("all have an ID", async || ids(&bench).len() == 3).await;
        let [red, blue] = ["red", "blue"].map(|name| id(&bench, name).unwrap());
        assert_ne!(red, blue);
        request(&bench, "red", "join:blue");
        until("red joins", async || is_done("red")).await;
        assert_eq!(id(&bench, "red"), Some(blue));
        request(&bench, "blue", "isolate");
        until("blue is isolated", async || is_done("blue")).await;
        let own = id(&bench, "blue").unwrap();
        assert!(own >= 10 && own != blue, "{own}");
        request(&bench, "red", "isolate");
        until("red is alone already", async || is_done("red")).await;
        assert_eq!(id(&bench, "red"), Some(blue));
        request(&bench, "red", "global");
        until("red is global", async || is_done("red")).await;
        assert_eq!(id(&bench, "red"), Some(0));
        // The tenant goes with its namespace.
        bench.server.delete("Namespace", "", "blue");
        until("blue is gone", async || id(&bench, "blue").is_none()).await;
    };
    tokio::select! {
        () = changes => {}
        _ = bench.run(replica("a"), |_| false) => {}
    }
    assert_eq!(found(&bench, "ClusterNetwork", "default"), network);
    assert!(!bench.writes().iter().any(|seen| seen.path.contains("clusternetworks")));
}

#[tokio::test]
async fn where_policies_isolate_a_request_is_refused() {
    // kubernetes.md K122
    let bench = bench("networkpolicy").await;
    ["default", "red", "blue"].iter().for_each(|name| namespace(&bench, name));
    let changes = async {
        until("all have an ID", async || ids(&bench).len() == 3).await;
        let before = ids(&bench);
        for (number, change) in ["join:blue", "isolate", "global"].into_iter().enumerate() {
            request(&bench, "red", change);
            // A later round has seen it.
            let later = format!("later-{number}");
            namespace(&bench, &later);
            until("another has an ID", async || id(&bench, &later).is_some()).await;
            let tenant = found(&bench, "NetNamespace", "red").unwrap();
            assert_eq!(tenant["metadata"]["annotations"][CHANGE], change);
            assert_eq!(tenant["netid"], before["red"]);
        }
    };
    tokio::select! {
        () = changes => {}
        _ = bench.run(replica("a"), |_| false) => {}
    }
}

#[tokio::test]
async fn the_subnet_of_an_older_node_is_made_anew_and_one_without_a_node_stays() {
    // kubernetes.md K120, section 6.3
    let bench = bench("multitenant").await;
    let subnet = |name: &str, subnet: &str, annotations: Value| {
        let mut object =
            object("HostSubnet", name, json!({ "host": name, "hostIP": "192.0.2.1", "subnet": subnet }));
        object["metadata"]["annotations"] = annotations;
        bench.server.put(object);
    };
    subnet("f5", "10.128.0.0/23", json!({ "pod.network.openshift.io/assign-subnet": "true" }));
    subnet("n1", "10.128.2.0/23", json!({ UID: "of-the-older-one" }));
    subnet("gone", "10.128.4.0/23", json!({ UID: "of-a-deleted-one" }));
    let addresses =
        json!([{ "type": "Hostname", "address": "n1" }, { "type": "InternalIP", "address": "192.0.2.7" }]);
    bench.server.put(json!({ "kind": "Node", "metadata": { "name": "n1", "uid": "new" }, "status": { "addresses": addresses } }));
    let f5 = found(&bench, "HostSubnet", "f5");
    let made = async {
        until("n1 has a subnet", async || {
            found(&bench, "HostSubnet", "n1").is_some_and(|it| it["metadata"]["annotations"][UID] == "new")
        })
        .await;
        until("the other one is gone", async || found(&bench, "HostSubnet", "gone").is_none()).await;
    };
    tokio::select! {
        () = made => {}
        _ = bench.run(replica("a"), |_| false) => {}
    }
    let n1 = found(&bench, "HostSubnet", "n1").unwrap();
    assert_eq!((&n1["host"], &n1["hostIP"]), (&json!("n1"), &json!("192.0.2.7")));
    assert_eq!(n1["subnet"], "10.128.6.0/23", "the others were in use when it was made");
    assert_eq!(found(&bench, "HostSubnet", "f5"), f5);
}

#[tokio::test]
async fn while_openshifts_own_master_runs_nothing_is_written() {
    // kubernetes.md section 6.5
    let bench = bench("multitenant").await;
    let master = json!({ "kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": { "namespace": "openshift-sdn", "name": "sdn-controller" } });
    bench.server.put(master);
    namespace(&bench, "default");
    let looks = || bench.server.seen().iter().filter(|seen| seen.path.contains("sdn-controller")).count();
    let watched = async {
        until("it looks twice", async || looks() > 1).await;
        assert!(!bench.writes().iter().any(|seen| seen.path.contains(GROUP)));
        bench.server.delete("DaemonSet.apps", "openshift-sdn", "sdn-controller");
        until("it works", async || id(&bench, "default") == Some(0)).await;
    };
    tokio::select! {
        () = watched => {}
        _ = bench.run(replica("a"), |_| false) => {}
    }
}
