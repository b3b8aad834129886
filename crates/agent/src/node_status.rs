//! What the agent reports to Kubernetes once pods of this node can start: the conflist for the runtime, the condition `NetworkUnavailable`, by which the
//! scheduler knows that the network works, and the annotation by which the controller removes the taint `russet.dev/agent-not-ready`
//! (kubernetes.md section 5.3).
//!
//! An agent that stops changes none of them: the data path keeps working.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use russet_addr::NodeName;
use russet_kube::{Client, Condition, KubeError, Kubernetes as _, Node, ObjectEvent, StatusPatch};
use russet_model::time;
use russet_sync::Backoff;
use tokio::time::Instant;

use crate::config::Config;
use crate::conflists::Conflists;
use crate::health::Readiness;

/// Keeps them.
pub struct NodeStatus {
    client: Client,
    node: NodeName,
    readiness: Readiness,
    /// The runtime's directory of configurations.
    directory: PathBuf,
    /// The conflist to install there.
    conflist: Option<PathBuf>,
    /// The plugin that a conflist has to name.
    plugin: &'static str,
    /// The value of the annotation.
    ready: String,
}

const CONDITION: &str = "NetworkUnavailable";
const REASON: &str = "RussetIsUp";
const MESSAGE: &str = "Russet is running on this node";
/// `<version of the agent>/<boot ID>`.
pub const READY: &str = "russet.dev/ready";
/// Interval of looking whether pods can start, which nothing announces.
const LOOK: Duration = Duration::from_millis(250);
/// The least time between two patches: another writer may change the condition again and again.
const PATCH_PAUSE: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A larger file is no conflist.
const CONFLIST_MAX_BYTES: u64 = 1 << 20;

// === impl NodeStatus ===

impl NodeStatus {
    pub fn new(client: Client, config: &Config, readiness: &Readiness, boot: &str) -> Self {
        Self {
            client,
            node: config.node_name.clone(),
            readiness: readiness.clone(),
            directory: config.paths.conflist_dir(),
            conflist: config.conflist.clone(),
            plugin: if config.calico { "calico" } else { "russet" },
            ready: format!("{}/{}", env!("CARGO_PKG_VERSION"), boot.trim()),
        }
    }

    /// Never returns.
    pub async fn run(self) {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        while let Err(reason) = self.stands() {
            if self.readiness.remark("conflist", reason.clone()) {
                tracing::info!(reason, "the node is not announced as ready yet");
            }
            tokio::time::sleep(LOOK).await;
        }
        self.readiness.remark("conflist", self.hidden());
        self.keep(&mut backoff).await;
    }

    /// Whether pods can start: everything that they need is there, and the conflist, which is written
    /// last. The reason is only given where the conflist is missing; readiness has the others.
    fn stands(&self) -> Result<(), Option<String>> {
        if self.readiness.not_ready(false).is_some() {
            return Err(None);
        }
        if let Some(source) = &self.conflist {
            install(source, &self.directory).map_err(Some)?;
        }
        match has_conflist(&self.directory, self.plugin) {
            true => Ok(()),
            false => Err(Some(format!("no conflist in {} names {}", self.directory.display(), self.plugin))),
        }
    }

    /// Why the runtime does not use our conflist although it is there; logged once.
    fn hidden(&self) -> Option<String> {
        let conflists = Conflists::read(&self.directory).ok()?;
        let (first, ours) = conflists.hidden(self.plugin)?;
        let reason = format!(
            "{} in {} comes before {}: the runtime uses the first one, and pods get its network {:?}; remove it, or rename it so that it comes later",
            first.file,
            self.directory.display(),
            ours.file,
            first.network
        );
        tracing::warn!(reason, "the node's pods do not get Russet's network");
        Some(reason)
    }

