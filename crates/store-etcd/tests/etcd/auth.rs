//! Users, passwords and expiring tokens.

use std::time::Duration;

use russet_model::Prefix;
use russet_store::{Event, Step, Store, StoreError};
use russet_store_etcd::{Etcd, Secret, Settings};
use russet_testkit::run;

use crate::key;
use crate::server::{Clients, Cluster, TIMEOUT};

/// Lifetime of a token in these tests.
const TOKEN_TTL: Duration = Duration::from_secs(1);

/// A member with authentication enabled, tokens of one second, and the users `root` and `russet`,
/// who may access `/calico/` only.
fn guarded() -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    run("openssl", &["genrsa", "-out", &file("jwt.key"), "2048"]);
    run("openssl", &["rsa", "-in", &file("jwt.key"), "-pubout", "-out", &file("jwt.pub")]);
    let token = format!(
        "--auth-token=jwt,pub-key={},priv-key={},sign-method=RS256,ttl={}s",
        file("jwt.pub"),
        file("jwt.key"),
        TOKEN_TTL.as_secs()
    );
    let arguments = vec![token, "--bcrypt-cost=4".to_owned()];
    let mut cluster = Cluster::start_in(directory, 1, "http", |_| arguments.clone(), Vec::new());
    enable(&mut cluster);
    cluster
}

fn enable(cluster: &mut Cluster) {
    let member = &mut cluster.members[0];
    for arguments in [
        &["user", "add", "root:opensesame"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "russet:rust"],
        &["role", "add", "calico"],
        &["role", "grant-permission", "calico", "--prefix=true", "readwrite", "/calico/"],
        &["user", "grant-role", "russet", "calico"],
        &["auth", "enable"],
    ] {
        // etcd creates the root role itself, some versions only on demand.
        let _ = member.try_etcdctl(&["role", "add", "root"]);
        member.etcdctl(arguments);
    }
    member.etcdctl_arguments.push("--user=root:opensesame".to_owned());
}

fn user(cluster: &Cluster, name: &str, password: &str) -> Etcd {
    let settings = Settings {
        username: Some(name.to_owned()),
        password: Some(Secret::new(password)),
        ..cluster.settings()
    };
    Etcd::connect(settings).unwrap()
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn only_a_user_with_the_right_password_is_accepted() {
    let cluster = guarded();
    let store = user(&cluster, "russet", "rust");
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().value, b"x");
    for refused in
        [user(&cluster, "russet", "opensesame"), user(&cluster, "unknown", "rust"), cluster.client()]
    {
        let error = refused.get(&key(1)).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
        assert!(!error.to_string().contains("opensesame") && !format!("{refused:?}").contains("opensesame"));
        let error = refused.commit(vec![Step::put(key(1), "y")]).await.unwrap_err();
        assert!(matches!(error.error, StoreError::Invalid { .. }), "surely not done: {error}");
    }
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().value, b"x");
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn access_without_permission_is_refused_at_once() {
    let cluster = guarded();
    let store = user(&cluster, "russet", "rust");
    let everything = Prefix::everything();
    assert!(matches!(store.list(&everything).await.unwrap_err(), StoreError::Invalid { .. }));
    assert!(matches!(store.watch(&everything).await.map(|_| ()).unwrap_err(), StoreError::Invalid { .. }));
    assert!(store.list(&Prefix::handles()).await.unwrap().records.is_empty());
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn expired_tokens_are_renewed_by_calls_and_by_watches() {
    let cluster = guarded();
    let store = user(&cluster, "russet", "rust");
    let lease = store.grant(TIMEOUT).await.unwrap();
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(_)));
    for round in 0..3 {
        tokio::time::sleep(TOKEN_TTL * 2).await;
        // The first call with an expired token renews it for all.
        if round == 1 {
            store.keep_alive(lease).await.unwrap();
        }
        let steps = vec![Step::put(key(round), "x")];
        store.commit(steps).await.unwrap();
        let event = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap();
        assert!(matches!(event, Event::Put(record) if record.key == key(round)));
    }
    // A watch that begins, and one that must subscribe again, with an expired token.
    tokio::time::sleep(TOKEN_TTL * 2).await;
    let mut late = store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(late.next().await.unwrap(), Event::Snapshot(all) if all.records.len() == 3));
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn a_watch_that_subscribes_again_with_an_expired_token_renews_it() {
    let mut cluster = guarded();
    let store = user(&cluster, "russet", "rust");
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(_)));
    cluster.members[0].kill();
    tokio::time::sleep(TOKEN_TTL * 2).await;
    cluster.members[0].start();
    cluster.wait();
    cluster.members[0].etcdctl(&["put", key(1).as_str(), "x"]);
    let event = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap();
    assert!(matches!(event, Event::Put(record) if record.key == key(1)));
}

#[tokio::test]
#[ignore = "tool: etcd, openssl"]
async fn credentials_work_before_and_after_authentication_is_enabled() {
    let mut cluster = Cluster::single();
    let store = user(&cluster, "russet", "rust");
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(_)));
    enable(&mut cluster);
    store.commit(vec![Step::put(key(1), "y")]).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Put(record) if record.value == b"y"));
    // etcd keeps simple tokens in memory, so a restarted member knows none.
    cluster.members[0].kill();
    cluster.members[0].start();
    cluster.wait();
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().value, b"y");
    store.commit(vec![Step::put(key(1), "z")]).await.unwrap();
    let event = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap();
    assert!(matches!(event, Event::Put(record) if record.value == b"z"));
}
