//! An agent with the rights of packaging/kubernetes/russet.yaml, and no others.

use std::time::SystemTime;

use russet_model::time;
use russet_testkit::eventually;
use russet_testkit::kubernetes::{ApiServer, Release};
use russet_testkit::run;
use serde_json::{Value, json};

use super::{CLUSTER_POLICIES, Cluster, call, cluster_policy, create_cluster_policy};
use crate::node::{TIMEOUT, TestNode};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes/russet.yaml");

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, kubectl, curl, openssl"]
fn an_agent_attaches_pods_and_says_what_of_a_policy_is_not_enforced_with_the_rights_of_the_manifest() {
    // kubernetes.md sections 5.3 and 5.4
    let mut cluster = Cluster::new();
    let mut node = cluster.machine("n1", &["--annotate", "always"]);
    cluster.create_node("n1");
    let kubeconfig = cluster.with(|server| {
        let kubectl = Release::Newest.program("kubectl");
        let admin = format!("--kubeconfig={}", server.admin_kubeconfig().display());
        run(
            kubectl.to_str().unwrap(),
            &[&admin, "apply", "--server-side", "--force-conflicts", "-f", MANIFEST],
        );
        server.kubeconfig(&server.pod_token("russet-system", "russet-agent", "n1"))
    });
    let path = node.path("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    // The server learns of new rights a moment after it has stored them.
    eventually(TIMEOUT, || cluster.with(may_say_what_is_enforced));
    let store = node.agent_args.iter_mut().find(|argument| argument.starts_with("kubernetes:")).unwrap();
    *store = format!("kubernetes:{}", path.display());
    let conflist = node.path("10-russet.conflist");
    std::fs::write(&conflist, r#"{"cniVersion":"1.1.0","name":"russet","plugins":[{"type":"russet"}]}"#)
        .unwrap();
    node.agent_args.extend(["--conflist".to_owned(), conflist.display().to_string()]);
    let by_names = cluster_policy("by-names", &json!({ "domainNames": ["example.com"] }));
    cluster.with(|server| create_cluster_policy(server, &by_names));
    node.start_agent();
    eventually(TIMEOUT, || cluster.condition("n1").is_some_and(|(_, reason)| reason == "RussetIsUp"));

    says_how_far_a_policy_is_enforced(&cluster);

    cluster.create_pod("a", "n1", json!({}));
    let pod = node.pod();
    let added = call(&node, "ADD", &pod, "a");
    assert_eq!(added.status, 0, "{added:?}");
    assert!(cluster.announced("a").contains_key("podIPs"));
    assert_eq!(call(&node, "DEL", &pod, "a").status, 0);
    eventually(TIMEOUT, || node.unfinished() == 0);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/russet-n1";
    eventually(TIMEOUT, || cluster.with(|server| server.object(lease)).is_some());
    for verb in [&["status", "--cluster", "-o", "json"][..], &["map", "-o", "json"]] {
        let answer = node.russet_inside(verb);
        assert!([0, 3].contains(&answer.status) && answer.stdout.contains("\"n1\""), "{verb:?}: {answer:?}");
    }
    another_node_with_a_record(&cluster);
    eventually(TIMEOUT, || the_page_has_the_record_of_the_other_node(&node));
    node.stop_agent();
    let log = node.log();
    let is_refusal = |line: &&str| line.contains("forbidden") || line.contains("denied");
    let refusals: Vec<&str> = log.lines().filter(is_refusal).collect();
    assert!(refusals.is_empty(), "{refusals:?}");
    doctor_names_a_pool_in_the_range_of_services(&cluster, &node);
    doctor_names_a_right_that_is_missing(&cluster, &node);
    doctor_names_an_agent_of_another_version(&cluster, &node);
}

/// The account may read what says which addresses services have.
fn doctor_names_a_pool_in_the_range_of_services(cluster: &Cluster, node: &TestNode) {
    let pools = "/apis/crd.projectcalico.org/v1/ippools";
    let pool = json!({ "kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": "of-services" },
        "spec": { "cidr": "10.96.128.0/20", "disabled": true } });
    cluster.with(|server| assert_eq!(server.request("POST", pools, &pool).0, 201));
    let answer = node.russet_inside(&["doctor"]);
    let wanted =
        "pool 10.96.128.0/20: it overlaps 10.96.0.0/16, the range of services (ServiceCIDR kubernetes): ";
    assert!(answer.status == 3 && answer.stdout.contains(wanted), "{answer:?}");
    cluster.with(|server| {
        assert_eq!(server.request("DELETE", &format!("{pools}/of-services"), &Value::Null).0, 200)
    });
}

/// A node `n2`, whose agent has another version than that of `n1`.
fn another_node_with_a_record(cluster: &Cluster) {
    cluster.create_node("n2");
    let record = json!({ "schema": 1, "node": "n2", "version": "0.0.1", "at": time::rfc3339(SystemTime::now()), "every_s": 3600,
        "ready": true, "endpoints": 0, "reachable": 0 });
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "russet-n2",
        "labels": { "russet.dev/agent": "true" }, "annotations": { "russet.dev/health": record.to_string() } },
        "spec": { "holderIdentity": "n2", "leaseDurationSeconds": 360 } });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    cluster.with(|server| assert_eq!(server.request("POST", leases, &lease).0, 201));
}

