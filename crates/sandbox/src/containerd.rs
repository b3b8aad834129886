//! The engine of containerd: the process that holds a sandbox is a container of containerd, made
//! from an image. Everything else of a sandbox is as with the built-in engine and at the same
//! paths: its network namespace, its `/dev/shm`, the record of its process.
//!
//! | where | what |
//! |---|---|
//! | `RUN/engine/ID/`, `RUN/netns/ID` | as in `builtin.rs`; made first and removed last |
//! | a container `ID` of containerd | made before its file system and its task, which are found by
//! it after a death |
//!
//! Containers survive a reboot, and `RUN` does not: they have the sandbox's ID and `RUN` as labels.

mod container;
mod seccomp;
mod shim;
mod spec;

use std::path::{Path, PathBuf};
use std::time::Duration;

use russet_containerd::{Client, Image, Keyring, Reference, ensure, find};
use russet_linux::namespaces::{self, NamespaceKinds};
use russet_linux::{NetNs, sysctl};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::builtin::{END_TIMEOUT, Record, failed, ipc, shm};
use crate::fault::step;
use crate::{Builtin, Config, Engine, EngineError, EngineState, Made, SandboxId, sysctls};

use container::ContainerRequest;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The containerd to use, and the image.
#[derive(Debug, Clone)]
pub struct ContainerdOptions {
    /// Its socket: `/run/containerd/containerd.sock`.
    pub socket: PathBuf,
    /// The namespace of containerd for containers and images.
    pub namespace: String,
    /// The snapshotter, which makes file systems: `overlayfs`.
    pub snapshotter: String,
    /// The image of the process that holds a sandbox; pulled if it is missing.
    pub image: Reference,
    /// Files that may contain credentials for the image's registry.
    pub credentials: Vec<PathBuf>,
}

/// The engine. It keeps only the lock of the current pull in memory.
#[derive(Debug)]
pub struct Containerd {
    builtin: Builtin,
    run: PathBuf,
    options: ContainerdOptions,
    /// One pull of the image at a time; a second caller finds the image. A check without a pull
    /// does not wait for this.
    pulling: Mutex<()>,
}

/// The longest pull, and the longest wait for another caller's pull. kubelet gives up after 4
/// minutes, and its next attempt finds the result of this one.
const IMAGE_LIMIT: Duration = Duration::from_secs(10 * 60);
/// How often a caller that waits for a hanging pull checks whether the image was imported
/// otherwise, for example by `ctr images import`.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

// === impl Containerd ===

impl Containerd {
    /// The engine of a run directory, which a reboot clears.
    pub fn new(run: impl Into<PathBuf>, options: ContainerdOptions) -> Self {
        let run = run.into();
        Self { builtin: Builtin::new(&run), run, options, pulling: Mutex::default() }
    }

    /// Returns the image, ready to use. Checks its presence each time: other programs may remove
    /// it.
    fn image(&self) -> Result<Image, EngineError> {
        let ContainerdOptions { image, snapshotter, credentials, .. } = &self.options;
        let look = async |client: Client| {
            let ready = async {
                loop {
                    if let Some(found) = find(&client, image, snapshotter).await? {
                        return Ok(found);
                    }
                    if let Ok(_turn) = timeout(LOOK_AGAIN, self.pulling.lock()).await {
                        return ensure(&client, image, snapshotter, || Keyring::read(credentials)).await;
                    }
                }
            };
            let late = |_| format!("image {image} is not there after {} s", IMAGE_LIMIT.as_secs());
            Ok(timeout(IMAGE_LIMIT, ready).await.map_err(late)??)
        };
        self.with(look).map_err(|source| EngineError::new("get the image of", "sandboxes", source))
    }

