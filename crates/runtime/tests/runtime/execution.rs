//! How plugins are run, and how they fail.

use std::fs::{self, OpenOptions};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use russet_cni_spec::{Version, code};
use russet_linux::execute::ExecuteError;
use russet_runtime::{PluginError, RuntimeError};

use crate::{Lab, attachment, chain};

/// Far longer than anything here takes, and far shorter than the sleeps that must not be waited
/// for.
const SOON: Duration = Duration::from_secs(30);

/// Waits until the process is gone, or an unreaped zombie.
fn await_death(pid: &str) {
    let end = Instant::now() + SOON;
    let alive = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while alive() {
        assert!(Instant::now() < end, "{pid} lives on");
        thread::yield_now();
    }
}

#[test]
fn failures_read_as_libcnis() {
    // cni-runtime.md section 6.2 item 18, the table of section 2.2
    let lab = Lab::new();
    lab.plugin("silent", "exit 3")
        .plugin("stderr", "echo oh no >&2; exit 3")
        .plugin("garbage", "echo hm; exit 1");
    lab.plugin("json", r#"echo '{"code":11,"msg":"busy","details":"pool"}'; echo noise >&2; exit 1"#);
    let message = |kind| lab.message(&chain(Version::V1_0_0, &[kind]));
    assert!(message("silent").ends_with("netplugin failed with no error message: exit status: 3"));
    assert!(message("stderr").contains(r#"netplugin failed: "oh no\n""#));
    assert!(
        message("garbage").contains(r#"netplugin failed but error parsing its diagnostic message "hm\n": "#)
    );
    assert!(message("json").ends_with("failed (add): busy; pool"));
    let error = lab.runtime.add(&chain(Version::V1_0_0, &["json"]), &attachment()).unwrap_err();
    assert_eq!(error.to_cni().code, code::TRY_AGAIN_LATER);
}

#[test]
fn a_plugin_and_what_it_started_die_at_the_deadline() {
    // cni-runtime.md section 2.2
    let mut lab = Lab::new();
    // Enough time to write the child's pid.
    lab.runtime.plugin_deadline = Duration::from_secs(3);
    let pid_file = lab.path("pid");
    lab.plugin("slow", &format!("sleep 600 & echo $! > '{}'; wait", pid_file.display()));
    let started = Instant::now();
    let message = lab.message(&chain(Version::V1_0_0, &["slow"]));
    assert!(started.elapsed() < SOON && message.ends_with("killed: no answer within 3 s"), "{message}");
    await_death(fs::read_to_string(pid_file).unwrap().trim());
}

#[test]
fn a_forgotten_child_that_holds_stdout_is_not_waited_for() {
    // cni-runtime.md section 2.2
    let lab = Lab::new();
    let pid_file = lab.path("pid");
    lab.plugin("leaky", &format!("sleep 600 & echo $! > '{}'; echo '{{}}'", pid_file.display()));
    let started = Instant::now();
    let added = lab.runtime.add(&chain(Version::V1_0_0, &["leaky"]), &attachment());
    Command::new("kill").arg(fs::read_to_string(pid_file).unwrap().trim()).status().unwrap();
    added.unwrap();
    assert!(started.elapsed() < SOON);
}

#[test]
fn endless_output_is_cut_off() {
    let lab = Lab::new();
    lab.plugin("loud", "yes").plugin("chatty", "yes >&2");
    assert!(
        lab.message(&chain(Version::V1_0_0, &["loud"]))
            .ends_with("killed: more than 1048576 bytes on stdout")
    );
    let mut lab = lab;
    lab.runtime.plugin_deadline = Duration::from_millis(500);
    assert!(lab.message(&chain(Version::V1_0_0, &["chatty"])).contains("no answer within"));
}

#[test]
fn large_input_and_output_do_not_deadlock() {
    let lab = Lab::new();
    let filler = "x".repeat(400_000);
    // It answers before it has read: neither side may wait for the other.
    lab.plugin("echo", "");
    let script = format!(
        "#!/bin/sh\nprintf '{{\"dns\":{{\"domain\":\"%s\"}}}}' '{}'\ncat > /dev/null\n",
        &filler[..100_000]
    );
    fs::write(lab.path("bin/echo"), script).unwrap();
    let list = crate::list(Version::V1_0_0, &[&format!(r#"{{"type":"echo","filler":"{filler}"}}"#)]);
    let result = lab.runtime.add(&list, &attachment()).unwrap();
    assert_eq!(result.dns.domain.len(), 100_000);
    // And one that does not read at all.
    fs::write(lab.path("bin/echo"), "#!/bin/sh\necho '{}'\n").unwrap();
    lab.runtime.add(&list, &attachment()).unwrap();
}

#[test]
fn a_busy_executable_is_tried_again() {
    // cni-runtime.md section 0 item 13
    let lab = Lab::new();
    lab.adder("a");
    let path = lab.path("bin/a");
    let writer = OpenOptions::new().append(true).open(&path).unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let installer = thread::spawn(move || {
        let _ = stopped.recv_timeout(Duration::from_millis(100));
        drop(writer);
    });
    lab.runtime.add(&chain(Version::V1_0_0, &["a"]), &attachment()).unwrap();
    drop(stop);
    installer.join().unwrap();
}

#[test]
fn an_executable_that_stays_busy_is_given_up() {
    let mut lab = Lab::new();
    lab.runtime.plugin_deadline = Duration::from_millis(200);
    lab.adder("a");
    let _writer = OpenOptions::new().append(true).open(lab.path("bin/a")).unwrap();
    let error = lab.runtime.add(&chain(Version::V1_0_0, &["a"]), &attachment()).unwrap_err();
    let busy = matches!(&error, RuntimeError::Plugin { source: PluginError::Execute(ExecuteError::Spawn { source, .. }), .. }
        if source.kind() == std::io::ErrorKind::ExecutableFileBusy);
    assert!(busy, "{error}");
}

#[test]
fn a_directory_is_no_plugin() {
    // cni-runtime.md section 1.10
    let lab = Lab::new();
    fs::create_dir(lab.path("bin/dir")).unwrap();
    assert!(lab.message(&chain(Version::V1_0_0, &["dir"])).contains("failed to find plugin \"dir\" in path"));
    fs::write(lab.path("bin/text"), "no program").unwrap();
    assert!(lab.message(&chain(Version::V1_0_0, &["text"])).contains("Permission denied"));
}
