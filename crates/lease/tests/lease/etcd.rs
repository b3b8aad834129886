//! The same tests on a real etcd v3 server, verified with etcdctl: the records that other nodes
//! would find there.

use std::rc::Rc;
use std::time::Duration;

use russet_lease::{Event, LeaseWatch, Settings, StoreManager, SubnetManager};
use russet_store::{Step, Store};
use russet_store_etcd::{Etcd, Settings as EtcdSettings};
use russet_testkit::etcd::{Cluster, Member, TIMEOUT};
use russet_testkit::proxy::Proxy;

use crate::bench::{
    DAY, PREFIX, V4, acquire, attributes, delete, key, keys, manager, path, put, stored, value, wish,
};
use crate::watch::ObservedLeases;

fn client(address: &str) -> Etcd {
    Etcd::connect(EtcdSettings::for_endpoints(address).unwrap()).unwrap()
}

/// A network on a fresh server.
async fn network(config: &str) -> (Cluster, Etcd) {
    let cluster = Cluster::single();
    let store = client(&cluster.members[0].client);
    put(&store, "config", config).await;
    (cluster, store)
}

/// The lease of a key and its remaining seconds.
fn lease_of(member: &Member, below: &str) -> Option<(String, i64)> {
    let found = member.etcdctl(&["get", path(below).as_str(), "--write-out=json"]);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let id = found["kvs"][0]["lease"].as_i64()?;
    let id = format!("{id:x}");
    let reported = member.etcdctl(&["lease", "timetolive", &id, "--write-out=json"]);
    let reported: serde_json::Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported["granted-ttl"], 86_400);
    Some((id, reported["ttl"].as_i64().unwrap()))
}

async fn until(
    observed: &mut ObservedLeases,
    watch: &mut dyn LeaseWatch,
    done: impl Fn(&ObservedLeases) -> bool,
) {
    while !done(observed) {
        let event = tokio::time::timeout(TIMEOUT, watch.next()).await;
        observed.take(event.expect("there is something to tell"));
    }
}

