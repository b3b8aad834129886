//! Shared code of the engines' tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builtin::Builtin;
use crate::{Config, Metadata, SandboxId};

/// A configuration with this host name.
pub fn config(hostname: &str) -> Config {
    let metadata = Metadata { name: "web".into(), namespace: "ns1".into(), uid: "u1".into(), attempt: 0 };
    Config { metadata, hostname: hostname.to_owned(), ..Config::default() }
}

/// A process's namespace of this kind.
pub fn link(pid: u32, kind: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

/// The calling thread's namespace, which the test kit has changed.
pub fn own(kind: &str) -> PathBuf {
    std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap()
}

/// The output of a host script inside a sandbox.
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
