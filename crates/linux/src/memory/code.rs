//! Pages of the executable and its libraries that are mapped and not used; [`super`] says for whom.

use std::ops::Range;

/// Unmaps the code and constants of the executable and its libraries, of which a start needs most and an idle daemon little. Whatever is used again the kernel
/// maps again from its cache, 16 pages at a time; what is not is the first to go when memory is short, which code that is mapped is not. Pages that somebody
/// has written into, as debuggers and probes do, stay.
pub fn unmap_code() {
    /// Called for each object, which is not unloaded meanwhile.
    unsafe extern "C" fn each(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        smaps: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the caller is `dl_iterate_phdr`, whose objects are what it says, and `smaps` is what it was given.
        let (object, smaps) = unsafe { (&*object, &*smaps.cast::<String>()) };
        for pages in untouched(smaps, &constant_segments(object)) {
            // SAFETY: these are pages of a file that stays mapped there as long as the object is loaded. Nothing of ours writes into them, so that what a page is
            // when it is mapped again is what it was.
            unsafe {
                libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED);
            }
        }
        0
    }
    let Ok(mut smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    // SAFETY: `each` takes `smaps` for what it is, and nobody else has it meanwhile.
    unsafe {
        libc::dl_iterate_phdr(Some(each), (&raw mut smaps).cast());
    }
}

/// How much of files the process has mapped and in memory; none where that cannot be told.
pub fn mapped_file_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(2)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// Where an object is mapped so that it cannot be written, not even by the loader.
fn constant_segments(object: &libc::dl_phdr_info) -> Vec<Range<usize>> {
    // SAFETY: an object has as many headers as it says.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let constant = headers.iter().filter(|it| it.p_type == libc::PT_LOAD && it.p_flags & libc::PF_W == 0);
    let page = rustix::param::page_size();
    let pages = constant.map(|it| {
        let begin = (object.dlpi_addr + it.p_vaddr) as usize;
        begin / page * page..(begin + it.p_memsz as usize).next_multiple_of(page)
    });
    pages.collect()
}

/// The mappings within `segments` that have no page of the process's own, in memory or in swap.
fn untouched(smaps: &str, segments: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(range) = mapping(line) {
            current =
                Some(range).filter(|it| segments.iter().any(|of| of.start <= it.start && it.end <= of.end));
        } else if line.strip_prefix("Anonymous:").is_some_and(|pages| pages.trim() != "0 kB") {
            current = None;
        } else if let Some(pages) = line.strip_prefix("Swap:") {
            found.extend(current.take().filter(|_| pages.trim() == "0 kB"));
        }
    }
    found
}

/// The range of a mapping's first line that says that it is of a file, private, and cannot be written.
fn mapping(line: &str) -> Option<Range<usize>> {
    let mut words = line.split(' ');
    let (begin, end) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = number(begin)?..number(end)?;
    let is_constant = words.next().is_some_and(|how| matches!(how, "r-xp" | "r--p"));
    let is_files = words.nth(2).is_some_and(|inode| inode != "0");
    (is_constant && is_files).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mappings of the code, of which one has a breakpoint; constants that were relocated, data, a library of which somebody's page is in swap, and the kernel's own.
    const SMAPS: &str = "1000-3000 r-xp 00001000 fe:00 7 /usr/bin/russet\nRss: 8 kB\nAnonymous:             0 kB\nSwap: 0 kB\nVmFlags: rd ex\n\
        3000-4000 r-xp 00003000 fe:00 7 /usr/bin/russet\nRss: 4 kB\nAnonymous:             4 kB\nSwap: 0 kB\nVmFlags: rd ex\n\
        4000-5000 r--p 00004000 fe:00 7 /usr/bin/russet\nAnonymous:             4 kB\nSwap: 0 kB\n\
        5000-6000 rw-p 00005000 fe:00 7 /usr/bin/russet\nAnonymous:             0 kB\nSwap: 0 kB\n\
        9000-a000 r-xp 00000000 fe:00 8 /lib/libc.so\nAnonymous:             0 kB\nSwap: 0 kB\n\
        a000-b000 r-xp 00001000 fe:00 8 /lib/libc.so\nAnonymous:             0 kB\nSwap: 4 kB\n\
        b000-c000 r-xp 00000000 00:00 0 [vdso]\nAnonymous:             0 kB\nSwap: 0 kB\n";

    #[test]
    fn code_that_somebody_has_written_into_stays_and_so_does_what_is_not_the_executables() {
        let code = std::slice::from_ref(&(0x1000..0x3000));
        assert_eq!(untouched(SMAPS, &[0x1000..0x4000, 0x4000..0x5000]), code);
        assert_eq!(untouched(SMAPS, &[0x1000..0x6000, 0x9000..0xc000]), [0x1000..0x3000, 0x9000..0xa000]);
        assert_eq!(untouched(SMAPS, &[]), []);
        assert_eq!(untouched("1000-zz r-xp\nAnonymous: 0 kB\nSwap: 0 kB\n", code), []);
    }

    #[test]
    fn unmapped_code_goes_and_is_there_again_when_it_is_called() {
        // No other test runs in the child, and maps what is measured.
        const CHILD: &str = "RUSSET_TEST_CODE";
        const NAME: &str = "memory::code::tests::unmapped_code_goes_and_is_there_again_when_it_is_called";
        if std::env::var_os(CHILD).is_some() {
            let before = mapped_file_bytes().unwrap();
            unmap_code();
            let after = mapped_file_bytes().unwrap();
            assert!(after + (100 << 10) < before, "{after} bytes of {before}");
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", NAME, "--test-threads", "1"]).env(CHILD, "").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
    }
}
