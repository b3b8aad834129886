//! Members that are away or stand still, played by sockets: these need no etcd.

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

/// An address where nobody listens.
fn nobody() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn with_no_member_every_call_is_unavailable_within_its_deadline() {
    let store = client(&format!("{},{}", nobody(), nobody()));
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

/// How long a call took with the deadline that everybody has, and how it failed.
async fn failure_of(settings: Settings) -> (Duration, String) {
    let store = Etcd::connect(settings).unwrap();
    let begun = Instant::now();
    let error = store.get(&key(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    (begun.elapsed(), error.to_string())
}

#[tokio::test]
async fn a_cluster_that_never_answered_and_refuses_is_given_up_soon_with_the_reason() {
    let settings = Settings::for_endpoints(&format!("{},{}", nobody(), nobody())).unwrap();
    let deadline = settings.deadline;
    let (took, reason) = failure_of(settings).await;
    assert!(took < deadline / 2, "{took:?}, with room for a busy machine");
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_named() {
    // Reserved for this by RFC 2606.
    let settings = Settings::for_endpoints("http://etcd.invalid:2379").unwrap();
    let (_, reason) = failure_of(settings).await;
    assert!(reason.contains("the name etcd.invalid"), "{reason}");
    assert!(reason.contains("resolved"), "{reason}");
}

#[tokio::test]
async fn a_commit_that_was_sent_and_not_answered_is_unknown_and_is_sent_once() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let second = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = |listener: &std::net::TcpListener| listener.local_addr().unwrap().to_string();
    let store = client(&format!("{},{}", address(&silent), address(&second)));
    let error = store.commit(vec![Step::create(key(1), "x")]).await.unwrap_err();
    assert!(error.error.outcome_unknown(), "{error}");
    // Only one of the two was ever connected to: the other has nothing to accept.
    let connected = [&silent, &second].map(|listener| {
        listener.set_nonblocking(true).unwrap();
        listener.accept().is_ok()
    });
    assert_ne!(connected[0], connected[1]);
}

#[tokio::test]
async fn a_read_that_is_not_answered_goes_to_the_next_member_and_is_unavailable_in_the_end() {
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
async fn an_empty_commit_asks_nobody() {
    assert!(client(&nobody()).commit(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_commit_that_etcd_could_not_carry_out_is_invalid_before_anybody_is_asked() {
    let error =
        client(&nobody()).commit((0..=128).map(|n| Step::put(key(n), "x")).collect()).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Invalid { .. }), "{error}");
}
