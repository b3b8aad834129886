//! Locks between the processes of a node: an agent, plugins that work without one, and commands
//! that repair.
//!
//! There are four kinds of lock. Every process takes the ones that it needs in this order, so that
//! there is no deadlock:
//!
//! 1. The gate lock. An agent holds it while it waits for the node lock; requests pass through it.
//!    Without it, requests that always overlap would keep the agent out.
//! 2. The node lock. An agent holds it exclusively while it runs, GC and a repair while they work;
//!    requests for one container share it.
//! 3. The container lock, and 4. the pod lock: one request at a time. An old sandbox and a new one
//!    of the same pod need the same host end.
//!
//! Locks of the work itself come after these: that of Calico's IPAM plugins, or of `host-local`,
//! then that of the embedded store. IPAM plugins take none of the four, because their callers may
//! hold them. Every wait has a deadline, and the kernel releases the locks of a dead process.

use std::path::Path;
use std::time::{Duration, Instant};

use russet_addr::EndpointId;
use russet_attach::{Dialect, Pod, naming};
use russet_cni_spec::plugin::Outcome;
use russet_cni_spec::{Call, CniError, Request, Target, relay};
use russet_linux::file::private_dir;
use russet_linux::{FileLock, LockError};

use crate::config::Paths;

/// How long a request waits for other requests without an agent; runtimes give up after one to four
/// minutes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(45);
/// The same for a GC: CRI-O gives it 30 seconds in all.
const GC_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a request waits for the node lock before it looks whether an agent has started, which
/// keeps the lock while it runs. An agent looks at the holder as often.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long an agent waits for requests: each may wait for its container's lock first, and Calico's
/// IPAM plugins take up to 110 s.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(180);
/// How long an agent waits for a process that holds the node lock exclusively. A GC takes less, so
/// a longer hold is most probably another agent.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of log lines of an agent that waits.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What a request without an agent came to after it waited for its locks.
pub enum Admission {
    /// It has its locks.
    Locked(Held),
    /// An agent started meanwhile, and has answered the request.
    Answered(Outcome),
}

/// The locks for work on one container, or on all of them. Dropping them releases them in the
/// opposite order.
pub struct Held {
    _pod: Option<Subject>,
    _container: Option<Subject>,
    _node: FileLock,
}

/// The lock of a container or pod. Its file is removed with it, because there would be one for each
/// container that ever ran.
struct Subject(FileLock);

/// A request that waits for its locks.
struct Wait<'a> {
    plugin: &'a str,
    request: &'a Request,
    began: Instant,
    timeout: Duration,
}

/// How long an agent waits for the node lock.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// While requests hold it shared.
    requests: Duration,
    /// While another process holds it exclusively.
    exclusive: Duration,
}

