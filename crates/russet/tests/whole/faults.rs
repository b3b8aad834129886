//! Every fault of every plugin of a chain of Russet's plugins on a node with an agent, in ADD and
//! in DEL, before and after the plugin's work; and faults of the chain's environment. Once the
//! fault is removed, one DEL leaves no address, no link, no rule, no entry and nothing unfinished
//! in the journal. The steps are counted. The same over foreign plugins is in
//! crates/runtime/tests/runtime/faults.rs, the agent's death at each of its system calls in
//! recovery.rs.

use std::fs;
use std::time::Duration;

use russet_cni_spec::{ConfigList, code};
use russet_linux::NetNs;
use russet_runtime::{Attachment, Runtime, RuntimeError};
use russet_testkit::faults::{Fault, Faulty, Step};
use russet_testkit::{eventually, require_tool, run, write_program};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::SmallDisk;
use crate::node::{TIMEOUT, TestNode, TestPod};
use crate::reference_plugins::installed;

/// A node with an agent, a runtime whose plugins can be made faulty, and a pod.
struct Machine {
    node: TestNode,
    /// The directory of the real plugins.
    ours: TempDir,
    pod: TestPod,
    runtime: Runtime,
    list: ConfigList,
    attachment: Attachment,
}

/// An address and a veth by the agent, a rule for a port, and a limit.
const KINDS: [&str; 3] = ["russet", "portmap", "bandwidth"];
/// A port that nothing else on the node has.
const PORT: u16 = 18_473;
/// For a hanging plugin, and with it for the two others of its chain.
const HANGING_DEADLINE: Duration = Duration::from_secs(5);
/// Two verbs, three plugins, six faults, of which five may also come when the work is done.
const STEPS: usize = 2 * 3 * (6 + 5);

// === impl Machine ===

impl Machine {
    fn start() -> Self {
        let mut node = TestNode::start(&[]);
        let ours = installed(&KINDS);
        let bin = node.path("bin");
        fs::create_dir(&bin).unwrap();
        for kind in KINDS {
            let work = ours.path().join(kind);
            let script = Faulty::script(node.root(), kind, &format!("'{}'", work.display()));
            write_program(&bin.join(kind), &format!("#!/bin/sh\n{script}"));
        }
        let pod = node.pod();
        let mut attachment =
            Attachment::new(pod.container.parse().unwrap(), pod.path(), "eth0".parse().unwrap());
        let ports = json!([{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}]);
        attachment.capability_args.insert("portMappings".into(), ports);
        let limit = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
        attachment.capability_args.insert("bandwidth".into(), limit);
        let runtime = Runtime::new(vec![bin], node.path("var/lib/cni"));
        let list = parse(&conflist(&node));
        Self { node, ours, pod, runtime, list, attachment }
    }

    fn add(&self, runtime: &Runtime) -> Result<(), RuntimeError> {
        self.node.netns().with(|| runtime.add(&self.list, &self.attachment).map(drop)).unwrap()
    }

    fn del(&self, runtime: &Runtime, list: &ConfigList) -> Result<(), RuntimeError> {
        self.node.netns().with(|| runtime.del(list, &self.attachment)).unwrap()
    }

    /// Everything on the node that belongs to attachments.
    fn left(&self) -> Vec<String> {
        let mut left = self.node.links();
        let inside = NetNs::open(self.pod.path()).and_then(|pod| pod.with(|| run("ip", &["-br", "link"])));
        let inside = inside.unwrap_or_default();
        left.extend(inside.lines().filter(|line| !line.starts_with("lo ")).map(str::to_owned));
        let rules =
            self.node.netns().with(|| run(require_tool("nft").to_str().unwrap(), &["list", "ruleset"]));
        let port = PORT.to_string();
        left.extend(rules.unwrap().lines().filter(|line| line.contains(&port)).map(str::to_owned));
        let entries = fs::read_dir(self.node.path("var/lib/cni/results")).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.file_name().into_string().unwrap()));
        left
    }

    /// Links are deleted in the background.
    fn assert_nothing_is_left(&self, when: &str) {
        let mut left = Vec::new();
        let empty = || {
            left = self.left();
            left.is_empty()
        };
        if !gone(empty) {
            panic!("{when}: {left:?}");
        }
        assert_eq!(self.node.allocated(), 0, "{when}: addresses");
    }

    fn plugins(&self) -> Faulty {
        Faulty { kinds: KINDS, bin: self.node.path("bin"), dir: self.node.root().to_owned() }
    }

    /// Executes one step, and undoes it.
    fn take(&mut self, step: Step) {
        let mut runtime = self.runtime.clone();
        if step.fault == Fault::Hanging {
            runtime.plugin_deadline = HANGING_DEADLINE;
        }
        if step.verb == "DEL" {
            self.add(&self.runtime).unwrap();
            assert!(self.left().len() >= 4, "two links, a rule, an entry: {:?}", self.left());
        }
        self.plugins().break_it(step, self.node.agent_pid());
        let done = match step.verb {
            "ADD" => self.add(&runtime),
            _ => self.del(&runtime, &self.list),
        };
        match (step.fault.words(), done) {
            (Some(words), Err(error)) => assert!(error.to_string().contains(words), "{step:?}: {error}"),
            (None, Ok(())) => {}
            // It was killed while it handled the request.
            (None, Err(error)) if error.to_cni().code == code::TRY_AGAIN_LATER => {}
            (_, done) => panic!("{step:?}: {done:?}"),
        }
        if step.fault == Fault::Agentless {
            self.node.wait_for_agents_death();
            self.node.start_agent();
        }
        self.plugins().mend_it(step);
        self.del(&self.runtime, &self.list).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        self.assert_nothing_is_left(&format!("{step:?}"));
        self.del(&self.runtime, &self.list).unwrap_or_else(|error| panic!("{step:?}: twice: {error}"));
    }

    /// Executes every step of a verb; returns how many there were.
    fn take_all(mut self, verb: &'static str) -> usize {
        self.assert_nothing_is_left("before");
        let steps = Step::all(verb, &Fault::ALL);
        steps.iter().for_each(|step| self.take(*step));
        self.node.stop_agent();
        drop(self.ours);
        steps.len()
    }
}

