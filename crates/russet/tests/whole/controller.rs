//! `russet controller` against a real API server: two replicas, of which one is paused in the middle of a cluster's losses, and what `russet ipam check`
//! says afterwards.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use russet_addr::NodeName;
use russet_ipam::{Allocator, Request, SystemClock};
use russet_kube::{Client, Heartbeat, Source};
use russet_model::HandleId;
use russet_testkit::kubernetes::{ApiServer, Options, Release};
use russet_testkit::{Process, eventually, spawn_with_input};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kubernetes::definitions;
use crate::node::Answer;

/// Far longer than an election and some looks take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "kube-system";
const POOL: &str = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: blue}\nspec: {cidr: 10.1.0.0/20, blockSize: 26}\n";
/// Times of seconds instead of minutes.
const FLAGS: [&str; 16] = [
    "--namespace",
    NAMESPACE,
    "--grace",
    "2s",
    "--tunnel-grace",
    "3s",
    "--interval",
    "1s",
    "--handle-grace",
    "2s",
    "--leader-elect-lease-duration",
    "4s",
    "--leader-elect-renew-deadline",
    "3s",
    "--leader-elect-retry-period",
    "1s",
];

/// A cluster with three nodes and pods.
struct Cluster {
    server: ApiServer,
    files: TempDir,
    runtime: tokio::runtime::Runtime,
    allocator: Allocator,
    /// Keeps the store open.
    _opened: russet_agent::Opened,
}

fn node(name: &str) -> Value {
    let spec = json!({ "taints": [{ "key": "russet.dev/agent-not-ready", "effect": "NoSchedule" },
        { "key": "gpu", "effect": "NoSchedule" }] });
    json!({ "kind": "Node", "metadata": { "name": name }, "spec": spec })
}

// === impl Cluster ===

impl Cluster {
    fn new(release: Release) -> Self {
        let server = Options::new(release).start();
        server.create(&definitions());
        server.create(&["n1", "n2", "n3"].map(node));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let location = format!("kubernetes:{}", server.admin_kubeconfig().display()).parse().unwrap();
        let files = tempfile::tempdir().unwrap();
        let opened =
            runtime.block_on(russet_agent::open_store(&russet_agent::Paths::new(files.path()), &location));
        let opened = opened.unwrap();
        let allocator = Allocator::new(Rc::clone(&opened.store), Rc::new(SystemClock));
        let cluster = Self { server, files, runtime, allocator, _opened: opened };
        // A definition is served a moment after it was created.
        eventually(TIMEOUT, || cluster.run(&["apply", "-f", "-"], POOL).status == 0);
        cluster
    }

    fn store(&self) -> String {
        format!("kubernetes:{}", self.server.admin_kubeconfig().display())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.env_remove("RUSSET_STORE").env_remove("CALICO_API_GROUP").env_remove("POD_NAME");
        command
    }

    fn run(&self, args: &[&str], stdin: &str) -> Answer {
        let mut command = self.command();
        command.args(args).args(["--store", &self.store()]).arg("--root").arg(self.files.path());
        spawn_with_input(&mut command, stdin).wait_with_output().unwrap().into()
    }

    fn replica(&self, name: &str) -> Process {
        let socket: PathBuf = self.files.path().join(format!("{name}.sock"));
        let log = std::fs::File::create(self.files.path().join(format!("{name}.log"))).unwrap();
        let mut command = self.command();
        command.args(["controller", "--store", &self.store(), "--identity", name]).args(FLAGS);
        command.args(["--health-address", &format!("unix:{}", socket.display())]);
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
    }

    /// A pod with its address, in the order of an ADD.
    fn pod(&self, node: &str, name: &str) -> IpAddr {
        let handle = HandleId::new(format!("net.{name}")).unwrap();
        let request =
            Request::pod(NodeName::new(node).unwrap(), handle).with("namespace", "default").with("pod", name);
        let assigned = self.runtime.block_on(self.allocator.auto_assign(&request)).unwrap();
        let address = assigned.addresses[0].addr();
        let container = json!({ "name": "c", "image": "x" });
        self.server.create(&[json!({ "kind": "Pod", "metadata": { "namespace": "default", "name": name },
            "spec": { "nodeName": node, "containers": [container] } })]);
        let status = json!({ "status": { "phase": "Running", "podIP": address.to_string(), "podIPs": [{ "ip": address.to_string() }] } });
        let path = format!("/api/v1/namespaces/default/pods/{name}/status");
        assert_eq!(self.server.request("PATCH", &path, &status).0, 200);
        address
    }

    fn delete_pod(&self, name: &str) {
        self.server.delete(&format!("/api/v1/namespaces/default/pods/{name}"));
    }

    fn is_allocated(&self, address: IpAddr) -> bool {
        self.runtime.block_on(self.allocator.holder_of(address)).unwrap().is_some()
    }

