//! Unmaps unused pages of the executable and its libraries; [`super`] says for which programs.

use std::ops::Range;

/// Unmaps code and constants of the executable and its libraries, most of which are needed only
/// during the start. The kernel maps pages that are used again from its page cache, 16 pages at a
/// time; unmapped pages are reclaimed first when memory is short, while mapped code is not.
/// Modified pages, as debuggers and probes make them, stay.
pub fn unmap_code() {
    /// Called for each loaded object; the object cannot be unloaded meanwhile.
    unsafe extern "C" fn each(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        smaps: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: `dl_iterate_phdr` passes valid objects, and `smaps` is the pointer that it was
        // given below.
        let (object, smaps) = unsafe { (&*object, &*smaps.cast::<String>()) };
        for pages in untouched(smaps, &constant_segments(object)) {
            // SAFETY: these are pages of a file that stays mapped there as long as the object is
            // loaded. They are never written, so their contents are the same when they are mapped
            // again.
            unsafe {
                libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED);
            }
        }
        0
    }
    let Ok(mut smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    // SAFETY: `each` casts `smaps` back to its type, and there is no other reference to it
    // meanwhile.
    unsafe {
        libc::dl_iterate_phdr(Some(each), (&raw mut smaps).cast());
    }
}

/// Resident memory that is mapped from files, in bytes; `None` if it cannot be read.
pub fn mapped_file_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(2)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// The address ranges of an object that are never writable, not even for the loader.
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

/// The mappings within `segments` that have no private page, neither in memory nor in swap.
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

/// The range of a mapping, from its first line, if it is a private and read-only mapping of a file.
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

    /// Two mappings of the code, one with a breakpoint; relocated constants, data, a library with a
    /// modified page in swap, and the kernel's own mapping.
    const SMAPS: &str = "1000-3000 r-xp 00001000 fe:00 7 /usr/bin/russet\nRss: 8 kB\nAnonymous:             0 kB\nSwap: 0 kB\nVmFlags: rd ex\n\
        3000-4000 r-xp 00003000 fe:00 7 /usr/bin/russet\nRss: 4 kB\nAnonymous:             4 kB\nSwap: 0 kB\nVmFlags: rd ex\n\
        4000-5000 r--p 00004000 fe:00 7 /usr/bin/russet\nAnonymous:             4 kB\nSwap: 0 kB\n\
        5000-6000 rw-p 00005000 fe:00 7 /usr/bin/russet\nAnonymous:             0 kB\nSwap: 0 kB\n\
        9000-a000 r-xp 00000000 fe:00 8 /lib/libc.so\nAnonymous:             0 kB\nSwap: 0 kB\n\
        a000-b000 r-xp 00001000 fe:00 8 /lib/libc.so\nAnonymous:             0 kB\nSwap: 4 kB\n\
        b000-c000 r-xp 00000000 00:00 0 [vdso]\nAnonymous:             0 kB\nSwap: 0 kB\n";

    #[test]
    fn modified_code_and_mappings_outside_the_segments_stay() {
        let code = std::slice::from_ref(&(0x1000..0x3000));
        assert_eq!(untouched(SMAPS, &[0x1000..0x4000, 0x4000..0x5000]), code);
        assert_eq!(untouched(SMAPS, &[0x1000..0x6000, 0x9000..0xc000]), [0x1000..0x3000, 0x9000..0xa000]);
        assert_eq!(untouched(SMAPS, &[]), []);
        assert_eq!(untouched("1000-zz r-xp\nAnonymous: 0 kB\nSwap: 0 kB\n", code), []);
    }

    #[test]
    fn unmapped_code_is_mapped_again_when_it_is_called() {
        // In a child process, so that no other test maps files during the measurement.
        const CHILD: &str = "RUSSET_TEST_CODE";
        const NAME: &str = "memory::code::tests::unmapped_code_is_mapped_again_when_it_is_called";
        if std::env::var_os(CHILD).is_some() {
            let before = mapped_file_bytes().unwrap();
            unmap_code();
            let after = mapped_file_bytes().unwrap();
            assert!(after + (100 << 10) < before, "{after} bytes of {before}");
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", NAME, "--test-threads", "1"]).env(CHILD, "").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    }
}
