//! Spreads the first lists of agents whose machines all start at the same time, as after a power cut
//! (kubernetes.md section 4.2 item 2). Requests for pods do not wait: they read what they need.

use std::time::Duration;

use russet_store_kube::KubeStore;
use russet_sync::random;

/// A machine that runs for less than this may be one of many that have just started.
const BOOT: Duration = Duration::from_secs(600);
const PER_NODE: Duration = Duration::from_millis(2);
const MAX: Duration = Duration::from_secs(30);

/// Pauses for a random time, longer in clusters of more nodes.
pub async fn pause(kubernetes: &KubeStore) {
    if russet_linux::host::uptime() >= BOOT {
        return;
    }
    let nodes = match kubernetes.count_nodes().await {
        Ok(nodes) => nodes,
        // The watches report that the server is away.
        Err(error) => return tracing::debug!(%error, "nodes are not counted"),
    };
    let micros = u64::try_from(longest(nodes).as_micros()).unwrap_or(u64::MAX);
    let pause = Duration::from_micros(random().checked_rem(micros).unwrap_or(0));
    tracing::debug!(nodes, pause_ms = pause.as_millis() as u64, "the start is spread");
    tokio::time::sleep(pause).await;
}

fn longest(nodes: u32) -> Duration {
    PER_NODE.saturating_mul(nodes).min(MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cluster_does_not_wait_and_a_large_one_for_half_a_minute_at_most() {
        let pauses = [0, 3, 5_000, 1_000_000].map(|nodes| longest(nodes).as_millis());
        assert_eq!(pauses, [0, 6, 10_000, 30_000]);
    }
}
