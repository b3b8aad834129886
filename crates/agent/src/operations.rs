//! Requests of plugins: one at a time for each container and each pod, GC alone, everything else in parallel.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak as RcWeak};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use russet_cni_spec::plugin::{Outcome, Prepared, prepare};
use russet_cni_spec::relay::RelayRequest;
use russet_cni_spec::{Call, CniError, CniResult, Request, Target};
use russet_plugins::{Node, RequestLog};
use tokio::sync::{Mutex, OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::history::History;
use crate::metrics::Metrics;

/// What introduces the plugin to somebody who runs it by hand; the small executable says it, too.
const ABOUT: &str = "CNI russet plugin";

/// How long a request waits for its turn when its caller does not say how long it waits for the answer.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(55);

/// Between two looks of somebody who wants to be alone.
const ALONE_PAUSE: Duration = Duration::from_millis(20);

/// The agent's side of requests.
pub struct Operations {
    node: Node,
    metrics: Metrics,
    history: History,
    /// Main plugins.
    main: Lane,
    /// IPAM plugins: a main plugin calls them in the middle of its own request, so they must not wait for main plugins.
    ipam: Lane,
    /// Whoever wants to know for which containers requests come.
    asked: RefCell<RcWeak<Asked>>,
}

/// Containers for which a request came or ended while this was kept.
#[derive(Debug, Default)]
pub struct Asked(RefCell<BTreeSet<String>>);

/// No request for any container is under way as long as this is kept.
pub struct Alone<'a> {
    _main: RwLockWriteGuard<'a, ()>,
    _ipam: RwLockWriteGuard<'a, ()>,
}

/// Plugins that wait for each other.
#[derive(Default)]
struct Lane {
    /// Held for reading by work on one container, for writing by GC, which looks at all of them.
    everyone: RwLock<()>,
    /// By container ID, and by `namespace/name` for pods, which no container ID can be.
    locks: RefCell<HashMap<String, Weak<Mutex<()>>>>,
}

/// The right to work on one container.
struct Turn<'a> {
    _shared: RwLockReadGuard<'a, ()>,
    _container: OwnedMutexGuard<()>,
    _pod: Option<OwnedMutexGuard<()>>,
}

// === impl Operations ===

impl Operations {
    /// Serves requests for `node`.
    pub fn new(node: Node, metrics: Metrics, history: History) -> Self {
        let (main, ipam, asked) = (Lane::default(), Lane::default(), RefCell::default());
        Self { node, metrics, history, main, ipam, asked }
    }