/// Whether it happens within the tests' timeout.
fn gone(empty: impl FnMut() -> bool) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(TIMEOUT, empty))).is_ok()
}

fn conflist(node: &TestNode) -> Value {
    let portmap = node.config(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    let bandwidth = node.config(json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}));
    json!({"cniVersion": "1.0.0", "name": "testnet", "plugins": [node.config(json!({})), portmap, bandwidth]})
}

fn parse(list: &Value) -> ConfigList {
    ConfigList::parse(list.to_string().as_bytes()).unwrap()
}

#[test]
#[ignore = "kernel: veth, ifb, tbf, nf_tables; root; tool: ip, nft"]
fn one_del_leaves_nothing_after_any_fault_of_a_plugin_in_an_add() {
    // cni-runtime.md section 0 item 12, section 2.2 and appendix A.5
    assert_eq!(Machine::start().take_all("ADD"), STEPS / 2);
}

#[test]
#[ignore = "kernel: veth, ifb, tbf, nf_tables; root; tool: ip, nft"]
fn the_next_del_leaves_nothing_after_any_fault_of_a_plugin_in_a_del() {
    // cni-runtime.md section 0 item 12, section 2.2 and appendix A.5
    assert_eq!(Machine::start().take_all("DEL"), STEPS / 2);
}

#[test]
#[ignore = "kernel: veth, ifb, tbf, nf_tables, tmpfs; root; tool: ip, nft, mount"]
fn a_cache_on_a_full_disk_undoes_the_add_of_our_plugins() {
    // cni-runtime.md appendix A.5
    let mut machine = Machine::start();
    let cache = machine.node.path("cache");
    fs::create_dir(&cache).unwrap();
    let mounted = SmallDisk::mount(&cache, 1 << 16);
    fs::create_dir(cache.join("results")).unwrap();
    let full = fs::write(cache.join("ballast"), vec![1; 1 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let runtime = Runtime { cache_dir: cache.clone(), ..machine.runtime.clone() };
    let error = machine.add(&runtime).unwrap_err();
    assert_eq!(error.to_cni().code, code::IO, "{error}");
    machine.assert_nothing_is_left("a full disk");
    assert_eq!(fs::read_dir(cache.join("results")).unwrap().count(), 0);
    fs::remove_file(cache.join("ballast")).unwrap();
    machine.add(&runtime).unwrap();
    fs::write(cache.join("ballast"), vec![1; 1 << 20]).unwrap_err();
    machine.del(&runtime, &machine.list).unwrap();
    machine.assert_nothing_is_left("a disk that filled up meanwhile");
    assert_eq!(fs::read_dir(cache.join("results")).unwrap().count(), 0);
    drop(mounted);
    machine.node.stop_agent();
}

#[test]
#[ignore = "kernel: veth, ifb, tbf, nf_tables; root; tool: ip, nft"]
fn our_plugins_leave_nothing_of_a_network_that_was_changed_or_renamed_meanwhile() {
    // cni-runtime.md section 3.4; appendix A.5
    let mut machine = Machine::start();
    machine.add(&machine.runtime).unwrap();
    let other = json!({"cniVersion": "1.0.0", "name": "testnet", "plugins": [{"type": "loopback"}]});
    machine.del(&machine.runtime, &parse(&other)).unwrap();
    machine.assert_nothing_is_left("another chain under the name");
    machine.add(&machine.runtime).unwrap();
    let mut renamed = conflist(&machine.node);
    renamed["name"] = "renamed".into();
    machine.del(&machine.runtime, &parse(&renamed)).unwrap();
    let detached = || machine.runtime.del_cached(&machine.attachment.container_id).unwrap();
    assert!(machine.node.netns().with(detached).unwrap().unreadable.is_empty());
    machine.assert_nothing_is_left("another name");
    machine.node.stop_agent();
}

#[test]
#[ignore = "kernel: veth, ifb, tbf, nf_tables; root; tool: ip, nft, umount"]
fn our_plugins_leave_nothing_of_a_namespace_that_was_unmounted_or_removed() {
    // cni-runtime.md section 6.2 item 22; section 7, kubernetes#57465 and cilium#40459
    let mut machine = Machine::start();
    for removed in [false, true] {
        machine.add(&machine.runtime).unwrap();
        let path = machine.pod.path();
        run("umount", &[path.to_str().unwrap()]);
        if removed {
            fs::remove_file(&path).unwrap();
        }
        machine.del(&machine.runtime, &machine.list).unwrap();
        let _ = fs::remove_file(&path);
        machine.assert_nothing_is_left(if removed { "removed" } else { "unmounted" });
        NetNs::create_named(&machine.pod.netns_name).unwrap();
    }
    machine.node.stop_agent();
}
