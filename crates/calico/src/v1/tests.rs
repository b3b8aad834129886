//! Addresses and records of the v1 model over a simulated store that writes one step at a time, as
//! the v2 API does. Tests with kernel and real etcd: crates/russet/tests/whole/calico_v1.rs.

mod delegated;
mod wired;

use russet_model::v1::{ProfilePart, V1Key};
use russet_model::{Block, Key, Prefix};
use russet_store::{Sim, Step};

use super::*;
use crate::datastore::{CalicoHost, Fixed};

fn conf(request: &Request) -> CalicoConf {
    CalicoConf::read(request).unwrap()
}

fn request(container: &str, pod: Option<&str>, extra: &str) -> Request {
    let args = pod.map(|pod| format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}")).unwrap_or_default();
    request_with(container, &args, r#"{"type":"calico-ipam"}"#, "/", extra)
}

fn request_with(container: &str, args: &str, ipam: &str, path: &str, extra: &str) -> Request {
    let config = format!(
        r#"{{"cniVersion":"0.3.1","name":"net1","type":"calico","nodename":"n1","etcd_authority":"127.0.0.1:2379","ipam":{ipam}{extra}}}"#
    );
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/none"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", path),
        ("CNI_ARGS", args),
    ];
    Request::new(vars, config.into_bytes()).unwrap()
}

/// A node; the datastores that it would open are not used here.
fn node(store: &Rc<Sim>) -> CalicoNode {
    let store: Rc<dyn Store> = store.clone();
    let allocator = Rc::new(Allocator::new(store.clone(), Rc::new(SystemClock)));
    let fixed = Rc::new(Fixed(Datastore::with_allocator(store, allocator)));
    CalicoNode::for_request(CalicoHost::new("/nonexistent", fixed))
}

async fn planted() -> Rc<Sim> {
    let store = Rc::new(Sim::non_atomic(1));
    let pool = russet_model::v1::Pool::new("10.1.0.0/24".parse().unwrap());
    let key = V1Key::Pool(pool.cidr).key();
    store.commit(vec![Step::create(key, pool.encode())]).await.unwrap();
    store
}

/// The state of one container in a test.
struct Container {
    node: CalicoNode,
    request: Request,
    conf: CalicoConf,
    store: Rc<Sim>,
    log: RequestLog,
}

impl Container {
    fn new(store: &Rc<Sim>, container: &str, pod: Option<&str>) -> Self {
        Self::of(store, request(container, pod, ""))
    }

    fn of(store: &Rc<Sim>, request: Request) -> Self {
        let conf = conf(&request);
        let log = RequestLog::new("calico");
        Self { node: node(store), conf, request, store: store.clone(), log }
    }

