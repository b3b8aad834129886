//! Attachments of one runtime that another one detaches by the cache: Russet's runtime, and the Go
//! libcni of containerd and podman, in both directions, with Russet's plugins in the chain
//! (cni-runtime.md section 2.4).

use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use russet_cni_spec::{CniResult, ConfigList, Version};
use russet_runtime::{Attachment, CacheEntry, Runtime};
use russet_testkit::cri::Pod;
use russet_testkit::{eventually, ip_json, require_cni_plugin, require_tool, run, write_program};
use serde_json::{Value, json};

use crate::containerd::Containerd;
use crate::node::{TIMEOUT, TestNode};

/// The last plugin of a chain; it records each request in one line: the variables, and its standard
/// input.
const RECORDER: &str = r#"#!/usr/bin/python3
import json, os, sys
request = json.load(sys.stdin)
if os.environ["CNI_COMMAND"] == "VERSION":
    print(json.dumps({"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}))
    sys.exit()
line = {name: os.environ.get("CNI_" + name, "") for name in ("COMMAND", "CONTAINERID", "NETNS", "IFNAME", "ARGS")}
line["stdin"] = request
with open("LOG", "a") as log:
    log.write(json.dumps(line) + "\n")
if line["COMMAND"] == "ADD":
    print(json.dumps(request["prevResult"]))
"#;

/// The recorder in a directory of plugins, and its records.
struct Recorder(PathBuf);

impl Recorder {
    fn install(plugins: &Path) -> Self {
        let (program, log) = (plugins.join("recorder"), plugins.join("recorder.log"));
        write_program(&program, &RECORDER.replace("LOG", log.to_str().unwrap()));
        Self(log)
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<Value> {
        let lines = std::fs::read_to_string(&self.0).unwrap_or_default();
        let _ = std::fs::remove_file(&self.0);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The only attachment to the network in a runtime's cache; containerd's loopback is an attachment
/// to a network of its own.
fn only(runtime: &Runtime) -> CacheEntry {
    let mut entries = runtime.attachments();
    entries.retain(|entry| entry.network.as_str() == "testnet");
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

/// The attachment in another runtime's result, for an ADD of ours: the same but for the namespace,
/// which old libcnis do not record.
fn again(entry: &CacheEntry, list: &ConfigList) -> (Attachment, CniResult) {
    let result = entry.result(list.version().unwrap()).unwrap();
    let inside = result.interfaces.iter().find(|it| !it.sandbox.is_empty()).unwrap();
    (Attachment { netns: inside.sandbox.clone().into(), ..entry.attachment.clone() }, result)
}

/// The result that a plugin received; Go writes an empty `dns` for a missing one.
fn previous(call: &Value) -> CniResult {
    CniResult::from_value(&call["stdin"]["prevResult"], Version::V1_0_0).unwrap()
}

/// The request of the only DEL.
fn the_only_del(calls: &[Value]) -> &Value {
    assert_eq!(
        calls.iter().map(|it| it["COMMAND"].as_str().unwrap()).collect::<Vec<_>>(),
        ["DEL"],
        "{calls:?}"
    );
    &calls[0]
}

fn conflist_with_recorder(node: &TestNode) -> Value {
    let ours = node.config(json!({}));
    json!({"cniVersion": "1.0.0", "name": "testnet", "plugins": [
        ours, {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "recorder"}]})
}

/// The rules of a pod's ports on the node.
fn port_rules(node: &TestNode) -> usize {
    let rules = node.netns().with(|| run("iptables-save", &["-t", "nat"])).unwrap();
    rules.lines().filter(|line| line.contains("CNI-DN-")).count()
}

#[test]
#[ignore = "root: makes network namespaces; tool: containerd, runc, busybox, ctr, python3, iptables-save"]
fn russet_detaches_for_containerd_and_containerd_for_russet() {
    // cni-runtime.md section 2.4; section 6.2 item 42: containerd's requests, and that Russet's
    // plugin accepts them
    let mut node = TestNode::start(&[]);
    let containerd = Containerd::start(&node, &conflist_with_recorder(&node));
    let recorder = Recorder::install(&containerd.plugins());
    let runtime = Runtime::new(vec![containerd.plugins()], node.path("var/lib/cni"));
    let pod = |name: &str| Pod { host_ports: vec![(18080, 80)], ..Pod::named(name) };

    let theirs = containerd.run(&pod("theirs"));
    let entry = only(&runtime);
    assert_eq!(entry.attachment.container_id.as_str(), theirs.0);
    assert_eq!(entry.attachment.capability_args["portMappings"][0]["HostPort"], 18080, "{entry:?}");
    assert!(port_rules(&node) > 0);
    let added = recorder.take();
    let detached = node.netns().with(|| runtime.del_cached(&entry.attachment.container_id)).unwrap().unwrap();
    assert_eq!(
        (detached.entries.len(), runtime.attachments().len(), port_rules(&node)),
        (2, 0, 0),
        "with its loopback"
    );
    assert_eq!(node.allocated(), 0);
    let calls = recorder.take();
    let del = the_only_del(&calls);
    assert_eq!(previous(del), previous(&added[0]), "the recorder's result was that of portmap");
    assert_eq!(del["ARGS"].as_str().map(sorted), added[0]["ARGS"].as_str().map(sorted));
    containerd.remove_all(std::slice::from_ref(&theirs));
    containerd.assert_forgotten(&[theirs]);
    // The first with the namespace, those after it without; none with a result, since the entry is
    // gone.
    let calls = recorder.take();
    let netns = |call: &Value| call["NETNS"].as_str().unwrap().is_empty();
    assert!(calls.len() >= 2 && !netns(&calls[0]) && calls[1..].iter().all(netns), "{calls:?}");
    assert!(calls.iter().all(|call| call["COMMAND"] == "DEL" && call["stdin"].get("prevResult").is_none()));

    let ours = containerd.run(&pod("ours"));
    let entry = only(&runtime);
    let list = entry.list().unwrap();
    let (attachment, before) = again(&entry, &list);
    let result = node.netns().with(|| {
        runtime.del(&list, &attachment).unwrap();
        runtime.add(&list, &attachment).unwrap()
    });
    let result = result.unwrap();
    assert_ne!(result.ips, before.ips, "an address that was given back is given again last");
    recorder.take();
    containerd.remove_all(std::slice::from_ref(&ours));
    containerd.assert_forgotten(&[ours]);
    assert_eq!(previous(&recorder.take()[0]), result, "from the file that we wrote");
    eventually(TIMEOUT, || node.links().is_empty());
    assert_eq!((port_rules(&node), node.allocated()), (0, 0));
    node.stop_agent();
}

/// containerd builds them from a map, in varying order.
fn sorted(args: &str) -> Vec<&str> {
    let mut pairs: Vec<&str> = args.split(';').collect();
    pairs.sort_unstable();
    pairs
}

/// podman with directories of its own, its CNI backend and no image: a host program in a container.
struct Podman {
    root: tempfile::TempDir,
}

/// cni-runtime.md sections 3.5 and 3.6: no systemd, no raised limits, plugins from one directory.
const CONTAINERS_CONF: &str = r#"
[network]
network_backend = "cni"
cni_plugin_dirs = ["ROOT/bin"]
network_config_dir = "ROOT/net.d"
default_network = "testnet"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"#;

impl Podman {
    /// Russet's plugins and a recorder, as one network.
    fn new() -> (Self, Recorder) {
        let podman = Self::with(&[
            json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "host-local",
                "ranges": [[{"subnet": "10.206.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}),
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
            json!({"type": "tuning"}),
            json!({"type": "recorder"}),
        ]);
        symlink(require_cni_plugin("tuning"), podman.path("bin/tuning")).unwrap();
        let recorder = Recorder::install(&podman.path("bin"));
        (podman, recorder)
    }

    fn with(plugins: &[Value]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for dir in ["bin", "net.d", "rootfs/bin"] {
            std::fs::create_dir_all(path(dir)).unwrap();
        }
        for ours in ["russet", "bridge", "host-local", "portmap"] {
            symlink(env!("CARGO_BIN_EXE_russet"), path("bin").join(ours)).unwrap();
        }
        std::fs::copy(require_tool("busybox"), path("rootfs/bin/busybox")).unwrap();
        let conflist = json!({"cniVersion": "0.4.0", "name": "testnet", "plugins": plugins});
        std::fs::write(path("net.d/10-testnet.conflist"), conflist.to_string()).unwrap();
        let configuration = CONTAINERS_CONF.replace("ROOT", root.path().to_str().unwrap());
        std::fs::write(path("containers.conf"), configuration).unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn podman(&self, args: &[&str]) {
        let output = self.output(args);
        assert!(output.status.success(), "podman {args:?}: {output:?}");
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(require_tool("podman"));
        command.env("CONTAINERS_CONF", self.path("containers.conf")).args(["--storage-driver", "vfs"]);
        command.arg("--root").arg(self.path("storage")).arg("--runroot").arg(self.path("run"));
        command.args(args).output().unwrap()
    }

    fn start(&self, name: &str) {
        let started = self.run(name, &["-p", "18080:80"]);
        assert!(started.status.success(), "{started:?}");
    }

    /// `podman run` of a program that stays.
    fn run(&self, name: &str, options: &[&str]) -> Output {
        let rootfs = self.path("rootfs");
        let before = ["run", "-d", "--name", name, "--network", "testnet"];
        let after = ["--rootfs", rootfs.to_str().unwrap(), "/bin/busybox", "sleep", "1000000"];
        self.output(&[&before[..], options, &after[..]].concat())
    }

    fn remove(&self, name: &str) {
        self.podman(&["rm", "--force", "--time", "0", name]);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Ends what a failed test has left running; these directories are the test's own.
        let mut command = Command::new("podman");
        command.env("CONTAINERS_CONF", self.path("containers.conf")).args(["--storage-driver", "vfs"]);
        command.arg("--root").arg(self.path("storage")).arg("--runroot").arg(self.path("run"));
        let _ = command.args(["rm", "--all", "--force", "--time", "0"]).output();
    }
}

/// Objects of Russet's plugins on this node for containers.
fn held() -> Vec<String> {
    let links = ip_json(&["link"]);
    let links = links.as_array().unwrap().iter().map(|it| it["ifname"].as_str().unwrap().to_owned());
    let files = std::fs::read_dir("/var/lib/cni/networks/testnet").into_iter().flatten();
    let files = files.map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut held: Vec<String> = links.filter(|it| it != "lo" && it != "br0").collect();
    held.extend(files.filter(|name| name.starts_with("10.")));
    held.extend(
        run("nft", &["list", "ruleset"]).lines().filter(|it| it.contains("18080")).map(str::to_owned),
    );
    held
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root; tool: podman, runc, conmon, busybox, python3, ip, nft, mount, the Go plugin tuning"]
fn russet_detaches_for_podman_and_podman_for_russet() {
    // cni-runtime.md sections 2.4 and 3.5; section 6.2 item 56: podman takes no interface without a MAC
    russet_testkit::in_netns_with_loopback(|| {
        // The host's /sys again, which has the control groups.
        run("umount", &["/sys"]);
        let (podman, recorder) = Podman::new();
        for dir in ["/run", "/var/lib"] {
            run("mount", &["-t", "tmpfs", "tmpfs", dir]);
        }
        let runtime = Runtime::new(vec![podman.path("bin")], "/var/lib/cni");

        podman.start("theirs");
        let entry = only(&runtime);
        assert_eq!(held().len(), 4, "a link, an address, a port and what it leads to: {:?}", held());
        let added = recorder.take();
        assert_eq!(runtime.del_cached(&entry.attachment.container_id).unwrap().entries.len(), 1);
        let calls = recorder.take();
        assert_eq!(previous(the_only_del(&calls)), previous(&added[0]));
        assert_eq!((held(), runtime.attachments().len()), (Vec::new(), 0));
        podman.remove("theirs");

        podman.start("ours");
        let entry = only(&runtime);
        let list = entry.list().unwrap();
        let (attachment, before) = again(&entry, &list);
        runtime.del(&list, &attachment).unwrap();
        let result = runtime.add(&list, &attachment).unwrap();
        assert_ne!(result.ips, before.ips, "an address that was given back is given again last");
        recorder.take();
        podman.remove("ours");
        let calls = recorder.take();
        assert_eq!(previous(the_only_del(&calls)), result, "from the file that we wrote");
        assert_eq!((held(), runtime.attachments().len()), (Vec::new(), 0));
    });
}

/// What podman says of a container's only network: its first address of IPv4, and its MAC.
fn network_of(podman: &Podman, name: &str) -> (String, String) {
    let shown = podman.output(&["inspect", name]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_else(|_| panic!("{shown:?}"));
    let network = &shown[0]["NetworkSettings"]["Networks"]["testnet"];
    let text = |key: &str| network[key].as_str().unwrap_or_default().to_owned();
    (text("IPAddress"), text("MacAddress"))
}

#[test]
#[ignore = "kernel: veth, nf_tables; root; tool: podman, runc, conmon, busybox, ip, mount"]
fn podman_gives_the_address_and_the_mac_that_its_flags_name() {
    const MAC: &str = "02:11:22:33:44:55";
    russet_testkit::in_netns_with_loopback(|| {
        // The host's again, which has the control groups.
        run("umount", &["/sys"]);
        let node = tempfile::tempdir().unwrap();
        let podman = Podman::with(&[json!({"type": "russet", "root": node.path(),
            "agent_socket": node.path().join("run/russet/cni.sock"), "russet_path": env!("CARGO_BIN_EXE_russet")})]);
        for dir in ["/run", "/var/lib"] {
            run("mount", &["-t", "tmpfs", "tmpfs", dir]);
        }
        let first = podman.run("first", &[]);
        assert!(first.status.success(), "{first:?}");
        let (taken, _) = network_of(&podman, "first");
        // Another address of the node's block.
        let free = Ipv4Addr::from(u32::from(taken.parse::<Ipv4Addr>().unwrap()) ^ 32).to_string();

        let asked = podman.run("asked", &["--ip", &free, "--mac-address", MAC]);
        assert!(asked.status.success(), "{asked:?}");
        assert_eq!(network_of(&podman, "asked"), (free.clone(), MAC.to_owned()));
        let inside = podman.output(&["exec", "asked", "/bin/busybox", "ip", "addr", "show", "eth0"]);
        let inside = String::from_utf8(inside.stdout).unwrap();
        assert!(inside.contains(&format!("inet {free}/32")) && inside.contains(MAC), "{inside}");

        for (address, why) in [(&*taken, "already assigned"), ("192.0.2.1", "not in a configured pool")] {
            let refused = podman.run("refused", &["--ip", address]);
            let text = String::from_utf8(refused.stderr).unwrap();
            assert!(!refused.status.success() && text.contains(why), "{address}: {text}");
            podman.remove("refused");
        }
        podman.remove("asked");
        let again = podman.run("again", &["--ip", &free]);
        assert!(again.status.success(), "an address that was given back can be had again: {again:?}");
        ["again", "first"].iter().for_each(|name| podman.remove(name));
    });
}
