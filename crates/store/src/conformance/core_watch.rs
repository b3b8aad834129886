//! The core part: watches.

use std::task::{Context, Poll, Waker};

use russet_addr::{Family, NodeName};
use russet_model::{Key, Prefix};

use super::{Bench, Case, WatchedRecords, count, key, next, value};
use crate::sim::Rng;
use crate::{Event, Step, Watch};

pub(super) const CASES: &[(&str, Case)] = &[
    ("a_watch_is_a_snapshot_and_then_what_changes", |bench| Box::pin(snapshot_then_events(bench))),
    ("following_hands_out_what_is_there_and_then_tells_what_changes", |bench| Box::pin(following(bench))),
    ("a_watch_tells_nothing_of_other_prefixes", |bench| Box::pin(other_prefixes(bench))),
    ("dropping_a_pending_next_loses_nothing", |bench| Box::pin(dropped_next(bench))),
    ("a_watch_survives_interruptions_without_loss_or_repeat", |bench| Box::pin(interruptions(bench))),
    ("a_watch_that_was_away_for_long_tells_only_differences", |bench| Box::pin(long_absence(bench))),
];

async fn watch_handles(bench: &Bench<'_>) -> Box<dyn Watch> {
    bench.store.watch(&Prefix::handles()).await.unwrap()
}

async fn snapshot_then_events(bench: &Bench<'_>) {
    bench.create(2, 2).await;
    bench.create(1, 1).await;
    let mut watch = watch_handles(bench).await;
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("the first event is a snapshot") };
    assert_eq!(snapshot.records.iter().map(|record| count(&record.value)).collect::<Vec<_>>(), [1, 2]);

    let created = bench.create(3, 3).await;
    let Event::Put(record) = next(&mut watch).await else { panic!("a creation is a put") };
    assert_eq!((record.key, record.revision, count(&record.value)), (key(3), created, 3));

    let updated = bench.one(Step::update(key(3), value(4), created)).await;
    let Event::Put(record) = next(&mut watch).await else { panic!("an update is a put") };
    assert_eq!((record.key, record.revision, count(&record.value)), (key(3), updated, 4));

    bench.one(Step::delete(key(1), None)).await;
    let Event::Deleted { key: gone, revision } = next(&mut watch).await else {
        panic!("a removal is reported")
    };
    assert!(gone == key(1) && revision > updated);
}

async fn following(bench: &Bench<'_>) {
    bench.create(2, 2).await;
    let first = bench.create(1, 1).await;
    let mut there = Vec::new();
    let mut watch =
        bench.store.follow(&Prefix::handles(), &mut |record| there.push(count(&record.value))).await.unwrap();
    assert_eq!(there, [1, 2]);
    let updated = bench.one(Step::update(key(1), value(4), first)).await;
    let Event::Put(record) = next(&mut watch).await else { panic!("the first event is a change") };
    assert_eq!((record.key, record.revision, count(&record.value)), (key(1), updated, 4));
    bench.one(Step::delete(key(2), None)).await;
    let Event::Deleted { key: gone, .. } = next(&mut watch).await else { panic!("a removal is reported") };
    assert_eq!(gone, key(2), "what was handed out is known");
}

async fn other_prefixes(bench: &Bench<'_>) {
    let node = |name: &str| NodeName::new(name).unwrap();
    let affinity = |name: &str| Key::affinity(&node(name), "10.1.0.0/26".parse().unwrap());
    let state = || r#"{"state":"confirmed","deleted":false}"#.as_bytes().to_vec();
    let mut watch = bench.store.watch(&Prefix::affinities_of(&node("node1"), Family::V4)).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Snapshot(snapshot) if snapshot.records.is_empty()));
    bench.one(Step::create(affinity("node10"), state())).await;
    bench.create(1, 1).await;
    bench.one(Step::create(affinity("node1"), state())).await;
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == affinity("node1")));
}

async fn dropped_next(bench: &Bench<'_>) {
    let mut watch = watch_handles(bench).await;
    let mut watched = WatchedRecords::default();
    watched.take(next(&mut watch).await);
    for n in 0..20 {
        // A poll that is dropped before it finds anything, as `select!` does; it may also find
        // something.
        if let Poll::Ready(event) = watch.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            watched.take(event.unwrap());
        }
        bench.create(n, n).await;
    }
    watched.catch_up(bench, &mut watch, 99).await;
    assert_eq!(watched.records.len(), 21);
}

/// Rounds of changes and interruptions, and changes in each.
const ROUNDS: usize = 12;
const CHANGES: usize = 15;
const SENTINEL: usize = 999;

async fn interruptions(bench: &Bench<'_>) {
    let seed = 20_260_101;
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut watched = WatchedRecords::default();
    let mut watch = watch_handles(bench).await;
    for _ in 0..ROUNDS {
        for _ in 0..CHANGES {
            change_something(bench, &mut rng).await;
            if rng.below(6) == 0 {
                bench.subject.interrupt().await;
            }
            if rng.below(4) == 0 {
                watched.catch_up(bench, &mut watch, SENTINEL).await;
            }
        }
        bench.subject.interrupt().await;
        watched.catch_up(bench, &mut watch, SENTINEL).await;
    }
}

async fn change_something(bench: &Bench<'_>, rng: &mut Rng) {
    let n = usize::try_from(rng.below(10)).unwrap();
    let step = match bench.count(n).await {
        Some(_) if rng.below(3) == 0 => Step::delete(key(n), None),
        Some(count) => Step::update(key(n), value(count + 1), bench.revision(n).await),
        None => Step::create(key(n), value(0)),
    };
    bench.one(step).await;
}

async fn long_absence(bench: &Bench<'_>) {
    for n in 0..50 {
        bench.create(n, n).await;
    }
    let mut watch = watch_handles(bench).await;
    let mut watched = WatchedRecords::default();
    watched.take(next(&mut watch).await);
    bench.subject.interrupt().await;
    for n in 0..10 {
        bench.one(Step::delete(key(n), None)).await;
        bench.one(Step::put(key(n + 10), value(1000))).await;
        bench.create(n + 100, n).await;
    }
    bench.subject.interrupt().await;
    watched.catch_up(bench, &mut watch, SENTINEL).await;
    assert_eq!(watched.events, 1 + 30 + 1, "each of the 30 differences once, and the last record");
}
