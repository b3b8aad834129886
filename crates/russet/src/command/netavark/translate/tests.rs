use russet_cni_spec::Version;

use super::*;

/// A request as podman 5 makes it, with these members changed.
fn request(network: Value, options: Value, more: Value) -> PluginExec {
    let mut document = json!({
        "container_id": "752947ff91f9", "container_name": "web", "created": "2026-01-02T03:04:05Z",
        "network": { "name": "blue", "id": "2f259bab", "driver": "russet", "internal": false, "ipv6_enabled": false,
            "dns_enabled": true, "options": null, "ipam_options": { "driver": "russet" }, "subnets": null },
        "network_options": { "interface_name": "eth0", "aliases": ["752947ff91f9"], "static_ips": null },
    });
    merge(&mut document["network"], network);
    merge(&mut document["network_options"], options);
    merge(&mut document, more);
    serde_json::from_value(document).unwrap()
}

fn merge(into: &mut Value, more: Value) {
    into.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
}

fn refused(network: Value) -> String {
    check(&request(network, json!({}), json!({})).network).unwrap_err().to_string()
}

fn added(request: &PluginExec) -> Translated {
    setup(request, Path::new("/run/netns/c1"), Path::new("/"), true).unwrap()
}

#[test]
fn a_setup_is_an_add_of_the_plugin_russet() {
    let add = added(&request(json!({}), json!({}), json!({})));
    assert_eq!((add.list.name.as_str(), add.list.plugins.len()), ("netavark-blue", 1));
    let plugin = json!({ "type": "russet", "capabilities": { "ips": true, "mac": true } });
    assert_eq!(Value::Object(add.list.plugins[0].object.clone()), plugin);
    assert_eq!(
        (add.attachment.container_id.as_str(), add.attachment.ifname.as_str()),
        ("752947ff91f9", "eth0")
    );
    assert_eq!(add.attachment.netns, Path::new("/run/netns/c1"));
    assert!(add.attachment.capability_args.is_empty());
}

#[test]
fn addresses_mac_pools_and_mtu_reach_the_plugin() {
    let options = json!({ "static_ips": ["10.244.0.9", "fd00::9"], "static_mac": "02:11:22:33:44:55" });
    let subnets = json!([{ "subnet": "10.244.0.0/16", "gateway": "10.244.0.1" }, { "subnet": "fd00::/64", "lease_range": null }]);
    let network = json!({ "subnets": subnets, "options": { "mtu": "1400" }, "ipam_options": { "driver": "host-local" } });
    let add = added(&request(network, options, json!({})));
    let plugin = &add.list.plugins[0].object;
    assert_eq!(
        (&plugin["ipv4_pools"], &plugin["ipv6_pools"]),
        (&json!(["10.244.0.0/16"]), &json!(["fd00::/64"]))
    );
    assert_eq!(plugin["mtu"], 1400);
    let values = Value::Object(add.attachment.capability_args);
    assert_eq!(values, json!({ "ips": ["10.244.0.9", "fd00::9"], "mac": "02:11:22:33:44:55" }));
}

#[test]
fn another_root_names_its_agent() {
    let request = request(json!({}), json!({}), json!({}));
    let add = setup(&request, Path::new("/n"), Path::new("/srv/a"), true).unwrap();
    let plugin = &add.list.plugins[0].object;
    assert_eq!(
        (&plugin["root"], &plugin["agent_socket"]),
        (&json!("/srv/a"), &json!("/srv/a/run/russet/cni.sock"))
    );
}

#[test]
fn ranges_and_protocols_are_mappings_of_portmap() {
    let ports = json!([
        { "host_ip": "127.0.0.1", "host_port": 8080, "container_port": 80, "protocol": "tcp,UDP", "range": 2 },
        { "host_ip": "", "host_port": 53, "container_port": 53, "protocol": "", "range": 0 },
    ]);
    let request = request(json!({}), json!({}), json!({ "port_mappings": ports }));
    let add = added(&request);
    assert_eq!(add.list.plugins[1].kind, "portmap");
    let shown: Vec<String> = add.attachment.capability_args["portMappings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            format!(
                "{}:{}:{}/{}",
                it["hostIP"].as_str().unwrap_or("-"),
                it["hostPort"],
                it["containerPort"],
                it["protocol"]
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "127.0.0.1:8080:80/\"tcp\"",
            "127.0.0.1:8080:80/\"udp\"",
            "127.0.0.1:8081:81/\"tcp\"",
            "127.0.0.1:8081:81/\"udp\"",
            "-:53:53/\"tcp\""
        ]
    );
    let without = setup(&request, Path::new("/n"), Path::new("/"), false).unwrap();
    assert_eq!((without.list.plugins.len(), without.attachment.capability_args.len()), (1, 0));
}

