//! Runs other programs: passes on their output line by line, and ends those that hang.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{fs, thread};

use crate::error::{Error, Result};

/// How a watched program ended.
pub enum Ended {
    /// By itself.
    Exit(ExitStatus),
    /// It and all its children were killed, because it printed nothing for this long.
    Silence(Duration),
}

/// The command as a person would type it, for messages; without the directory of its program.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with the terminal as its output; an error unless it exits with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(Error::io(shown(command)))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Program { command: shown(command), why: status.to_string() })
}

/// Runs `command` and returns its standard output; an error with its standard error unless it exits with 0.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().map_err(Error::io(shown(command)))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let why = format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Err(Error::Program { command: shown(command), why })
}

/// What a program makes of its standard input.
pub fn filter(command: &mut Command, input: Vec<u8>) -> Result<Vec<u8>> {
    let shown = shown(command);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(Error::io(shown.clone()))?;
    let stdin = child.stdin.take();
    // Its output would fill the pipe while it still reads.
    let writer = std::thread::spawn(move || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(&input)));
    let output = child.wait_with_output().map_err(Error::io(shown.clone()))?;
    match writer.join() {
        Ok(Ok(())) if output.status.success() => Ok(output.stdout),
        _ => Err(Error::Program { command: shown, why: output.status.to_string() }),
    }
}

/// The checksum of bytes in hexadecimal digits, by a program such as `sha256sum`.
pub fn checksum(program: &str, bytes: &[u8]) -> Result<String> {
    let printed = filter(&mut Command::new(program), bytes.to_vec())?;
    Ok(String::from_utf8_lossy(&printed).split_whitespace().next().unwrap_or_default().to_owned())
}

/// Runs `command`, passes each line of its standard output to `on_line` as it arrives, and kills it
/// with all its children when none arrives for `limit`. Its total time is unlimited as long as it
/// prints; the unfinished line at a kill is passed on, too.
pub fn watch(command: &mut Command, limit: Duration, mut on_line: impl FnMut(&str)) -> Result<Ended> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(Error::io(shown(command)))?;
    let pid = child.id();
    let (progress, progressed) = mpsc::sync_channel::<()>(1);
    let watchdog = thread::spawn(move || {
        loop {
            match progressed.recv_timeout(limit) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {
                    kill_tree(pid);
                    return true;
                }
            }
        }
    });
    let heard = |line: &str| {
        // The receiver is gone after a kill. A line that it has not seen yet says as much as two.
        let _ = progress.try_send(());
        on_line(line);
    };
    let read = child.stdout.take().map_or(Ok(()), |stdout| each_line(BufReader::new(stdout), heard));
    let status = child.wait().map_err(Error::io(format!("wait for {}", shown(command))));
    drop(progress);
    let hung = watchdog.join().unwrap_or(false);
    read.map_err(Error::io(format!("read from {}", shown(command))))?;
    Ok(if hung { Ended::Silence(limit) } else { Ended::Exit(status?) })
}

fn each_line(mut input: impl BufRead, mut on_line: impl FnMut(&str)) -> std::io::Result<()> {
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        on_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        line.clear();
    }
    Ok(())
}

/// Kills `root` and everything below it, by pid. The shell does it: it is on every machine, and a signal sent
/// from here would be unsafe code.
pub fn kill_tree(root: u32) {
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -KILL \"$@\"", "sh"])
        .args(descendants(root, &parents()).iter().map(u32::to_string));
    // `kill` complains about processes that ended meanwhile, which is harmless.
    let _ = kill.stderr(Stdio::null()).status();
}

/// Each process's parent.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// The parent's pid in a line of /proc/PID/stat. The name before it may hold spaces and parentheses.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_hide_its_parent() {
        assert_eq!(parent_in("12 (a) S (b)) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent_in("garbage"), None);
    }

    #[test]
    fn descendants_are_found_at_every_depth_and_other_processes_are_not() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (9, 1)]);
        assert_eq!(descendants(2, &parents), [2, 3, 4]);
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_and_its_last_line_is_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; printf 'test hangs ... '; wait"]);
        let mut lines = Vec::new();
        let ended = watch(&mut command, Duration::from_millis(300), |line| lines.push(line.to_owned()));
        assert!(matches!(ended, Ok(Ended::Silence(_))));
        assert_eq!(lines[1], "test hangs ... ");
        // It was killed; the kernel may need a moment to take it away.
        let stat = || fs::read_to_string(format!("/proc/{}/stat", lines[0])).unwrap_or_default();
        let started = Instant::now();
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(started.elapsed() < Duration::from_secs(5), "still there: {}", stat());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_that_keeps_printing_may_take_longer_than_the_limit() {
        let mut command = Command::new("sh");
        command.args(["-c", "for i in 1 2 3 4 5 6; do sleep 1; echo $i; done"]);
        let mut lines = 0;
        let ended = watch(&mut command, Duration::from_secs(5), |_| lines += 1);
        assert!(matches!(ended, Ok(Ended::Exit(status)) if status.success()));
        assert_eq!(lines, 6);
    }
}