/// The agent's page for a browser shows what other agents say of their nodes.
fn the_page_has_the_record_of_the_other_node(node: &TestNode) -> bool {
    let socket = node.root().join("run/russet/health.sock");
    let page =
        run("curl", &["-s", "--unix-socket", socket.to_str().unwrap(), "http://localhost/ui/data.json"]);
    let page: Value = serde_json::from_str(&page).unwrap();
    let nodes = page["map"]["nodes"].as_array().unwrap();
    nodes.iter().any(|node| node["name"] == "n2" && node["version"] == "0.0.1" && node["state"] == "ready")
}

/// The account may read the records of other nodes' agents.
fn doctor_names_an_agent_of_another_version(cluster: &Cluster, node: &TestNode) {
    let admin = cluster.with(|server| format!("kubernetes:{}", server.admin_kubeconfig().display()));
    for account in [&[][..], &["--store", &admin]] {
        let answer = node.russet_inside(&[&["doctor"], account].concat());
        assert_eq!(answer.status, 3, "{answer:?}");
        assert!(answer.stdout.contains("as this node's is: 0.0.1 on 1 (n2)\n"), "{answer:?}");
        // Agents may not look at other networks' workloads.
        assert_eq!(answer.stdout.contains("not looked at: "), account.is_empty(), "{answer:?}");
    }
}

/// `russet doctor` misses none of the manifest's rights, and compares the clock with the server's.
fn doctor_names_a_right_that_is_missing(cluster: &Cluster, node: &TestNode) {
    let doctor = || -> Value {
        let answer = node.russet_inside(&["doctor", "-o", "json"]);
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    };
    let problem = |report: &Value, kind: &str| -> Option<String> {
        let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == kind)?;
        Some(found["problem"].as_str().unwrap().to_owned())
    };
    let report = doctor();
    println!("{report:#}");
    assert_eq!([problem(&report, "rights"), problem(&report, "clock")], [None, None], "{report:#}");
    let unknown = report["unknown"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
    let is_of_them =
        |line: &&str| ["the clock: ", "rights: ", "services: "].iter().any(|what| line.starts_with(what));
    assert_eq!(unknown.filter(is_of_them).collect::<Vec<_>>(), [""; 0]);
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/russet-agent";
    let mut rules = cluster.with(|server| server.object(role)).unwrap()["rules"].as_array().unwrap().clone();
    rules.retain(|rule| rule["apiGroups"] != json!(["networking.k8s.io"]));
    cluster.with(|server| assert_eq!(server.request("PATCH", role, &json!({ "rules": rules })).0, 200));
    let wanted = "the account may not get, list, watch networkpolicies of networking.k8s.io: ";
    eventually(TIMEOUT, || problem(&doctor(), "rights").is_some_and(|problem| problem.starts_with(wanted)));
}

/// Whether the server lets the manifest's agents write into the status of policies.
fn may_say_what_is_enforced(server: &ApiServer) -> bool {
    let question = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": "system:serviceaccount:russet-system:russet-agent",
        "resourceAttributes": { "verb": "patch", "group": "policy.networking.k8s.io",
            "resource": "clusternetworkpolicies", "subresource": "status" } } });
    let (code, answer) =
        server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", &question);
    assert_eq!(code, 201, "{answer}");
    answer["status"]["allowed"] == true
}

/// The policy by-names says that it is not enforced, and once it is repaired that it is. It is removed.
fn says_how_far_a_policy_is_enforced(cluster: &Cluster) {
    let path = format!("{CLUSTER_POLICIES}/by-names");
    let condition = || {
        let policy = cluster.with(|server| server.object(&path)).unwrap();
        policy["status"]["conditions"][0].clone()
    };
    let is = |status: &str, generation: u64| {
        let found = condition();
        found["status"] == status && found["observedGeneration"] == generation
    };
    eventually(TIMEOUT, || is("False", 1));
    let refused = condition();
    assert_eq!(
        (&refused["type"], &refused["reason"]),
        (&json!("russet.dev/Enforced"), &json!("PartlyDenied"))
    );
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("spec.egress[0].to[0].domainNames: "), "{message}");

    let repaired = cluster_policy("by-names", &json!({ "networks": ["192.0.2.0/24"] }));
    let patch = json!({ "spec": repaired["spec"] });
    cluster.with(|server| assert_eq!(server.request("PATCH", &path, &patch).0, 200));
    eventually(TIMEOUT, || is("True", 2));
    cluster.with(|server| server.delete(&path));
}
