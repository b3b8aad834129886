use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use russet_cni_spec::{code, table};
use russet_ipam::{Allocator, DefaultPool};
use russet_model::EncapMode;
use russet_policy::Keeper;
use russet_store::{BoxFuture, Sim, StoreError};
use russet_store_etcd::Settings as EtcdSettings;
use russet_wiring::{AttachFailure, Wiring};

use super::*;
use crate::Teardown;
use crate::{CalicoHost, CalicoNode, Datastore, Datastores, KubernetesSettings};

/// The plugin works on the node's store and opens no other.
struct NoDatastores;

impl Datastores for NoDatastores {
    fn open<'a>(&'a self, _: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(std::future::ready(Err(no_datastore())))
    }

    fn open_kubernetes<'a>(
        &'a self,
        _: &'a KubernetesSettings,
    ) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(std::future::ready(Err(no_datastore())))
    }
}

fn no_datastore() -> StoreError {
    StoreError::Invalid { operation: "open a datastore".to_owned(), reason: "a test has none".to_owned() }
}

async fn node() -> Node {
    let store: Rc<dyn russet_store::Store> = Rc::new(Sim::atomic(1));
    let allocator = Rc::new(Allocator::new(store.clone(), Rc::new(SystemClock)));
    for (name, cidr) in [("four", "10.1.0.0/24"), ("six", "fd00:1::/112")] {
        let cidr = cidr.parse().unwrap();
        let pool = DefaultPool { name: name.into(), cidr, vxlan_mode: EncapMode::Never, nat_outgoing: false };
        allocator.ensure_pools(&[pool]).await.unwrap();
    }
    Node {
        name: "node-a".parse().unwrap(),
        store,
        allocator,
        mtu_bytes: Rc::new(Cell::new(1450)),
        packet_sizes: Default::default(),
        pair: Default::default(),
        host: CalicoNode {
            teardown: Teardown::Synchronous,
            ..CalicoNode::for_request(CalicoHost::new("/nonexistent", Rc::new(NoDatastores)))
        },
        releases: Default::default(),
        announce: None,
    }
}

fn request(extra: &str) -> Request {
    request_with(extra, "")
}

/// A request with `CNI_ARGS`.
fn request_with(extra: &str, args: &str) -> Request {
    let config = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"russet"{extra}}}"#);
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/none"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/"),
        ("CNI_ARGS", args),
    ];
    Request::new(vars, config.into_bytes()).unwrap()
}

fn target(request: &Request) -> Target {
    Target::from_request(request, request.env.target().unwrap()).unwrap()
}

/// The address allocation of an ADD, without the wiring.
async fn take(node: &Node, extra: &str, mark: &str) -> Vec<IpAddr> {
    let request = request(extra);
    let (settings, target) = (Settings::read(&request).unwrap(), target(&request));
    let assigned =
        allocate(node, &settings, &target, (&handle(&target), mark), &RequestLog::new("test")).await.unwrap();
    assigned.addresses.iter().map(IpNet::addr).collect()
}

