//! The core part: records, guards and lists (calico-ipam.md section 2.1).

use std::rc::Rc;

use russet_addr::{Family, NodeName};
use russet_model::{Key, Prefix};

use super::{Bench, Case, count, key, value};
use crate::{BoxFuture, MAX_STEPS, Revision, Step, StoreError};

pub(super) const CASES: &[(&str, Case)] = &[
    ("a_missing_record_reads_as_none", |bench| Box::pin(missing(bench))),
    ("create_refuses_an_existing_record", |bench| Box::pin(create(bench))),
    ("update_demands_the_revision_that_was_read", |bench| Box::pin(update(bench))),
    ("delete_with_and_without_a_revision", |bench| Box::pin(delete(bench))),
    ("put_writes_whatever_is_there", |bench| Box::pin(put(bench))),
    ("list_is_in_key_order_and_complete", |bench| Box::pin(list(bench))),
    ("a_scan_hands_out_what_a_list_answers", |bench| Box::pin(scan(bench))),
    ("node1_does_not_list_node10", |bench| Box::pin(terminating_slash(bench))),
    ("commits_that_no_engine_can_do_are_invalid", |bench| Box::pin(invalid(bench))),
    ("a_failed_commit_says_how_far_it_came", |bench| Box::pin(how_far(bench))),
    ("a_big_value_comes_back_whole", big_value),
    ("many_records_are_listed_in_one_answer", |bench| Box::pin(many(bench))),
    ("concurrent_writers_lose_no_update", |bench| Box::pin(concurrent_writers(bench))),
];

async fn missing(bench: &Bench<'_>) {
    assert_eq!(bench.store.get(&key(1)).await.unwrap(), None);
    assert!(bench.store.list(&Prefix::handles()).await.unwrap().records.is_empty());
    assert_eq!(bench.store.commit(Vec::new()).await.unwrap(), Vec::<Revision>::new());
}

async fn create(bench: &Bench<'_>) {
    let revision = bench.create(1, 5).await;
    let record = bench.store.get(&key(1)).await.unwrap().unwrap();
    assert_eq!((record.key, record.revision), (key(1), revision));
    assert_eq!(bench.subject.canonical(&record.value), bench.subject.canonical(&value(5)));
    let error = bench.store.commit(vec![Step::create(key(1), value(6))]).await.unwrap_err();
    assert!(matches!(&error.error, StoreError::AlreadyExists { key: named } if *named == key(1)), "{error}");
    assert!(error.error.lost_race() && !error.error.retryable());
    assert_eq!(bench.count(1).await, Some(5));
}

async fn update(bench: &Bench<'_>) {
    let error = bench.store.commit(vec![Step::update(key(1), value(1), Revision(1))]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::NotFound { .. }), "{error}");
    let first = bench.create(1, 1).await;
    let second = bench.one(Step::update(key(1), value(2), first)).await;
    assert!(second > first);
    assert_eq!(bench.revision(1).await, second);
    let error = bench.store.commit(vec![Step::update(key(1), value(3), first)]).await.unwrap_err();
    assert!(matches!(&error.error, StoreError::Conflict { key: named } if *named == key(1)), "{error}");
    assert_eq!(bench.count(1).await, Some(2));
}

async fn delete(bench: &Bench<'_>) {
    for revision in [None, Some(Revision(1))] {
        let error = bench.store.commit(vec![Step::delete(key(1), revision)]).await.unwrap_err();
        assert!(matches!(error.error, StoreError::NotFound { .. }), "{error}");
    }
    let first = bench.create(1, 1).await;
    let second = bench.one(Step::update(key(1), value(2), first)).await;
    let error = bench.store.commit(vec![Step::delete(key(1), Some(first))]).await.unwrap_err();
    assert!(matches!(error.error, StoreError::Conflict { .. }), "{error}");
    bench.one(Step::delete(key(1), Some(second))).await;
    assert_eq!(bench.count(1).await, None);
    let third = bench.create(1, 3).await;
    assert!(third > second, "a record that comes back has a new revision");
    bench.one(Step::delete(key(1), None)).await;
    assert_eq!(bench.count(1).await, None);
}

async fn put(bench: &Bench<'_>) {
    let first = bench.one(Step::put(key(1), value(1))).await;
    let second = bench.one(Step::put(key(1), value(2))).await;
    assert!(second > first);
    assert_eq!(bench.count(1).await, Some(2));
}

