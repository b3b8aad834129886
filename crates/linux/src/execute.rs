//! Executes a program that gets input on stdin and answers on stdout, such as a CNI plugin: in its
//! own process group, with a deadline and a limit on its output. `runtime` runs chains with it,
//! `plugins` the plugins that they delegate to, `overlay` the iptables programs.
//!
//! libcni waits until every process that holds the plugin's stdout is gone, so a forgotten `sleep`
//! in a shell plugin blocks the node. Here only the end of the plugin itself counts, and at the
//! deadline its whole group is killed.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::process::die_with_parent;

/// A program to execute.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a> {
    /// The executable.
    pub binary: &'a Path,
    /// Variables that it gets besides the variables of this process that [`is_inherited`] allows.
    pub env: &'a [(&'static str, OsString)],
    /// The input.
    pub stdin: &'a [u8],
    /// The time limit.
    pub deadline: Duration,
}

/// The result of an execution.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// The complete output.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub stderr: Vec<u8>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The kernel refused to execute the program.
    #[error("execute {}: {source}", binary.display())]
    Spawn {
        /// The executable.
        binary: PathBuf,
        source: io::Error,
    },
    /// The program exceeded its deadline and was killed together with its process group.
    #[error("killed: no answer within {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// The program printed too much and was killed.
    #[error("killed: more than {limit_bytes} bytes on stdout")]
    TooMuchOutput {
        /// The limit.
        limit_bytes: usize,
    },
    /// An error on the pipes to the program.
    #[error("exchange data with the plugin: {0}")]
    Io(io::Error),
}

/// A running program.
struct Running<'a> {
    child: Child,
    pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
    unsent: &'a [u8],
    stdout: Capture<ChildStdout>,
    stderr: Capture<ChildStderr>,
}

/// A stream that is read up to a limit.
struct Capture<R> {
    stream: Option<R>,
    bytes: Vec<u8>,
    max_bytes: usize,
    truncated: bool,
}

/// Environment variables that executed programs inherit: locations, locale, and access to the
/// network. Any other variable may be a secret: a service manager passes credentials to a daemon in
/// its environment, and a plugin's environment is readable for every process that can read its
/// `/proc/PID/environ`.
const INHERITED: [&str; 23] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XTABLES_LOCKFILE",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
];
/// The same, by prefix. No `RUSSET_*` variable holds a secret.
const INHERITED_PREFIXES: [&str; 2] = ["LC_", "RUSSET_"];
/// Configuration of Calico's plugins, including etcd's password (calico-ipam.md section 4.1). Only
/// these plugins inherit it.
const CALICO_PREFIXES: [&str; 6] = ["CALICO_", "DATASTORE_TYPE", "ETCD_", "FELIX_", "K8S_", "KUBECONFIG"];
const CALICO_PLUGINS: [&str; 2] = ["calico", "calico-ipam"];
/// Names, separated by commas, of further variables that are inherited.
const MORE_INHERITED: &str = "RUSSET_PASS_ENVIRONMENT";

/// A result with 100 interfaces and 1,000 routes takes 100 KiB.
const STDOUT_MAX_BYTES: usize = 1024 * 1024;
/// As much as an error message can show.
const STDERR_MAX_BYTES: usize = 64 * 1024;
/// How long an executable may stay "busy" while an installer writes it.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts at a busy executable.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// After SIGKILL, a process remains only while it is in an uninterruptible system call.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Whether a program inherits a variable. `more` are names that the operator has added.
fn is_inherited(name: &OsStr, binary: &Path, more: &str) -> bool {
    let Some(name) = name.to_str() else { return false };
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_calicos = || binary.file_name().is_some_and(|file| CALICO_PLUGINS.iter().any(|it| file == *it));
    INHERITED.contains(&name)
        || begins(&INHERITED_PREFIXES)
        || begins(&CALICO_PREFIXES) && is_calicos()
        || more.split(',').any(|it| it.trim() == name)
}

// === impl Execution ===

