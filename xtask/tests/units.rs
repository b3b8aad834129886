//! The systemd units in packaging/: how far they are hardened, by systemd's own measure.

#![allow(clippy::unwrap_used, reason = "this is a test, outside its #[test] functions, too")]

use std::path::PathBuf;
use std::process::Command;

/// Daemons whose units are hardened. What a pod's own unit starts is the operator's.
const HARDENED: [&str; 3] = ["russet-agent", "russet-cri", "russet-flanneld"];
/// systemd calls less than this "OK".
const EXPOSURE_MAX: f64 = 5.0;

fn unit(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd").join(format!("{name}.service"))
}

#[test]
#[ignore = "tool: systemd-analyze"]
fn daemons_are_exposed_less_than_medium() {
    for name in HARDENED {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager"]).arg(unit(name));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().rev().find(|line| line.contains("Overall exposure level"));
        let line = line.unwrap_or_else(|| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
        println!("{}", line.trim_start_matches('→').trim());
        let level = line.rsplit_once(": ").unwrap().1.split(' ').next().unwrap();
        assert!(level.parse::<f64>().unwrap() < EXPOSURE_MAX, "{text}");
    }
}

#[test]
fn daemons_work_in_the_hosts_mount_namespace() {
    // Named namespaces, bind mounts of sandboxes and lock files are to be seen by other programs.
    let makes_a_mount_namespace = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default();
        let protect = key.starts_with("Protect") && !["ProtectClock", "ProtectHostname"].contains(&key);
        protect
            || [
                "Private",
                "ReadOnly",
                "Inaccessible",
                "RootDirectory",
                "TemporaryFileSystem",
                "RuntimeDirectory",
            ]
            .iter()
            .any(|it| key.starts_with(it))
    };
    for name in HARDENED {
        let text = std::fs::read_to_string(unit(name)).unwrap();
        let found: Vec<&str> = text.lines().filter(makes_a_mount_namespace).collect();
        assert_eq!(found, Vec::<&str>::new(), "{name}");
        for setting in ["Type=notify", "WatchdogSec=60", "StartLimitIntervalSec=0"] {
            assert!(text.lines().any(|line| line == setting), "{name}: {setting}");
        }
    }
}