#[test]
fn impossible_ports_are_refused() {
    let refused = |mapping: Value| {
        let mut one = json!({ "host_port": 8080, "container_port": 80, "protocol": "tcp", "range": 1 });
        merge(&mut one, mapping);
        let request = request(json!({}), json!({}), json!({ "port_mappings": [one] }));
        setup(&request, Path::new("/n"), Path::new("/"), true).unwrap_err().to_string()
    };
    assert!(refused(json!({ "protocol": "icmp" })).contains("tcp, udp or sctp"));
    assert!(refused(json!({ "host_ip": "localhost" })).contains("host_ip"));
    assert!(refused(json!({ "host_port": 65535, "range": 2 })).contains("65535"));
    assert!(refused(json!({ "host_port": 1, "container_port": 1, "range": 65535 })).contains("4096"));
}

#[test]
fn what_russets_networks_do_not_have_is_refused_by_name() {
    for (member, value, named) in [
        ("options", json!({ "vlan": "7" }), "\"vlan\" is unknown; known: mtu"),
        ("options", json!({ "mtu": "9" }), "mtu=\"9\""),
        ("internal", json!(true), "internal"),
        ("network_interface", json!("br0"), "\"br0\""),
        ("routes", json!([{ "destination": "10.0.0.0/8", "gateway": "10.1.0.1" }]), "routes"),
        ("ipam_options", json!({ "driver": "dhcp" }), "\"dhcp\""),
        ("subnets", json!([{ "subnet": "10.1.0.9/24" }]), "did you mean 10.1.0.0/24"),
        (
            "subnets",
            json!([{ "subnet": "10.1.0.0/24", "lease_range": { "start_ip": "10.1.0.9" } }]),
            "--ip-range",
        ),
        ("name", json!("a/b"), "network name"),
        ("name", json!("a".repeat(195)), "network name"),
    ] {
        let said = refused(json!({ member: value }));
        assert!(said.contains(named), "{member}: {said}");
    }
    let request = request(json!({}), json!({ "options": { "host_interface_name": "v0" } }), json!({}));
    let said = setup(&request, Path::new("/n"), Path::new("/"), true).unwrap_err().to_string();
    assert!(said.contains("\"host_interface_name\""), "{said}");
    // An empty value is what podman writes for none.
    assert_eq!(
        check(
            &self::request(
                json!({ "network_interface": "", "options": {}, "routes": [] }),
                json!({}),
                json!({})
            )
            .network
        )
        .unwrap(),
        None
    );
}

#[test]
fn a_teardown_refuses_nothing_that_only_a_setup_must_not_have() {
    let network = json!({ "internal": true, "options": { "vlan": "7" } });
    let options = json!({ "options": { "x": "y" } });
    let request =
        request(network, options, json!({ "port_mappings": [{ "host_port": 1, "container_port": 1 }] }));
    let del = teardown(&request, Path::new(""), Path::new("/")).unwrap();
    assert_eq!(del.list.plugins.iter().map(|it| it.kind.as_str()).collect::<Vec<_>>(), ["russet", "portmap"]);
}

#[test]
fn a_missing_member_is_named() {
    let decode = |text| serde_json::from_str::<PluginExec>(text).unwrap_err().to_string();
    assert!(decode("{}").contains("`container_id`"));
    assert!(
        decode(r#"{"container_id":"c","network":{"name":"n"},"network_options":{}}"#)
            .contains("`interface_name`")
    );
}

#[test]
fn a_created_network_keeps_every_member_and_gets_russets_ipam() {
    let document = json!({ "name": "blue", "labels": { "a": "b" }, "ipam_options": { "driver": "host-local", "x": "y" } });
    let Value::Object(document) = document else { panic!() };
    let made = created(document);
    assert_eq!(
        made,
        json!({ "name": "blue", "labels": { "a": "b" }, "ipam_options": { "driver": "russet", "x": "y" } })
    );
    assert_eq!(created(Map::new()), json!({ "ipam_options": { "driver": "russet" } }));
    let new = json!({ "subnets": [{ "subnet": "10.1.0.0/24", "gateway": "10.1.0.1" }] });
    let new = request(new, json!({}), json!({})).network;
    assert!(check_new(&new).unwrap_err().to_string().contains("--gateway"));
    assert!(check(&new).is_ok(), "podman adds it after create");
}

#[test]
fn a_result_is_a_status_block() {
    let result = json!({ "interfaces": [{ "name": "russ1", "mac": "ee:ee:ee:ee:ee:ee" }, { "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/n" }],
        "ips": [{ "address": "10.1.2.3/32", "interface": 1 }, { "address": "fd00::3/128", "interface": 1 }] });
    let result = CniResult::from_value(&result, Version::LATEST).unwrap();
    let expected = json!({ "dns_search_domains": ["dns.podman"], "dns_server_ips": ["169.254.70.1"], "interfaces": { "eth0": {
        "mac_address": "02:00:00:00:00:01", "subnets": [{ "ipnet": "10.1.2.3/32" }, { "ipnet": "fd00::3/128" }] } } });
    let status = |ifname, dns| super::status(&result, ifname, dns);
    assert_eq!(serde_json::to_value(status("eth0", "169.254.70.1".parse().ok()).unwrap()).unwrap(), expected);
    assert_eq!(status("eth0", None).unwrap().dns_server_ips, Vec::<IpAddr>::new());
    assert!(status("russ1", None).unwrap_err().to_string().contains("russ1"), "the node's end");
}
