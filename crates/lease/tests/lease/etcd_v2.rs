//! The same tests on the v2 API of Debian's etcd, for peers up to v0.17 (flannel.md section 3.1a),
//! verified over plain HTTP as those peers see it.

use std::sync::Arc;
use std::time::Duration;

use russet_lease::{Event, Lost, SubnetManager};
use russet_store::{Step, Store};
use russet_store_etcd::{EtcdV2, Settings as EtcdSettings};
use russet_testkit::etcd::{Cluster, TIMEOUT};
use russet_testkit::proxy::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bench::{
    DAY, DUAL, PREFIX, V4, acquire, attributes, delete, key, keys, manager, path, put, stored, value, wish,
};
use crate::watch::ObservedLeases;

/// Changes that a member keeps.
const REMEMBERED: usize = 1_000;

fn client(address: &str) -> EtcdV2 {
    EtcdV2::connect(EtcdSettings::for_endpoints(address).unwrap()).unwrap()
}

async fn network(config: &str) -> (Cluster, EtcdV2) {
    let cluster = Cluster::start(1, "http", |_| vec!["--enable-v2".to_owned()], Vec::new());
    let store = client(&cluster.members[0].client);
    put(&store, "config", config).await;
    (cluster, store)
}

/// One request like an old daemon's; the answer's body.
async fn request(cluster: &Cluster, method: &str, target: &str, form: &str) -> serde_json::Value {
    let address = &cluster.members[0].client;
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} /v2/keys{target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = body.trim_start_matches(|c: char| c != '{');
    serde_json::Deserializer::from_str(body).into_iter().next().unwrap().unwrap()
}

