//! Tests of the embedded engine alone; what every engine must do is in `conformance`.

use super::*;
use crate::Event;

fn key(n: usize) -> Key {
    Key::from_stored(format!("/calico/ipam/v2/handle/h-{n:05}"))
}

fn open(directory: &tempfile::TempDir, options: Options) -> Embedded {
    Embedded::open_with(directory.path().join("state/store.redb"), options).unwrap()
}

#[tokio::test]
async fn one_commit_is_at_most_one_disk_sync() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    for n in 0..200 {
        store.commit(vec![Step::create(key(n), vec![7; 500])]).await.unwrap();
    }
    let before = store.stats();
    for n in 0..200 {
        store.commit(vec![Step::put(key(n), vec![8; 500]), Step::put(key(n + 1000), "x")]).await.unwrap();
        store.commit(vec![Step::delete(key(n + 1000), None)]).await.unwrap();
    }
    let after = store.stats();
    assert_eq!(after.transactions - before.transactions, 400);
    assert_eq!(
        after.syncs - before.syncs,
        400,
        "ARCHITECTURE.md, \"Time budgets\": at most one fdatasync per ADD"
    );
}

#[tokio::test]
async fn commits_that_wait_together_share_one_disk_sync() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options { sync_delay: Duration::from_millis(5), ..Options::default() });
    store.commit(vec![Step::create(key(900), "x")]).await.unwrap();
    let before = store.stats();
    let local = tokio::task::LocalSet::new();
    for n in 0..128 {
        let store = store.clone();
        // Every fourth one fails at its guard, which must not affect the others.
        let step = if n % 4 == 0 { Step::create(key(900), "y") } else { Step::create(key(n), "x") };
        local.spawn_local(async move { assert_eq!(store.commit(vec![step]).await.is_ok(), n % 4 != 0) });
    }
    local.await;
    let after = store.stats();
    assert_eq!(after.commits - before.commits, 96);
    assert!(after.syncs - before.syncs <= 6, "at most 32 share one: {} syncs", after.syncs - before.syncs);
    assert_eq!(store.list(&Prefix::handles()).await.unwrap().records.len(), 97);
}

#[tokio::test]
async fn a_refused_commit_needs_no_disk_sync() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    store.commit(vec![Step::create(key(1), "x")]).await.unwrap();
    let before = store.stats();
    store.commit(vec![Step::create(key(1), "y")]).await.unwrap_err();
    store.get(&key(1)).await.unwrap();
    assert_eq!(store.stats(), before);
}

#[tokio::test]
async fn commits_survive_reopening_and_revisions_continue() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    let steps = vec![Step::create(key(1), "x"), Step::create(key(2), "y").with_lease(lease)];
    let revision = store.commit(steps).await.unwrap()[0];
    drop(store);
    let store = open(&directory, Options::default());
    assert_eq!(store.revision(), revision);
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().revision, revision);
    assert!(store.commit(vec![Step::create(key(3), "z")]).await.unwrap()[0] > revision);
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(&key(2)).await.unwrap(), None);
}

#[tokio::test]
async fn file_and_directory_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(store.path()), 0o600);
    assert_eq!(mode(store.path().parent().unwrap()), 0o700);
}

#[test]
fn a_second_open_fails_with_the_likely_holder_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    let error = Embedded::open(store.path()).err().unwrap();
    assert!(matches!(error, StoreError::Unavailable { .. }));
    let text = error.to_string();
    assert!(text.contains("store.redb") && text.contains("agent"), "{text}");
}

