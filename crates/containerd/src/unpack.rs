//! Unpacks the layers of an image into snapshots, one over the other, each named by its layer and
//! all below it (the OCI image specification's chain IDs).

use crate::image::{Parts, digest_of};
use crate::pull::{leased, random};
use crate::{CallError, Client};

const REFERS: &str = "containerd.io/gc.ref.snapshot";

/// The name of the highest snapshot.
pub(crate) fn top(parts: &Parts) -> String {
    chain(&parts.diff_ids).pop().unwrap_or_default()
}

/// Makes missing snapshots; returns the name of the highest.
pub(crate) async fn unpack(client: &Client, snapshotter: &str, parts: &Parts) -> Result<String, CallError> {
    let top = top(parts);
    if !client.has_snapshot(snapshotter, &top).await? {
        leased(client, async |client: Client, _| {
            let mut parent = String::new();
            for (at, name) in chain(&parts.diff_ids).iter().enumerate() {
                if !client.has_snapshot(snapshotter, name).await? {
                    layer(&client, snapshotter, parts, at, &parent, name).await?;
                }
                parent.clone_from(name);
            }
            // The snapshots exist as long as the image does.
            client.label_blob(&parts.config_digest, format!("{REFERS}.{snapshotter}"), &top).await
        })
        .await?;
    }
    Ok(top)
}

async fn layer(
    client: &Client,
    snapshotter: &str,
    parts: &Parts,
    at: usize,
    parent: &str,
    name: &str,
) -> Result<(), CallError> {
    let (Some(layer), Some(diff_id)) = (parts.layers.get(at), parts.diff_ids.get(at)) else { return Ok(()) };
    let key = format!("russet-{} {name}", random());
    let mounts = client.prepare_snapshot(snapshotter, &key, parent).await?;
    let made = async {
        let unpacked = client.apply(layer.clone(), mounts).await?;
        if unpacked != *diff_id {
            return Err(CallError::Answer {
                operation: "unpack layer",
                subject: layer.digest.clone(),
                reason: format!("it holds {unpacked}, and the image says {diff_id}"),
            });
        }
        client.commit_snapshot(snapshotter, &key, name).await
    };
    match made.await {
        Ok(()) => Ok(()),
        Err(error) => {
            // The first error is the cause; leftovers are collected with the lease.
            let _ = client.remove_snapshot(snapshotter, &key).await;
            // Another client has unpacked the same layer.
            if error.is_already_there() { Ok(()) } else { Err(error) }
        }
    }
}

fn chain(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let name = match chain.last() {
            None => diff_id.clone(),
            Some(below) => digest_of(format!("{below} {diff_id}").as_bytes()),
        };
        chain.push(name);
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshots_name_is_made_of_all_layers_below() {
        // The OCI image specification, config.md, "Layer ChainID"; the digest is sha256sum's of "sha256:a sha256:b"
        let ids = ["sha256:a".to_owned(), "sha256:b".to_owned()];
        let second =
            russet_testkit::run("sh", &["-c", "printf 'sha256:a sha256:b' | sha256sum | cut -d' ' -f1"]);
        assert_eq!(chain(&ids), ["sha256:a".to_owned(), format!("sha256:{}", second.trim())]);
    }
}
