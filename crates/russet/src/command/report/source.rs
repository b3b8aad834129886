//! Where the parts of a report come from, each within a time limit and a size limit.
//!
//! Verbs of Russet run as processes of their own: one that waits for an agent or a datastore that does not answer is
//! killed, and takes nothing with it. What is read in this process is read by a thread that is left behind at the limit.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use russet_linux::process::{die_with_parent, has_ended};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::Node;

/// A source of text.
#[derive(Debug, Clone)]
pub enum Source {
    /// A verb of this executable, about the same node.
    Verb(&'static [&'static str]),
    /// A program of the system, and what is shown where it is not installed.
    Program(&'static str, &'static [&'static str], Option<Compute>),
    /// A file; of one that is too long the beginning or the end.
    File(PathBuf, Keep),
    /// What the agent answers to GET of a path, on its own socket.
    Health(&'static str),
    /// What this process finds itself.
    Own(&'static str, Compute),
}

/// Finds out something about the node.
pub type Compute = fn(&Node) -> Result<String, String>;

/// What is kept of a text that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Beginning,
    End,
}

/// What a source has said.
#[derive(Debug, Default)]
pub struct Found {
    pub text: String,
    /// Whether there was more.
    pub is_cut: bool,
    /// Why it is not there, or not complete.
    pub error: Option<String>,
}

/// The limits of one part.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    pub size_bytes: usize,
}

/// As much of a program's error as an index can show.
const ERROR_MAX_BYTES: usize = 500;
/// What is read of the standard error of a program.
const STDERR_MAX_BYTES: usize = 16 * 1024;
/// After SIGKILL, a process remains only while it is in an uninterruptible system call.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// Exit code of a verb that has found problems, which is no failure.
const PROBLEMS: i32 = 3;
/// Where programs of the system are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The heading of an answer in HTTP is shorter.
const HEADING_MAX_BYTES: usize = 64 * 1024;

/// Runs `read` for at most this time. At the limit its thread is left behind, and ends with the process.
pub fn within<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (send, receive) = sync_channel(1);
    std::thread::spawn(move || send.send(read()));
    receive.recv_timeout(limit).map_err(|_| no_answer(limit))
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs_f32())
}

/// Cuts a text to a size, between two lines; true if it was longer. A secret that a cut would have parted is gone before.
pub fn cut(text: &mut String, size_bytes: usize, keep: Keep) -> bool {
    if text.len() <= size_bytes {
        return false;
    }
    match keep {
        Keep::Beginning => {
            let end = text
                .as_bytes()
                .get(..size_bytes)
                .and_then(|kept| kept.iter().rposition(|byte| *byte == b'\n'));
            text.truncate(end.map_or(0, |end| end + 1));
        }
        Keep::End => {
            let first = text.len() - size_bytes;
            // The line may begin just there.
            let start =
                text.as_bytes().get(first - 1..).and_then(|kept| kept.iter().position(|byte| *byte == b'\n'));
            text.drain(..start.map_or(text.len(), |start| first + start));
        }
    }
    true
}

// === impl Source ===

impl Source {
    /// For the index.
    pub fn shown(&self) -> String {
        match self {
            Self::Verb(words) => format!("russet {}", words.join(" ")),
            Self::Program(program, words, _) => format!("{program} {}", words.join(" ")),
            Self::File(path, _) => path.display().to_string(),
            Self::Health(path) => format!("GET {path}"),
            Self::Own(what, _) => (*what).to_owned(),
        }
    }

    /// Which end of a text that is too long is kept.
    pub fn keep(&self) -> Keep {
        match self {
            Self::File(_, keep) => *keep,
            // The last lines of a log.
            Self::Program("journalctl", ..) => Keep::End,
            _ => Keep::Beginning,
        }
    }

    pub fn read(&self, node: &Node, limits: Limits) -> Found {
        match self {
            Self::Verb(words) => match std::env::current_exe() {
                Ok(executable) => {
                    let mut command = Command::new(executable);
                    command.args(*words).arg("--root").arg(node.paths.root());
                    run(&mut command, limits)
                }
                Err(error) => Found::error(format!("find this executable: {error}")),
            },
            Self::Program(program, words, instead) => {
                let mut command = Command::new(program);
                command.args(*words).env_clear().env("PATH", PATH).env("LC_ALL", "C");
                match (find(program), instead) {
                    (Some(_), _) => run(&mut command, limits),
                    (None, Some(instead)) => own(*instead, node, limits),
                    (None, None) => Found::error(format!("{program} is not installed")),
                }
            }
            Self::File(path, keep) => {
                let (path, keep) = (path.clone(), *keep);
                let read = within(limits.time, move || file(&path, limits.size_bytes, keep));
                read.unwrap_or_else(Found::error)
            }
            Self::Health(path) => {
                let (socket, path) = (node.paths.health_socket(), *path);
                let read = within(limits.time, move || health(&socket, path, limits));
                read.and_then(|found| found).unwrap_or_else(Found::error)
            }
            Self::Own(_, compute) => own(*compute, node, limits),
        }
    }
}

