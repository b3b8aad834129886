//! The container image of `cargo xtask image`, with the executables of this build, in a containerd of its own.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::containerd::Containerd;
use russet_testkit::{eventually, run, spawn_with_input};
use tempfile::TempDir;

use crate::node::Answer;

/// A start of an agent on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// As in packaging/kubernetes: those of the agent; `ctr` gives containers more than Kubernetes does.
const CAPABILITIES: [&str; 7] = [
    "NET_ADMIN",
    "NET_RAW",
    "NET_BIND_SERVICE",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "SYS_ADMIN",
    "SYS_PTRACE",
];
const DROPPED: [&str; 11] = [
    "CHOWN",
    "FOWNER",
    "FSETID",
    "MKNOD",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// The namespace of this test's containers: runc keeps those of all containerds of a machine in one
/// place, by namespace and name.
fn namespace() -> &'static str {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NAME: &'static str = {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            Box::leak(format!("russet-image-{}-{number}", std::process::id()).into_boxed_str())
        };
    }
    NAME.with(|name| *name)
}

/// Where the image is, and its digest.
struct Archive {
    directory: TempDir,
    printed: String,
}

impl Archive {
    fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let xtask = Path::new(env!("CARGO_BIN_EXE_russet")).with_file_name("xtask");
        assert!(xtask.is_file(), "{} is not there: `cargo build --workspace` builds it", xtask.display());
        let output = directory.path().join("image.tar");
        let args = ["image", "--debug-executables", "--output", output.to_str().unwrap()];
        let printed = run(xtask.to_str().unwrap(), &args);
        Self { directory, printed }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("image.tar")
    }

    /// A containerd that has the image.
    fn imported(&self) -> Containerd {
        let containerd = Containerd::start();
        let path = self.path();
        containerd.ctr(namespace(), &["image", "import", "--snapshotter=native", path.to_str().unwrap()]);
        containerd
    }

    fn name(&self) -> &str {
        self.printed.split(' ').nth(1).unwrap().trim_end_matches(',')
    }

    fn digest(&self) -> &str {
        self.printed.split_whitespace().last().unwrap()
    }
}

/// The arguments of `ctr run` for a container of the image with a read-only root file system, and with directories of `node` at their places on a node.
fn installation<'a>(name: &'a str, node: &Path, mounts: &'a mut Vec<String>) -> Vec<&'a str> {
    for path in ["/opt/cni/bin", "/opt/russet/bin", "/etc/cni/net.d", "/var/lib/russet"] {
        let source = node.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(&source).unwrap();
        mounts.push(format!("--mount=type=bind,src={},dst={path},options=rbind:rw", source.display()));
    }
    let mut args = vec!["run", "--rm", "--snapshotter=native", "--read-only"];
    args.extend(mounts.iter().map(String::as_str));
    args.extend([name, "install", "/usr/local/bin/russet", "install", "--no-unit", "--no-conflist"]);
    args.extend(["--bin-dir", "/opt/russet/bin", "--plugins", "russet,loopback,portmap"]);
    args
}

#[test]
#[ignore = "root: runs containers; tool: containerd, runc, containerd-shim-runc-v2, ctr, gzip, sha256sum, strip, ldd"]
fn the_image_is_the_same_twice_and_its_container_installs_plugins_on_the_node() {
    let (archive, again) = (Archive::build(), Archive::build());
    assert_eq!(archive.digest(), again.digest());
    assert!(std::fs::read(archive.path()).unwrap() == std::fs::read(again.path()).unwrap());

    let containerd = archive.imported();
    let listed = containerd.ctr(namespace(), &["image", "ls"]);
    assert!(listed.contains(archive.name()) && listed.contains(archive.digest()), "{listed}");

    let node = tempfile::tempdir().unwrap();
    let mut mounts = Vec::new();
    let args = installation(archive.name(), node.path(), &mut mounts);
    let installed = containerd.ctr(namespace(), &args);
    assert!(installed.contains("installed"), "{installed}");
    // kubernetes.md K90: a second time nothing changes, also while the plugin runs.
    let inode = |path: &str| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(node.path().join(path)).unwrap().ino()
    };
    let before = inode("opt/cni/bin/russet");
    let repeated = containerd.ctr(namespace(), &args);
    assert!(repeated.contains("everything was in place"), "{repeated}");
    assert_eq!(inode("opt/cni/bin/russet"), before);
    let command = node.path().join("opt/russet/bin/russet");
    let version = Command::new(&command).arg("--version").output().unwrap();
    assert!(version.status.success(), "{version:?}");
    assert!(!node.path().join("etc/cni/net.d/10-russet.conflist").exists());
}

