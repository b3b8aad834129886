//! Policies of Calico's own `calicoctl` in etcd: what it refuses to write is closed if another program writes it, and it reads what `russet apply` writes.

use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::RESOURCES;
use crate::node::TIMEOUT;
use crate::stored_policies::{Setup, resource};

/// A policy about all pods of the tests, with members besides.
fn policy(members: Value) -> Value {
    let mut spec = json!({ "selector": "projectcalico.org/namespace == 'default'", "types": ["Ingress"] });
    spec.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    resource("GlobalNetworkPolicy", "bad", spec)
}

/// Policies of policy.md section 1.4 that `calicoctl` refuses, none of which lets the client ping the server.
fn refused() -> Vec<Value> {
    let service = json!({ "name": "s", "namespace": "default" });
    let open = json!([{ "action": "Allow" }]);
    let allowing = [
        json!({ "destination": { "services": service } }),
        json!({ "source": { "services": service, "selector": "all()" } }),
        json!({ "source": { "services": service, "nets": ["10.0.0.0/8"] } }),
        json!({ "source": { "services": service, "namespaceSelector": "all()" } }),
        json!({ "source": { "services": service, "serviceAccounts": { "names": ["default"] } } }),
        json!({ "destination": { "ports": [53] } }),
        json!({ "destination": { "ports": [53] }, "protocol": "UDPLite" }),
        json!({ "destination": { "ports": [53] }, "protocol": "ICMP" }),
        json!({ "destination": { "ports": [0] }, "protocol": "UDP" }),
        json!({ "protocol": 0 }),
        json!({ "protocol": 256 }),
        json!({ "protocol": "icmp" }),
        json!({ "protocol": "ICMP", "icmp": { "code": 0 } }),
        json!({ "future": true }),
        json!({ "source": { "selector": "a = b" } }),
        json!({ "source": { "nets": ["10.0.0.0/99"] } }),
        json!({ "ipVersion": 5 }),
    ];
    let with_rule = |mut rule: Value| {
        rule["action"] = "Allow".into();
        policy(json!({ "ingress": [rule] }))
    };
    let whole = [
        json!({ "order": "first", "ingress": open }),
        json!({ "doNotTrack": true, "preDNAT": true, "applyOnForward": true, "ingress": open }),
        json!({ "types": ["Ingress", "Ingress"] }),
        json!({ "types": ["ingress"] }),
        json!({ "types": "Ingress" }),
        json!({ "ingress": [{ "action": "allow" }] }),
        json!({ "future": true }),
    ];
    allowing.into_iter().map(with_rule).chain(whole.into_iter().map(policy)).collect()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calicoctl, etcd, etcdctl, ping, nft; takes a minute"]
fn what_calicoctl_refuses_is_closed_when_another_program_writes_it() {
    // policy.md P88
    let setup = Setup::new();
    setup.expect(true, true);
    let key = format!("{RESOURCES}/globalnetworkpolicies/default.bad");
    // It accepts the same policy without what is wrong.
    let good = policy(json!({ "order": -0.5, "ingress": [{ "action": "Allow", "protocol": "ICMP" }] }));
    let accepted = setup.try_calicoctl(&["apply", "-f", "-"], &good);
    assert_eq!(accepted.status, 0, "{accepted:?}");
    assert_eq!(setup.fabric.get(&key)["spec"]["order"], -0.5);
    setup.fabric.etcdctl(&["del", &key]);
    for mut document in refused() {
        let answer = setup.try_calicoctl(&["apply", "-f", "-"], &document);
        assert!(answer.status != 0 && setup.fabric.keys(&key).is_empty(), "{document:#}: {answer:?}");
        println!("{}: {}", document["spec"], answer.stderr.lines().next().unwrap_or_default());
        document["metadata"]["name"] = "default.bad".into();
        document["spec"]["tier"] = "default".into();
        setup.fabric.put(&key, &document.to_string());
        eventually(TIMEOUT, || !setup.client.reaches(&setup.server));
        setup.fabric.etcdctl(&["del", &key]);
        eventually(TIMEOUT, || setup.client.reaches(&setup.server));
    }
    // Neither agent has ended, and both follow.
    setup.expect(true, true);
    for node in [&setup.one, &setup.two] {
        assert!(!node.log().contains("panicked"), "{}", node.log());
    }
}

/// Objects for `russet apply` that `calicoctl` of the version here knows, with the names by which it gets them: it puts `default.` before those of policies.
fn applied() -> Vec<(&'static [&'static str], Value)> {
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({ "set": "ops" });
        object
    };
    let in_default = |mut object: Value| {
        object["metadata"]["namespace"] = "default".into();
        object
    };
    let rules = json!([{ "action": "Allow", "protocol": "TCP", "source": { "selector": "set == 'ops'", "notNets": ["192.0.2.0/24"] },
        "destination": { "ports": [80, "8000:8010"] } }, { "action": "Log" }, { "action": "Deny", "protocol": 132 }]);
    let spec = json!({ "selector": "role == 'server'", "order": 10.5, "types": ["Ingress", "Egress"], "ingress": rules, "egress": rules });
    let host = json!({ "node": "n9", "interfaceName": "eth0", "expectedIPs": ["192.0.2.9"] });
    vec![
        (&["globalnetworkpolicy", "ours"], resource("GlobalNetworkPolicy", "default.ours", spec.clone())),
        (
            &["networkpolicy", "ours", "-n", "default"],
            in_default(resource("NetworkPolicy", "default.ours", spec)),
        ),
        (
            &["globalnetworkset", "ours"],
            labelled(resource(
                "GlobalNetworkSet",
                "ours",
                json!({ "nets": ["192.0.2.0/24", "2001:db8::/64"] }),
            )),
        ),
        (
            &["networkset", "ours", "-n", "default"],
            in_default(labelled(resource("NetworkSet", "ours", json!({ "nets": ["192.0.2.7/32"] })))),
        ),
        (&["hostendpoint", "ours"], labelled(resource("HostEndpoint", "ours", host))),
    ]
}

