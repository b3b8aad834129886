//! The embedded store among processes: kill -9 in the middle of commits, an owner that stands still, several that want the lock. A child process is
//! this test binary again, with its role in an environment variable.

#![allow(clippy::unwrap_used)] // the helpers of tests are tests

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use russet_model::{Key, Prefix};
use russet_store::{
    Access, Embedded, Event, Locked, Remote, Step, Store, StoreError, Tenure, listen, open_or_connect, serve,
};

const ROLE: &str = "RUSSET_STORE_TEST_ROLE";
const DIRECTORY: &str = "RUSSET_STORE_TEST_DIRECTORY";
const TIMEOUT: Duration = Duration::from_secs(60);

fn key(n: usize) -> Key {
    Key::from_stored(format!("/calico/ipam/v2/handle/h-{n:06}"))
}

/// A child that is killed when the test ends.
struct Role {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

// === impl Role ===

impl Role {
    fn start(role: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--nocapture", "--include-ignored"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The rest of the next line that begins with `word`.
    fn said(&mut self, word: &str) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned()))
    }

    /// Stops the process and returns when none of its threads runs any more: the signal alone does not wait for that.
    fn stop(&self) {
        self.signal("-STOP");
        let begun = Instant::now();
        while !self.threads_are_stopped() {
            assert!(begun.elapsed() < TIMEOUT, "the child does not stop");
            std::thread::yield_now();
        }
    }

    fn threads_are_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap())
            .all(|stat| stat.contains(") T "))
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "helper: what the child processes of the other tests run; does nothing by itself"]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "writer" => write_for_ever(&directory).await,
            "owner" => own(&directory).await,
            "filler" => fill_the_disk(&directory).await,
            other => panic!("no role {other}"),
        }
    });
}

/// Commits records in pairs and says each number once it is acknowledged.
async fn write_for_ever(directory: &Path) {
    let store = Embedded::open(directory.join("store.redb")).unwrap();
    let start = store.list(&Prefix::handles()).await.unwrap().records.len() / 2;
    println!("started {start}");
    for n in start.. {
        store
            .commit(vec![
                Step::create(key(2 * n), n.to_string()),
                Step::create(key(2 * n + 1), n.to_string()),
            ])
            .await
            .unwrap();
        println!("acknowledged {n}");
    }
}

async fn own(directory: &Path) {
    let owner = Locked::acquire(directory, TIMEOUT).await.unwrap();
    let listener = listen(directory, &owner).unwrap();
    println!("serving now");
    serve(owner.store().clone(), listener, std::future::pending()).await;
}

/// Runs on a disk of 3 MB: fills it, reads, makes room, writes again.
async fn fill_the_disk(directory: &Path) {
    let store = Embedded::open(directory.join("store.redb")).unwrap();
    store.commit(vec![Step::create(key(0), vec![0; 50_000])]).await.unwrap();
    std::fs::write(directory.join("ballast"), vec![0; 1 << 20]).unwrap();
    let mut written = 1;
    let error = loop {
        match store.commit(vec![Step::create(key(written), vec![0; 50_000])]).await {
            Ok(_) => written += 1,
            Err(error) => break error.error,
        }
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert_eq!(store.list(&Prefix::handles()).await.unwrap().records.len(), written);
    std::fs::remove_file(directory.join("ballast")).unwrap();
    store.commit(vec![Step::create(key(written), vec![0; 50_000])]).await.unwrap();
    drop(store);
    let store = Embedded::open(directory.join("store.redb")).unwrap();
    assert_eq!(store.list(&Prefix::handles()).await.unwrap().records.len(), written + 1);
    println!("healed after {written}");
}

#[test]
#[ignore = "root: mounts a small tmpfs in a mount namespace of its own (tool: unshare, mount)"]
fn a_really_full_disk_refuses_writes_keeps_reads_and_heals() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=3m none "$RUSSET_STORE_TEST_DIRECTORY" && exec "$0" --exact child_process --nocapture --include-ignored"#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, "filler")
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("healed after"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn every_acknowledged_commit_survives_kill_9_and_none_is_half_there() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let mut writer = Role::start("writer", directory.path());
        let started: usize = writer.said("started").unwrap().parse().unwrap();
        let mut acknowledged = started;
        for _ in 0..(5 + 13 * round) {
            acknowledged = writer.said("acknowledged").unwrap().parse::<usize>().unwrap() + 1;
        }
        writer.child.kill().unwrap();
        // What it had said before it died counts, too.
        while let Some(n) = writer.said("acknowledged") {
            acknowledged = n.parse::<usize>().unwrap() + 1;
        }
        writer.child.wait().unwrap();
        let store = Embedded::open(directory.path().join("store.redb")).unwrap();
        let records = store.list(&Prefix::handles()).await.unwrap().records;
        assert_eq!(records.len() % 2, 0, "a commit of two records is all or nothing");
        let pairs = records.len() / 2;
        assert!(
            pairs == acknowledged || pairs == acknowledged + 1,
            "{acknowledged} acknowledged, {pairs} found"
        );
        for (n, record) in records.iter().enumerate() {
            assert_eq!((&record.key, record.value.as_slice()), (&key(n), (n / 2).to_string().as_bytes()));
        }
    }
}

