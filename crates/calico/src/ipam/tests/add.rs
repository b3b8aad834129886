//! ADD: allocated addresses, written records, log lines.

use super::*;

#[test]
fn chosen_addresses_have_the_blocks_prefix_and_a_route_to_themselves() {
    // calico-ipam.md section 4.2 item 7
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let ask = Ask { ipam: json!({"assign_ipv6": "true"}), ..ASK() };
        let result = bench.done("ADD", &ask).await.unwrap();
        let value: Value = serde_json::from_slice(&result.encode()).unwrap();
        let (v4, v6) =
            (value["ips"][0]["address"].as_str().unwrap(), value["ips"][1]["address"].as_str().unwrap());
        assert!(v4.starts_with("10.1.0.") && v4.ends_with("/26"), "{v4}");
        assert!(v6.starts_with("fd00:1::") && v6.ends_with("/122"), "{v6}");
        let host = |net: &str, length: &str| format!("{}/{length}", net.split('/').next().unwrap());
        assert_eq!(value["routes"], json!([{"dst": host(v4, "32")}, {"dst": host(v6, "128")}]));
        assert!(value.get("interfaces").is_none() && value["ips"][0].get("gateway").is_none(), "{value}");
    });
}

#[test]
fn records_are_what_peers_write() {
    // calico-ipam.md sections 1.4, 1.6 and 9
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let net = bench.add(&Ask { args: POD, ..ASK() }).await.remove(0);
        let net: russet_addr::IpNet = net.parse().unwrap();
        let handle = bench.record("/calico/ipam/v2/handle/net.abc");
        assert_eq!(handle, format!(r#"{{"block":{{"{}":1}},"deleted":false}}"#, net.trunc()));
        let block =
            format!("/calico/ipam/v2/assignment/ipv4/block/{}", net.trunc().to_string().replace('/', "-"));
        let block: Value = serde_json::from_str(&bench.record(&block)).unwrap();
        let attribute = &block["attributes"][0];
        assert_eq!(attribute["handle_id"], "net.abc");
        let secondary = attribute["secondary"].as_object().unwrap();
        let text = |name: &str| secondary[name].as_str().unwrap();
        assert_eq!(
            secondary.keys().collect::<Vec<_>>(),
            ["interface", "namespace", "node", "pod", "timestamp"]
        );
        assert_eq!(
            [text("interface"), text("namespace"), text("node"), text("pod")],
            ["eth0", "default", "node-a", "web-0"]
        );
        assert!(text("timestamp").ends_with(" +0000 UTC"), "{}", text("timestamp"));
        assert_eq!(block["affinity"], "host:node-a");
    });
}

#[test]
fn no_family_at_all_is_code_7_and_nothing_is_written() {
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let error = bench.refused("ADD", &Ask { ipam: json!({"assign_ipv4": "false"}), ..ASK() }).await;
        assert_eq!(error.code, 7, "{error}");
        assert_eq!(bench.written(), Vec::<String>::new());
    });
}

#[test]
fn exhaustion_is_reported_in_the_words_of_go_plugins() {
    // calico-ipam.md section 4.2
    on_both(async |sim| {
        let bench = bench(sim, &[("tiny", "10.2.0.0/26")]).await;
        let node_b = json!({"nodename": "node-b"});
        bench.add(&Ask { more: node_b, ..ASK() }).await;
        bench.put(Key::ipam_config(), &json!({"strict_affinity": true, "auto_allocate_blocks": true})).await;
        let error = bench.refused("ADD", &Ask { container: "def", ..ASK() }).await;
        assert_eq!(error.code, failure::NO_ADDRESS);
        let words =
            "failed to request IPv4 addresses: No more free affine blocks and strict affinity enabled";
        assert!(error.msg.starts_with(words), "{error}");
        assert_eq!(bench.held("net.def").await, 0);
    });
}

#[test]
fn if_one_family_is_exhausted_the_other_is_released() {
    // calico-ipam.md section 4.2 item 6
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let error = bench.refused("ADD", &Ask { ipam: json!({"assign_ipv6": "true"}), ..ASK() }).await;
        assert_eq!(error.code, failure::NO_ADDRESS, "{error}");
        assert_eq!(bench.held("net.abc").await, 0);
        assert!(!bench.written().iter().any(|key| key.contains("/handle/")), "{:?}", bench.written());
    });
}

#[test]
fn the_error_says_why_a_requested_address_is_unavailable() {
    // calico-ipam.md section 3.7
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        bench.add(&Ask { args: "IP=10.1.0.5", ..ASK() }).await;
        let taken = bench.refused("ADD", &Ask { args: "IP=10.1.0.5", container: "def", ..ASK() }).await;
        assert_eq!(taken.code, failure::NO_ADDRESS);
        assert!(taken.msg.contains("10.1.0.5 is already assigned"), "{taken}");
        let outside = bench.refused("ADD", &Ask { args: "IP=192.0.2.1", ..ASK() }).await;
        assert!(outside.msg.contains("is not in a configured pool"), "{outside}");
        assert_eq!(bench.refused("ADD", &Ask { args: "IP=10.1.0", ..ASK() }).await.code, 4);
        assert_eq!(bench.refused("ADD", &Ask { args: "FOO=1", ..ASK() }).await.code, 4);
    });
}

