//! DEL by handle and by workload ID, GC.

use super::*;

/// A block of a peer whose only address, 10.1.0.0, is held by `handle` with these attributes, and the handle's record.
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
    // `<namespace>.<pod>` may be spelt like `<network>.<container ID>`
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
fn an_address_of_a_peer_that_names_no_interface_goes_with_any() {
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
fn gc_gives_back_what_is_not_in_the_list() {
    // cni-runtime.md section 1.5
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        for container in ["abc", "def", "ghi"] {
            bench.add(&Ask { container, ..ASK() }).await;
        }
        bench.add(&Ask { container: "far", more: json!({"nodename": "node-b"}), ..ASK() }).await;
        let gc = |more: Value| Ask { version: "1.1.0", more, ..ASK() };
        bench.done("GC", &gc(json!({}))).await;
        assert_eq!(bench.held("net.abc").await, 1, "without a list nothing is known to be stale");
        let list =
            json!([{"containerID": "def", "ifname": "eth0"}, {"containerID": "ghi", "ifname": "eth9"}]);
        bench.done("GC", &gc(json!({ "cni.dev/valid-attachments": list }))).await;
        let held = [bench.held("net.abc").await, bench.held("net.def").await, bench.held("net.ghi").await];
        assert_eq!(held, [0, 1, 0]);
        assert_eq!(bench.held("net.far").await, 1, "another node's are not ours to judge");
    });
}
