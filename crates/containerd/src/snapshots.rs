//! File systems of images and containers.

use crate::api::Descriptor;
use crate::api::diff::v1::ApplyRequest;
use crate::api::diff::v1::diff_client::DiffClient;
use crate::api::snapshots::v1::snapshots_client::SnapshotsClient;
use crate::api::snapshots::v1::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use crate::client::{QUICK, SLOW, UNPACK, answer, found};
use crate::{CallError, Client, Mount};

type Answer<T> = Result<T, CallError>;

// === impl Client ===

impl Client {
    /// A new file system over that of `parent` (empty for none); returns its mounts.
    pub async fn prepare_snapshot(&self, snapshotter: &str, key: &str, parent: &str) -> Answer<Vec<Mount>> {
        let [snapshotter, parent] = [snapshotter, parent].map(str::to_owned);
        let request = self.request(PrepareSnapshotRequest { snapshotter, key: key.to_owned(), parent });
        let prepared = answer("prepare snapshot", key, SLOW, self.snapshots().prepare(request)).await?;
        Ok(prepared.mounts)
    }

    /// Deletes a file system; returns false if there was none.
    pub async fn remove_snapshot(&self, snapshotter: &str, key: &str) -> Answer<bool> {
        let snapshotter = snapshotter.to_owned();
        let request = self.request(RemoveSnapshotRequest { snapshotter, key: key.to_owned() });
        let removed = answer("remove snapshot", key, SLOW, self.snapshots().remove(request)).await;
        Ok(found(removed)?.is_some())
    }

    pub(crate) async fn has_snapshot(&self, snapshotter: &str, key: &str) -> Answer<bool> {
        let snapshotter = snapshotter.to_owned();
        let request = self.request(StatSnapshotRequest { snapshotter, key: key.to_owned() });
        let stat = answer("look for snapshot", key, QUICK, self.snapshots().stat(request)).await;
        Ok(found(stat)?.is_some())
    }

    /// Commits what was prepared under `key` as `name`, the parent of others.
    pub(crate) async fn commit_snapshot(&self, snapshotter: &str, key: &str, name: &str) -> Answer<()> {
        let message = CommitSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        };
        let request = self.request(message);
        answer("commit snapshot", name, SLOW, self.snapshots().commit(request)).await.map(drop)
    }

    /// Unpacks a layer of the content store; returns the digest of its uncompressed archive.
    pub(crate) async fn apply(&self, layer: Descriptor, mounts: Vec<Mount>) -> Answer<String> {
        let digest = layer.digest.clone();
        let request = self.request(ApplyRequest { diff: Some(layer), mounts });
        let mut service = DiffClient::new(self.channel.clone());
        let applied = answer("unpack layer", &digest, UNPACK, service.apply(request)).await?;
        Ok(applied.applied.map(|applied| applied.digest).unwrap_or_default())
    }

    fn snapshots(&self) -> SnapshotsClient<tonic::transport::Channel> {
        SnapshotsClient::new(self.channel.clone())
    }
}