/// A network namespace with a name, which goes with the value.
struct Namespace {
    name: String,
    netns: NetNs,
}

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("russet-image-{name}-{}", std::process::id());
        let netns = NetNs::create_named(&name).unwrap();
        Self { name, netns }
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        NetNs::delete_named(&self.name).unwrap();
    }
}

/// A node with an underlay, whose directories of Russet are in a temporary one.
fn node() -> (Namespace, TempDir) {
    let namespace = Namespace::new("node");
    let links = || {
        run("ip", &["link", "set", "lo", "up"]);
        run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
        run("ip", &["address", "add", "10.99.0.1/24", "dev", "up0"]);
        run("ip", &["link", "set", "up0", "up"]);
        run("ip", &["link", "set", "up1", "up"]);
        run("ip", &["route", "add", "default", "via", "10.99.0.2"]);
    };
    namespace.netns.with(links).unwrap();
    (namespace, tempfile::tempdir().unwrap())
}

/// The arguments of `ctr run` for a container that is not privileged, on the node's network and with its directories.
fn node_container(
    archive: &Archive,
    (netns, files): &(Namespace, TempDir),
    how: &str,
    args: &[&str],
) -> Vec<String> {
    let mut all =
        ["run", how, "--snapshotter=native", "--read-only", "--seccomp"].map(str::to_owned).to_vec();
    all.extend(CAPABILITIES.map(|name| format!("--cap-add=CAP_{name}")));
    all.extend(DROPPED.map(|name| format!("--cap-drop=CAP_{name}")));
    all.push(format!("--with-ns=network:{}", netns.path()));
    for (from, to) in [("run", "/run/russet"), ("state", "/var/lib/russet")] {
        let source = files.path().join(from);
        std::fs::create_dir_all(&source).unwrap();
        all.push(format!("--mount=type=bind,src={},dst={to},options=rbind:rw", source.display()));
    }
    // HostToContainer.
    all.push("--mount=type=bind,src=/run/netns,dst=/run/netns,options=rbind:rslave:rw".to_owned());
    all.extend([archive.name(), args[0], "/usr/local/bin/russet"].map(str::to_owned));
    all.extend(args.iter().map(ToString::to_string));
    all
}

fn plugin(socket: &Path, verb: &str, pod: &Namespace) -> Answer {
    let config =
        format!(r#"{{"cniVersion":"1.0.0","name":"russet","type":"russet","agent_socket":{socket:?}}}"#);
    let program = Path::new(env!("CARGO_BIN_EXE_russet")).with_file_name("russet-cni");
    let mut command = Command::new(&program);
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", "eth0");
    command.env("CNI_NETNS", pod.path()).env("CNI_PATH", program.parent().unwrap());
    command.arg0("russet");
    spawn_with_input(&mut command, &config).wait_with_output().unwrap().into()
}

/// kubernetes.md section 5.2: the container of the DaemonSet is not privileged, its `/proc/sys` is read-only, and pods' namespaces appear after its start.
#[test]
#[ignore = "root: runs containers; tool: containerd, runc, containerd-shim-runc-v2, ctr, curl, gzip, ip, ping, sha256sum, strip, ldd"]
fn an_agent_in_a_container_that_is_not_privileged_attaches_a_pod_and_is_uninstalled() {
    let archive = Archive::build();
    let node = node();
    let containerd = archive.imported();
    let ctr =
        |args: &[String]| containerd.ctr(namespace(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    ctr(&node_container(&archive, &node, "--detach", &["agent", "--node-name=n1", "--ipv6-pool=none"]));
    let run_dir = node.1.path().join("run");
    let ready = || {
        let mut curl = Command::new("curl");
        curl.args(["-sf", "http://agent/readyz", "--unix-socket"]).arg(run_dir.join("health.sock"));
        curl.output().unwrap().status.success()
    };
    eventually(TIMEOUT, ready);

    let pod = Namespace::new("pod");
    let added = plugin(&run_dir.join("cni.sock"), "ADD", &pod);
    assert_eq!(added.status, 0, "{added:?}");
    pod.netns.with(|| run("ping", &["-c1", "-W5", "10.99.0.1"])).unwrap();
    let deleted = plugin(&run_dir.join("cni.sock"), "DEL", &pod);
    assert_eq!(deleted.status, 0, "{deleted:?}");

    containerd.ctr(namespace(), &["task", "kill", "-s", "SIGTERM", "agent"]);
    eventually(TIMEOUT, || containerd.ctr(namespace(), &["task", "ls"]).contains("STOPPED"));
    containerd.ctr(namespace(), &["task", "rm", "agent"]);
    ctr(&node_container(&archive, &node, "--rm", &["uninstall", "--force", "--purge"]));
    for directory in ["run", "state"] {
        let left: Vec<_> = std::fs::read_dir(node.1.path().join(directory)).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    assert!(!node.0.netns.with(|| run("ip", &["link"])).unwrap().contains("vxlan"));
}
