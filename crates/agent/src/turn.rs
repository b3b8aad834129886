//! Whose turn it is on this node, between processes: an agent, plugins that work without one, and whoever repairs by hand.
//!
//! There are four kinds of lock, and everybody takes those that he needs in this order. So nobody can wait for somebody who waits for him:
//!
//! 1. The gate. An agent holds it while it waits for the node; requests pass through it. Without it, requests that overlap for ever would keep the agent out.
//! 2. The node. An agent has it for its life, and GC and a repair for their work, alone; requests for one container share it.
//! 3. The container, and 4. the pod: one request at a time. An old sandbox and a new one of the same pod want the same host end.
//!
//! What the work itself takes comes after these: the lock of Calico's IPAM plugins, or `host-local`'s, then that of the embedded store. IPAM plugins take
//! none of the four, for their callers may hold them. Every wait has an end, and the kernel gives the locks of a dead process back.

use std::path::Path;
use std::time::{Duration, Instant};

use russet_attach::{Dialect, Pod, naming};
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::{Call, CniError, Request, Target, relay};
use russet_linux::file::private_dir;
use russet_linux::{FileLock, LockError};

use crate::config::Paths;

/// How long a request may wait for others that work without an agent; runtimes give up after one to four minutes.
const PATIENCE: Duration = Duration::from_secs(45);
/// GC's: CRI-O gives it 30 seconds in all.
const GC_PATIENCE: Duration = Duration::from_secs(20);
/// How long a request waits for the node before it looks whether an agent has come: that one keeps the lock as long as it lives. An agent looks as often who
/// has it.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long an agent waits for requests: each may wait for its container first, and Calico's IPAM plugins work for up to 110 s.
const REQUESTS_PATIENCE: Duration = Duration::from_secs(180);
/// How long for somebody who has the node alone: longer than a GC takes, and most probably another agent.
const ALONE_PATIENCE: Duration = Duration::from_secs(10);
/// Between two lines of an agent that waits.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Whose turn it is.
pub enum Turn {
    /// The request's own process has it.
    Ours(Held),
    /// An agent came while the request waited, and has answered.
    Agents(Outcome),
}

/// The right to work on one container, or on all of them; dropping it gives it back, in the opposite order.
pub struct Held {
    _pod: Option<Subject>,
    _container: Option<Subject>,
    _node: FileLock,
}

/// The lock of a container or pod. Its file goes with it: they are many, and most come once.
struct Subject(FileLock);

/// Somebody who waits.
struct Wait<'a> {
    plugin: &'a str,
    request: &'a Request,
    began: Instant,
    patience: Duration,
}

/// How long an agent waits for the node.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// While requests have it.
    requests: Duration,
    /// While somebody has it alone.
    alone: Duration,
}

