//! Packets that are being judged.

use rustix::thread::{MembarrierCommand, membarrier};

/// Waits until every packet has left the hooks that was in one of them: a grace period of RCU, some 10 ms. A virtual processor
/// may stand still that long in the middle of a packet, so the order of two commits is not enough. Where the kernel refuses
/// (no `membarrier`, or `nohz_full`) there is nothing better than that order.
pub(crate) fn wait_until_judged() {
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        tracing::debug!(%error, "packets in progress are not waited for");
    }
}
