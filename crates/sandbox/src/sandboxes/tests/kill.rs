//! Death at every step. A child process runs whole life cycles of sandboxes and kills itself
//! (SIGKILL) at the n-th point between two changes of the system, for every n; another one recovers
//! and is killed at every step of that. Then nothing may be left that is not listed, and running
//! sandboxes must be unchanged (cni-runtime.md section A.5).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::lab::{Lab, host_pod, pod};
use crate::fault::DIE_AT;
use crate::{Filter, SandboxId, Sandboxes, State};

/// The environment of a child: its lab.
const LAB: &str = "RUSSET_TEST_LAB";
/// More than any life cycle has; ends the loop if the step is never reached by mistake.
const STEPS_MAX: u64 = 500;

/// In a child: the given lab. Otherwise a new one.
fn own_lab() -> (Option<tempfile::TempDir>, Lab) {
    match std::env::var_os(LAB) {
        Some(path) => (None, Lab(PathBuf::from(path))),
        None => {
            let (dir, lab) = super::lab();
            (Some(dir), lab)
        }
    }
}

/// Records what a client saw: `run ID` was ready at that time, `down ID` was to be stopped at that
/// time.
fn say(lab: &Lab, word: &str, id: &SandboxId) {
    use std::io::Write as _;
    let mut file = fs::OpenOptions::new().create(true).append(true).open(lab.0.join("said")).unwrap();
    writeln!(file, "{word} {id}").unwrap();
}

fn said(lab: &Lab, word: &str) -> BTreeSet<SandboxId> {
    let text = fs::read_to_string(lab.0.join("said")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

#[test]
fn lives_of_every_kind_end_as_they_should() {
    let (_dir, lab) = own_lab();
    let sandboxes = lab.open();
    let run = |config| {
        let id = sandboxes.run(config).unwrap();
        say(&lab, "run", &id);
        id
    };
    let stayed = run(pod("stays"));
    let host = run(host_pod("host"));
    let web = run(pod("web"));
    say(&lab, "down", &web);
    sandboxes.stop(&web).unwrap();
    run(pod("web"));
    say(&lab, "down", &host);
    sandboxes.remove(&host).unwrap();
    lab.set("fail-add");
    assert!(sandboxes.run(pod("fails")).is_err());
    lab.clear("fail-add");
    assert_eq!(sandboxes.status(&stayed).unwrap().state, State::Ready);
    assert_eq!(sandboxes.list(&Filter::default()).len(), 2);
    assert_eq!(lab.ids("addresses").len(), 2);
}

#[test]
fn opening_recovers() {
    let (_dir, lab) = own_lab();
    lab.clear("fail-add");
    let listed = lab.open().list(&Filter::default());
    assert!(listed.iter().all(|sandbox| sandbox.trouble.is_none()), "{listed:?}");
}

fn child(lab: &Path, test: &str, die_at: u64) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("sandboxes::tests::kill::{test}"), "--test-threads=1"]);
    command.env(LAB, lab).env(DIE_AT, die_at.to_string());
    let output = command.output().unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    output.status
}

/// What must hold after recovery, wherever the process died.
fn inspect(lab: &Lab, sandboxes: &Sandboxes, place: &str) {
    let listed = sandboxes.list(&Filter::default());
    let ids: BTreeSet<SandboxId> = listed.iter().map(|sandbox| sandbox.id.clone()).collect();
    let ready = |id: &SandboxId| listed.iter().any(|it| it.id == *id && it.state == State::Ready);
    for id in said(lab, "run").difference(&said(lab, "down")) {
        assert!(ready(id), "{place}: {id} was ready and is not");
        assert_eq!(
            lab.verbs(id).len(),
            usize::from(lab.ids("addresses").contains(id)),
            "{place}: {id} was touched"
        );
    }
    for sandbox in
        listed.iter().filter(|sandbox| sandbox.state == State::Ready && !sandbox.config.host_network)
    {
        assert!(lab.ids("addresses").contains(&sandbox.id), "{place}: {} has no address", sandbox.id);
    }
    for id in lab.ids("addresses") {
        assert!(ready(&id), "{place}: {id} is not ready and has an address");
    }
    for thing in lab.everything() {
        let of_listed = ids.iter().any(|id| thing.contains(id.as_str()));
        assert!(of_listed, "{place}: {thing} is stray");
    }
    for id in &ids {
        sandboxes.remove(id).unwrap();
    }
    assert_eq!(lab.everything(), Vec::<String>::new(), "{place}");
}

