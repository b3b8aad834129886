//! Acquiring subnets in the simulated store: flannel.md section 3.3 and the rows of section 10
//! about it.

use std::time::Duration;

use russet_lease::{Event, LeaseError, Lost, SubnetManager};
use russet_model::flannel::SubnetKey;
use russet_store::sim::Fault;
use russet_store::{Step, Store};

use crate::bench::{
    DAY, DUAL, V4, acquire, config, key, keys, manager, network, path, put, run, stored, value, wish,
};

#[test]
fn t01_a_lease_in_an_empty_network_is_one_key_for_a_day() {
    run(async {
        let sim = network(1, V4).await;
        let lease = acquire(&manager(&sim, 1), &wish(11)).await;
        let base = lease.key.v4.unwrap().addr().octets();
        assert_eq!((base[0], base[1], base[3]), (10, 5, 0));
        assert!((1..=100).contains(&base[2]) && lease.key.v6.is_none(), "{}", lease.key);
        let written = r#"{"PublicIP":"192.0.2.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:0b"}}"#;
        assert_eq!(stored(&sim).await, [(lease.key.to_string(), written.to_owned())]);
        tokio::time::sleep(DAY - Duration::from_secs(60)).await;
        assert_eq!(keys(&sim).await.len(), 1);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(keys(&sim).await.is_empty(), "it was not renewed");
    });
}

#[test]
fn t02_without_a_backend_it_is_udp_and_the_value_has_no_type() {
    run(async {
        let sim = network(1, r#"{"Network":"10.5.0.0/16"}"#).await;
        let manager = manager(&sim, 1);
        assert_eq!(manager.network().await.unwrap().backend.kind, "udp");
        let mut wish = wish(11);
        (wish.attributes.backend_type, wish.attributes.backend_data) = (String::new(), None);
        acquire(&manager, &wish).await;
        assert_eq!(stored(&sim).await[0].1, r#"{"PublicIP":"192.0.2.11","PublicIPv6":null}"#);
    });
}

#[test]
fn t06_and_t08_a_missing_or_wrong_config_is_retryable() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        for text in
            ["{", r#"{"Network":"10.5.6.0/29"}"#, r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.3.1"}"#]
        {
            put(&sim, "config", text).await;
            let error = manager.network().await.unwrap_err();
            assert!(matches!(error, LeaseError::Config { .. }) && error.is_retryable(), "{error}");
            assert!(error.to_string().starts_with("/coreos.com/network/config: network config"), "{error}");
        }
        crate::bench::delete(&sim, "config").await;
        let error = manager.network().await.unwrap_err();
        assert!(matches!(error, LeaseError::NoConfig { .. }) && error.is_retryable(), "{error}");
    });
}