    /// Calls containerd over a new connection: none can become stale, and no thread besides the
    /// caller's is needed.
    fn with<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T, Cause>) -> Result<T, Cause> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = Client::connect(&self.options.socket, &self.options.namespace).await?;
            work(client).await
        })
    }

    fn make(&self, id: &SandboxId, config: &Config, files: &Path, image: Image) -> Result<Made, EngineError> {
        let sysctls = sysctls::plan(config).map_err(|error| failed("check sysctls of", id, error))?;
        let dir = self.builtin.dir(id);
        let (of_network, of_ipc): (Vec<_>, Vec<_>) =
            sysctls.into_iter().partition(|(path, _)| path.starts_with("net/"));
        step();
        if !config.host_ipc {
            shm::mount(&dir).map_err(|error| failed("mount /dev/shm of", id, error))?;
        }
        step();
        let netns = match config.host_network {
            true => None,
            false => Some(self.make_netns(id, &of_network)?),
        };
        step();
        let shm = (!config.host_ipc).then(|| shm::path(&dir));
        let places = spec::SandboxPaths { netns: netns.as_deref(), shm: shm.as_deref(), files };
        let wish = ContainerRequest {
            id,
            config,
            run: &self.run,
            spec: spec::spec(id, config, &image.process, &places, &of_ipc),
            image,
            snapshotter: &self.options.snapshotter,
        };
        let kinds = NamespaceKinds {
            network: !config.host_network,
            ipc: !config.host_ipc,
            uts: !config.host_network,
        };
        let settle = |pid: u32| {
            if kinds.ipc && !kinds.network {
                ipc::mount(&dir, &pid.to_string())?;
            }
            Record::for_process(pid, kinds)?.write(&dir)
        };
        let run = async |client: Client| Ok(container::run(&client, &wish, settle).await?);
        let pid = self.with(run).map_err(|error| failed("start the container of", id, error))?;
        crate::builtin::protect(pid);
        Ok(Made { netns, pid: Some(pid), resolv_conf: None })
    }

    /// Before the container, which gets the namespace's path; sysctls of the network belong to this
    /// namespace.
    fn make_netns(&self, id: &SandboxId, sysctls: &[(String, String)]) -> Result<PathBuf, EngineError> {
        let dir = self.builtin.netns_dir();
        let inside = || {
            for (name, value) in sysctls {
                sysctl::write(name, value).map_err(|error| failed("set up", id, error))?;
            }
            let named = NetNs::name_current_in(&dir, id.as_str());
            named.map(drop).map_err(|error| failed("mount the network namespace of", id, error))
        };
        let kinds = NamespaceKinds { network: true, ..NamespaceKinds::default() };
        let made = namespaces::in_new(kinds, || Ok(inside()));
        made.map_err(|error| failed("make namespaces of", id, error))??;
        Ok(self.builtin.netns(id))
    }

    /// The container is removed with its process: nothing else needs it afterwards.
    fn take_down(&self, id: &SandboxId) -> Result<(), EngineError> {
        let dir = self.builtin.dir(id);
        let record = Record::read(&dir).map_err(|error| failed("read the record of", id, error))?;
        let unsettled = dir.exists() && record.is_none();
        self.builtin.take_down_by(id, |holder| {
            step();
            let snapshotter = &self.options.snapshotter;
            let end = async |client: Client| {
                Ok(container::end(&client, id, &self.run, snapshotter, unsettled).await?)
            };
            let ended = self.with(end).map_err(|error| failed("end the container of", id, error));
            step();
            // Without containerd at least its process ends.
            let killed = holder.map_or(Ok(()), |process| process.end(END_TIMEOUT));
            let killed = killed.map_err(|error| failed("end the process of", id, error));
            let is_free = ended.as_ref().is_ok_and(|is_free| *is_free);
            let swept = if is_free { shim::end(id) } else { Ok(()) };
            ended.map(drop).and(killed).and(swept.map_err(|error| failed("end a shim of", id, error)))
        })
    }
}

impl Engine for Containerd {
    fn name(&self) -> &'static str {
        "containerd"
    }

    fn create(&self, id: &SandboxId, config: &Config, dir: &Path) -> Result<Made, EngineError> {
        // Before anything exists.
        let image = self.image()?;
        self.builtin.make_dir(id)?;
        let made = self.make(id, config, dir, image);
        if made.is_err() {
            // The first error is the cause; `list` finds what this leaves.
            let _ = self.remove(id);
        }
        made
    }

    fn stop(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.take_down(id)
    }

    fn remove(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.take_down(id)?;
        step();
        self.builtin.remove_dir(id)
    }

    /// The state of its process: containerd is not needed, and the sandboxes survive its death.
    fn state(&self, id: &SandboxId) -> Result<EngineState, EngineError> {
        self.builtin.state(id)
    }

    fn list(&self) -> Result<Vec<SandboxId>, EngineError> {
        let mut ids = self.builtin.list()?;
        let look = async |client: Client| Ok(container::all(&client, &self.run).await?);
        let listed = self.with(look).map_err(|error| EngineError::new("list", "containers", error))?;
        ids.extend(listed);
        ids.sort();
        ids.dedup();
        Ok(ids)
    }
}

#[cfg(test)]
mod tests;