fn own(compute: Compute, node: &Node, limits: Limits) -> Found {
    let node = node.clone();
    match within(limits.time, move || compute(&node)).and_then(|found| found) {
        Ok(text) => Found { text, ..Found::default() },
        Err(error) => Found::error(error),
    }
}

fn find(program: &str) -> Option<PathBuf> {
    PATH.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.is_file())
}

/// What a program prints until it ends, or until the limit, when it is killed with what it has started.
fn run(command: &mut Command, limits: Limits) -> Found {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match die_with_parent(command).spawn() {
        Ok(child) => child,
        Err(error) => return Found::error(format!("execute it: {error}")),
    };
    let stdout = in_thread(child.stdout.take(), limits.size_bytes);
    let stderr = in_thread(child.stderr.take(), STDERR_MAX_BYTES);
    let ended = end(&mut child, limits.time);
    let output = stdout.recv_timeout(KILL_LIMIT).unwrap_or_default();
    let errors = stderr.recv_timeout(KILL_LIMIT).unwrap_or_default();
    let mut found = Found::of_bytes(&output, limits.size_bytes, Keep::Beginning);
    found.error = match ended {
        Ok(Some(status)) if status.success() || status.code() == Some(PROBLEMS) => None,
        // A program whose output is not read to its end may complain of that.
        Ok(Some(_)) if found.is_cut => None,
        Ok(Some(status)) => Some(complaint(status, &String::from_utf8_lossy(&errors))),
        Ok(None) => Some(no_answer(limits.time)),
        Err(error) => Some(format!("wait for it: {error}")),
    };
    found
}

/// Waits for the end of a program, and kills its group in any case; None if it had to be killed.
fn end(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    let has_ended = pidfd.map_err(std::io::Error::from).and_then(|pidfd| {
        let is_over = has_ended(&pidfd, limit)?;
        // Its own end is not yet waited for, so its number names no other group.
        let _ = kill_process_group(pid, Signal::KILL);
        if !is_over {
            has_ended(&pidfd, KILL_LIMIT)?;
        }
        Ok(is_over)
    });
    match has_ended {
        Ok(true) => child.wait().map(Some),
        Ok(false) => child.try_wait().map(|_| None),
        Err(error) => {
            let _ = child.kill().and_then(|()| child.wait());
            Err(error)
        }
    }
}

/// Reads a pipe to its end, or one byte more than the limit.
fn in_thread(pipe: Option<impl Read + Send + 'static>, limit: usize) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (send, receive) = sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is worth to be shown.
        let _ = pipe.map(|pipe| pipe.take(limit as u64 + 1).read_to_end(&mut bytes));
        let _ = send.send(bytes);
    });
    receive
}

fn complaint(status: ExitStatus, errors: &str) -> String {
    let mut lines = errors.trim().lines();
    let is_error = |line: &&str| line.starts_with("error");
    match lines.clone().rfind(is_error).or_else(|| lines.next_back()) {
        Some(last) => format!("{status}: {last}"),
        None => status.to_string(),
    }
}

fn file(path: &Path, size_bytes: usize, keep: Keep) -> Found {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        // Files of /proc have no size before they are read.
        let len = file.metadata()?.len();
        if keep == Keep::End && len > size_bytes as u64 {
            // One byte more, so that it shows whether a line begins there.
            file.seek(SeekFrom::Start(len - size_bytes as u64 - 1))?;
        }
        let mut bytes = Vec::new();
        file.take(size_bytes as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Found::of_bytes(&bytes, size_bytes, keep),
        Err(error) => Found::error(error.to_string()),
    }
}

