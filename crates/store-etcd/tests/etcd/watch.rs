//! Watches and lists while the log is compacted, while no events are taken, and when the server is
//! restarted.

use std::time::{Duration, Instant};

use russet_model::Prefix;
use russet_store::{Event, Step, Store, Watch};
use russet_store_etcd::{Etcd, EtcdV2, Settings};
use russet_testkit::proxy::Proxy;

use crate::key;
use crate::server::{Clients, Cluster, TIMEOUT};

pub async fn next(watch: &mut Box<dyn Watch>) -> Event {
    tokio::time::timeout(TIMEOUT, watch.next()).await.expect("there is something to tell").unwrap()
}

pub async fn begun(store: &impl Store) -> Box<dyn Watch> {
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Snapshot(_)));
    watch
}

/// What a watch that cannot reach the store misses, which then `forget`s its history: it reports the differences.
pub async fn differences_are_reported(
    proxy: &Proxy,
    relayed: &impl Store,
    direct: &impl Store,
    forget: impl AsyncFnOnce(),
) {
    for n in 0..3 {
        direct.commit(vec![Step::create(key(n), "old")]).await.unwrap();
    }
    let mut watch = begun(relayed).await;
    proxy.refuse(true).await;
    direct.commit(vec![Step::delete(key(0), None)]).await.unwrap();
    direct.commit(vec![Step::put(key(1), "between")]).await.unwrap();
    direct.commit(vec![Step::put(key(1), "new")]).await.unwrap();
    direct.commit(vec![Step::create(key(4), "short-lived")]).await.unwrap();
    direct.commit(vec![Step::delete(key(4), None)]).await.unwrap();
    forget().await;
    proxy.refuse(false).await;
    assert!(
        matches!(next(&mut watch).await, Event::Put(record) if record.key == key(1) && record.value == b"new")
    );
    assert!(matches!(next(&mut watch).await, Event::Deleted { key: gone, .. } if gone == key(0)));
    direct.commit(vec![Step::create(key(9), "last")]).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == key(9)));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_watch_reports_the_differences_after_a_compaction() {
    let cluster = Cluster::single();
    let proxy = Proxy::to(&cluster.members[0].client).await;
    let direct = cluster.client();
    let relayed = Etcd::connect(Settings::for_endpoints(&proxy.address).unwrap()).unwrap();
    differences_are_reported(&proxy, &relayed, &direct, async || cluster.members[0].compact()).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_deletion_at_the_compacted_revision_is_reported() {
    let cluster = Cluster::single();
    let proxy = Proxy::to(&cluster.members[0].client).await;
    let direct = cluster.client();
    direct.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    let mut watch = begun(&Etcd::connect(Settings::for_endpoints(&proxy.address).unwrap()).unwrap()).await;
    proxy.refuse(true).await;
    direct.commit(vec![Step::delete(key(1), None)]).await.unwrap();
    cluster.members[0].compact();
    proxy.refuse(false).await;
    assert!(matches!(next(&mut watch).await, Event::Deleted { key: gone, .. } if gone == key(1)));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_watch_continues_after_its_server_was_killed_and_restarted() {
    let mut cluster = Cluster::single();
    let store = cluster.client();
    let mut watch = begun(&store).await;
    for round in 0..3 {
        // Detects the broken connection, which would make the outcome of a commit unknown.
        store.get(&key(1)).await.unwrap();
        store.commit(vec![Step::put(key(1), format!("{round}"))]).await.unwrap();
        cluster.members[0].kill();
        cluster.members[0].start();
        cluster.wait();
        let text = format!("{round}").into_bytes();
        assert!(matches!(next(&mut watch).await, Event::Put(record) if record.value == text));
    }
}

/// Far more than fits into the watch's queue.
const EVENTS: usize = 3_000;

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_slow_watcher_is_disconnected_without_losing_events_or_blocking_others() {
    let cluster = Cluster::single();
    let store = cluster.client();
    let mut watch = begun(&store).await;
    for n in 0..EVENTS {
        store.commit(vec![Step::create(key(n), vec![b'x'; 5_000])]).await.unwrap();
    }
    for n in 0..EVENTS {
        let Event::Put(record) = next(&mut watch).await else { panic!("only creations happened") };
        assert_eq!((record.key, record.value.len()), (key(n), 5_000));
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_commit_of_many_large_records_is_reported_completely_in_parts() {
    let cluster = Cluster::single();
    let store = cluster.client();
    let mut watch = begun(&store).await;
    let steps = (0..100).map(|n| Step::create(key(n), vec![b'x'; 14_000])).collect();
    store.commit(steps).await.unwrap();
    for n in 0..100 {
        assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == key(n)));
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_dropped_watch_ends_its_task() {
    let cluster = Cluster::single();
    let store = cluster.client();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    store.list(&Prefix::handles()).await.unwrap();
    let before = tasks();
    let watch = begun(&store).await;
    assert_eq!(tasks(), before + 1);
    drop(watch);
    let ended = async {
        while tasks() > before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, ended).await.expect("the task ends");
}

/// Records for a list with many pages.
const MANY: usize = 2_000;

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_list_restarts_after_a_compaction_and_is_complete() {
    let cluster = Cluster::single();
    let direct = cluster.client();
    let all: Vec<usize> = (0..MANY).collect();
    for chunk in all.chunks(100) {
        let steps = chunk.iter().map(|n| Step::create(key(*n), vec![b'x'; 10_000])).collect();
        direct.commit(steps).await.unwrap();
    }
    let mut proxy = Proxy::to(&cluster.members[0].client).await;
    let store = Etcd::connect(Settings::for_endpoints(&proxy.address).unwrap()).unwrap();
    let handles = Prefix::handles();
    let mut list = store.list(&handles);
    // The first page of about twenty is requested. Then the log is compacted beyond its revision.
    tokio::select! {
        biased;
        begun = proxy.relayed.wait_for(|bytes| *bytes > 100_000) => { begun.unwrap(); }
        _ = &mut list => panic!("a list of 20 MB takes more than 100 kB"),
    }
    let last = direct.commit(vec![Step::put(key(0), "new")]).await.unwrap()[0];
    cluster.members[0].compact();
    let snapshot = list.await.unwrap();
    assert!(snapshot.revision >= last && snapshot.records[0].value == b"new", "it began anew");
    assert!(
        snapshot
            .records
            .iter()
            .map(|record| &record.key)
            .eq(&all.iter().map(|n| key(*n)).collect::<Vec<_>>())
    );
}

/// A watch is enough to notice both; no other calls are made meanwhile.
#[tokio::test]
#[ignore = "tool: etcd; takes 15 s"]
async fn a_stopped_cluster_is_lost_after_ten_seconds_and_found_after_the_restart() {
    let mut cluster = Cluster::start(1, "http", |_| vec!["--enable-v2".to_owned()], Vec::new());
    let (store, old) = (cluster.client(), EtcdV2::connect(cluster.settings()).unwrap());
    let _watch = begun(&store).await;
    let _old = old.watch(&Prefix::handles()).await.unwrap();
    let reaches = [store.reach(), old.reach()];
    let until = async |lost: bool| {
        let all = async {
            while reaches.iter().any(|reach| reach.is_lost() != lost) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, all).await.unwrap_or_else(|_| panic!("{lost}: {reaches:?}"));
    };
    until(false).await;
    let away = Instant::now();
    cluster.members[0].kill();
    until(true).await;
    assert!(away.elapsed() >= Duration::from_secs(10));
    assert!(reaches.iter().all(|reach| reach.reasons().unwrap().contains("refused")), "{reaches:?}");
    cluster.members[0].start();
    until(false).await;
    assert!(reaches.iter().all(|reach| reach.reasons().is_none()), "{reaches:?}");
}
