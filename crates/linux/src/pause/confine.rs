//! Confines the pause process before it executes, like containerd's: drops all capabilities, sets
//! no_new_privs, and filters all system calls except its own. It runs between `clone` and
//! `execveat` in a child that shares its parent's memory, so it makes system calls only.

use std::ffi::{c_int, c_long};

/// Of linux/capability.h: two sets of 32 bits.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// More than any kernel has; the first unknown number ends the loop.
const CAPABILITIES_END: c_int = 64;

/// The system calls of the program (`program.rs`), of its start, and those that the kernel makes in
/// its name around signals.
#[cfg(target_arch = "x86_64")]
const ALLOWED: [c_long; 9] = [
    libc::SYS_execveat,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_close,
    libc::SYS_pause,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
];
#[cfg(target_arch = "aarch64")]
const ALLOWED: [c_long; 9] = [
    libc::SYS_execveat,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
];
/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of linux/audit.h: system call numbers depend on the
/// architecture.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K` of linux/filter.h.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets of the system call number and the architecture in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
/// A load and a jump for the architecture, a load of the number, a jump for each allowed call, and
/// two results.
const INSTRUCTIONS: usize = 3 + ALLOWED.len() + 2;

static FILTER: [libc::sock_filter; INSTRUCTIONS] = filter();

/// From linux/capability.h; libc has neither.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops all privileges of the calling thread. On false, errno has the reason.
pub(super) fn confine() -> bool {
    // SAFETY: system calls with numbers, and pointers to data that is live until they return. Each
    // affects the calling thread only.
    unsafe {
        // Without the right to drop from the bounding set, the set contains little; no_new_privs
        // makes the rest unreachable.
        let mut capability = 0;
        while capability < CAPABILITIES_END && libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 {
            capability += 1;
        }
        let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
        let none = [CapabilitySet { effective: 0, permitted: 0, inheritable: 0 }; 2];
        if libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) != 0
            || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
        {
            return false;
        }
        let program = libc::sock_fprog { len: INSTRUCTIONS as u16, filter: FILTER.as_ptr().cast_mut() };
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        // EINVAL means a kernel without seccomp filters. containerd continues without a filter
        // there, too.
        libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) == 0
            || *libc::__errno_location() == libc::EINVAL
    }
}

/// Other calls fail with EPERM, as in containerd's profile.
const fn filter() -> [libc::sock_filter; INSTRUCTIONS] {
    let allow = libc::SECCOMP_RET_ALLOW;
    let mut filter = [instruction(RETURN, allow, 0, 0); INSTRUCTIONS];
    let count = ALLOWED.len() as u8;
    filter[0] = instruction(LOAD, ARCHITECTURE_OFFSET, 0, 0);
    // Jump over the load of the number and its jumps.
    filter[1] = instruction(JUMP_IF_EQUAL, ARCHITECTURE, 0, count + 1);
    filter[2] = instruction(LOAD, NUMBER_OFFSET, 0, 0);
    let mut index = 0;
    while index < count {
        // Jump over the following jumps and the refusal.
        filter[3 + index as usize] =
            instruction(JUMP_IF_EQUAL, ALLOWED[index as usize] as u32, count - index, 0);
        index += 1;
    }
    filter[INSTRUCTIONS - 2] = instruction(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0);
    filter
}

const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions, waitpid};

    use super::*;

    #[test]
    fn system_calls_outside_the_filter_are_refused() {
        // SAFETY: the child makes system calls only, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                let refused = confine()
                    && libc::syscall(libc::SYS_getppid) == -1
                    && *libc::__errno_location() == libc::EPERM
                    && libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0) == -1
                    && libc::syscall(libc::SYS_close, -1) == -1
                    && *libc::__errno_location() == libc::EBADF;
                libc::_exit(c_int::from(!refused))
            }
        }
        let (_, status) = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
