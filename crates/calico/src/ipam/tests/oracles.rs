//! The oracles of calico-cni.md section 5 that concern addresses.

use super::*;

#[test]
fn oracle_12_the_node_is_the_hostname_and_nodename_beats_it() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let node = async |container: &'static str, more: Value| {
            bench.add(&Ask { container, more, ..ASK() }).await;
            let handle = format!("net.{container}").parse().unwrap();
            let held = bench.datastore.allocator.ips_by_handle(&handle).await.unwrap();
            held[0].attribute.get("node").unwrap().to_owned()
        };
        assert_eq!(node("a", json!({"nodename": null, "hostname": "host-1"})).await, "host-1");
        assert_eq!(node("b", json!({"nodename": "node-1", "hostname": "host-1"})).await, "node-1");
    });
}

#[test]
fn oracle_17_del_of_a_container_that_was_never_added_succeeds() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        for args in ["", POD] {
            let (done, said) = bench.run("DEL", &Ask { args, ..ASK() }).await;
            assert_eq!(done, Ok(None));
            assert!(said.contains("Ignoring"), "{said}");
        }
        assert_eq!(bench.written(), Vec::<String>::new());
    });
}

#[test]
fn oracle_19_adding_twice_with_one_id_gives_one_address() {
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let ask = Ask { ipam: json!({"assign_ipv6": "true"}), args: POD, ..ASK() };
        let first = bench.done("ADD", &ask).await;
        assert_eq!(bench.done("ADD", &ask).await, first);
        assert_eq!(bench.held("net.abc").await, 2);
        for _ in 0..2 {
            bench.done("DEL", &ask).await;
            assert_eq!(bench.held("net.abc").await, 0);
        }
        assert!(!bench.written().iter().any(|key| key.contains("/handle/")));
    });
}

#[test]
fn oracle_30_a_requested_address_can_be_taken_twice_in_sequence() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let ask = Ask { args: "IgnoreUnknown=1;IP=10.1.0.77", ..ASK() };
        for _ in 0..2 {
            assert_eq!(bench.add(&ask).await, ["10.1.0.77/32"]);
            bench.done("DEL", &ask).await;
        }
    });
}

#[test]
fn oracle_35_a_named_pool_is_where_the_address_comes_from() {
    on_both(async |sim| {
        let bench = bench(sim, &[("pool-a", "10.1.0.0/24"), ("pool-b", "10.2.0.0/24")]).await;
        let ask = Ask { ipam: json!({"ipv4_pools": ["10.2.0.0/24"]}), ..ASK() };
        assert!(bench.add(&ask).await[0].starts_with("10.2.0."));
    });
}

#[test]
fn oracle_37_pools_by_name_and_by_prefix_have_the_same_effect() {
    on_both(async |sim| {
        let bench =
            bench(sim, &[("pool-a", "10.1.0.0/24"), ("pool-b", "10.2.0.0/24"), ("six", "fd00:2::/112")])
                .await;
        for (container, pool) in [("a", "pool-b"), ("b", "10.2.0.0/24"), ("c", "10.2.0.9/24")] {
            let ask = Ask { container, ipam: json!({"ipv4_pools": [pool]}), ..ASK() };
            assert!(bench.add(&ask).await[0].starts_with("10.2.0."), "{pool}");
        }
        let six = Ask {
            ipam: json!({"assign_ipv4": "false", "assign_ipv6": "true", "ipv6_pools": ["six"]}),
            ..ASK()
        };
        assert!(bench.add(&six).await[0].starts_with("fd00:2::"));
    });
}

#[test]
fn oracle_38_a_pool_that_is_not_there_is_an_error_and_a_full_one_is_followed_by_the_next() {
    on_both(async |sim| {
        let bench =
            bench(sim, &[("tiny", "10.1.0.0/32"), ("big", "10.2.0.0/24"), ("six", "fd00:2::/112")]).await;
        for (pools, words) in [
            (json!(["absent"]), "error parsing pool \"absent\""),
            (json!(["10.9.0.0/24"]), "does not exist, or is not enabled"),
            (json!(["six"]), "isn't a IPv4 address"),
        ] {
            let error = bench.refused("ADD", &Ask { ipam: json!({ "ipv4_pools": pools }), ..ASK() }).await;
            assert!(error.code == 7 && error.msg.contains(words), "{error}");
        }
        assert_eq!(bench.written(), Vec::<String>::new());
        let both = json!({"ipv4_pools": ["tiny", "big"]});
        let first = bench.add(&Ask { ipam: both.clone(), ..ASK() }).await;
        assert_eq!(first, ["10.1.0.0/32"]);
        let second = bench.add(&Ask { ipam: both, container: "def", ..ASK() }).await;
        assert!(second[0].starts_with("10.2.0."), "{second:?}");
        let full = Ask { ipam: json!({"ipv4_pools": ["tiny"]}), container: "ghi", ..ASK() };
        let error = bench.refused("ADD", &full).await;
        let words = "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No IPs available in pools: [10.1.0.0/32]";
        assert!(error.code == failure::NO_ADDRESS && error.msg.starts_with(words), "{error}");
    });
}

