//! The v2 engine against real members that serve the v2 API.

use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_model::{Key, Prefix};
use russet_store::conformance::{Subject, core, ttl};
use russet_store::{BoxFuture, Event, Revision, Step, Store, StoreError, Watch};
use russet_store_etcd::{EtcdV2, Life, Secret, Settings};
use russet_testkit::proxy::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::key;
use crate::server::{Clients, Cluster, TIMEOUT};
use crate::watch::{begun, differences_are_reported, next};

/// How many changes a member remembers.
const REMEMBERED: usize = 1_000;

fn members(count: usize) -> Cluster {
    Cluster::start(count, "http", |_| vec!["--enable-v2".to_owned()], Vec::new())
}

fn client(address: &str) -> EtcdV2 {
    EtcdV2::connect(Settings::for_endpoints(address).unwrap()).unwrap()
}

/// Writes more changes outside the prefix than a member remembers.
async fn bury(store: &EtcdV2) {
    let local = tokio::task::LocalSet::new();
    for writer in 0..16 {
        let store = store.clone();
        local.spawn_local(async move {
            for _ in 0..=REMEMBERED / 16 {
                let key = Key::from_stored(format!("/elsewhere/{writer}"));
                store.commit(vec![Step::put(key, "x")]).await.unwrap();
            }
        });
    }
    local.await;
}

struct Relayed {
    proxy: Proxy,
}

impl Relayed {
    async fn fresh(cluster: &Cluster) -> Self {
        let direct = client(&cluster.members[0].client);
        for record in direct.list(&Prefix::everything()).await.unwrap().records {
            direct.commit(vec![Step::delete(record.key, None)]).await.unwrap();
        }
        Self { proxy: Proxy::to(&cluster.members[0].client).await }
    }
}

