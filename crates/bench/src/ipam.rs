//! The worker of `cargo xtask bench ipam`: it holds the stores and the allocators, and takes one sample for each line on stdin.
//!
//! Started with `DIRECTORY SYNC_DELAY_US PLAIN_URL SLOW_URL`: where the embedded stores go, how much slower the slow disk is, and the two
//! etcds. A line `sample IMPL DISK CALLERS` is answered with a line of JSON: the time of a burst of ADDs and of the burst of DELs after it,
//! with the commits, reads and syncs that each took. `probe STORE DISK` measures a small commit. It ends with its stdin.
//!
//! The worker of `cargo xtask bench calico` is [`calico`].

mod burst;
pub mod calico;
mod counted;
mod go;
mod russet;
mod stage;
mod syncs;

use std::rc::Rc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::{Result, answer_lines};
use burst::{Caller, Pod, Verb};
use counted::Counts;
use stage::{Place, Stage};

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

/// Answers requests for samples.
pub fn run(directory: &str, delay_us: &str, plain: &str, slow: &str) -> Result<()> {
    let (runtime, tasks) = (runtime()?, LocalSet::new());
    let stage = Stage::set(directory.as_ref(), delay_us.parse()?, plain, slow);
    let stage = tasks.block_on(&runtime, stage)?;
    let mut worker = Worker { stage, subjects: Vec::new(), pods: Pod::first() };
    answer_lines(|line| tasks.block_on(&runtime, worker.answer(line)))
}

/// The stores' clients stay on one thread.
fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
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