async fn node(cluster: &Cluster, below: &str) -> serde_json::Value {
    request(cluster, "GET", &format!("{PREFIX}/{below}?quorum=true"), "").await["node"].take()
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t01_and_t17_a_lease_is_a_node_with_a_days_time_that_is_renewed() {
    let (cluster, store) = network(V4).await;
    let manager = manager(&store, 1);
    let lease = acquire(&manager, &wish(11)).await;
    let below = format!("subnets/{}", lease.key);
    let seen = node(&cluster, &below).await;
    assert_eq!(seen["value"], value(11));
    assert!(seen["ttl"].as_i64().unwrap() > 86_000, "{seen}");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let aged = node(&cluster, &below).await["ttl"].as_i64().unwrap();
    assert!(aged < 86_399);
    let renewed = async {
        while node(&cluster, &below).await["ttl"].as_i64().unwrap() <= aged + 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        lost = manager.keep(&lease, DAY - Duration::from_secs(4)) => panic!("{lost:?}"),
        done = tokio::time::timeout(TIMEOUT, renewed) => done.unwrap(),
    }
    assert_eq!(node(&cluster, &below).await["value"], value(11));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t10_and_t11_and_t12_and_t13_and_t16_own_previous_and_contested_subnets() {
    let (cluster, store) = network(V4).await;
    // Another node of v0.10 has the previous subnet, which is left to it.
    let old = format!(
        "value={}&ttl=86400",
        r#"{"PublicIP":"192.0.2.77","BackendType":"vxlan","BackendData":{"VtepMAC":"0a:00:00:00:00:4d"}}"#
    );
    request(&cluster, "PUT", &format!("{PREFIX}/subnets/10.5.29.0-24?prevExist=false"), &old).await;
    let mut wanted = wish(11);
    wanted.previous = key("10.5.29.0-24");
    let lease = acquire(&manager(&store, 1), &wanted).await;
    assert!(!lease.key.overlaps(&key("10.5.29.0-24")));
    wanted.previous = Default::default();
    assert_eq!(acquire(&manager(&store, 2), &wanted).await.key, lease.key);
    wanted = wish(12);
    wanted.previous = key("10.5.30.0-24");
    assert_eq!(acquire(&manager(&store, 2), &wanted).await.key, key("10.5.30.0-24"));
    // An own one of another length is deleted.
    put(&store, "subnets/10.5.40.0-25", &value(13)).await;
    acquire(&manager(&store, 3), &wish(13)).await;
    assert!(!keys(&store).await.contains(&"10.5.40.0-25".to_owned()));
    // Five nodes that draw the same.
    let local = tokio::task::LocalSet::new();
    for host in 21..=25 {
        let manager = manager(&client(&cluster.members[0].client), 5);
        local.spawn_local(async move { acquire(&manager, &wish(host)).await });
    }
    local.await;
    let stored = stored(&store).await;
    for host in (11..=13).chain(21..=25) {
        assert_eq!(stored.iter().filter(|(_, text)| *text == value(host)).count(), 1, "{host}: {stored:?}");
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t15_a_reservation_has_no_ttl_and_gets_none() {
    let (cluster, store) = network(V4).await;
    put(&store, "subnets/10.5.7.0-24", &value(11).replace("0b\"", "99\"")).await;
    let manager = manager(&store, 1);
    let mut lease = acquire(&manager, &wish(11)).await;
    assert_eq!((lease.key, lease.expires), (key("10.5.7.0-24"), None));
    let seen = node(&cluster, "subnets/10.5.7.0-24").await;
    assert_eq!((seen["value"].as_str(), seen["ttl"].as_i64()), (Some(value(11).as_str()), None));
    Arc::make_mut(&mut lease.attributes).backend_type = "host-gw".to_owned();
    manager.publish(&lease).await.unwrap();
    assert_eq!(node(&cluster, "subnets/10.5.7.0-24").await["ttl"].as_i64(), None);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t19_and_t20_and_t23_events_of_old_peers_are_reported_and_a_lost_lease_is_noticed() {
    let (cluster, store) = network(V4).await;
    let manager = manager(&store, 1);
    let lease = acquire(&manager, &wish(11)).await;
    let mut watch = manager.watch(&lease.key).await.unwrap();
    let mut observed = ObservedLeases::default();
    observed.take(watch.next().await);
    put(&store, "subnets/10.5.201.0-24", "garbage").await;
    for n in 1..=30u8 {
        let form = format!("value={}&ttl={}", value(n), if n == 30 { 2 } else { 86_400 });
        request(&cluster, "PUT", &format!("{PREFIX}/subnets/10.5.2{n:02}.0-24?prevExist=false"), &form).await;
    }
    let mut until = async |count: usize| {
        while observed.0.len() != count {
            observed.take(tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap());
        }
    };
    // 10.5.201.0-24 existed before; the last one expires.
    until(29).await;
    until(28).await;
    assert_eq!(observed.0[&key("10.5.202.0-24")], attributes(2));
    let below = format!("subnets/{}", lease.key);
    let (lost, ()) = tokio::join!(manager.keep(&lease, Duration::from_secs(3600)), delete(&store, &below));
    assert_eq!(lost, Lost::Gone);
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn t26_an_outdated_index_leads_to_a_new_list_and_the_differences() {
    let (cluster, store) = network(V4).await;
    for n in 1..=4u8 {
        put(&store, &format!("subnets/10.5.{n}.0-24"), &value(n)).await;
    }
    let proxy = Proxy::to(&cluster.members[0].client).await;
    let manager = manager(&client(&proxy.address), 1);
    let mut watch = manager.watch(&key("10.5.1.0-24")).await.unwrap();
    let mut observed = ObservedLeases::default();
    observed.take(watch.next().await);
    proxy.refuse(true).await;
    delete(&store, "subnets/10.5.2.0-24").await;
    put(&store, "subnets/10.5.3.0-24", &value(33)).await;
    let local = tokio::task::LocalSet::new();
    for writer in 0..16 {
        let store = store.clone();
        local.spawn_local(async move {
            for _ in 0..=REMEMBERED / 16 {
                let key = russet_model::Key::from_stored(format!("/elsewhere/{writer}"));
                store.commit(vec![Step::put(key, "x")]).await.unwrap();
            }
        });
    }
    local.await;
    put(&store, "subnets/10.5.5.0-24", &value(5)).await;
    proxy.refuse(false).await;
    let wanted = ["10.5.3.0-24", "10.5.4.0-24", "10.5.5.0-24"].map(key);
    while !observed.0.keys().eq(&wanted) || observed.0[&wanted[0]] != attributes(33) {
        observed.take(tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap());
    }
    put(&store, "subnets/10.5.6.0-24", &value(6)).await;
    assert!(matches!(watch.next().await, Event::Put(lease) if lease.key == key("10.5.6.0-24")));
}

/// On this API, renewing a key raises its `modifiedIndex`.
#[tokio::test]
#[ignore = "tool: etcd"]
async fn a_dynamic_lease_is_published_and_repaired_on_the_v2_api() {
    let (cluster, store) = network(V4).await;
    let manager = manager(&store, 1);
    let mut lease = acquire(&manager, &wish(11)).await;
    let below = format!("subnets/{}", lease.key);
    Arc::make_mut(&mut lease.attributes).backend_data =
        Some(r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:77"}"#.into());
    manager.publish(&lease).await.unwrap();
    let published = String::from_utf8(lease.attributes.to_json()).unwrap();
    let seen = node(&cluster, &below).await;
    assert_eq!(seen["value"], published);
    assert!(seen["ttl"].as_i64().unwrap() > 86_000, "{seen}");
    // Another process writes it: the same text, then another one.
    for foreign in [published.clone(), value(11)] {
        let form = format!("value={foreign}&ttl=7200");
        request(&cluster, "PUT", &format!("{PREFIX}/{below}"), &form).await;
        let repaired = async {
            loop {
                let seen = node(&cluster, &below).await;
                if seen["value"] == published && seen["ttl"].as_i64() > Some(86_000) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            lost = manager.keep(&lease, DAY - Duration::from_secs(2)) => panic!("{lost:?}"),
            done = tokio::time::timeout(TIMEOUT, repaired) => done.unwrap(),
        }
    }
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn two_nodes_on_the_v2_api_see_each_other() {
    let (_cluster, store) = network(V4).await;
    let (first, second) = (manager(&store, 1), manager(&store, 2));
    let one = acquire(&first, &wish(11)).await;
    let mut watch = first.watch(&one.key).await.unwrap();
    assert_eq!(watch.next().await, Event::Snapshot(Vec::new()));
    let other = acquire(&second, &wish(12)).await;
    let reported = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
    assert!(
        matches!(&reported, Event::Put(lease) if lease.key == other.key && *lease.attributes == attributes(12)),
        "{reported:?}"
    );
    let mut watch = second.watch(&other.key).await.unwrap();
    let reported = watch.next().await;
    assert!(
        matches!(&reported, Event::Snapshot(all) if all.len() == 1 && all[0].key == one.key),
        "{reported:?}"
    );
    assert!(store.get(&path("config")).await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn keys_of_both_families_equal_those_of_v0_17() {
    // flannel.md section 3.1: the `&` is part of the key, and no separator of a form.
    let (cluster, store) = network(DUAL).await;
    let mut wish = wish(11);
    wish.attributes.public_ipv6 = "fd00:200::11".parse().ok();
    wish.previous = key("10.5.43.0-24&fd00:10:5:30::-64");
    let lease = acquire(&manager(&store, 1), &wish).await;
    assert_eq!(lease.key, wish.previous);
    let seen = node(&cluster, "subnets/10.5.43.0-24%26fd00:10:5:30::-64").await;
    assert_eq!(seen["key"], format!("{PREFIX}/subnets/10.5.43.0-24&fd00:10:5:30::-64"));
    assert!(seen["value"].as_str().unwrap().contains(r#""PublicIPv6":"fd00:200::11""#), "{seen}");
    let mut watch = manager(&store, 2).watch(&key("")).await.unwrap();
    let reported = watch.next().await;
    assert!(
        matches!(&reported, Event::Snapshot(all) if all.len() == 1 && all[0].key == lease.key),
        "{reported:?}"
    );
}
