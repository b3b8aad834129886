//! CHECK, STATUS, and the choice of the datastore.

use super::*;

fn with_previous(addresses: &[&str]) -> Ask {
    let ips: Vec<Value> = addresses.iter().map(|address| json!({ "address": address })).collect();
    Ask { more: json!({"prevResult": {"cniVersion": "1.0.0", "ips": ips}}), ..ASK() }
}

#[test]
fn check_sees_whether_the_interface_still_holds_its_address() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        assert_eq!(bench.refused("CHECK", &ASK()).await.code, failure::NO_ADDRESS);
        let net = bench.add(&ASK()).await.remove(0);
        bench.done("CHECK", &ASK()).await;
        bench.done("CHECK", &with_previous(&[&net])).await;
        // A main plugin's result may contain an address of another plugin, but not an address of
        // ours that is no longer held.
        bench.done("CHECK", &with_previous(&[&net, "192.0.2.1/24"])).await;
        for lost in [&["10.1.0.200/32"][..], &[&net, "10.1.0.200/32"]] {
            let error = bench.refused("CHECK", &with_previous(lost)).await;
            assert!(error.code == failure::NO_ADDRESS && error.msg.contains("10.1.0.200"), "{error}");
        }
        let other = Ask { ifname: "eth1", ..with_previous(&[&net]) };
        assert_eq!(bench.refused("CHECK", &other).await.code, failure::NO_ADDRESS);
        bench.done("DEL", &ASK()).await;
        bench.refused("CHECK", &with_previous(&[&net])).await;
    });
}

#[test]
fn status_says_whether_an_add_would_find_a_pool() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let status = |ipam: Value| Ask { version: "1.1.0", ipam, ..ASK() };
        bench.done("STATUS", &status(json!({}))).await;
        let error = bench.refused("STATUS", &status(json!({"assign_ipv6": "true"}))).await;
        assert!(error.code == 50 && error.msg.contains("IPv6"), "{error}");
    });
}

#[test]
fn an_etcd_not_configured_as_v3_must_have_v3_records() {
    // calico-cni.md section 0.2: a configuration of v1.11 has no datastore_type and means the v2 keys
    on_both(async |sim| {
        let bench = bench(sim, &[]).await;
        let old = Ask { more: json!({"datastore_type": null}), ..ASK() };
        for verb in ["ADD", "DEL"] {
            let error = bench.refused(verb, &old).await;
            assert!(error.code == 7 && error.details.contains("v1.11"), "{error}");
        }
        // The cluster information, which an agent writes, is not enough: the v1 data are still
        // looked for.
        bench.put(Key::cluster_information(), &json!({})).await;
        assert_eq!(bench.refused("ADD", &old).await.code, 7);
        bench.done("DEL", &ASK()).await;
        let spec = IpPoolSpec::new("10.1.0.0/24".parse().unwrap());
        bench.datastore.allocator.create_pool(IpPool::new("four", spec)).await.unwrap();
        bench.add(&old).await;
        bench.done("DEL", &old).await;
        assert_eq!(bench.held("net.abc").await, 0);
    });
}

#[test]
fn on_v1_data_the_node_name_follows_the_rules_of_v1_11() {
    // calico-cni.md section 1.6: without the file, and with upper case; calico-ipam.md section 1.1.
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let file = bench.host.root.join("var/lib/calico/nodename");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "filed").unwrap();
        let on = |kind: &str, hostname: Value| {
            let more = json!({"datastore_type": kind, "nodename": null, "hostname": hostname, "ipam_lock_file": "/proc/none/l"});
            Ask { version: "1.1.0", more, ..ASK() }
        };
        let claimed = || -> Vec<String> {
            let claims = bench.written().into_iter().filter(|key| key.starts_with("/calico/ipam/v2/host/"));
            claims.filter_map(|key| key.split('/').nth(5).map(str::to_owned)).collect()
        };
        let old = on("etcdv2", json!("Worker-1"));
        bench.add(&old).await;
        assert_eq!(claimed(), ["Worker-1"]);
        // GC uses the same name, which selects this node's blocks.
        let gc = Ask {
            more: json!({"datastore_type": "etcdv2", "nodename": null, "hostname": "Worker-1", "cni.dev/valid-attachments": []}),
            ..old.clone()
        };
        bench.done("GC", &gc).await;
        assert_eq!(bench.held("net.abc").await, 0);
        // The host's own name, and not the one in the file, which a later release or a russet agent
        // may have written.
        bench.done("STATUS", &on("etcdv2", Value::Null)).await;
        bench.add(&on("etcdv2", Value::Null)).await;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(claimed().contains(&host), "{:?}", claimed());
        // The rules of v3 on the same node.
        bench.done("DEL", &old).await;
        bench.add(&on("etcdv3", json!("Worker-1"))).await;
        assert!(claimed().contains(&"filed".to_owned()), "{:?}", claimed());
    });
}

#[test]
fn addresses_are_given_from_the_datastore_in_the_kubernetes_api_too() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let ask = Ask { version: "1.1.0", more: json!({ "datastore_type": "kubernetes" }), ..ASK() };
        bench.done("STATUS", &ask).await;
        assert_eq!(bench.add(&ask).await.len(), 1);
        assert_eq!(bench.held("net.abc").await, 1);
        bench.done("DEL", &ask).await;
        assert_eq!(bench.held("net.abc").await, 0);
    });
}

#[test]
fn an_unreachable_store_is_error_code_11() {
    on_both(async |sim| {
        let bench = Bench::v4(sim.clone()).await;
        sim.script([russet_store::sim::Fault::Unavailable]);
        assert_eq!(bench.refused("ADD", &ASK()).await.code, 11);
        assert_eq!(bench.add(&ASK()).await.len(), 1);
        assert_eq!(bench.held("net.abc").await, 1);
    });
}