/// Whether everything of `part` is in `whole`; numbers of ports and protocols included.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calicoctl, etcd, etcdctl, ping"]
fn calicoctl_reads_and_writes_again_what_russet_applies_and_russet_what_it_writes() {
    // policy.md P87
    let setup = Setup::new();
    for (name, document) in applied() {
        setup.apply(std::slice::from_ref(&document));
        let get = |format: &str| {
            let answer = setup.try_calicoctl(&[&["get"], name, &["-o", format]].concat(), &Value::Null);
            assert_eq!(answer.status, 0, "{name:?}: {answer:?}");
            answer.stdout
        };
        let get_json = || {
            let found: Value = serde_json::from_str(&get("json")).unwrap();
            found.get(0).unwrap_or(&found).clone()
        };
        let found = get_json();
        let same = |found: &Value| {
            ["kind", "apiVersion", "spec"].iter().all(|member| contains(&found[*member], &document[*member]))
                && document["metadata"]
                    .get("labels")
                    .is_none_or(|labels| contains(&found["metadata"]["labels"], labels))
        };
        assert!(same(&found), "{name:?}: {found:#} of {document:#}");
        assert!(get("yaml").contains("kind:"), "{name:?}");
        // Its own form of the same object, with the resource version that it read.
        let replaced = setup.try_calicoctl(&["replace", "-f", "-"], &found);
        assert_eq!(replaced.status, 0, "{name:?}: {replaced:?}");
        let kind = document["kind"].as_str().unwrap().to_lowercase();
        let stored = document["metadata"]["name"].as_str().unwrap();
        let mut words = vec!["get", kind.as_str(), stored, "-o", "json"];
        if document["metadata"]["namespace"].is_string() {
            words.extend(["-n", "default"]);
        }
        let ours = setup.one.russet_inside(&words);
        assert_eq!(ours.status, 0, "{name:?}: {ours:?}");
        let read: Value = serde_json::from_str(&ours.stdout).unwrap();
        let read = read["items"].get(0).unwrap_or(&read);
        assert!(same(read), "{name:?}: {read:#} of {document:#}");
        setup.apply(std::slice::from_ref(&document));
        let deleted = setup.try_calicoctl(&["delete", "-f", "-"], &get_json());
        assert_eq!(deleted.status, 0, "{name:?}: {deleted:?}");
    }
    // Later versions put nothing before the names of policies; this one lists them all the same.
    setup.apply(&[resource("GlobalNetworkPolicy", "later", json!({ "selector": "all()" }))]);
    let listed = setup.try_calicoctl(&["get", "globalnetworkpolicy"], &Value::Null);
    assert!(listed.status == 0 && listed.stdout.contains("later"), "{listed:?}");
}
