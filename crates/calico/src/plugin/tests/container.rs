//! Containers without a Kubernetes pod (calico-cni.md sections 2.3 and 5.1).

use russet_cni_spec::Version;

use super::*;

#[test]
fn a_container_on_a_node_without_a_record_leaves_nothing() {
    // calico-ipam.md section 3.4 step 3
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let key = Key::node(&"n1".parse().unwrap());
        stage.sim.commit(vec![Step::delete(key, None)]).await.unwrap();
        let error = stage.add(&Ask::container("c1")).await.unwrap_err();
        assert!(error.code == 7 && error.msg.contains("node n1 is not registered"), "{error}");
        stage.assert_bare(&["c1"]).await;
        let written = stage.sim.records().into_keys().filter(|key| key.as_str().starts_with("/calico/ipam/"));
        assert_eq!(written.count(), 0, "no block serves the node");
    });
}

#[test]
fn oracle_01_a_container_gets_one_complete_endpoint() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let result = stage.add(&Ask::container("abc123")).await.unwrap();
        let endpoints = stage.endpoints();
        let (name, endpoint) = endpoints.first_key_value().unwrap();
        assert_eq!((endpoints.len(), name.as_str()), (1, "default/n1-cni-abc123-eth0"));
        let net = result.ips[0].address.to_string();
        assert!(result.ips.len() == 1 && net.ends_with("/32"), "{net}");
        let mac = &result.interfaces[1].mac;
        let spec = json!({"orchestrator": "cni", "node": "n1", "containerID": "abc123", "endpoint": "eth0",
            "ipNetworks": [net], "profiles": ["net1"], "interfaceName": "caliabc123", "mac": mac});
        let value = endpoint.to_value();
        assert_eq!(value["spec"], spec);
        assert_eq!(
            value["metadata"]["labels"],
            json!({"projectcalico.org/namespace": "default",
            "projectcalico.org/orchestrator": "cni"})
        );
        assert_eq!(value["metadata"]["namespace"], "default");
        assert!(endpoint.metadata.uid.is_some() && endpoint.metadata.creation_timestamp.is_some());
    });
}

#[test]
fn oracle_02_the_profile_allows_ingress_from_its_network_and_all_egress() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.add(&Ask::container("abc123")).await.unwrap();
        let record = &stage.sim.records()[&Key::profile("net1").unwrap()];
        let profile: Value = serde_json::from_slice(&record.value).unwrap();
        let spec = json!({
            "ingress": [{"action": "Allow", "source": {"selector": "has(net1)"}, "destination": {}}],
            "egress": [{"action": "Allow", "source": {}, "destination": {}}],
            "labelsToApply": {"net1": ""},
        });
        assert_eq!(profile["spec"], spec);
        // calico-cni.md section 2.3: an existing profile is not changed.
        stage.put(Key::profile("net1").unwrap(), "the operator's".to_owned()).await;
        stage.add(&Ask::container("def456")).await.unwrap();
        assert_eq!(stage.sim.records()[&Key::profile("net1").unwrap()].value, b"the operator's");
    });
}

#[test]
fn oracle_05_del_removes_the_endpoint_and_releases_the_address() {
    run(async {
        for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
            let stage = Stage::new(sim).await;
            let ask = Ask::container("abc123");
            stage.add(&ask).await.unwrap();
            assert_eq!(stage.held("net1", "abc123").await.len(), 1);
            stage.del(&ask).await.unwrap();
            stage.assert_bare(&["abc123"]).await;
            stage.del(&ask).await.unwrap();
        }
    });
}

#[test]
fn oracle_07_a_locked_datastore_refuses_add_and_del() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        for spec in [json!({"datastoreReady": false}), json!({})] {
            stage.set_ready(spec).await;
            assert!(stage.add(&Ask::container("abc123")).await.is_err());
            assert!(stage.del(&Ask::container("abc123")).await.is_err());
        }
        stage.assert_bare(&["abc123"]).await;
    });
}

#[test]
fn oracle_08_a_datastore_without_cluster_information_refuses_add_and_del() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.sim.commit(vec![Step::delete(Key::cluster_information(), None)]).await.unwrap();
        let error = stage.add(&Ask::container("abc123")).await.unwrap_err();
        assert!(error.msg.contains("clusterinformations/default"), "{error}");
        assert!(stage.del(&Ask::container("abc123")).await.is_err());
    });
}

