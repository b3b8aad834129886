//! Two simulated stores: one stands for Kubernetes' nodes, one for the machine's own.

use russet_model::{HandleId, Node, NodeSpec};
use russet_store::sim::Fault;
use russet_store::{Event, Sim};
use serde_json::json;

use super::*;

struct Cluster {
    nodes: Sim,
    local: Sim,
    store: PodCidrStore,
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn node(text: &str, ranges: &[&str], label: &str) -> Step {
    let mut value: serde_json::Value =
        serde_json::from_slice(&Node::new(text, NodeSpec::default()).encode()).unwrap();
    value["status"] = json!({ "podCIDRs": ranges });
    value["metadata"]["labels"] = json!({ "beat": label });
    Step::put(Key::node(&name(text)), value.to_string())
}

impl Cluster {
    fn new() -> Self {
        let (nodes, local) = (Sim::atomic(1), Sim::atomic(2));
        let store = Self::process(&nodes, &local);
        Self { nodes, local, store }
    }

    /// What a process of node `a` makes of the same stores.
    fn process(nodes: &Sim, local: &Sim) -> PodCidrStore {
        let (nodes, local): (Rc<dyn Store>, Rc<dyn Store>) = (Rc::new(nodes.clone()), Rc::new(local.clone()));
        PodCidrStore::new(name("a"), DefaultPools::default(), nodes, local)
    }

    async fn put(&self, text: &str, ranges: &[&str]) {
        self.nodes.commit(vec![node(text, ranges, "1")]).await.unwrap();
    }

    fn allocator(&self) -> Allocator {
        Allocator::new(Rc::new(self.store.clone()), Rc::new(SystemClock))
    }

    async fn assign(&self, handle: &str) -> Result<Vec<String>, IpamError> {
        let mut request = russet_ipam::Request::pod(name("a"), HandleId::new(handle).unwrap());
        request.v6 = 1;
        let assigned = self.allocator().auto_assign(&request).await?;
        Ok(assigned.addresses.iter().map(|net| net.addr().to_string()).collect())
    }
}

fn keys(event: Event) -> Vec<String> {
    let short = |key: &Key| key.as_str().trim_start_matches("/calico/ipam/v2/host/").to_owned();
    match event {
        Event::Snapshot(snapshot) => snapshot.records.iter().map(|record| short(&record.key)).collect(),
        Event::Put(record) => vec![format!("+{}", short(&record.key))],
        Event::Deleted { key, .. } => vec![format!("-{}", short(&key))],
    }
}

#[tokio::test]
async fn pods_get_addresses_of_the_nodes_ranges_and_the_api_server_is_not_written() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/24", "fd72:7573:7365:3::/64"]).await;
    let before = cluster.nodes.records();
    assert_eq!(cluster.assign("one").await.unwrap(), ["10.244.3.0", "fd72:7573:7365:3::"]);
    assert_eq!(cluster.assign("two").await.unwrap(), ["10.244.3.1", "fd72:7573:7365:3::1"]);
    let released = cluster.allocator().release_by_handle(&HandleId::new("one").unwrap(), None).await.unwrap();
    assert_eq!(released.addresses.len(), 2);
    assert_eq!(cluster.nodes.records(), before);
    let pools = cluster.allocator().pools().await.unwrap();
    let blocks: Vec<_> =
        pools.iter().map(|pool| (pool.spec.cidr.to_string(), pool.spec.block_size)).collect();
    assert_eq!(
        blocks,
        [("10.244.0.0/16".to_owned(), Some(24)), ("fd72:7573:7365::/48".to_owned(), Some(120))]
    );
}

#[tokio::test]
async fn a_full_range_is_not_left() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/30"]).await;
    for handle in ["one", "two", "three", "four"] {
        let request = russet_ipam::Request::pod(name("a"), HandleId::new(handle).unwrap());
        cluster.allocator().auto_assign(&request).await.unwrap();
    }
    let request = russet_ipam::Request::pod(name("a"), HandleId::new("five").unwrap());
    assert!(cluster.allocator().auto_assign(&request).await.unwrap_err().exhausted());
}

