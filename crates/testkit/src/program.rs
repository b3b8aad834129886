//! Executables that tests make.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::spawn_with_input;
use crate::require_tool;

/// Writes a script, or another executable's content, that anyone may execute. Another process writes the file: a thread
/// that forks a child while this process has it open for writing would have its execution fail with `ETXTBSY`, until the
/// child executes its own program.
#[track_caller]
pub fn write_program(path: &Path, content: &str) {
    let mut command = Command::new(require_tool("install"));
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdout(Stdio::null());
    let installed = spawn_with_input(&mut command, content.as_bytes()).wait().expect("wait for install");
    assert!(installed.success(), "install {}: {installed}", path.display());
}

/// Copies an executable as [`write_program`] writes one.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let mut command = Command::new(require_tool("install"));
    let installed = command.args(["-m", "755"]).args([from, to]).status().expect("run install");
    assert!(installed.success(), "install {} as {}: {installed}", from.display(), to.display());
}