async fn watched(store: &Etcd, own: &str) -> (Box<dyn LeaseWatch>, ObservedLeases) {
    let own = key(own);
    let mut watch = manager(store, 1).watch(&own).await.unwrap();
    let mut observed = ObservedLeases::default();
    observed.take(watch.next().await);
    (watch, observed)
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t01_key_value_and_lease_equal_flannels() {
    let (cluster, store) = network(V4).await;
    let lease = acquire(&manager(&store, 1), &wish(11)).await;
    let base = lease.key.v4.unwrap().addr().octets();
    assert!((1..=100).contains(&base[2]), "{}", lease.key);
    let member = &cluster.members[0];
    let seen = member.etcdctl(&["get", PREFIX, "--prefix"]);
    let wanted = format!(
        "{PREFIX}/config\n{V4}\n{PREFIX}/subnets/10.5.{}.0-24\n{}\n",
        base[2],
        r#"{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:0b"}}"#
    );
    assert_eq!(seen, wanted);
    assert!(lease_of(member, &format!("subnets/{}", lease.key)).unwrap().1 > 86_000);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t10_and_t15_a_lease_is_acquired_again_under_a_new_one_and_a_reservation_under_none() {
    let (cluster, store) = network(V4).await;
    let member = &cluster.members[0];
    let first = acquire(&manager(&store, 1), &wish(11)).await;
    let below = format!("subnets/{}", first.key);
    let before = lease_of(member, &below).unwrap();
    let again = acquire(&manager(&store, 2), &wish(11)).await;
    assert_eq!(again.key, first.key);
    assert_ne!(lease_of(member, &below).unwrap().0, before.0);
    put(&store, "subnets/10.5.200.0-24", &value(12)).await;
    let reserved = acquire(&manager(&store, 3), &wish(12)).await;
    assert_eq!((reserved.key, reserved.expires), (key("10.5.200.0-24"), None));
    assert_eq!(lease_of(member, "subnets/10.5.200.0-24"), None);
    assert_eq!(keys(&store).await.len(), 2);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t16_nodes_that_start_at_once_get_a_subnet_each() {
    let (cluster, store) = network(V4).await;
    let wishes: Vec<_> = (1..=8u8).map(wish).collect();
    // All have the same seed, so they draw the same subnets.
    let managers: Vec<_> = (0..8).map(|_| manager(&client(&cluster.members[0].client), 5)).collect();
    let local = tokio::task::LocalSet::new();
    for (manager, wish) in managers.into_iter().zip(wishes) {
        local.spawn_local(async move { acquire(&manager, &wish).await });
    }
    local.await;
    let stored = stored(&store).await;
    assert_eq!(stored.len(), 8);
    for host in 1..=8 {
        assert_eq!(stored.iter().filter(|(_, text)| *text == value(host)).count(), 1);
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t17_a_renewal_extends_the_same_lease_and_writes_no_key() {
    let (cluster, store) = network(V4).await;
    let member = &cluster.members[0];
    let manager = manager(&store, 1);
    let lease = acquire(&manager, &wish(11)).await;
    let below = format!("subnets/{}", lease.key);
    let revision = store.get(&path(&below)).await.unwrap().unwrap().revision;
    let (id, _) = lease_of(member, &below).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let aged = lease_of(member, &below).unwrap().1;
    assert!(aged < 86_398);
    let renewed = async {
        while lease_of(member, &below).unwrap().1 <= aged + 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        lost = manager.keep(&lease, DAY - Duration::from_secs(4)) => panic!("{lost:?}"),
        done = tokio::time::timeout(TIMEOUT, renewed) => done.unwrap(),
    }
    assert_eq!(lease_of(member, &below).unwrap().0, id);
    assert_eq!(store.get(&path(&below)).await.unwrap().unwrap().revision, revision);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t19_and_t20_a_deleted_lease_is_lost_to_its_node_and_reported_as_gone_to_the_others() {
    let (_cluster, store) = network(V4).await;
    let manager = manager(&store, 1);
    let lease = acquire(&manager, &wish(11)).await;
    put(&store, "subnets/10.5.200.0-24", &value(12)).await;
    let (mut watch, mut observed) = watched(&store, "").await;
    assert_eq!(observed.0.len(), 2);
    let below = format!("subnets/{}", lease.key);
    let (lost, ()) = tokio::join!(manager.keep(&lease, Duration::from_secs(3600)), delete(&store, &below));
    assert_eq!(lost, russet_lease::Lost::Gone);
    until(&mut observed, &mut *watch, |observed| observed.0.len() == 1).await;
    assert!(observed.0.contains_key(&key("10.5.200.0-24")));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t23_and_t24_fifty_keys_at_once_five_in_one_transaction_and_garbage_between() {
    let (_cluster, store) = network(V4).await;
    let (mut watch, mut observed) = watched(&store, "").await;
    let step = |n: u8, value: String| Step::put(path(&format!("subnets/10.5.{n}.0-24")), value);
    let begun = std::time::Instant::now();
    for n in 1..=50u8 {
        store.commit(vec![step(n, value(n))]).await.unwrap();
        if n == 20 {
            put(&store, "subnets/10.5.99.0-24", "garbage").await;
            put(&store, "subnets/nonsense", "garbage").await;
        }
    }
    let steps = (101..=105u8).map(|n| step(n, value(n))).collect();
    store.commit(steps).await.unwrap();
    eprintln!("50 keys and a transaction of 5 in {:?}", begun.elapsed());
    until(&mut observed, &mut *watch, |observed| observed.0.len() == 55).await;
    for (n, lease) in (1..=50).chain(101..=105).zip(observed.0.values()) {
        assert_eq!(*lease, attributes(n));
    }
    let steps = (1..=105u8).filter(|n| *n <= 50 || *n > 100);
    let steps = steps.map(|n| Step::delete(path(&format!("subnets/10.5.{n}.0-24")), None)).collect();
    store.commit(steps).await.unwrap();
    until(&mut observed, &mut *watch, |observed| observed.0.is_empty()).await;
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t24_a_thousand_leases_that_change_ten_times_are_reported_completely() {
    let (_cluster, store) = network(V4).await;
    let (mut watch, mut observed) = watched(&store, "").await;
    let below = |n: u32| path(&format!("subnets/10.{}.{}.0-24", 1 + n / 256, n % 256));
    let all = |step: &dyn Fn(u32) -> Step| -> Vec<Vec<Step>> {
        (0..8).map(|part| (part * 125..(part + 1) * 125).map(step).collect()).collect()
    };
    for round in 0..10u8 {
        let text = value(round);
        for commit in all(&|n| Step::put(below(n), text.clone())) {
            store.commit(commit).await.unwrap();
        }
        for commit in all(&|n| Step::delete(below(n), None)) {
            store.commit(commit).await.unwrap();
        }
    }
    for commit in all(&|n| Step::put(below(n), value(99))).into_iter().step_by(2) {
        store.commit(commit).await.unwrap();
    }
    let done = |observed: &ObservedLeases| {
        observed.0.len() == 500 && observed.0.values().all(|lease| *lease == attributes(99))
    };
    until(&mut observed, &mut *watch, done).await;
    put(&store, "subnets/10.200.0.0-24", &value(1)).await;
    let last = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
    assert!(
        matches!(&last, Event::Put(lease) if lease.key == key("10.200.0.0-24")),
        "no event was late: {last:?}"
    );
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t25_an_etcd_that_was_killed_for_ten_seconds_is_followed_again() {
    let (mut cluster, store) = network(V4).await;
    let manager = manager(&store, 1);
    let lease = acquire(&manager, &wish(11)).await;
    put(&store, "subnets/10.5.200.0-24", &value(12)).await;
    let (mut watch, mut observed) = watched(&store, &lease.key.to_string()).await;
    let outage = async {
        cluster.members[0].kill();
        tokio::time::sleep(Duration::from_secs(10)).await;
        cluster.members[0].start();
        cluster.wait();
        put(&store, "subnets/10.5.201.0-24", &value(13)).await;
        until(&mut observed, &mut *watch, |observed| observed.0.len() == 2).await;
    };
    // No lease is reported as gone in between, and our lease is kept although renewals fail: every
    // second one would be due.
    tokio::select! {
        lost = manager.keep(&lease, DAY - Duration::from_secs(1)) => panic!("{lost:?}"),
        () = outage => {}
    }
    assert!(keys(&store).await.contains(&lease.key.to_string()));
    assert!(lease_of(&cluster.members[0], &format!("subnets/{}", lease.key)).is_some());
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t26_changes_compacted_while_the_watch_was_interrupted_are_reported_as_differences() {
    let (cluster, store) = network(V4).await;
    for n in 1..=4u8 {
        put(&store, &format!("subnets/10.5.{n}.0-24"), &value(n)).await;
    }
    let proxy = Proxy::to(&cluster.members[0].client).await;
    let (mut watch, mut observed) = watched(&client(&proxy.address), "10.5.1.0-24").await;
    proxy.refuse(true).await;
    delete(&store, "subnets/10.5.2.0-24").await;
    put(&store, "subnets/10.5.3.0-24", &value(33)).await;
    put(&store, "subnets/10.5.5.0-24", &value(5)).await;
    cluster.members[0].compact();
    proxy.refuse(false).await;
    let wanted = ["10.5.3.0-24", "10.5.4.0-24", "10.5.5.0-24"].map(key);
    until(&mut observed, &mut *watch, |observed| observed.0.keys().eq(&wanted)).await;
    until(&mut observed, &mut *watch, |observed| observed.0[&key("10.5.3.0-24")] == attributes(33)).await;
    put(&store, "subnets/10.5.6.0-24", &value(6)).await;
    assert!(matches!(watch.next().await, Event::Put(lease) if lease.key == key("10.5.6.0-24")));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_prefix_without_a_slash_is_different() {
    // flannel.md section 1.3, etcd-prefix [EXP].
    let (_cluster, store) = network(V4).await;
    let bare = StoreManager::new(Rc::new(store.clone()), Settings::new("coreos.com/network/"));
    let error = bare.network().await.unwrap_err();
    assert_eq!(error.to_string(), "there is no network config at coreos.com/network/config");
    let key = russet_model::Key::from_stored("coreos.com/network/config");
    store.commit(vec![Step::put(key, V4)]).await.unwrap();
    acquire(&bare, &wish(11)).await;
    assert!(keys(&store).await.is_empty());
    let there =
        store.keys(&russet_model::Prefix::from_stored("coreos.com/network/subnets/10.5.")).await.unwrap();
    assert_eq!(there.len(), 1);
}