/// The agent did not get the node lock.
#[derive(Debug, thiserror::Error)]
pub enum Taken {
    /// Another process holds it exclusively.
    #[error("another agent of this node is running, or a GC or a repair without one is in progress: {0}")]
    Exclusive(LockError),
    /// Requests that work without an agent.
    #[error("plugins that work without an agent do not finish: {0}")]
    Requests(LockError),
    /// The lock itself.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Takes the node lock for an agent, which keeps it while it runs. Waits for requests in progress;
/// new ones wait, and then find the agent.
pub fn lock_for_agent(paths: &Paths, timeouts: Timeouts) -> Result<FileLock, Taken> {
    let began = Instant::now();
    let _gate =
        FileLock::exclusive(paths.gate_lock(), began + timeouts.exclusive).map_err(Taken::exclusive)?;
    let (mut exclusive_since, mut logged) = (None, began);
    loop {
        let error = match FileLock::exclusive(paths.node_lock(), Instant::now() + LOOK_INTERVAL) {
            Ok(node) => {
                // Left by requests that were killed; no process holds one of them without the node
                // lock. A file that cannot be removed does no harm.
                let _ = std::fs::remove_dir_all(paths.subject_locks());
                return Ok(node);
            }
            Err(error) if error.is_timeout() => error,
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        // Requests share it; no new request passes the gate.
        let is_shared = FileLock::shared(paths.node_lock(), now).is_ok();
        if !is_shared && now >= *exclusive_since.get_or_insert(now) + timeouts.exclusive {
            return Err(Taken::Exclusive(error));
        }
        if is_shared {
            exclusive_since = None;
        }
        if now >= began + timeouts.requests {
            return Err(Taken::Requests(error));
        }
        if now >= logged + LOG_INTERVAL {
            logged = now;
            let by = if is_shared { "plugins without an agent" } else { "an agent, a GC or a repair" };
            tracing::info!(waited_s = began.elapsed().as_secs(), by, "the agent waits for the node");
        }
    }
}

/// Takes the node lock for work on all containers of the node. New requests go on while it waits.
pub fn lock_exclusively(paths: &Paths, timeout: Duration) -> Result<FileLock, LockError> {
    FileLock::exclusive(paths.node_lock(), Instant::now() + timeout)
}

/// Takes the locks of a request without an agent. Waits for other requests of the same container or
/// pod; an agent that has started meanwhile gets the request.
pub fn lock_for_request(paths: &Paths, plugin: &str, request: &Request) -> Result<Admission, CniError> {
    private_dir(paths.run_dir()).map_err(|error| CniError::io("make the run directory", error))?;
    let timeout = if matches!(request.env.call, Call::Gc) { GC_TIMEOUT } else { REQUEST_TIMEOUT };
    let wait = Wait { plugin, request, began: Instant::now(), timeout };
    let node = match &request.env.call {
        Call::Gc => wait.node(|end| FileLock::exclusive(paths.node_lock(), end))?,
        _ => wait.node(|end| through_the_gate(paths, end))?,
    };
    let _node = match node {
        Ok(node) => node,
        Err(outcome) => return Ok(Admission::Answered(outcome)),
    };
    let (mut _container, mut _pod) = (None, None);
    if let Some(target) = request.env.target() {
        let dir = paths.subject_locks();
        private_dir(&dir).map_err(|error| CniError::io("make the directory of locks", error))?;
        _container = Some(wait.subject(&dir.join(format!("container-{}", target.id.container)))?);
        if let Some(name) = pod_lock(request, target) {
            _pod = Some(wait.subject(&dir.join(name))?);
        }
    }
    Ok(Admission::Locked(Held { _pod, _container, _node }))
}

fn through_the_gate(paths: &Paths, end: Instant) -> Result<FileLock, LockError> {
    let _gate = FileLock::shared(paths.gate_lock(), end)?;
    FileLock::shared(paths.node_lock(), end)
}

/// A pod's lock is named after the host end of its first interface, which its sandboxes have in
/// common and which is a valid file name for any pod.
fn pod_lock(request: &Request, target: &Target) -> Option<String> {
    let pod = request.env.args.pod()?;
    let pod = Pod { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() };
    let id = EndpointId { ifname: "eth0".parse().ok()?, ..target.id.clone() };
    Some(format!("pod-{}", naming::host_end(Dialect::Calico, &id, Some(&pod))))
}

// === impl Timeouts ===

impl Default for Timeouts {
    fn default() -> Self {
        Self { requests: REQUESTS_TIMEOUT, exclusive: EXCLUSIVE_TIMEOUT }
    }
}

// === impl Taken ===

impl Taken {
    fn exclusive(error: LockError) -> Self {
        if error.is_timeout() { Self::Exclusive(error) } else { Self::Lock(error) }
    }
}

// === impl Wait ===

impl Wait<'_> {
    /// The node lock, taken by `take`, or an agent's answer.
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
            if !error.is_timeout() || self.began.elapsed() > self.timeout {
                return Err(busy(error));
            }
        }
    }

    /// The lock of a container or pod. No agent can have started, because the node lock is held.
    fn subject(&self, path: &Path) -> Result<Subject, CniError> {
        FileLock::exclusive(path, self.began + self.timeout).map(Subject).map_err(busy)
    }
}

