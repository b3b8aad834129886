//! DEL by handle and by workload ID, GC.

use super::*;

/// A block of a peer whose only allocated address, 10.1.0.0, is held by `handle` with these
/// attributes, and the handle's record.
async fn held_by_peer(bench: &Bench, handle: &str, secondary: Value) {
    let mut allocations = vec![Value::Null; 64];
    allocations[0] = json!(0);
    let block = json!({
        "cidr": "10.1.0.0/26", "affinity": "host:node-a", "allocations": allocations,
        "unallocated": (1..64).collect::<Vec<_>>(),
        "attributes": [{"handle_id": handle, "secondary": secondary}], "deleted": false,
    });
    bench.put(Key::block("10.1.0.0/26".parse().unwrap()), &block).await;
    let record = json!({"block": {"10.1.0.0/26": 1}, "deleted": false});
    bench.put(Key::handle(&handle.parse().unwrap()), &record).await;
}

#[test]
fn addresses_under_the_workload_id_go_too() {
    // calico-ipam.md section 4.3 item 3
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "default.web-0", Value::Null).await;
        bench.done("DEL", &Ask { args: POD, ..ASK() }).await;
        assert_eq!(bench.held("default.web-0").await, 0);
    });
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "abc", json!({"node": "node-a"})).await;
        bench.done("DEL", &ASK()).await;
        assert_eq!(bench.held("abc").await, 0);
    });
}

#[test]
fn a_workload_id_that_is_another_pods_handle_takes_nothing_from_it() {
    // `<namespace>.<pod>` may be spelt like `<network>.<container ID>`.
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let others = json!({"node": "node-a", "pod": "victim", "namespace": "default"});
        held_by_peer(&bench, "net.abcd", others).await;
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=net;K8S_POD_NAME=abcd";
        let (done, said) = bench.run("DEL", &Ask { args, ..ASK() }).await;
        assert_eq!(done, Ok(None));
        assert_eq!(bench.held("net.abcd").await, 1);
        assert!(said.contains("addresses of others"), "{said}");
    });
}

#[test]
fn a_workload_id_in_a_namespace_named_like_the_network_frees_only_what_names_the_pod() {
    // A tenant names namespace `net` and pod `abcd`, which is spelt like another container's
    // handle, held by a peer that names no pod.
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=net;K8S_POD_NAME=abcd";
    for (secondary, left) in
        [(json!({"node": "node-a"}), 1), (Value::Null, 1), (json!({"pod": "abcd", "namespace": "net"}), 0)]
    {
        on_both(async |sim| {
            let bench = Bench::v4(sim).await;
            held_by_peer(&bench, "net.abcd", secondary.clone()).await;
            bench.done("DEL", &Ask { args, ..ASK() }).await;
            assert_eq!(bench.held("net.abcd").await, left, "{secondary}");
        });
    }
}

/// An endpoint of the pod for a container, as the migration of v1 data creates it.
async fn endpoint_of(bench: &Bench, namespace: &str, container: &str) {
    let endpoint = json!({
        "kind": "WorkloadEndpoint", "metadata": {"name": "node--a-k8s-web--0-eth0", "namespace": namespace},
        "spec": {"orchestrator": "k8s", "node": "node-a", "containerID": container, "pod": "web-0",
            "endpoint": "eth0", "ipNetworks": ["10.1.0.0/32"], "interfaceName": "cali1"},
    });
    let key = Key::workload_endpoint(namespace, "node--a-k8s-web--0-eth0").unwrap();
    bench.put(key, &endpoint).await;
}

#[test]
fn a_late_del_of_an_old_sandbox_leaves_the_address_that_the_new_one_has_under_the_workload_id() {
    // calico-cni.md oracle 56: v1 allocated the pod's previous address again.
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "default.web-0", json!({"pod": "web-0", "namespace": "default"})).await;
        endpoint_of(&bench, "default", "new").await;
        for _ in 0..2 {
            bench.done("DEL", &Ask { container: "old", args: POD, ..ASK() }).await;
            assert_eq!(bench.held("default.web-0").await, 1);
        }
        bench.done("DEL", &Ask { container: "new", args: POD, ..ASK() }).await;
        assert_eq!(bench.held("default.web-0").await, 0);
    });
}