    fn work(&self) -> V1Request<'_> {
        let records = Records { store: self.store.clone(), directories: None };
        let target = self.request.env.target().unwrap();
        V1Request::new(&self.node, &self.request, &self.conf, target, records, None, &self.log).unwrap()
    }

    /// An ADD without the wiring.
    async fn add(&self) -> Vec<IpAddr> {
        let work = self.work();
        let existing = work.records.of_workload(&work.id).await.unwrap();
        let taken = work.take(existing.as_ref()).await.unwrap();
        let mut endpoint = existing.as_ref().map_or_else(fresh, |stored| stored.endpoint.clone());
        endpoint.name = work.attachment(&[]).host_name.to_string();
        endpoint.active_instance_id = work.target.id.container.to_string();
        endpoint.set_addresses(taken.addresses.iter().copied());
        work.describe(&mut endpoint);
        work.publish(&endpoint, existing.as_ref()).await.unwrap();
        taken.addresses
    }

    /// A DEL without the wiring.
    async fn del(&self) {
        let work = self.work();
        let container = work.is_pod().then_some(work.target.id.container.as_str());
        let (mine, newer) = work.records.for_del(&work.id, container).await.unwrap();
        let endpoint = mine.as_ref().map(|stored| stored.endpoint.clone());
        if let Some(stored) = mine {
            work.records.remove(&work.id, stored).await.unwrap();
        }
        let newer = newer.filter(|_| endpoint.is_none());
        work.release(endpoint.as_ref(), newer.as_deref()).await.unwrap();
    }

    async fn held(&self) -> usize {
        let blocks = self.store.list(&Prefix::blocks(None)).await.unwrap().records;
        let used = |block: Block| block.allocations.iter().filter(|slot| slot.is_some()).count();
        blocks.iter().map(|record| used(Block::decode(&record.value).unwrap())).sum()
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn oracle_55_an_add_writes_what_v1_peers_write_and_a_del_leaves_nothing() {
    // calico-cni.md oracle 55, calico-ipam.md section 1.9
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "f00d", Some("web-0"));
        let addresses = pod.add().await;
        let text = async |key: &str| {
            let record = store.get(&Key::from_stored(key)).await.unwrap();
            String::from_utf8(record.unwrap_or_else(|| panic!("{key}")).value).unwrap()
        };
        let block = store.list(&Prefix::blocks(None)).await.unwrap().records.remove(0);
        let text_of_block = String::from_utf8(block.value).unwrap();
        assert!(text_of_block.contains(r#""affinity":"host:n1","strictAffinity":false"#), "{text_of_block}");
        assert!(
            !text_of_block.contains("sequenceNumber") && !text_of_block.contains("deleted"),
            "{text_of_block}"
        );
        let handle = text("/calico/ipam/v2/handle/net1.f00d").await;
        assert!(!handle.contains("deleted"), "{handle}");
        let endpoint = text("/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0").await;
        let endpoint = Endpoint::decode(endpoint.as_bytes()).unwrap();
        assert_eq!(endpoint.nets().map(|net| net.addr()).collect::<Vec<_>>(), addresses);
        assert_eq!(
            (endpoint.active_instance_id.as_str(), endpoint.labels["calico/k8s_ns"].as_str()),
            ("f00d", "shop")
        );
        assert_eq!(text("/calico/v1/policy/profile/net1/tags").await, r#"["net1"]"#);
        pod.del().await;
        assert_eq!(pod.held().await, 0);
        assert!(store.list(&Prefix::handles()).await.unwrap().records.is_empty());
        assert!(store.list(&Prefix::from_stored("/calico/v1/host/")).await.unwrap().records.is_empty());
    });
}

#[test]
fn oracle_56_a_pod_that_comes_again_keeps_its_address_and_no_second_one_is_taken() {
    // calico-cni.md oracle 56
    run(async {
        let store = planted().await;
        let first = Container::new(&store, "old", Some("web-0"));
        let addresses = first.add().await;
        let second = Container::new(&store, "new", Some("web-0"));
        assert_eq!(second.add().await, addresses);
        assert_eq!(second.held().await, 1);
        // The old container's DEL must not release addresses of the new one.
        first.del().await;
        assert_eq!(second.held().await, 1);
        let other = Container::new(&store, "other", Some("web-1"));
        assert_ne!(other.add().await, addresses);
        second.del().await;
        assert_eq!(second.held().await, 1, "the other pod's");
        other.del().await;
        assert_eq!(other.held().await, 0);
    });
}

#[test]
fn an_address_that_was_freed_meanwhile_is_not_taken_from_its_new_owner() {
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "old", Some("web-0"));
        let address = pod.add().await;
        // The address is released, and another pod gets it.
        pod.work().release(None, None).await.unwrap();
        let thief = Container::new(&store, "thief", Some("web-1"));
        let request = AddressRequest {
            attributes: BTreeMap::from([
                ("pod".to_owned(), "web-1".to_owned()),
                ("namespace".to_owned(), "shop".to_owned()),
            ]),
            ..AddressRequest::pod("n1".parse().unwrap(), thief.work().handle())
        };
        thief.work().allocator.assign_ip(&request, address[0]).await.unwrap();
        let again = Container::new(&store, "new", Some("web-0"));
        assert_ne!(again.add().await, address);
        assert_eq!(again.held().await, 2);
    });
}

#[test]
fn a_node_may_have_more_blocks_than_v3_would_let_it() {
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "f00d", Some("web-0"));
        let config = async || pod.work().allocator.config().await.unwrap();
        assert!(config().await.block_limit(0) > 1_000 && config().await.auto_allocate_blocks);
        let stored = r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#;
        store.commit(vec![Step::create(Key::ipam_config(), stored)]).await.unwrap();
        assert!(config().await.block_limit(0) > 1_000 && config().await.strict_affinity);
    });
}

