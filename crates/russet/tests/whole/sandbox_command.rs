//! `russet sandbox`: pods from manifests on a node with an agent, and host programs inside them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use russet_linux::{FileLock, process};
use russet_testkit::{eventually, write_program};
use serde_json::{Value, json};

use crate::node::{Answer, TIMEOUT, TestNode};

/// A node with a Russet network, on which only the command makes pods.
pub struct Host {
    pub node: TestNode,
}

pub const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  hostname: web-0
  hostAliases: [{ip: 192.0.2.7, hostnames: [db.local]}]
  securityContext: {sysctls: [{name: net.ipv4.ip_default_ttl, value: "77"}]}
  containers: [{name: a, image: nginx}]
"#;

const DB: &str =
    "{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: ns1}, spec: {dnsPolicy: Default}}";

// === impl Host ===

impl Host {
    pub fn new() -> Self {
        let node = TestNode::start(&[]);
        // There are no plugin executables: Russet's plugin needs none.
        let conf = node.path("etc/cni/net.d");
        std::fs::create_dir_all(&conf).unwrap();
        let mut plugin = node.config(json!({}));
        for settings in ["name", "cniVersion"] {
            plugin.as_object_mut().unwrap().remove(settings);
        }
        let list = json!({ "cniVersion": "1.1.0", "name": "testnet", "plugins": [plugin] });
        std::fs::write(conf.join("10-testnet.conflist"), list.to_string()).unwrap();
        Self { node }
    }

    pub fn manifest(&self, name: &str, yaml: &str) -> PathBuf {
        let path = self.node.path(name);
        std::fs::write(&path, yaml).unwrap();
        path
    }

    /// `russet sandbox` in the node's network, with the default directories.
    pub fn sandbox<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Answer {
        self.command(args).output().unwrap().into()
    }

    fn command<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("RUSSET_ROOT", self.node.root());
        command.arg("sandbox").args(args).stdin(Stdio::null());
        process::in_netns(&mut command, self.node.netns()).unwrap();
        command
    }

    pub fn run(&self, manifest: &Path, more: &[&str]) -> Value {
        let mut args = vec!["run", manifest.to_str().unwrap(), "-o", "json", "--cluster-dns", "10.96.0.10"];
        args.extend(more);
        self.sandbox(&args).result()
    }

    /// The output of a program inside a pod, which must succeed.
    pub fn exec(&self, pod: &str, program: &[&str]) -> String {
        let args: Vec<&str> = ["exec", pod, "--"].iter().chain(program).copied().collect();
        let answer = self.sandbox(&args);
        assert_eq!(answer.status, 0, "{program:?}: {answer:?}");
        answer.stdout
    }

    /// Leftovers of pods: files, mounts and processes, by name.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for dir in [
            "run/russet/sandbox/engine",
            "run/russet/sandbox/netns",
            "run/russet/sandbox/sandboxes",
            "var/lib/cni/results",
        ] {
            let names = std::fs::read_dir(self.node.path(dir)).unwrap().map(|it| it.unwrap().file_name());
            left.extend(names.map(|name| format!("{dir}/{}", name.to_string_lossy())));
        }
        let root = self.node.root().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = mounts.lines().filter(|line| line.contains(root));
        left.extend(ours.filter(|line| !line.contains("/sandbox/netns ")).map(str::to_owned));
        left
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Only a failed test has any left.
        let answer = self.sandbox(&["rm", "--all"]);
        let netns = self.node.path("run/russet/sandbox/netns");
        let _ = rustix::mount::unmount(&netns, rustix::mount::UnmountFlags::DETACH);
        assert!(std::thread::panicking() || answer.status == 0, "{answer:?}");
    }
}

/// The first address of a pod in the output of `russet sandbox`.
pub fn address(pod: &Value) -> &str {
    pod["addresses"][0].as_str().unwrap_or_else(|| panic!("{pod}"))
}

