//! The process that holds a sandbox's namespaces and does nothing else: about twenty instructions,
//! assembled into an executable in memory. `sandbox` starts it from a thread that is already in the
//! namespaces.
//!
//! It has no capabilities, cannot get any, and is limited to its own few system calls (`confine`).
//!
//! It shares no page, file descriptor or name with its starter, has two pages of its own, reaps
//! children by ignoring SIGCHLD, and ends on SIGTERM. Until [`Paused::release`] it ends together
//! with its starter, so that no process is left whose PID was never recorded.

mod confine;
mod program;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, Signal, WaitOptions};

/// A started process, which is killed when this value is dropped without a release.
#[derive(Debug)]
#[must_use = "the process ends when this is dropped without a release"]
pub struct Paused {
    pid: Pid,
    /// The writing end of its stdin: a byte releases the process, the end of file ends it.
    go: Option<OwnedFd>,
}

/// The input of the new process, and its error. Both processes share this memory until the execve.
struct Start<'a> {
    program: RawFd,
    stdin: RawFd,
    arguments: [*const c_char; 3],
    environment: [*const c_char; 1],
    root: &'a CStr,
    errno: c_int,
}

/// The process name in front of the subject in `ps`.
const NAME: &CStr = c"russet-pause";
/// Enough for the dozen system calls that the new process makes on it.
const STACK_BYTES: usize = 16 * 1024;
/// `NSIG` of asm/signal.h: signals are 1 to 64.
const SIGNALS_END: c_int = 65;
/// The exit status after a failure, whose reason is in `Start::errno`.
const NOT_EXECUTED: c_int = 127;

/// Starts the process in the namespaces of the calling thread. `subject` is its only argument,
/// shown in process lists.
pub fn start(subject: &CStr) -> io::Result<Paused> {
    let program = program::executable()?;
    let (stdin, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut start = Start {
        program: program.as_raw_fd(),
        stdin: stdin.as_raw_fd(),
        arguments: [NAME.as_ptr(), subject.as_ptr(), std::ptr::null()],
        environment: [std::ptr::null()],
        root: c"/",
        errno: 0,
    };
    let pid = spawn(&mut start)?;
    let paused = Paused { pid, go: Some(go) };
    if start.errno != 0 {
        // Dropping `paused` reaps it.
        return Err(io::Error::from_raw_os_error(start.errno));
    }
    Ok(paused)
}

// === impl Paused ===

impl Paused {
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Lets the process outlive this one; its PID must be recorded by then.
    pub fn release(mut self) -> io::Result<()> {
        if let Some(go) = &self.go {
            rustix::io::retry_on_intr(|| rustix::io::write(go.as_fd(), b"g"))?;
        }
        self.go = None;
        Ok(())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if self.go.take().is_some() {
            // Only this process reaps it, so the PID still belongs to it.
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            let wait = || rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
            let _ = rustix::io::retry_on_intr(wait);
        }
    }
}

/// Creates a child that shares our memory and executes before this returns. Like `posix_spawn`,
/// this copies no page tables, however large this process is.
fn spawn(start: &mut Start<'_>) -> io::Result<Pid> {
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = std::ptr::from_mut(start).cast::<c_void>();
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    // Signal handlers of ours must not run in the child, which shares our memory.
    let blocked = Blocked::all()?;
    // SAFETY: `top` is the end of a live, aligned block, and `argument` a live `Start`. CLONE_VFORK
    // suspends this thread until the child has executed or ended, so both outlive its use of them,
    // and no other code accesses them meanwhile. The child makes system calls only: no allocation,
    // no lock.
    let pid = unsafe { libc::clone(child, top, flags, argument) };
    let error = io::Error::last_os_error();
    drop(blocked);
    drop(stack);
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or(error)
}

extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to a live `Start`, and its thread is suspended until this
    // child has executed or ended.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    // SAFETY: system calls with pointers into `start`, which is live, and whose strings are
    // nul-terminated.
    unsafe {
        libc::setsid();
        libc::chdir(start.root.as_ptr());
        for signal in 1..SIGNALS_END {
            // SIGKILL and SIGSTOP are refused, and so are two signals that glibc reserves.
            let action = if signal == libc::SIGCHLD { libc::SIG_IGN } else { libc::SIG_DFL };
            libc::signal(signal, action);
        }
        if libc::dup2(start.stdin, 0) == 0 {
            // Our own descriptors are close-on-exec; this closes those that a library opened
            // without the flag. Older kernels lack the call.
            libc::syscall(libc::SYS_close_range, 1, start.program - 1, 0);
            libc::syscall(libc::SYS_close_range, start.program + 1, c_int::MAX, 0);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            let (arguments, environment) = (start.arguments.as_ptr(), start.environment.as_ptr());
            let (path, how) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
            if confine::confine() {
                libc::syscall(libc::SYS_execveat, start.program, path, arguments, environment, how);
            }
        }
        start.errno = *libc::__errno_location();
        libc::_exit(NOT_EXECUTED)
    }
}

