//! What the tests of the engines share.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builtin::Builtin;
use crate::{Config, Metadata, SandboxId};

/// A pod's, with that host name.
pub fn config(hostname: &str) -> Config {
    let metadata = Metadata { name: "web".into(), namespace: "ns1".into(), uid: "u1".into(), attempt: 0 };
    Config { metadata, hostname: hostname.to_owned(), ..Config::default() }
}

/// Which namespace of this kind a process is in.
pub fn link(pid: u32, kind: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

/// Which one the calling thread is in, which the test kit has moved.
pub fn own(kind: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap()
}

/// What a script of the host prints inside a sandbox.
pub fn inside(engine: &Builtin, files: &Path, (id, config): (&SandboxId, &Config), script: &str) -> String {
    let output = std::thread::scope(|scope| {
        let run = || {
            engine.enter(id, config, files).unwrap();
            Command::new("sh").args(["-ec", script]).output().unwrap()
        };
        scope.spawn(run).join().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
