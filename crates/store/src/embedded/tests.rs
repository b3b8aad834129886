//! Tests of the embedded engine alone; what every engine must do is in `conformance`.

use super::*;

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
    assert_eq!(after.syncs - before.syncs, 400, "DESIGN section 7: at most one fdatasync per ADD");
}
