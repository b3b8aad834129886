//! Returns memory that a burst of requests, the start, or a full comparison needed to the kernel:
//! the agent of a node is idle most of the time.

use std::time::Duration;

use russet_linux::memory;

/// Checking takes microseconds, and extra mapped memory does no harm for this long.
const LOOK: Duration = Duration::from_secs(2);
/// The code pages that an idle agent uses, with the pages around them, and half as much again.
/// Unmapping more would cause page faults.
const MAPPED_MAX_BYTES: usize = 6 << 20;
/// Number of checks between two trims of the heap. A trim takes up to a millisecond; a burst of
/// pods is over by then.
const TIDY_EVERY: u32 = 5;

/// Returns free heap memory and unused code pages, and never returns itself.
pub async fn run() {
    loop {
        for _ in 0..TIDY_EVERY {
            tokio::time::sleep(LOOK).await;
            if memory::mapped_file_bytes().is_none_or(|bytes| bytes > MAPPED_MAX_BYTES) {
                memory::unmap_code();
            }
        }
        memory::trim_heap();
    }
}