fn process_lives(pod: &Value) -> bool {
    let pid = u32::try_from(pod["pid"].as_u64().unwrap()).unwrap();
    let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&cmdline).contains(pod["id"].as_str().unwrap())
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_command_that_waits_for_another_names_it() {
    let host = Host::new();
    let dir = host.node.path("run/russet/sandbox");
    std::fs::create_dir_all(&dir).unwrap();
    let other = FileLock::try_exclusive(dir.join("lock")).unwrap().unwrap();
    let mut waits = host.command(&["ls"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(&format!("waiting for process {} (", std::process::id())), "{line:?}");
    drop(other);
    let answer: Answer = waits.wait_with_output().unwrap().into();
    assert_eq!(answer.status, 0, "{answer:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: ping"]
fn two_pods_from_manifests_reach_each_other_and_rm_leaves_nothing() {
    // cni-runtime.md section 3.1: the whole chain, from a pod's manifest to its address, without a kubelet
    let mut host = Host::new();
    let (web, db) = (host.manifest("web.yaml", WEB), host.manifest("db.yaml", DB));
    let (web, db) = (host.run(&web, &[]), host.run(&db, &[]));
    assert_eq!(web["warnings"], json!(["spec.containers[0].image: has no effect here"]));
    assert_eq!(web["state"], "ready");
    assert!(process_lives(&web) && process_lives(&db));
    host.exec("web", &["ping", "-c", "1", "-W", "5", address(&db)]);
    host.exec("ns1/db", &["ping", "-c", "1", "-W", "5", address(&web)]);

    let listed = host.sandbox(&["ls", "-o", "json"]).result();
    let names: Vec<&str> =
        listed["pods"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["db", "web"], "the newest first");
    let inspected = host.sandbox(&["inspect", "default/web", "-o", "json"]).result();
    assert_eq!(inspected["addresses"], web["addresses"]);
    assert_eq!(inspected["config"]["labels"], json!({ "app": "web" }));
    assert_eq!(host.node.allocated(), 4);

    assert_eq!(host.sandbox(&["rm", "web"]).status, 0);
    assert!(!process_lives(&web) && process_lives(&db));
    assert_eq!(host.sandbox(&["rm", "web"]).status, 1, "there is no such pod any more");
    assert_eq!(host.sandbox(&["rm", "web", "--if-exists"]).status, 0);
    assert_eq!(host.sandbox(&["stop", "db"]).status, 0);
    assert!(!process_lives(&db));
    let listed = host.sandbox(&["ls", "-o", "json"]).result();
    assert_eq!(
        (&listed["pods"][0]["state"], &listed["pods"][0]["addresses"]),
        (&json!("not ready"), &json!([]))
    );
    assert_eq!(host.sandbox(&["rm", "--all"]).status, 0);
    assert_eq!(host.left(), [""; 0]);
    eventually(TIMEOUT, || host.node.links().is_empty());
    host.node.stop_agent();
    assert_eq!(host.node.allocated(), 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_program_inside_sees_the_pods_files_and_name_and_its_exit_code_is_the_commands() {
    let host = Host::new();
    let web = host.run(&host.manifest("web.yaml", WEB), &[]);
    let resolv_conf = host.exec("web", &["cat", "/etc/resolv.conf"]);
    let expected = "nameserver 10.96.0.10\nsearch default.svc.cluster.local svc.cluster.local cluster.local";
    assert!(resolv_conf.starts_with(expected) && resolv_conf.ends_with("options ndots:5\n"), "{resolv_conf}");
    assert_eq!(host.exec("web", &["uname", "-n"]), "web-0\n");
    assert_eq!(host.exec("web", &["cat", "/etc/hostname"]), "web-0\n");
    let hosts = host.exec("web", &["cat", "/etc/hosts"]);
    assert!(hosts.contains("192.0.2.7\tdb.local\n"), "{hosts}");
    assert!(hosts.contains(&format!("{}\tweb-0\n", address(&web))), "{hosts}");
    assert_eq!(host.exec("web", &["cat", "/proc/sys/net/ipv4/ip_default_ttl"]), "77\n");
    let links = host.exec("web", &["ls", "/sys/class/net"]);
    assert_eq!(links.split_whitespace().filter(|link| matches!(*link, "lo" | "eth0")).count(), 2, "{links}");

    let code = |program: &[&str]| {
        let args: Vec<&str> = ["exec", "web"].iter().chain(program).copied().collect();
        host.sandbox(&args).status
    };
    assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(code(&["/no/such/program"]), 127);
    assert_eq!(code(&["/etc/passwd"]), 126);
    assert_eq!(host.sandbox(&["exec", "absent", "true"]).status, 1);
    assert_eq!(host.sandbox(&["exec", "web"]).status, 2);
    assert_eq!(host.sandbox(&["rm", "web"]).status, 0);
    assert_eq!(host.left(), [""; 0]);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_pod_that_runs_keeps_its_name_until_it_is_replaced_or_has_died() {
    let host = Host::new();
    let manifest = host.manifest("web.yaml", WEB);
    let first = host.run(&manifest, &[]);
    let refused = host.sandbox(&["run", manifest.to_str().unwrap()]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("default/web exists already"), "{refused:?}");
    let second = host.run(&manifest, &["--replace"]);
    assert_ne!(first["id"], second["id"]);
    assert!(!process_lives(&first) && process_lives(&second));
    // The signal of the OOM killer.
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(second["pid"].as_u64().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually(TIMEOUT, || !process_lives(&second));
    assert_eq!(host.sandbox(&["exec", "web", "true"]).status, 1, "it does not run");
    let third = host.run(&manifest, &[]);
    assert!(process_lives(&third));
    assert_eq!(host.node.allocated(), 2, "what the dead one had is given back");
    assert_eq!(host.sandbox(&["rm", third["id"].as_str().unwrap()]).status, 0);
    assert_eq!(host.left(), [""; 0]);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_manifest_that_is_wrong_or_a_host_without_a_network_leaves_nothing() {
    let host = Host::new();
    let wrong = host.manifest("wrong.yaml", &WEB.replace("net.ipv4.ip_default_ttl", "vm.swappiness"));
    let refused = host.sandbox(&["run", wrong.to_str().unwrap()]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("vm.swappiness"), "{refused:?}");
    let own = host.manifest("own.yaml", &DB.replace("dnsPolicy: Default", "hostNetwork: true"));
    std::fs::remove_file(host.node.path("etc/cni/net.d/10-testnet.conflist")).unwrap();
    let refused = host.sandbox(&["run", host.manifest("web.yaml", WEB).to_str().unwrap()]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("network is not ready"), "{refused:?}");
    // The node's own network needs none.
    let pod = host.run(&own, &[]);
    assert_eq!((&pod["addresses"], &pod["netns"]), (&json!([]), &json!(null)));
    let node = host.node.netns().id().inode.to_string();
    assert_eq!(host.exec("db", &["stat", "-Lc", "%i", "/proc/self/ns/net"]).trim(), node);
    assert_eq!(host.sandbox(&["rm", "db"]).status, 0);
    // No pod had a network, so there is no directory of results.
    std::fs::create_dir_all(host.node.path("var/lib/cni/results")).unwrap();
    std::fs::create_dir_all(host.node.path("run/russet/sandbox/netns")).unwrap();
    assert_eq!(host.left(), [""; 0]);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn without_a_network_a_pod_is_refused_with_a_remedy() {
    let host = Host::new();
    let web = host.manifest("web.yaml", WEB);
    std::fs::remove_file(host.node.path("etc/cni/net.d/10-testnet.conflist")).unwrap();
    let refused = host.sandbox(&["run", web.to_str().unwrap()]);
    assert_eq!(refused.status, 1);
    let install = format!("`russet install --in-place --root {}`", host.node.root().display());
    for part in ["network is not ready", &install, "russet cni lint"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert_eq!(host.sandbox(&["ls", "-o", "json"]).result()["pods"], json!([]), "nothing is left of it");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_pod_whose_packets_get_no_answer_comes_with_a_warning() {
    let host = Host::new();
    let web = host.manifest("web.yaml", WEB);
    let said = |host: &Host, masquerade: bool| {
        let plugin = host.node.config(json!({
            "type": "bridge", "bridge": "lan0", "isGateway": true, "isDefaultGateway": true, "ipMasq": masquerade,
            "ipam": { "type": "host-local", "dataDir": host.node.path("lan"), "ranges": [[{ "subnet": "10.9.0.0/24" }]] },
        }));
        let list = json!({ "cniVersion": "1.1.0", "name": "testnet", "plugins": [plugin] });
        std::fs::write(host.node.path("etc/cni/net.d/10-testnet.conflist"), list.to_string()).unwrap();
        let answer = host.sandbox(&["run", web.to_str().unwrap(), "--cluster-dns", "10.96.0.10"]);
        assert_eq!(answer.status, 0, "{answer:?}");
        assert_eq!(host.sandbox(&["rm", "web"]).status, 0);
        answer.stderr
    };
    let warned = said(&host, false);
    let is_warning = |line: &str| line.starts_with("warning: ") && line.contains("ipMasq");
    assert!(warned.lines().any(is_warning), "{warned}");
    let quiet = said(&host, true);
    assert!(!quiet.lines().any(is_warning), "{quiet}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: python3"]
fn plugins_are_looked_for_in_the_directory_of_the_networks_vendor() {
    let host = Host::new();
    let vendor = host.node.path("vendors/opt/russet/bin");
    std::fs::create_dir_all(&vendor).unwrap();
    // It passes on the result of the plugin before it.
    let script = "#!/usr/bin/python3\nimport json, os, sys\nprevious = json.load(sys.stdin).get('prevResult')\nif os.environ['CNI_COMMAND'] == 'ADD': print(json.dumps(previous))\n";
    write_program(&vendor.join("vendors-own"), script);
    let conflist = host.node.path("etc/cni/net.d/10-testnet.conflist");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&conflist).unwrap()).unwrap();
    list["plugins"].as_array_mut().unwrap().push(json!({ "type": "vendors-own" }));
    std::fs::write(&conflist, list.to_string()).unwrap();
    let web = host.manifest("web.yaml", WEB);
    let missing = host.sandbox(&["run", web.to_str().unwrap()]);
    assert!(missing.status == 1 && missing.stderr.contains("vendors-own"), "{missing:?}");
    assert_eq!(host.sandbox(&["ls", "-o", "json"]).result()["pods"], json!([]), "no half pod is left");
    let prefix = host.node.path("vendors");
    let prefix = prefix.to_str().unwrap();
    host.run(&web, &["--vendor-prefix", prefix]);
    let removed = host.sandbox(&["rm", "--all", "--vendor-prefix", prefix]);
    assert_eq!(removed.status, 0, "{removed:?}");
}
