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
use russet_linux::{FileLock, LockError};

use crate::config::{Paths, private_dir};

/// How long a request may wait for others that work without an agent; runtimes give up after one to four minutes.
const PATIENCE: Duration = Duration::from_secs(45);
/// GC's: CRI-O gives it 30 seconds in all.
const GC_PATIENCE: Duration = Duration::from_secs(20);
/// How long a request waits for the node before it looks whether an agent has come: that one keeps the lock as long as it lives.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

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

/// The node for an agent, which keeps it for its life. Requests under way are waited for; new ones wait, and find the agent.
pub fn of_agent(paths: &Paths, patience: Duration) -> Result<FileLock, LockError> {
    let end = Instant::now() + patience;
    let _gate = FileLock::exclusive(paths.gate_lock(), end)?;
    let node = FileLock::exclusive(paths.node_lock(), end)?;
    // Left by requests that were killed; nobody holds one of them without the node. What cannot be removed hurts nobody.
    let _ = std::fs::remove_dir_all(paths.subject_locks());
    Ok(node)
}

/// The node for somebody who looks at all of its containers. Holds up nobody while it waits.
pub fn alone(paths: &Paths, patience: Duration) -> Result<FileLock, LockError> {
    FileLock::exclusive(paths.node_lock(), Instant::now() + patience)
}

/// The turn of a request without an agent; waits for others of the same container or pod, and for an agent that has come meanwhile.
pub fn of_request(paths: &Paths, plugin: &str, request: &Request) -> Result<Turn, CniError> {
    private_dir(&paths.run_dir()).map_err(|error| CniError::io("make the run directory", error))?;
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
        assert!(of_agent(&paths, Duration::ZERO).unwrap_err().is_timeout());
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
        drop(of_agent(&paths, Duration::ZERO).unwrap());
        assert!(!paths.subject_locks().exists());
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
            let node = of_agent(&paths, Duration::from_secs(30));
            stop.store(true, Ordering::Relaxed);
            drop(node.unwrap());
        });
    }
}