/// The node is somebody else's.
#[derive(Debug, thiserror::Error)]
pub enum Taken {
    /// Somebody has it alone.
    #[error("another agent of this node is running, or a GC or a repair without one is at work: {0}")]
    Alone(LockError),
    /// Requests that work without an agent.
    #[error("plugins that work without an agent do not come to their end: {0}")]
    Requests(LockError),
    /// The lock itself.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// The node for an agent, which keeps it for its life. Requests under way are waited for; new ones wait, and find the agent.
pub fn of_agent(paths: &Paths, patience: Patience) -> Result<FileLock, Taken> {
    let began = Instant::now();
    let _gate = FileLock::exclusive(paths.gate_lock(), began + patience.alone).map_err(Taken::alone)?;
    let (mut alone_since, mut told) = (None, began);
    loop {
        let error = match FileLock::exclusive(paths.node_lock(), Instant::now() + LOOK_INTERVAL) {
            Ok(node) => {
                // Left by requests that were killed; nobody holds one of them without the node. What cannot be removed hurts nobody.
                let _ = std::fs::remove_dir_all(paths.subject_locks());
                return Ok(node);
            }
            Err(error) if error.is_timeout() => error,
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        // Requests share it; nobody new comes through the gate.
        let is_shared = FileLock::shared(paths.node_lock(), now).is_ok();
        if !is_shared && now >= *alone_since.get_or_insert(now) + patience.alone {
            return Err(Taken::Alone(error));
        }
        if is_shared {
            alone_since = None;
        }
        if now >= began + patience.requests {
            return Err(Taken::Requests(error));
        }
        if now >= told + TELL_INTERVAL {
            told = now;
            let by = if is_shared { "plugins without an agent" } else { "an agent, a GC or a repair" };
            tracing::info!(waited_s = began.elapsed().as_secs(), by, "the agent waits for the node");
        }
    }
}

/// The node for somebody who looks at all of its containers. Holds up nobody while it waits.
pub fn alone(paths: &Paths, patience: Duration) -> Result<FileLock, LockError> {
    FileLock::exclusive(paths.node_lock(), Instant::now() + patience)
}

/// The turn of a request without an agent; waits for others of the same container or pod, and for an agent that has come meanwhile.
pub fn of_request(paths: &Paths, plugin: &str, request: &Request) -> Result<Turn, CniError> {
    private_dir(paths.run_dir()).map_err(|error| CniError::io("make the run directory", error))?;
    let patience = if matches!(request.env.call, Call::Gc) { GC_PATIENCE } else { PATIENCE };
    let wait = Wait { plugin, request, began: Instant::now(), patience };
    let node = match &request.env.call {
        Call::Gc => wait.node(|end| FileLock::exclusive(paths.node_lock(), end))?,
        _ => wait.node(|end| through_the_gate(paths, end))?,
    };
    let _node = match node {
        Ok(node) => node,
        Err(outcome) => return Ok(Turn::Agents(outcome)),
    };
    let (mut _container, mut _pod) = (None, None);
    if let Some(target) = request.env.target() {
        let dir = paths.subject_locks();
        private_dir(&dir).map_err(|error| CniError::io("make the directory of locks", error))?;
        _container = Some(wait.subject(&dir.join(format!("container-{}", target.container_id)))?);
        if let Some(name) = pod_lock(request, target) {
            _pod = Some(wait.subject(&dir.join(name))?);
        }
    }
    Ok(Turn::Ours(Held { _pod, _container, _node }))
}

fn through_the_gate(paths: &Paths, end: Instant) -> Result<FileLock, LockError> {
    let _gate = FileLock::shared(paths.gate_lock(), end)?;
    FileLock::shared(paths.node_lock(), end)
}

/// A pod's lock is called after its first interface's host end: that is what its sandboxes would fight for, and any pod's name makes a file's.
fn pod_lock(request: &Request, target: &Target) -> Option<String> {
    let pod = request.env.args.pod()?;
    let pod = Pod { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() };
    let ifname = "eth0".parse().ok()?;
    Some(format!("pod-{}", naming::host_end(Dialect::Calico, &target.container_id, &ifname, Some(&pod))))
}

// === impl Patience ===

impl Default for Patience {
    fn default() -> Self {
        Self { requests: REQUESTS_PATIENCE, alone: ALONE_PATIENCE }
    }
}

// === impl Taken ===

impl Taken {
    fn alone(error: LockError) -> Self {
        if error.is_timeout() { Self::Alone(error) } else { Self::Lock(error) }
    }
}

// === impl Wait ===

impl Wait<'_> {
    /// The node by `take`, or an agent's answer.
    fn node(
        &self,
        take: impl Fn(Instant) -> Result<FileLock, LockError>,
    ) -> Result<Result<FileLock, Outcome>, CniError> {
        loop {
            let error = match take(Instant::now() + LOOK_INTERVAL) {
                Ok(lock) => return Ok(Ok(lock)),
                Err(error) => error,
            };
            if error.is_timeout()
                && let Some(outcome) = relay::hand_over(self.plugin, self.request, self.began.elapsed())?
            {
                return Ok(Err(outcome));
            }
            if !error.is_timeout() || self.began.elapsed() > self.patience {
                return Err(busy(error));
            }
        }
    }

    /// The lock of a container or pod. No agent can have come: we have the node.
    fn subject(&self, path: &Path) -> Result<Subject, CniError> {
        FileLock::exclusive(path, self.began + self.patience).map(Subject).map_err(busy)
    }
}

fn busy(error: LockError) -> CniError {
    CniError::try_again_later("the node is busy with other requests", error)
}

// === impl Subject ===

impl Drop for Subject {
    fn drop(&mut self) {
        // Before it is given up: nobody else can have it then. A file that stays is an empty one more.
        if let Err(error) = self.0.remove_file() {
            tracing::debug!(%error, "a lock's file stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Condvar, Mutex};

    use russet_cni_spec::plugin::{Prepared, prepare};

    use super::*;

    fn request(verb: &str, container: &str, pod: &str) -> Request {
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}");
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", "/nonexistent"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", &args),
            ("CNI_PATH", "/"),
        ];
        let config =
            br#"{"cniVersion":"1.1.0","name":"net","type":"russet","agent_socket":"/nonexistent/s"}"#;
        let vars = vars.map(|(key, value)| (key.to_owned(), value.to_owned()));
        match prepare(vars, config.to_vec(), "test").unwrap() {
            Prepared::Request(request) => *request,
            Prepared::Answer(outcome) => panic!("{outcome:?}"),
        }
    }

