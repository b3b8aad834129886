//! A cluster's worth of blocks: 200 MB in one list, and what it costs.

use std::time::Instant;

use russet_model::Prefix;
use russet_store::{Step, Store};
use russet_testkit::run;

use crate::key;
use crate::server::{Clients, Cluster};

const RECORDS: usize = 10_000;
/// A full /26 with the attributes of its pods (calico-ipam.md 1.3).
const RECORD_BYTES: usize = 20_000;
/// Records in one commit: below etcd's limit of 1.5 MiB.
const CHUNK: usize = 64;

/// A number of this process's status, in KiB.
fn status_kib(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The list runs in a process of its own, so that the peak of memory is its own.
const CHILD: &str = "RUSSET_TEST_LIST_FROM";

#[tokio::test]
#[ignore = "tool: etcd"]
async fn ten_thousand_blocks_of_20_kb_are_listed_whole_and_page_by_page() {
    if let Ok(location) = std::env::var(CHILD) {
        return list_and_print(&location).await;
    }
    let cluster = Cluster::single();
    let store = cluster.client();
    let value = |n: usize| format!("{n:0RECORD_BYTES$}");
    let all: Vec<usize> = (0..RECORDS).collect();
    for chunk in all.chunks(CHUNK) {
        store.commit(chunk.iter().map(|n| Step::create(key(*n), value(*n))).collect()).await.unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let location = format!("etcd:{}", cluster.members[0].url());
    let name = "volume::ten_thousand_blocks_of_20_kb_are_listed_whole_and_page_by_page";
    let script = format!("{CHILD}={location} {} --exact {name} --include-ignored --nocapture", own.display());
    eprint!("{}", run("sh", &["-c", &script]));
}

async fn list_and_print(location: &str) {
    let store = russet_store_etcd::Etcd::connect(location.parse().unwrap()).unwrap();
    let before = status_kib("VmRSS:");
    let begun = Instant::now();
    let snapshot = store.list(&Prefix::handles()).await.unwrap();
    let elapsed = begun.elapsed();
    let bytes: usize = snapshot.records.iter().map(|record| record.value.len()).sum();
    println!(
        "listed {} records, {} MB in {elapsed:?}; memory {} MB before, {} MB at most",
        snapshot.records.len(),
        bytes / 1_000_000,
        before / 1024,
        status_kib("VmHWM:") / 1024
    );
    assert_eq!((snapshot.records.len(), bytes), (RECORDS, RECORDS * RECORD_BYTES));
    for (n, record) in snapshot.records.iter().enumerate() {
        assert!(record.key == key(n) && record.value.ends_with(n.to_string().as_bytes()));
        assert!(record.revision <= snapshot.revision);
    }
}