#[tokio::test]
async fn no_address_is_given_before_the_api_server_has_said_which() {
    let cluster = Cluster::new();
    let error = cluster.assign("one").await.unwrap_err();
    assert!(error.to_string().contains("the cluster has no such Node yet"), "{error}");
    cluster.put("a", &[]).await;
    let error = cluster.assign("one").await.unwrap_err();
    assert!(error.retryable() && error.to_string().contains("--allocate-node-cidrs"), "{error}");
    cluster.put("a", &["192.0.2.0/24"]).await;
    let error = cluster.assign("one").await.unwrap_err();
    assert!(error.to_string().contains("it is not in --ipv4-pool 10.244.0.0/16"), "{error}");
    assert!(cluster.local.records().is_empty());
    cluster.put("a", &["10.244.3.0/24", "fd72:7573:7365:3::/64"]).await;
    cluster.assign("one").await.unwrap();
    // The next process asks again: the ranges may be another node's by now.
    let store = Cluster::process(&cluster.nodes, &cluster.local);
    cluster.nodes.commit(vec![Step::delete(Key::node(&name("a")), None)]).await.unwrap();
    let later = Cluster { store, nodes: cluster.nodes.clone(), local: cluster.local.clone() };
    later.assign("two").await.unwrap_err();
    let handle = HandleId::new("one").unwrap();
    assert_eq!(later.allocator().release_by_handle(&handle, None).await.unwrap().addresses.len(), 2);
}

#[tokio::test]
async fn other_nodes_have_affinities_to_their_ranges() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/24"]).await;
    cluster.put("b", &["10.244.4.0/24", "fd72:7573:7365:4::/64"]).await;
    let mut watch = cluster.store.watch(&Prefix::all_affinities()).await.unwrap();
    let first = keys(watch.next().await.unwrap());
    let b4 = "b/ipv4/block/10.244.4.0-24";
    assert_eq!(first, ["a/ipv4/block/10.244.3.0-24", b4, "b/ipv6/block/fd72:7573:7365:4::-118"]);
    let listed = cluster.store.list(&Prefix::all_affinities()).await.unwrap();
    assert_eq!(keys(Event::Snapshot(listed)), first);
    let key =
        Key::affinity(&name("b"), russet_addr::BlockCidr::new("10.244.4.0/24".parse().unwrap()).unwrap());
    assert!(cluster.store.get(&key).await.unwrap().is_some());
    let refused = cluster.store.commit(vec![Step::delete(key, None)]).await.unwrap_err();
    assert!(refused.error.to_string().contains("it is what Node b says"), "{}", refused.error);
    // A kubelet writes its node every few minutes; that changes no route.
    cluster.nodes.commit(vec![node("b", &["10.244.4.0/24", "fd72:7573:7365:4::/64"], "2")]).await.unwrap();
    cluster.put("b", &["10.244.5.0/24"]).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(keys(watch.next().await.unwrap()));
    }
    seen.sort();
    let wanted = [
        "+b/ipv4/block/10.244.5.0-24",
        "-b/ipv4/block/10.244.4.0-24",
        "-b/ipv6/block/fd72:7573:7365:4::-118",
    ];
    assert_eq!(seen, wanted);
    cluster.nodes.commit(vec![Step::delete(Key::node(&name("b")), None)]).await.unwrap();
    assert_eq!(keys(watch.next().await.unwrap()), ["-b/ipv4/block/10.244.5.0-24"]);
}

