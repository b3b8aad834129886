//! `russet install` on a node whose pods come and go meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use russet_testkit::write_program;
use serde_json::{Value, json};

use crate::node::{Answer, TestNode, TestPod};

/// Executables of a version: complete and working, distinguished by bytes after their end. Another
/// process writes them: a file that this process had open for writing could not be executed while a child of
/// another test still has its descriptor.
pub fn version(root: &Path, name: &str) -> PathBuf {
    let dir = root.join(name);
    fs::create_dir(&dir).unwrap();
    for file in ["russet", "russet-cni"] {
        let mut command = Command::new("sh");
        command.args(["-c", "cp \"$0\" \"$1\" && printf %s \"$2\" >> \"$1\"", env!("CARGO_BIN_EXE_russet")]);
        let done: Answer = command.arg(dir.join(file)).arg(name).output().unwrap().into();
        assert_eq!(done.status, 0, "{done:?}");
    }
    dir.join("russet")
}

fn install(russet: &Path, root: &Path, more: &[&str]) -> Value {
    let mut command = Command::new(russet);
    command.args(["install", "-o", "json", "--root"]).arg(root).args(more);
    let done: Answer = command.output().unwrap().into();
    done.result()
}

/// Runs a plugin by its path, as a runtime does.
fn plugin(node: &TestNode, path: &Path, verb: &str, pod: &TestPod) -> Answer {
    let mut command = pod.call(path, verb, path.parent().unwrap());
    node.output(&mut command, node.config(json!({})).to_string())
}

#[test]
#[ignore = "root: makes network namespaces"]
fn no_pod_fails_while_the_executables_are_replaced_repeatedly() {
    // kubernetes.md K90
    const INSTALLATIONS: usize = 4;
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path().join("node");
    let versions = ["v1", "v2"].map(|name| version(machine.path(), name));
    let report = install(&versions[0], &root, &[]);
    assert_eq!(report["last"][0]["step"], "write", "{report}");
    let russet = root.join("opt/cni/bin/russet");
    let done = AtomicBool::new(false);
    let turns = std::thread::scope(|scope| {
        let pods = scope.spawn(|| {
            let mut turns = 0;
            while !done.load(Ordering::Relaxed) {
                for verb in ["ADD", "DEL"] {
                    let answer = plugin(&node, &russet, verb, &pod);
                    assert_eq!(answer.status, 0, "{verb}: {answer:?}");
                }
                turns += 1;
            }
            turns
        });
        for number in 1..=INSTALLATIONS {
            let report = install(&versions[number % 2], &root, &[]);
            assert_eq!(report["steps"][0]["step"], "copy", "{report}");
            assert_eq!(report["last"][0]["step"], "leave", "{report}");
        }
        done.store(true, Ordering::Relaxed);
        pods.join().unwrap()
    });
    assert!(turns > 0);
    let left = fs::read_dir(root.join("opt/cni/bin")).unwrap().map(|it| it.unwrap().file_name());
    let (previous, plugins): (Vec<_>, Vec<_>) =
        left.partition(|name| name.to_string_lossy().ends_with(".previous"));
    assert_eq!((previous.len(), plugins.len()), (3, 3), "a temporary file is left: {previous:?} {plugins:?}");
}

#[test]
#[ignore = "root: runs the command as an operator would"]
fn a_dry_run_says_what_would_be_done_and_writes_nothing() {
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path().join("node");
    let russet = version(machine.path(), "v1");
    let report = install(&russet, &root, &["--dry-run", "--plugins", "russet,calico"]);
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().filter_map(|step| step["path"].as_str()).collect();
    assert!(steps.iter().any(|path| path.ends_with("/opt/cni/bin/calico")), "{report}");
    assert!(!root.exists());
}

