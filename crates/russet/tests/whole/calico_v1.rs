//! A configuration of Calico v1.11, unchanged, for our `calico` and, passed on by Debian's Go
//! `bridge`, for our `calico-ipam`: on its v2 data, without them, and after `russet migrate
//! calico-v1`.

use std::os::unix::fs::symlink;
use std::process::Command;

use russet_kube::testing::Server;
use russet_linux::process;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, PATH, TestNode, TestPod};

const GO_PLUGINS: &str = "/usr/lib/cni";
const ENDPOINTS: &str = "http://10.77.0.1:2379";

/// A node with our executable under Calico's name, without an agent.
struct CalicoSetup {
    fabric: Fabric,
    node: TestNode,
    plugins: tempfile::TempDir,
}

// === impl CalicoSetup ===

impl CalicoSetup {
    fn new() -> Self {
        let mut fabric = Fabric::new();
        let node = fabric.node("n1", &["--calico"]);
        let plugins = tempfile::tempdir().unwrap();
        for name in ["calico", "calico-ipam"] {
            symlink(env!("CARGO_BIN_EXE_russet"), plugins.path().join(name)).unwrap();
        }
        Self { fabric, node, plugins }
    }

    /// The pool of a v1 cluster that is ready.
    fn plant(&self) {
        self.fabric.etcdctl_v2(&["set", "/calico/v1/Ready", "true"]);
        let pool = r#"{"cidr":"10.65.0.0/24","ipip":"","ipip_mode":"","masquerade":true,"ipam":true,"disabled":false}"#;
        self.fabric.etcdctl_v2(&["set", "/calico/v1/ipam/v4/pool/10.65.0.0-24", pool]);
    }