    /// Compares at each event of the Node, and patches where something is missing.
    async fn keep(&self, backoff: &mut Backoff) {
        let mut watch = self.client.watch_node(self.node.as_str());
        let (mut seen, mut next): (Option<Node>, _) = (None, Instant::now());
        loop {
            let stale = seen.as_ref().filter(|node| !self.is_published(node));
            if let Some(node) = stale.filter(|_| Instant::now() >= next) {
                match self.publish(node).await {
                    Ok(patched) => {
                        tracing::info!(condition = CONDITION, "the node is announced as ready");
                        backoff.reset();
                        (seen, next) = (Some(patched), Instant::now() + PATCH_PAUSE);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the node cannot be announced as ready");
                        next = Instant::now() + backoff.pause();
                    }
                }
                continue;
            }
            // Without an end where nothing is to be done.
            let due = async {
                match stale {
                    Some(_) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = watch.advance() => match event {
                    Ok(ObjectEvent::Snapshot(mut nodes)) => seen = nodes.pop(),
                    Ok(ObjectEvent::Changed(node)) => seen = Some(node),
                    Ok(ObjectEvent::Deleted(_)) => seen = None,
                    Err(error) => {
                        tracing::debug!(%error, "the watch of the node failed");
                        tokio::time::sleep(backoff.pause()).await;
                    }
                },
                () = due => {}
            }
        }
    }

    fn is_published(&self, node: &Node) -> bool {
        let holds = |condition: &Condition| condition.status == "False" && condition.reason == REASON;
        condition(node).is_some_and(holds) && node.metadata.annotations.get(READY) == Some(&self.ready)
    }

    async fn publish(&self, node: &Node) -> Result<Node, KubeError> {
        let now = time::rfc3339(SystemTime::now());
        let changed = condition(node).is_none_or(|condition| condition.status != "False");
        let condition = Condition {
            kind: CONDITION.to_owned(),
            status: "False".to_owned(),
            reason: REASON.to_owned(),
            message: MESSAGE.to_owned(),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: changed.then_some(now),
        };
        let patch = StatusPatch {
            conditions: vec![condition],
            ..StatusPatch::of_annotations([(READY, &self.ready)]).with_uid(&node.metadata.uid)
        };
        self.client.patch_node_status(self.node.as_str(), &patch).await
    }
}

fn condition(node: &Node) -> Option<&Condition> {
    node.status.conditions.iter().find(|condition| condition.kind == CONDITION)
}

/// Copies the conflist to the runtime, under its own name, unless it is there already.
fn install(source: &Path, directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", source.display());
    let text = std::fs::read(source).map_err(failed)?;
    let name = source.file_name().ok_or_else(|| format!("{} is no file", source.display()))?;
    let target = directory.join(name);
    if std::fs::read(&target).is_ok_and(|found| found == text) {
        return Ok(());
    }
    // If the directory cannot be made, the write reports it.
    let _ = std::fs::create_dir_all(directory);
    // Renamed within the directory: containerd notices nothing else, and reads no half file.
    russet_linux::file::write_atomic(&target, &text).map_err(|error| error.to_string())?;
    tracing::info!(conflist = %target.display(), "conflist installed");
    Ok(())
}

/// Whether the runtime has a configuration of the plugin.
fn has_conflist(directory: &Path, plugin: &str) -> bool {
    let named = format!("\"{plugin}\"");
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let lists =
        files.filter(|file| file.path().extension().is_some_and(|end| end == "conflist" || end == "conf"));
    let small = lists.filter(|file| file.metadata().is_ok_and(|file| file.len() <= CONFLIST_MAX_BYTES));
    small.filter_map(|file| std::fs::read_to_string(file.path()).ok()).any(|text| text.contains(&named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conflist_is_installed_under_its_name_and_left_alone_when_it_is_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let (source, net) = (directory.path().join("10-russet.conflist"), directory.path().join("net.d"));
        assert!(install(&source, &net).unwrap_err().contains("10-russet.conflist"));
        std::fs::write(&source, r#"{"plugins":[{"type":"russet"}]}"#).unwrap();
        assert!(!has_conflist(&net, "russet"));
        install(&source, &net).unwrap();
        let target = net.join("10-russet.conflist");
        assert!(has_conflist(&net, "russet") && !has_conflist(&net, "calico"));
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        let first = inode(&target);
        install(&source, &net).unwrap();
        assert_eq!(inode(&target), first, "kubernetes.md K91");
    }
}