#[test]
fn stderr_has_the_facts_of_the_request() {
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let ask = Ask { ipam: json!({"assign_ipv6": "true"}), ..ASK() };
        let (result, said) = bench.run("ADD", &ask).await;
        let nets: Vec<String> =
            result.unwrap().unwrap().ips.iter().map(|ip| ip.address.to_string()).collect();
        for fact in [
            "Calico CNI IPAM request count IPv4=1 IPv6=1".to_owned(),
            "Calico CNI IPAM handle=net.abc".to_owned(),
            format!("Calico CNI IPAM assigned addresses IPv4=[{}] IPv6=[{}]", nets[0], nets[1]),
        ] {
            assert!(said.contains(&fact), "{fact}:\n{said}");
        }
        assert!(bench.run("ADD", &ask).await.1.contains("has its addresses already"));
        let one = Ask { args: "IP=10.1.0.9", container: "def", ..ASK() };
        assert!(bench.run("ADD", &one).await.1.contains("Calico CNI IPAM request IP: 10.1.0.9"));
        let quiet = Ask { more: json!({"log_level": "warning"}), ..ask };
        assert_eq!(bench.run("ADD", &quiet).await.1, "");
        let failed = Ask { more: json!({"log_level": "error"}), args: "IP=192.0.2.1", ..ASK() };
        assert!(bench.run("ADD", &failed).await.1.contains("[ERROR]"));
    });
}

#[test]
fn a_failed_main_plugin_releases_only_addresses_of_its_own_request() {
    on_both(async |sim| {
        let bench = Bench::dual(sim).await;
        let first = bench.add(&ASK()).await;
        let conf = |assign_ipv6: &str| {
            let text =
                format!(r#"{{"cniVersion":"1.0.0","name":"net","ipam":{{"assign_ipv6":"{assign_ipv6}"}}}}"#);
            let vars = [
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "abc"),
                ("CNI_NETNS", "/n"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/"),
            ];
            let request = Request::new(vars, text.into_bytes()).unwrap();
            let subject = Subject::from_request(&request, request.env.target().unwrap()).unwrap();
            (CalicoConf::read(&request).unwrap(), subject)
        };
        for family in ["false", "true"] {
            let (conf, subject) = conf(family);
            let wanted = Wanted::from_conf(&conf, None).unwrap();
            let request =
                IpamRequest { node: "node-a".parse().unwrap(), subject, wanted, budget: assign::BUDGET };
            let log = RequestLog::new(NAME);
            let given = assign(&bench.host, &bench.datastore, &conf, &request, &log).await.unwrap();
            assert_eq!(given.existing, family == "false");
            assert_eq!(given.hosts().count(), if given.existing { 1 } else { 2 });
            give_back(&bench.datastore, &given).await.unwrap();
            assert_eq!(bench.held("net.abc").await, 1);
        }
        assert_eq!(bench.add(&ASK()).await, first);
    });
}

#[test]
fn a_pool_for_certain_namespaces_serves_these_only() {
    // calico-ipam.md section 3.4 step 4; the labels are in the namespace's profile (calico-cni.md
    // section 2.7).
    on_both(async |sim| {
        let bench = bench(sim, &[]).await;
        let mut spec = IpPoolSpec::new("10.7.0.0/24".parse().unwrap());
        spec.namespace_selector = Some("team == 'red'".into());
        bench.datastore.allocator.create_pool(IpPool::new("red", spec)).await.unwrap();
        let pod = Ask { args: POD, ..ASK() };
        let (refused, said) = bench.run("ADD", &pod).await;
        assert_eq!(refused.unwrap_err().code, failure::NO_ADDRESS);
        assert!(said.contains("no profile kns.default"), "{said}");
        let profile = json!({"kind": "Profile", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "kns.default"},
            "spec": {"labelsToApply": {"pcns.team": "red", "pcns.projectcalico.org/name": "default"}}});
        let key = Key::resource(russet_model::ResourceKind::Profile, None, "kns.default").unwrap();
        bench.put(key, &profile).await;
        assert!(bench.add(&pod).await[0].starts_with("10.7.0."));
    });
}

#[test]
fn a_node_without_a_record_is_refused_and_nothing_is_written() {
    // calico-ipam.md section 3.4 step 3
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let ghost = Ask { more: json!({"nodename": "ghost"}), ..ASK() };
        for ask in [ghost.clone(), Ask { args: "IP=10.1.0.5", ..ghost.clone() }] {
            let error = bench.refused("ADD", &ask).await;
            assert_eq!(error.code, 7, "{error}");
            assert!(error.msg.contains("node ghost is not registered"), "{error}");
            for remedy in ["calicoctl get nodes", "/var/lib/calico/nodename"] {
                assert!(error.details.contains(remedy), "{error}");
            }
            assert_eq!(bench.written(), Vec::<String>::new());
        }
        let status = bench.refused("STATUS", &Ask { version: "1.1.0", ..ghost.clone() }).await;
        assert!(status.code == 50 && status.to_string().contains("node ghost"), "{status}");
        // A DEL needs no node record.
        bench.done("DEL", &ghost).await;
        bench.done("STATUS", &Ask { version: "1.1.0", ..ASK() }).await;
    });
}

#[test]
fn an_invalid_node_name_is_refused_before_any_allocation() {
    // calico-ipam.md section 4.2 item 1
    on_both(async |sim| {
        let bench = Bench::v4(sim).await;
        let error = bench.refused("ADD", &Ask { more: json!({"nodename": "node-"}), ..ASK() }).await;
        assert_eq!(error.code, 4, "{error}");
        assert_eq!(bench.written(), Vec::<String>::new());
    });
}
