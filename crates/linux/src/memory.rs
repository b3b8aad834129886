//! The memory of this process: how many heaps the C library uses, when it returns freed memory, and
//! which pages of code stay mapped. For daemons that run on every node and are idle most of the
//! time; the command and the agent call this. Has no effect with a C library without arenas and
//! trimming (musl).

mod code;

pub use code::{mapped_file_bytes, unmap_code};

/// Limits the number of heaps. The C library makes a heap for each thread that finds the others in
/// use, up to eight per processor, and free memory of one heap cannot be used by another. Threads
/// that block most of the time need only one besides the first thread's. Must be called before
/// threads are started.
pub fn limit_heaps() {
    /// The first thread's heap, and one for all other threads.
    const HEAPS_MAX: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a parameter of the allocator, under the allocator's lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = HEAPS_MAX;
}

/// Returns pages without allocations to the kernel, wherever they are in the heap; without this
/// call the C library returns only the end of a heap. Takes about as long as the unmapping: a
/// millisecond for several megabytes.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's locks, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    /// Anonymous resident memory of this process, in kilobytes.
    fn anonymous_kb() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn memory_below_a_live_block_is_returned_to_the_kernel() {
        const BLOCKS: usize = 4096;
        const BLOCK_BYTES: usize = 8192;
        let blocks: Vec<Vec<u8>> =
            (0..BLOCKS).map(|n| vec![u8::try_from(n % 255).unwrap(); BLOCK_BYTES]).collect();
        let stays = vec![1_u8; BLOCK_BYTES];
        let full = anonymous_kb();
        drop(blocks);
        trim_heap();
        let freed = full.saturating_sub(anonymous_kb());
        assert!(freed > BLOCKS * BLOCK_BYTES / 1024 / 2, "{freed} kB of {full}");
        assert_eq!(stays[BLOCK_BYTES - 1], 1);
    }

    /// The number of heaps besides the first: each begins at a multiple of 64 MiB.
    fn more_heaps() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = maps.lines().filter(|line| line.contains(" rw-p ") && line.trim_end().ends_with(" 0"));
        let begins = begins.filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
        begins.filter(|begin| begin % (64 << 20) == 0).count()
    }

    /// The number of additional heaps after eight threads have allocated at the same time.
    fn heaps_of_eight_threads() -> usize {
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mine = vec![1_u8; 2000];
                    together.wait();
                    drop(mine);
                });
            }
        });
        more_heaps()
    }

    #[test]
    fn all_threads_but_the_first_share_a_heap() {
        const CHILD: &str = "RUSSET_TEST_HEAPS";
        match std::env::var(CHILD).as_deref() {
            Ok("few") => {
                limit_heaps();
                assert_eq!(heaps_of_eight_threads(), 1);
            }
            Ok(_) => assert!(heaps_of_eight_threads() > 1, "the other case proves something"),
            Err(_) => {
                for case in ["few", "many"] {
                    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
                    child.args(["--exact", "memory::tests::all_threads_but_the_first_share_a_heap"]);
                    let output = child.args(["--test-threads", "1"]).env(CHILD, case).output().unwrap();
                    assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stdout));
                }
            }
        }
    }
}
