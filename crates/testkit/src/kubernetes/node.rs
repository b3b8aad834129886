//! A node of a cluster: containerd, kubelet and kube-proxy on a machine of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{ApiServer, Daemon, Release, node_user};
use crate::{Machine, eventually, image, let_pass, require_tool};

/// A running node. Dropping it removes its machine, with all pods; its Node object stays.
#[derive(Debug)]
pub struct Node {
    /// Its name in the cluster.
    pub name: String,
    /// Its address between the nodes.
    pub address: String,
    /// Its kubelet.
    pub kubelet: Daemon,
    /// Its container runtime.
    pub containerd: Daemon,
    /// Its kube-proxy.
    pub proxy: Daemon,
    /// Where all of them run.
    pub machine: Arc<Machine>,
}

/// Start of a daemon on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between looks, each of which is a process.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// kubelet asks for a million open files, which needs CAP_SYS_RESOURCE.
const OPEN_FILES: u32 = 4096;

// === impl Node ===

impl Node {
    /// Starts a node on a machine that is connected, and imports images; does not wait until it is ready, which needs a network.
    #[track_caller]
    pub fn start(
        name: &str,
        address: &str,
        machine: Machine,
        server: &ApiServer,
        release: Release,
        images: &[&Path],
    ) -> Self {
        let machine = Arc::new(machine);
        let file = |name: &str| machine.file(name).display().to_string();
        let daemon = |program: &Path, arguments: &[String]| {
            let log = machine.file(&format!("{}.log", program.file_name().unwrap().to_string_lossy()));
            Daemon::new(program.to_owned(), arguments.to_vec(), Some(machine.clone()), log)
        };
        std::fs::write(machine.file("containerd.toml"), containerd_configuration()).unwrap();
        let containerd =
            daemon(&require_tool("containerd"), &["--config".to_owned(), file("containerd.toml")]);
        std::fs::write(machine.file("kubelet.json"), kubelet_configuration(server)).unwrap();
        let kubelet = [
            format!("--config={}", file("kubelet.json")),
            format!("--kubeconfig={}", server.kubeconfig_of(&node_user(name)).display()),
            format!("--hostname-override={name}"),
            format!("--node-ip={address}"),
        ];
        std::fs::write(machine.file("proxy.json"), proxy_configuration(server, name)).unwrap();
        let proxy = [format!("--config={}", file("proxy.json"))];
        let mut node = Self {
            name: name.to_owned(),
            address: address.to_owned(),
            kubelet: daemon(&release.program("kubelet"), &kubelet),
            containerd,
            proxy: daemon(&release.program("kube-proxy"), &proxy),
            machine,
        };
        node.containerd.start();
        eventually(TIMEOUT, || {
            let_pass(BETWEEN_LOOKS);
            node.machine.inside(|| crate::succeeds("ctr version"))
        });
        images.iter().for_each(|image| node.import(image));
        node.kubelet.start();
        node.proxy.start();
        node
    }

    /// Imports an image from an archive.
    #[track_caller]
    pub fn import(&self, archive: &Path) {
        self.machine.run("ctr", &["-n", "k8s.io", "images", "import", archive.to_str().unwrap()]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Their machine would end them, but only once nothing refers to it.
        self.kubelet.kill();
        self.proxy.kill();
        self.containerd.kill();
    }
}

/// Without what a machine of tests lacks: AppArmor and CAP_SYS_RESOURCE (cni-runtime.md section 3.6).
fn containerd_configuration() -> String {
    format!(
        "version = 2\ndisabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {:?}\ndisable_apparmor = true\n\
         restrict_oom_score_adj = true\n",
        image::POD
    )
}

fn kubelet_configuration(server: &ApiServer) -> String {
    json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {
            "anonymous": { "enabled": false }, "webhook": { "enabled": false },
            "x509": { "clientCAFile": server.file("ca.pem") },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs", "failCgroupV1": false,
        "failSwapOn": false, "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0, "maxOpenFiles": OPEN_FILES, "resolvConf": "",
        // A full disk of the test's machine is no reason to evict pods.
        "evictionHard": { "nodefs.available": "0%", "imagefs.available": "0%" }, "imageGCHighThresholdPercent": 100,
        // The default would be made on the test's machine.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
    .to_string()
}

fn proxy_configuration(server: &ApiServer, node: &str) -> String {
    json!({
        "kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "mode": "nftables", "hostnameOverride": node,
        "clientConnection": { "kubeconfig": server.kubeconfig_of("system:kube-proxy") },
        // These are of the whole kernel.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    })
    .to_string()
}
