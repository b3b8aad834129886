//! The conformance suite and the allocator over a real API server with the definitions of packaging/kubernetes/crds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_ipam::{Allocator, Request, SystemClock};
use russet_kube::Source;
use russet_model::{HandleId, Key, Prefix};
use russet_store::conformance::core;
use russet_store::{Step, Store};
use russet_store_kube::KubeStore;
use russet_testkit::kubernetes::{ApiServer, Options, Release};
use serde_json::Value;

use crate::allocator::join;
use crate::subject::{OnServer, settings};

const TIMEOUT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

fn definitions() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/crds");
    let files =
        std::fs::read_dir(directory).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.map(|text| russet_kube::yaml::from_slice(&text).unwrap()).collect()
}

/// A store in a server with the definitions.
async fn defined(server: &ApiServer) -> KubeStore {
    server.create(&definitions());
    let store = KubeStore::connect(settings(Source::kubeconfig(server.admin_kubeconfig()))).unwrap();
    // A definition is served a moment after it was created.
    let served = async {
        while store.list(&Prefix::everything()).await.is_err() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    tokio::time::timeout(TIMEOUT, served).await.unwrap();
    store
}

/// The requests about Calico's resources since `before`.
fn since(server: &ApiServer, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let resources = ["ipamblocks", "ipamhandles", "blockaffinities", "ippools", "ipamconfigs", "nodes"];
    let counts = server.requests().into_iter().filter_map(|(request, count)| {
        let is_ours = resources.iter().any(|resource| request.ends_with(&format!(" {resource}")));
        let more = count - before.get(&request).copied().unwrap_or_default();
        (is_ours && more > 0).then_some((request, more))
    });
    counts.collect()
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn the_newest_api_server_counts_two_writes_of_an_add_and_of_a_del_and_no_reads() {
    // kubernetes.md K40 and K43, section 4.3
    let server = Options::new(Release::Newest).start();
    let store = defined(&server).await;
    let ipam = allocator(store).await;
    let add = |name: &str| {
        let request = Request::pod("node-a".parse().unwrap(), id(name));
        let ipam = &ipam;
        async move { ipam.auto_assign(&request).await.unwrap() }
    };
    add("net.first").await;
    let before = server.requests();
    add("net.a").await;
    let one = |text: &str| (text.to_owned(), 1);
    assert_eq!(since(&server, &before), BTreeMap::from([one("POST ipamhandles"), one("PUT ipamblocks")]));
    let before = server.requests();
    ipam.release_by_handle(&id("net.a"), None).await.unwrap();
    assert_eq!(since(&server, &before), BTreeMap::from([one("DELETE ipamhandles"), one("PUT ipamblocks")]));
}

fn id(name: &str) -> HandleId {
    HandleId::new(name).unwrap()
}

/// An allocator with a pool.
async fn allocator(store: KubeStore) -> Allocator {
    let pool = r#"{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/24","blockSize":26}}"#;
    store.commit(vec![Step::put(Key::pool("p").unwrap(), pool)]).await.unwrap();
    Allocator::new(Rc::new(store), Rc::new(SystemClock)).with_cache(Duration::from_secs(3600))
}

/// Repeats an ADD as a runtime does, until it succeeds. Returns its address, and how long the slowest try
/// took.
async fn added(ipam: &Allocator, handle: &HandleId) -> (IpAddr, Duration) {
    let request = Request::pod("node-a".parse().unwrap(), handle.clone());
    let mut slowest = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let assigned = ipam.auto_assign(&request).await;
        slowest = slowest.max(begun.elapsed());
        match assigned {
            Ok(assigned) => return (assigned.addresses[0].addr(), slowest),
            Err(error) => assert!(error.retryable(), "code 11: {error}"),
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// Each handle has one address, and after their releases nothing is left.
async fn assert_one_each(ipam: &Allocator, store: &KubeStore, held: &[(HandleId, IpAddr)]) {
    for (handle, address) in held {
        let of_handle = ipam.ips_by_handle(handle).await.unwrap();
        assert!(matches!(&of_handle[..], [one] if one.address == *address), "{handle}: {of_handle:?}");
        ipam.release_by_handle(handle, None).await.unwrap();
    }
    let addresses: BTreeSet<IpAddr> = held.iter().map(|(_, address)| *address).collect();
    assert_eq!(addresses.len(), held.len(), "no address twice");
    assert!(store.list(&Prefix::handles()).await.unwrap().records.is_empty());
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn an_add_while_etcd_is_stopped_fails_in_time_and_leaks_nothing() {
    // kubernetes.md K62
    let server = Options::new(Release::Newest).start();
    let store = defined(&server).await;
    let ipam = allocator(store.clone()).await;
    let (first, _) = added(&ipam, &id("net.first")).await;
    server.etcd.members[0].stop();
    let begun = Instant::now();
    let request = Request::pod("node-a".parse().unwrap(), id("net.a"));
    let error = ipam.auto_assign(&request).await.unwrap_err();
    assert!(error.retryable() && begun.elapsed() < TIMEOUT, "code 11: {error}, {:?}", begun.elapsed());
    server.etcd.members[0].resume();
    let (address, _) = added(&ipam, &id("net.a")).await;
    assert_one_each(&ipam, &store, &[(id("net.first"), first), (id("net.a"), address)]).await;
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn adds_while_the_api_server_restarts_end_in_time_and_get_one_address_each() {
    // kubernetes.md K74
    const ADDS: usize = 100;
    let mut server = Options::new(Release::Newest).start();
    let store = defined(&server).await;
    let ipam = allocator(store.clone()).await;
    let handles: Vec<HandleId> = (0..ADDS).map(|n| id(&format!("net.{n}"))).collect();
    // 20 a second; the server is killed after the first second.
    let adds = handles.iter().enumerate().map(|(n, handle)| {
        let ipam = &ipam;
        async move {
            tokio::time::sleep(Duration::from_millis(50 * n as u64)).await;
            added(ipam, handle).await
        }
    });
    let restart = std::thread::spawn(move || {
        russet_testkit::let_pass(Duration::from_secs(1));
        server.kill();
        server.start();
        server
    });
    let done = tokio::time::timeout(3 * TIMEOUT, join(adds)).await.unwrap();
    let _server = restart.join().unwrap();
    let slowest = done.iter().map(|(_, slowest)| *slowest).max().unwrap();
    assert!(slowest < Duration::from_secs(30), "{slowest:?}");
    let held: Vec<_> = handles.into_iter().zip(done.iter().map(|(address, _)| *address)).collect();
    assert_one_each(&ipam, &store, &held).await;
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn the_newest_api_server_passes_core() {
    passes_core(Release::Newest).await;
}

#[tokio::test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
async fn an_older_api_server_passes_core() {
    passes_core(Release::Older).await;
}

async fn passes_core(release: Release) {
    let server = Options::new(release).start();
    defined(&server).await;
    let source = Source::kubeconfig(server.admin_kubeconfig());
    core(async || OnServer::emptied(source.clone()).await).await;
}