async fn list(bench: &Bench<'_>) {
    for n in [3, 1, 20, 2, 100] {
        bench.create(n, n).await;
    }
    bench.one(Step::delete(key(2), None)).await;
    let snapshot = bench.store.list(&Prefix::handles()).await.unwrap();
    assert_eq!(
        snapshot.records.iter().map(|record| count(&record.value)).collect::<Vec<_>>(),
        [1, 3, 20, 100]
    );
    for record in &snapshot.records {
        assert!(record.revision <= snapshot.revision);
        assert_eq!(bench.store.get(&record.key).await.unwrap().as_ref(), Some(record));
    }
}

/// More than one page of any engine, and records with adjacent keys.
const SCANNED: usize = 300;

async fn scan(bench: &Bench<'_>) {
    let before = bench.store.list(&Prefix::handles()).await.unwrap().revision;
    let nothing = bench.store.scan(&Prefix::handles(), &mut |record| panic!("{record:?}")).await.unwrap();
    let after = bench.store.list(&Prefix::handles()).await.unwrap().revision;
    assert!((before..=after).contains(&nothing), "{before:?} {nothing:?} {after:?}");
    bench.one(Step::create(Key::ipam_config(), "{}")).await;
    let affinity = Key::affinity(&NodeName::new("node1").unwrap(), "10.1.0.0/26".parse().unwrap());
    bench.one(Step::create(affinity, r#"{"state":"confirmed","deleted":false}"#)).await;
    let all: Vec<usize> = (0..SCANNED).collect();
    for chunk in all.chunks(MAX_STEPS) {
        bench.store.commit(chunk.iter().map(|n| Step::create(key(*n), value(*n))).collect()).await.unwrap();
    }
    // A store may advance by itself between two requests, as an API server does that renews its lease.
    let before = bench.store.list(&Prefix::handles()).await.unwrap().revision;
    let mut records = Vec::new();
    let revision = bench.store.scan(&Prefix::handles(), &mut |record| records.push(record)).await.unwrap();
    let listed = bench.store.list(&Prefix::handles()).await.unwrap();
    assert!((before..=listed.revision).contains(&revision), "{before:?} {revision:?} {:?}", listed.revision);
    assert_eq!((records.len(), &records), (SCANNED, &listed.records));
    // Records of other prefixes have their own directories.
    let around = Prefix::from_stored("/calico/ipam/v2/");
    let mut all = Vec::new();
    bench.store.scan(&around, &mut |record| all.push(record)).await.unwrap();
    assert_eq!((all.len(), &all), (SCANNED + 2, &bench.store.list(&around).await.unwrap().records));
    // Marks are hints: correct ones, none, and arbitrary ones.
    let good = [0, 100, 200].map(|n| all[n].key.clone()).to_vec();
    let wrong =
        [all[250].key.clone(), all[3].key.clone(), Key::from_stored("/zzz"), Key::from_stored("/")].to_vec();
    for given in [good, wrong, Vec::new()] {
        let mut marked = Vec::new();
        let mut marks = |_: &Key| given.clone();
        let scanned = bench.store.scan_marked(&around, &mut marks, &mut |record| marked.push(record)).await;
        let scanned = scanned.unwrap();
        let after = bench.store.list(&around).await.unwrap().revision;
        assert!((revision..=after).contains(&scanned), "{revision:?} {scanned:?} {after:?} {given:?}");
        assert_eq!(marked, all, "{given:?}");
    }
    let keys = bench.store.keys(&Prefix::handles()).await.unwrap();
    assert_eq!(keys, records.into_iter().map(|record| record.key).collect::<Vec<_>>());
    assert!(bench.store.holds(&Prefix::handles()).await.unwrap());
    assert!(!bench.store.holds(&Prefix::pools()).await.unwrap());
}

async fn terminating_slash(bench: &Bench<'_>) {
    let block = "10.1.0.0/26".parse().unwrap();
    let node = |name: &str| NodeName::new(name).unwrap();
    let affinity = || r#"{"state":"confirmed","deleted":false}"#.as_bytes().to_vec();
    for name in ["node1", "node10", "node"] {
        bench.one(Step::create(Key::affinity(&node(name), block), affinity())).await;
    }
    let prefix = Prefix::affinities_of(&node("node1"), Family::V4);
    let listed = bench.store.list(&prefix).await.unwrap();
    assert_eq!(
        listed.records.into_iter().map(|record| record.key).collect::<Vec<_>>(),
        [Key::affinity(&node("node1"), block)]
    );
    let others = bench.store.list(&Prefix::affinities_of(&node("node1"), Family::V6)).await.unwrap();
    assert!(others.records.is_empty());
    assert_eq!(bench.store.list(&Prefix::all_affinities()).await.unwrap().records.len(), 3);
}

async fn invalid(bench: &Bench<'_>) {
    let twice = vec![Step::put(key(1), value(1)), Step::put(key(2), value(1)), Step::delete(key(1), None)];
    let too_many = (0..=MAX_STEPS).map(|n| Step::put(key(n), value(1))).collect();
    let too_big = vec![Step::put(key(1), vec![b' '; crate::MAX_VALUE_BYTES + 1])];
    for steps in [twice, too_many, too_big] {
        let error = bench.store.commit(steps).await.unwrap_err();
        assert!(matches!(error.error, StoreError::Invalid { .. }), "{error}");
        assert_eq!(error.done, 0);
    }
    assert!(bench.store.list(&Prefix::handles()).await.unwrap().records.is_empty());
}

async fn how_far(bench: &Bench<'_>) {
    bench.create(2, 7).await;
    let steps =
        vec![Step::create(key(1), value(1)), Step::create(key(2), value(1)), Step::create(key(3), value(1))];
    let error = bench.store.commit(steps).await.unwrap_err();
    assert!(matches!(error.error, StoreError::AlreadyExists { .. }), "{error}");
    let done = usize::from(!bench.store.claims().atomic);
    assert_eq!((error.done, error.failed), (done, 1));
    assert_eq!(bench.count(1).await.is_some(), done == 1);
    assert_eq!((bench.count(2).await, bench.count(3).await), (Some(7), None));
}

fn big_value<'a>(bench: &'a Bench<'a>) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let blocks: Vec<String> = (0..40_000)
            .map(|n| format!("\"10.{}.{}.{}/30\":1", n >> 14, (n >> 6) & 255, (n & 63) * 4))
            .collect();
        let big = format!(r#"{{"block":{{{}}},"deleted":false}}"#, blocks.join(",")).into_bytes();
        assert!(big.len() > 600_000, "{}", big.len());
        let revision = bench.one(Step::create(key(1), big.clone())).await;
        let record = bench.store.get(&key(1)).await.unwrap().unwrap();
        assert!(bench.subject.canonical(&record.value) == bench.subject.canonical(&big), "the value differs");
        bench.one(Step::update(key(1), value(1), revision)).await;
        assert_eq!(bench.count(1).await, Some(1));
    })
}

