//! Requests of plugins: one at a time for each container, GC alone, everything else in parallel.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Instant;

use russet_addr::ContainerId;
use russet_cni_spec::plugin::{Outcome, Prepared, prepare};
use russet_cni_spec::{Call, CniError, Request};
use russet_plugins::Node;
use tokio::sync::{Mutex, RwLock};

use crate::metrics::Metrics;

/// What introduces the plugin to somebody who runs it by hand; the small executable says it, too.
const ABOUT: &str = "CNI russet plugin";

/// The agent's side of requests.
pub struct Operations {
    node: Node,
    metrics: Metrics,
    /// Held for reading by work on one container, for writing by GC, which looks at all of them.
    everyone: RwLock<()>,
    containers: RefCell<HashMap<ContainerId, Weak<Mutex<()>>>>,
}

// === impl Operations ===

impl Operations {
    /// Serves requests for `node`.
    pub fn new(node: Node, metrics: Metrics) -> Self {
        Self { node, metrics, everyone: RwLock::new(()), containers: RefCell::default() }
    }

    /// Carries out one request to its end, whoever still waits for the answer.
    pub async fn execute(&self, plugin: &str, vars: Vec<(String, String)>, stdin: Vec<u8>) -> Outcome {
        let started = Instant::now();
        let verb = verb_of(&vars);
        let outcome = match prepare(vars, stdin, ABOUT) {
            Ok(Prepared::Answer(outcome)) => outcome,
            Ok(Prepared::Request(request)) => self.run(plugin, &request).await,
            Err(error) => self.failed(&verb, &error),
        };
        let code = if outcome.is_success() { 0 } else { code_of(&outcome) };
        self.metrics.request(&verb, code, started.elapsed().as_secs_f64());
        outcome
    }

    async fn run(&self, plugin: &str, request: &Request) -> Outcome {
        let done = match &request.env.call {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => {
                let _shared = self.everyone.read().await;
                let lock = self.lock_of(&target.container_id);
                let _mine = lock.lock().await;
                russet_plugins::run(&self.node, plugin, request).await
            }
            Call::Gc => {
                let _alone = self.everyone.write().await;
                russet_plugins::run(&self.node, plugin, request).await
            }
            Call::Status => russet_plugins::run(&self.node, plugin, request).await,
        };
        let target = match &request.env.call {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => Some(target),
            Call::Gc | Call::Status => None,
        };
        let container = target.map_or("", |target| target.container_id.as_str());
        let ifname = target.map_or("", |target| target.ifname.as_str());
        let verb = verb_of(&request.env.vars);
        match &done {
            Ok(_) => tracing::debug!(verb, container, ifname, "request done"),
            // Asked every few seconds by every runtime; readiness logs its changes itself.
            Err(error) if matches!(request.env.call, Call::Status) => {
                tracing::debug!(verb, %error, "not ready")
            }
            Err(error) => {
                tracing::warn!(verb, container, ifname, code = error.code, %error, "request failed");
            }
        }
        done.into()
    }

    fn failed(&self, verb: &str, error: &CniError) -> Outcome {
        tracing::warn!(verb, code = error.code, error = %error, "request refused");
        Outcome::failure(error)
    }

    /// The lock of one container. Locks that nobody holds are forgotten on the way.
    fn lock_of(&self, container: &ContainerId) -> Rc<Mutex<()>> {
        let mut containers = self.containers.borrow_mut();
        if let Some(lock) = containers.get(container).and_then(Weak::upgrade) {
            return lock;
        }
        containers.retain(|_, lock| lock.strong_count() > 0);
        let lock = Rc::new(Mutex::new(()));
        containers.insert(container.clone(), Rc::downgrade(&lock));
        lock
    }
}

/// The verb for logs and metrics; anything that is none is `-`, so that nobody can make up labels.
fn verb_of(vars: &[(String, String)]) -> String {
    let given = vars.iter().rev().find(|(key, _)| key == "CNI_COMMAND").map(|(_, value)| value.as_str());
    let known = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    known.into_iter().find(|verb| Some(*verb) == given).unwrap_or("-").to_owned()
}

fn code_of(outcome: &Outcome) -> u32 {
    CniError::decode(&outcome.stdout).map_or(russet_cni_spec::code::INTERNAL, |error| error.code)
}