    fn holder(&self) -> String {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/russet-controller");
        let lease = self.server.object(&path).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    fn taints(&self, node: &str) -> String {
        self.server.object(&format!("/api/v1/nodes/{node}")).unwrap()["spec"]["taints"].to_string()
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.files.path().join(format!("{name}.log"))).unwrap()
    }
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn a_paused_leader_loses_its_lease_and_what_a_deleted_node_held_is_freed_by_the_other() {
    // kubernetes.md K82
    let cluster = Cluster::new(Release::Newest);
    let gone = [cluster.pod("n1", "gone-0"), cluster.pod("n1", "gone-1")];
    let (vanished, living) = (cluster.pod("n2", "vanished"), cluster.pod("n3", "living"));
    let client = Client::new(Source::kubeconfig(cluster.server.admin_kubeconfig())).unwrap();
    let beat = Heartbeat::new(client, "n1").every(Duration::from_secs(1), Duration::from_secs(3));
    cluster.runtime.block_on(beat.renew(None)).unwrap();

    let first = cluster.replica("first");
    eventually(TIMEOUT, || cluster.holder().starts_with("first_"));
    let second = cluster.replica("second");
    let ready = json!({ "metadata": { "annotations": { "russet.dev/ready": "0.1.0/boot" } } });
    assert_eq!(cluster.server.request("PATCH", "/api/v1/nodes/n3", &ready).0, 200);
    eventually(TIMEOUT, || !cluster.taints("n3").contains("agent-not-ready"));
    assert!(cluster.taints("n3").contains("gpu") && cluster.taints("n2").contains("agent-not-ready"));

    // The node goes, its agent and its pods, and the leader stops in the middle of its grace period.
    cluster.server.delete("/api/v1/nodes/n1");
    ["gone-0", "gone-1", "vanished"].iter().for_each(|pod| cluster.delete_pod(pod));
    first.signal(Signal::STOP);
    eventually(TIMEOUT, || cluster.holder().starts_with("second_"));
    eventually(TIMEOUT, || gone.iter().all(|address| !cluster.is_allocated(*address)));
    first.signal(Signal::CONT);
    eventually(TIMEOUT, || cluster.log("first").contains("leads no more"));
    assert!(cluster.holder().starts_with("second_"), "{}", cluster.log("first"));
    assert!(!cluster.log("first").contains("an address was freed"), "{}", cluster.log("first"));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/russet-n1";
    eventually(TIMEOUT, || cluster.server.object(lease).is_none());
    let events = cluster.server.object("/api/v1/namespaces/default/events").unwrap().to_string();
    assert!(events.contains("AddressesReleased") && events.contains("n1"), "{events}");

    // A pod of a node that exists is its agent's to free, here by a DEL.
    assert!(cluster.is_allocated(vanished) && cluster.is_allocated(living));
    let handle = HandleId::new("net.vanished").unwrap();
    cluster.runtime.block_on(cluster.allocator.release_by_handle(&handle, None)).unwrap();
    let checked = cluster.run(&["ipam", "check"], "");
    assert_eq!(checked.status, 0, "{checked:?}");
    assert!(second.end(Signal::TERM).success());
    assert!(cluster.holder().is_empty() || cluster.holder().starts_with("first_"), "it gave the lease back");
    drop(first);
    let report = controller_once(&cluster, &["--dry-run"]);
    assert_eq!((report["dry_run"].clone(), report["nodes"].clone()), (json!(true), json!([])));
}

/// Runs the command to its end, and returns its last report.
fn controller_once(cluster: &Cluster, more: &[&str]) -> Value {
    let mut command = cluster.command();
    command.args(["controller", "--once", "-o", "json", "--store", &cluster.store()]).args(FLAGS).args(more);
    command.args(["--health-address", &format!("unix:{}/once.sock", cluster.files.path().display())]);
    let answer: Answer = spawn_with_input(&mut command, "").wait_with_output().unwrap().into();
    assert_eq!(answer.status, 0, "{answer:?}");
    let last = serde_json::Deserializer::from_str(&answer.stdout).into_iter::<Value>().last();
    last.expect("there is a report").unwrap()
}

#[test]
#[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
fn one_run_frees_a_deleted_node_on_an_older_api_server_and_leaves_its_store_clean() {
    let cluster = Cluster::new(Release::Older);
    let (gone, living) = (cluster.pod("n1", "gone"), cluster.pod("n2", "living"));
    cluster.server.delete("/api/v1/nodes/n1");
    cluster.delete_pod("gone");
    let report = controller_once(&cluster, &[]);
    let nodes = report["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["is_clean"] == true), "{report}");
    assert!(!cluster.is_allocated(gone) && cluster.is_allocated(living));
    let checked = cluster.run(&["ipam", "check"], "");
    assert_eq!(checked.status, 0, "{checked:?}");
    let mut resume = cluster.command();
    resume.args(["gc", "resume", "--namespace", "nowhere", "--store", &cluster.store()]);
    let wrong: Answer = spawn_with_input(&mut resume, "").wait_with_output().unwrap().into();
    assert!(wrong.status == 1 && wrong.stderr.contains("no lease russet-controller"), "{wrong:?}");
}