#[tokio::test]
async fn calls_to_a_stopped_owner_time_out_and_work_again_by_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Role::start("owner", directory.path());
    owner.said("serving").unwrap();
    let deadline = Duration::from_secs(3);
    let remote = Remote::connect_with(directory.path().join("store.sock"), deadline);
    remote.commit(vec![Step::create(key(1), "before")]).await.unwrap();
    let mut watch = remote.watch(&Prefix::handles()).await.unwrap();
    assert!(matches!(watch.next().await.unwrap(), Event::Snapshot(snapshot) if snapshot.records.len() == 1));

    owner.stop();
    let begun = Instant::now();
    assert!(matches!(remote.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    let error = remote.commit(vec![Step::create(key(2), "while stopped")]).await.unwrap_err();
    assert!(error.error.outcome_unknown(), "{error}");
    // A plugin that comes now must not take the store away from an owner that is alive.
    let access = open_or_connect(directory.path(), deadline).await.unwrap();
    assert!(matches!(access, Access::Remote(_)));
    assert!(matches!(access.get(&key(1)).await, Err(StoreError::Unavailable { .. })));
    assert!(begun.elapsed() < TIMEOUT);

    owner.signal("-CONT");
    let found = tokio::time::timeout(TIMEOUT, async {
        loop {
            match remote.get(&key(2)).await {
                Ok(found) => return found,
                Err(error) => assert!(error.retryable(), "{error}"),
            }
        }
    });
    assert_eq!(
        found.await.unwrap(),
        None,
        "its caller had given up before the owner saw it, and a read has said so"
    );
    remote.commit(vec![Step::create(key(3), "after")]).await.unwrap();
    let event = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap();
    assert!(matches!(event, Event::Put(record) if record.key == key(3)));
}

#[tokio::test]
async fn a_dead_owner_leaves_the_store_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Role::start("owner", directory.path());
    owner.said("serving").unwrap();
    let access = open_or_connect(directory.path(), TIMEOUT).await.unwrap();
    assert!(matches!(access, Access::Remote(_)));
    access.commit(vec![Step::create(key(1), "through the owner")]).await.unwrap();
    assert!(matches!(access.tenure(&key(1)).await, Ok(Some((_, Tenure::Forever)))));
    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    let access = open_or_connect(directory.path(), TIMEOUT).await.unwrap();
    assert!(matches!(access, Access::Locked(_)));
    assert_eq!(access.get(&key(1)).await.unwrap().unwrap().value, b"through the owner");
    access.commit(vec![Step::create(key(2), "single")]).await.unwrap();
    assert!(matches!(access.tenure(&key(2)).await, Ok(Some((_, Tenure::Forever)))));
    drop(access);
    let mut owner = Role::start("owner", directory.path());
    owner.said("serving").unwrap();
    let access = open_or_connect(directory.path(), TIMEOUT).await.unwrap();
    assert_eq!(access.list(&Prefix::handles()).await.unwrap().records.len(), 2);
}

#[tokio::test]
async fn who_waits_in_vain_for_the_lock_learns_who_holds_it() {
    let directory = tempfile::tempdir().unwrap();
    let held = Locked::acquire(directory.path(), TIMEOUT).await.unwrap();
    let short = Duration::from_millis(50);
    for error in [
        Locked::acquire(directory.path(), short).await.err().unwrap(),
        open_or_connect(directory.path(), short).await.err().unwrap(),
    ] {
        let text = error.to_string();
        assert!(
            text.contains(&format!("pid {}", std::process::id())) && text.contains("store.lock"),
            "{text}"
        );
        assert!(error.retryable());
    }
    drop(held);
    // A child that another test is about to run may hold it a little longer.
    Locked::acquire(directory.path(), TIMEOUT).await.unwrap();
}

#[tokio::test]
async fn plugins_without_an_owner_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let local = tokio::task::LocalSet::new();
    for n in 0..20 {
        let directory = directory.path().to_owned();
        local.spawn_local(async move {
            let access = open_or_connect(&directory, TIMEOUT).await.unwrap();
            access.commit(vec![Step::create(key(n), "x")]).await.unwrap();
        });
    }
    local.await;
    let access = open_or_connect(directory.path(), TIMEOUT).await.unwrap();
    assert_eq!(access.list(&Prefix::handles()).await.unwrap().records.len(), 20);
}
