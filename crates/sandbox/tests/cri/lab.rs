//! A server on a socket of its own, and its client.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_runtime::{ConfigDir, Runtime};
use russet_sandbox::cri::{CgroupDriver, Listener, Options, ServeError, serve};
use russet_sandbox::{Config, Engine, EngineError, EngineState, Made, Metrics, SandboxId, Sandboxes};
use russet_testkit::cri::{Cri, Pod, v1};
use russet_testkit::{eventually, eventually_some, http_get, write_program};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Everything of one test; dropping it stops the server.
pub struct Lab {
    pub cri: Cri,
    pub engine: Memory,
    /// The health address of the next server.
    pub health: Option<SocketAddr>,
    dir: TempDir,
    server: Option<(oneshot::Sender<()>, Serving)>,
}

/// An engine that keeps sandboxes in memory. Pods whose host name begins with `hang` hang in their
/// creation, those with `stuck` in their removal, until they are released.
#[derive(Clone, Default)]
pub struct Memory(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Default)]
struct Inner {
    running: BTreeMap<SandboxId, bool>,
    stuck: BTreeSet<SandboxId>,
    hanging: usize,
    looks_hang: bool,
    release: bool,
}

/// The thread that waits for a server's end.
pub type Serving = JoinHandle<Result<(), ServeError>>;

/// Answers STATUS, but not while there is a `gate`; other verbs are not used.
const PLUGIN: &str = "#!/bin/sh\nwhile [ -e DIR/gate ]; do sleep 0.02; done\nexit 0\n";
/// For an idle server.
pub const TIMEOUT: Duration = Duration::from_secs(20);

// === impl Lab ===

