//! Without an agent: this process becomes `russet cni-direct`, which takes its lock and does the
//! work.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::MemfdFlags;

use super::{DIRECT_COMMAND, DIRECT_PLUGIN, Executable, agent_socket, path_setting};
use crate::plugin::Request;
use crate::{CniError, Verb};

/// The command's name.
const COMMAND: &str = "russet";

/// The installation path of docs/install.md and distributions.
const USUAL_PATHS: [&str; 2] = ["/usr/local/bin/russet", "/usr/bin/russet"];

/// Replaces this process; returns only on failure.
pub(super) fn exec(plugin: &str, request: &Request, executable: Executable) -> CniError {
    let prepared = command(request, executable).and_then(|binary| {
        let stdin =
            spool(&request.stdin).map_err(|error| CniError::io("cannot keep the configuration", error))?;
        Ok((binary, stdin))
    });
    match prepared {
        Ok((binary, stdin)) => {
            let mut command = Command::new(&binary);
            // Not its own name: a copy of the command may have a plugin's name, and would act as
            // the plugin again.
            command.arg0(COMMAND).arg(DIRECT_COMMAND).env(DIRECT_PLUGIN, plugin).stdin(stdin);
            let error = command.exec();
            let msg = format!("{}, and {} cannot be executed", no_agent(request), binary.display());
            match error.kind() {
                ErrorKind::ExecutableFileBusy => CniError::try_again_later(msg, error),
                _ => CniError::io(msg, error),
            }
        }
        Err(error) => error,
    }
}

/// Replaces this process by the plugin that answers STATUS for `config`; returns only on failure.
pub(super) fn exec_status(plugin: &str, config: &[u8]) -> CniError {
    let own = std::env::current_exe().map_err(|error| CniError::io("cannot find this executable", error));
    let stdin = spool(config).map_err(|error| CniError::io("cannot keep the configuration", error));
    match (own, stdin) {
        (Ok(own), Ok(stdin)) => {
            let mut command = Command::new(own);
            command.arg0(plugin).env("CNI_COMMAND", Verb::Status.as_str()).env("CNI_PATH", "/").stdin(stdin);
            CniError::io("cannot execute this executable again", command.exec())
        }
        (Err(error), _) | (_, Err(error)) => error,
    }
}

/// The `russet` command: this executable if it is the command, else the one beside it, then the
/// configuration's `russet_path`, then the usual installation path, because configurations of
/// Calico's do not name it.
fn command(request: &Request, executable: Executable) -> Result<PathBuf, CniError> {
    let own = std::env::current_exe().map_err(|error| CniError::io("cannot find this executable", error))?;
    if executable == Executable::Command {
        return Ok(own);
    }
    let beside = own.parent().map(|dir| dir.join(COMMAND));
    let fixed = path_setting(&request.config, "russet_path")?;
    let mut candidates = [beside, fixed].into_iter().flatten().chain(USUAL_PATHS.map(PathBuf::from));
    candidates.find(|candidate| is_command(candidate, &own)).ok_or_else(|| {
        let [first, second] = USUAL_PATHS;
        let details = format!(
            "{} has no russet beside it, russet_path names none, and there is neither {first} nor {second}",
            own.display()
        );
        CniError::io(format!("{}, and the russet command was not found", no_agent(request)), details)
    })
}

/// Names the socket, because an agent of another root may run on this machine.
fn no_agent(request: &Request) -> String {
    match agent_socket(&request.config) {
        Ok(socket) => format!("no russet agent listens at {}", socket.display()),
        Err(error) => error.to_string(),
    }
}

/// The plugin itself may be installed as `russet`, too. It and its copies, which have its size, are
/// not the command.
fn is_command(candidate: &Path, own: &Path) -> bool {
    let (Ok(candidate), Ok(own)) = (fs::metadata(candidate), fs::metadata(own)) else { return false };
    let same_file = (candidate.dev(), candidate.ino()) == (own.dev(), own.ino());
    candidate.is_file() && !same_file && candidate.len() != own.len()
}

/// A file of memory that the program which replaces this process reads as its standard input.
fn spool(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("cni-configuration", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_spooled_configuration_is_longer_than_a_pipe_and_complete() {
        let bytes = vec![7; 200_000];
        let mut file = spool(&bytes).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
    }

    #[test]
    fn the_plugin_and_its_copies_are_not_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("russet-cni"), "small").unwrap();
        fs::write(path("copy"), "small").unwrap();
        fs::hard_link(path("russet-cni"), path("link")).unwrap();
        fs::write(path("russet"), "much larger").unwrap();
        fs::create_dir(path("dir")).unwrap();
        for not in ["russet-cni", "copy", "link", "absent", "dir"] {
            assert!(!is_command(&path(not), &path("russet-cni")), "{not}");
        }
        assert!(is_command(&path("russet"), &path("russet-cni")));
    }
}
