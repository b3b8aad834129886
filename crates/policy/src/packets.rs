//! Packets that are being judged.

use rustix::thread::{MembarrierCommand, membarrier};

/// Waits until every packet has left the hooks that was in one of them: a grace period of RCU, some 10 ms. A virtual processor
/// may stand still that long in the middle of a packet, so the order of two commits is not enough. False where the kernel
/// cannot tell (no `membarrier`, or `nohz_full`).
pub(crate) fn wait_until_judged() -> bool {
    membarrier(MembarrierCommand::Global).is_ok()
}
