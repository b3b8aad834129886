//! The executable of the pause process: ELF headers and a few instructions in a sealed memfd, so
//! that neither an image nor a file system that allows execution is needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};

// prctl(PR_SET_NAME); read(0, sp, 1), again after EINTR; unless that gave one byte: exit(1); close(0); for ever: pause().
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.russet_pause,\"a\",@progbits",
    ".globl russet_pause_begin",
    ".globl russet_pause_end",
    "russet_pause_begin:",
    "mov eax, 157",
    "mov edi, 15",
    "lea rsi, [rip + 9f]",
    "syscall",
    "2:",
    "xor eax, eax",
    "xor edi, edi",
    "mov rsi, rsp",
    "mov edx, 1",
    "syscall",
    "cmp rax, -4",
    "je 2b",
    "cmp rax, 1",
    "jne 4f",
    "mov eax, 3",
    "xor edi, edi",
    "syscall",
    "3:",
    "mov eax, 34",
    "syscall",
    "jmp 3b",
    "4:",
    "mov eax, 60",
    "mov edi, 1",
    "syscall",
    "9: .asciz \"russet-pause\"",
    "russet_pause_end:",
    ".popsection",
);

// The same; there is no pause() here, so it is ppoll(NULL, 0, NULL, NULL, 0).
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .rodata.russet_pause,\"a\",@progbits",
    ".globl russet_pause_begin",
    ".globl russet_pause_end",
    ".balign 4",
    "russet_pause_begin:",
    "mov x8, #167",
    "mov x0, #15",
    "adr x1, 9f",
    "svc #0",
    "2:",
    "mov x8, #63",
    "mov x0, #0",
    "mov x1, sp",
    "mov x2, #1",
    "svc #0",
    "cmn x0, #4",
    "b.eq 2b",
    "cmp x0, #1",
    "b.ne 4f",
    "mov x8, #57",
    "mov x0, #0",
    "svc #0",
    "3:",
    "mov x8, #73",
    "mov x0, #0",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #0",
    "mov x4, #0",
    "svc #0",
    "b 3b",
    "4:",
    "mov x8, #94",
    "mov x0, #1",
    "svc #0",
    "9: .asciz \"russet-pause\"",
    "russet_pause_end:",
    ".popsection",
);

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the pause process of sandboxes is written for x86-64 and 64-bit ARM; add its instructions here"
);

unsafe extern "C" {
    static russet_pause_begin: u8;
    static russet_pause_end: u8;
}

/// `EM_X86_64` of elf.h.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
/// `EM_AARCH64` of elf.h.
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The load address: far from zero, below everything that the kernel maps.
const BASE: u64 = 0x40_0000;
/// Sizes of the ELF header and of each of the two program headers (elf(5)).
const HEADER_BYTES: u16 = 64;
const PROGRAM_HEADER_BYTES: u16 = 56;
const PROGRAM_HEADERS: u16 = 2;
/// Larger than any page size of these machines.
const ALIGNMENT: u64 = 0x1_0000;
/// `MFD_EXEC` of linux/memfd.h, since 6.3; older kernels allow execution anyway, and refuse unknown
/// flags.
const MFD_EXEC: MemfdFlags = MemfdFlags::from_bits_retain(0x10);

/// The executable, created once per process.
pub(super) fn executable() -> io::Result<BorrowedFd<'static>> {
    static MADE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made.as_fd());
    }
    let fresh = make()?;
    Ok(MADE.get_or_init(|| fresh).as_fd())
}

fn make() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| rustix::fs::memfd_create("russet-pause", flags);
    let fd = match create(flags | MFD_EXEC) {
        Err(rustix::io::Errno::INVAL) => create(flags)?,
        made => made?,
    };
    let image = image(code());
    let written = rustix::io::write(&fd, &image)?;
    if written != image.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

fn code() -> &'static [u8] {
    let (begin, end) = (&raw const russet_pause_begin, &raw const russet_pause_end);
    let length = end.addr() - begin.addr();
    // SAFETY: the assembler places both labels around the same bytes of a section that is never
    // written.
    unsafe { std::slice::from_raw_parts(begin, length) }
}

/// The headers followed by the code: one read-and-execute segment, and a non-executable stack.
fn image(code: &[u8]) -> Vec<u8> {
    let start = u64::from(HEADER_BYTES + PROGRAM_HEADER_BYTES * PROGRAM_HEADERS);
    let length = start + code.len() as u64;
    // ELF, 64 bits, little-endian, version 1, System V ABI.
    let mut image = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [2_u16, MACHINE] {
        image.extend(half.to_le_bytes());
    }
    image.extend(1_u32.to_le_bytes());
    for word in [BASE + start, u64::from(HEADER_BYTES), 0] {
        image.extend(word.to_le_bytes());
    }
    image.extend(0_u32.to_le_bytes());
    for half in [HEADER_BYTES, PROGRAM_HEADER_BYTES, PROGRAM_HEADERS, 0, 0, 0] {
        image.extend(half.to_le_bytes());
    }
    // PT_LOAD with PF_R | PF_X; PT_GNU_STACK with PF_R | PF_W.
    image.extend(segment(1, 5, [0, BASE, BASE, length, length, ALIGNMENT]));
    image.extend(segment(0x6474_e551, 6, [0, 0, 0, 0, 0, 16]));
    image.extend(code);
    image
}

fn segment(kind: u32, flags: u32, words: [u64; 6]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::from(PROGRAM_HEADER_BYTES));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    for word in words {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_a_few_hundred_bytes_and_cannot_be_changed() {
        let fd = executable().unwrap();
        let size = rustix::fs::fstat(fd).unwrap().st_size;
        assert!((200..400).contains(&size), "{size}");
        assert_eq!(rustix::io::pwrite(fd, b"x", 0).unwrap_err(), rustix::io::Errno::PERM);
    }

    #[test]
    fn the_headers_are_as_long_as_they_say() {
        let image = image(b"code");
        assert_eq!(image.len(), 64 + 2 * 56 + 4);
        assert_eq!(&image[..4], b"\x7fELF");
    }
}