#[test]
fn oracle_39_a_requested_address_is_given_with_a_full_prefix() {
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        assert_eq!(
            bench.add(&Ask { args: "IgnoreUnknown=1;IP=10.1.0.111", ..ASK() }).await,
            ["10.1.0.111/32"]
        );
        // Disabled families do not affect a requested address, and a repetition returns the same
        // address.
        let off = json!({"assign_ipv4": "false"});
        let six = Ask { args: "IP=fd00:1::7", container: "def", ipam: off, ..ASK() };
        for _ in 0..2 {
            assert_eq!(bench.add(&six).await, ["fd00:1::7/128"]);
        }
        assert_eq!(bench.held("net.def").await, 1);
    });
}

#[test]
fn oracle_47_del_of_the_older_sandbox_leaves_the_newer_ones_address() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let (x, y) = (Ask { args: POD, container: "x", ..ASK() }, Ask { args: POD, container: "y", ..ASK() });
        bench.add(&x).await;
        let newer = bench.add(&y).await;
        bench.done("DEL", &x).await;
        assert_eq!((bench.held("net.x").await, bench.held("net.y").await), (0, 1));
        assert_eq!(bench.add(&y).await, newer);
    });
}

#[test]
fn oracle_48_a_new_sandbox_of_a_pod_gets_a_new_address_and_both_hold_one_until_del() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let (x, y) = (Ask { args: POD, container: "x", ..ASK() }, Ask { args: POD, container: "y", ..ASK() });
        assert_ne!(bench.add(&x).await, bench.add(&y).await);
        assert_eq!((bench.held("net.x").await, bench.held("net.y").await), (1, 1));
    });
}

#[test]
fn oracle_49_a_second_add_that_fails_leaves_the_first_address_reserved() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        bench.add(&ASK()).await;
        let more = Ask { ipam: json!({"assign_ipv6": "true"}), ..ASK() };
        bench.refused("ADD", &more).await;
        assert_eq!(bench.held("net.abc").await, 1);
    });
}

#[test]
fn oracle_50_a_second_interface_has_its_own_address_and_del_takes_only_that() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let second = Ask { ifname: "eth1", ..ASK() };
        let (one, two) = (bench.add(&ASK()).await, bench.add(&second).await);
        assert_ne!(one, two);
        bench.done("DEL", &second).await;
        assert_eq!(bench.held("net.abc").await, 1);
        assert_eq!(bench.add(&ASK()).await, one);
    });
}

#[test]
fn oracle_51_pods_with_similar_names_do_not_share() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let pod = |container, args| Ask { container, args, ..ASK() };
        let one = pod("one", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=mypod");
        let two = pod("two", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=mypod-1");
        bench.add(&one).await;
        bench.add(&two).await;
        bench.done("DEL", &one).await;
        assert_eq!((bench.held("net.one").await, bench.held("net.two").await), (0, 1));
    });
}

#[test]
fn oracle_54_each_version_of_the_result_has_its_shape() {
    // calico-cni.md section 1.10
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let shape = async |version: &'static str| -> Value {
            let ask = Ask { version, ipam: json!({"assign_ipv6": "true"}), ..ASK() };
            serde_json::from_slice(&bench.done("ADD", &ask).await.unwrap().encode()).unwrap()
        };
        let old = shape("0.2.0").await;
        assert_eq!(old["cniVersion"], "0.2.0");
        assert!(old["ip4"]["ip"].as_str().unwrap().ends_with("/26") && old["ip6"]["ip"].is_string(), "{old}");
        assert!(
            old.get("ips").is_none() && old.get("interfaces").is_none() && old.get("routes").is_none(),
            "{old}"
        );
        for version in ["0.3.1", "0.4.0"] {
            let middle = shape(version).await;
            assert_eq!(
                (&middle["ips"][0]["version"], &middle["ips"][1]["version"]),
                (&json!("4"), &json!("6"))
            );
        }
        let new = shape("1.0.0").await;
        assert!(new["ips"][0].get("version").is_none() && new["cniVersion"] == "1.0.0", "{new}");
        let unsaid = Ask { more: json!({"cniVersion": ""}), ..ASK() };
        let unsaid: Value =
            serde_json::from_slice(&bench.done("ADD", &unsaid).await.unwrap().encode()).unwrap();
        assert_eq!(unsaid["cniVersion"], "0.2.0");
    });
}