#[test]
fn oracle_10_an_unknown_dataplane_is_refused_before_any_allocation() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        for options in [json!({"type": "steam"}), json!({"type": "grpc"}), json!({"type": 7})] {
            let ask = Ask::container("abc123").with(json!({"dataplane_options": options}));
            let error = stage.add(&ask).await.unwrap_err();
            assert!(error.msg.contains("dataplane_options"), "{error}");
        }
        let ask = Ask::container("abc123").with(json!({"device_type": "steam"}));
        assert!(stage.add(&ask).await.unwrap_err().msg.contains("device_type"));
        stage.assert_bare(&["abc123"]).await;
    });
}

#[test]
fn oracle_13_labels_of_a_mesos_task_are_the_endpoints() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let labels = json!([{"key": "k", "value": "v"}, {"key": "DCOS_SPACE", "value": "/a/b/c"},
            {"key": "projectcalico.org/namespace", "value": "tasks"}]);
        let args = json!({"org.apache.mesos": {"network_info": {"labels": {"labels": labels}}}});
        let ask = Ask::container("abc123").with(json!({"args": args}));
        stage.add(&ask).await.unwrap();
        let endpoints = stage.endpoints();
        let (name, endpoint) = endpoints.first_key_value().unwrap();
        assert_eq!(name, "tasks/n1-cni-abc123-eth0");
        let labels = &endpoint.metadata.labels;
        assert_eq!((labels["k"].as_str(), labels["DCOS_SPACE"].as_str()), ("v", "a.b.c"));
        assert_eq!(labels["projectcalico.org/namespace"], "tasks");
        stage.del(&ask).await.unwrap();
        stage.assert_bare(&["abc123"]).await;
    });
}

#[test]
fn oracle_16_addresses_without_ipam_are_for_pods_only() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let ask = Ask::container("abc123").with(json!({"feature_control": {"ip_addrs_no_ipam": true}}));
        let error = stage.add(&ask).await.unwrap_err();
        assert!(error.msg.contains("not supported for this runtime"), "{error}");
        stage.assert_bare(&["abc123"]).await;
    });
}

#[test]
fn oracle_17_del_of_a_container_that_was_never_added_succeeds() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        stage.del(&Ask::container("abc123")).await.unwrap();
        stage.del(&Ask::pod("abc123", "web")).await.unwrap();
    });
}

#[test]
fn oracle_19_the_same_container_again_gets_the_same_result() {
    run(async {
        for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
            let stage = Stage::new(sim).await;
            let ask = Ask::container("abc123");
            let first = stage.add(&ask).await.unwrap();
            let mut second = stage.add(&ask).await.unwrap();
            assert_eq!(stage.wire.attached.get(), 1, "the interface is not touched");
            second.routes.clone_from(&first.routes);
            assert_eq!(first, second);
            stage.endpoint();
            assert_eq!(stage.held("net1", "abc123").await.len(), 1);
        }
    });
}

#[test]
fn oracle_20_a_second_network_adds_its_profile_to_the_endpoint() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let first = stage.add(&Ask::container("abc123")).await.unwrap();
        let other = Ask { network: "net2".into(), ..Ask::container("abc123") };
        for _ in 0..2 {
            let second = stage.add(&other).await.unwrap();
            assert_eq!(first.ips, second.ips);
            assert_eq!(stage.endpoint().profiles, ["net1", "net2"]);
        }
        let records = stage.sim.records();
        assert!(["net1", "net2"].iter().all(|name| records.contains_key(&Key::profile(name).unwrap())));
    });
}

#[test]
fn oracle_24_the_result_names_the_nodes_end_first_and_the_pods_second() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let result = stage.add(&Ask::container("abc123")).await.unwrap();
        let [host, pod] = &result.interfaces[..] else { panic!("{result:?}") };
        assert_eq!((host.name.as_str(), host.mac.as_str(), host.sandbox.as_str()), ("caliabc123", "", ""));
        assert_eq!((pod.name.as_str(), pod.sandbox.as_str()), ("eth0", "/run/netns/none"));
        assert!(!pod.mac.is_empty());
        // calico-cni.md section 1.10: the result contains no gateway.
        assert!(result.ips.iter().all(|ip| ip.interface == Some(1) && ip.gateway.is_none()));
    });
}

