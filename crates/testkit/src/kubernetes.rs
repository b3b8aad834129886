//! A real Kubernetes API server on an etcd of its own, in the namespaces of the calling thread: no kubelet, no controller and no scheduler, so that a
//! test makes nodes and pods itself and nothing else changes them. [`Cluster`] has all of them.
//!
//! `cargo xtask kubernetes` builds the programs. Both processes are ended by process id when dropped; the end of their logs is printed where a test fails.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

mod cluster;
mod daemon;
mod node;
mod requests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::{certificates_for, path};
use crate::{Process, etcd, eventually, let_pass, run};

pub use cluster::Cluster;
pub use daemon::Daemon;
pub use node::Node;

/// A release that tests run against; its directory in tests/kubernetes has the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The newest one.
    Newest,
    /// Three minor releases older.
    Older,
}

/// What an API server is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The release of the API server.
    pub release: Release,
    /// The address at which it listens, of the namespace in which it is started.
    pub address: String,
    /// The program of its etcd, by default the one of the release.
    pub etcd: Option<PathBuf>,
    /// More arguments for the API server.
    pub arguments: Vec<String>,
    /// Whether controllers and kubelets will run, so that all of its admission is on.
    pub has_nodes: bool,
}

/// A running API server with its etcd.
#[derive(Debug)]
pub struct ApiServer {
    /// Dropped before etcd: what ends in the reverse order logs errors.
    running: Option<Process>,
    /// Its etcd, one member.
    pub etcd: etcd::Cluster,
    directory: TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    /// `address:port`.
    address: String,
}

/// The bearer token of [`ADMIN`].
pub const ADMIN_TOKEN: &str = "token-of-the-tests-administrator";
/// The user to whom everything is permitted.
const ADMIN: &str = "test-administrator";
/// The users of the parts of a cluster.
const COMPONENTS: [&str; 3] =
    ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"];
/// The nodes that have a user.
const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
/// The addresses of services.
const SERVICES: &str = "10.96.0.0/16";
/// The first of them: the service `kubernetes`.
const SERVICE: &str = "10.96.0.1";
/// Longest wait for a start on a busy machine: the API server makes some hundred objects before it is ready.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between looks whether it is ready.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Lines of a log that a failed test prints.
const LOG_LINES: usize = 40;

/// The path of a program of `cargo xtask kubernetes`; panics where it has not been built, because a second opinion that is silently left out is none.
#[track_caller]
pub fn require_program(module: &str, name: &str) -> PathBuf {
    // target/debug/deps/EXECUTABLE, and its links beside `debug`.
    let executable = std::env::current_exe().unwrap();
    let target = executable.ancestors().nth(3).unwrap();
    let program = target.join("kubernetes").join(module).join(name);
    assert!(
        program.is_file(),
        "the tool {name:?} is not at {} and this test needs it: `cargo xtask kubernetes {module}/{name}` builds it",
        program.display()
    );
    program
}

// === impl Release ===

impl Release {
    /// The directory of its module in tests/kubernetes.
    pub fn module(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Older => "older",
        }
    }

    /// The path of one of its programs.
    #[track_caller]
    pub fn program(self, name: &str) -> PathBuf {
        require_program(self.module(), name)
    }
}

// === impl Options ===

impl Options {
    /// A server on loopback, with the etcd of its release.
    pub fn new(release: Release) -> Self {
        Self { release, address: "127.0.0.1".to_owned(), etcd: None, arguments: Vec::new(), has_nodes: false }
    }

    /// Starts it, and waits until it is ready.
    #[track_caller]
    pub fn start(self) -> ApiServer {
        let program = self.release.program("kube-apiserver");
        let etcd = self.etcd.unwrap_or_else(|| self.release.program("etcd"));
        let etcd = etcd::Cluster::of_program(etcd);
        let directory = certificates_for(&format!("IP:{},IP:{SERVICE},DNS:kubernetes", self.address));
        let port = etcd::free_ports(1)[0];
        let mut arguments = arguments(directory.path(), &self.address, port, &etcd.members[0].url());
        arguments.extend(if self.has_nodes { with_nodes(directory.path()) } else { alone() });
        arguments.extend(self.arguments);
        let address = format!("{}:{port}", self.address);
        let mut server = ApiServer { running: None, etcd, directory, program, arguments, address };
        server.start();
        server
    }
}