    /// Runs `plugin` on a configuration of v1.11; `more` adds members.
    fn run(&self, plugin: &str, verb: &str, pod: &TestPod, args: &str, more: Value) -> Answer {
        let mut config = json!({
            "cniVersion": "0.3.1", "name": "calicotest", "etcd_endpoints": ENDPOINTS, "nodename": "n1",
            "log_level": "info", "ipam": {"type": "calico-ipam"},
            "root": self.node.root(), "agent_socket": self.node.path("run/russet/cni.sock"),
            "russet_path": env!("CARGO_BIN_EXE_russet"),
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = format!("{}:{GO_PLUGINS}", self.plugins.path().display());
        let mut command = pod.call(plugin, verb, path);
        self.node.output(command.env("PATH", PATH).env("CNI_ARGS", args), config.to_string())
    }

    fn bridge(&self, verb: &str, pod: &TestPod, more: Value) -> Answer {
        let mut config = json!({"type": "bridge", "bridge": "cni0"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.run(&format!("{GO_PLUGINS}/bridge"), verb, pod, "", config)
    }

    /// `calico` for the pod `shop/web-0`.
    fn calico(&self, verb: &str, pod: &TestPod, more: Value) -> Answer {
        let mut config = json!({"type": "calico"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
        self.run(&self.plugins.path().join("calico").display().to_string(), verb, pod, args, config)
    }

    fn inside(&self, pod: &TestPod) -> String {
        let arguments = ["-n", &pod.netns_name, "address", "show", "dev", "eth0"];
        String::from_utf8(Command::new("ip").args(arguments).output().unwrap().stdout).unwrap()
    }

    /// The only block.
    fn block(&self) -> String {
        let keys = self.v2_keys("/calico/ipam/v2/assignment");
        assert_eq!(keys.len(), 1, "{keys:?}");
        self.fabric.etcdctl_v2(&["get", &keys[0]])
    }

    fn migrate(&self) -> Answer {
        self.fabric.etcdctl_v2(&["set", "/calico/v1/Ready", "false"]);
        let to = format!("etcd:{ENDPOINTS}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["migrate", "calico-v1", "--from", ENDPOINTS, "--to", &to]);
        process::in_netns(&mut command, self.node.netns()).unwrap();
        command.output().unwrap().into()
    }

    fn v3_keys(&self) -> Vec<String> {
        self.fabric.keys("/")
    }

    fn v2_keys(&self, directory: &str) -> Vec<String> {
        let listed = self.fabric.try_etcdctl_v2(&["ls", "--recursive", "-p", directory]).unwrap_or_default();
        let mut keys: Vec<String> =
            listed.lines().filter(|line| !line.ends_with('/')).map(str::to_owned).collect();
        keys.sort();
        keys
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: bridge; tool: etcd, ip, containernetworking-plugins"]
fn an_unchanged_configuration_works_on_v2_and_after_the_migration_on_v3() {
    let mut setup = CalicoSetup::new();
    let (a, b) = (setup.node.pod(), setup.node.pod());

    // Neither API has data: an empty v3 store must not be used silently.
    for verb in ["ADD", "DEL"] {
        let refused = setup.bridge(verb, &a, json!({}));
        assert_ne!(refused.status, 0, "{refused:?}");
        assert!(refused.stdout.contains("russet migrate calico-v1"), "{verb}: {refused:?}");
    }
    assert_eq!((setup.v3_keys(), setup.v2_keys("/")), (Vec::new(), Vec::new()));

    setup.plant();
    let added = setup.bridge("ADD", &a, json!({}));
    assert_eq!(added.status, 0, "{added:?}");
    let address = added.result()["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.65.0."), "{address}");
    assert_eq!(
        setup.v2_keys("/calico/ipam/v2/handle"),
        [format!("/calico/ipam/v2/handle/calicotest.{}", a.container)]
    );
    let block = setup.block();
    assert!(block.contains(r#""affinity":"host:n1","strictAffinity":false"#), "{block}");
    assert_eq!(setup.v3_keys(), Vec::<String>::new());

    // The named model works the same.
    let named = json!({"datastore_type": "etcdv2"});
    let added = setup.bridge("ADD", &b, named.clone());
    assert_eq!(added.status, 0, "{added:?}");
    assert_eq!(setup.bridge("DEL", &b, named.clone()).status, 0);

    // After the migration the same configuration means v3, and finds the address to release.
    let migrated = setup.migrate();
    assert_eq!(migrated.status, 0, "{migrated:?}");
    let before = setup.v2_keys("/");
    let refused = setup.bridge("ADD", &b, named);
    assert!(refused.status != 0 && refused.stdout.contains("russet migrate calico-v1"), "{refused:?}");
    let deleted = setup.bridge("DEL", &a, json!({}));
    assert_eq!(deleted.status, 0, "{deleted:?}");
    assert_eq!(setup.fabric.keys("/calico/ipam/v2/handle/"), Vec::<String>::new());
    assert_eq!(setup.v2_keys("/"), before, "v2 is no longer written");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: bridge; tool: etcd, ip, containernetworking-plugins"]
fn del_on_v2_leaves_nothing() {
    let mut setup = CalicoSetup::new();
    setup.plant();
    let pods: Vec<TestPod> = (0..3).map(|_| setup.node.pod()).collect();
    let mut addresses: Vec<String> = Vec::new();
    for pod in &pods {
        let added = setup.bridge("ADD", pod, json!({}));
        assert_eq!(added.status, 0, "{added:?}");
        addresses.push(added.result()["ips"][0]["address"].as_str().unwrap().to_owned());
    }
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 3, "no address twice");
    for pod in pods.iter().chain(&pods) {
        assert_eq!(setup.bridge("DEL", pod, json!({})).status, 0);
    }
    assert_eq!(setup.v2_keys("/calico/ipam/v2/handle"), Vec::<String>::new());
    let block: Value = serde_json::from_str(&setup.block()).unwrap();
    assert!(block["allocations"].as_array().unwrap().iter().all(Value::is_null), "{block}");
}

const ENDPOINT: &str = "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0";

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_55_and_56_calico_on_the_v2_data_of_an_unchanged_configuration() {
    let mut setup = CalicoSetup::new();
    let (old, new) = (setup.node.pod(), setup.node.pod());
    for verb in ["ADD", "DEL"] {
        let refused = setup.calico(verb, &old, json!({}));
        assert!(refused.status != 0 && refused.stdout.contains("russet migrate calico-v1"), "{refused:?}");
    }
    assert_eq!((setup.v3_keys(), setup.v2_keys("/")), (Vec::new(), Vec::new()));

    setup.plant();
    let added = setup.calico("ADD", &old, json!({}));
    let address = added.result()["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(setup.inside(&old).contains(&address), "{address}");
    let endpoint =
        || -> Value { serde_json::from_str(&setup.fabric.etcdctl_v2(&["get", ENDPOINT])).unwrap() };
    let first = endpoint();
    assert_eq!((&first["active_instance_id"], &first["state"]), (&json!(old.container), &json!("active")));
    assert_eq!((&first["ipv4_nets"], &first["name"]), (&json!([address]), &json!("calia4fc3c48bd8")));
    assert_eq!(
        (&first["labels"]["calico/k8s_ns"], &first["profile_ids"]),
        (&json!("shop"), &json!(["calicotest"]))
    );

    // The pod again: the same address, no second allocation; the late DEL of its first sandbox
    // releases neither.
    let again = setup.calico("ADD", &new, json!({}));
    assert_eq!(again.result()["ips"][0]["address"], json!(address));
    assert_eq!(setup.calico("DEL", &old, json!({})).status, 0);
    assert!(setup.inside(&new).contains(&address));
    assert!(setup.node.links().contains(&"calia4fc3c48bd8".to_owned()), "{:?}", setup.node.links());
    assert_eq!(endpoint()["active_instance_id"], json!(new.container));
    for _ in 0..2 {
        assert_eq!(setup.calico("DEL", &new, json!({})).status, 0);
    }
    assert_eq!(setup.v2_keys("/calico/v1/host"), Vec::<String>::new());
    assert_eq!(setup.v2_keys("/calico/ipam/v2/handle"), Vec::<String>::new());
    assert!(!setup.node.links().iter().any(|name| name.starts_with("cali")), "{:?}", setup.node.links());
    assert_eq!(setup.v3_keys(), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_v1_endpoint_gets_its_labels_from_kubernetes_and_is_not_made_without() {
    let mut setup = CalicoSetup::new();
    setup.plant();
    let pod = setup.node.pod();
    let kubeconfig = setup.node.path("kubeconfig");
    let config = json!({"policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": kubeconfig}});
    let refused = setup.calico("ADD", &pod, config.clone());
    assert_ne!(refused.status, 0, "{refused:?}");
    assert_eq!(setup.v2_keys("/calico/v1/host"), Vec::<String>::new());

    let server = setup.node.netns().with(Server::start).unwrap();
    server.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    let metadata = json!({"name": "web-0", "namespace": "shop", "labels": {"app": "web"}});
    server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}}));
    server.write_kubeconfig(&kubeconfig);
    assert_eq!(setup.calico("ADD", &pod, config.clone()).status, 0);
    let endpoint: Value = serde_json::from_str(&setup.fabric.etcdctl_v2(&["get", ENDPOINT])).unwrap();
    assert_eq!(endpoint["labels"], json!({"app": "web", "calico/k8s_ns": "shop"}));
    assert_eq!(endpoint["profile_ids"], json!(["k8s_ns.shop"]));
    drop(server);
    // A DEL needs no Kubernetes.
    assert_eq!(setup.calico("DEL", &pod, config).status, 0);
    assert_eq!(setup.v2_keys("/calico/v1/host"), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: bridge; tool: etcd, ip, containernetworking-plugins"]
fn an_agent_beside_v1_data_writes_no_cluster_information_and_plugins_still_use_v1() {
    let mut setup = CalicoSetup::new();
    setup.plant();
    setup.node.start_agent();
    // The last write of an agent's registration.
    russet_testkit::eventually(std::time::Duration::from_secs(30), || {
        setup.node.path("var/lib/calico/nodename").exists()
    });
    let keys = setup.v3_keys();
    assert!(keys.iter().any(|key| key.contains("/nodes/n1")), "{keys:?}");
    assert!(!keys.iter().any(|key| key.contains("clusterinformations")), "{keys:?}");
    let pod = setup.node.pod();
    let added = setup.calico("ADD", &pod, json!({}));
    assert_eq!(added.status, 0, "{added:?}");
    assert_eq!(setup.v2_keys("/calico/ipam/v2/assignment").len(), 1);
    let removed = setup.calico("DEL", &pod, json!({}));
    assert_eq!(removed.status, 0, "{removed:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, host-local"]
fn host_local_with_the_nodes_pod_prefix_works_on_the_v2_data_and_stderr_has_the_facts() {
    // calico-cni.md sections 2.3, 2.5.1 and 2.6
    let mut setup = CalicoSetup::new();
    setup.plant();
    let pod = setup.node.pod();
    let server = setup.node.netns().with(Server::start).unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"podCIDR": "10.10.0.0/24"}});
    server.put(node);
    let (kubeconfig, files) = (setup.node.path("kubeconfig"), setup.node.path("host-local"));
    server.write_kubeconfig(&kubeconfig);
    let ipam = json!({"type": "host-local", "subnet": "usePodCidr", "dataDir": files});
    let config = json!({"ipam": ipam, "kubernetes": {"kubeconfig": kubeconfig}});
    let added = setup.calico("ADD", &pod, config.clone());
    let address = added.result()["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.10.0.") && address.ends_with("/32"), "{address}");
    assert!(setup.inside(&pod).contains(&address), "{address}");
    let of_pod = format!(r#"ContainerID="{}" Namespace="shop" Pod="web-0""#, pod.container);
    for fact in [
        "Calico CNI fetching podCidr from Kubernetes".to_owned(),
        "Calico CNI passing podCidr to host-local IPAM: 10.10.0.0/24".to_owned(),
        format!("Calico CNI using IPs: [{address}] {of_pod}"),
        format!("Setting the host side veth name to calia4fc3c48bd8 {of_pod}"),
        format!("Calico CNI creating profile: calicotest {of_pod}"),
    ] {
        assert!(added.stderr.lines().any(|line| line.ends_with(&fact)), "{fact}:\n{}", added.stderr);
    }
    assert_eq!(setup.v2_keys("/calico/ipam/v2"), Vec::<String>::new(), "Calico's allocator was not used");
    let again = setup.calico("ADD", &pod, config.clone());
    assert_eq!(again.result()["ips"][0]["address"], json!(address), "the same container keeps what it has");
    assert!(again.stderr.contains("Calico CNI found existing endpoint"), "{}", again.stderr);
    drop(server);
    // A DEL needs no Kubernetes.
    let taken = files.join("calicotest").join(address.trim_end_matches("/32"));
    assert!(taken.exists());
    let removed = setup.calico("DEL", &pod, config);
    assert_eq!(removed.status, 0, "{removed:?}");
    assert!(!taken.exists());
    assert_eq!(setup.v2_keys("/calico/v1/host"), Vec::<String>::new());
}