#[test]
fn addresses_of_old_plugins_are_found_by_the_workloads_name() {
    // calico-ipam.md section 1.6: plugins up to 1.11.1 held addresses under `<namespace>.<pod>`.
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "f00d", Some("web-0"));
        let old = AddressRequest::pod("n1".parse().unwrap(), HandleId::new("shop.web-0").unwrap());
        let taken = pod.work().allocator.auto_assign(&old).await.unwrap();
        let mut endpoint = fresh();
        endpoint.active_instance_id = "older".to_owned();
        endpoint.set_addresses(taken.addresses.iter().map(IpNet::addr));
        pod.work().publish(&endpoint, None).await.unwrap();
        assert_eq!(pod.add().await, taken.addresses.iter().map(IpNet::addr).collect::<Vec<_>>());
        pod.del().await;
        assert_eq!(pod.held().await, 0);
    });
}

#[test]
fn a_pod_named_like_a_container_of_the_network_frees_nothing_of_it() {
    // The namespace is named like the network: `<namespace>.<pod>` is the other container's handle.
    run(async {
        let store = planted().await;
        let victim = Container::new(&store, "f00d", None);
        victim.add().await;
        let mut tenant = Container::new(&store, "beef", Some("web-0"));
        tenant.request.env.args =
            russet_cni_spec::CniArgs::parse("K8S_POD_NAMESPACE=net1;K8S_POD_NAME=f00d").unwrap();
        tenant.del().await;
        assert_eq!(victim.held().await, 1);
    });
}

#[test]
fn del_prefers_the_endpoint_under_its_own_key() {
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "f00d", Some("web-0"));
        pod.add().await;
        let beside = "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/";
        let put = async |name: &str, text: &str| {
            store.commit(vec![Step::put(Key::from_stored(format!("{beside}{name}")), text)]).await.unwrap();
        };
        put("eth1", r#"{"state":"active","active_instance_id":"f00d"}"#).await;
        put("eth2", "{").await;
        pod.del().await;
        assert_eq!(pod.held().await, 0);
        assert!(store.get(&Key::from_stored(format!("{beside}eth0"))).await.unwrap().is_none());
        // The endpoint under its own key is unreadable: the addresses are released, and the record
        // stays.
        let other = Container::new(&store, "beef", Some("web-0"));
        other
            .work()
            .allocator
            .auto_assign(&AddressRequest::pod("n1".parse().unwrap(), other.work().handle()))
            .await
            .unwrap();
        put("eth0", "{").await;
        other.del().await;
        assert_eq!(other.held().await, 0);
    });
}

#[test]
fn addresses_stay_held_after_a_lost_race_if_the_interface_existed_or_the_write_is_uncertain() {
    run(async {
        let store = planted().await;
        let pod = Container::new(&store, "f00d", Some("web-0"));
        let work = pod.work();
        let taken = work.take(None).await.unwrap();
        let lost = || CniError::internal("a race was lost", "");
        let error = work.undo(&taken, true, lost().into()).await;
        assert!(error.details.contains("was there before"), "{error:?}");
        assert_eq!(pod.held().await, 1);
        // A lost request looks like a lost answer.
        use russet_store::sim::Fault;
        store.script([Fault::LostRequest]);
        let failure = work.records.write(&work.id, &fresh(), None).await.unwrap_err();
        assert!(!failure.certainly_absent, "{failure:?}");
    });
}

#[test]
fn a_container_outside_kubernetes_is_its_own_workload_with_the_networks_profile() {
    run(async {
        let store = planted().await;
        let container = Container::new(&store, "f00d", None);
        container.add().await;
        let work = container.work();
        let stored = work.records.of_workload(&work.id).await.unwrap().unwrap();
        assert_eq!(stored.key.as_str(), "/calico/v1/host/n1/workload/cni/f00d/endpoint/eth0");
        assert_eq!(stored.endpoint.profile_ids, ["net1"]);
        let result = work.join_network(&stored).await.unwrap();
        assert_eq!(result.ips.len(), 1);
        let stored = work.records.of_workload(&work.id).await.unwrap().unwrap();
        assert_eq!(stored.endpoint.profile_ids, ["net1"], "not repeated");
        let rules =
            store.get(&V1Key::Profile { name: "net1".into(), part: ProfilePart::Rules }.key()).await.unwrap();
        assert!(String::from_utf8(rules.unwrap().value).unwrap().contains("src_tag"));
    });
}

