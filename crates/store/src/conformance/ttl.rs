//! The part about leases: records that exist as long as their lease is kept alive.

use std::time::Duration;

use russet_model::Prefix;

use super::{Bench, Case, TIMEOUT, WatchedRecords, key, next, value};
use crate::{Event, LeaseId, Step, StoreError, Tenure, Watch};

/// A TTL that every engine grants exactly: etcd counts whole seconds, and rounds small ones up to
/// its election timeout. It is long enough for a few writes to a busy disk.
const TTL: Duration = Duration::from_secs(5);

pub(super) const CASES: &[(&str, Case)] = &[
    ("records_vanish_with_their_lease", |bench| Box::pin(expiry(bench))),
    ("a_lease_that_is_kept_alive_stays", |bench| Box::pin(kept_alive(bench))),
    ("revoking_removes_its_records_and_no_others", |bench| Box::pin(revoked(bench))),
    ("a_write_without_a_lease_frees_the_record", |bench| Box::pin(freed(bench))),
    ("a_record_says_by_what_it_lives", |bench| Box::pin(tenure(bench))),
    ("an_unknown_lease_is_refused", |bench| Box::pin(unknown(bench))),
];

/// Takes events until `gone` holds, letting time pass meanwhile.
async fn until(
    bench: &Bench<'_>,
    watch: &mut Box<dyn Watch>,
    watched: &mut WatchedRecords,
    gone: impl Fn(&WatchedRecords) -> bool,
) {
    let step = Duration::from_millis(200);
    let mut passed = Duration::ZERO;
    while !gone(watched) {
        assert!(passed < TIMEOUT, "the lease has not run out");
        tokio::select! {
            biased;
            event = next(watch) => watched.take(event),
            () = bench.subject.pass(step) => passed += step,
        }
    }
}

async fn watch(bench: &Bench<'_>) -> (Box<dyn Watch>, WatchedRecords) {
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    let mut watched = WatchedRecords::default();
    watched.take(next(&mut watch).await);
    (watch, watched)
}

async fn expiry(bench: &Bench<'_>) {
    assert!(bench.store.claims().ttl);
    bench.create(9, 9).await;
    let lease = bench.store.grant(TTL).await.unwrap();
    let steps =
        vec![Step::create(key(1), value(1)).with_lease(lease), Step::put(key(2), value(2)).with_lease(lease)];
    bench.store.commit(steps).await.unwrap();
    let (mut watch, mut watched) = watch(bench).await;
    assert_eq!(watched.records.len(), 3);
    until(bench, &mut watch, &mut watched, |watched| watched.records.len() == 1).await;
    assert_eq!((bench.count(1).await, bench.count(2).await, bench.count(9).await), (None, None, Some(9)));
    let error = bench.store.keep_alive(lease).await.unwrap_err();
    assert!(matches!(error, StoreError::NoLease { lease: named } if named == lease), "{error}");
}

async fn kept_alive(bench: &Bench<'_>) {
    let lease = bench.store.grant(TTL).await.unwrap();
    bench.one(Step::create(key(1), value(1)).with_lease(lease)).await;
    for _ in 0..4 {
        bench.subject.pass(TTL / 2).await;
        assert!(bench.store.keep_alive(lease).await.unwrap() >= TTL);
    }
    assert_eq!(bench.count(1).await, Some(1), "twice its TTL has passed, and it was kept alive");
    bench.store.revoke(lease).await.unwrap();
}

async fn revoked(bench: &Bench<'_>) {
    let (mine, other) =
        (bench.store.grant(TIMEOUT).await.unwrap(), bench.store.grant(TIMEOUT).await.unwrap());
    assert_ne!(mine, other);
    bench.one(Step::create(key(1), value(1)).with_lease(mine)).await;
    bench.one(Step::create(key(2), value(2)).with_lease(other)).await;
    bench.create(3, 3).await;
    let (mut watch, _) = watch(bench).await;
    bench.store.revoke(mine).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Deleted { key: gone, .. } if gone == key(1)));
    assert_eq!((bench.count(1).await, bench.count(2).await, bench.count(3).await), (None, Some(2), Some(3)));
    assert!(matches!(bench.store.revoke(mine).await.unwrap_err(), StoreError::NoLease { .. }));
}

async fn freed(bench: &Bench<'_>) {
    let lease = bench.store.grant(TIMEOUT).await.unwrap();
    let first = bench.one(Step::create(key(1), value(1)).with_lease(lease)).await;
    bench.one(Step::put(key(2), value(1)).with_lease(lease)).await;
    bench.one(Step::put(key(3), value(1)).with_lease(lease)).await;
    bench.one(Step::update(key(1), value(2), first)).await;
    bench.one(Step::delete(key(2), None)).await;
    bench.create(2, 3).await;
    bench.store.revoke(lease).await.unwrap();
    assert_eq!((bench.count(1).await, bench.count(2).await, bench.count(3).await), (Some(2), Some(3), None));
}

async fn tenure(bench: &Bench<'_>) {
    let of = |number: usize| async move {
        let found = bench.store.tenure(&key(number)).await.unwrap();
        found.map(|(record, tenure)| {
            assert_eq!(record.key, key(number));
            tenure
        })
    };
    let (first, second) =
        (bench.store.grant(TIMEOUT).await.unwrap(), bench.store.grant(TIMEOUT).await.unwrap());
    assert_eq!(of(1).await, None);
    bench.one(Step::put(key(1), value(1)).with_lease(first)).await;
    assert_eq!(of(1).await, Some(Tenure::Leased(Some(first))));
    bench.store.keep_alive(first).await.unwrap();
    assert_eq!(of(1).await, Some(Tenure::Leased(Some(first))));
    bench.one(Step::put(key(1), value(2)).with_lease(second)).await;
    assert_eq!(of(1).await, Some(Tenure::Leased(Some(second))));
    bench.one(Step::put(key(1), value(3))).await;
    assert_eq!(of(1).await, Some(Tenure::Forever));
    bench.store.revoke(first).await.unwrap();
    bench.store.revoke(second).await.unwrap();
    assert_eq!(of(1).await, Some(Tenure::Forever));
}

async fn unknown(bench: &Bench<'_>) {
    let lease = LeaseId(0x7fff_ffff);
    let error = bench.store.commit(vec![Step::create(key(1), value(1)).with_lease(lease)]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::NoLease { .. }), "{error}");
    assert_eq!(bench.count(1).await, None);
}