/// Makes the files that the flags name, and returns the flags.
fn arguments(directory: &Path, address: &str, port: u16, etcd: &str) -> Vec<String> {
    let at = |name: &str| path(directory, name);
    let (key, public_key) = (at("service-accounts.key"), at("service-accounts.pub"));
    let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
    run("openssl", &[&["genpkey"], &curve[..], &["-out", &key]].concat());
    run("openssl", &["pkey", "-in", &key, "-pubout", "-out", &public_key]);
    let mut tokens = format!("{ADMIN_TOKEN},{ADMIN},{ADMIN},system:masters\n");
    tokens.extend(COMPONENTS.map(|user| format!("{},{user},{user}\n", token_of(user))));
    tokens
        .extend(NODES.map(node_user).map(|user| format!("{},{user},{user},system:nodes\n", token_of(&user))));
    std::fs::write(directory.join("tokens.csv"), tokens).unwrap();
    let arguments = [
        ("etcd-servers", etcd.to_owned()),
        ("bind-address", address.to_owned()),
        ("advertise-address", address.to_owned()),
        ("secure-port", port.to_string()),
        ("tls-cert-file", at("server.pem")),
        ("tls-private-key-file", at("server.key")),
        ("client-ca-file", at("ca.pem")),
        ("token-auth-file", at("tokens.csv")),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", public_key),
        ("service-account-signing-key-file", key),
        ("service-cluster-ip-range", SERVICES.to_owned()),
        // The etcd of a test lives for seconds: nothing is compacted but by the test.
        ("etcd-compaction-interval", "0".to_owned()),
        ("profiling", "false".to_owned()),
    ];
    arguments.map(flag).to_vec()
}

/// The flags of a server whose nodes and pods are made by the test.
fn alone() -> Vec<String> {
    let arguments = [
        // Endpoints refuse addresses of loopback, and no test uses the service `kubernetes`.
        ("endpoint-reconciler-type", "none".to_owned()),
        // Its pods need an account that a controller makes, and no controller runs.
        ("disable-admission-plugins", "ServiceAccount".to_owned()),
    ];
    arguments.map(flag).to_vec()
}

/// The flags of a server with kubelets, which it calls for logs and commands.
fn with_nodes(directory: &Path) -> Vec<String> {
    let arguments = [
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("kubelet-client-certificate", path(directory, "client.pem")),
        ("kubelet-client-key", path(directory, "client.key")),
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
    ];
    arguments.map(flag).to_vec()
}

fn flag((name, value): (&str, String)) -> String {
    format!("--{name}={value}")
}

/// The user of a node's kubelet.
fn node_user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The bearer token of a user of [`COMPONENTS`], or of a node's kubelet.
fn token_of(user: &str) -> String {
    format!("token-of-{user}")
}

// === impl ApiServer ===

impl ApiServer {
    /// Its address: `https://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// `address:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A file of its directory: `ca.pem`, `ca.key`, `client.pem`, `client.key` and others of [`crate::certificates`].
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A kubeconfig with a bearer token.
    pub fn kubeconfig(&self, token: &str) -> String {
        kubeconfig(&self.url(), &self.file("ca.pem"), token)
    }

