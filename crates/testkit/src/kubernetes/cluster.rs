//! A whole cluster: API server, controllers and scheduler in the network of the calling thread, which is the switch of the nodes, and nodes on machines of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{ApiServer, Daemon, Node, Options, Release, SERVICES};
use crate::{Machine, image, run, spawn_with_input};

/// A running cluster, for the body of [`crate::in_new_netns`]; dropping it ends everything.
#[derive(Debug)]
pub struct Cluster {
    /// In the order of their addresses: the first has 10.77.0.11.
    pub nodes: Vec<Node>,
    /// kube-controller-manager.
    pub controllers: Daemon,
    /// kube-scheduler.
    pub scheduler: Daemon,
    /// The API server with its etcd.
    pub server: ApiServer,
    release: Release,
    kubeconfig: PathBuf,
    /// Archives that each new node imports.
    images: Vec<PathBuf>,
    /// How many nodes there have been.
    count: u8,
}

/// The addresses of pods, of which each node gets a /24.
pub const PODS: &str = "10.244.0.0/16";
/// The address of the API server, on the switch.
const SERVER: &str = "10.77.0.1";

// === impl Cluster ===

impl Cluster {
    /// Makes the switch in the calling thread's network, and starts a cluster without nodes. `images` are archives that each node imports beside those of tests.
    #[track_caller]
    pub fn start(release: Release, images: &[&Path]) -> Self {
        run("ip", &["link", "set", "lo", "up"]);
        // A MAC of its own: without one the bridge takes a port's, which changes when a node goes.
        run("ip", &["link", "add", "br0", "address", "02:00:0a:4d:00:01", "type", "bridge"]);
        run("ip", &["address", "add", &format!("{SERVER}/24"), "dev", "br0"]);
        run("ip", &["link", "set", "br0", "up"]);
        let server = Options { address: SERVER.to_owned(), has_nodes: true, ..Options::new(release) }.start();
        let component = |name: &str, arguments: &[String]| {
            let mut all = vec![
                format!("--kubeconfig={}", server.kubeconfig_of(&format!("system:{name}")).display()),
                "--leader-elect=false".to_owned(),
            ];
            all.extend_from_slice(arguments);
            Daemon::new(release.program(name), all, None, server.file(&format!("{name}.log"))).started()
        };
        let controllers = component("kube-controller-manager", &controller_flags(&server));
        let scheduler = component("kube-scheduler", &[]);
        let kubeconfig = server.admin_kubeconfig();
        let mut all: Vec<PathBuf> = images.iter().map(|image| image.to_path_buf()).collect();
        all.push(image::pod(&server.file("pod")));
        Self { nodes: Vec::new(), controllers, scheduler, server, release, kubeconfig, images: all, count: 0 }
    }

    /// Adds a node, `n1` and so on, and prepares its machine before kubelet runs; does not wait until it is ready.
    #[track_caller]
    pub fn add_node(&mut self, prepare: impl FnOnce(&Machine)) -> &mut Node {
        self.count += 1;
        let name = format!("n{}", self.count);
        let address = format!("10.77.0.{}", 10 + self.count);
        let machine = Machine::start(&name);
        let port = format!("w{}", self.count);
        run("ip", &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        run("ip", &["link", "set", &port, "master", "br0", "up"]);
        machine.run("ip", &["address", "add", &format!("{address}/24"), "dev", "eth0"]);
        machine.run("ip", &["link", "set", "eth0", "up"]);
        machine.run("ip", &["route", "add", "default", "via", SERVER]);
        prepare(&machine);
        let images: Vec<&Path> = self.images.iter().map(PathBuf::as_path).collect();
        self.nodes.push(Node::start(&name, &address, machine, &self.server, self.release, &images));
        self.nodes.last_mut().unwrap()
    }

    /// Runs kubectl as the administrator; it has to succeed.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.kubectl_command(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {errors}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Applies objects: YAML or JSON, one or a stream.
    #[track_caller]
    pub fn apply(&self, objects: &str) {
        let child =
            spawn_with_input(&mut self.kubectl_command(&["apply", "--server-side", "-f", "-"]), objects);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "kubectl apply: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits by a watch until each of some objects has a condition, as `kubectl wait` has it.
    #[track_caller]
    pub fn wait(&self, timeout: Duration, condition: &str, objects: &[&str]) {
        let timeout = format!("--timeout={}s", timeout.as_secs());
        self.kubectl(&[&["wait", &timeout, &format!("--for={condition}")], objects].concat());
    }

    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.release.program("kubectl"));
        // Its cache of what the server has would be in the home directory.
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(self.server.file("cache"));
        command.args(arguments);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for what in [&["get", "nodes,pods", "-A", "-o", "wide"][..], &["get", "events", "-A"]] {
                let output = self.kubectl_command(&[what, &["--request-timeout=5s"]].concat()).output();
                eprintln!(
                    "--- kubectl {}\n{}",
                    what.join(" "),
                    String::from_utf8_lossy(&output.unwrap().stdout)
                );
            }
        }
    }
}

fn controller_flags(server: &ApiServer) -> [String; 6] {
    [
        format!("--service-account-private-key-file={}", server.file("service-accounts.key").display()),
        format!("--root-ca-file={}", server.file("ca.pem").display()),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--cluster-cidr={PODS}"),
        "--allocate-node-cidrs".to_owned(),
        "--use-service-account-credentials".to_owned(),
    ]
}
