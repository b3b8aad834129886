//! The atomic part: several guarded steps in one all-or-nothing commit.

use std::rc::Rc;

use russet_model::Prefix;

use super::{Bench, Case, WatchedRecords, count, key, next, value};
use crate::sim::Rng;
use crate::{MAX_STEPS, Revision, Step, Store, StoreError};

pub(super) const CASES: &[(&str, Case)] = &[
    ("several_steps_take_effect_at_one_revision", |bench| Box::pin(one_revision(bench))),
    ("a_failed_guard_anywhere_leaves_nothing", |bench| Box::pin(all_or_nothing(bench))),
    ("the_largest_commit_fits", |bench| Box::pin(largest(bench))),
    ("nobody_sees_half_a_commit", |bench| Box::pin(no_half_commit(bench))),
    ("a_scan_sees_one_moment", |bench| Box::pin(one_moment(bench))),
];

async fn one_revision(bench: &Bench<'_>) {
    assert!(bench.store.claims().atomic);
    let first = bench.create(1, 1).await;
    bench.create(2, 2).await;
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    let mut watched = WatchedRecords::default();
    watched.take(next(&mut watch).await);
    let steps = vec![
        Step::update(key(1), value(10), first),
        Step::delete(key(2), None),
        Step::create(key(3), value(3)),
        Step::put(key(4), value(4)),
    ];
    let revisions = bench.store.commit(steps).await.unwrap();
    assert_eq!(revisions.len(), 4);
    assert_eq!(
        [bench.revision(1).await, bench.revision(3).await, bench.revision(4).await],
        [revisions[0], revisions[2], revisions[3]]
    );
    assert_eq!(revisions[0], revisions[3]);
    assert_eq!(bench.count(2).await, None);
    watched.catch_up(bench, &mut watch, 9).await;
    assert_eq!(watched.records.keys().cloned().collect::<Vec<_>>(), [key(1), key(3), key(4), key(9)]);
}

async fn all_or_nothing(bench: &Bench<'_>) {
    let exists = bench.create(90, 0).await;
    let stale = Revision(exists.0 + 1000);
    for position in 0..4 {
        for bad in [
            Step::create(key(90), value(1)),
            Step::update(key(90), value(1), stale),
            Step::delete(key(90), Some(stale)),
            Step::update(key(91), value(1), exists),
            Step::delete(key(91), None),
        ] {
            let mut steps: Vec<Step> = (0..3).map(|n| Step::create(key(n), value(1))).collect();
            steps.insert(position, bad);
            let error = bench.store.commit(steps).await.unwrap_err();
            assert_eq!((error.done, error.failed), (0, position));
            assert!(error.error.lost_race(), "{error}");
        }
    }
    let listed = bench.store.list(&Prefix::handles()).await.unwrap().records;
    assert_eq!(
        listed.iter().map(|record| (&record.key, record.revision)).collect::<Vec<_>>(),
        [(&key(90), exists)]
    );
}

async fn largest(bench: &Bench<'_>) {
    bench.store.commit((0..MAX_STEPS).map(|n| Step::create(key(n), value(n))).collect()).await.unwrap();
    assert_eq!(bench.store.list(&Prefix::handles()).await.unwrap().records.len(), MAX_STEPS);
}

/// Accounts, the initial amount of each, transfers of each writer, writers.
const ACCOUNTS: usize = 4;
const DEPOSIT: usize = 100;
const TRANSFERS: usize = 15;
const WRITERS: u64 = 4;

async fn no_half_commit(bench: &Bench<'_>) {
    for n in 0..ACCOUNTS {
        bench.create(n, DEPOSIT).await;
    }
    let local = tokio::task::LocalSet::new();
    let writers: Vec<_> =
        (0..WRITERS).map(|seed| local.spawn_local(transfer(bench.subject.store(), Rng::new(seed)))).collect();
    let reader = bench.subject.store();
    let finished = async {
        for writer in writers {
            writer.await.unwrap();
        }
    };
    let mut finished = std::pin::pin!(local.run_until(finished));
    loop {
        let sum: usize = reader
            .list(&Prefix::handles())
            .await
            .unwrap()
            .records
            .iter()
            .map(|record| count(&record.value))
            .sum();
        assert_eq!(sum, ACCOUNTS * DEPOSIT);
        tokio::select! {
            biased;
            () = &mut finished => return,
            () = tokio::task::yield_now() => {}
        }
    }
}

/// Records between the two that change together: several pages of any engine.
const BETWEEN: usize = 400;
const SCANS: usize = 10;

async fn one_moment(bench: &Bench<'_>) {
    let all: Vec<usize> = (0..=BETWEEN).collect();
    for chunk in all.chunks(MAX_STEPS) {
        bench.store.commit(chunk.iter().map(|n| Step::create(key(*n), value(0))).collect()).await.unwrap();
    }
    let writer = bench.subject.store();
    let write = async {
        for round in 1.. {
            let steps = [0, BETWEEN].map(|n| Step::put(key(n), value(round)));
            writer.commit(steps.into()).await.unwrap();
        }
    };
    let scans = async {
        for _ in 0..SCANS {
            let mut counts = Vec::new();
            let take = &mut |record: crate::Record| counts.push(count(&record.value));
            bench.store.scan(&Prefix::handles(), take).await.unwrap();
            assert_eq!((counts.len(), counts[0]), (BETWEEN + 1, counts[BETWEEN]));
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = write => {}
        () = scans => {}
    }
    assert!(bench.count(0).await > Some(0), "another writer wrote meanwhile");
}

async fn transfer(store: Rc<dyn Store>, mut rng: Rng) {
    let mut left = TRANSFERS;
    while left > 0 {
        let from = usize::try_from(rng.below(ACCOUNTS as u64)).unwrap();
        let to = (from + 1) % ACCOUNTS;
        let (key_from, key_to) = (key(from), key(to));
        let (a, b) =
            (store.get(&key_from).await.unwrap().unwrap(), store.get(&key_to).await.unwrap().unwrap());
        let steps = vec![
            Step::update(key_from, value(count(&a.value).saturating_sub(1)), a.revision),
            Step::update(key_to, value(count(&b.value) + count(&a.value).min(1)), b.revision),
        ];
        match store.commit(steps).await {
            Ok(_) => left -= 1,
            Err(error) => assert!(matches!(error.error, StoreError::Conflict { .. }), "{error}"),
        }
    }
}