async fn held(node: &Node) -> Vec<IpAddr> {
    let held = node.allocator.ips_by_handle(&handle(&target(&request("")))).await.unwrap();
    held.into_iter().map(|held| held.address).collect()
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

#[test]
fn a_failed_repetition_releases_only_its_own_addresses() {
    run(async {
        let node = node().await;
        let first = take(&node, r#","ipv4_pools":["10.1.0.0/24"]"#, "1").await;
        let both = take(&node, "", "2").await;
        assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
        let failed = AttachFailure { error: CniError::internal("no", ""), undone: true };
        let handle = handle(&target(&request("")));
        failed.give_back(node.allocator.release_of_request(&handle, "2")).await;
        assert_eq!(held(&node).await, first);
    });
}

#[test]
fn addresses_stay_held_while_the_interface_may_exist() {
    run(async {
        let node = node().await;
        let taken = take(&node, "", "1").await;
        let failed = AttachFailure { error: CniError::internal("no", ""), undone: false };
        let handle = handle(&target(&request("")));
        let error = failed.give_back(node.allocator.release_of_request(&handle, "1")).await;
        assert!(error.details.contains("held until DEL"), "{error}");
        assert_eq!(held(&node).await, taken);
    });
}

#[test]
fn an_add_with_a_full_pool_waits_for_releases_in_progress() {
    run(async {
        let node = node().await;
        let pool = r#","ipv4_pools":["10.1.0.0/24"]"#;
        let old = HandleId::new("net.old").unwrap();
        let everything = AddressRequest { v4: 256, ..AddressRequest::pod(node.name.clone(), old.clone()) };
        assert_eq!(node.allocator.auto_assign(&everything).await.unwrap().addresses.len(), 256);
        let (settings, target) = (Settings::read(&request(pool)).unwrap(), target(&request(pool)));
        let handle = handle(&target);
        let log = RequestLog::new("test");
        let add = || allocate(&node, &settings, &target, (&handle, "1"), &log);
        assert_eq!(add().await.unwrap_err().code, failure::NO_ADDRESS, "no release is in progress");
        let del = |work: BoxFuture<'static, Result<(), CniError>>| Release::new(&node.releases, work);
        // One release frees nothing of use; the ADD continues to wait for the other one.
        let broken = del(Box::pin(async { Err(CniError::internal("no", "")) }));
        let allocator = Rc::clone(&node.allocator);
        let freed = async move {
            allocator.release_by_handle(&old, None).await.map(drop).map_err(|e| failure::ipam("no", e))
        };
        let release = del(Box::pin(freed));
        let releases = async { (broken.run().await, release.run().await) };
        let (added, (broken, released)) = tokio::join!(add(), releases);
        assert!(broken.is_err() && released.is_ok());
        assert_eq!(added.unwrap().addresses.len(), 1);
    });
}

#[test]
fn an_add_that_gets_one_family_of_two_says_so() {
    run(async {
        let node = node().await;
        let store = Rc::clone(&node.store);
        let key = russet_model::Key::pool("six").unwrap();
        let record = store.get(&key).await.unwrap().unwrap();
        let mut pool = russet_model::IpPool::decode(&record.value).unwrap();
        pool.spec.disabled = true;
        store.commit(vec![russet_store::Step::put(key, pool.encode())]).await.unwrap();
        let (settings, target) = (Settings::read(&request("")).unwrap(), target(&request("")));
        let log = RequestLog::new("russet");
        let handle = handle(&target);
        let assigned = allocate(&node, &settings, &target, (&handle, "1"), &log).await.unwrap();
        assert_eq!(assigned.addresses.len(), 1);
        let said = log.text();
        assert!(said.contains("the pod gets no IPv6 address: every IPv6 pool is disabled"), "{said}");
    });
}

#[test]
fn every_address_names_the_pods_interface_which_has_a_mac() {
    // cni-runtime.md section 6.2 items 55 and 56
    let request = request("");
    let attached = Attached {
        host_name: "russ0".parse().unwrap(),
        host_ifindex: 7,
        host_mac: "ee:ee:ee:ee:ee:ee".parse().unwrap(),
        pod_ifindex: 2,
        pod_mac: "02:00:00:00:00:42".parse().unwrap(),
        mtu: 1450,
        reused: false,
        bridge_mac: None,
    };
    let addresses = ["10.1.0.5/32", "fd00:1::5/128"].map(|text| text.parse().unwrap());
    let result = result(&request, &target(&request), &attached, &addresses);
    crate::lab::well_formed(&result);
    let of_ips: Vec<&str> =
        result.ips.iter().map(|ip| result.interface_of(ip).unwrap().mac.as_str()).collect();
    assert_eq!(of_ips, ["02:00:00:00:00:42"; 2]);
}

#[test]
#[ignore = "kernel: a namespace whose links are listed"]
fn gc_releases_addresses_even_if_verdicts_cannot_be_compared() {
    russet_testkit::in_new_netns(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let keeper = Keeper::new(Arc::new(|| Err("the interfaces cannot be listed".to_owned())));
            let mut node = node().await;
            node.host.wiring = Wiring::default().with_verdicts(keeper);
            assert_eq!(take(&node, "", "1").await.len(), 2);
            let mut gc = request(r#","cni.dev/valid-attachments":[]"#);
            gc.env.call = Call::Gc;
            let error = gc::run(&node, &gc).await.unwrap_err();
            assert_eq!(error.code, code::TRY_AGAIN_LATER, "{error}");
            assert!(error.details.contains("the interfaces cannot be listed"), "{error}");
            assert_eq!(held(&node).await, Vec::<IpAddr>::new());
        });
    });
}