#[test]
fn oracle_54_an_old_version_gets_addresses_only() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        for (version, container) in [("0.2.0", "one"), ("0.1.0", "two")] {
            let ask = Ask::container(container).with(json!({"cniVersion": version}));
            let result = stage.add(&ask).await.unwrap();
            assert_eq!(result.cni_version, version.parse::<Version>().unwrap());
            let value = result.to_value();
            assert!(value["ip4"]["ip"].as_str().unwrap().ends_with("/32"), "{value}");
            assert!(value.get("interfaces").is_none() && value["ip4"].get("gateway").is_none(), "{value}");
        }
    });
}

#[test]
fn a_missing_or_unknown_ipam_plugin_is_an_error_and_leaves_nothing() {
    // calico-cni.md section 2.3, step 3
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let error = stage.add(&Ask::container("abc123").with(json!({"ipam": {}}))).await.unwrap_err();
        assert!(error.msg.contains("ipam.type"), "{error}");
        let error = stage.add(&Ask::container("abc123").with(json!({"ipam": {"type": "nope"}}))).await;
        assert!(error.unwrap_err().msg.contains("failed to find plugin \"nope\""));
        stage.assert_bare(&["abc123"]).await;
    });
}

#[test]
fn an_endpoint_without_an_address_fails_the_add() {
    run(async {
        let stage = Stage::new(Sim::atomic(1)).await;
        let key = Key::workload_endpoint("default", "n1-cni-abc123-eth0").unwrap();
        let spec = json!({"node": "n1", "orchestrator": "cni", "containerID": "abc123", "endpoint": "eth0"});
        let endpoint =
            json!({"kind": "WorkloadEndpoint", "metadata": {"name": "n1-cni-abc123-eth0"}, "spec": spec});
        stage.put(key.clone(), endpoint.to_string()).await;
        let error = stage.add(&Ask::container("abc123")).await.unwrap_err();
        assert!(error.details.contains(key.as_str()), "{error}");
    });
}

#[test]
fn oracle_29_the_mtu_is_the_configurations_or_the_files_or_the_default() {
    let root = tempfile::tempdir().unwrap();
    let mtu = |members: Value| {
        let (_, _, conf) = Ask::container("c").with(members).parts("ADD");
        ready::mtu_bytes(&conf.unwrap(), root.path())
    };
    assert_eq!(mtu(json!({"mtu": 0})).unwrap(), 1500);
    assert!(mtu(json!({"mtu": 0, "require_mtu_file": true})).is_err());
    let file = root.path().join("var/lib/calico/mtu");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "3000\n").unwrap();
    assert_eq!(mtu(json!({"mtu": 0, "require_mtu_file": true})).unwrap(), 3000);
    assert_eq!(mtu(json!({"mtu": 4000})).unwrap(), 4000);
    std::fs::write(&file, "garbage").unwrap();
    assert!(mtu(json!({"mtu": 0})).unwrap_err().msg.contains("garbage"));
}

#[test]
fn del_works_with_a_newline_in_the_nodename_file() {
    // calico-cni.md section 1.6: an ADD needs the node's record to decide which name is meant; a
    // DEL must work after the record is gone.
    run(async {
        let mut stage = Stage::new(Sim::atomic(1)).await;
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("var/lib/calico/nodename");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "n2\n").unwrap();
        stage.node.host.root = root.path().to_owned();
        let node = async |verb: &str| {
            let (request, target, conf) = Ask::container("c1").parts(verb);
            let mut conf = conf.unwrap();
            conf.nodename = None;
            let context = RequestContext::open(&stage.node, &request, &conf, &target, &stage.log).await;
            context.map(|context| context.workload.node.to_string()).map_err(|error| error.code)
        };
        assert_eq!(node("ADD").await, Err(russet_cni_spec::code::INVALID_CONFIG));
        assert_eq!(node("DEL").await, Ok("n2".to_owned()));
    });
}