#[test]
fn gc_keeps_addresses_of_valid_endpoints_under_any_handle() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "net.web-0", json!({"node": "node-a"})).await;
        endpoint_of(&bench, "net", "new").await;
        let gc = |list: Value| Ask {
            version: "1.1.0",
            more: json!({ "cni.dev/valid-attachments": list }),
            ..ASK()
        };
        bench.done("GC", &gc(json!([{"containerID": "new", "ifname": "eth0"}]))).await;
        assert_eq!(bench.held("net.web-0").await, 1);
        bench.done("GC", &gc(json!([]))).await;
        assert_eq!(bench.held("net.web-0").await, 0);
    });
}

#[test]
fn an_address_without_interface_attribute_is_released_with_any_interface() {
    // calico-ipam.md section 9
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "net.abc", json!({"node": "node-a"})).await;
        bench.done("DEL", &Ask { ifname: "net7", ..ASK() }).await;
        assert_eq!(bench.held("net.abc").await, 0);
    });
}

#[test]
fn del_needs_neither_pools_nor_a_node_name() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        bench.add(&ASK()).await;
        bench.datastore.allocator.delete_pool("four").await.unwrap();
        let ask = Ask { more: json!({"nodename": "not a name"}), ..ASK() };
        bench.done("DEL", &ask).await;
        assert_eq!(bench.held("net.abc").await, 0);
    });
}

#[test]
fn gc_releases_addresses_that_are_not_in_the_list() {
    // cni-runtime.md section 1.5
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        for container in ["abc", "def", "ghi"] {
            bench.add(&Ask { container, ..ASK() }).await;
        }
        bench.add(&Ask { container: "far", more: json!({"nodename": "node-b"}), ..ASK() }).await;
        let gc = |more: Value| Ask { version: "1.1.0", more, ..ASK() };
        let refused = bench.refused("GC", &gc(json!({}))).await;
        assert!(refused.code == 7 && refused.msg.contains("cni.dev/valid-attachments"), "{refused}");
        assert_eq!(bench.held("net.abc").await, 1, "without a list nothing is known to be stale");
        let list =
            json!([{"containerID": "def", "ifname": "eth0"}, {"containerID": "ghi", "ifname": "eth9"}]);
        bench.done("GC", &gc(json!({ "cni.dev/valid-attachments": list }))).await;
        let held = [bench.held("net.abc").await, bench.held("net.def").await, bench.held("net.ghi").await];
        assert_eq!(held, [0, 1, 0]);
        assert_eq!(bench.held("net.far").await, 1, "addresses of another node stay");
    });
}

#[test]
fn an_unreadable_record_is_logged_and_del_succeeds() {
    // calico-ipam.md section 1.3; if DEL failed, the pod could never be deleted.
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let ask = Ask { ipam: json!({"assign_ipv6": "true"}), args: POD, ..ASK() };
        bench.add(&ask).await;
        let keys: Vec<Key> = bench.sim.records().into_keys().collect();
        let key = keys.iter().find(|key| key.as_str().contains("/ipv4/block/")).unwrap();
        bench.sim.commit(vec![Step::put(key.clone(), b"{".to_vec())]).await.unwrap();
        for held in [1, 0] {
            assert_eq!(bench.held("net.abc").await, held);
            let (done, said) = bench.run("DEL", &ask).await;
            assert_eq!(done, Ok(None));
            assert!(said.contains(" [ERROR][") && said.contains(&format!("{key} is corrupt")), "{said}");
        }
        assert_eq!(bench.sim.records()[key].value, b"{");
    });
    // Both the handle and that of older plugins: their addresses are released anyway.
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        held_by_peer(&bench, "default.web-0", Value::Null).await;
        let ask = Ask { args: POD, ..ASK() };
        bench.add(&ask).await;
        for handle in ["net.abc", "default.web-0"] {
            let key = Key::handle(&handle.parse().unwrap());
            bench.sim.commit(vec![Step::put(key, b"[]".to_vec())]).await.unwrap();
        }
        let (done, said) = bench.run("DEL", &ask).await;
        assert_eq!(done, Ok(None));
        for handle in ["net.abc", "default.web-0"] {
            assert!(said.contains(&format!("handle/{handle} is corrupt")), "{said}");
            let held = bench.datastore.allocator.ips_to_free(&handle.parse().unwrap()).await.unwrap();
            assert!(held.is_empty(), "{handle}: {held:?}");
        }
    });
}