/// The body of an answer, which has to have status 200; of another one it is the error, too.
fn health(socket: &Path, path: &str, limits: Limits) -> Result<Found, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => no_answer(limits.time),
        _ => format!("ask the agent at {}: {error}", socket.display()),
    };
    let end = Instant::now() + limits.time;
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_write_timeout(Some(limits.time)).map_err(failed)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: russet\r\n\r\n").map_err(failed)?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    while bytes.len() <= limits.size_bytes + HEADING_MAX_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(no_answer(limits.time));
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match stream.read(&mut chunk).map_err(failed)? {
            0 => break,
            count => bytes.extend(chunk.iter().take(count)),
        }
    }
    let heading =
        bytes.windows(4).position(|four| four == b"\r\n\r\n").ok_or("the agent's answer is no HTTP")?;
    let (heading, body) = bytes.split_at(heading + 4);
    let status = String::from_utf8_lossy(heading).split(' ').nth(1).unwrap_or_default().to_owned();
    let mut found = Found::of_bytes(body, limits.size_bytes, Keep::Beginning);
    found.error = (status != "200").then(|| format!("the agent answers with status {status}"));
    Ok(found)
}

// === impl Found ===

impl Found {
    pub fn error(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }

    fn of_bytes(bytes: &[u8], size_bytes: usize, keep: Keep) -> Self {
        let is_longer = bytes.len() > size_bytes;
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        // A line that is not whole can have a part of a secret.
        let is_cut = cut(&mut text, if is_longer { size_bytes } else { usize::MAX }, keep);
        Self { text, is_cut, error: None }
    }
}

/// An error in one short line.
pub fn in_short(error: &str) -> String {
    let mut line = error.replace(['\r', '\n'], " ");
    let end = (0..=ERROR_MAX_BYTES.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
    line.truncate(end.unwrap_or(0));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(30), size_bytes: 16 };

    #[test]
    fn a_text_is_cut_between_lines() {
        for (size, keep, expected) in [
            (10, Keep::Beginning, "ab\ncd\nef\n"),
            (8, Keep::Beginning, "ab\ncd\n"),
            (6, Keep::Beginning, "ab\ncd\n"),
            (2, Keep::Beginning, ""),
            (10, Keep::End, "ab\ncd\nef\n"),
            (8, Keep::End, "cd\nef\n"),
            (6, Keep::End, "cd\nef\n"),
            (2, Keep::End, ""),
        ] {
            let mut text = "ab\ncd\nef\n".to_owned();
            assert_eq!(cut(&mut text, size, keep), size < 9);
            assert_eq!(text, expected, "{size} {keep:?}");
        }
    }

    #[test]
    fn a_program_is_read_up_to_its_limits_and_killed_with_what_it_started() {
        let sh = |script: &str, limits| run(Command::new("sh").args(["-c", script]), limits);
        let found = sh("echo one; echo two; echo three; echo four >&2; exit 3", LIMITS);
        assert_eq!((found.text.as_str(), found.is_cut, found.error), ("one\ntwo\nthree\n", false, None));
        let found = sh("yes", LIMITS);
        assert_eq!((found.text.as_str(), found.is_cut, found.error), (&"y\n".repeat(8)[..], true, None));
        let found = sh("echo one; echo 'error: no' >&2; echo two >&2; exit 1", LIMITS);
        assert_eq!(
            (found.text.as_str(), found.error.as_deref()),
            ("one\n", Some("exit status: 1: error: no"))
        );
        let start = Instant::now();
        let found = sh("echo one; sleep 300 & sleep 300", Limits { time: Duration::from_secs(1), ..LIMITS });
        assert_eq!((found.text.as_str(), found.error.as_deref()), ("one\n", Some("no answer within 1 s")));
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_eq!(
            within(Duration::from_millis(1), std::thread::park).unwrap_err(),
            "no answer within 0.001 s"
        );
    }

    #[test]
    fn of_a_long_file_one_end_is_kept_and_an_error_is_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "aaaa\nbbbb\ncccc\ndddd\n").unwrap();
        let found = file(&path, 10, Keep::End);
        assert_eq!((found.text.as_str(), found.is_cut), ("cccc\ndddd\n", true));
        let found = file(&path, 12, Keep::Beginning);
        assert_eq!((found.text.as_str(), found.is_cut), ("aaaa\nbbbb\n", true));
        assert!(!file(&path, 20, Keep::End).is_cut);
        assert!(file(directory.path(), 20, Keep::End).error.is_some());
        assert_eq!(in_short(&"ä\n".repeat(400)).len(), ERROR_MAX_BYTES);
    }
}