impl Lab {
    /// A server without a network configuration.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["net.d", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let plugin = dir.path().join("bin/lab");
        write_program(&plugin, &PLUGIN.replace("DIR", dir.path().to_str().unwrap()));
        let cri = Cri::new(&dir.path().join("cri.sock")).unwrap();
        let mut lab = Self { cri, engine: Memory::default(), health: None, dir, server: None };
        lab.serve();
        lab
    }

    /// The same with one.
    pub fn with_network() -> Self {
        let lab = Self::start();
        let conflist = r#"{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"lab"}]}"#;
        fs::write(lab.path("net.d/10-pods.conflist"), conflist).unwrap();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server on the existing state.
    pub fn serve(&mut self) {
        let listener =
            Listener::open(&self.path("cri.sock").to_str().unwrap().parse().unwrap(), Duration::ZERO);
        let sandboxes = Sandboxes::open(russet_sandbox::Options {
            state_dir: self.path("state"),
            run_dir: self.path("run"),
            engine: Box::new(self.engine.clone()),
            runtime: Runtime::new(vec![self.path("bin")], self.path("cache")),
            networks: Box::new(ConfigDir::new(self.path("net.d"))),
            metrics: Metrics::new(),
            lock_timeout: TIMEOUT,
            on_waiting: |_| (),
        });
        let options = Options {
            cgroup_driver: CgroupDriver::Cgroupfs,
            about: serde_json::json!({"engine": "memory"}),
            health: self.health.map(Into::into),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (listener, sandboxes) = (listener.unwrap(), Arc::new(sandboxes.unwrap()));
        let server = std::thread::spawn(move || {
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            ready.send(()).unwrap();
            tokio.block_on(serve(listener, sandboxes, options, async { drop(stopped.await) }))
        });
        is_ready.recv().unwrap();
        self.server = Some((stop, server));
    }

    /// Restarts the server, with a health address.
    pub fn serve_health(&mut self) {
        self.stop();
        // An address that was free a moment ago.
        self.health = Some(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        self.serve();
    }

    /// The response of the health address, whose thread may not listen yet.
    pub fn get(&self, path: &str) -> String {
        eventually_some(TIMEOUT, || http_get(self.health.unwrap(), path).ok())
    }

    /// Waits until so many creations are in progress.
    pub fn wait_for_runs(&self, count: usize) {
        let line = format!("russet_cri_requests_under_way{{call=\"RunPodSandbox\"}} {count}");
        eventually(TIMEOUT, || self.get("/metrics").lines().any(|it| it == line));
    }

    /// Stops the server, and returns the thread that waits for it.
    pub fn request_stop(&mut self) -> Serving {
        let (stop, server) = self.server.take().unwrap();
        // A server that failed to start does not listen.
        let _ = stop.send(());
        server
    }

    pub fn stop(&mut self) {
        self.request_stop().join().unwrap().unwrap();
    }

    /// Makes a sandbox in the node's network.
    pub fn run(&self, name: &str) -> String {
        self.cri.run_config(host_pod(name)).unwrap()
    }

    pub fn ready(&self) -> Vec<String> {
        let state = Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() });
        let ready = self.cri.list(v1::PodSandboxFilter { state, ..Default::default() }).unwrap();
        ready.into_iter().map(|item| item.id).collect()
    }

    pub fn network_condition(&self) -> v1::RuntimeCondition {
        let conditions = self.cri.status().unwrap().status.unwrap().conditions;
        conditions.into_iter().find(|condition| condition.r#type == "NetworkReady").unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.engine.release();
        if let Some((stop, server)) = self.server.take() {
            let _ = stop.send(());
            let _ = server.join();
        }
    }
}

/// A pod in the node's network.
pub fn host_pod(name: &str) -> v1::PodSandboxConfig {
    let mut config = Pod::named(name).config();
    let linux = config.linux.as_mut().unwrap();
    let options = linux.security_context.as_mut().unwrap().namespace_options.as_mut().unwrap();
    options.network = v1::NamespaceMode::Node.into();
    config
}

// === impl Memory ===

impl Memory {
    /// From now on every access to a sandbox's state hangs.
    pub fn hang_lists(&self) {
        self.0.0.lock().unwrap().looks_hang = true;
    }

    /// Waits until `count` creations, removals or lists hang.
    pub fn wait_for_hanging(&self, count: usize) {
        let (inner, changed) = &*self.0;
        let missing = |inner: &mut Inner| inner.hanging < count;
        let (inner, waited) = changed.wait_timeout_while(inner.lock().unwrap(), TIMEOUT, missing).unwrap();
        assert!(!waited.timed_out(), "{} hang, and not {count}", inner.hanging);
    }

    /// Releases everything that hangs.
    pub fn release(&self) {
        let (inner, changed) = &*self.0;
        inner.lock().unwrap().release = true;
        changed.notify_all();
    }

    /// Its process dies.
    pub fn kill(&self, id: &str) {
        *self.0.0.lock().unwrap().running.get_mut(&id.parse().unwrap()).unwrap() = false;
    }

    fn hang<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        let changed = &self.0.1;
        inner.hanging += 1;
        changed.notify_all();
        inner = changed.wait_while(inner, |inner| !inner.release).unwrap();
        inner.hanging -= 1;
        inner
    }

    pub fn count(&self) -> usize {
        self.0.0.lock().unwrap().running.len()
    }
}

impl Engine for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError> {
        let mut inner = self.0.0.lock().unwrap();
        if config.hostname.starts_with("hang") {
            inner = self.hang(inner);
        }
        inner.running.insert(id.clone(), true);
        if config.hostname.starts_with("stuck") {
            inner.stuck.insert(id.clone());
        }
        // There is no namespace: requests that need one fail after this.
        let netns = (!config.host_network).then(|| dir.join("netns"));
        Ok(Made { netns, pid: None, resolv_conf: None })
    }

    fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        let mut inner = self.0.0.lock().unwrap();
        if inner.stuck.contains(id) {
            inner = self.hang(inner);
        }
        if let Some(running) = inner.running.get_mut(id) {
            *running = false;
        }
        Ok(())
    }

    fn remove(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.0.0.lock().unwrap().running.remove(id);
        Ok(())
    }

    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError> {
        let mut inner = self.0.0.lock().unwrap();
        if inner.looks_hang {
            inner = self.hang(inner);
        }
        Ok(match inner.running.get(id) {
            Some(true) => EngineState::Running { pid: None },
            Some(false) => EngineState::Stopped,
            None => EngineState::Gone,
        })
    }

    fn list(&self) -> Result<Vec<SandboxId>, EngineError> {
        Ok(self.0.0.lock().unwrap().running.keys().cloned().collect())
    }
}