fn busy(error: LockError) -> CniError {
    CniError::try_again_later("the node is busy with other requests", error)
}

// === impl Subject ===

impl Drop for Subject {
    fn drop(&mut self) {
        // Removed while the lock is still held, so that no other process holds it. A file that stays
        // is empty and does no harm.
        if let Err(error) = self.0.remove_file() {
            tracing::debug!(%error, "the file of a lock was not removed");
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
        match lock_for_request(paths, "russet", &request(verb, container, pod)).unwrap() {
            Admission::Locked(held) => held,
            Admission::Answered(outcome) => panic!("{outcome:?}"),
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
    fn requests_share_the_node_lock_but_not_those_of_containers_and_pods() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (one, two) = (ours(&paths, "ADD", "c1", "a"), ours(&paths, "ADD", "c2", "b/../.."));
        assert!(lock_exclusively(&paths, Duration::ZERO).unwrap_err().is_timeout());
        let no_wait = Timeouts { requests: Duration::ZERO, exclusive: Duration::ZERO };
        let taken = lock_for_agent(&paths, no_wait).unwrap_err();
        assert!(matches!(taken, Taken::Requests(_)), "{taken}");
        let held = names(&paths);
        assert_eq!(held.len(), 4, "{held:?}");
        for name in &held {
            assert!(FileLock::try_exclusive(paths.subject_locks().join(name)).unwrap().is_none(), "{name}");
        }
        drop((one, two));
        assert_eq!(names(&paths), Vec::<String>::new());
        drop(lock_exclusively(&paths, Duration::ZERO).unwrap());
        // A killed request left it. It does not stop an agent, which removes it.
        std::fs::write(paths.subject_locks().join("container-c9"), "").unwrap();
        let agent = lock_for_agent(&paths, no_wait).unwrap();
        assert!(!paths.subject_locks().exists());
        let taken = lock_for_agent(&paths, no_wait).unwrap_err();
        assert!(taken.to_string().starts_with("another agent of this node is running"), "{taken}");
        drop(agent);
    }

    #[test]
    fn an_agent_waits_longer_for_requests_than_for_another_agent() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let request = ours(&paths, "ADD", "c1", "a");
        let timeouts = Timeouts { requests: Duration::from_secs(60), exclusive: Duration::ZERO };
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                loop {
                    match lock_for_agent(&paths, timeouts) {
                        // The agent tried to take the gate while this test looked.
                        Err(Taken::Exclusive(_)) if !waits.load(Ordering::SeqCst) => {}
                        done => break done,
                    }
                }
            });
            // It holds the gate while it waits, for several of its looks at the node lock.
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
    fn a_new_sandbox_of_a_pod_waits_for_the_del_of_the_old_one() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let del = ours(&paths, "DEL", "old", "web-0");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ours(&paths, "ADD", "new", "web-0"));
            // It waits for the pod's lock as soon as it has its container's.
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
    fn overlapping_requests_do_not_keep_an_agent_out() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        let (admitted, changed, stop) = (Mutex::new(0_u64), Condvar::new(), AtomicBool::new(false));
        // Keeps its locks until the next request has its own, so that the node lock is never free,
        // but only while the gate is open: behind a closed one no request follows.
        let work = |container: &str| {
            let _held = ours(&paths, "ADD", container, container);
            let mut count = admitted.lock().unwrap();
            *count += 1;
            changed.notify_all();
            let mine = *count;
            while *count == mine && !stop.load(Ordering::Relaxed) {
                count = changed.wait_timeout(count, Duration::from_millis(5)).unwrap().0;
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
            while *admitted.lock().unwrap() < 10 {
                std::thread::yield_now();
            }
            let node = lock_for_agent(&paths, Timeouts::default());
            stop.store(true, Ordering::Relaxed);
            drop(node.unwrap());
        });
    }
}
