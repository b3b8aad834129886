//! Subnets from Kubernetes, against the API's REST shapes over HTTP (flannel.md section 5).

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::Mac;
use russet_kube::Client;
use russet_kube::testing::{Seen, Server};
use russet_lease::kube::{KubeManager, KubeSettings, node_name};
use russet_lease::{Event, Lease, LeaseError, LeaseWatch, SubnetManager, Wish};
use russet_model::flannel::{Attributes, SubnetKey, vtep_data};
use serde_json::{Value, json};

/// Far longer than any step takes, and far shorter than a hung test.
const LIMIT: Duration = Duration::from_secs(20);
const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const PREFIX: &str = "flannel.alpha.coreos.com/";
const MAC: Mac = Mac([0x32, 0xfc, 0xb5, 0xdc, 0xf0, 0x38]);

/// A cluster with our node, `n1`.
struct Bench {
    server: Server,
    directory: tempfile::TempDir,
}

fn object(name: &str, ranges: &[&str], annotations: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<String, &str> =
        annotations.iter().map(|(last, value)| (format!("{PREFIX}{last}"), *value)).collect();
    json!({ "kind": "Node", "metadata": { "name": name, "annotations": annotations },
        "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges } })
}

/// A node whose daemon has published its attributes.
fn peer(name: &str, range: &str, public_ip: &str) -> Value {
    let reported = [
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"}"#),
        ("public-ip", public_ip),
    ];
    object(name, &[range], &reported)
}

fn vxlan(address: &str) -> Attributes {
    Attributes {
        public_ip: address.parse().unwrap(),
        public_ipv6: None,
        backend_type: "vxlan".to_owned(),
        backend_data: Some(vtep_data(1, MAC)),
        backend_v6_data: None,
    }
}

impl Bench {
    fn new(config: &str) -> Self {
        let bench = Self { server: Server::start(), directory: tempfile::tempdir().unwrap() };
        bench.configure(config);
        bench.server.put(object("n1", &["10.244.1.0/24"], &[]));
        bench
    }

    fn configure(&self, config: &str) {
        std::fs::write(self.directory.path().join("net-conf.json"), config).unwrap();
    }

    fn manager_with(&self, change: impl FnOnce(&mut KubeSettings)) -> KubeManager {
        let net_conf = self.directory.path().join("net-conf.json");
        let mut settings = KubeSettings { net_conf, ..KubeSettings::default() };
        change(&mut settings);
        KubeManager::new(Rc::new(Client::new(self.server.source()).unwrap()), "n1", settings)
    }

    fn manager(&self) -> KubeManager {
        self.manager_with(|_| ())
    }

    async fn acquire(&self, attributes: Attributes) -> Result<Lease, LeaseError> {
        acquire(&self.manager(), attributes).await
    }

    fn patches(&self) -> Vec<Seen> {
        self.server.seen().into_iter().filter(|seen| seen.method == "PATCH").collect()
    }

    fn annotation(&self, last: &str) -> Option<String> {
        self.server.annotation("Node", "", "n1", &format!("{PREFIX}{last}"))
    }
}

async fn acquire(manager: &KubeManager, attributes: Attributes) -> Result<Lease, LeaseError> {
    let config = manager.network().await?;
    manager.acquire(&config, &Wish { attributes, previous: SubnetKey::default() }).await
}

async fn next(watch: &mut Box<dyn LeaseWatch>) -> Event {
    tokio::time::timeout(LIMIT, watch.next()).await.unwrap()
}

async fn follow(manager: &KubeManager) -> (Box<dyn LeaseWatch>, Vec<Lease>) {
    let lease = acquire(manager, vxlan("10.0.0.1")).await.unwrap();
    let mut watch = manager.watch(&lease.key).await.unwrap();
    match next(&mut watch).await {
        Event::Snapshot(leases) => (watch, leases),
        other => panic!("{other:?}"),
    }
}

async fn put(watch: &mut Box<dyn LeaseWatch>) -> Lease {
    match next(watch).await {
        Event::Put(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn key(text: &str) -> SubnetKey {
    text.parse().unwrap()
}

#[tokio::test]
async fn t47_kube_a_node_with_a_pod_cidr_patches_four_annotations_and_then_the_condition() {
    let bench = Bench::new(VXLAN);
    let manager = bench.manager();
    let lease = acquire(&manager, vxlan("10.0.0.1")).await.unwrap();
    assert_eq!((lease.key, lease.expires), (key("10.244.1.0-24"), None));
    manager.ready(&lease).await.unwrap();
    let patches = bench.patches();
    assert_eq!(patches.len(), 2);
    for patch in &patches {
        assert_eq!(patch.path, "/api/v1/nodes/n1/status");
        assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
    }
    assert_eq!(
        patches[0].body,
        r#"{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"32:fc:b5:dc:f0:38\"}","flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"10.0.0.1"}}}"#
    );
    let condition = &serde_json::from_str::<Value>(&patches[1].body).unwrap()["status"]["conditions"];
    assert_eq!(condition.as_array().unwrap().len(), 1);
    let condition_member = |member: &str| condition[0][member].as_str().unwrap().to_owned();
    assert_eq!(
        (condition_member("type"), condition_member("status")),
        ("NetworkUnavailable".to_owned(), "False".to_owned())
    );
    assert_eq!(
        (condition_member("reason"), condition_member("message")),
        ("FlannelIsUp".to_owned(), "Flannel is running on this node".to_owned())
    );
    assert_eq!(condition_member("lastHeartbeatTime"), condition_member("lastTransitionTime"));
    assert!(russet_model::time::parse_rfc3339(&condition_member("lastHeartbeatTime")).is_some());
    // A restart changes nothing and writes nothing.
    assert_eq!(bench.acquire(vxlan("10.0.0.1")).await.unwrap(), lease);
    assert_eq!(bench.patches().len(), 2);
    // Only a changed MAC is published.
    let moved = Attributes { backend_data: Some(vtep_data(1, Mac([2, 0, 0, 0, 0, 9]))), ..vxlan("10.0.0.1") };
    manager.publish(&Lease { attributes: moved.into(), ..lease.clone() }).await.unwrap();
    assert_eq!(
        bench.patches()[2].body,
        r#"{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:09\"}"}}}"#
    );
    // Nothing ends, so nothing is renewed.
    assert!(tokio::time::timeout(Duration::from_millis(20), manager.keep(&lease, LIMIT)).await.is_err());
}

#[tokio::test]
async fn the_condition_is_left_alone_if_disabled_and_retried_when_the_server_is_unreachable() {
    // flannel.md section 5.2, step 6.
    let bench = Bench::new(VXLAN);
    let silent = bench.manager_with(|settings| settings.set_network_unavailable = false);
    let lease = acquire(&silent, vxlan("10.0.0.1")).await.unwrap();
    silent.ready(&lease).await.unwrap();
    assert_eq!(bench.patches().len(), 1);
    let manager = bench.manager();
    bench.server.fail_next(1, 503);
    tokio::time::timeout(LIMIT, manager.ready(&lease)).await.unwrap().unwrap();
    let node = bench.server.object("Node", "", "n1").unwrap();
    assert_eq!(node["status"]["conditions"][0]["reason"], "FlannelIsUp");
    bench.server.forbid("patch nodes/status");
    let refused = manager.ready(&lease).await.unwrap_err();
    assert!(
        !refused.is_retryable() && refused.to_string().contains("NetworkUnavailable of node n1"),
        "{refused}"
    );
}

#[tokio::test]
async fn t48_kube_a_peers_lease_is_gone_as_soon_as_its_node_is() {
    let bench = Bench::new(VXLAN);
    bench.server.put(peer("n2", "10.244.2.0/24", "10.0.0.2"));
    bench.server.put(object("unmanaged", &["10.244.9.0/24"], &[("public-ip", "10.0.0.9")]));
    let (mut watch, leases) = follow(&bench.manager()).await;
    assert_eq!(leases.len(), 1, "the own node and those without a daemon are left out: {leases:?}");
    assert_eq!(
        (leases[0].key, leases[0].attributes.public_ip),
        (key("10.244.2.0-24"), "10.0.0.2".parse().unwrap())
    );
    // Neither a kubelet's heartbeat nor a removed annotation causes an event (flannel.md section
    // 5.2, step 7).
    let mut beat = peer("n2", "10.244.2.0/24", "10.0.0.2");
    beat["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    bench.server.put(beat);
    bench.server.put(object("n2", &["10.244.2.0/24"], &[("kube-subnet-manager", "false")]));
    bench.server.put(peer("n3", "10.244.3.0/24", "10.0.0.3"));
    assert_eq!(put(&mut watch).await.key, key("10.244.3.0-24"));
    bench.server.delete("Node", "", "n2");
    assert_eq!(next(&mut watch).await, Event::Gone(key("10.244.2.0-24")));
}

#[tokio::test]
async fn changes_during_a_compaction_are_reported_after_410() {
    // flannel.md section 5.2, steps 3 and 7.
    let bench = Bench::new(VXLAN);
    for number in 2..=5 {
        bench.server.put(peer(
            &format!("n{number}"),
            &format!("10.244.{number}.0/24"),
            &format!("10.0.0.{number}"),
        ));
    }
    let (mut watch, leases) = follow(&bench.manager()).await;
    assert_eq!(leases.len(), 4);
    bench.server.bookmark();
    bench.server.put(peer("n3", "10.244.3.0/24", "10.0.0.33"));
    assert_eq!(
        put(&mut watch).await.attributes.public_ip,
        "10.0.0.33".parse::<std::net::Ipv4Addr>().unwrap()
    );
    bench.server.delete("Node", "", "n2");
    // A node recreated under its name, with another range.
    bench.server.put(peer("n4", "10.244.44.0/24", "10.0.0.4"));
    bench.server.forget_history();
    bench.server.end_watches();
    let mut changes = Vec::new();
    for _ in 0..3 {
        changes.push(match next(&mut watch).await {
            Event::Put(lease) => format!("put {}", lease.key),
            Event::Gone(key) => format!("gone {key}"),
            Event::Snapshot(_) => panic!("there is one snapshot"),
        });
    }
    assert_eq!(changes, ["gone 10.244.2.0-24", "gone 10.244.4.0-24", "put 10.244.44.0-24"]);
}

#[tokio::test]
async fn a_node_with_invalid_attributes_is_ignored_and_keeps_its_lease() {
    let bench = Bench::new(VXLAN);
    bench.server.put(peer("n2", "10.244.2.0/24", "10.0.0.2"));
    bench.server.put(peer("thief", "10.244.1.0/24", "10.0.0.66"));
    bench.server.put(peer("garbage", "10.244.8.0/24", "x"));
    let (mut watch, leases) = follow(&bench.manager()).await;
    assert_eq!(leases.iter().map(|lease| lease.key.to_string()).collect::<Vec<_>>(), ["10.244.2.0-24"]);
    bench.server.put(peer("n2", "10.244.2.0/24", "nowhere"));
    bench.server.put(peer("garbage", "10.244.8.0/24", "10.0.0.8"));
    assert_eq!(put(&mut watch).await.key, key("10.244.8.0-24"));
    // Two nodes with one range: when one is deleted, the other still has it.
    bench.server.put(peer("n9", "10.244.2.0/24", "10.0.0.9"));
    assert_eq!(put(&mut watch).await.attributes.public_ip.octets()[3], 9);
    bench.server.delete("Node", "", "n9");
    let lease = put(&mut watch).await;
    assert_eq!((lease.key, lease.attributes.public_ip.octets()[3]), (key("10.244.2.0-24"), 2));
}

#[tokio::test]
async fn dual_stack_peers_that_change_one_family_are_reported() {
    // flannel.md section 5.2, step 7: real daemons take a node for unchanged if either family is.
    let config = r#"{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}"#;
    let bench = Bench::new(config);
    bench.server.put(object("n1", &["10.244.1.0/24", "fd00:244:0:1::/64"], &[]));
    let manager = bench.manager();
    let own = Attributes {
        public_ipv6: "fd00::1".parse().ok(),
        backend_v6_data: Some(vtep_data(1, MAC)),
        ..vxlan("10.0.0.1")
    };
    let lease = acquire(&manager, own).await.unwrap();
    assert_eq!(lease.key, key("10.244.1.0-24&fd00:244:0:1::-64"));
    assert_eq!(bench.annotation("public-ipv6").as_deref(), Some("fd00::1"));
    let mut watch = manager.watch(&lease.key).await.unwrap();
    assert_eq!(next(&mut watch).await, Event::Snapshot(Vec::new()));
    let dual = |v6: &str| {
        let mut node = peer("n2", "10.244.2.0/24", "10.0.0.2");
        node["spec"]["podCIDRs"] = json!(["10.244.2.0/24", "fd00:244:0:2::/64"]);
        node["metadata"]["annotations"][format!("{PREFIX}public-ipv6")] = json!(v6);
        node["metadata"]["annotations"][format!("{PREFIX}backend-v6-data")] = json!(vtep_data(1, MAC));
        node
    };
    bench.server.put(dual("fd00::2"));
    assert_eq!(put(&mut watch).await.key, key("10.244.2.0-24&fd00:244:0:2::-64"));
    bench.server.put(dual("fd00::22"));
    assert_eq!(put(&mut watch).await.attributes.public_ipv6, "fd00::22".parse().ok());
}

#[tokio::test]
async fn t49_kube_host_gw_has_null_for_its_backend_data() {
    let bench = Bench::new(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#);
    let attributes =
        Attributes { backend_type: "host-gw".to_owned(), backend_data: None, ..vxlan("10.0.0.1") };
    bench.acquire(attributes).await.unwrap();
    assert_eq!(bench.annotation("backend-data").as_deref(), Some("null"));
    assert_eq!(bench.annotation("backend-type").as_deref(), Some("host-gw"));
}

#[tokio::test]
async fn t50_kube_no_pod_cidr_one_outside_the_network_and_no_node_name_end_the_daemon() {
    let bench = Bench::new(VXLAN);
    for (ranges, why) in [
        (&[][..], "take the subnet of node n1: pod cidr not assigned"),
        (&["10.1.1.0/24"][..], "pod CIDR 10.1.1.0/24 is not within the network 10.244.0.0/16"),
        (&["10.244.1.0/24", "10.244.2.0/24", "fd00::/64"][..], "it has 3 pod CIDRs"),
    ] {
        bench.server.put(object("n1", ranges, &[]));
        let error = bench.acquire(vxlan("10.0.0.1")).await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains(why), "{error}");
    }
    assert_eq!(bench.patches(), []);
    let client = Client::new(bench.server.source()).unwrap();
    let error = node_name(&client, |_| Some(String::new())).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("NODE_NAME"), "{error}");
    // So do a missing file, and an invalid configuration (flannel.md section 5.2, step 2).
    for text in ["{", "[]"] {
        bench.configure(text);
        let error = bench.manager().network().await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains("net-conf.json"), "{error}");
    }
    let endless = bench.manager_with(|settings| settings.net_conf = "/dev/zero".into());
    let error = endless.network().await.unwrap_err().to_string();
    assert!(error.ends_with("it is longer than 1048576 bytes"), "{error}");
    let missing = bench.manager_with(|settings| settings.net_conf = "/nowhere/net-conf.json".into());
    assert!(!missing.network().await.unwrap_err().is_retryable());
    // Settings that a store's manager would refuse are not checked.
    bench.configure(r#"{"Network":"10.244.0.0/16","SubnetLen":99,"Backend":{"Type":"vxlan"}}"#);
    assert_eq!(bench.manager().network().await.unwrap().subnet_len, 99);
}

#[tokio::test]
async fn the_name_of_the_node_comes_from_the_environment_or_from_the_pod() {
    // flannel.md section 5.2, step 1.
    let server = Server::start();
    server.put(json!({ "kind": "Pod", "metadata": { "namespace": "kube-flannel", "name": "ds-1" }, "spec": { "nodeName": "n7" } }));
    server.put(
        json!({ "kind": "Pod", "metadata": { "namespace": "kube-flannel", "name": "ds-2" }, "spec": {} }),
    );
    let client = Client::new(server.source()).unwrap();
    let of = async |set: &[(&str, &str)]| {
        let find =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        node_name(&client, find).await
    };
    let pod = |name| [("POD_NAMESPACE", "kube-flannel"), ("POD_NAME", name)];
    assert_eq!(of(&[("NODE_NAME", "n1")]).await.unwrap(), "n1");
    assert_eq!(server.seen(), []);
    assert_eq!(of(&pod("ds-1")).await.unwrap(), "n7");
    assert!(of(&pod("ds-2")).await.unwrap_err().to_string().contains("its spec has no nodeName"));
    assert!(of(&pod("ds-3")).await.is_err());
}

#[tokio::test]
async fn t51_kube_an_overwritten_public_ip_is_published_to_peers() {
    let bench = Bench::new(VXLAN);
    bench.server.put(object("n1", &["10.244.1.0/24"], &[("public-ip-overwrite", "198.51.100.7")]));
    let lease = bench.acquire(vxlan("10.0.0.1")).await.unwrap();
    assert_eq!(
        lease.attributes.public_ip,
        "10.0.0.1".parse::<std::net::Ipv4Addr>().unwrap(),
        "the local one stays"
    );
    assert_eq!(bench.annotation("public-ip").as_deref(), Some("198.51.100.7"));
    bench.acquire(vxlan("10.0.0.1")).await.unwrap();
    assert_eq!(bench.patches().len(), 1, "the second start has nothing to write");
    // A peer of ours reads it from there.
    bench.server.put(peer("n2", "10.244.2.0/24", "198.51.100.8"));
    let (_watch, leases) = follow(&bench.manager()).await;
    assert_eq!(leases[0].attributes.public_ip, "198.51.100.8".parse::<std::net::Ipv4Addr>().unwrap());
}

#[tokio::test]
async fn t52_kube_the_mac_survives_a_change_of_daemons_in_both_directions() {
    let bench = Bench::new(VXLAN);
    bench.acquire(vxlan("10.0.0.1")).await.unwrap();
    // What real daemons split: the MAC is the last member, without blanks (flannel.md section 5.1).
    assert_eq!(bench.annotation("backend-data").unwrap(), r#"{"VNI":1,"VtepMAC":"32:fc:b5:dc:f0:38"}"#);
    let stored = bench.manager().stored().await.unwrap();
    assert_eq!(stored.vteps[0].map(|vtep| vtep.mac), Some(MAC));
    let annotations =
        [("backend-data", r#"{"VtepMAC":"0a:70:0b:90:fc:11"}"#), ("node-public-ip", "10.0.0.99")];
    bench.server.put(object("n1", &["10.244.1.0/24"], &annotations));
    let stored = bench.manager().stored().await.unwrap();
    assert_eq!(stored.vteps[0].map(|vtep| vtep.mac.to_string()).as_deref(), Some("0a:70:0b:90:fc:11"));
    assert_eq!(stored.public_ip, "10.0.0.99".parse().ok());
}

#[tokio::test]
async fn alloc_gets_its_node_once_and_watches_no_others() {
    // flannel.md section 5.2, step 3.
    let bench = Bench::new(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}"#);
    let manager = bench.manager();
    let attributes = Attributes { backend_type: String::new(), backend_data: None, ..vxlan("10.0.0.1") };
    let lease = acquire(&manager, attributes).await.unwrap();
    let mut watch = manager.watch(&lease.key).await.unwrap();
    assert_eq!(next(&mut watch).await, Event::Snapshot(Vec::new()));
    assert!(tokio::time::timeout(Duration::from_millis(20), watch.next()).await.is_err());
    let asked: Vec<String> =
        bench.server.seen().into_iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
    assert_eq!(asked, ["GET /api/v1/nodes/n1", "PATCH /api/v1/nodes/n1/status"]);
}

#[tokio::test]
async fn an_account_that_may_only_list_nodes_is_enough() {
    // flannel.md section 5.2: manifests of older releases do not allow to get a node.
    let bench = Bench::new(VXLAN);
    bench.server.forbid("get nodes");
    assert_eq!(bench.acquire(vxlan("10.0.0.1")).await.unwrap().key, key("10.244.1.0-24"));
    bench.server.forbid("list nodes");
    let error = bench.acquire(vxlan("10.0.0.1")).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("get node n1"), "{error}");
}

#[tokio::test]
async fn an_unreachable_server_and_an_unregistered_node_are_retryable() {
    let bench = Bench::new(VXLAN);
    bench.server.delete("Node", "", "n1");
    assert!(bench.acquire(vxlan("10.0.0.1")).await.unwrap_err().is_retryable());
    bench.server.put(object("n1", &["10.244.1.0/24"], &[]));
    let client = Client::with_deadline(bench.server.source(), Duration::from_secs(3)).unwrap();
    let settings =
        KubeSettings { net_conf: bench.directory.path().join("net-conf.json"), ..KubeSettings::default() };
    let manager = KubeManager::new(Rc::new(client), "n1", settings);
    bench.server.fail_next(100, 503);
    assert!(acquire(&manager, vxlan("10.0.0.1")).await.unwrap_err().is_retryable());
    bench.server.fail_next(0, 503);
    assert!(acquire(&manager, vxlan("10.0.0.1")).await.is_ok());
}
