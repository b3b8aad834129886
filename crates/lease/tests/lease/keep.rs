//! Keeping a lease in the simulated store: flannel.md section 3.4, section 12 items 2 and 4.

use std::sync::Arc;
use std::time::Duration;

use russet_lease::{Lost, SubnetManager};
use russet_store::sim::Fault;
use russet_store::{LeaseId, Sim, Step, Store, Tenure};

use crate::bench::{
    DAY, V4, acquire, attributes, delete, key, keys, manager, network, path, put, run, stored, value, wish,
};

const HOUR: Duration = Duration::from_secs(3600);

async fn lives_by(sim: &Sim, lease: &russet_lease::Lease) -> Option<Tenure> {
    let path = path(&format!("subnets/{}", lease.key));
    sim.tenure(&path).await.unwrap().map(|(_, tenure)| tenure)
}

fn revision(sim: &Sim, lease: &russet_lease::Lease) -> u64 {
    sim.records()[&path(&format!("subnets/{}", lease.key))].revision.0
}

#[test]
fn t17_a_lease_is_renewed_under_the_same_store_lease_when_the_margin_is_reached() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        let (before, tenure) = (revision(&sim, &lease), lives_by(&sim, &lease).await);
        // flannel's greatest margin, 1439 minutes: every 60 s.
        let margin = Duration::from_secs(1439 * 60);
        let operations = sim.operations();
        assert!(
            tokio::time::timeout(10 * 60 * Duration::from_secs(1), manager.keep(&lease, margin))
                .await
                .is_err()
        );
        let renewals = sim.operations() - operations;
        // One check and one renewal each.
        assert!((18..=20).contains(&renewals), "{renewals}");
        assert!(tokio::time::timeout(DAY * 4, manager.keep(&lease, HOUR)).await.is_err());
        assert_eq!((revision(&sim, &lease), lives_by(&sim, &lease).await), (before, tenure));
    });
}

#[test]
fn t19_a_deleted_or_expired_lease_is_lost_and_can_be_acquired_again() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let mut wish = wish(11);
        let lease = acquire(&manager, &wish).await;
        let below = format!("subnets/{}", lease.key);
        let (lost, ()) = tokio::join!(manager.keep(&lease, HOUR), async {
            tokio::time::sleep(HOUR).await;
            delete(&sim, &below).await;
        });
        assert_eq!(lost, Lost::Gone);
        wish.previous = lease.key;
        assert_eq!(acquire(&manager, &wish).await.key, lease.key);
        tokio::time::sleep(DAY * 2).await;
        assert_eq!(manager.keep(&lease, HOUR).await, Lost::Gone);
    });
}

#[test]
fn a_lease_that_another_node_took_is_lost() {
    run(async {
        // As v0.10 does with the previous subnet (flannel.md section 3.3).
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        let below = format!("subnets/{}", lease.key);
        let theirs = value(12);
        let (lost, ()) = tokio::join!(manager.keep(&lease, HOUR), put(&sim, &below, &theirs));
        assert_eq!(lost, Lost::Taken(attributes(12)));
        assert_eq!(stored(&sim).await[0].1, value(12), "left to its new owner");
    });
}

#[test]
fn a_foreign_value_of_the_own_lease_is_overwritten_at_the_next_renewal() {
    run(async {
        let sim = network(1, V4).await;
        for foreign in [value(11).replace("0b\"", "99\""), "garbage".to_owned()] {
            let manager = manager(&sim, 1);
            let lease = acquire(&manager, &wish(11)).await;
            let under = sim.grant(DAY * 9).await.unwrap();
            let step = Step::put(path(&format!("subnets/{}", lease.key)), foreign).with_lease(under);
            sim.commit(vec![step]).await.unwrap();
            assert!(tokio::time::timeout(DAY * 2, manager.keep(&lease, HOUR)).await.is_err());
            assert_eq!(stored(&sim).await, [(lease.key.to_string(), value(11))]);
            assert_ne!(lives_by(&sim, &lease).await, Some(Tenure::Leased(Some(under))));
        }
    });
}

#[test]
fn a_key_beside_the_own_one_is_ignored() {
    run(async {
        // flannel.md section 3.5: to a real daemon its deletion looks like the end of its own
        // lease.
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        let beside = format!("subnets/{}&fd00::-64", lease.key);
        let (kept, ()) = tokio::join!(tokio::time::timeout(HOUR, manager.keep(&lease, HOUR)), async {
            put(&sim, &beside, &value(12)).await;
            delete(&sim, &beside).await;
        });
        assert!(kept.is_err(), "{kept:?}");
    });
}

#[test]
fn a_failed_renewal_is_retried_each_minute_until_it_succeeds() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        // The store is unreachable for half an hour when the renewal is due; keep-alives are the
        // only writes.
        sim.script((0..30).map(|_| Fault::Unavailable));
        let kept = tokio::time::timeout(DAY + HOUR * 3, manager.keep(&lease, HOUR)).await;
        assert!(kept.is_err(), "{kept:?}");
        assert_eq!(keys(&sim).await, [lease.key.to_string()]);
    });
}

#[test]
fn the_heartbeat_writes_the_same_value_once_more_and_publishing_writes_changes() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let mut lease = acquire(&manager, &wish(11)).await;
        let (before, tenure) = (revision(&sim, &lease), lives_by(&sim, &lease).await);
        let begun = tokio::time::Instant::now();
        manager.ready(&lease).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(5));
        assert!(revision(&sim, &lease) > before && lives_by(&sim, &lease).await == tenure);
        assert_eq!(stored(&sim).await[0].1, value(11));
        Arc::make_mut(&mut lease.attributes).backend_data =
            Some(r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:77"}"#.into());
        let begun = tokio::time::Instant::now();
        manager.publish(&lease).await.unwrap();
        manager.publish(&lease).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(200), "writes are apart");
        let changed = String::from_utf8(lease.attributes.to_json()).unwrap();
        // Renewals keep the published value.
        assert!(tokio::time::timeout(DAY * 2, manager.keep(&lease, HOUR)).await.is_err());
        assert_eq!(stored(&sim).await, [(lease.key.to_string(), changed)]);
        delete(&sim, &format!("subnets/{}", lease.key)).await;
        assert!(manager.publish(&lease).await.is_err(), "a lost lease is not created again");
        assert!(keys(&sim).await.is_empty());
    });
}

#[test]
fn an_ended_store_lease_is_replaced_while_the_record_exists() {
    run(async {
        let sim = network(1, V4).await;
        let manager = manager(&sim, 1);
        let lease = acquire(&manager, &wish(11)).await;
        let Some(Tenure::Leased(Some(id))) = lives_by(&sim, &lease).await else { panic!("a lease") };
        // Another process attaches the record to another lease, and ends the first.
        let other = sim.grant(DAY * 5).await.unwrap();
        let step = Step::put(path(&format!("subnets/{}", lease.key)), value(11)).with_lease(other);
        sim.commit(vec![step]).await.unwrap();
        sim.revoke(id).await.unwrap();
        assert!(tokio::time::timeout(DAY * 9, manager.keep(&lease, HOUR)).await.is_err());
        let now = lives_by(&sim, &lease).await;
        assert!(
            matches!(now, Some(Tenure::Leased(Some(LeaseId(now)))) if now != id.0 && now != other.0),
            "{now:?}"
        );
        assert_eq!(key(&keys(&sim).await[0]), lease.key);
    });
}