#[test]
fn a_pod_may_name_its_addresses_and_gets_all_of_them_or_none() {
    // calico-cni.md section 2.6: the annotations that v1.11 reads.
    run(async {
        let store = planted().await;
        let six = russet_model::v1::Pool::new("fd00:1::/112".parse().unwrap());
        store.commit(vec![Step::create(V1Key::Pool(six.cidr).key(), six.encode())]).await.unwrap();
        let request = request("f00d", Some("web-0"), r#","policy":{"type":"k8s"}"#);
        let conf = conf(&request);
        let node = node(&store);
        let taken = async |facts: PodFacts| {
            let records = Records { store: store.clone(), directories: None };
            let target = request.env.target().unwrap();
            let log = RequestLog::new("calico");
            let work = V1Request::new(&node, &request, &conf, target, records, Some(&facts), &log).unwrap();
            work.take(None).await.map(|taken| taken.addresses)
        };
        let list =
            |texts: &[&str]| Some(texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>());
        let held = Container::new(&store, "f00d", Some("web-0"));
        let exact = PodFacts { ip_addrs: list(&["10.1.0.7", "fd00:1::4d"]), ..PodFacts::default() };
        assert_eq!(taken(exact.clone()).await.unwrap(), exact.ip_addrs.clone().unwrap());
        assert_eq!(held.held().await, 2);
        held.work().release(None, None).await.unwrap();
        // One of them is in no pool.
        let outside = PodFacts { ip_addrs: list(&["10.1.0.7", "fd00:2::1"]), ..PodFacts::default() };
        taken(outside).await.unwrap_err();
        assert_eq!(held.held().await, 0);
        let two = PodFacts { ip_addrs: list(&["10.1.0.7", "10.1.0.8"]), ..PodFacts::default() };
        let error = taken(two).await.unwrap_err();
        assert!(error.code == 7 && error.details.contains("at most one of each family"), "{error}");
        assert_eq!(held.held().await, 0);
        let unmanaged = PodFacts { ip_addrs_no_ipam: list(&["192.0.2.1"]), ..PodFacts::default() };
        assert_eq!(taken(unmanaged.clone()).await.unwrap(), unmanaged.ip_addrs_no_ipam.clone().unwrap());
        assert_eq!(held.held().await, 0);
        let both = PodFacts { ip_addrs: list(&["10.1.0.7"]), ..unmanaged };
        taken(both).await.unwrap_err();
        let two = PodFacts { ip_addrs_no_ipam: list(&["192.0.2.1", "192.0.2.2"]), ..PodFacts::default() };
        taken(two).await.unwrap_err();
    });
}

#[test]
fn a_closed_datastore_and_what_v1_cannot_do_are_refused() {
    run(async {
        let store = planted().await;
        store.commit(vec![Step::create(V1Key::Ready.key(), "false")]).await.unwrap();
        let pod = Container::new(&store, "f00d", Some("web-0"));
        assert!(pod.work().records.refuse_unready().await.is_err());
        store.commit(vec![Step::put(V1Key::Ready.key(), "true")]).await.unwrap();
        pod.work().records.refuse_unready().await.unwrap();
        let request = request("f00d", Some("web-0"), r#","policy":{"type":"k8s"}"#);
        let conf = conf(&request);
        let records = Records { store: store.clone(), directories: None };
        let target = request.env.target().unwrap();
        let work = V1Request::new(&pod.node, &request, &conf, target, records, None, &pod.log).unwrap();
        let error = work.refuse_blind_policy().unwrap_err();
        assert!(error.details.contains("russet migrate calico-v1"), "{error:?}");
        assert!(pools("ipv4_pools", &["a-name".to_owned()]).is_err());
    });
}

/// How many of 100 writes get each fault: lost replies, lost requests, and conflicts without
/// another writer.
const FAULTS: russet_store::sim::Faults = russet_store::sim::Faults {
    conflict: 10,
    lost_reply: 15,
    lost_request: 10,
    unavailable: 5,
    delayed_event: 0,
    compaction: 0,
};
const SEEDS: u64 = 20;
const PODS: usize = 24;

#[test]
fn random_lost_replies_neither_duplicate_nor_leak_addresses() {
    for seed in 0..SEEDS {
        run(async {
            let store = Rc::new(Sim::non_atomic(seed));
            let pool = russet_model::v1::Pool::new("10.1.0.0/25".parse().unwrap());
            store.commit(vec![Step::create(V1Key::Pool(pool.cidr).key(), pool.encode())]).await.unwrap();
            store.set_faults(FAULTS);
            let mut owners: BTreeMap<IpAddr, usize> = BTreeMap::new();
            for round in 0..PODS * 2 {
                let pod = round % PODS;
                let container = Container::new(&store, &format!("c{round}"), Some(&format!("web-{pod}")));
                let work = container.work();
                let Ok(existing) = work.records.of_workload(&work.id).await else { continue };
                let Ok(taken) = work.take(existing.as_ref()).await else { continue };
                let mut endpoint = existing.as_ref().map_or_else(fresh, |stored| stored.endpoint.clone());
                endpoint.active_instance_id = work.target.id.container.to_string();
                endpoint.set_addresses(taken.addresses.iter().copied());
                if work.publish(&endpoint, existing.as_ref()).await.is_err() {
                    work.give_back(&taken, CniError::internal("no", "")).await;
                    continue;
                }
                for address in taken.addresses {
                    let owner = *owners.entry(address).or_insert(pod);
                    assert_eq!(owner, pod, "seed {seed}, round {round}: {address} has two owners");
                }
            }
            store.set_faults(Default::default());
            for round in 0..PODS * 2 {
                Container::new(&store, &format!("c{round}"), Some(&format!("web-{}", round % PODS)))
                    .del()
                    .await;
            }
            let any = Container::new(&store, "any", None);
            assert_eq!(any.held().await, 0, "seed {seed}: something is left in\n{}", store.dump());
        });
    }
}

/// Changes the only block.
async fn change_block(store: &Sim, change: impl FnOnce(&mut Block)) {
    let record = store.list(&Prefix::blocks(None)).await.unwrap().records.remove(0);
    let mut block = Block::decode(&record.value).unwrap();
    change(&mut block);
    let value = russet_model::v1::block_from_v3(&block);
    store.commit(vec![Step::update(record.key, value, record.revision)]).await.unwrap();
}

#[test]
fn a_strict_block_gives_addresses_to_its_own_node_only() {
    // calico-ipam.md section 1.3: peers up to 3.13 read the block's flag and not the settings.
    run(async {
        let store = Rc::new(Sim::non_atomic(1));
        let pool = russet_model::v1::Pool::new("10.1.0.0/26".parse().unwrap());
        store.commit(vec![Step::create(V1Key::Pool(pool.cidr).key(), pool.encode())]).await.unwrap();
        let own = Container::new(&store, "own", Some("web-0"));
        own.add().await;
        let foreign = |id: &str| AddressRequest::pod("n2".parse().unwrap(), HandleId::new(id).unwrap());
        let allocator = || v1_allocator(Rc::new(V3View::new(store.clone())));
        change_block(&store, |block| block.strict_affinity = true).await;
        let error = allocator().auto_assign(&foreign("net1.a")).await.unwrap_err();
        assert!(matches!(error, IpamError::StrictAffinity { .. }), "{error}");
        let error = allocator().assign_ip(&foreign("net1.a"), "10.1.0.7".parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, IpamError::ForeignBlock { .. }), "{error}");
        assert_eq!(own.held().await, 1);
        Container::new(&store, "second", Some("web-1")).add().await;
        change_block(&store, |block| block.strict_affinity = false).await;
        allocator().auto_assign(&foreign("net1.a")).await.unwrap();
        allocator().assign_ip(&foreign("net1.b"), "10.1.0.7".parse().unwrap()).await.unwrap();
        assert_eq!(own.held().await, 4);
    });
}

#[test]
fn a_new_block_is_as_strict_as_the_settings_are() {
    run(async {
        for strict in [false, true] {
            let store = planted().await;
            let stored = format!(r#"{{"strict_affinity":{strict},"auto_allocate_blocks":true}}"#);
            store.commit(vec![Step::create(Key::ipam_config(), stored)]).await.unwrap();
            Container::new(&store, "f00d", Some("web-0")).add().await;
            let block = store.list(&Prefix::blocks(None)).await.unwrap().records.remove(0);
            let text = String::from_utf8(block.value).unwrap();
            assert!(text.contains(&format!(r#""strictAffinity":{strict}"#)), "{text}");
        }
    });
}
