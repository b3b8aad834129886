//! Following other nodes' leases in the simulated store: flannel.md section 3.5 and rows T20 to T26.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use russet_lease::{Event, Lease, LeaseWatch, SubnetManager, gather};
use russet_model::flannel::{Attributes, SubnetKey};
use russet_store::sim::Faults;
use russet_store::{Sim, Step, Store};

use crate::bench::{V4, attributes, delete, key, manager, network, path, put, run, value};

/// What a daemon would have programmed.
#[derive(Debug, Default, PartialEq)]
pub struct ObservedLeases(pub BTreeMap<SubnetKey, Attributes>);

impl ObservedLeases {
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Snapshot(all) => {
                assert!(self.0.is_empty(), "a second snapshot");
                let read = |lease: Lease| (lease.key, Arc::unwrap_or_clone(lease.attributes));
                self.0 = all.into_iter().map(read).collect();
            }
            Event::Put(lease) => {
                let attributes = Arc::unwrap_or_clone(lease.attributes);
                let before = self.0.insert(lease.key, attributes.clone());
                assert_ne!(before, Some(attributes), "reported twice");
            }
            Event::Gone(subnet) => assert!(self.0.remove(&subnet).is_some(), "{subnet} was never reported"),
        }
    }

    /// Takes all events until none arrives for a minute.
    pub async fn settle(&mut self, watch: &mut dyn LeaseWatch) {
        while let Ok(event) = tokio::time::timeout(Duration::from_secs(60), watch.next()).await {
            self.take(event);
        }
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().map(ToString::to_string).collect()
    }
}

async fn watched(sim: &Sim, own: &str) -> (Box<dyn LeaseWatch>, ObservedLeases) {
    let own = key(own);
    let mut watch = manager(sim, 1).watch(&own).await.unwrap();
    let mut observed = ObservedLeases::default();
    observed.take(watch.next().await);
    (watch, observed)
}

async fn next(watch: &mut Box<dyn LeaseWatch>) -> Event {
    tokio::time::timeout(Duration::from_secs(600), watch.next()).await.unwrap()
}

#[test]
fn t20_and_t21_a_peer_that_is_added_changed_and_removed_is_reported_and_the_own_lease_is_not() {
    run(async {
        let sim = network(1, V4).await;
        put(&sim, "subnets/10.5.1.0-24", &value(1)).await;
        put(&sim, "subnets/10.5.2.0-24", &value(2)).await;
        let (mut watch, observed) = watched(&sim, "10.5.1.0-24").await;
        assert_eq!(observed.names(), ["10.5.2.0-24"]);
        put(&sim, "subnets/10.5.1.0-24", &value(9)).await;
        put(&sim, "subnets/10.5.3.0-24", &value(3)).await;
        assert!(matches!(next(&mut watch).await, Event::Put(lease) if lease.key == key("10.5.3.0-24")));
        put(&sim, "subnets/10.5.3.0-24", &value(3)).await;
        put(&sim, "subnets/10.5.2.0-24", &value(7)).await;
        let changed = next(&mut watch).await;
        assert!(matches!(&changed, Event::Put(lease) if *lease.attributes == attributes(7)), "{changed:?}");
        delete(&sim, "subnets/10.5.1.0-24").await;
        delete(&sim, "subnets/10.5.2.0-24").await;
        assert_eq!(next(&mut watch).await, Event::Gone(key("10.5.2.0-24")));
    });
}

#[test]
fn t23_garbage_is_skipped_and_the_next_event_is_reported() {
    run(async {
        let sim = network(1, V4).await;
        put(&sim, "subnets/10.5.9.0-24", "garbage").await;
        let (mut watch, observed) = watched(&sim, "").await;
        assert!(observed.0.is_empty());
        put(&sim, "subnets/10.5.2.0-24", "[]").await;
        put(&sim, "subnets/not-a-subnet", &value(2)).await;
        put(&sim, "subnets/10.5.2.7-24", &value(2)).await;
        put(&sim, "subnets/10.5.3.0-24", &value(3)).await;
        assert!(matches!(next(&mut watch).await, Event::Put(lease) if lease.key == key("10.5.3.0-24")));
        // A lease that becomes garbage is gone; one that becomes readable is new.
        put(&sim, "subnets/10.5.3.0-24", "{").await;
        assert_eq!(next(&mut watch).await, Event::Gone(key("10.5.3.0-24")));
        put(&sim, "subnets/10.5.9.0-24", &value(9)).await;
        assert!(matches!(next(&mut watch).await, Event::Put(lease) if lease.key == key("10.5.9.0-24")));
    });
}