    /// The path of a kubeconfig of a part of the cluster.
    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        let path = self.file(&format!("{user}.kubeconfig"));
        std::fs::write(&path, self.kubeconfig(&token_of(user))).unwrap();
        path
    }

    /// The path of a kubeconfig of the administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        let path = self.file("admin.kubeconfig");
        std::fs::write(&path, self.kubeconfig(ADMIN_TOKEN)).unwrap();
        path
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the API server runs").id()
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Stops the process, connections open.
    pub fn stop(&self) {
        self.running.as_ref().expect("the API server runs").signal(Signal::STOP);
    }

    /// Continues the process.
    pub fn resume(&self) {
        self.running.as_ref().expect("the API server runs").signal(Signal::CONT);
    }

    /// Starts it on its existing data, and waits until it is ready.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "the API server runs already");
        let log = File::options().create(true).append(true).open(self.file("log")).unwrap();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running = Some(Process::start(&mut command));
        eventually(TIMEOUT, || {
            let ended = self.running.as_mut().and_then(Process::has_ended);
            assert!(ended.is_none(), "the API server ended with {ended:?}");
            // Each look is a process and a handshake, which take time from the start that is waited for.
            let_pass(BETWEEN_LOOKS);
            self.is_ready()
        });
    }

    /// Forgets all events until now: etcd is compacted, and the API server starts anew with an empty cache of events.
    #[track_caller]
    pub fn forget_history(&mut self) {
        self.kill();
        // Another object changes, so that even a client that knows everything is too old.
        self.etcd.members[0].etcdctl(&["put", "/russet-test", ""]);
        self.etcd.members[0].compact();
        self.start();
    }

    /// A token of a service account, which is made if there is none, bound to a secret of the same namespace: the token ends with the secret.
    #[track_caller]
    pub fn token(&self, namespace: &str, account: &str, secret: &str) -> String {
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let (code, answer) = self.request("POST", &accounts, &json!({ "metadata": { "name": account } }));
        assert!(matches!(code, 201 | 409), "{answer}");
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        let (code, secret) = self.request("POST", &secrets, &json!({ "metadata": { "name": secret } }));
        assert_eq!(code, 201, "{secret}");
        self.bound_token(&format!("{accounts}/{account}"), "Secret", &secret)
    }

    /// The token that kubelet gives to a pod of an existing service account: it names the pod's node. The pod is made, as one that is scheduled.
    #[track_caller]
    pub fn pod_token(&self, namespace: &str, account: &str, node: &str) -> String {
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let containers = json!([{ "name": "main", "image": "main" }]);
        let pod = json!({ "metadata": { "name": format!("{account}-{node}") },
            "spec": { "nodeName": node, "serviceAccountName": account, "containers": containers } });
        let (code, pod) = self.request("POST", &pods, &pod);
        assert_eq!(code, 201, "{pod}");
        self.bound_token(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}"), "Pod", &pod)
    }

    #[track_caller]
    fn bound_token(&self, account: &str, kind: &str, object: &Value) -> String {
        let metadata = &object["metadata"];
        let bound =
            json!({ "kind": kind, "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"] });
        let request = json!({ "spec": { "boundObjectRef": bound } });
        let (code, answer) = self.request("POST", &format!("{account}/token"), &request);
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    fn is_ready(&self) -> bool {
        // The namespaces of the system are made a moment after it is ready.
        ["/readyz", "/api/v1/namespaces/default"]
            .iter()
            .all(|path| self.request("GET", path, &Value::Null).0 == 200)
    }

    fn print_logs(&self) {
        let tail = |name: &str, text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            eprintln!(
                "--- end of the log of {name}\n{}",
                lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
            );
        };
        tail("kube-apiserver", &std::fs::read_to_string(self.file("log")).unwrap_or_default());
        tail("etcd", &self.etcd.members[0].log());
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// A kubeconfig for a server whose authority is in a file.
pub fn kubeconfig(url: &str, authority: &Path, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: test\n  cluster:\n    server: {url}\n    certificate-authority: {}\n\
         users:\n- name: test\n  user:\n    token: {token}\ncontexts:\n- name: test\n  context:\n    cluster: test\n    user: test\n\
         current-context: test\n",
        authority.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Value {
        json!({ "kind": "Node", "metadata": { "name": name } })
    }

    #[test]
    #[should_panic(expected = "`cargo xtask kubernetes newest/no-such-program` builds it")]
    fn a_missing_program_is_a_failure_that_says_what_builds_it() {
        Release::Newest.program("no-such-program");
    }

    #[test]
    #[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
    fn servers_beside_each_other_keep_their_objects_when_they_are_killed() {
        let releases = [Release::Newest, Release::Older];
        let mut servers = releases.map(|release| Options::new(release).start());
        for (server, name) in servers.iter().zip(["n1", "n2"]) {
            server.create(&[node(name)]);
        }
        let [first, second] = &mut servers;
        first.kill();
        first.start();
        assert!(first.object("/api/v1/nodes/n1").is_some() && first.object("/api/v1/nodes/n2").is_none());
        second.etcd.members[0].kill();
        let (code, answer) = second.request("GET", "/readyz", &Value::Null);
        assert_eq!(code, 500, "{answer}");
        second.etcd.members[0].start();
        eventually(TIMEOUT, || second.is_ready());
        assert!(second.object("/api/v1/nodes/n2").is_some());
    }

    #[test]
    #[ignore = "tool: kube-apiserver, etcd, etcdctl, curl, openssl"]
    fn requests_are_counted_by_verb_and_resource() {
        let server = Options::new(Release::Newest).start();
        server.create(&[node("n1"), node("n2")]);
        let before = server.requests();
        let patch = json!({ "metadata": { "annotations": { "a": "b" } } });
        for name in ["n1", "n2"] {
            assert_eq!(server.request("PATCH", &format!("/api/v1/nodes/{name}/status"), &patch).0, 200);
        }
        assert_eq!(server.object("/api/v1/nodes/n3"), None);
        let after = server.requests();
        let made = |request: &str| after.get(request).unwrap_or(&0) - before.get(request).unwrap_or(&0);
        assert_eq!((made("PATCH nodes/status"), made("GET nodes"), made("POST nodes")), (2, 1, 0));
    }
}
