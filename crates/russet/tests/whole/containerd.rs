//! Debian's containerd on a test's node: in the node's network namespace, with directories of its
//! own, without a registry, called over CRI (cni-runtime.md section 3.6).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::cri::{Cri, Pod, Sandbox};
use russet_testkit::{eventually, image, require_tool, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::node::{TIMEOUT, TestNode};

/// A containerd; dropping it ends it, and everything that it has started.
pub struct Containerd {
    cri: Cri,
    server: Child,
    directory: TempDir,
    /// The cache of libcni.
    results: PathBuf,
}

/// The name of the image that every sandbox runs.
const PAUSE: &str = "registry.local/pause:1";
/// The directory in which Debian installs the reference plugins.
const REFERENCE_PLUGINS: &str = "/usr/lib/cni";
/// The default directories of a node's files. Several nodes on one machine each see their own.
const DEFAULT_DIRS: [&str; 6] =
    ["run/russet", "var/lib/russet", "etc/russet", "var/lib/calico", "var/log/calico", "var/lib/cni"];
/// Runs in a mount namespace in which a node's directories ($1) are mounted over the host's; only
/// the mounts of network namespaces are shared.
const AT_HOME: &str = r#"
for mount in / /run /var /etc; do ! mountpoint -q $mount || mount --make-private $mount; done
root=$1; shift
for place in $DEFAULT_DIRS; do mkdir -p $root/$place /$place; mount --bind $root/$place /$place; done
exec "$@"
"#;

// === impl Containerd ===

impl Containerd {
    /// A client of its CRI.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// A containerd on the node whose only network is `conflist`. Russet's plugins are installed
    /// under their names, beside Debian's `loopback`, `portmap` and `bandwidth`; the files of the
    /// agent and of plugins are in the directories of a node that is alone on its machine.
    pub fn start(node: &TestNode, conflist: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        install_plugins(&path("bin"));
        std::fs::create_dir(path("net.d")).unwrap();
        std::fs::write(path("net.d/10-pods.conflist"), conflist.to_string()).unwrap();
        std::fs::write(path("config.toml"), configuration(directory.path())).unwrap();
        let log = std::fs::File::create(path("containerd.log")).unwrap();
        let mut command = Command::new(require_tool("unshare"));
        command.args(["--mount", "--propagation", "unchanged", "sh", "-ec", AT_HOME, "sh"]).arg(node.root());
        command.arg(require_tool("containerd")).arg("--config").arg(path("config.toml"));
        command.env("DEFAULT_DIRS", DEFAULT_DIRS.join(" "));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        process::in_netns(&mut command, node.netns()).unwrap();
        let server = command.spawn().unwrap();
        let results = node.path("var/lib/cni/results");
        let containerd = Self { cri: Cri::new(&path("c.sock")).unwrap(), server, directory, results };
        eventually(TIMEOUT, || containerd.cri.is_ready());
        containerd.import_pause();
        containerd
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The directory of its plugins, for more of them.
    pub fn plugins(&self) -> PathBuf {
        self.path("bin")
    }

    fn import_pause(&self) {
        let busybox = require_tool("busybox");
        let archive = image::archive(
            &self.path("image"),
            PAUSE,
            &[("bin/busybox", &busybox)],
            &["/bin/busybox", "sleep", "1000000"],
        );
        let socket = self.path("c.sock");
        run("ctr", &["-a", text(&socket), "-n", "k8s.io", "images", "import", text(&archive)]);
    }

    /// Starts one sandbox and returns its state.
    pub fn run(&self, pod: &Pod) -> (String, Sandbox) {
        let id = self.cri.run(pod).unwrap();
        let sandbox = self.cri.sandbox(&id).unwrap();
        assert!(sandbox.ready && !sandbox.addresses.is_empty(), "{sandbox:?}");
        (id, sandbox)
    }

    /// The same for many concurrently.
    pub fn run_all(&self, pods: &[Pod]) -> Vec<(String, Sandbox)> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(|| self.run(pod))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Stops and removes many concurrently, as kubelet does: the removal stops again.
    pub fn remove_all(&self, pods: &[(String, Sandbox)]) {
        std::thread::scope(|scope| {
            for (id, _) in pods {
                scope.spawn(|| {
                    self.cri.stop(id).unwrap();
                    self.cri.remove(id).unwrap();
                });
            }
        });
    }

    /// Nothing of the sandboxes is left but containerd's own files: no namespace, no process, no
    /// result in the cache of libcni.
    pub fn assert_forgotten(&self, pods: &[(String, Sandbox)]) {
        assert_eq!(self.cri.sandboxes().unwrap(), Vec::<String>::new());
        eventually(TIMEOUT, || self.shims().is_empty());
        assert!(std::fs::read_dir(&self.results).unwrap().next().is_none(), "stale results are cached");
        assert_eq!(pods.iter().find(|(_, sandbox)| sandbox.netns.exists()), None);
    }

    /// The shim processes of this containerd's sandboxes.
    fn shims(&self) -> Vec<u32> {
        let socket = self.path("c.sock");
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_shim = |pid: &u32| {
            let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            *pid != self.server.id()
                && cmdline.split(|byte| *byte == 0).any(|word| word == text(&socket).as_bytes())
        };
        pids.filter(is_shim).collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("containerd.log")).unwrap_or_default()
    }

    /// Ends what a failed test has left running.
    fn clean_up(&mut self) {
        for id in self.cri.sandboxes().unwrap_or_default() {
            let sandbox = self.cri.sandbox(&id);
            let _ = self.cri.stop(&id).and_then(|()| self.cri.remove(&id));
            if let Some(name) = sandbox.ok().as_ref().and_then(|sandbox| sandbox.netns.file_name()) {
                let _ = NetNs::delete_named(&name.to_string_lossy());
            }
        }
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        let _ = self.server.wait();
        for shim in self.shims() {
            let children =
                std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            for pid in children.chain([i32::try_from(shim).unwrap()]) {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- containerd log\n{}", self.log());
        }
        self.clean_up();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Under the names in configurations, as an installer would do it.
fn install_plugins(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    for ours in ["russet", "calico", "calico-ipam"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_russet"), directory.join(ours)).unwrap();
    }
    for debians in ["loopback", "portmap", "bandwidth"] {
        let program = Path::new(REFERENCE_PLUGINS).join(debians);
        assert!(program.exists(), "the package containernetworking-plugins is not installed");
        std::os::unix::fs::symlink(program, directory.join(debians)).unwrap();
    }
}

/// cni-runtime.md section 3.6: no systemd, no AppArmor, no CAP_SYS_RESOURCE; and nothing outside of
/// the directory.
fn configuration(directory: &Path) -> String {
    let at = |name: &str| format!("{:?}", directory.join(name));
    let (root, state, socket) = (at("root"), at("state"), at("c.sock"));
    let (bin, conf) = (at("bin"), at("net.d"));
    format!(
        "version = 2\nroot = {root}\nstate = {state}\ndisabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
         [grpc]\naddress = {socket}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {PAUSE:?}\ndisable_apparmor = true\n\
         restrict_oom_score_adj = true\nstream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {bin}\nconf_dir = {conf}\n"
    )
}