impl Subject for Relayed {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(client(&self.proxy.address))
    }

    fn interrupt(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.proxy.cut())
    }

    /// One request each.
    fn many(&self) -> usize {
        3_000
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn etcd_v2_passes_core() {
    let cluster = members(1);
    core(async || Relayed::fresh(&cluster).await).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn etcd_v2_passes_ttl() {
    let cluster = members(1);
    ttl(async || Relayed::fresh(&cluster).await).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_watch_reports_the_differences_after_the_history_was_cleared() {
    // flannel.md section 3.5: error 401 (index cleared) -> new snapshot and diff.
    let cluster = members(1);
    let proxy = Proxy::to(&cluster.members[0].client).await;
    let direct = client(&cluster.members[0].client);
    let relayed = client(&proxy.address);
    differences_are_reported(&proxy, &relayed, &direct, async || bury(&direct).await).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_slow_watcher_gets_every_last_version() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    let mut watch = begun(&store).await;
    for n in 0..1_500 {
        store.commit(vec![Step::put(key(n % 50), format!("{n}"))]).await.unwrap();
    }
    let mut seen = std::collections::BTreeMap::new();
    while seen.values().filter(|n| **n >= 1_450).count() < 50 {
        let Event::Put(record) = next(&mut watch).await else { panic!("nothing was deleted") };
        let n: usize = String::from_utf8(record.value).unwrap().parse().unwrap();
        assert!(seen.insert(record.key, n).is_none_or(|before| before < n), "reported twice or out of order");
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_removed_directory_is_reported_key_by_key() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    for n in 0..3 {
        store.commit(vec![Step::create(key(n), "x")]).await.unwrap();
    }
    let mut watch = begun(&store).await;
    request(&cluster.members[0].client, "DELETE", "/v2/keys/calico/ipam?recursive=true").await;
    for n in 0..3 {
        assert!(matches!(next(&mut watch).await, Event::Deleted { key: gone, .. } if gone == key(n)));
    }
}

/// The number of full blocks in a large cluster, and the size of one (calico-ipam.md section 1.3).
const BLOCKS: usize = 5_000;
const BLOCK_BYTES: usize = 20_000;

#[tokio::test]
#[ignore = "tool: etcd"]
async fn five_thousand_blocks_of_20_kb_are_listed_in_one_answer() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    let local = tokio::task::LocalSet::new();
    for writer in 0..8 {
        let store = store.clone();
        local.spawn_local(async move {
            for n in (writer..BLOCKS).step_by(8) {
                // Quotes, as in the JSON of a block: each takes two more bytes as a string within
                // JSON.
                let value = format!("{n:0width$}", width = BLOCK_BYTES / 2) + &"\"".repeat(BLOCK_BYTES / 2);
                store.commit(vec![Step::create(key(n), value)]).await.unwrap();
            }
        });
    }
    local.await;
    let begun = Instant::now();
    let snapshot = store.list(&Prefix::handles()).await.unwrap();
    let bytes: usize = snapshot.records.iter().map(|record| record.value.len()).sum();
    println!("listed {} records, {} MB in {:?}", snapshot.records.len(), bytes / 1_000_000, begun.elapsed());
    assert_eq!((snapshot.records.len(), bytes), (BLOCKS, BLOCKS * BLOCK_BYTES));
    for (n, record) in snapshot.records.iter().enumerate() {
        assert_eq!(record.key, key(n));
    }
}

/// One raw request of another client: head and body of the answer.
async fn request(address: &str, method: &str, target: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn one_of_two_updates_from_the_same_revision_succeeds() {
    let cluster = members(1);
    let address = &cluster.members[0].client;
    let (one, other) = (client(address), client(address));
    let first = one.commit(vec![Step::create(key(1), "0")]).await.unwrap()[0];
    let (a, b) = tokio::join!(
        one.commit(vec![Step::update(key(1), "one", first)]),
        other.commit(vec![Step::update(key(1), "other", first)]),
    );
    let (won, lost) = if a.is_ok() { ("one", b) } else { ("other", a) };
    assert!(matches!(lost.unwrap_err().error, StoreError::Conflict { .. }));
    let record = one.get(&key(1)).await.unwrap().unwrap();
    assert_eq!(record.value, won.as_bytes());
    let error = one.commit(vec![Step::update(key(1), "x", Revision(0))]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Conflict { .. }), "0 is no licence: {error}");
    let error = one.commit(vec![Step::delete(key(1), Some(first))]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Conflict { .. }), "{error}");
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn the_server_counts_the_time_to_live_and_a_reservation_has_none() {
    // flannel.md section 3.1a: expiry comes from the node; absent = reservation.
    let cluster = members(1);
    let address = &cluster.members[0].client;
    let store = client(address);
    let lease = store.grant(Duration::from_secs(86_400)).await.unwrap();
    let subnet = Key::from_stored("/coreos.com/network/subnets/10.60.8.0-24");
    store.commit(vec![Step::create(subnet.clone(), "{}").with_lease(lease)]).await.unwrap();
    let seen = request(address, "GET", "/v2/keys/coreos.com/network/subnets?recursive=true").await;
    assert!(seen.contains("\"ttl\":86400") && seen.contains("\"expiration\""), "{seen}");
    let (record, life) = store.get_with_life(&subnet).await.unwrap().unwrap();
    assert!(matches!(life, Life::For(left) if left > Duration::from_secs(86_000)), "{life:?}");
    let (listed, _) =
        store.list_with_life(&Prefix::from_stored("/coreos.com/network/subnets")).await.unwrap();
    assert!(matches!(&listed[..], [(found, Life::For(_))] if *found == record), "{listed:?}");
    // Another client makes it a reservation with the same value: renewing must not set a time to
    // live again.
    store.commit(vec![Step::update(subnet.clone(), "{}", record.revision)]).await.unwrap();
    store.keep_alive(lease).await.unwrap();
    assert_eq!(store.get_with_life(&subnet).await.unwrap().unwrap().1, Life::Forever);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_renewal_whose_answer_was_lost_is_looked_up() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    let lease = store.grant(Duration::from_secs(100)).await.unwrap();
    store.commit(vec![Step::create(key(1), "x").with_lease(lease)]).await.unwrap();
    // The state after a lost answer: the same value and a time to live, at an index that this
    // engine does not know.
    let lost = "/v2/keys/calico/ipam/v2/handle/k8s-pod-network.000001?prevExist=true&refresh=true&ttl=7";
    assert!(request(&cluster.members[0].client, "PUT", lost).await.contains("200 OK"));
    store.keep_alive(lease).await.unwrap();
    let (_, life) = store.get_with_life(&key(1)).await.unwrap().unwrap();
    assert!(matches!(life, Life::For(left) if left > Duration::from_secs(90)), "{life:?}");
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(&key(1)).await.unwrap(), None);
}

/// Puts the first record repeatedly until that is answered: a restarted member may begin an
/// election.
async fn eventually_put(store: &EtcdV2, value: &str) {
    let begun = Instant::now();
    while let Err(error) = store.commit(vec![Step::put(key(1), value)]).await {
        assert!(error.error.retryable() || error.error.outcome_unknown(), "{error}");
        assert!(begun.elapsed() < TIMEOUT, "{error}");
    }
}

/// Takes events until that of the round; the round before may have put its record more than once.
async fn until_told(watch: &mut Box<dyn Watch>, round: usize) {
    loop {
        let Event::Put(record) = next(watch).await else { panic!("nothing was deleted") };
        assert_eq!(record.key, key(1));
        let number_read: usize = String::from_utf8(record.value).unwrap().parse().unwrap();
        if number_read == round {
            return;
        }
        assert_eq!(number_read + 1, round);
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_dead_member_is_skipped_and_its_watch_moves_to_another() {
    let mut cluster = members(3);
    let store = EtcdV2::connect(cluster.settings()).unwrap();
    let mut watch = begun(&store).await;
    for round in 0..3 {
        eventually_put(&store, &round.to_string()).await;
        until_told(&mut watch, round).await;
        cluster.members[round].kill();
        // A read finds out which member is dead; a write may meet the election and then fail with
        // an unknown outcome.
        while store.get(&key(1)).await.is_err() {}
        let record = store.get(&key(1)).await.unwrap().unwrap();
        assert_eq!(record.value, format!("{round}").as_bytes());
        cluster.members[round].start();
        cluster.wait();
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_stopped_member_delays_reads_and_makes_writes_unknown() {
    let cluster = members(1);
    let settings = Settings { deadline: Duration::from_secs(2), ..cluster.settings() };
    let store = EtcdV2::connect(settings).unwrap();
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    cluster.members[0].stop();
    assert!(matches!(store.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    let error = store.commit(vec![Step::put(key(1), "y")]).await.unwrap_err();
    assert!(error.error.outcome_unknown(), "{error}");
    cluster.members[0].resume();
    cluster.wait();
    assert!(store.get(&key(1)).await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_server_without_the_v2_api_is_refused_and_not_taken_for_empty() {
    let cluster = Cluster::single();
    let store = client(&cluster.members[0].client);
    assert!(store.cluster_version().await.unwrap().starts_with("3."));
    for error in [
        store.get(&key(1)).await.map(drop).unwrap_err(),
        store.list(&Prefix::handles()).await.map(drop).unwrap_err(),
        store.commit(vec![Step::put(key(1), "x")]).await.map(drop).unwrap_err().error,
    ] {
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("--enable-v2"), "{error}");
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn keys_and_values_that_the_api_would_change_are_refused_before_any_request() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    let text = "é<&>%2f+ \"\n\u{1}\u{10ffff}";
    let odd = Key::from_stored("/calico/v1/host/n1/workload/cni/a%2fb c?d#e&f=g/endpoint/eth0");
    store.commit(vec![Step::create(odd.clone(), text)]).await.unwrap();
    assert_eq!(store.get(&odd).await.unwrap().unwrap().value, text.as_bytes());
    assert_eq!(store.list(&Prefix::everything()).await.unwrap().records[0].key, odd);
    for step in [
        Step::put(Key::from_stored("/a/../b"), "x"),
        Step::put(Key::from_stored("/a/_hidden"), "x"),
        Step::put(key(2), [0xff, 0xfe]),
    ] {
        let error = store.commit(vec![Step::put(key(1), "x"), step]).await.unwrap_err();
        assert!(matches!(error.error, StoreError::Invalid { .. }) && error.done == 0, "{error}");
    }
    assert_eq!(store.get(&key(1)).await.unwrap(), None);
    // A key cannot be below another key.
    let below = Key::from_stored(format!("{}/below", odd.as_str()));
    let error = store.commit(vec![Step::create(below.clone(), "x")]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Invalid { .. }), "{error}");
    assert_eq!(store.get(&below).await.unwrap(), None);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn only_an_empty_directory_is_removed() {
    let cluster = members(1);
    let store = client(&cluster.members[0].client);
    let (key, directory) = (Key::from_stored("/a/b/c"), Key::from_stored("/a/b"));
    store.commit(vec![Step::create(key.clone(), "x")]).await.unwrap();
    assert!(!store.remove_empty_directory(&directory).await.unwrap());
    store.commit(vec![Step::delete(key.clone(), None)]).await.unwrap();
    assert!(store.remove_empty_directory(&directory).await.unwrap());
    assert!(!store.remove_empty_directory(&directory).await.unwrap());
    assert_eq!(store.get(&key).await.unwrap(), None);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn requests_without_the_password_are_refused() {
    let cluster = members(1);
    let address = &cluster.members[0].client;
    let etcdctl = |arguments: &[&str]| {
        let endpoints = format!("--endpoints=http://{address}");
        let user = "--username=root:opensesame";
        russet_testkit::run(
            "env",
            &[&["ETCDCTL_API=2", "etcdctl", &endpoints, user][..], arguments].concat(),
        );
    };
    for (path, body) in
        [("/v2/auth/users/root", r#"{"user":"root","password":"opensesame"}"#), ("/v2/auth/enable", "")]
    {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    }
    etcdctl(&["role", "revoke", "guest", "--path", "/*", "--rw"]);
    let user = |password: &str| {
        let settings = Settings {
            username: Some("root".to_owned()),
            password: Some(Secret::new(password)),
            ..cluster.settings()
        };
        EtcdV2::connect(settings).unwrap()
    };
    let known = user("opensesame");
    known.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    assert!(known.get(&key(1)).await.unwrap().is_some());
    assert!(!format!("{known:?}").contains("opensesame"));
    for foreign in [user("guess"), client(address)] {
        let error = foreign.get(&key(1)).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
        let error = foreign.commit(vec![Step::put(key(1), "y")]).await.unwrap_err();
        assert!(matches!(error.error, StoreError::Invalid { .. }), "surely not done: {error}");
    }
}