/// What a life killed at each of its steps has left, to `check` with the step's number; returns how many there were.
fn killed_at_each_step(check: impl Fn(&Lab, u64)) -> u64 {
    let mut steps = 0;
    for n in 1..STEPS_MAX {
        let (dir, lab) = super::lab();
        if child(dir.path(), "lives_of_every_kind_end_as_they_should", n).success() {
            steps = n - 1;
            break;
        }
        lab.clear("fail-add");
        check(&lab, n);
    }
    assert!((40..STEPS_MAX - 1).contains(&steps), "{steps}");
    steps
}

#[test]
fn a_daemon_killed_at_any_step_leaves_nothing_that_is_not_listed() {
    // cni-runtime.md section 6.2 item 44
    let steps = killed_at_each_step(|lab, n| inspect(lab, &lab.open(), &format!("killed at step {n}")));
    println!("killed at each of {steps} steps");
}

#[test]
fn a_recovery_killed_at_any_step_is_done_by_the_next() {
    let (mut lives, mut recoveries) = (0, 0);
    // One point in three: each costs a process for every step of its recovery.
    for n in (1..STEPS_MAX).step_by(3) {
        let (dir, lab) = super::lab();
        if child(dir.path(), "lives_of_every_kind_end_as_they_should", n).success() {
            break;
        }
        for m in 1..STEPS_MAX {
            if child(dir.path(), "opening_recovers", m).success() {
                break;
            }
            recoveries += 1;
        }
        lives += 1;
        inspect(&lab, &lab.open(), &format!("killed at step {n}, and then in every recovery"));
    }
    println!("killed in {recoveries} recoveries of {lives} lives");
    assert!(lives > 13 && recoveries > 2 * lives, "{recoveries} of {lives}");
}

#[test]
fn a_loss_of_power_at_any_step_leaves_no_address() {
    let steps = killed_at_each_step(|lab, n| {
        let sandboxes = lab.reboot();
        assert!(lab.ids("addresses").is_empty(), "step {n}");
        let listed = sandboxes.list(&Filter::default());
        assert!(listed.iter().all(|sandbox| sandbox.state == State::NotReady), "step {n}");
        for sandbox in listed {
            sandboxes.remove(&sandbox.id).unwrap();
        }
        assert_eq!(lab.everything(), Vec::<String>::new(), "step {n}");
    });
    println!("power lost at each of {steps} steps");
}

#[test]
fn a_daemon_killed_during_a_plugin_finds_the_plugins_result() {
    for moment in ["kill-before-add", "kill-in-add", "kill-in-del"] {
        let (dir, lab) = super::lab();
        lab.set(moment);
        let status = child(dir.path(), "lives_of_every_kind_end_as_they_should", 0);
        assert_eq!(status.signal(), Some(9), "{moment}");
        lab.clear(moment);
        lab.clear("fail-add");
        inspect(&lab, &lab.open(), moment);
    }
}

#[test]
fn an_add_that_outlives_its_daemon_takes_no_address_after_recovery() {
    let (dir, lab) = super::lab();
    let fifo = lab.0.join("go-on-after-death");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let status = child(dir.path(), "lives_of_every_kind_end_as_they_should", 0);
    assert_eq!(status.signal(), Some(9));
    // The reader of the pipe still exists; opening waits for it.
    let waiting = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let sandboxes = lab.open();
    drop(waiting);
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty());
    assert_eq!(reader.unwrap_err(), rustix::io::Errno::NXIO);
    inspect(&lab, &sandboxes, "killed while the plugin waited");
}
