//! The worker of `cargo xtask bench calico`: it fills the benchmark's etcd, and replays the
//! requests of Go's plugins on it.
//!
//! Each line on stdin is answered with a line of JSON. `fill NODE...` writes the records of a
//! cluster. `add IMPL COUNT` has that many callers send the requests of an ADD concurrently, and
//! reports the time; `del IMPL COUNT` releases as many.

use std::rc::Rc;

use russet_model::{ClusterInformation, ClusterInformationSpec, Key, Profile, ProfileSpec};
use russet_store::{Step, Store};
use russet_store_etcd::{Etcd, Settings};
use serde_json::{Value, json};
use tokio::task::LocalSet;

use crate::ipam::burst::{self, Caller, Pod, Verb};
use crate::ipam::counted::Counts;
use crate::ipam::go::{Calico, Manner};
use crate::ipam::stage;
use crate::{Result, answer_lines};

/// The network of all pods, and of their profile.
pub const NETWORK: &str = "bench";

/// What it works with.
struct Worker {
    settings: Settings,
    /// By implementation and number of callers: made on first use, and kept.
    subjects: Vec<Subject>,
    pods: Pod,
}

struct Subject {
    name: String,
    callers: Vec<Rc<dyn Caller>>,
    added: Vec<Pod>,
}

/// Writes the records of a Calico cluster: a pool, nodes with pods, and the main plugin's
/// prerequisites.
pub async fn fill(store: &Rc<dyn Store>, nodes: &[&str]) -> Result<()> {
    stage::fill(store, nodes).await?;
    let ready = ClusterInformationSpec { datastore_ready: Some(true), ..ClusterInformationSpec::default() };
    let information = ClusterInformation::new(ClusterInformationSpec::NAME, ready);
    let profile = Profile::new(NETWORK, ProfileSpec::of_network(NETWORK, true));
    let steps = [
        Step::put(Key::cluster_information(), information.encode()),
        Step::put(Key::profile(NETWORK)?, profile.encode()),
    ];
    store.commit(steps.into()).await.map_err(|failed| failed.error)?;
    Ok(())
}

/// Answers requests about the etcd at `url`.
pub fn run(url: &str) -> Result<()> {
    let (runtime, tasks) = (super::runtime()?, LocalSet::new());
    let mut worker = Worker::new(url)?;
    answer_lines(|line| tasks.block_on(&runtime, worker.answer(line)))
}

// === impl Worker ===

impl Worker {
    /// For the etcd at `url`.
    fn new(url: &str) -> Result<Self> {
        Ok(Self { settings: Settings::for_endpoints(url)?, subjects: Vec::new(), pods: Pod::first() })
    }

    /// Does what a line asks for.
    async fn answer(&mut self, line: &str) -> Result<Value> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["fill", nodes @ ..] => {
                let store: Rc<dyn Store> = Rc::new(Etcd::connect(self.settings.clone())?);
                fill(&store, nodes).await?;
                Ok(json!({}))
            }
            ["add", name, count] => {
                let pods = self.pods.take(count.parse()?);
                self.subject(name, pods.len())?.add(pods).await
            }
            ["del", name, count] => self.subject(name, count.parse()?)?.del().await,
            _ => Err(format!("no command {line:?}").into()),
        }
    }

    fn subject(&mut self, name: &str, count: usize) -> Result<&mut Subject> {
        let full_name = format!("{name} {count}");
        let known = self.subjects.iter().position(|subject| subject.name == full_name);
        let which = match known {
            Some(which) => which,
            None => {
                let (counts, manner) = (Rc::new(Counts::default()), Manner::named(name));
                let callers = Calico::callers(&self.settings, &counts, manner, count)?;
                self.subjects.push(Subject { name: full_name, callers, added: Vec::new() });
                self.subjects.len() - 1
            }
        };
        Ok(&mut self.subjects[which])
    }
}

// === impl Subject ===

impl Subject {
    async fn add(&mut self, pods: Vec<Pod>) -> Result<Value> {
        let (took, addresses) = burst::run(&self.callers, Verb::Add, &pods).await?;
        let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
        if distinct.len() != pods.len() {
            return Err(
                format!("{}: {} ADDs gave {} addresses", self.name, pods.len(), distinct.len()).into()
            );
        }
        self.added.extend(pods);
        Ok(json!({ "us": took.as_secs_f64() * 1e6 }))
    }

    async fn del(&mut self) -> Result<Value> {
        let count = self.callers.len().min(self.added.len());
        let pods: Vec<Pod> = self.added.drain(..count).collect();
        let (took, _) = burst::run(&self.callers, Verb::Del, &pods).await?;
        Ok(json!({ "us": took.as_secs_f64() * 1e6 }))
    }
}
