//! The system calls that a sandbox's container may make: those that containerd's default profile leaves to a container without capabilities, so that every pause
//! image works that works with containerd's own CRI. Everything else fails with EPERM.

use serde_json::{Value, json};

/// Separated by white space. runc passes over names that the node's libseccomp does not know.
const ALLOWED: &str = "
    accept accept4 access adjtimex alarm arch_prctl arm_fadvise64_64 arm_sync_file_range bind breakpoint brk cacheflush capget capset chdir chmod chown
    chown32 clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close
    close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
    epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod
    fchmodat fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs
    fstatfs64 fsync ftruncate ftruncate64 futex futex_time64 futex_waitv futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64
    getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority
    getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32
    getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64
    io_setup io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr
    link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise membarrier memfd_create memfd_secret mincore mkdir
    mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
    mq_timedsend mq_timedsend_time64 mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat
    openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2
    prlimit64 process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg
    recvmmsg_time64 recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64
    send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address set_tls setfsgid setfsgid32 setfsuid
    setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid
    setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd
    signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range
    sync_file_range2 syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime
    timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit
    umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev";
/// Namespaces that clone(2) makes, of linux/sched.h: mount, cgroup, UTS, IPC, user, PID and network.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
/// Of linux/socket.h: a door to the host's hypervisor, which no network namespace closes.
const AF_VSOCK: u32 = 40;
/// As linux/personality.h has them: this machine's own, a 32-bit one's, and the question which it is.
const PERSONALITIES: [u32; 3] = [0, 8, u32::MAX];
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// What a process of this architecture may switch to.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURES: [&str; 3] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];
#[cfg(target_arch = "aarch64")]
const ARCHITECTURES: [&str; 2] = ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"];
/// Has a line about seccomp where the kernel was built with filters.
const STATUS: &str = "/proc/self/status";

/// The section `linux.seccomp` of the OCI specification; none where the kernel has no filters, because runc refuses the section there.
pub(super) fn profile() -> Option<Value> {
    let status = std::fs::read_to_string(STATUS).ok()?;
    status.lines().any(|line| line.starts_with("Seccomp:")).then(of_containers)
}

fn of_containers() -> Value {
    let compared = |names: &[&str], value: u32, op: &str| json!({"names": names, "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": value, "op": op}]});
    let mut calls = vec![
        json!({"names": ALLOWED.split_ascii_whitespace().collect::<Vec<_>>(), "action": "SCMP_ACT_ALLOW"}),
        compared(&["socket"], AF_VSOCK, "SCMP_CMP_NE"),
        // Processes and threads, and no namespaces. clone3 has its flags in memory, where no filter looks; C libraries fall back from ENOSYS to clone.
        json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": CLONE_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}),
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
    ];
    calls.extend(PERSONALITIES.map(|value| compared(&["personality"], value, "SCMP_CMP_EQ")));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": EPERM, "architectures": ARCHITECTURES, "syscalls": calls})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_profile_names_no_call_twice_and_none_that_changes_the_node() {
        let names: Vec<&str> = ALLOWED.split_ascii_whitespace().collect();
        let set: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(set.len(), names.len());
        for call in [
            "mount",
            "umount2",
            "pivot_root",
            "setns",
            "unshare",
            "bpf",
            "ptrace",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "keyctl",
            "add_key",
            "perf_event_open",
            "open_by_handle_at",
            "io_uring_setup",
            "socket",
            "clone",
            "process_vm_writev",
        ] {
            assert!(!set.contains(call), "{call}");
        }
    }
}
