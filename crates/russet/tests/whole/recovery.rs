//! An agent that is killed in the middle of requests: the next one rolls its unfinished operations
//! back or forward, and running pods are not affected.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use russet_linux::FileLock;
use russet_testkit::{eventually, let_pass, write_program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;
use crate::syscall_killer::{KINDS, STEPS_MAX, SyscallKiller};

/// The result of a request.
struct Step<'a> {
    name: &'a str,
    /// The answer was success. The agent may have died after that, during later work, or before it,
    /// during work of its own: then the plugin worked without it.
    succeeded: bool,
}

/// Repeats `request` with the agent killed at one step after the other, until it completes before
/// the agent reaches that step; `check` runs after each restart. Returns how many times the agent
/// was killed.
fn killed_at_each_step(
    node: &mut TestNode,
    request: impl Fn(&TestNode) -> Answer,
    mut check: impl FnMut(&TestNode, Step<'_>),
) -> usize {
    let mut kills = 0;
    for kind in KINDS {
        for nth in 1..=STEPS_MAX {
            let name = format!("{kind} {nth}");
            let executioner = SyscallKiller::wait_for(node.agent_pid(), kind, nth);
            let answer = request(node);
            let succeeded = answer.status == 0;
            if succeeded {
                // A DEL leaves work to do.
                eventually(TIMEOUT, || node.has_lost_its_agent() || node.unfinished() == 0);
                executioner.detach();
            } else {
                assert_eq!(answer.code(), 11, "{name}: {answer:?}");
                executioner.done();
            }
            let lives = node.agent_lives();
            if !lives {
                kills += 1;
                node.start_agent();
            }
            check(node, Step { name: &name, succeeded });
            if lives {
                break;
            }
            assert!(nth < STEPS_MAX, "{kind}: there is no end");
        }
    }
    kills
}

fn journal(node: &TestNode) -> Value {
    node.russet(&["journal", "-o", "json"]).result()
}

fn interfaces(pod: &TestPod) -> Vec<String> {
    let links = russet_testkit::ip_json(&["-n", &pod.netns_name, "link"]);
    let links = links.as_array().unwrap().iter();
    links.map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "root: makes network namespaces; tool: strace; takes a minute"]
fn an_add_killed_at_any_step_leaves_nothing_and_running_pods_lose_no_packet() {
    let mut node = TestNode::start(&[]);
    let (one, two, new) = (node.pod(), node.pod(), node.pod());
    node.add(&one);
    let pings = Pinging::start(&one, &node.add(&two).addresses()[0]);
    let links = node.links();
    assert_eq!(links.len(), 2);
    let kills = killed_at_each_step(
        &mut node,
        |node| node.add(&new),
        |node, Step { name: step, succeeded }| {
            if succeeded {
                assert_eq!(node.del(&new).status, 0, "{step}");
            }
            // Detached interfaces are deleted a moment later.
            eventually(TIMEOUT, || node.links() == links);
            assert_eq!(interfaces(&new), ["lo"], "{step}");
            assert_eq!(node.allocated(), 4, "{step}");
            assert_eq!(node.unfinished(), 0, "{step}");
        },
    );
    // At least: the journal's three records before its end, the store's commit, and the batches of
    // the wiring.
    assert!(kills > 8, "{kills}");
    assert_eq!(node.add(&new).addresses().len(), 2);
    assert_eq!(journal(&node)["attachments"].as_array().unwrap().len(), 3);
    pings.finish();
}

#[test]
#[ignore = "root: makes network namespaces; tool: strace; takes a minute"]
fn an_add_repeated_and_killed_at_any_step_takes_nothing_from_its_running_pod() {
    let mut node = TestNode::start(&[]);
    let (one, two) = (node.pod(), node.pod());
    let addresses = node.add(&one).addresses();
    let pings = Pinging::start(&two_of(&node, &two), &addresses[0]);
    let kills = killed_at_each_step(
        &mut node,
        |node| node.add(&one),
        |node, Step { name: step, .. }| {
            assert_eq!(node.add(&one).addresses(), addresses, "{step}");
            assert_eq!((node.allocated(), node.unfinished()), (4, 0), "{step}");
        },
    );
    assert!(kills > 3, "{kills}");
    pings.finish();
}

fn two_of(node: &TestNode, pod: &TestPod) -> TestPod {
    node.add(pod).result();
    pod.clone()
}

#[test]
#[ignore = "root: makes network namespaces; tool: strace; takes a minute"]
fn a_del_killed_at_any_step_is_finished_by_the_next_agent_also_when_it_was_answered() {
    let mut node = TestNode::start(&[]);
    let (one, two, old) = (node.pod(), node.pod(), node.pod());
    node.add(&one);
    let pings = Pinging::start(&one, &node.add(&two).addresses()[0]);
    node.add(&old).result();
    let (mut carried_out, mut answered) = (0, 0);
    let kills = killed_at_each_step(
        &mut node,
        |node| node.del(&old),
        |node, Step { name: step, succeeded }| {
            // Killed before anything was recorded: nothing was started, and the pod is complete.
            let started = succeeded || journal(node)["attachments"].as_array().unwrap().len() == 2;
            carried_out += usize::from(started);
            answered += usize::from(succeeded);
            assert_eq!(node.unfinished(), 0, "{step}");
            if started {
                eventually(TIMEOUT, || node.links().len() == 2);
                assert_eq!((interfaces(&old), node.allocated()), (vec!["lo".to_owned()], 4), "{step}");
            }
            assert_eq!(node.add(&old).addresses().len(), 2, "{step}");
        },
    );
    assert!(kills > 4 && carried_out > 4, "{kills}, {carried_out}");
    // Besides the last run of each kind, in which the agent was not killed: at the store's commit,
    // and at the journal's last record.
    assert!(answered > KINDS.len() + 1, "{answered}");
    pings.finish();
}

/// Connections to the agent, also those that it has not accepted; the kernel lists them with the
/// listener's path.
fn connections(node: &TestNode) -> usize {
    let list = || std::fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    node.netns().with(list).unwrap().lines().filter(|line| line.ends_with("run/russet/cni.sock")).count() - 1
}

#[test]
#[ignore = "root: makes network namespaces; takes half a minute"]
fn row_64_a_hundred_adds_with_the_agent_killed_in_the_middle_are_told_to_try_again_and_converge() {
    // cni-runtime.md section 6.2, row 64
    const PODS: usize = 100;
    // The node name of plugins without an agent.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase();
    let mut node = TestNode::start(&["--node-name", &name]);
    let pods: Vec<TestPod> = (0..PODS).map(|_| node.pod()).collect();
    let (one, two) = (node.pod(), node.pod());
    node.add(&one);
    let pings = Pinging::start(&one, &node.add(&two).addresses()[0]);
    let agent = node.agent_pid();
    let first = std::thread::scope(|scope| {
        let node = &node;
        let adds: Vec<_> = pods.iter().map(|pod| scope.spawn(move || node.add(pod))).collect();
        // In the middle: some have their interfaces, and others are connected to an agent that has
        // stopped.
        eventually(TIMEOUT, || node.links().len() > 2);
        let agent = Pid::from_raw(i32::try_from(agent).unwrap()).unwrap();
        kill_process(agent, Signal::STOP).unwrap();
        eventually(TIMEOUT, || connections(node) > 0);
        kill_process(agent, Signal::KILL).unwrap();
        adds.into_iter().map(|add| add.join().unwrap()).collect::<Vec<_>>()
    });
    node.wait_for_agents_death();
    // Requests after the agent's death found no agent, and worked directly; those in progress get
    // the code to try again.
    let failed: Vec<&Answer> = first.iter().filter(|answer| answer.status != 0).collect();
    assert!(!failed.is_empty(), "no request was in progress");
    for answer in failed {
        assert_eq!(answer.code(), 11, "{answer:?}");
    }
    node.start_agent();
    let again: Vec<Answer> = std::thread::scope(|scope| {
        let node = &node;
        let adds: Vec<_> = pods.iter().map(|pod| scope.spawn(move || node.add(pod))).collect();
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    let addresses: BTreeSet<String> = again.iter().flat_map(Answer::addresses).collect();
    assert_eq!(addresses.len(), 2 * PODS, "an address was given twice");
    for (first, again) in first.iter().zip(&again).filter(|(first, _)| first.status == 0) {
        assert_eq!(first.addresses(), again.addresses(), "what had succeeded stays");
    }
    assert_eq!((node.allocated(), node.unfinished()), (2 * PODS + 4, 0));
    pings.finish();
    for pod in &pods {
        assert_eq!(node.del(pod).status, 0);
    }
    eventually(TIMEOUT, || node.links().len() == 2);
    assert_eq!(node.allocated(), 4);
}

#[test]
#[ignore = "root: makes network namespaces; takes a minute and a half"]
fn after_a_reboot_leaked_addresses_are_released_after_two_checks() {
    // cni-runtime.md appendix A.5, cri-o#4727, plugins#252
    // Pools that no other test has: an interface of another test with the same address would keep it
    // allocated.
    let pools = ["--ipv4-pool", "10.228.0.0/24", "--ipv6-pool", "fd72:7573:7365:c490::/64"];
    let mut node = TestNode::start(&[&pools[..], &["--leak-repair", "1h"]].concat());
    let (old, stays) = (node.pod(), node.pod());
    node.add(&old);
    node.stop_agent();
    let_pass(Duration::from_secs(31));
    // What a reboot removes: links, namespaces' interfaces, and all below /run.
    for link in node.links() {
        russet_testkit::run("ip", &["-n", node.netns_name(), "link", "del", &link]);
    }
    std::fs::remove_dir_all(node.path("run")).unwrap();
    node.start_agent();
    node.add(&stays);
    assert_eq!(node.allocated(), 4);
    eventually(Duration::from_secs(60), || node.allocated() == 2);
    eventually(Duration::from_secs(10), || node.log().contains("leaks of the previous boot were looked for"));
    let attachments = journal(&node);
    let [attachment] = &attachments["attachments"].as_array().unwrap()[..] else { panic!("{attachments}") };
    assert_eq!(attachment["container"], json!(stays.container));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_journal_is_shown_with_and_without_an_agent_and_is_of_no_use_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let addresses = node.add(&pod).addresses();
    let shown = node.russet(&["journal"]);
    assert!(shown.status == 0 && shown.stdout.contains(&pod.container), "{shown:?}");
    assert!(shown.stdout.contains(&addresses[0]), "{shown:?}");
    node.stop_agent();
    let view = journal(&node);
    assert_eq!(view["attachments"][0]["addresses"], json!(addresses));
    assert_eq!((&view["tail"], &view["schema"]), (&json!("clean"), &json!(1)));
    let mode = std::fs::metadata(node.path("run/russet/journal")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::remove_file(node.path("run/russet/journal")).unwrap();
    let none = node.russet(&["journal"]);
    assert!(none.status == 1 && none.stderr.contains("there is no journal at"), "{none:?}");
    // Without a journal, the agent trusts the kernel's state.
    node.start_agent();
    assert_eq!(journal(&node)["attachments"][0]["addresses"], json!(addresses));
    assert_eq!(node.add(&pod).addresses(), addresses);
}

/// Starts an ADD through the agent that hangs in an IPAM plugin, and returns that plugin's process.
fn hang(node: &TestNode, pod: &TestPod, bin: &Path) -> (Child, Pid) {
    let (plugin, began) = (bin.join("hang"), bin.join("began"));
    write_program(
        &plugin,
        &format!("#!/bin/sh\necho $$ >{0}.new; mv {0}.new {0}; exec sleep 600\n", began.display()),
    );
    let config = node.config(json!({"type": "bridge", "ipam": {"type": "hang"}}));
    let mut command = pod.call(env!("CARGO_BIN_EXE_russet"), "ADD", bin);
    let add = node.spawn(command.arg0("bridge"), config.to_string());
    eventually(TIMEOUT, || began.exists());
    let pid = std::fs::read_to_string(&began).unwrap().trim().parse().unwrap();
    (add, Pid::from_raw(pid).unwrap())
}

/// A dead process has no arguments, and neither has one that its parent has not reaped yet.
fn is_running(process: Pid) -> bool {
    let arguments = std::fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero()));
    arguments.is_ok_and(|arguments| !arguments.is_empty())
}

#[test]
#[ignore = "root: makes network namespaces; takes 20 s"]
fn a_stopping_agent_holds_the_nodes_lock_until_its_work_has_ended() {
    let mut node = TestNode::start(&[]);
    let (pod, bin) = (node.pod(), tempfile::tempdir().unwrap());
    let (mut add, plugin) = hang(&node, &pod, bin.path());
    let agent = node.agent_pid();
    kill_process(Pid::from_raw(agent.try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    // The next holder of the lock may revert this agent's unfinished work.
    let lock = FileLock::exclusive(node.path("run/russet/node.lock"), Instant::now() + TIMEOUT * 3).unwrap();
    let files = std::fs::read_dir(format!("/proc/{agent}/fd")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "the agent still has files, and running threads");
    // The kernel killed it with the agent's thread; its parent now is the reaper of orphans, which
    // may take a moment.
    eventually(TIMEOUT, || !is_running(plugin));
    node.wait_for_agents_death();
    assert!(!add.wait().unwrap().success());
    drop(lock);
    // Reverted by a plugin that works again.
    std::fs::write(bin.path().join("hang"), "#!/bin/sh\n").unwrap();
    node.start_agent();
    eventually(TIMEOUT, || node.unfinished() == 0);
}
