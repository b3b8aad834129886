//! The process's own memory: how many parts the C library makes its heap of, what it keeps of what was freed, and which pages of the program's code stay
//! mapped. For daemons that run on every node, most of the time without work; the command and the agent call this. A C library that has neither several heaps
//! nor free pages between (musl) is left as it is.

mod code;

pub use code::{mapped_file_bytes, unmap_code};

/// The C library makes a heap for each thread that finds the others taken, up to eight a processor, and what is free in one is of no use to another. Threads
/// that block most of the time do well with one besides the first thread's. To be called before there are threads.
pub fn few_heaps() {
    /// The first thread's, and one for all others.
    const HEAPS_MAX: libc::c_int = 2;
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator's own, under its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = HEAPS_MAX;
}

/// Gives the kernel the pages in which nothing is allocated, wherever they lie; by itself the C library gives back only what is at a heap's end. Takes about as
/// long as the kernel takes to unmap them: a millisecond for some megabytes.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's locks, and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use super::*;

    /// Kilobytes of this process that no file is behind.
    fn anonymous_kb() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_is_freed_below_something_that_stays_goes_back() {
        const BLOCKS: usize = 4096;
        const BLOCK_BYTES: usize = 8192;
        let blocks: Vec<Vec<u8>> =
            (0..BLOCKS).map(|n| vec![u8::try_from(n % 255).unwrap(); BLOCK_BYTES]).collect();
        let stays = vec![1_u8; BLOCK_BYTES];
        let full = anonymous_kb();
        drop(blocks);
        give_back();
        let freed = full.saturating_sub(anonymous_kb());
        assert!(freed > BLOCKS * BLOCK_BYTES / 1024 / 2, "{freed} kB of {full}");
        assert_eq!(stays[BLOCK_BYTES - 1], 1);
    }

    /// How many heaps there are besides the first: each begins at a multiple of 64 MiB.
    fn more_heaps() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = maps.lines().filter(|line| line.contains(" rw-p ") && line.trim_end().ends_with(" 0"));
        let begins = begins.filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
        begins.filter(|begin| begin % (64 << 20) == 0).count()
    }

    /// Heaps that eight threads make which all allocate at a time.
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
                few_heaps();
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