#[test]
#[ignore = "root: runs the command as an operator would"]
fn the_next_step_after_an_installation_is_one_for_its_root() {
    let machine = tempfile::tempdir().unwrap();
    let russet = version(machine.path(), "v1");
    let next = |name: &str, more: &[&str]| {
        let root = machine.path().join(name);
        let done: Answer =
            Command::new(&russet).args(["install", "--root"]).arg(&root).args(more).output().unwrap().into();
        assert_eq!(done.status, 0, "{done:?}");
        let next = done.stdout.lines().find_map(|line| line.strip_prefix("next: ")).map(str::to_owned);
        (root.display().to_string(), next)
    };
    let (root, image) = next("image", &[]);
    assert_eq!(image, Some(format!("systemctl --root={root} enable russet-agent.service")));
    let (root, second) = next("second", &["--in-place"]);
    assert_eq!(second, Some(format!("russet agent --root {root}")));
    assert_eq!(next("bare", &["--no-unit"]).1, None);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_come_and_go_by_an_installation_that_is_used_in_place() {
    let mut node = TestNode::without_agent(&[]);
    let russet = version(node.root(), "v1");
    install(&russet, node.root(), &["--in-place"]);
    node.start_agent();
    let pods = [node.pod(), node.pod()];
    // The command looks for the network, the plugins and the cache below the root that it is given.
    let cni = |verb: &str, pod: &TestPod| -> Answer {
        let mut command = Command::new(&russet);
        let netns = pod.path().display().to_string();
        command.env_clear().env("PATH", crate::node::PATH).args(["cni", verb, "russet", &netns, "--root"]);
        command.arg(node.root());
        russet_linux::process::in_netns(&mut command, node.netns()).unwrap();
        let answer = Answer::from(command.output().unwrap());
        assert_eq!(answer.status, 0, "{verb}: {answer:?}");
        answer
    };
    let addresses = pods.each_ref().map(|pod| cni("add", pod).addresses());
    assert_eq!(addresses.each_ref().map(Vec::len), [2, 2], "{addresses:?}");
    for address in &addresses[1] {
        assert!(pods[0].pings(&["-W", "5", address]), "{address}: {}", node.log());
    }
    assert_eq!(fs::read_dir(node.path("var/lib/cni/results")).unwrap().count(), 2);
    // The agent of this root has served both plugins of the chain, `russet` and `portmap`.
    let metrics = node.get("/metrics");
    assert!(metrics.contains("russet_cni_requests_total{verb=\"ADD\",code=\"0\"} 4\n"), "{metrics}");
    pods.iter().for_each(|pod| drop(cni("check", pod)));
    pods.iter().for_each(|pod| drop(cni("del", pod)));
    assert_eq!(node.allocated(), 0);
}

#[test]
#[ignore = "root: runs the command as an operator would"]
fn the_unit_of_flanneld_is_installed_without_an_agent_and_uninstalled() {
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path().join("node");
    let russet = version(machine.path(), "v1");
    install(
        &russet,
        &root,
        &["--with", "flanneld", "--no-agent", "--no-conflist", "--plugins", "flannel,bridge"],
    );
    let units = root.join("etc/systemd/system");
    let text = fs::read_to_string(units.join("russet-flanneld.service")).unwrap();
    assert!(text.contains("ExecStart=/usr/local/bin/russet flanneld"), "{text}");
    assert!(!units.join("russet-agent.service").exists() && !root.join("etc/cni/net.d").exists());
    // A repeated installation keeps the unit that it finds in its record.
    fs::write(units.join("russet-flanneld.service"), "old").unwrap();
    install(&russet, &root, &["--no-conflist"]);
    assert_eq!(fs::read_to_string(units.join("russet-flanneld.service")).unwrap(), text);
    let done: Answer =
        Command::new(&russet).args(["uninstall", "--dry-run", "--root"]).arg(&root).output().unwrap().into();
    assert!(done.stdout.contains("etc/systemd/system/russet-flanneld.service"), "{done:?}");
}

#[test]
#[ignore = "root, tool: unshare, mount"]
fn a_russet_cri_that_does_not_start_is_an_error_and_other_pods_keep_working() {
    let machine = tempfile::tempdir().unwrap();
    let russet = version(machine.path(), "v1");
    // A ready agent, and a systemd that cannot start everything.
    write_program(&russet.with_file_name("russet-cni"), "#!/bin/sh\ncat >/dev/null\n");
    write_program(
        &russet.with_file_name("systemctl"),
        "#!/bin/sh\ncase \"$*\" in *restart*cri*) echo it hangs >&2; exit 1;; esac\n",
    );
    let mut command = Command::new("unshare");
    // The installation is recorded below /, and this machine's record must not be changed.
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /var/lib && exec \"$0\" \"$@\""]);
    command.arg(&russet).args(["install", "--start", "--with", "cri"]);
    for (option, dir) in [
        ("--bin-dir", "bin"),
        ("--cni-bin-dir", "cni"),
        ("--cni-conf-dir", "net.d"),
        ("--unit-dir", "system"),
    ] {
        command.arg(option).arg(machine.path().join(dir));
    }
    let path = [russet.parent().unwrap().to_str().unwrap(), "/usr/sbin:/usr/bin:/sbin:/bin"].join(":");
    let done: Answer = command.env("PATH", path).output().unwrap().into();
    assert_eq!(done.status, 1, "{done:?}");
    assert!(done.stderr.contains("systemctl restart russet-cri.service: it hangs"), "{done:?}");
    assert!(machine.path().join("net.d/10-russet.conflist").exists(), "the agent is ready: {done:?}");
}
