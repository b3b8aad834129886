//! The container of a sandbox: its creation, with conflicts of its name (cni-runtime.md section
//! 3.1), the search by its labels, and its removal.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use russet_containerd::{Any, CallError, Client, Container, Image, TaskStatus};

use super::spec;
use crate::fault::step;
use crate::{Config, SandboxId};

/// A container to be made.
pub(super) struct ContainerRequest<'a> {
    pub(super) id: &'a SandboxId,
    pub(super) config: &'a Config,
    /// The engine's run directory.
    pub(super) run: &'a Path,
    pub(super) image: Image,
    pub(super) snapshotter: &'a str,
    pub(super) spec: Any,
}

/// A container could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContainerError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the name {0} is that of another container, which runs")]
    Taken(String),
    #[error("all names that were tried are taken, the last one is {0}")]
    AllTaken(String),
    #[error("write down its process: {0}")]
    Record(#[source] io::Error),
}

type Done<T> = Result<T, ContainerError>;

/// The label with the sandbox's ID.
const SANDBOX: &str = "net.russet.sandbox";
const RUN_DIR: &str = "net.russet.run-dir";
/// Conflicting containers are removed; if there are more than this, another program keeps making
/// them.
const NAMES_MAX: usize = 4;
/// How long a call whose caller has died may still have effects: a shim and a container take a
/// tenth of a second, and more on a busy machine.
const UNDER_WAY_LIMIT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Makes and starts it; returns its process, after `settle` was called with it, before it executes
/// anything.
pub(super) async fn run(
    client: &Client,
    wish: &ContainerRequest<'_>,
    settle: impl FnOnce(u32) -> io::Result<()>,
) -> Done<u32> {
    let name = record(client, wish).await?;
    step();
    let started = start(client, wish, &name, settle).await;
    match &started {
        // containerd has answered, so no effects can follow.
        Err(ContainerError::Call(error)) if error.is_answered() => {
            let _ = end_one(client, &name, wish.snapshotter).await;
        }
        _ => {}
    }
    started
}

async fn start(
    client: &Client,
    wish: &ContainerRequest<'_>,
    name: &str,
    settle: impl FnOnce(u32) -> io::Result<()>,
) -> Done<u32> {
    let rootfs = file_system(client, wish, name).await?;
    step();
    let pid = client.create_task(name, rootfs).await?;
    step();
    settle(pid).map_err(ContainerError::Record)?;
    step();
    client.start_task(name).await?;
    step();
    Ok(pid)
}

/// Makes its record, under the sandbox's ID. A stale one of that name is removed; one that
/// conflicts and cannot be found is avoided by a random suffix.
async fn record(client: &Client, wish: &ContainerRequest<'_>) -> Done<String> {
    let mut name = wish.id.to_string();
    for _ in 0..NAMES_MAX {
        match client.create_container(wish.container(&name)).await {
            Err(error) if error.is_already_there() => {}
            made => return Ok(made.map(|()| name)?),
        }
        let is_removed = remove_stale(client, &name, wish.snapshotter).await?;
        tracing::warn!(container = name, is_removed, "the name of a sandbox's container was taken");
        if !is_removed {
            name = format!("{}-{}", wish.id, suffix());
        }
    }
    Err(ContainerError::AllTaken(name))
}

/// Returns false if there is none.
async fn remove_stale(client: &Client, name: &str, snapshotter: &str) -> Done<bool> {
    match client.task(name).await? {
        None | Some(TaskStatus::Stopped) => {}
        Some(_) => return Err(ContainerError::Taken(name.to_owned())),
    }
    client.end_task(name).await?;
    let is_removed = client.delete_container(name).await?;
    if is_removed {
        client.remove_snapshot(snapshotter, name).await?;
    }
    Ok(is_removed)
}

/// The container's own file system, over that of the image. An existing one of that name has lost
/// its container.
async fn file_system(
    client: &Client,
    wish: &ContainerRequest<'_>,
    name: &str,
) -> Done<Vec<russet_containerd::Mount>> {
    match client.prepare_snapshot(wish.snapshotter, name, &wish.image.snapshot).await {
        Err(error) if error.is_already_there() => {
            client.remove_snapshot(wish.snapshotter, name).await?;
            Ok(client.prepare_snapshot(wish.snapshotter, name, &wish.image.snapshot).await?)
        }
        prepared => Ok(prepared?),
    }
}

/// Removes all containers of a sandbox; tries every one. The record is removed last: the other
/// parts are found by it.
///
/// Returns false if the name belongs to a foreign container, whose processes must not be touched.
/// `unsettled` are those whose maker died: containerd may still work on them, and would continue
/// without a record.
pub(super) async fn end(
    client: &Client,
    id: &SandboxId,
    run: &Path,
    snapshotter: &str,
    unsettled: bool,
) -> Done<bool> {
    let filter = format!("labels.{SANDBOX:?}=={id}");
    let mut first = Ok(());
    for container in client.containers(&filter).await?.iter().filter(|it| is_of(it, run)) {
        if unsettled {
            await_task(client, &container.id).await?;
        }
        let ended = end_one(client, &container.id, snapshotter).await;
        first = first.and(ended);
    }
    first?;
    Ok(client.container(id.as_str()).await?.is_none())
}

/// Waits until there is a task, or none can appear any more.
async fn await_task(client: &Client, name: &str) -> Done<()> {
    let coming = async {
        while client.task(name).await?.is_none() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok::<(), CallError>(())
    };
    match tokio::time::timeout(UNDER_WAY_LIMIT, coming).await {
        Ok(came) => Ok(came?),
        Err(_) => Ok(()),
    }
}

async fn end_one(client: &Client, name: &str, snapshotter: &str) -> Done<()> {
    client.end_task(name).await?;
    step();
    client.remove_snapshot(snapshotter, name).await?;
    step();
    client.delete_container(name).await?;
    Ok(())
}

/// Every sandbox of a run directory that has a container.
pub(super) async fn all(client: &Client, run: &Path) -> Done<Vec<SandboxId>> {
    let containers = client.containers(&format!("labels.{SANDBOX:?}")).await?;
    let ours = containers.iter().filter(|container| is_of(container, run));
    Ok(ours.filter_map(|container| container.labels.get(SANDBOX)?.parse().ok()).collect())
}

/// Several servers may share a namespace of containerd, each with a run directory of its own.
fn is_of(container: &Container, run: &Path) -> bool {
    container.labels.get(RUN_DIR).is_some_and(|label| Path::new(label) == run)
}

fn suffix() -> String {
    let bytes: [u8; 4] = russet_linux::random::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// === impl ContainerRequest ===

impl ContainerRequest<'_> {
    fn container(&self, name: &str) -> Container {
        let metadata = &self.config.metadata;
        let labels = [
            (SANDBOX, self.id.to_string()),
            (RUN_DIR, self.run.display().to_string()),
            // The usual labels of other runtimes, for people.
            ("io.kubernetes.pod.name", metadata.name.clone()),
            ("io.kubernetes.pod.namespace", metadata.namespace.clone()),
            ("io.kubernetes.pod.uid", metadata.uid.clone()),
        ];
        Container {
            id: name.to_owned(),
            labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<HashMap<_, _>>(),
            image: self.image.name.clone(),
            runtime: Some(spec::runtime(self.config)),
            spec: Some(self.spec.clone()),
            snapshotter: self.snapshotter.to_owned(),
            snapshot_key: name.to_owned(),
        }
    }
}