#[test]
fn t24_a_burst_and_one_commit_of_several_keys_are_reported_completely() {
    run(async {
        let sim = network(2, V4).await;
        let (mut watch, mut observed) = watched(&sim, "").await;
        for n in 1..=50u8 {
            put(&sim, &format!("subnets/10.5.{n}.0-24"), &value(n)).await;
        }
        let steps = (101..=105u8).map(|n| Step::put(path(&format!("subnets/10.5.{n}.0-24")), value(n)));
        sim.commit(steps.collect()).await.unwrap();
        observed.settle(&mut *watch).await;
        let wanted: BTreeSet<u8> = (1..=50).chain(101..=105).collect();
        assert_eq!(observed.0.len(), 55);
        assert!(observed.0.values().all(|lease| wanted.contains(&lease.public_ip.octets()[3])));
    });
}

#[test]
fn queued_events_are_gathered_into_one_change() {
    run(async {
        let sim = network(1, V4).await;
        let (mut watch, _) = watched(&sim, "").await;
        let steps = (1..=100u8).map(|n| Step::put(path(&format!("subnets/10.5.{n}.0-24")), value(n)));
        sim.commit(steps.collect()).await.unwrap();
        let first = gather(&mut *watch, 64).await;
        let second = gather(&mut *watch, 64).await;
        assert_eq!((first.len(), second.len()), (64, 36));
    });
}

#[test]
fn t26_after_compaction_all_differences_are_reported_including_attributes() {
    run(async {
        let sim = network(1, V4).await;
        for n in 1..=4u8 {
            put(&sim, &format!("subnets/10.5.{n}.0-24"), &value(n)).await;
        }
        let (mut watch, mut observed) = watched(&sim, "10.5.1.0-24").await;
        delete(&sim, "subnets/10.5.2.0-24").await;
        put(&sim, "subnets/10.5.3.0-24", &value(33)).await;
        put(&sim, "subnets/10.5.5.0-24", &value(5)).await;
        sim.compact();
        observed.settle(&mut *watch).await;
        assert_eq!(observed.names(), ["10.5.3.0-24", "10.5.4.0-24", "10.5.5.0-24"]);
        assert_eq!(observed.0[&key("10.5.3.0-24")], attributes(33));
    });
}

#[test]
fn of_two_records_about_one_subnet_the_regular_one_is_reported() {
    run(async {
        // flannel.md section 3.1b: what begins with `subnets` is seen, and only the end of a key is read.
        let sim = network(1, V4).await;
        put(&sim, "subnets/10.5.2.0-24", &value(2)).await;
        let (mut watch, mut observed) = watched(&sim, "").await;
        put(&sim, "subnets-old/10.5.2.0-24", &value(3)).await;
        put(&sim, "subnets-older/10.5.2.0-24", &value(4)).await;
        observed.settle(&mut *watch).await;
        assert_eq!(observed.0[&key("10.5.2.0-24")], attributes(2));
        delete(&sim, "subnets/10.5.2.0-24").await;
        observed.settle(&mut *watch).await;
        assert_eq!(observed.0[&key("10.5.2.0-24")], attributes(4), "else the one written last");
        delete(&sim, "subnets-older/10.5.2.0-24").await;
        delete(&sim, "subnets-old/10.5.2.0-24").await;
        observed.settle(&mut *watch).await;
        assert!(observed.0.is_empty());
    });
}

#[test]
fn a_watch_through_faults_ends_with_the_stored_leases() {
    run(async {
        for seed in 0..40 {
            let sim = network(seed, V4).await;
            let (mut watch, mut observed) = watched(&sim, "10.5.1.0-24").await;
            sim.set_faults(Faults {
                unavailable: 100,
                delayed_event: 300,
                compaction: 200,
                ..Faults::default()
            });
            let mut chance = russet_store::sim::Rng::new(seed);
            for _ in 0..200 {
                let (n, host) = (1 + chance.below(20), chance.below(250) as u8);
                let below = path(&format!("subnets/10.5.{n}.0-24"));
                let step = match chance.below(4) {
                    0 => Step::delete(below, None),
                    1 => Step::put(below, "garbage"),
                    _ => Step::put(below, value(host)),
                };
                // Deleting a missing record fails, and so may every other step.
                let _ = sim.commit(vec![step]).await;
                let some = gather(&mut *watch, 3);
                if chance.below(5) == 0
                    && let Ok(events) = tokio::time::timeout(Duration::from_secs(1), some).await
                {
                    events.into_iter().for_each(|event| observed.take(event));
                }
            }
            sim.set_faults(Faults::default());
            observed.settle(&mut *watch).await;
            let wanted = sim.records().into_values().filter_map(|record| {
                let subnet =
                    record.key.as_str().strip_prefix("/coreos.com/network/subnets/")?.parse().ok()?;
                Some((subnet, Attributes::from_json(&record.value).ok()?))
            });
            let wanted: BTreeMap<SubnetKey, Attributes> =
                wanted.filter(|(subnet, _)| *subnet != key("10.5.1.0-24")).collect();
            assert_eq!(observed, ObservedLeases(wanted), "seed {seed}");
        }
    });
}
