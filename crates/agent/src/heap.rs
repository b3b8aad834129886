//! What a burst of requests, the start, or the regular look at everything needed of memory goes back to the kernel: a node's agent has nothing to do most of the
//! time.

use std::time::Duration;

use russet_linux::memory;

/// Nobody notices how much is mapped for so long, and to look takes microseconds.
const LOOK: Duration = Duration::from_secs(2);
/// What an idle agent uses of its code, with the pages around it, and half as much again. Less is not worth mapping it again.
const MAPPED_MAX_BYTES: usize = 6 << 20;
/// Looks until the heap is tidied, which takes up to a millisecond. A burst of pods is over by then.
const TIDY_EVERY: u32 = 5;

/// Gives back what is free, and code that is not in use, for ever.
pub async fn run() {
    loop {
        for _ in 0..TIDY_EVERY {
            tokio::time::sleep(LOOK).await;
            if memory::mapped_file_bytes().is_none_or(|bytes| bytes > MAPPED_MAX_BYTES) {
                memory::unmap_code();
            }
        }
        memory::give_back();
    }
}