    fn ours(paths: &Paths, verb: &str, container: &str, pod: &str) -> Held {
        match of_request(paths, "russet", &request(verb, container, pod)).unwrap() {
            Turn::Ours(held) => held,
            Turn::Agents(outcome) => panic!("{outcome:?}"),
        }
    }

    fn names(paths: &Paths) -> Vec<String> {
        let entries = std::fs::read_dir(paths.subject_locks()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn requests_share_the_node_and_not_their_container_or_pod_and_leave_no_file() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (one, two) = (ours(&paths, "ADD", "c1", "a"), ours(&paths, "ADD", "c2", "b/../.."));
        assert!(alone(&paths, Duration::ZERO).unwrap_err().is_timeout());
        let nobody_waits = Patience { requests: Duration::ZERO, alone: Duration::ZERO };
        let taken = of_agent(&paths, nobody_waits).unwrap_err();
        assert!(matches!(taken, Taken::Requests(_)), "{taken}");
        let held = names(&paths);
        assert_eq!(held.len(), 4, "{held:?}");
        for name in &held {
            assert!(FileLock::try_exclusive(paths.subject_locks().join(name)).unwrap().is_none(), "{name}");
        }
        drop((one, two));
        assert_eq!(names(&paths), Vec::<String>::new());
        drop(alone(&paths, Duration::ZERO).unwrap());
        // A killed request's; no agent is stopped by them, and it takes them away.
        std::fs::write(paths.subject_locks().join("container-c9"), "").unwrap();
        let agent = of_agent(&paths, nobody_waits).unwrap();
        assert!(!paths.subject_locks().exists());
        let taken = of_agent(&paths, nobody_waits).unwrap_err();
        assert!(taken.to_string().starts_with("another agent of this node is running"), "{taken}");
        drop(agent);
    }

    #[test]
    fn an_agent_waits_longer_for_requests_than_for_another_agent() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let request = ours(&paths, "ADD", "c1", "a");
        let patience = Patience { requests: Duration::from_secs(60), alone: Duration::ZERO };
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    match of_agent(&paths, patience) {
                        // It asked for the gate while we looked.
                        Err(Taken::Alone(_)) if !waits.load(Ordering::SeqCst) => {}
                        done => break done,
                    }
                }
            });
            // It has the gate for as long as it waits; long enough to look several times who has the node.
            while !waiting.is_finished() && FileLock::shared(paths.gate_lock(), Instant::now()).is_ok() {
                std::thread::yield_now();
            }
            waits.store(true, Ordering::SeqCst);
            let looks = Instant::now() + LOOK_INTERVAL * 3;
            assert!(FileLock::exclusive(paths.gate_lock(), looks).unwrap_err().is_timeout());
            drop(request);
            drop(waiting.join().unwrap().unwrap());
        });
    }

    #[test]
    fn a_new_sandbox_of_a_pod_waits_for_the_old_ones_del_and_nothing_else_does() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let del = ours(&paths, "DEL", "old", "web-0");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ours(&paths, "ADD", "new", "web-0"));
            // It waits for the pod as soon as it has its container.
            while !paths.subject_locks().join("container-new").exists() {
                std::thread::yield_now();
            }
            drop(ours(&paths, "ADD", "other", "web-1"));
            assert!(!waiting.is_finished());
            drop(del);
            drop(waiting.join().unwrap());
        });
    }

    #[test]
    fn an_agent_gets_the_node_however_many_requests_overlap() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (turns, came, stop) = (Mutex::new(0_u64), Condvar::new(), AtomicBool::new(false));
        // Keeps its turn until the next request has one, too, so that the node is never free; but no longer than the gate is open: nobody comes then.
        let work = |container: &str| {
            let _held = ours(&paths, "ADD", container, container);
            let mut count = turns.lock().unwrap();
            *count += 1;
            came.notify_all();
            let mine = *count;
            while *count == mine && !stop.load(Ordering::Relaxed) {
                count = came.wait_timeout(count, Duration::from_millis(5)).unwrap().0;
                if *count == mine && FileLock::shared(paths.gate_lock(), Instant::now()).is_err() {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            for container in ["c1", "c2", "c3"] {
                let (work, stop) = (&work, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        work(container);
                    }
                });
            }
            while *turns.lock().unwrap() < 10 {
                std::thread::yield_now();
            }
            let node = of_agent(&paths, Patience::default());
            stop.store(true, Ordering::Relaxed);
            drop(node.unwrap());
        });
    }
}
