//! The plugin `russet` with its addresses in the Kubernetes API, and no program of Calico.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_testkit::kubernetes::ApiServer;
use russet_testkit::{eventually, let_pass};
use serde_json::{Value, json};

use super::{BETWEEN_LOOKS, Cluster, args_of, beside_addresses, call, shown};
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// kubernetes.md K30: how long what another writer removes from a node's record may be missing.
const RESTORED: Duration = Duration::from_secs(10);

fn added(node: &mut TestNode, name: &str) -> (TestPod, Vec<String>) {
    let pod = node.pod();
    let addresses = call(node, "ADD", &pod, name).addresses();
    (pod, addresses)
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping"]
fn pods_of_two_nodes_reach_each_other_and_cost_three_writes_each() {
    // kubernetes.md sections 2.7 and 4.3, K30
    let mut cluster = Cluster::new();
    let mut one = cluster.machine("n1", &[]);
    let agent = one.spawn_agent();
    eventually(TIMEOUT, || one.log().contains("the cluster has no Node n1"));
    assert_ne!(one.status().status, 0, "a node that Kubernetes does not know is not ready");
    cluster.create_node("n1");
    eventually(TIMEOUT, || one.status().status == 0);
    drop(agent);
    one.start_agent();
    let mut two = cluster.node("n2", &[]);
    assert_eq!(
        cluster.node_annotation("n1", "projectcalico.org/IPv4Address").as_deref(),
        Some("10.77.0.11/24")
    );

    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        cluster.create_pod(name, node, json!({}));
    }
    let (a, own) = added(&mut one, "a");
    let (_b, addresses) = added(&mut two, "b");
    eventually(TIMEOUT, || a.pings(&["-W", "1", &addresses[0]]));
    cluster.report_running("a", &own);
    cluster.report_running("b", &addresses);

    // Without another program of Calico nothing reads the annotations.
    let ((c, _), requests) = cluster.requests_of(|| added(&mut one, "c"));
    assert_eq!(shown(&requests), ["POST ipamhandles 1", "PUT ipamblocks 2"], "a block for each family");
    assert_eq!(call(&one, "CHECK", &c, "c").status, 0);
    let ((), requests) = cluster.requests_of(|| {
        assert_eq!(call(&one, "DEL", &c, "c").status, 0);
        eventually(TIMEOUT, || one.unfinished() == 0);
    });
    assert_eq!(shown(&requests), ["DELETE ipamhandles 1", "PUT ipamblocks 2"]);
    cluster.assert_is_clean(&one);

    // A Go program writes the whole Node from a stale copy.
    let path = "/api/v1/nodes/n1";
    let mut stale = cluster.with(|server| server.object(path)).unwrap();
    let annotations = stale["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.retain(|name, _| !name.starts_with("projectcalico.org/"));
    stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let started = Instant::now();
    assert_eq!(cluster.with(|server| server.request("PUT", &format!("{path}/status"), &stale)).0, 200);
    eventually(TIMEOUT, || cluster.node_annotation("n1", "projectcalico.org/IPv4VXLANTunnelAddr").is_some());
    assert!(cluster.node_annotation("n1", "projectcalico.org/IPv4Address").is_some());
    assert!(started.elapsed() < RESTORED, "{:?}", started.elapsed());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn a_pod_that_was_deleted_while_the_agent_was_down_gives_its_address_back() {
    // kubernetes.md K80
    let mut cluster = Cluster::new();
    // A pool that no other test has: namespaces of other tests are on this machine, too.
    let args = ["--ipv4-pool", "10.229.0.0/26", "--ipv6-pool", "none", "--leak-repair", "1s"];
    let mut node = cluster.node("n1", &args);
    for name in ["stays", "goes"] {
        cluster.create_pod(name, "n1", json!({}));
    }
    let (stays, addresses) = added(&mut node, "stays");
    cluster.report_running("stays", &addresses);
    let (goes, _) = added(&mut node, "goes");
    assert_eq!(cluster.held("testnet"), 2);
    node.stop_agent();
    // Its runtime sent a DEL that nothing answered, and forgot it.
    NetNs::delete_named(&goes.netns_name).unwrap();
    cluster.delete_pod("goes");
    assert_eq!(cluster.held("testnet"), 2);
    node.start_agent();
    let handles = |cluster: &Cluster| {
        let path = format!("{}/ipamhandles", super::GROUP);
        let list = cluster.with(|server| server.object(&path)).unwrap();
        let all = list["items"].as_array().unwrap().iter();
        all.filter(|it| it["spec"]["handleID"].as_str().unwrap().starts_with("testnet.")).count()
    };
    eventually(TIMEOUT, || {
        let_pass(BETWEEN_LOOKS);
        (cluster.held("testnet"), handles(&cluster)) == (1, 1)
    });
    assert_eq!(call(&node, "CHECK", &stays, "stays").status, 0);
    cluster.assert_is_clean(&node);
}

/// One request for each pod, all at the same time; each must succeed. Calls `meanwhile` when all
/// have been started.
fn at_once(node: &TestNode, verb: &'static str, pods: &[TestPod], meanwhile: impl FnOnce()) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let call = |(index, pod)| scope.spawn(move || call(node, verb, pod, &format!("p{index}")));
        let calls: Vec<_> = pods.iter().enumerate().map(call).collect();
        meanwhile();
        let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        answers.iter().for_each(|answer| assert_eq!(answer.status, 0, "{verb}: {answer:?}"));
        answers
    })
}

