//! A large cluster's blocks: 10,000 full ones, 200 MB, with their handles. What listing and checking them costs, each in a process of its own, so that the
//! peak of memory is its own.

use std::process::{Command, Stdio};
use std::time::Instant;

use russet_ipam::audit::audit_store;
use russet_model::{Block, KeyKind, Prefix};
use russet_store::{Record, Step, Store};
use russet_store_etcd::Etcd;
use russet_testkit::blocks::{BLOCK_ADDRESSES, full_block, full_blocks, pool};
use russet_testkit::etcd::Cluster;

const BLOCKS: u32 = 10_000;
const SEED: u64 = 1;
/// The process that lists holds all blocks: 200 MB and what their keys and the last pages take.
const LIST_MAX_MIB: usize = 400;
/// The process that checks holds none.
const CHECK_MAX_MIB: usize = 100;
/// How many blocks are being written at a time.
const WRITERS: u32 = 8;

/// What the child is to do, and where.
const TASK: &str = "RUSSET_TEST_VOLUME_TASK";
const LOCATION: &str = "RUSSET_TEST_VOLUME_LOCATION";
const NAME: &str = "volume::ten_thousand_blocks_are_listed_in_400_mb_and_checked_in_100_mb";

#[tokio::test]
#[ignore = "tool: etcd"]
async fn ten_thousand_blocks_are_listed_in_400_mb_and_checked_in_100_mb() {
    if let Ok(task) = std::env::var(TASK) {
        let store = Etcd::connect(std::env::var(LOCATION).unwrap().parse().unwrap()).unwrap();
        return if task == "list" { list(&store).await } else { check(&store).await };
    }
    // What is measured is the reader: the server need not wait for a disk.
    let cluster = Cluster::start(1, "http", |_| vec!["--unsafe-no-fsync".to_owned()], Vec::new());
    fill(&cluster).await;
    assert!(child("list", &cluster) <= LIST_MAX_MIB, "MiB of the process that listed");
    assert!(child("check", &cluster) <= CHECK_MAX_MIB, "MiB of the process that checked");
}

fn client(cluster: &Cluster) -> Etcd {
    Etcd::connect(cluster.location().parse().unwrap()).unwrap()
}

async fn fill(cluster: &Cluster) {
    let begun = Instant::now();
    let (key, value) = pool();
    client(cluster).commit(vec![Step::create(key, value)]).await.unwrap();
    let local = tokio::task::LocalSet::new();
    for writer in 0..WRITERS {
        let store = client(cluster);
        local.spawn_local(async move {
            for index in (writer..BLOCKS).step_by(WRITERS as usize) {
                let records = full_block(SEED, index).records;
                let steps = records.into_iter().map(|(key, value)| Step::create(key, value));
                store.commit(steps.collect()).await.unwrap();
            }
        });
    }
    local.await;
    println!("{BLOCKS} blocks and {} handles written in {:?}", BLOCKS * BLOCK_ADDRESSES, begun.elapsed());
}

/// Runs this test again as a child that does only `task`; answers with its peak of memory in MiB.
fn child(task: &str, cluster: &Cluster) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--include-ignored", "--nocapture"]);
    child.env(TASK, task).env(LOCATION, cluster.location()).stderr(Stdio::inherit());
    let output = child.output().unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    println!("{output_text}");
    assert!(output.status.success(), "{task} failed");
    let peak = output_text.lines().find_map(|line| line.strip_prefix("peak MiB: "));
    peak.expect("the child did its task").parse().unwrap()
}

fn tell_peak() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    println!("peak MiB: {}", kib.div_ceil(1024));
}

async fn list(store: &Etcd) {
    let begun = Instant::now();
    let snapshot = store.list(&Prefix::blocks(None)).await.unwrap();
    let elapsed = begun.elapsed();
    tell_peak();
    let bytes: usize = snapshot.records.iter().map(|record| record.value.len()).sum();
    println!("listed {} blocks, {} MB, in {elapsed:?}", snapshot.records.len(), bytes / 1_000_000);
    assert_eq!(snapshot.records.len(), BLOCKS as usize);
    let mut stored: Vec<(&str, &[u8])> = snapshot.records.iter().map(text).collect();
    stored.sort_unstable();
    for block in full_blocks(SEED, BLOCKS).step_by(97) {
        let (key, value) = &block.records[0];
        assert!(stored.binary_search(&(key.as_str(), &value[..])).is_ok(), "{key} is as it was written");
    }
}

fn text(record: &Record) -> (&str, &[u8]) {
    (record.key.as_str(), &record.value)
}

async fn check(store: &Etcd) {
    let begun = Instant::now();
    let (audit, revision) = audit_store(store).await.unwrap();
    let elapsed = begun.elapsed();
    tell_peak();
    println!("checked {} blocks and {} handles at {revision:?} in {elapsed:?}", audit.blocks, audit.handles);
    assert_eq!(audit.findings, []);
    let addresses = (BLOCKS * BLOCK_ADDRESSES) as usize;
    assert_eq!((audit.blocks, audit.affinities), (BLOCKS as usize, BLOCKS as usize));
    assert_eq!((audit.allocations, audit.handles), (addresses, addresses));
}

#[tokio::test]
#[ignore = "tool: etcd"]
async fn one_lost_handle_among_many_blocks_is_found_and_named() {
    // calico-ipam.md section 3.9: a missing handle with a live allocation makes DEL a silent no-op.
    let cluster = Cluster::single();
    let store = client(&cluster);
    let (key, value) = pool();
    store.commit(vec![Step::create(key, value)]).await.unwrap();
    for block in full_blocks(SEED, 200) {
        let steps = block.records.into_iter().map(|(key, value)| Step::create(key, value));
        store.commit(steps.collect()).await.unwrap();
    }
    assert_eq!(audit_store(&store).await.unwrap().0.findings, []);
    let lost = full_block(SEED, 123);
    let (key, _) = lost.records.iter().find(|(key, _)| matches!(key.kind(), KeyKind::Handle(_))).unwrap();
    store.commit(vec![Step::delete(key.clone(), None)]).await.unwrap();
    let findings = audit_store(&store).await.unwrap().0.findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    let block = Block::decode(&lost.records[0].1).unwrap();
    let handle = key.as_str().rsplit('/').next().unwrap();
    let ordinal =
        (0..64).find(|n| block.attribute(*n).unwrap().handle_id.as_deref() == Some(handle)).unwrap();
    let output_text = findings[0].to_string();
    assert!(
        output_text
            .starts_with(&format!("{}: its handle has no record", lost.cidr.address(ordinal).unwrap()))
    );
    assert!(
        output_text.contains(handle) && output_text.contains("node worker-0030.eu-central.example.net"),
        "{output_text}"
    );
}
