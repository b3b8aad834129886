//! Test harness: a node in a network namespace of its own, pods in named namespaces, our plugins in
//! this process, and the Go plugins as executables.

use std::path::PathBuf;
use std::process::Command;

use russet_cni_spec::{CniError, CniResult, Request};
use russet_linux::NetNs;
use russet_testkit as testkit;
pub use russet_testkit::{inside, pings};
use russet_wiring::{LocalNode, RequestLog, Teardown, Wiring};
use serde_json::{Value, json};

/// A node under test.
pub struct Lab {
    root: tempfile::TempDir,
    node: LocalNode,
    runtime: tokio::runtime::Runtime,
    /// The value of `CNI_PATH`.
    cni_path: String,
}

/// One interface of one container.
#[derive(Clone, Copy)]
pub struct Pod {
    pub container: &'static str,
    pub ifname: &'static str,
    /// The name of the pod's namespace, or a path; empty for none.
    pub netns: &'static str,
}

/// The directory of Debian's Go plugins.
pub const GO: &str = "/usr/lib/cni";

/// Runs `body` on a node in a new namespace.
pub fn on_a_node<T: Send>(body: impl FnOnce(&Lab) -> T + Send) -> T {
    testkit::in_netns_with_loopback(|| body(&Lab::new()))
}

/// Creates a namespace for a container; returns its interface `eth0`.
pub fn pod(container: &'static str) -> Pod {
    NetNs::create_named(container).unwrap();
    Pod { container, ifname: "eth0", netns: container }
}

// === impl Lab ===

impl Lab {
    fn new() -> Self {
        Self::with_path("/nowhere")
    }

    /// A node that looks for delegated plugins in `cni_path`.
    pub fn with_path(cni_path: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (wiring, teardown) = (Wiring::default(), Teardown::Synchronous);
        let node = LocalNode { root: root.path().to_owned(), wiring, teardown };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { root, node, runtime, cni_path: cni_path.to_owned() }
    }

    /// The addresses of a network that `host-local` holds on this node.
    pub fn addresses(&self, network: &str) -> Vec<String> {
        let dir = self.data_dir().join(network);
        let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect();
        names.sort();
        names
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("nets")
    }

    /// A path in the test's temporary directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// An `ipam` section of `host-local` with one range set for each subnet.
    pub fn ipam(&self, subnets: &[&str]) -> Value {
        let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
        json!({"type": "host-local", "dataDir": self.data_dir(), "ranges": ranges})
    }

    fn vars(&self, verb: &str, pod: Pod) -> Vec<(String, String)> {
        let named = !pod.netns.is_empty() && !pod.netns.starts_with('/');
        let netns = if named { format!("/run/netns/{}", pod.netns) } else { pod.netns.to_owned() };
        let vars = [
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", pod.container.to_owned()),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", pod.ifname.to_owned()),
            ("CNI_PATH", self.cni_path.clone()),
        ];
        vars.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }

    /// Runs one of our plugins in this process.
    pub fn ours(
        &self,
        kind: &str,
        verb: &str,
        pod: Pod,
        config: &Value,
    ) -> Result<Option<CniResult>, CniError> {
        let request = self.request(verb, pod, config)?;
        self.wait(crate::run_local(&self.node, kind, &request, &RequestLog::new(kind)))
    }

    /// A validated request.
    pub fn request(&self, verb: &str, pod: Pod, config: &Value) -> Result<Request, CniError> {
        let stdin = config.to_string().into_bytes();
        Request::new(self.vars(verb, pod), stdin)
    }

    /// The node, for tests of parts of plugins.
    pub fn node(&self) -> &LocalNode {
        &self.node
    }

    /// Waits for a future of a plugin.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs ADD of our plugin; returns the result as JSON.
    #[track_caller]
    pub fn add(&self, kind: &str, pod: Pod, config: &Value) -> Value {
        let done = self.ours(kind, "ADD", pod, config);
        let result = done.unwrap_or_else(|error| panic!("{error}")).unwrap();
        well_formed(&result);
        result.to_value()
    }

    /// Runs any other verb of our plugin, which must succeed.
    #[track_caller]
    pub fn call(&self, kind: &str, verb: &str, pod: Pod, config: &Value) {
        let done = self.ours(kind, verb, pod, config);
        assert_eq!(done.unwrap_or_else(|error| panic!("{verb}: {error}")), None);
    }

    /// Runs our plugin, which must fail.
    #[track_caller]
    pub fn error(&self, kind: &str, verb: &str, pod: Pod, config: &Value) -> CniError {
        self.ours(kind, verb, pod, config).unwrap_err()
    }

    /// Runs a Go plugin.
    #[track_caller]
    pub fn go(&self, kind: &str, verb: &str, pod: Pod, config: &Value) -> Value {
        let mut command = Command::new(testkit::require_cni_plugin(kind));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env_clear().env("PATH", format!("{path}:/usr/sbin:/sbin")).envs(self.vars(verb, pod));
        let child = testkit::spawn_with_input(command.env("CNI_PATH", GO), config.to_string());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{kind} {verb}: {text} {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap_or_default()
    }
}

/// Checks that a result has nothing that runtimes refuse or crash on: interface indexes out of
/// range, interfaces of pods without a MAC (cni-runtime.md section 6.2 items 55 and 56).
#[track_caller]
pub fn well_formed(result: &CniResult) {
    result.validate().unwrap_or_else(|error| panic!("{error}"));
    let of_pods = result.interfaces.iter().filter(|it| !it.sandbox.is_empty());
    let nameless = of_pods.filter(|it| it.name.is_empty() || it.mac.is_empty()).count();
    assert_eq!(nameless, 0, "{:?}", result.interfaces);
}

/// The configuration with the result of an ADD, as CHECK and DEL get it.
pub fn after(config: &Value, result: &Value) -> Value {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    config
}

pub fn links() -> Vec<String> {
    testkit::links(None)
}
