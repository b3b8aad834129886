//! Pods of Kubernetes (calico-cni.md sections 2.5 and 5.1).

use super::*;

/// Annotations with Calico's prefix.
fn calico(pairs: &[(&str, &str)]) -> Value {
    let pairs = pairs.iter().map(|(name, text)| (format!("cni.projectcalico.org/{name}"), json!(text)));
    Value::Object(pairs.collect())
}

fn ips(result: &CniResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.addr().to_string()).collect()
}

#[test]
fn oracle_25_a_pods_endpoint_names_its_namespaces_and_accounts_profiles() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let result = stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        let endpoints = stage.endpoints();
        let (name, endpoint) = endpoints.first_key_value().unwrap();
        assert_eq!((endpoints.len(), name.as_str()), (1, "test/n1-k8s-mypod-eth0"));
        let spec = json!({"orchestrator": "k8s", "node": "n1", "containerID": "c1", "pod": "mypod", "endpoint": "eth0",
            "serviceAccountName": "default", "ipNetworks": [result.ips[0].address.to_string()],
            "profiles": ["kns.test", "ksa.test.default"], "interfaceName": result.interfaces[0].name,
            "mac": result.interfaces[1].mac});
        assert_eq!(endpoint.to_value()["spec"], spec);
        let labels = json!({"app": "web", "projectcalico.org/namespace": "test",
            "projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "default"});
        assert_eq!(endpoint.to_value()["metadata"]["labels"], labels);
        let profiles = stage.sim.records().into_keys().filter(|key| key.as_str().contains("/profiles/"));
        assert_eq!(
            profiles.count(),
            0,
            "calico-cni.md section 2.7: those of namespaces are not the plugin's"
        );
    });
}

#[test]
fn without_kubernetes_policy_a_pod_gets_its_networks_profile_which_allows_all_ingress() {
    // calico-cni.md sections 2.3 and 2.5, step 6
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let ask = Ask::pod("c1", "mypod").with(json!({"policy": {}}));
        stage.add(&ask).await.unwrap();
        assert_eq!(stage.endpoint().profiles, ["net1"]);
        let record = &stage.sim.records()[&Key::profile("net1").unwrap()];
        let profile: Value = serde_json::from_slice(&record.value).unwrap();
        assert_eq!(profile["spec"]["ingress"][0]["source"], json!({}));
    });
}

#[test]
fn the_error_names_a_missing_pod_or_namespace() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let error = stage.add(&Ask::pod("c1", "mypod")).await.unwrap_err();
        assert!(error.code == failure::NO_SUCH_POD && error.msg.contains("namespace test"), "{error}");
        stage.namespace(json!({}));
        let error = stage.add(&Ask::pod("c1", "mypod")).await.unwrap_err();
        assert!(error.code == failure::NO_SUCH_POD && error.msg.contains("pod test/mypod"), "{error}");
        stage.assert_bare(&["c1"]).await;
    });
}

#[test]
fn oracle_35_a_namespaces_pools_are_used() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let spec = russet_model::IpPoolSpec::new("10.2.0.0/24".parse().unwrap());
        stage.datastore.allocator.create_pool(russet_model::IpPool::new("other", spec)).await.unwrap();
        stage.pod("mypod", json!({}));
        for (container, pools) in [("c1", r#"["10.2.0.0/24"]"#), ("c2", r#"["other"]"#)] {
            stage.namespace(calico(&[("ipv4pools", pools)]));
            let result = stage.add(&Ask::pod(container, "mypod")).await.unwrap();
            assert!(ips(&result)[0].starts_with("10.2.0."), "{pools}: {result:?}");
        }
        // calico-cni.md oracle 36: the pod's own annotation takes precedence.
        stage.pod("mypod", calico(&[("ipv4pools", r#"["10.1.0.0/24"]"#)]));
        let result = stage.add(&Ask::pod("c3", "mypod")).await.unwrap();
        assert!(ips(&result)[0].starts_with("10.1.0."), "{result:?}");
    });
}

#[test]
fn oracle_38_a_pool_that_does_not_exist_is_an_error() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipv4pools", r#"["nowhere"]"#)]));
        assert!(stage.add(&Ask::pod("c1", "mypod")).await.is_err());
        stage.assert_bare(&["c1"]).await;
    });
}

