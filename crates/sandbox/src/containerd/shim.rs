//! Shims that containerd has lost: if the caller of a task's creation or removal dies in the middle
//! of it, containerd 1.6 abandons the call and may leave the shim, perhaps with a container that
//! waits to be started, for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use russet_linux::process::{ProcessIdentity, has_ended};

use crate::SandboxId;
use crate::builtin::members::{Member, end_all};

/// A shim of the sandbox.
struct Shim {
    identity: ProcessIdentity,
    pidfd: OwnedFd,
}

/// A shim ends by itself within milliseconds after its container was removed. All of them have this
/// long together.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
const PROGRAM: &str = "containerd-shim-runc-v2";
/// The program's name, truncated by the kernel.
const COMM: &[u8] = b"containerd-shim";
/// The kernel's suffix for an executable that was replaced since its start.
const REPLACED: &str = " (deleted)";
const ID: &[u8] = b"-id";
/// Other commands that containerd runs with the program, in processes that end by themselves: the
/// last word of their command lines.
const SHORT_LIVED_COMMANDS: [&[u8]; 2] = [b"start", b"delete"];

/// Ends the shims of a sandbox's containers and the processes that they started. An ID is random,
/// so no other's can match.
pub(super) fn end(id: &SandboxId) -> io::Result<()> {
    let mut shims = find(id)?;
    let end = Instant::now() + LEAVE_LIMIT;
    shims.retain(|shim| {
        let left = end.saturating_duration_since(Instant::now());
        !has_ended(&shim.pidfd, left).unwrap_or(false)
    });
    let mut forgotten = Vec::new();
    for Shim { identity, pidfd } in shims {
        let pid = identity.pid;
        tracing::warn!(sandbox = %id, pid, "a shim that containerd has forgotten is ended");
        // Before it ends, because they could not be found afterwards.
        let children = children(pid)?;
        // If it has ended meanwhile, they may belong to another process with the same pid.
        if identity.is_alive()? {
            forgotten.extend(children);
            forgotten.push(Member { pid, pidfd });
        }
    }
    end_all(forgotten)
}

fn find(id: &SandboxId) -> io::Result<Vec<Shim>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if !is_shim(pid) {
            continue;
        }
        let Some(identity) = ProcessIdentity::of(pid)? else { continue };
        let Some(pidfd) = identity.hold()? else { continue };
        if is_of(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default(), id) {
            found.push(Shim { identity, pidfd });
        }
    }
    Ok(found)
}

/// By what the kernel stores. A command line is in the process's memory: reading that of a process
/// that is stuck in a page fault would block, too.
fn is_shim(pid: u32) -> bool {
    let proc = format!("/proc/{pid}");
    let comm = std::fs::read(format!("{proc}/comm")).unwrap_or_default();
    comm.trim_ascii_end() == COMM
        && std::fs::read_link(format!("{proc}/exe")).is_ok_and(|exe| is_program(&exe))
}

fn is_program(exe: &Path) -> bool {
    let name = exe.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(REPLACED).unwrap_or(name) == PROGRAM
}

/// The unreaped children of all threads of a process.
fn children(pid: u32) -> io::Result<Vec<Member>> {
    let mut found = Vec::new();
    // It may end meanwhile; then it has none.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let held = ProcessIdentity::of(child)?.map(ProcessIdentity::hold).transpose()?.flatten();
            // Read afterwards, since the pid may have been reused before.
            found.extend(
                held.filter(|_| parent(child) == Some(pid)).map(|pidfd| Member { pid: child, pidfd }),
            );
        }
    }
    Ok(found)
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Checks a shim's command line: the word after `-id` is the container's name, which is the ID,
/// perhaps with a suffix.
fn is_of(cmdline: &[u8], id: &SandboxId) -> bool {
    let words: Vec<&[u8]> = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|byte| *byte == 0).collect();
    let name = words.iter().position(|word| *word == ID).and_then(|at| words.get(at + 1));
    name.is_some_and(|name| name.starts_with(id.as_str().as_bytes()))
        && !words.last().is_some_and(|word| SHORT_LIVED_COMMANDS.contains(word))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that ends with its input, and has these words after its script.
    fn start(program: &Path, arg0: &str, words: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.arg0(arg0).args(["-c", "read never"]).args(words).stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn only_the_sandboxs_shims_are_ended() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROGRAM);
        // Written by another process: a child that is forked while this one writes could not
        // execute it.
        assert!(Command::new("cp").args([Path::new("/bin/sh"), &program]).status().unwrap().success());
        let (id, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        let of = |id: &SandboxId| start(&program, "sh", &["-id", id.as_str(), "-address", "/c.sock"]);
        let mut forgotten = [of(&id), of(&id)];
        let mut others = [
            of(&other),
            start(&program, "sh", &["-id", id.as_str(), "delete"]),
            start(Path::new("/bin/sh"), PROGRAM, &["-id", id.as_str(), "-address", "/c.sock"]),
        ];
        end(&id).unwrap();
        for shim in &mut forgotten {
            assert_eq!(shim.wait().unwrap().signal(), Some(15));
        }
        for other in &mut others {
            assert!(other.try_wait().unwrap().is_none());
            drop(other.stdin.take());
            other.wait().unwrap();
        }
    }

    #[test]
    fn a_program_is_known_when_it_was_replaced_meanwhile() {
        for (exe, expected) in [
            ("/usr/bin/containerd-shim-runc-v2", true),
            ("/usr/bin/containerd-shim-runc-v2 (deleted)", true),
            ("/usr/bin/containerd-shim-kata-v2", false),
            ("/", false),
        ] {
            assert_eq!(is_program(Path::new(exe)), expected, "{exe}");
        }
    }

    #[test]
    fn children_of_every_thread_are_found_and_no_others() {
        let start = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let of_this = start();
        let (send, started) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        // The kernel lists them under the thread, as long as that lives.
        let thread = std::thread::spawn(move || {
            send.send(start()).unwrap();
            wait.recv()
        });
        let of_thread = started.recv().unwrap();
        let found: Vec<u32> = children(std::process::id()).unwrap().iter().map(|child| child.pid).collect();
        for child in [&of_this, &of_thread] {
            assert!(found.contains(&child.id()), "{found:?}");
            assert_eq!(parent(child.id()), Some(std::process::id()));
        }
        assert!(children(of_this.id()).unwrap().is_empty());
        go.send(()).unwrap();
        thread.join().unwrap().unwrap();
        for mut child in [of_this, of_thread] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_shim_is_known_by_the_name_of_its_container() {
        let id: SandboxId = "a".repeat(64).parse().unwrap();
        let shim = "/usr/bin/containerd-shim-runc-v2\0-namespace\0russet";
        let of = |name: &str, last: &str| format!("{shim}\0-id\0{name}\0-address\0/c.sock\0{last}");
        let (mine, suffixed) = (id.to_string(), format!("{id}-12345678"));
        for (cmdline, expected) in [
            (of(&mine, ""), true),
            (of(&suffixed, ""), true),
            (of(&"b".repeat(64), ""), false),
            // What containerd itself runs to start a shim, and to clean up after a dead one.
            (of(&mine, "start\0"), false),
            (of(&mine, "delete\0"), false),
            (format!("{shim}\0-id\0"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of(cmdline.as_bytes(), &id), expected, "{cmdline:?}");
        }
    }
}