    /// Waits until no request for any container is under way, and then keeps those that come from beginning; holds up nobody while it waits.
    pub async fn alone(&self) -> Alone<'_> {
        loop {
            let _main = self.main.alone().await;
            if let Ok(_ipam) = self.ipam.everyone.try_write() {
                return Alone { _main, _ipam };
            }
            drop(_main);
            tokio::time::sleep(ALONE_PAUSE).await;
        }
    }

    /// Keeps the containers for which requests come from now on, or are under way, for as long as the answer is kept. For one caller at a time.
    pub fn remember_asked(&self) -> Rc<Asked> {
        let asked = Rc::new(Asked::default());
        *self.asked.borrow_mut() = Rc::downgrade(&asked);
        asked
    }

    fn asks_for(&self, target: Option<&Target>) {
        if let (Some(target), Some(asked)) = (target, self.asked.borrow().upgrade()) {
            asked.0.borrow_mut().insert(target.container_id.to_string());
        }
    }

    /// Carries out one request to its end, whoever still waits for the answer. One that does not get its turn before its caller gives up is not begun.
    pub async fn execute(&self, message: RelayRequest) -> Outcome {
        let started = Instant::now();
        let RelayRequest { plugin, env, config, deadline } = message;
        let deadline = if deadline.is_zero() { DEFAULT_DEADLINE } else { deadline };
        let verb = verb_of(&env);
        let outcome = match prepare(env, config, ABOUT) {
            Ok(Prepared::Answer(outcome)) => outcome,
            Ok(Prepared::Request(request)) => self.run(&plugin, &request, deadline).await,
            Err(error) => self.failed(&verb, &error),
        };
        let code = if outcome.is_success() { 0 } else { code_of(&outcome) };
        self.metrics.request(&verb, code, started.elapsed().as_secs_f64());
        outcome
    }

    async fn run(&self, plugin: &str, request: &Request, deadline: Duration) -> Outcome {
        let log = RequestLog::new(plugin);
        let target = match &request.env.call {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => Some(target),
            Call::Gc | Call::Status => None,
        };
        self.asks_for(target);
        let done = self.work(plugin, request, deadline, &log).await;
        // Once more: somebody may have begun to listen meanwhile.
        self.asks_for(target);
        let container = target.map_or("", |target| target.container_id.as_str());
        let ifname = target.map_or("", |target| target.ifname.as_str());
        let verb = verb_of(&request.env.vars);
        match &done {
            Ok(result) => {
                self.history.record(request, result.as_ref());
                tracing::debug!(verb, container, ifname, "request done");
            }
            // Asked every few seconds by every runtime; readiness logs its changes itself.
            Err(error) if matches!(request.env.call, Call::Status) => {
                tracing::debug!(verb, %error, "not ready")
            }
            Err(error) => {
                tracing::warn!(verb, container, ifname, code = error.code, %error, "request failed");
            }
        }
        Outcome { stderr: log.text(), ..done.into() }
    }

    async fn work(
        &self,
        plugin: &str,
        request: &Request,
        deadline: Duration,
        log: &RequestLog,
    ) -> Result<Option<CniResult>, CniError> {
        let lane = if russet_plugins::is_ipam(plugin) { &self.ipam } else { &self.main };
        let late = |_| {
            let details = format!("it waited {deadline:?}; nothing was begun");
            CniError::try_again_later("the requests before this one are not done yet", details)
        };
        match &request.env.call {
            Call::Add(target) | Call::Check(target) | Call::Del(target) => {
                let turn = tokio::time::timeout(deadline, lane.turn(request, target)).await.map_err(late)?;
                let done = russet_plugins::run(&self.node, plugin, request, log).await?;
                drop(turn);
                Ok(done.settled().await)
            }
            Call::Gc => {
                let _alone = tokio::time::timeout(deadline, lane.alone()).await.map_err(late)?;
                russet_plugins::run(&self.node, plugin, request, log).await.map(|done| done.result)
            }
            Call::Status => {
                russet_plugins::run(&self.node, plugin, request, log).await.map(|done| done.result)
            }
        }
    }

    fn failed(&self, verb: &str, error: &CniError) -> Outcome {
        tracing::warn!(verb, code = error.code, error = %error, "request refused");
        Outcome::failure(error)
    }
}

// === impl Asked ===

impl Asked {
    /// The containers up to now.
    pub fn containers(&self) -> BTreeSet<String> {
        self.0.borrow().clone()
    }
}

// === impl Lane ===