async fn many(bench: &Bench<'_>) {
    let many = bench.subject.many();
    let all: Vec<usize> = (0..many).collect();
    for chunk in all.chunks(MAX_STEPS) {
        bench.store.commit(chunk.iter().map(|n| Step::create(key(*n), value(*n))).collect()).await.unwrap();
    }
    let snapshot = bench.store.list(&Prefix::handles()).await.unwrap();
    assert_eq!(snapshot.records.iter().map(|record| count(&record.value)).collect::<Vec<_>>(), all);
}

/// How often each writer adds one, and how many writers.
const ADDITIONS: usize = 10;
const WRITERS: usize = 8;

async fn concurrent_writers(bench: &Bench<'_>) {
    bench.create(1, 0).await;
    let local = tokio::task::LocalSet::new();
    let writers: Vec<_> = (0..WRITERS).map(|_| local.spawn_local(add(bench.subject.store()))).collect();
    local.await;
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(bench.count(1).await, Some(WRITERS * ADDITIONS));
}

async fn add(store: Rc<dyn crate::Store>) {
    let mut left = ADDITIONS;
    while left > 0 {
        let record = store.get(&key(1)).await.unwrap().unwrap();
        match store.commit(vec![Step::update(key(1), value(count(&record.value) + 1), record.revision)]).await
        {
            Ok(_) => left -= 1,
            Err(error) => assert!(matches!(error.error, StoreError::Conflict { .. }), "{error}"),
        }
        tokio::task::yield_now().await;
    }
}