#[test]
fn t10_the_own_key_is_written_again_and_lives_for_a_day_again() {
    run(async {
        let sim = network(1, V4).await;
        let first = acquire(&manager(&sim, 1), &wish(11)).await;
        tokio::time::sleep(DAY / 2).await;
        let mut changed = wish(11);
        changed.attributes.backend_data = Some(r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:99"}"#.into());
        let again = acquire(&manager(&sim, 2), &changed).await;
        assert_eq!(again.key, first.key);
        let value = String::from_utf8(changed.attributes.to_json()).unwrap();
        assert_eq!(stored(&sim).await, [(first.key.to_string(), value)]);
        tokio::time::sleep(DAY - Duration::from_secs(60)).await;
        assert_eq!(keys(&sim).await.len(), 1, "the old lease has ended without it");
    });
}

#[test]
fn t11_an_own_key_that_does_not_fit_is_deleted_and_a_new_one_created() {
    run(async {
        for old in ["10.5.7.0-25", "10.9.7.0-24", "10.5.7.0-24&fd00:10:5:7::-64"] {
            let sim = network(1, V4).await;
            put(&sim, &format!("subnets/{old}"), &value(11)).await;
            put(&sim, "subnets/10.5.8.0-25", &value(12)).await;
            let lease = acquire(&manager(&sim, 1), &wish(11)).await;
            let mut wanted = vec![lease.key.to_string(), "10.5.8.0-25".to_owned()];
            wanted.sort();
            assert_eq!(keys(&sim).await, wanted);
        }
    });
}

#[test]
fn t12_and_t13_and_t14_the_previous_subnet_is_acquired_if_it_is_free() {
    run(async {
        let with = |previous: &str| {
            let mut wish = wish(11);
            wish.previous = key(previous);
            wish
        };
        let sim = network(1, V4).await;
        assert_eq!(acquire(&manager(&sim, 1), &with("10.5.29.0-24")).await.key, key("10.5.29.0-24"));
        let sim = network(1, V4).await;
        put(&sim, "subnets/10.5.29.0-24", &value(12)).await;
        let lease = acquire(&manager(&sim, 1), &with("10.5.29.0-24")).await;
        assert!(!lease.key.overlaps(&key("10.5.29.0-24")));
        assert!(stored(&sim).await.contains(&("10.5.29.0-24".to_owned(), value(12))), "unchanged");
        for outside in ["10.6.29.0-24", "10.5.29.0-25", ""] {
            let sim = network(1, V4).await;
            let lease = acquire(&manager(&sim, 1), &with(outside)).await;
            assert!(crate::bench::config(V4).v4().unwrap().contains(&lease.key.v4.unwrap()), "{}", lease.key);
        }
    });
}

#[test]
fn t15_a_reservation_is_used_and_stays_one() {
    run(async {
        let sim = network(1, V4).await;
        put(&sim, "subnets/10.5.7.0-24", &value(11).replace("0b\"", "99\"")).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        assert_eq!((lease.key, lease.expires), (key("10.5.7.0-24"), None));
        assert_eq!(stored(&sim).await, [("10.5.7.0-24".to_owned(), value(11))]);
        let kept = tokio::time::timeout(DAY * 3, manager.keep(&lease, Duration::from_secs(3600))).await;
        assert!(kept.is_err(), "{kept:?}");
        assert_eq!(keys(&sim).await, ["10.5.7.0-24"]);
        assert!(!sim.dump().contains("lease"), "{}", sim.dump());
    });
}

#[test]
fn t16_two_nodes_that_draw_the_same_subnet_get_two() {
    run(async {
        let sim = network(1, V4).await;
        let (first, second) = (manager(&sim, 7), manager(&sim, 7));
        let (a, b) = (wish(11), wish(12));
        let (one, other) = tokio::join!(acquire(&first, &a), acquire(&second, &b));
        assert!(!one.key.overlaps(&other.key));
        let mut wanted = vec![(one.key.to_string(), value(11)), (other.key.to_string(), value(12))];
        wanted.sort();
        assert_eq!(stored(&sim).await, wanted);
    });
}

#[test]
fn t16_keys_of_two_families_that_share_one_subnet_are_not_both_kept() {
    // They have different keys, so creating one does not refuse the other.
    run(async {
        for seed in 0..50 {
            let text = r#"{"EnableIPv6":true,"Network":"10.5.0.0/28","IPv6Network":"fd00:10:5::/48"}"#;
            let sim = network(seed, text).await;
            let (first, second) = (manager(&sim, seed), manager(&sim, seed + 1000));
            let (a, b) = (wish(11), wish(12));
            let (one, other) = tokio::join!(acquire(&first, &a), acquire(&second, &b));
            assert!(!one.key.overlaps(&other.key), "seed {seed}: {} and {}", one.key, other.key);
        }
    });
}

#[test]
fn t45_a_v4_only_lease_of_this_node_becomes_a_new_key_and_others_are_left_alone() {
    run(async {
        let sim = network(1, DUAL).await;
        put(&sim, "subnets/10.5.7.0-24", &value(11)).await;
        put(&sim, "subnets/10.5.8.0-24", &value(12)).await;
        let mut wish = wish(11);
        wish.previous = key("10.5.8.0-24&fd00:10:5:8::-64");
        let lease = acquire(&manager(&sim, 1), &wish).await;
        assert!(
            lease.key.v4.is_some()
                && lease.key.v6 == wish.previous.v6
                && !lease.key.overlaps(&key("10.5.8.0-24"))
        );
        let mut wanted = vec![lease.key.to_string(), "10.5.8.0-24".to_owned()];
        wanted.sort();
        assert_eq!(keys(&sim).await, wanted);
    });
}

#[test]
fn t46_two_nodes_without_ipv4_get_two_leases() {
    run(async {
        let sim =
            network(1, r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"}"#).await;
        let of = |host: u8| {
            let mut wish = wish(host);
            wish.attributes.public_ip = [0; 4].into();
            wish.attributes.public_ipv6 = format!("fd00:2::{host}").parse().ok();
            wish
        };
        let one = acquire(&manager(&sim, 1), &of(1)).await;
        let other = acquire(&manager(&sim, 2), &of(2)).await;
        assert_ne!(one.key, other.key);
        assert_eq!(keys(&sim).await.len(), 2);
        assert!(keys(&sim).await.iter().all(|key| key.starts_with("0.0.0.0-0&fd00:10:5:")));
        assert_eq!(acquire(&manager(&sim, 3), &of(2)).await.key, other.key);
    });
}

#[test]
fn a_lost_answer_leaves_one_lease_wherever_it_was_lost() {
    run(async {
        for at in 0..4 {
            for fault in [Fault::LostReply, Fault::LostRequest, Fault::Unavailable] {
                for own in ["", "subnets/10.5.7.0-24", "subnets/10.5.7.0-25"] {
                    let sim = network(1, V4).await;
                    if !own.is_empty() {
                        let lease = sim.grant(DAY).await.unwrap();
                        let step = Step::put(path(own), value(11)).with_lease(lease);
                        sim.commit(vec![step]).await.unwrap();
                    }
                    sim.script((0..at).map(|_| Fault::None).chain([fault]));
                    let manager = manager(&sim, 1);
                    let wish = wish(11);
                    let lease = loop {
                        match manager.acquire(&config(V4), &wish).await {
                            Ok(lease) => break lease,
                            Err(error) => assert!(error.is_retryable(), "{error}"),
                        }
                    };
                    assert_eq!(keys(&sim).await, [lease.key.to_string()], "{at} {fault:?} {own}");
                    let kept = tokio::time::timeout(DAY / 24, manager.keep(&lease, DAY - DAY / 144)).await;
                    assert!(kept.is_err(), "{at} {fault:?} {own}: {kept:?}");
                }
            }
        }
    });
}

#[test]
fn a_node_that_is_killed_at_any_step_has_one_lease_after_its_next_start() {
    run(async {
        for polls in 0..40 {
            let sim = network(1, V4).await;
            let (config, wish) = (config(V4), wish(11));
            let first = manager(&sim, 1);
            let mut crashing = first.acquire(&config, &wish);
            for _ in 0..polls {
                if futures_poll(&mut crashing).await {
                    break;
                }
            }
            drop(crashing);
            let lease = acquire(&manager(&sim, 2), &wish).await;
            assert_eq!(keys(&sim).await, [lease.key.to_string()], "after {polls} steps");
        }
    });
}

/// Polls once; returns whether the future finished.
async fn futures_poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    let mut future = std::pin::Pin::new(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

#[test]
fn garbage_among_the_leases_is_ignored() {
    run(async {
        let sim = network(1, V4).await;
        for (below, value) in [
            ("subnets/nonsense", "x"),
            ("subnets/10.5.3.0-24", "{"),
            ("subnets-old/10.5.4.0-24", "{}"),
            ("subnets/0.0.0.0-0", "{}"),
            ("subnets", "x"),
        ] {
            put(&sim, below, value).await;
        }
        let before = keys(&sim).await;
        let lease = acquire(&manager(&sim, 1), &wish(11)).await;
        assert!(!lease.key.overlaps(&key("10.5.3.0-24")) && !lease.key.overlaps(&key("10.5.4.0-24")));
        assert_eq!(keys(&sim).await.len(), before.len() + 1);
        assert_ne!(lease.key, SubnetKey::default());
    });
}

#[test]
fn the_embedded_store_of_one_machine_serves_as_well() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let store = russet_store::Embedded::open(directory.path().join("store")).unwrap();
        put(&store, "config", V4).await;
        let manager = manager(&store, 1);
        let lease = acquire(&manager, &wish(11)).await;
        let mut watch = manager.watch(&lease.key).await.unwrap();
        assert_eq!(watch.next().await, Event::Snapshot(Vec::new()));
        put(&store, "subnets/10.5.200.0-24", &value(12)).await;
        assert!(matches!(watch.next().await, Event::Put(lease) if lease.key == key("10.5.200.0-24")));
        manager.publish(&lease).await.unwrap();
        let mut wanted = vec![(lease.key.to_string(), value(11)), ("10.5.200.0-24".into(), value(12))];
        wanted.sort();
        assert_eq!(stored(&store).await, wanted);
        let (lost, ()) = tokio::join!(manager.keep(&lease, DAY / 24), async {
            crate::bench::delete(&store, &format!("subnets/{}", lease.key)).await;
        });
        assert_eq!(lost, Lost::Gone);
    });
}