/// The same while the API server is stopped, until all of them wait for it: on a busy machine they
/// would otherwise come one after the other, and share no write. Returns when their writes are done.
fn all_while_stopped(
    cluster: &Cluster,
    node: &TestNode,
    verb: &'static str,
    pods: &[TestPod],
) -> Vec<Answer> {
    cluster.with(ApiServer::stop);
    let answers = at_once(node, verb, pods, || {
        // The journal has a request from its start until its end, which for a DEL is the release of its addresses.
        eventually(TIMEOUT, || node.unfinished() == pods.len());
        cluster.with(ApiServer::resume);
    });
    eventually(super::RECOVERY, || node.unfinished() == 0);
    answers
}

/// Each pod's handle is one request, and the blocks are written once for each family by each of the
/// commits that the pods share. These are two: one that waits already while the others come, and
/// theirs, of at most 32 pods. The third is for a pod whose request is late in the agent's queue,
/// although it is in the journal.
fn assert_shared(mut requests: BTreeMap<String, u64>, (request, pods): (&str, u64)) {
    const COMMITS_MAX: u64 = 3;
    assert_eq!(requests.remove(request), Some(pods), "{requests:?}");
    let blocks = requests.remove("PUT ipamblocks").unwrap();
    assert!(blocks <= 2 * COMMITS_MAX, "{blocks} writes of blocks for {pods} pods");
    assert_eq!(requests, BTreeMap::new());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn thirty_pods_at_once_share_writes_and_are_deleted_without_the_api_server() {
    // kubernetes.md sections 2.7 and 4.3, K56
    let mut cluster = Cluster::new();
    let mut node = cluster.node("n1", &[]);
    let (_first, _) = added(&mut node, "first");
    let pods: Vec<TestPod> = (0..30).map(|_| node.pod()).collect();
    let (answers, requests) = cluster.requests_of(|| all_while_stopped(&cluster, &node, "ADD", &pods));
    let addresses: BTreeSet<String> = answers.iter().flat_map(|answer| answer.addresses()).collect();
    assert_eq!(addresses.len(), 60, "two families, each address once");
    println!("30 ADDs at once: {requests:?}");
    assert_shared(requests, ("POST ipamhandles", 30));
    cluster.assert_is_clean(&node);
    let (_, requests) = cluster.requests_of(|| all_while_stopped(&cluster, &node, "DEL", &pods));
    println!("30 DELs at once: {requests:?}");
    assert_shared(requests, ("DELETE ipamhandles", 30));
    assert_eq!(cluster.held("testnet"), 2, "the first pod's");

    at_once(&node, "ADD", &pods, || {});
    cluster.kill_server();
    at_once(&node, "DEL", &pods, || {});
    let late = node.pod();
    assert_eq!(call(&node, "ADD", &late, "late").code(), 11);
    cluster.start_server();
    eventually(super::RECOVERY, || {
        let_pass(Duration::from_millis(200));
        node.unfinished() == 0
    });
    assert_eq!(call(&node, "ADD", &late, "late").status, 0);
    assert_eq!(cluster.held("testnet"), 4, "two pods, two families");
    cluster.assert_is_clean(&node);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn a_node_is_announced_as_ready_once_its_conflist_stands_and_stays_so() {
    // kubernetes.md section 5.3, K93 and K95
    let mut cluster = Cluster::new();
    let mut node = cluster.machine("n1", &[]);
    let conflist = node.path("10-russet.conflist");
    node.agent_args.extend(["--conflist".to_owned(), conflist.display().to_string()]);
    cluster.create_node("n1");
    let unavailable = json!({ "status": { "conditions": [
        { "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "message": "" },
        { "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "" },
    ] } });
    cluster
        .with(|server| assert_eq!(server.request("PATCH", "/api/v1/nodes/n1/status", &unavailable).0, 200));
    node.start_agent();
    let is_up =
        |cluster: &Cluster| cluster.condition("n1") == Some(("False".to_owned(), "RussetIsUp".to_owned()));
    assert!(!is_up(&cluster), "there is no conflist yet");
    std::fs::write(&conflist, r#"{"cniVersion":"1.1.0","name":"russet","plugins":[{"type":"russet"}]}"#)
        .unwrap();
    eventually(TIMEOUT, || is_up(&cluster));
    assert!(node.path("etc/cni/net.d/10-russet.conflist").exists());
    assert!(cluster.node_annotation("n1", "russet.dev/ready").unwrap().contains('/'));
    let object = cluster.with(|server| server.object("/api/v1/nodes/n1")).unwrap();
    assert!(object["status"]["conditions"].to_string().contains("KubeletReady"), "others stay");
    // A cloud's controller sets it again.
    cluster
        .with(|server| assert_eq!(server.request("PATCH", "/api/v1/nodes/n1/status", &unavailable).0, 200));
    eventually(TIMEOUT, || is_up(&cluster));
    node.stop_agent();
    assert!(is_up(&cluster), "an update must not make the node unschedulable");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn pods_are_annotated_while_programs_of_calico_work_in_the_cluster() {
    // kubernetes.md sections 2.4 and 2.8, K43 to K46, K54 and K55
    let mut cluster = Cluster::new();
    let mut node = cluster.node("n1", &[]);
    let information = json!({ "kind": "ClusterInformation", "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": "default" },
        "spec": { "calicoVersion": "v3.32.1", "datastoreReady": true } });
    cluster.create_pod("before", "n1", json!({}));
    let (_before, addresses) = added(&mut node, "before");
    cluster.report_running("before", &addresses);
    assert!(cluster.announced("before").is_empty(), "no program would read it");
    cluster.with(|server| server.create(&[information]));
    cluster.create_pod("probe", "n1", json!({}));
    eventually(TIMEOUT, || {
        // Until the event has come.
        let (probe, _) = added(&mut node, "probe");
        let is_annotated = !cluster.announced("probe").is_empty();
        assert_eq!(call(&node, "DEL", &probe, "probe").status, 0);
        is_annotated
    });
    cluster.create_pod("web-0", "n1", json!({}));
    let (pod, addresses) = added(&mut node, "web-0");
    let announced = cluster.announced("web-0");
    assert_eq!(announced["containerID"], pod.container);
    assert!(announced["podIPs"].split(',').any(|net| net == format!("{}/32", addresses[0])), "{announced:?}");

    cluster.create_pod("web-1", "n1", json!({}));
    let ((old, _), requests) = cluster.requests_of(|| added(&mut node, "web-1"));
    assert_eq!(beside_addresses(&requests), ["PATCH pods/status 1"]);
    // The sandbox is replaced, and its DEL comes late.
    let (new, _) = added(&mut node, "web-1");
    let ((), requests) = cluster.requests_of(|| {
        assert_eq!(call(&node, "DEL", &old, "web-1").status, 0);
        eventually(TIMEOUT, || node.unfinished() == 0);
    });
    assert_eq!(beside_addresses(&requests), [""; 0]);
    assert_eq!(cluster.announced("web-1")["containerID"], new.container);
    assert!(!cluster.announced("web-1")["podIP"].is_empty());
    // Another interface of the pod is not its address for Calico.
    let (netns, args) = (new.path().display().to_string(), args_of(&new, "web-1"));
    let of_net1 = |verb| {
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", new.container.as_str()),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", "net1"),
            ("CNI_ARGS", &args),
        ];
        node.run(&env, node.config(json!({})).to_string().as_bytes())
    };
    let announced = cluster.announced("web-1");
    for verb in ["ADD", "DEL"] {
        assert_eq!(of_net1(verb).status, 0, "{verb}");
        assert_eq!(cluster.announced("web-1"), announced, "{verb}");
    }

    // The pod is gone before its DEL; the other's is emptied before its address is free.
    cluster.delete_pod("web-1");
    assert_eq!(call(&node, "DEL", &new, "web-1").status, 0);
    cluster.kill_server();
    assert_eq!(call(&node, "DEL", &pod, "web-0").status, 0);
    cluster.start_server();
    eventually(super::RECOVERY, || {
        let_pass(Duration::from_millis(200));
        node.unfinished() == 0
    });
    assert_eq!(cluster.announced("web-0")["podIP"], "");
    assert_eq!(cluster.announced("web-0")["containerID"], pod.container);
    cluster.assert_is_clean(&node);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn an_agent_whose_pod_is_deleted_ends_in_time_and_the_next_one_completes_its_work() {
    // kubernetes.md K99, section 5.5
    const ACCOUNT: &str = "russet-agent";
    let mut cluster = Cluster::new();
    let account =
        json!({ "kind": "ServiceAccount", "metadata": { "name": ACCOUNT, "namespace": "kube-system" } });
    let group = "rbac.authorization.k8s.io";
    let binding = json!({ "kind": "ClusterRoleBinding", "apiVersion": format!("{group}/v1"), "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system" }] });
    let mut node = cluster.machine("n1", &[]);
    cluster.create_node("n1");
    cluster.with(|server| server.create(&[account, binding]));
    // What kubelet gives to the agent's pod ends with that pod.
    let start = |node: &mut TestNode| {
        let token = cluster.with(|server| server.pod_token("kube-system", ACCOUNT, "n1"));
        std::fs::write(cluster.kubeconfig(), cluster.with(|server| server.kubeconfig(&token))).unwrap();
        node.start_agent();
        token
    };
    let token = start(&mut node);
    ["stays", "goes"].iter().for_each(|name| cluster.create_pod(name, "n1", json!({})));
    let (stays, addresses) = added(&mut node, "stays");
    let (goes, _) = added(&mut node, "goes");
    cluster.with(|server| server.delete(&format!("/api/v1/namespaces/kube-system/pods/{ACCOUNT}-n1")));
    eventually(TIMEOUT, || {
        let_pass(BETWEEN_LOOKS);
        cluster.with(|server| server.request_with(&token, "GET", "/api/v1/nodes/n1", &Value::Null)).0 == 401
    });

    // The interface goes, and what the API has of the pod waits.
    assert_eq!(call(&node, "DEL", &goes, "goes").status, 0);
    assert!(node.unfinished() > 0);
    assert_eq!(cluster.held("testnet"), 2 * addresses.len());
    node.stop_agent();
    assert!(node.unfinished() > 0);

    start(&mut node);
    eventually(super::RECOVERY, || {
        let_pass(BETWEEN_LOOKS);
        node.unfinished() == 0
    });
    assert_eq!(cluster.held("testnet"), addresses.len());
    assert_eq!(call(&node, "CHECK", &stays, "stays").status, 0);
}