impl Lane {
    /// Waits for a moment in which nobody works. Without a place in the lock's queue: it is a fair one, and whoever waits there holds up every request
    /// that comes after him, behind the slowest of those before him.
    async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        loop {
            match self.everyone.try_write() {
                Ok(alone) => return alone,
                Err(_busy) => tokio::time::sleep(ALONE_PAUSE).await,
            }
        }
    }

    /// Waits for whatever else works on the container, then on the pod: an old sandbox and a new one of the same pod want the same host end.
    async fn turn(&self, request: &Request, target: &Target) -> Turn<'_> {
        let _shared = self.everyone.read().await;
        let _container = self.lock_of(target.container_id.as_str()).lock_owned().await;
        let _pod = match request.env.args.pod() {
            Some(pod) => Some(self.lock_of(&format!("{}/{}", pod.namespace, pod.name)).lock_owned().await),
            None => None,
        };
        Turn { _shared, _container, _pod }
    }

    /// The lock of one container or pod. Locks that nobody holds are forgotten on the way.
    fn lock_of(&self, subject: &str) -> Arc<Mutex<()>> {
        let mut locks = self.locks.borrow_mut();
        if let Some(lock) = locks.get(subject).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Mutex::new(()));
        locks.insert(subject.to_owned(), Arc::downgrade(&lock));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DEFAULT_HEALTH, DefaultPools, Paths, StoreLocation};
    use crate::health::Readiness;
    use russet_plugins::Teardown;
    use russet_store::Sim;
    use std::rc::Rc;

    fn operations() -> Operations {
        let config = Config {
            paths: Paths::new("/nonexistent"),
            node_name: "node-a".parse().unwrap(),
            store: StoreLocation::Embedded,
            interface: None,
            calico: false,
            pools: DefaultPools::default(),
            mtu_bytes: None,
            health: DEFAULT_HEALTH,
            sync_delete: false,
            leak_repair: None,
            cni_caches: Vec::new(),
        };
        let store = Rc::new(Sim::atomic(1));
        let node = crate::node(&config, store, Teardown::Synchronous, &Readiness::pending());
        let history = History::at("/nonexistent/history".into());
        Operations::new(node, Metrics::new().0, history)
    }

    fn message(verb: &str, deadline: Duration) -> RelayRequest {
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_NETNS", "/nonexistent"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"),
            ("CNI_PATH", "/"),
        ];
        RelayRequest {
            plugin: "loopback".to_owned(),
            env: vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
            config:
                br#"{"cniVersion":"1.1.0","name":"net","type":"loopback","cni.dev/valid-attachments":[]}"#
                    .to_vec(),
            deadline,
        }
    }

    #[test]
    fn a_request_that_does_not_get_its_turn_is_told_to_try_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let operations = operations();
        let short = Duration::from_millis(10);
        for subject in ["abc", "default/web-0"] {
            let busy = operations.main.lock_of(subject).try_lock_owned().unwrap();
            assert_eq!(
                code_of(&runtime.block_on(operations.execute(message("DEL", short)))),
                11,
                "{subject}"
            );
            drop(busy);
        }
        let busy = operations.main.everyone.try_read().unwrap();
        assert_eq!(code_of(&runtime.block_on(operations.execute(message("GC", short)))), 11);
        drop(busy);
        for verb in ["DEL", "GC"] {
            assert!(
                runtime.block_on(operations.execute(message(verb, Duration::ZERO))).is_success(),
                "{verb}"
            );
        }
    }

    #[test]
    fn requests_are_not_held_up_by_somebody_who_waits_to_be_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let operations = operations();
        runtime.block_on(async {
            // A slow ADD of another container.
            for slow in [&operations.main.everyone, &operations.ipam.everyone] {
                let slow = slow.try_read().unwrap();
                let del = async {
                    tokio::time::sleep(ALONE_PAUSE * 2).await;
                    operations.execute(message("DEL", Duration::from_secs(5))).await
                };
                let alone = async {
                    let gc = operations.execute(message("GC", Duration::from_secs(600)));
                    tokio::join!(gc, async { drop(operations.alone().await) })
                };
                tokio::pin!(alone);
                tokio::select! {
                    del = del => assert!(del.is_success(), "{}", code_of(&del)),
                    _ = &mut alone => panic!("nobody is alone while others work"),
                }
                drop(slow);
                assert!(alone.await.0.is_success());
            }
        });
    }

    #[test]
    fn an_ipam_plugin_does_not_wait_for_the_main_plugin_that_calls_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let operations = operations();
        let _container = operations.main.lock_of("abc").try_lock_owned().unwrap();
        let _pod = operations.main.lock_of("default/web-0").try_lock_owned().unwrap();
        let _everyone = operations.main.everyone.try_write().unwrap();
        for verb in ["DEL", "GC"] {
            let request =
                RelayRequest { plugin: "calico-ipam".to_owned(), ..message(verb, Duration::from_secs(5)) };
            let outcome = runtime.block_on(operations.execute(request));
            // It says nothing of where etcd is, which means Kubernetes: refused, but not for want of a turn.
            assert_eq!(code_of(&outcome), 2, "{verb}");
        }
    }
}