#[tokio::test]
async fn a_watch_of_nodes_serves_the_watch_of_affinities_too() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/24"]).await;
    cluster.put("b", &["10.244.4.0/24"]).await;
    let mut nodes = cluster.store.watch(&Prefix::nodes()).await.unwrap();
    nodes.next().await.unwrap();
    let mut affinities = cluster.store.watch(&Prefix::all_affinities()).await.unwrap();
    assert_eq!(
        keys(affinities.next().await.unwrap()),
        ["a/ipv4/block/10.244.3.0-24", "b/ipv4/block/10.244.4.0-24"]
    );
    cluster.put("b", &["10.244.5.0/24"]).await;
    let is_silent = tokio::time::timeout(std::time::Duration::from_millis(50), affinities.next()).await;
    assert!(is_silent.is_err(), "it has no watch of its own");
    nodes.next().await.unwrap();
    let mut seen = vec![keys(affinities.next().await.unwrap()), keys(affinities.next().await.unwrap())];
    seen.sort();
    assert_eq!(seen, [["+b/ipv4/block/10.244.5.0-24"], ["-b/ipv4/block/10.244.4.0-24"]]);
    drop(nodes);
    assert!(affinities.next().await.unwrap_err().retryable(), "it begins again");
}

#[tokio::test]
async fn a_node_with_other_ranges_gives_no_address_of_the_old_ones() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/24", "fd72:7573:7365:3::/64"]).await;
    let mut watch = cluster.store.watch(&Prefix::all_affinities()).await.unwrap();
    watch.next().await.unwrap();
    cluster.assign("one").await.unwrap();
    cluster.put("a", &["10.244.9.0/24", "fd72:7573:7365:9::/64"]).await;
    let mut seen = Vec::new();
    while !seen.contains(&"+a/ipv4/block/10.244.9.0-24".to_owned()) {
        seen.extend(keys(watch.next().await.unwrap()));
    }
    assert!(seen.contains(&"-a/ipv4/block/10.244.3.0-24".to_owned()), "{seen:?}");
    assert_eq!(cluster.assign("two").await.unwrap(), ["10.244.9.0", "fd72:7573:7365:9::"]);
    // The old pod keeps its address until its DEL.
    let handle = HandleId::new("one").unwrap();
    assert_eq!(cluster.allocator().release_by_handle(&handle, None).await.unwrap().addresses.len(), 2);
}

#[tokio::test]
async fn a_deleted_node_gives_no_address_until_it_is_back() {
    let cluster = Cluster::new();
    let ranges = ["10.244.3.0/24", "fd72:7573:7365:3::/64"];
    cluster.put("a", &ranges).await;
    let mut watch = cluster.store.watch(&Prefix::all_affinities()).await.unwrap();
    watch.next().await.unwrap();
    cluster.nodes.commit(vec![Step::delete(Key::node(&name("a")), None)]).await.unwrap();
    assert!(watch.next().await.unwrap_err().retryable());
    cluster.assign("one").await.unwrap_err();
    cluster.put("a", &ranges).await;
    cluster.assign("one").await.unwrap();
}

#[tokio::test]
async fn changed_settings_of_the_cluster_reach_the_pools() {
    let cluster = Cluster::new();
    cluster.put("a", &["10.244.3.0/24", "fd72:7573:7365:3::/64"]).await;
    cluster.assign("one").await.unwrap();
    let pools = DefaultPools {
        ipv4: "10.0.0.0/8".parse().ok(),
        ipv6: None,
        encapsulation: crate::config::Encapsulation::None,
    };
    cluster.put("a", &["10.244.3.0/24"]).await;
    let (nodes, local): (Rc<dyn Store>, Rc<dyn Store>) =
        (Rc::new(cluster.nodes.clone()), Rc::new(cluster.local.clone()));
    // An interrupted preparation is completed by the next.
    cluster.local.script([Fault::LostReply, Fault::Unavailable]);
    let store = PodCidrStore::new(name("a"), pools, nodes, local);
    let mut attempts = 0;
    let records = loop {
        attempts += 1;
        match store.list(&Prefix::pools()).await {
            Ok(snapshot) => break snapshot.records,
            Err(error) => assert!(attempts < 5, "{error}"),
        }
    };
    let pools: Vec<IpPool> = records.iter().map(|record| IpPool::decode(&record.value).unwrap()).collect();
    let shown: Vec<_> = pools.iter().map(|pool| (pool.spec.cidr.to_string(), pool.spec.vxlan_mode)).collect();
    assert_eq!(shown, [("10.0.0.0/8".to_owned(), russet_model::EncapMode::Never)]);
}