#[test]
fn a_file_that_is_no_store_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    for content in [b"not a database".repeat(1000), b"x".to_vec(), vec![0; 1 << 16]] {
        std::fs::write(&path, &content).unwrap();
        let error = Embedded::open(&path).err().expect("it is no store");
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("backup"), "{text}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn a_truncated_store_file_is_refused_and_not_emptied() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    for n in 0..300 {
        store.commit(vec![Step::create(key(n), vec![1; 2000])]).await.unwrap();
    }
    let path = store.path().to_owned();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 3]).unwrap();
    let error = Embedded::open(&path).err().expect("most of it is gone");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(Embedded::open(&path).unwrap().list(&Prefix::handles()).await.unwrap().records.len(), 300);
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_reads_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options { max_bytes: Some(4 << 20), ..Options::default() });
    let mut watch = store.watch(&Prefix::handles()).await.unwrap();
    let mut written = 0;
    let error = loop {
        match store.commit(vec![Step::create(key(written), vec![written as u8; 100_000])]).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100, "the limit was never reached");
    };
    assert!(matches!(error.error, StoreError::Full { .. }), "{error:?}");
    assert!(error.error.retryable());
    for attempt in 0..3 {
        let again =
            store.commit(vec![Step::create(key(1000 + attempt), vec![1; 200_000])]).await.unwrap_err();
        assert!(matches!(again.error, StoreError::Full { .. }), "{again:?}");
        let records = store.list(&Prefix::handles()).await.unwrap().records;
        assert_eq!(records.len(), written, "every acknowledged commit, and no other");
    }
    store.set_max_bytes(None);
    store.commit(vec![Step::create(key(written), vec![9; 100_000])]).await.unwrap();
    let mut found = 0;
    while found < written + 1 {
        found += match watch.next().await.unwrap() {
            crate::Event::Snapshot(snapshot) => snapshot.records.len(),
            _ => 1,
        };
    }
    let path = store.path().to_owned();
    drop((store, watch));
    assert_eq!(
        Embedded::open(&path).unwrap().list(&Prefix::handles()).await.unwrap().records.len(),
        written + 1
    );
}

#[tokio::test]
async fn a_read_after_an_abandoned_commit_shows_the_final_result() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options { sync_delay: Duration::from_millis(20), ..Options::default() });
    for n in 0..20 {
        let mut commit = store.commit(vec![Step::create(key(n), "x")]);
        tokio::select! {
            biased;
            _ = &mut commit => panic!("a disk sync takes longer"),
            () = tokio::task::yield_now() => {}
        }
        drop(commit);
        assert!(store.get(&key(n)).await.unwrap().is_some(), "it was handed over, so the read waits for it");
    }
    store.settle().await.unwrap();
    assert_eq!(store.inner.shared.abandoned.load(Ordering::Acquire), 0);
    assert_eq!(store.inner.shared.waiting.load(Ordering::Acquire), 0);
}

#[tokio::test]
async fn a_flipped_bit_is_refused_or_harmless_and_never_panics() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory, Options::default());
    store.commit((0..100).map(|n| Step::create(key(n), vec![1; 2000])).collect()).await.unwrap();
    let expected = store.list(&Prefix::handles()).await.unwrap();
    let path = store.path().to_owned();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let seed = 5;
    eprintln!("seed {seed}");
    let mut rng = crate::sim::Rng::new(seed);
    let mut refused = 0;
    for round in 0..80 {
        let mut bytes = whole.clone();
        // Every other one in the header, on which everything depends.
        let bound = if round % 2 == 0 { 4096 } else { whole.len() as u64 };
        bytes[usize::try_from(rng.below(bound)).unwrap()] ^= 1 << rng.below(8);
        std::fs::write(&path, &bytes).unwrap();
        match Embedded::open(&path) {
            Ok(store) => assert_eq!(store.list(&Prefix::handles()).await.unwrap(), expected),
            Err(error) => {
                assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

/// Counts how often the task that polls is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_commit_wakes_only_the_watches_that_it_concerns() {
    let directory = tempfile::tempdir().unwrap();
    // The commits of others fill the log of changes.
    let store = open(&directory, Options { log_commits: 4, ..Options::default() });
    let other = || Key::from_stored("/russet/other");
    store.commit(vec![Step::create(key(0), "first")]).await.unwrap();
    // The writer notifies watches after its answer, and before it begins the next commit.
    store.commit(vec![Step::put(other(), "before")]).await.unwrap();
    let prefix = Prefix::handles();
    let mut watch = store.watch(&prefix).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(it) if it.records.len() == 1));
    let wakes = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut next = watch.next();
    assert!(next.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    for n in 0..10 {
        store.commit(vec![Step::put(other(), format!("{n}"))]).await.unwrap();
    }
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    store.commit(vec![Step::put(other(), "last"), Step::create(key(1), "second")]).await.unwrap();
    let event = next.await.unwrap();
    assert!(matches!(event, Event::Put(record) if record.key == key(1)), "only what is new");
    assert!(wakes.0.load(Ordering::SeqCst) <= 1);

    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    store.commit(vec![Step::create(key(2), "third").with_lease(lease)]).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Put(record) if record.key == key(2)));
    store.revoke(lease).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Deleted { key: gone, .. } if gone == key(2)));
}