#[test]
fn families_of_an_annotation_are_given() {
    // calico-cni.md section 2.5.2
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipFamilies", r#"["IPv4","IPv6"]"#)]));
        let result = stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        assert_eq!(stage.endpoint().ip_networks.len(), 2, "{result:?}");
        stage.pod("mypod", calico(&[("ipFamilies", r#"["IPv6"]"#)]));
        let result = stage.add(&Ask::pod("c2", "mypod")).await.unwrap();
        assert!(result.ips.len() == 1 && ips(&result)[0].starts_with("fd00:1:"), "{result:?}");
    });
}

#[test]
fn oracle_39_a_pod_gets_exactly_the_address_that_it_asks_for() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipAddrs", r#"["10.1.0.111","fd00:1::6f"]"#)]));
        let result = stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        assert_eq!(ips(&result), ["10.1.0.111", "fd00:1::6f"]);
        assert_eq!(stage.endpoint().ip_networks.len(), 2);
        // calico-cni.md section 2.5.3: the pod's next container gets the addresses of the previous one.
        let result = stage.add(&Ask::pod("c2", "mypod")).await.unwrap();
        assert_eq!(ips(&result), ["10.1.0.111", "fd00:1::6f"]);
        assert!(stage.held("net1", "c1").await.is_empty());
        assert_eq!(stage.held("net1", "c2").await.len(), 2);
        // The same container again counts as the same owner.
        let again = stage.add(&Ask::pod("c2", "mypod")).await.unwrap();
        assert_eq!(ips(&again), ["10.1.0.111", "fd00:1::6f"]);
        stage.del(&Ask::pod("c2", "mypod")).await.unwrap();
        stage.assert_bare(&["c1", "c2"]).await;
    });
}

#[test]
fn a_link_that_the_go_plugin_wired_is_removed_by_name_before_its_addresses() {
    // calico-cni.md section 2.5.3: Calico's own plugin writes no owner on it
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipAddrs", r#"["10.1.0.111"]"#)]));
        stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        let named = stage.endpoint().interface_name.unwrap();
        stage.add(&Ask::pod("c2", "mypod")).await.unwrap();
        let detached = stage.wire.detached.take();
        assert!(detached[0].by_name_alone && detached[0].host_name.as_ref() == Some(&named), "{detached:?}");
        assert_eq!((detached[0].id.container.as_str(), detached[0].id.ifname.as_str()), ("c1", "eth0"));
        // An endpoint that names another interface does not allow deleting that one by name.
        let mut endpoints = stage.endpoints();
        let (name, mut endpoint) = endpoints.pop_first().unwrap();
        endpoint.spec.interface_name = Some("eth7".parse().unwrap());
        let name = name.strip_prefix("test/").unwrap();
        let key = Key::workload_endpoint("test", name).unwrap();
        stage.sim.commit(vec![Step::put(key, endpoint.encode())]).await.unwrap();
        stage.add(&Ask::pod("c3", "mypod")).await.unwrap();
        let detached = stage.wire.detached.take();
        assert!(!detached[0].by_name_alone, "{detached:?}");
    });
}

