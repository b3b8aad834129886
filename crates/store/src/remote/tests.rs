//! Tests of the client's side when the owner is away, comes back, or hangs; what every engine must
//! do is in `conformance`.

use super::owner::Owner;
use super::*;
use crate::{Embedded, Event};

const SHORT: Duration = Duration::from_secs(1);

fn key(n: usize) -> Key {
    Key::from_stored(format!("/calico/ipam/v2/handle/h-{n:05}"))
}

fn embedded(directory: &tempfile::TempDir) -> Embedded {
    Embedded::open(directory.path().join("store.redb")).unwrap()
}

#[tokio::test]
async fn with_no_owner_every_call_is_unavailable_within_its_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Remote::connect_with(directory.path().join("store.sock"), SHORT);
    let begun = std::time::Instant::now();
    assert!(matches!(remote.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    let error = remote.commit(vec![Step::create(key(1), "x")]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Unavailable { .. }), "{error}");
    assert!(matches!(remote.watch(&Prefix::handles()).await, Err(StoreError::Unavailable { .. })));
    assert!(begun.elapsed() < SHORT * 10, "three calls, with room for a busy machine");
}

#[tokio::test]
async fn a_call_waits_for_an_owner_that_starts_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let remote = Remote::connect(&socket);
    let handle = key(1);
    let mut call = remote.get(&handle);
    // One poll queues the call before there is an owner.
    tokio::select! {
        biased;
        _ = &mut call => panic!("there is no owner yet"),
        () = tokio::task::yield_now() => {}
    }
    let _owner = Owner::start(embedded(&directory), &socket);
    assert_eq!(call.await.unwrap(), None);
}

#[tokio::test]
async fn commits_survive_a_restart_of_the_owner() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let mut owner = Owner::start(embedded(&directory), &socket);
    let remote = Remote::connect(&socket);
    remote.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    owner.stop();
    owner.restart(embedded(&directory));
    assert_eq!(remote.get(&key(1)).await.unwrap().unwrap().value, b"x");
    remote.commit(vec![Step::put(key(1), "y")]).await.unwrap();
}

/// An owner that accepts calls and never answers, like a stopped process.
async fn silent_after_greeting(listener: tokio::net::UnixListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut hello = Vec::new();
    crate::wire::encode(
        &crate::wire::Answer {
            id: crate::wire::HELLO_ID,
            reply: Reply::Hello { version: crate::wire::VERSION },
        },
        &mut hello,
    )
    .unwrap();
    stream.write_all(&hello).await.unwrap();
    let mut sink = [0; 1024];
    while stream.read(&mut sink).await.unwrap() != 0 {}
}

#[tokio::test]
async fn a_commit_that_was_sent_and_not_answered_is_unknown_and_a_read_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    tokio::spawn(silent_after_greeting(listener));
    let remote = Remote::connect_with(&socket, SHORT);
    let error = remote.commit(vec![Step::create(key(1), "x")]).await.unwrap_err();
    assert!(error.error.outcome_unknown(), "{error}");
    assert!(matches!(remote.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_and_misses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let store = embedded(&directory);
    let _owner = Owner::start(store.clone(), &socket);
    let remote = Remote::connect(&socket);
    let mut watch = remote.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(_)));
    // Far more than the watch's queue can take, one message each: the client reads the socket for
    // its own calls meanwhile.
    for n in 0..200 {
        store.commit(vec![Step::create(key(n), vec![0; 1000])]).await.unwrap();
        remote.get(&key(n)).await.unwrap();
    }
    for n in 0..200 {
        let Event::Put(record) = watch.next().await.unwrap() else { panic!("only creations happened") };
        assert_eq!(record.key, key(n));
    }
}

#[tokio::test]
async fn pipelined_commits_share_disk_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("store.sock");
    let store = embedded(&directory);
    let _owner = Owner::start(store.clone(), &socket);
    let remote = Remote::connect(&socket);
    remote.get(&key(0)).await.unwrap();
    let before = store.stats();
    let local = tokio::task::LocalSet::new();
    for n in 0..64 {
        let remote = remote.clone();
        local.spawn_local(async move { remote.commit(vec![Step::create(key(n), "x")]).await.unwrap() });
    }
    local.await;
    let after = store.stats();
    assert_eq!(after.commits - before.commits, 64);
    assert!(after.syncs - before.syncs < 40, "64 commits took {} syncs", after.syncs - before.syncs);
}