impl Execution<'_> {
    /// Runs the plugin until it ends or its deadline passes.
    pub fn run(&self) -> Result<Finished, ExecuteError> {
        self.run_with(&[], STDOUT_MAX_BYTES)
    }

    /// The same for work that must not continue after this process: the kernel kills the plugin
    /// when this process dies, but not the processes that the plugin has started. The process that
    /// takes over the node can then undo the work.
    pub fn run_tied_to_this_process(&self) -> Result<Finished, ExecuteError> {
        self.execute(&[], STDOUT_MAX_BYTES, true)
    }

    /// Runs a program with arguments, which may print more than a plugin.
    pub fn run_with(&self, arguments: &[&str], stdout_max_bytes: usize) -> Result<Finished, ExecuteError> {
        self.execute(arguments, stdout_max_bytes, false)
    }

    fn execute(
        &self,
        arguments: &[&str],
        stdout_max_bytes: usize,
        dies_with_us: bool,
    ) -> Result<Finished, ExecuteError> {
        let end = Instant::now() + self.deadline;
        let child = self.spawn(arguments, dies_with_us)?;
        let mut running = Running::start(child, self.stdin, stdout_max_bytes)?;
        match running.pump(end) {
            Ok(()) => running.finish(),
            Err(error) => {
                running.kill();
                Err(match error.kind() {
                    ErrorKind::TimedOut => ExecuteError::Deadline(self.deadline),
                    ErrorKind::FileTooLarge => ExecuteError::TooMuchOutput { limit_bytes: stdout_max_bytes },
                    _ => ExecuteError::Io(error),
                })
            }
        }
    }

    /// Builds a new command for each attempt: libcni re-runs the same object, which fails
    /// (cni-runtime.md section 0 item 13).
    fn spawn(&self, arguments: &[&str], dies_with_us: bool) -> Result<Child, ExecuteError> {
        let end = Instant::now() + BUSY_LIMIT.min(self.deadline);
        loop {
            let mut command = self.command();
            if dies_with_us {
                // The parent-death signal is sent when this thread ends, and it waits for the
                // child.
                die_with_parent(&mut command);
            }
            match command.args(arguments).spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < end => {
                    pause()
                }
                spawned => {
                    let binary = self.binary.to_owned();
                    return spawned.map_err(|source| ExecuteError::Spawn { binary, source });
                }
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binary);
        command.env_clear();
        let more = std::env::var(MORE_INHERITED).unwrap_or_default();
        command.envs(std::env::vars_os().filter(|(name, _)| is_inherited(name, self.binary, &more)));
        command.envs(self.env.iter().map(|(key, value)| (key, value))).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel has no event for the end of ETXTBSY")]
fn pause() {
    std::thread::sleep(BUSY_PAUSE);
}

// === impl Running ===

impl<'a> Running<'a> {
    fn start(mut child: Child, unsent: &'a [u8], stdout_max_bytes: usize) -> Result<Self, ExecuteError> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let prepare = || -> io::Result<OwnedFd> {
            let fds = [
                stdin.as_ref().map(AsFd::as_fd),
                stdout.as_ref().map(AsFd::as_fd),
                stderr.as_ref().map(AsFd::as_fd),
            ];
            for fd in fds.into_iter().flatten() {
                ioctl_fionbio(fd, true)?;
            }
            Ok(pidfd_open(pid(&child)?, PidfdFlags::empty())?)
        };
        match prepare() {
            Ok(pidfd) => Ok(Self {
                child,
                pidfd,
                stdin,
                unsent,
                stdout: Capture::new(stdout, stdout_max_bytes),
                stderr: Capture::new(stderr, STDERR_MAX_BYTES),
            }),
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(ExecuteError::Io(error))
            }
        }
    }

    /// Writes the input and reads the output until the plugin ends.
    fn pump(&mut self, end: Instant) -> io::Result<()> {
        loop {
            let ended = self.wait(end)?;
            self.feed()?;
            self.stdout.drain()?;
            self.stderr.drain()?;
            if self.stdout.truncated {
                return Err(ErrorKind::FileTooLarge.into());
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Waits until there is something to do; true if the plugin has ended.
    fn wait(&self, end: Instant) -> io::Result<bool> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // Checked before poll(2), because a plugin that prints all the time would never reach
            // poll's own timeout.
            return Err(ErrorKind::TimedOut.into());
        }
        let timeout = Timespec::try_from(left).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
        fds.extend(self.stdin.as_ref().map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
        fds.extend(self.stdout.stream.as_ref().map(|stdout| PollFd::new(stdout, PollFlags::IN)));
        fds.extend(self.stderr.stream.as_ref().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A plugin need not read its input; that is no error.
    fn feed(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write(self.unsent) {
            Ok(count) => self.unsent = &self.unsent[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.unsent = &[],
            Err(error) => return Err(error),
        }
        if self.unsent.is_empty() {
            self.stdin = None;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Finished, ExecuteError> {
        let status = self.child.wait().map_err(ExecuteError::Io)?;
        Ok(Finished { status, stdout: self.stdout.bytes, stderr: self.stderr.bytes })
    }

    /// Kills the whole group, because processes that the plugin started may hold locks and pipes.
    fn kill(&mut self) {
        if let Ok(pid) = pid(&self.child) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        if let Ok(timeout) = Timespec::try_from(KILL_LIMIT) {
            let _ = poll(&mut fds, Some(&timeout));
        }
        let _ = self.child.try_wait();
    }
}

fn pid(child: &Child) -> io::Result<Pid> {
    let raw = i32::try_from(child.id()).map_err(io::Error::other)?;
    Pid::from_raw(raw).ok_or_else(|| ErrorKind::InvalidInput.into())
}

// === impl Capture ===

impl<R: Read> Capture<R> {
    fn new(stream: Option<R>, max_bytes: usize) -> Self {
        Self { stream, bytes: Vec::new(), max_bytes, truncated: false }
    }

    /// Reads what is available without blocking; stops at the limit.
    fn drain(&mut self) -> io::Result<()> {
        let mut chunk = [0; 8192];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut chunk) {
                Ok(0) => self.stream = None,
                Ok(count) => {
                    let room = self.max_bytes - self.bytes.len();
                    self.bytes.extend_from_slice(&chunk[..count.min(room)]);
                    self.truncated |= count > room;
                    if self.truncated {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_the_environment_are_inherited_by_calicos_plugins_only() {
        let [other, calico, ipam] =
            ["/opt/cni/bin/bandwidth", "/opt/cni/bin/calico", "calico-ipam"].map(Path::new);
        let inherited = |name: &str, binary: &Path| is_inherited(OsStr::new(name), binary, "MY_PROXY, OTHER");
        for name in ["PATH", "LC_ALL", "no_proxy", "RUSSET_ROOT", "MY_PROXY", "OTHER"] {
            assert!(inherited(name, other), "{name}");
        }
        for name in ["ETCD_PASSWORD", "CALICO_ETCD_PASSWORD", "K8S_API_TOKEN", "KUBECONFIG"] {
            assert!(!inherited(name, other) && inherited(name, calico) && inherited(name, ipam), "{name}");
        }
        for name in
            ["NOTIFY_SOCKET", "AWS_SECRET_ACCESS_KEY", "CREDENTIALS_DIRECTORY", "FLANNELD_ETCD_PASSWORD"]
        {
            assert!(!inherited(name, calico), "{name}");
        }
    }

    #[test]
    fn an_executed_program_does_not_inherit_notify_socket() {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            let test = "execute::tests::an_executed_program_does_not_inherit_notify_socket";
            let mut within_a_service = Command::new(std::env::current_exe().unwrap());
            within_a_service.args(["--exact", test]).env("NOTIFY_SOCKET", "/nowhere").stdout(Stdio::null());
            assert!(within_a_service.status().unwrap().success());
            return;
        }
        let env = [("GIVEN", "1".into())];
        let deadline = Duration::from_secs(20);
        let done = Execution { binary: Path::new("env"), env: &env, stdin: b"", deadline }.run().unwrap();
        let environment = String::from_utf8(done.stdout).unwrap();
        assert!(environment.contains("GIVEN=1") && !environment.contains("NOTIFY_SOCKET"), "{environment}");
    }
}