#[test]
fn an_address_that_another_pod_holds_is_refused_and_the_others_are_released() {
    // calico-cni.md section 2.5.3
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("first", calico(&[("ipAddrs", r#"["10.1.0.111"]"#)]));
        stage.pod("second", calico(&[("ipAddrs", r#"["fd00:1::6f","10.1.0.111"]"#)]));
        stage.add(&Ask::pod("c1", "first")).await.unwrap();
        assert!(stage.add(&Ask::pod("c2", "second")).await.is_err());
        assert!(stage.held("net1", "c2").await.is_empty());
        assert_eq!(stage.held("net1", "c1").await.len(), 1);
    });
}

#[test]
fn the_address_that_cni_args_request_is_given_to_pods_and_containers() {
    // calico-cni.md section 1.4: the arguments reach the IPAM plugin
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let requesting = |ask: Ask, address: &str| {
            let args = [ask.args.as_str(), &format!("IP={address}")].join(";");
            Ask { args: args.trim_start_matches(';').to_owned(), ..ask }
        };
        let pod = requesting(Ask::pod("c1", "mypod"), "10.1.0.77");
        for attempt in ["first", "repeated"] {
            let result = stage.add(&pod).await.unwrap();
            assert_eq!(ips(&result), ["10.1.0.77"], "{attempt}");
        }
        assert_eq!(stage.endpoint().ip_networks, ["10.1.0.77/32".parse().unwrap()]);
        assert_eq!(stage.held("net1", "c1").await.len(), 1);
        // Another container gets neither this address nor another one in its place.
        let error = stage.add(&requesting(Ask::container("c2"), "10.1.0.77")).await.unwrap_err();
        assert!(error.msg.contains("10.1.0.77 is already assigned"), "{error}");
        assert!(stage.held("net1", "c2").await.is_empty());
        let error = stage.add(&requesting(Ask::container("c2"), "10.1.0")).await.unwrap_err();
        assert_eq!(error.code, russet_cni_spec::code::ENVIRONMENT, "{error}");
        let container = requesting(Ask::container("c2"), "fd00:1::4d");
        assert_eq!(ips(&stage.add(&container).await.unwrap()), ["fd00:1::4d"]);
        // The pod's annotation takes precedence over the arguments.
        stage.pod("other", calico(&[("ipAddrs", r#"["10.1.0.78"]"#)]));
        let result = stage.add(&requesting(Ask::pod("c3", "other"), "10.1.0.79")).await.unwrap();
        assert_eq!(ips(&result), ["10.1.0.78"]);
        for ask in [pod, container, Ask::pod("c3", "other")] {
            stage.del(&ask).await.unwrap();
        }
        stage.assert_bare(&["c1", "c2", "c3"]).await;
    });
}

#[test]
fn result_routes_have_the_blocks_prefix_length_as_calicos_plugin_prints_them() {
    // calico-ipam.md section 4.2 item 7
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipFamilies", r#"["IPv4","IPv6"]"#)]));
        let result = stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        let printed: Value = serde_json::from_slice(&result.encode()).unwrap();
        for (ip, route) in result.ips.iter().zip(printed["routes"].as_array().unwrap()) {
            let length = if ip.address.addr().is_ipv4() { 26 } else { 122 };
            assert_eq!(*route, json!({"dst": format!("{}/{length}", ip.address.addr())}));
        }
        assert_eq!(printed["routes"].as_array().unwrap().len(), 2);
        // A requested address has a host prefix.
        stage.pod("other", calico(&[("ipAddrs", r#"["10.1.0.77"]"#)]));
        let result = stage.add(&Ask::pod("c2", "other")).await.unwrap();
        let printed: Value = serde_json::from_slice(&result.encode()).unwrap();
        assert_eq!(printed["routes"], json!([{"dst": "10.1.0.77/32"}]));
    });
}

#[test]
fn oracle_40_addresses_without_ipam_are_used_and_not_reserved() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("ipAddrsNoIpam", r#"["10.0.0.1"]"#)]));
        let ask = Ask::pod("c1", "mypod").with(json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        let result = stage.add(&ask).await.unwrap();
        assert_eq!(ips(&result), ["10.0.0.1"]);
        assert_eq!(stage.endpoint().ip_networks, ["10.0.0.1/32".parse().unwrap()]);
        assert!(stage.held("net1", "c1").await.is_empty());
        stage.del(&ask).await.unwrap();
        stage.assert_bare(&["c1"]).await;
    });
}

#[test]
fn oracle_41_addresses_without_ipam_need_the_feature_and_one_of_a_family() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let on = json!({"feature_control": {"ip_addrs_no_ipam": true}});
        let other = json!({"ipam": {"type": "host-local"}, "feature_control": {"ip_addrs_no_ipam": true}});
        for (wish, config) in [
            (calico(&[("ipAddrsNoIpam", r#"["10.0.0.1"]"#)]), json!({})),
            (calico(&[("ipAddrsNoIpam", r#"["10.0.0.1","10.0.0.2"]"#)]), on.clone()),
            (calico(&[("ipAddrsNoIpam", "[]")]), on.clone()),
            (calico(&[("ipAddrsNoIpam", r#"["10.0.0.1"]"#)]), other.clone()),
            (calico(&[("ipAddrsNoIpam", r#"["10.0.0.1"]"#), ("ipAddrs", r#"["10.1.0.1"]"#)]), on),
            (calico(&[("ipAddrs", r#"["10.1.0.1"]"#)]), other),
            (calico(&[("ipAddrs", "[]")]), json!({})),
            (calico(&[("ipAddrs", r#"["10.1.0.1","10.1.0.2"]"#)]), json!({})),
            (calico(&[("ipAddrs", r#"["10.1.0.1","fd00:1::1","fd00:1::2"]"#)]), json!({})),
        ] {
            stage.pod("mypod", wish.clone());
            let error = stage.add(&Ask::pod("c1", "mypod").with(config)).await.unwrap_err();
            assert!(error.msg.contains("ipAddrs"), "{wish}: {error}");
            stage.assert_bare(&["c1"]).await;
        }
    });
}

#[test]
fn oracle_42_a_floating_address_becomes_a_nat() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("floatingIPs", r#"["1.1.1.1"]"#)]));
        let ask = Ask::pod("c1", "mypod").with(json!({"feature_control": {"floating_ips": true}}));
        let result = stage.add(&ask).await.unwrap();
        let spec = stage.endpoints().into_values().next().unwrap().to_value()["spec"].clone();
        assert_eq!(spec["ipNATs"], json!([{"internalIP": ips(&result)[0], "externalIP": "1.1.1.1"}]));
    });
}

#[test]
fn oracle_43_floating_addresses_that_cannot_be_leave_nothing() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("floatingIPs", r#"["1.1.1.1"]"#)]));
        assert!(stage.add(&Ask::pod("c1", "mypod")).await.unwrap_err().details.contains("floating_ips"));
        stage.assert_bare(&["c1"]).await;
        stage.pod("mypod", calico(&[("floatingIPs", r#"["2001:db8::1"]"#)]));
        let ask = Ask::pod("c1", "mypod").with(json!({"feature_control": {"floating_ips": true}}));
        assert!(stage.add(&ask).await.unwrap_err().details.contains("no IPv6 address"));
        stage.assert_bare(&["c1"]).await;
    });
}

#[test]
fn oracle_46_a_mac_of_an_annotation_is_the_pods() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", calico(&[("hwAddr", "ca:fe:ca:fe:ca:fe")]));
        let result = stage.add(&Ask::pod("c1", "mypod")).await.unwrap();
        assert_eq!(result.interfaces[1].mac, "ca:fe:ca:fe:ca:fe");
        assert_eq!(stage.endpoint().mac.unwrap().to_string(), "ca:fe:ca:fe:ca:fe");
        stage.pod("mypod", calico(&[("hwAddr", "garbage")]));
        assert!(stage.add(&Ask::pod("c2", "mypod")).await.is_err());
    });
}

#[test]
fn oracle_47_del_of_an_old_container_keeps_the_newer_ones_endpoint() {
    run(async {
        for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
            let stage = Stage::new(sim).await;
            stage.pod("mypod", json!({}));
            stage.add(&Ask::pod("x", "mypod")).await.unwrap();
            let newer = stage.add(&Ask::pod("y", "mypod")).await.unwrap();
            stage.del(&Ask::pod("x", "mypod")).await.unwrap();
            let spec = stage.endpoint();
            assert_eq!((spec.container_id.as_str(), spec.ip_networks[0]), ("y", newer.ips[0].address));
            assert!(stage.held("net1", "x").await.is_empty());
            assert_eq!(stage.held("net1", "y").await.len(), 1);
        }
    });
}

#[test]
fn oracle_48_a_new_container_of_a_pod_gets_a_fresh_address_and_mac() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let x = stage.add(&Ask::pod("x", "mypod")).await.unwrap();
        let before = stage.endpoints();
        let y = stage.add(&Ask::pod("y", "mypod")).await.unwrap();
        assert_ne!(ips(&x), ips(&y));
        assert_ne!(x.interfaces[1].mac, y.interfaces[1].mac);
        assert_eq!(x.interfaces[0].name, y.interfaces[0].name, "calico-cni.md oracle 27");
        assert!(stage.held("net1", "x").await.len() == 1 && stage.held("net1", "y").await.len() == 1);
        let uid = |endpoints: &BTreeMap<String, WorkloadEndpoint>| {
            endpoints.values().next().unwrap().metadata.uid.clone()
        };
        assert_eq!(uid(&before), uid(&stage.endpoints()), "the endpoint is the same one");
    });
}

#[test]
fn the_same_container_of_a_pod_again_keeps_its_address() {
    run(async {
        for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
            let stage = Stage::new(sim).await;
            stage.pod("mypod", json!({}));
            let first = stage.add(&Ask::pod("x", "mypod")).await.unwrap();
            let second = stage.add(&Ask::pod("x", "mypod")).await.unwrap();
            assert_eq!(ips(&first), ips(&second));
            assert_eq!(stage.held("net1", "x").await.len(), 1);
        }
    });
}

#[test]
fn oracle_49_a_second_add_that_fails_leaves_the_first_ones_address() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let first = stage.add(&Ask::pod("x", "mypod")).await.unwrap();
        stage.wire.refuse.set(true);
        for container in ["x", "y"] {
            assert!(stage.add(&Ask::pod(container, "mypod")).await.is_err());
            assert_eq!(stage.held("net1", "x").await.len(), 1, "calico-cni.md oracle 21, too");
            assert!(stage.held("net1", "y").await.is_empty());
            assert_eq!(stage.endpoint().ip_networks, [first.ips[0].address]);
        }
    });
}

#[test]
fn oracle_50_a_second_interface_leaves_one_endpoint_of_the_first_ones_name() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        stage.add(&Ask::pod("x", "mypod")).await.unwrap();
        stage.add(&Ask { ifname: "eth1".into(), ..Ask::pod("x", "mypod") }).await.unwrap();
        let endpoints = stage.endpoints();
        assert_eq!(endpoints.keys().collect::<Vec<_>>(), ["test/n1-k8s-mypod-eth0"]);
        assert_eq!(stage.endpoint().endpoint, "eth0");
        // The endpoint describes the second interface, so it is removed with that one's addresses.
        let described = stage.endpoint().ip_networks[0].addr();
        stage.del(&Ask { ifname: "eth1".into(), ..Ask::pod("x", "mypod") }).await.unwrap();
        assert!(stage.endpoints().is_empty() && !stage.held("net1", "x").await.contains(&described));
        stage.del(&Ask::pod("x", "mypod")).await.unwrap();
        stage.assert_bare(&["x"]).await;
    });
}

#[test]
fn oracle_51_pods_with_similar_names_have_endpoints_of_their_own() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        for (container, pod) in [("b", "mypod-1"), ("a", "mypod")] {
            stage.pod(pod, json!({}));
            stage.add(&Ask::pod(container, pod)).await.unwrap();
        }
        assert_eq!(stage.endpoints().len(), 2);
        stage.del(&Ask::pod("a", "mypod")).await.unwrap();
        assert_eq!(stage.endpoint().pod, "mypod-1");
    });
}

#[test]
fn several_endpoints_of_a_pod_are_an_error() {
    // calico-cni.md section 2.1
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        for ifname in ["eth0", "eth1"] {
            let spec = json!({"node": "n1", "orchestrator": "k8s", "pod": "mypod", "endpoint": ifname});
            let name = format!("n1-k8s-mypod-{ifname}");
            let endpoint = json!({"kind": "WorkloadEndpoint", "metadata": {"name": name}, "spec": spec});
            stage.put(Key::workload_endpoint("test", &name).unwrap(), endpoint.to_string()).await;
        }
        let error = stage.add(&Ask::pod("x", "mypod")).await.unwrap_err();
        assert!(error.details.contains("n1-k8s-mypod-eth1"), "{error}");
    });
}

#[test]
fn oracle_52_the_beginning_of_a_generated_name_is_stored_with_the_endpoint() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        for (pod, beginning) in [("web-x7k2p", Some("web-")), ("db", None)] {
            stage.pod(pod, json!({}));
            let key = ("test".to_owned(), pod.to_owned());
            beginning
                .unwrap_or_default()
                .clone_into(&mut stage.api.pods.borrow_mut().get_mut(&key).unwrap().metadata.generate_name);
            stage.add(&Ask::pod(&format!("of-{pod}"), pod)).await.unwrap();
            let stored = stage.endpoints().into_values().find(|endpoint| endpoint.spec.pod == pod);
            assert_eq!(stored.unwrap().metadata.generate_name.as_deref(), beginning, "{pod}");
        }
    });
}

#[test]
fn oracle_53_a_readiness_gate_without_an_answer_fails_the_add() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.pod("mypod", json!({}));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readiness", listener.local_addr().unwrap());
        drop(listener);
        let ask = Ask::pod("x", "mypod").with(json!({"readiness_gates": [url]}));
        let error = stage.add(&ask).await.unwrap_err();
        assert!(error.msg.contains(&url), "{error}");
        stage.assert_bare(&["x"]).await;
        let ask = Ask::pod("x", "mypod").with(json!({"readiness_gates": ["https://a/"]}));
        assert!(stage.add(&ask).await.unwrap_err().details.contains("http://"));
        let ask = Ask::pod("x", "mypod").with(json!({"readiness_gates": "http://a/"}));
        assert!(stage.add(&ask).await.is_err());
    });
}

#[test]
fn oracle_53_the_add_succeeds_once_the_readiness_gate_is_open() {
    // calico-cni.md section 5.1. Runs on the real clock, because a real server answers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readiness", listener.local_addr().unwrap());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 24];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"GET /readiness HTTP/1.1\r");
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        };
        let urls = [url];
        let (opened, ()) = tokio::join!(ready::gates(&urls), serve);
        opened.unwrap();
    });
}

#[test]
fn a_pod_on_a_warm_node_costs_three_requests() {
    // Find the endpoint, allocate the address, write the endpoint; the checks of the datastore are
    // cached.
    run(async {
        let mut stage = Stage::new(Sim::atomic(1)).await;
        let allocator = Allocator::new(Rc::new(stage.sim.clone()), Rc::new(SystemClock));
        let allocator = Rc::new(allocator.with_cache(std::time::Duration::from_secs(60)));
        stage.datastore = Datastore::with_allocator(Rc::new(stage.sim.clone()), allocator);
        for pod in ["first", "second"] {
            stage.pod(pod, json!({}));
        }
        stage.add(&Ask::pod("one", "first")).await.unwrap();
        let before = stage.sim.operations();
        stage.add(&Ask::pod("two", "second")).await.unwrap();
        assert_eq!(stage.sim.operations() - before, 3);
    });
}