/// Blocks all signals for the calling thread until this is dropped.
struct Blocked {
    before: libc::sigset_t,
}

// === impl Blocked ===

impl Blocked {
    fn all() -> io::Result<Self> {
        // SAFETY: a signal set consists of plain numbers, for which zeros are valid; both are live.
        let (result, before) = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
                (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            (libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before), before)
        };
        if result == 0 { Ok(Self { before }) } else { Err(io::Error::from_raw_os_error(result)) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is live; the call fails only for an unknown first argument.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

    use super::*;
    use crate::process::has_ended;

    const TIMEOUT: Duration = Duration::from_secs(20);
    /// Of linux/capability.h.
    const CAP_SETPCAP: u32 = 8;

    fn status(pid: u32, field: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    fn reap(pid: u32) -> rustix::process::WaitStatus {
        let pid = Pid::from_raw(pid.cast_signed());
        rustix::process::waitpid(pid, WaitOptions::empty()).unwrap().unwrap().1
    }

    #[test]
    fn the_process_has_no_open_file_little_memory_and_ends_on_sigterm() {
        // cni-runtime.md section 3.6: a pause process waits, and ends on SIGTERM.
        let leaky = std::fs::File::open("/proc/version").unwrap();
        rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty()).unwrap();
        let paused = start(c"0123").unwrap();
        let pid = paused.pid();
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap();
        paused.release().unwrap();
        crate::process::tests::eventually(|| {
            std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() == 0
        });
        assert_eq!(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap(), b"russet-pause\x000123\0");
        assert_eq!(status(pid, "Name"), "russet-pause");
        assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
        let resident: u32 = status(pid, "VmRSS").trim_end_matches(" kB").parse().unwrap();
        assert!(resident <= 64, "{resident} KiB");
        assert_eq!(status(pid, "SigBlk"), "0000000000000000");
        // Whether glibc's two reserved signals are ignored depends on the process that started the
        // tests.
        let ignored = u64::from_str_radix(&status(pid, "SigIgn"), 16).unwrap() & !(0b11 << 31);
        assert_eq!(ignored, 1 << (libc::SIGCHLD - 1), "SIGCHLD, so that children are reaped");
        assert!(!has_ended(&pidfd, Duration::from_millis(1)).unwrap());
        pidfd_send_signal(&pidfd, Signal::TERM).unwrap();
        assert!(has_ended(&pidfd, TIMEOUT).unwrap());
        assert_eq!(reap(pid).terminating_signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn the_process_has_no_capability_and_a_system_call_filter() {
        let before =
            ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"].map(|name| status(std::process::id(), name));
        let paused = start(c"confined").unwrap();
        let field = |name| status(paused.pid(), name);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        let own = std::process::id();
        let may_drop = u64::from_str_radix(&status(own, "CapEff"), 16).unwrap() & (1 << CAP_SETPCAP) != 0;
        assert!(!may_drop || field("CapBnd") == "0000000000000000", "{}", field("CapBnd"));
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
        assert_eq!(before, ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp"].map(|name| status(own, name)));
    }

    #[test]
    fn the_process_ends_if_its_starter_dies_before_the_release() {
        // The death of the starter closes the last writing end of the pipe.
        let mut paused = start(c"orphan").unwrap();
        let pid = paused.pid();
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap();
        drop(paused.go.take());
        assert!(has_ended(&pidfd, TIMEOUT).unwrap());
        assert_eq!(reap(pid).exit_status(), Some(1));
    }

    #[test]
    fn dropping_it_ends_and_reaps_the_process() {
        let pid = start(c"dropped").unwrap().pid();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn many_can_be_started_at_once() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| drop(start(c"one of many").unwrap())));
            }
        });
    }
}
