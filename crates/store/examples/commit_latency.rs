//! Measures the embedded store on a real disk: `cargo run --release -p russet-store --example commit_latency -- DIRECTORY [sync delay in ms]`.

#![allow(clippy::unwrap_used)] // a measurement that cannot be taken has nothing better to do

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_model::{Key, Prefix};
use russet_store::embedded::Options;
use russet_store::{Embedded, Remote, Step, Store, serve};
use tokio::task::LocalSet;

const COMMITS: usize = 2000;
const TOGETHER: usize = 64;

fn key(n: usize) -> Key {
    Key::from_stored(format!("/calico/ipam/v2/handle/k8s-pod-network.{n:06}"))
}

/// A handle and a block with some pods, as an ADD writes them.
fn steps(n: usize) -> Vec<Step> {
    vec![Step::put(key(n % 500), vec![b'h'; 90]), Step::put(key(1000 + n % 4), vec![b'b'; 8000])]
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() - 1) * percent / 100]
}

async fn one_by_one(name: &str, store: &dyn Store) {
    let mut commits = Vec::with_capacity(COMMITS);
    let mut reads = Vec::with_capacity(COMMITS);
    for n in 0..COMMITS {
        let begun = Instant::now();
        store.commit(steps(n)).await.unwrap();
        commits.push(begun.elapsed());
        let begun = Instant::now();
        store.get(&key(n % 500)).await.unwrap();
        reads.push(begun.elapsed());
    }
    let (p50, p99) = (percentile(&mut commits, 50), percentile(&mut commits, 99));
    println!("{name}: commit p50 {p50:?} p99 {p99:?}; read p50 {:?}", percentile(&mut reads, 50));
}

async fn together(name: &str, store: Rc<dyn Store>, embedded: &Embedded) {
    let before = embedded.stats();
    let begun = Instant::now();
    let tasks = LocalSet::new();
    for worker in 0..TOGETHER {
        let store = store.clone();
        tasks.spawn_local(async move {
            for n in 0..COMMITS / TOGETHER {
                store.commit(steps(worker * 7 + n)).await.unwrap();
            }
        });
    }
    tasks.await;
    let rate = COMMITS as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{name}: {TOGETHER} at a time: {rate:.0} commits/s, {} syncs for {COMMITS}",
        embedded.stats().syncs - before.syncs
    );
}

fn resident_kb() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("?").trim().to_owned()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap());
    let delay = arguments.next().map_or(0, |milliseconds| milliseconds.parse().unwrap());
    println!("resident at start {}", resident_kb());
    let options = Options { sync_delay: Duration::from_millis(delay), ..Options::default() };
    let begun = Instant::now();
    let store = Embedded::open_with(directory.join("latency.redb"), options).unwrap();
    println!("open {:?}", begun.elapsed());
    one_by_one("embedded", &store).await;
    together("embedded", Rc::new(store.clone()), &store).await;
    let socket = directory.join("latency.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let served = store.clone();
    let client = async {
        let remote = Remote::connect(&socket);
        one_by_one("remote (client and owner on one thread)", &remote).await;
        together("remote", Rc::new(remote), &store).await;
    };
    tokio::select! {
        () = client => {}
        () = serve(served, listener, std::future::pending()) => {}
    }
    println!(
        "{} records, resident {}",
        store.list(&Prefix::handles()).await.unwrap().records.len(),
        resident_kb()
    );
    std::fs::remove_file(&socket).unwrap();
}