/// The allocation of an ADD that may request addresses.
async fn ask(node: &Node, request: &Request, mark: &str) -> Result<Vec<IpAddr>, CniError> {
    let (settings, target) = (Settings::read(request)?, target(request));
    let log = RequestLog::new("test");
    let assigned = allocate(node, &settings, &target, (&handle(&target), mark), &log).await?;
    Ok(assigned.addresses.iter().map(IpNet::addr).collect())
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn an_address_that_is_requested_is_the_one_that_is_given() {
    let capability = r#","runtimeConfig":{"ips":["10.1.0.77/24","fd00:1::77"]}"#;
    let of_orchestrator = r#","args":{"cni":{"ips":["10.1.0.77"]}}"#;
    for (extra, args, given) in [
        ("", "IP=10.1.0.77", &["10.1.0.77"][..]),
        ("", "IgnoreUnknown=1;K8S_POD_NAME=web;IP=fd00:1::77", &["fd00:1::77"]),
        (capability, "", &["10.1.0.77", "fd00:1::77"]),
        (of_orchestrator, "IP=10.1.0.77", &["10.1.0.77"]),
    ] {
        run(async {
            let node = node().await;
            let request = request_with(extra, args);
            for _ in 0..2 {
                assert_eq!(ask(&node, &request, "1").await.unwrap(), addresses(given), "{extra} {args}");
                assert_eq!(held(&node).await, addresses(given));
            }
            release(&node, &request, &target(&request)).run().await.unwrap();
            assert_eq!(held(&node).await, [] as [IpAddr; 0]);
        });
    }
}

#[test]
fn an_address_that_cannot_be_given_is_an_error_and_nothing_is_held() {
    let of_pool = r#","ipv4_pools":["10.9.0.0/24"]"#;
    let second_taken = r#","runtimeConfig":{"ips":["10.1.0.8","fd00:1::5"]}"#;
    let two = r#","runtimeConfig":{"ips":["10.1.0.8","10.1.0.9"]}"#;
    for (extra, args, code, said) in [
        ("", "IP=192.0.2.1", failure::NO_ADDRESS, "192.0.2.1 is not in a configured pool"),
        ("", "IP=10.1.0.5", failure::NO_ADDRESS, "already assigned"),
        (second_taken, "", failure::NO_ADDRESS, "fd00:1::5 is already assigned"),
        ("", "IP=10.1.0.200", failure::NO_ADDRESS, "serves host:node-b"),
        (of_pool, "IP=10.1.0.8", failure::NO_ADDRESS, "in none of the network's pools"),
        (two, "", code::INVALID_CONFIG, "2 IPv4 addresses are requested"),
        ("", "IP=10.1.0", code::ENVIRONMENT, "cannot understand ip"),
        ("", "MAC=02:00:00:00:00:zz", code::ENVIRONMENT, "MAC"),
        ("", "MAC=ee:ee:ee:ee:ee:ee", code::ENVIRONMENT, "the node's end"),
    ] {
        run(async {
            let node = node().await;
            let other = HandleId::new("net.other").unwrap();
            let other = AddressRequest::pod(node.name.clone(), other);
            for address in addresses(&["10.1.0.5", "fd00:1::5"]) {
                node.allocator.assign_ip(&other, address).await.unwrap();
            }
            let far = AddressRequest { node: "node-b".parse().unwrap(), ..other };
            node.allocator.assign_ip(&far, "10.1.0.201".parse().unwrap()).await.unwrap();
            let error = ask(&node, &request_with(extra, args), "1").await.unwrap_err();
            assert_eq!(error.code, code, "{extra} {args}: {error}");
            assert!(error.to_string().contains(said), "{extra} {args}: {error}");
            assert_eq!(held(&node).await, [] as [IpAddr; 0], "{extra} {args}");
        });
    }
}

#[test]
fn a_repeated_add_that_requests_another_address_is_refused() {
    run(async {
        let node = node().await;
        let first = ask(&node, &request_with("", "IP=10.1.0.77"), "1").await.unwrap();
        let both = r#","runtimeConfig":{"ips":["10.1.0.77","fd00:1::77"]}"#;
        for (extra, args) in [("", "IP=10.1.0.78"), ("", "IP=fd00:1::77"), (both, "")] {
            let error = ask(&node, &request_with(extra, args), "2").await.unwrap_err();
            assert_eq!(error.code, failure::NO_ADDRESS, "{error}");
            assert!(
                error.msg.contains("holds [10.1.0.77] already") && error.details.contains("DEL"),
                "{error}"
            );
            assert_eq!(held(&node).await, first);
        }
    });
}

#[test]
fn a_requested_mac_is_the_interfaces_and_unknown_arguments_are_refused() {
    run(async {
        let node = node().await;
        let mac = |extra: &str, args: &str| {
            let request = request_with(extra, args);
            let settings = Settings::read(&request).unwrap();
            attachment(&node, &settings, &target(&request)).pod_mac().to_string()
        };
        let by_default = mac("", "");
        assert_eq!(mac("", "MAC=02:11:22:33:44:55"), "02:11:22:33:44:55");
        assert_eq!(
            mac(r#","runtimeConfig":{"mac":"02:11:22:33:44:66"}"#, "MAC=02:11:22:33:44:55"),
            "02:11:22:33:44:66"
        );
        assert_eq!(
            mac(r#","args":{"cni":{"mac":"02:11:22:33:44:77"}}"#, "MAC=02:11:22:33:44:55"),
            "02:11:22:33:44:77"
        );
        assert_ne!(by_default, "02:11:22:33:44:55");
        let unknown = request_with("", "FOO=1;IP=10.1.0.7");
        let error = add(&node, &unknown, &target(&unknown), &RequestLog::new("test")).await.unwrap_err();
        assert!(error.code == code::ENVIRONMENT && error.msg.contains("FOO=1"), "{error}");
    });
}

#[test]
fn every_plugin_of_the_table_has_code() {
    run(async {
        let node = node().await;
        for plugin in &table::PLUGINS {
            let mut request = request(r#","datastore_type":"kubernetes""#);
            request.env.call = Call::Status;
            let done = crate::run(&node, plugin.name, &request, &RequestLog::new(plugin.name)).await;
            let unknown = done.is_err_and(|error| error.msg.contains("is not a plugin"));
            assert!(!unknown, "{}", plugin.name);
        }
        let other = crate::run(&node, "macvlan", &request(""), &RequestLog::new("macvlan")).await;
        assert!(other.unwrap_err().details.contains("host-local"));
    });
}
