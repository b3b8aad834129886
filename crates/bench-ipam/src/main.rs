//! The worker of `cargo xtask bench ipam`: it holds the stores and the allocators, and takes one sample for each line on stdin.
//!
//! Started with `DIRECTORY SYNC_DELAY_US PLAIN_URL SLOW_URL`: where the embedded stores go, how much slower the slow disk is, and the two
//! etcds. A line `sample IMPL DISK CALLERS` is answered with a line of JSON: the time of a burst of ADDs and of the burst of DELs after it,
//! with the commits, reads and syncs that each took. `probe STORE DISK` measures a small commit. It ends with its stdin.
//!
//! Started with `calico URL` it is the worker of `cargo xtask bench calico`; see `calico`.

mod burst;
mod calico;
mod counted;
mod go;
mod russet;
mod stage;
mod syncs;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::rc::Rc;

use serde_json::{Value, json};
use tokio::task::LocalSet;

use burst::{Caller, Pod, Verb};
use counted::Counts;
use stage::{Place, Stage};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The addresses of a sample. With the resident pods they fit into one block: the ordinary ADD
/// claims none.
const BURST: usize = 32;

/// One implementation on one disk, with all its callers.
struct Subject {
    name: String,
    callers: Vec<Rc<dyn Caller>>,
    counts: Rc<Counts>,
    place: Rc<Place>,
    node: russet_addr::NodeName,
}

/// What samples are taken from.
struct Worker {
    stage: Stage,
    /// Made on first use, and kept: connections and caches stay warm.
    subjects: Vec<Subject>,
    pods: Pod,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-ipam: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(async {
        match arguments.as_slice() {
            [name, url] if name == "calico" => {
                let mut worker = calico::Worker::new(url)?;
                for line in io::stdin().lock().lines() {
                    let answer = worker.answer(&line?).await?;
                    writeln!(io::stdout(), "{answer}")?;
                }
            }
            [directory, delay_us, plain, slow] => {
                let stage = Stage::set(directory.as_ref(), delay_us.parse()?, plain, slow).await?;
                let mut worker = Worker { stage, subjects: Vec::new(), pods: Pod::first() };
                for line in io::stdin().lock().lines() {
                    let answer = worker.answer(&line?).await?;
                    writeln!(io::stdout(), "{answer}")?;
                }
            }
            _ => return Err("wanted: DIRECTORY SYNC_DELAY_US PLAIN_URL SLOW_URL, or calico URL".into()),
        }
        Ok(())
    }))
}

// === impl Worker ===

impl Worker {
    async fn answer(&mut self, line: &str) -> Result<Value> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["probe", store, disk] => self.stage.place(store, disk)?.probe().await,
            ["sample", name, disk, callers] => self.sample(name, disk, callers.parse()?).await,
            _ => Err(format!("what is {line:?}?").into()),
        }
    }

    async fn sample(&mut self, name: &str, disk: &str, callers: usize) -> Result<Value> {
        let which = self.subject(name, disk, callers).await?;
        let subject = &self.subjects[which];
        // Caches that expired during a sample of another implementation are refreshed here, and not
        // in the burst.
        subject.warm_up(&mut self.pods, 1).await?;
        let pods = self.pods.take(BURST);
        let before = subject.held().await?;
        let (add, addresses) = subject.measure(Verb::Add, &pods).await?;
        let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
        if distinct.len() != BURST || subject.held().await? != before + BURST {
            return Err(format!("{name}: {BURST} ADDs gave {} addresses", distinct.len()).into());
        }
        let (del, _) = subject.measure(Verb::Del, &pods).await?;
        match subject.held().await? {
            held if held == before => Ok(json!({ "burst": BURST, "add": add, "del": del })),
            held => {
                Err(format!("{name}: {before} addresses before, {held} after all were given back").into())
            }
        }
    }

    async fn subject(&mut self, name: &str, disk: &str, callers: usize) -> Result<usize> {
        let full_name = format!("{name} {disk} {callers}");
        if let Some(which) = self.subjects.iter().position(|subject| subject.name == full_name) {
            return Ok(which);
        }
        let store = if name == "russet-embedded" { "embedded" } else { "etcd" };
        let place = self.stage.place(store, disk)?;
        let counts = Rc::new(Counts::default());
        let (node, made) = match name {
            "russet-embedded" | "russet-etcd" | "russet-etcd-forgotten" => {
                let forgets = name == "russet-etcd-forgotten";
                let shared = russet::Russet::new(&place, &counts, forgets)?;
                (shared.node(), vec![Rc::new(shared) as Rc<dyn Caller>; callers])
            }
            "go-order" | "go-order-connect" | "go-order-unlocked" => {
                let manner = go::Manner::named(name);
                (go::node()?, go::Go::callers(&place, &counts, manner, callers)?)
            }
            _ => return Err(format!("no implementation {name:?}").into()),
        };
        let subject = Subject { name: full_name, callers: made, counts, place, node };
        // Every caller once, to establish connections.
        subject.warm_up(&mut self.pods, callers).await?;
        self.subjects.push(subject);
        Ok(self.subjects.len() - 1)
    }
}

// === impl Subject ===

impl Subject {
    /// Not counted: refreshes caches.
    async fn warm_up(&self, pods: &mut Pod, callers: usize) -> Result<()> {
        let pods = pods.take(callers);
        burst::run(&self.callers[..callers], Verb::Add, &pods).await?;
        burst::run(&self.callers[..callers], Verb::Del, &pods).await?;
        Ok(())
    }

    async fn measure(&self, verb: Verb, pods: &[Pod]) -> Result<(Value, Vec<std::net::IpAddr>)> {
        let syncs = self.place.syncs()?.count;
        self.counts.reset();
        let (took, addresses) = burst::run(&self.callers, verb, pods).await?;
        let found = json!({
            "us": took.as_secs_f64() * 1e6,
            "commits": self.counts.commits(),
            "reads": self.counts.reads(),
            "syncs": self.place.syncs()?.count - syncs,
        });
        Ok((found, addresses))
    }

    /// Addresses that are taken in the blocks of the subject's node.
    async fn held(&self) -> Result<usize> {
        self.place.held(&self.node).await
    }
}
