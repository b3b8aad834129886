//! Members that are down or do not answer, simulated by sockets: these tests need no etcd.

use std::time::{Duration, Instant};

use russet_model::Prefix;
use russet_store::{Step, Store, StoreError};
use russet_store_etcd::{Etcd, Settings};

use crate::key;

const SHORT: Duration = Duration::from_secs(1);

fn client(endpoints: &str) -> Etcd {
    let settings = Settings { deadline: SHORT, ..Settings::for_endpoints(endpoints).unwrap() };
    Etcd::connect(settings).unwrap()
}

/// An address without a listener.
fn without_listener() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn without_members_every_call_fails_within_its_deadline() {
    let store = client(&format!("{},{}", without_listener(), without_listener()));
    let begun = Instant::now();
    assert!(matches!(store.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(store.list(&Prefix::handles()).await, Err(StoreError::Unavailable { .. })));
    let error = store.commit(vec![Step::create(key(1), "x")]).await.unwrap_err();
    assert!(matches!(&error.error, StoreError::Unavailable { .. }), "nothing was sent: {error}");
    assert!(error.to_string().contains("refused"), "it says why: {error}");
    assert!(matches!(store.watch(&Prefix::handles()).await, Err(StoreError::Unavailable { .. })));
    assert!(matches!(store.grant(SHORT).await, Err(StoreError::Unavailable { .. })));
    assert!(begun.elapsed() < SHORT * 20, "five calls, with room for a busy machine");
}

/// How long a call with the default deadline took, and its error.
async fn failure_of(settings: Settings) -> (Duration, String) {
    let store = Etcd::connect(settings).unwrap();
    let begun = Instant::now();
    let error = store.get(&key(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    (begun.elapsed(), error.to_string())
}

#[tokio::test]
async fn a_refusing_cluster_that_never_answered_fails_soon_with_the_reason() {
    let settings =
        Settings::for_endpoints(&format!("{},{}", without_listener(), without_listener())).unwrap();
    let (took, reason) = failure_of(settings).await;
    assert!(took < crate::SOON, "{took:?}");
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn the_error_names_an_unresolvable_host() {
    // RFC 2606 reserves this name.
    let settings = Settings::for_endpoints("http://etcd.invalid:2379").unwrap();
    let (took, reason) = failure_of(settings).await;
    assert!(took < crate::SOON, "{took:?}");
    assert!(reason.contains("the name etcd.invalid"), "{reason}");
    assert!(reason.contains("resolved"), "{reason}");
}

#[tokio::test]
async fn an_unanswered_commit_is_unknown_and_is_sent_once() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let second = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = |listener: &std::net::TcpListener| listener.local_addr().unwrap().to_string();
    let store = client(&format!("{},{}", address(&silent), address(&second)));
    let error = store.commit(vec![Step::create(key(1), "x")]).await.unwrap_err();
    assert!(error.error.outcome_unknown(), "{error}");
    // Only one of the two was connected to: the other has no connection to accept.
    let connected = [&silent, &second].map(|listener| {
        listener.set_nonblocking(true).unwrap();
        listener.accept().is_ok()
    });
    assert_ne!(connected[0], connected[1]);
}

#[tokio::test]
async fn an_unanswered_read_is_retried_at_the_next_member() {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let endpoints: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let store = client(&endpoints.join(","));
    assert!(matches!(store.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "each was asked");
    }
}

#[tokio::test]
async fn an_empty_commit_sends_no_request() {
    assert!(client(&without_listener()).commit(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_commit_with_too_many_steps_is_refused_before_any_request() {
    let error = client(&without_listener())
        .commit((0..=128).map(|n| Step::put(key(n), "x")).collect())
        .await
        .unwrap_err();
    assert!(matches!(error.error, StoreError::Invalid { .. }), "{error}");
}
