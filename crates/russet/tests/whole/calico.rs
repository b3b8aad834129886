//! `calico` as a runtime runs it, on a real etcd and a real kernel: the non-Kubernetes path,
//! Kubernetes' pods against an API server of the tests, and the chain with Debian's `portmap`
//! (calico-cni.md section 5.1). Without an agent unless a test starts one.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};

use russet_kube::testing::Server;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::{bound, inside, pings};
use serde_json::{Value, json};

use crate::fabric::{Fabric, RESOURCES};
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// A node of a Calico cluster, and the plugin under its name.
pub struct CalicoSetup {
    pub fabric: Fabric,
    pub node: TestNode,
    bin: PathBuf,
}

/// A request.
pub struct Request<'a> {
    pub pod: &'a TestPod,
    pub container: &'a str,
    pub ifname: &'a str,
    pub args: String,
    pub config: Value,
}

// === impl CalicoSetup ===

impl CalicoSetup {
    pub fn new() -> Self {
        let mut fabric = Fabric::new();
        let node = fabric.node("n1", &["--calico"]);
        let bin = node.path("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["calico", "calico-ipam"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_russet"), bin.join(name)).unwrap();
        }
        let ready = json!({"datastoreReady": true});
        fabric.put_resource("clusterinformations", "ClusterInformation", "default", ready);
        let pool = json!({"cidr": "10.65.0.0/16", "blockSize": 26, "vxlanMode": "Never", "ipipMode": "Never",
            "nodeSelector": "all()"});
        fabric.put_resource("ippools", "IPPool", "four", pool);
        fabric.put_resource("nodes", "Node", "n1", json!({}));
        Self { fabric, node, bin }
    }

    /// A configuration of Calico's, to which `extra` is added.
    fn config(&self, extra: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net1", "type": "calico", "log_level": "info",
            "datastore_type": "etcdv3", "etcd_endpoints": "http://10.77.0.1:2379",
            "nodename": "n1", "nodename_file_optional": true, "ipam": {"type": "calico-ipam"},
            "agent_socket": self.node.path("run/russet/cni.sock"), "root": self.node.root(),
            "russet_path": env!("CARGO_BIN_EXE_russet"),
        });
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        config
    }

    /// `host-local`'s section, with its files below the node's root.
    fn host_local(&self, extra: Value) -> Value {
        let mut ipam = json!({"type": "host-local", "dataDir": self.node.path("host-local")});
        ipam.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"ipam": ipam})
    }

    pub fn request<'a>(&self, pod: &'a TestPod, container: &'a str, extra: Value) -> Request<'a> {
        Request { pod, container, ifname: "eth0", args: String::new(), config: self.config(extra) }
    }

    pub fn run(&self, verb: &str, request: &Request<'_>) -> Answer {
        self.spawn(verb, request).wait_with_output().unwrap().into()
    }

    /// Starts a request without waiting for its answer.
    pub fn spawn(&self, verb: &str, request: &Request<'_>) -> Child {
        let path = format!("{}:/usr/lib/cni", self.bin.display());
        let mut command = request.pod.call(self.bin.join("calico"), verb, path);
        command.env("CNI_CONTAINERID", request.container).env("CNI_IFNAME", request.ifname);
        self.node.spawn(command.env("CNI_ARGS", &request.args), request.config.to_string())
    }

    #[track_caller]
    pub fn add(&self, request: &Request<'_>) -> Value {
        self.run("ADD", request).result()
    }

    #[track_caller]
    pub fn succeed(&self, verb: &str, request: &Request<'_>) {
        let answer = self.run(verb, request);
        assert!(answer.status == 0 && answer.stdout.is_empty(), "{verb}: {answer:?}");
    }

    /// CHECK with the result of ADD.
    fn check(&self, request: &Request<'_>, result: &Value) -> Answer {
        let mut config = request.config.clone();
        config["prevResult"] = result.clone();
        self.run("CHECK", &Request { args: request.args.clone(), config, ..*request })
    }

    pub fn endpoints(&self) -> Vec<String> {
        let prefix = format!("{RESOURCES}/workloadendpoints/");
        self.fabric.keys(&prefix).into_iter().map(|key| key.replace(&prefix, "")).collect()
    }

    fn endpoint(&self, name: &str) -> Value {
        self.fabric.get(&format!("{RESOURCES}/workloadendpoints/{name}"))
    }

    fn ip(&self, namespace: &str, args: &[&str]) -> String {
        let output = Command::new("ip").args(["-n", namespace]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn sysctl(&self, namespace: &str, path: &str) -> String {
        inside(namespace, &["cat", &format!("/proc/sys/net/{path}")]).trim().to_owned()
    }

    fn routes(&self, pod: &TestPod) -> Vec<String> {
        let text = self.ip(&pod.netns_name, &["route", "show"]);
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}

pub fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, host-local"]
fn oracle_01_a_container_with_host_local_gets_calicos_wiring_and_one_endpoint() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let mut request = setup.request(&pod, "abc123", setup.host_local(json!({"subnet": "10.0.0.0/8"})));
    request.config["log_file_path"] = json!(setup.node.path("cni.log"));
    let result = setup.add(&request);
    let net = address(&result);
    assert!(net.ends_with("/32") && result["ips"].as_array().unwrap().len() == 1, "{result}");
    let mac = &result["interfaces"][1]["mac"];
    assert_eq!(setup.endpoints(), ["default/n1-cni-abc123-eth0"]);
    let spec = json!({"orchestrator": "cni", "node": "n1", "containerID": "abc123", "endpoint": "eth0",
        "ipNetworks": [net], "profiles": ["net1"], "interfaceName": "caliabc123", "mac": mac});
    assert_eq!(setup.endpoint("default/n1-cni-abc123-eth0")["spec"], spec);
    // calico-cni.md oracle 24.
    let sandbox = pod.path().display().to_string();
    assert_eq!(result["interfaces"][0], json!({"name": "caliabc123"}));
    let pod_end = json!({"name": "eth0", "mac": mac, "sandbox": sandbox, "mtu": 1500});
    assert_eq!(result["interfaces"][1], pod_end);
    assert_eq!(result["ips"][0], json!({"address": net, "interface": 1}));
    // calico-cni.md oracle 2.
    let profile = setup.fabric.get(&format!("{RESOURCES}/profiles/net1"));
    assert_eq!(profile["spec"]["ingress"][0]["source"]["selector"], "has(net1)");
    // calico-cni.md oracle 5.
    assert_eq!(setup.check(&request, &result).status, 0);
    setup.succeed("DEL", &request);
    assert_eq!(setup.endpoints(), Vec::<String>::new());
    assert!(!setup.node.links().iter().any(|name| name.starts_with("cali")), "{:?}", setup.node.links());
    assert!(!setup.ip(&pod.netns_name, &["link"]).contains("eth0"));
    setup.succeed("DEL", &request);
    assert_ne!(setup.check(&request, &result).status, 0);
    // calico-cni.md section 1.1
    let log = std::fs::read_to_string(setup.node.path("cni.log")).unwrap();
    for line in ["calico: Wrote the endpoint of abc123", "calico: Removed the endpoint of abc123"] {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_03_the_host_end_is_set_up_as_calico_does() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    setup.add(&setup.request(&pod, "abc123", json!({})));
    let node = setup.node.netns_name().to_owned();
    let link: Value = serde_json::from_str(&setup.ip(&node, &["-j", "link", "show", "caliabc123"])).unwrap();
    assert_eq!((&link[0]["mtu"], &link[0]["operstate"]), (&json!(1500), &json!("UP")), "{link}");
    assert_eq!(link[0]["address"], "ee:ee:ee:ee:ee:ee");
    for (path, value) in [
        ("ipv4/conf/caliabc123/proxy_arp", "1"),
        ("ipv4/neigh/caliabc123/proxy_delay", "0"),
        ("ipv4/conf/caliabc123/forwarding", "1"),
    ] {
        assert_eq!(setup.sysctl(&node, path), value, "{path}");
    }
    assert_eq!(setup.sysctl(&pod.netns_name, "ipv4/ip_forward"), "0");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_04_one_route_leads_to_the_container_and_two_lead_out_of_it() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let request = Request {
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0".into(),
        ..setup.request(&pod, "abc123", json!({}))
    };
    let bare = address(&setup.add(&request)).replace("/32", "");
    let to_pod = setup.ip(setup.node.netns_name(), &["-d", "route", "show", &bare]);
    assert_eq!(to_pod.trim(), format!("unicast {bare} dev calia4fc3c48bd8 proto boot scope link"));
    let out = ["default via 169.254.1.1 dev eth0", "169.254.1.1 dev eth0 scope link"];
    assert_eq!(setup.routes(&pod), out);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_22_routes_set_up_twice_are_there_once() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let request = Request {
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0".into(),
        ..setup.request(&pod, "abc123", json!({}))
    };
    let first = setup.add(&request);
    let all =
        |setup: &CalicoSetup| (setup.ip(setup.node.netns_name(), &["route", "show"]), setup.routes(&pod));
    let before = all(&setup);
    assert_eq!(setup.add(&request)["ips"], first["ips"]);
    assert_eq!(all(&setup), before);
    let bare = address(&first).replace("/32", "");
    assert_eq!(before.0.lines().filter(|line| line.starts_with(&bare)).count(), 1, "{before:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_09_a_container_that_may_forward_does() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    setup.add(&setup.request(&pod, "abc123", json!({"container_settings": {"allow_ip_forwarding": true}})));
    assert_eq!(setup.sysctl(&pod.netns_name, "ipv4/ip_forward"), "1");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_28_the_mtu_is_the_files_and_a_configured_one_comes_first() {
    let mut setup = CalicoSetup::new();
    std::fs::create_dir_all(setup.node.path("var/lib/calico")).unwrap();
    std::fs::write(setup.node.path("var/lib/calico/mtu"), "3000").unwrap();
    for (container, extra, mtu) in [("one", json!({}), 3000), ("two", json!({"mtu": 4000}), 4000)] {
        let pod = setup.node.pod();
        setup.add(&setup.request(&pod, container, extra));
        for (namespace, link) in
            [(pod.netns_name.as_str(), "eth0"), (setup.node.netns_name(), &format!("cali{container}"))]
        {
            let shown = setup.ip(namespace, &["link", "show", link]);
            assert!(shown.contains(&format!("mtu {mtu} ")), "{shown}");
        }
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_34_addresses_of_both_families_are_usable_at_once() {
    let mut setup = CalicoSetup::new();
    let pool = json!({"cidr": "fd00:65::/112", "blockSize": 122, "vxlanMode": "Never", "ipipMode": "Never",
        "nodeSelector": "all()"});
    setup.fabric.put_resource("ippools", "IPPool", "six", pool);
    let pod = setup.node.pod();
    let request =
        setup.request(&pod, "abc123", json!({"ipam": {"type": "calico-ipam", "assign_ipv6": "true"}}));
    let result = setup.add(&request);
    assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
    let shown = setup.ip(&pod.netns_name, &["-6", "address", "show", "dev", "eth0", "scope", "global"]);
    assert!(shown.contains("fd00:65::") && !shown.contains("tentative"), "{shown}");
    assert_eq!(setup.sysctl(&pod.netns_name, "ipv6/conf/eth0/accept_dad"), "0");
    let routes = setup.ip(&pod.netns_name, &["-6", "route", "show", "default"]);
    assert_eq!(routes.trim(), "default via fe80::ecee:eeff:feee:eeee dev eth0 metric 1024 pref medium");
    assert_eq!(setup.check(&request, &result).status, 0);
    setup.succeed("DEL", &request);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_18_del_succeeds_when_the_namespace_is_gone() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let request = setup.request(&pod, "abc123", json!({}));
    setup.add(&request);
    russet_linux::NetNs::delete_named(&pod.netns_name).unwrap();
    setup.succeed("DEL", &request);
    assert_eq!((setup.endpoints(), setup.fabric.keys("/calico/ipam/v2/handle/")), (Vec::new(), Vec::new()));
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_23_the_self_test_tells_whether_the_datastore_answers() {
    let mut setup = CalicoSetup::new();
    let test = |setup: &CalicoSetup, config: Value| {
        let mut command = Command::new(setup.bin.join("calico"));
        setup.node.output(command.env_clear().arg("-t"), config.to_string())
    };
    assert_eq!(test(&setup, setup.config(json!({"cniVersion": "0.3.1"}))).status, 0);
    for has_agent in [false, true] {
        if has_agent {
            // Its answer must come before the plugin stops waiting for it.
            setup.node.start_agent();
        }
        let wrong = test(&setup, setup.config(json!({"etcd_endpoints": "http://10.77.0.1:2378"})));
        let error = wrong.error();
        assert!(error["msg"].as_str().unwrap().contains("cannot be attached"), "{has_agent}: {wrong:?}");
        let details = error["details"].as_str().unwrap();
        let names_etcd = details.contains("http://10.77.0.1:2378") && details.contains("refused");
        assert!(names_etcd && !details.contains("agent"), "{has_agent}: {wrong:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_12_the_endpoints_node_is_the_hostname_and_nodename_beats_it() {
    let mut setup = CalicoSetup::new();
    for (container, extra) in
        [("one", json!({"nodename": null, "hostname": "n1"})), ("two", json!({"hostname": "other"}))]
    {
        let pod = setup.node.pod();
        setup.add(&setup.request(&pod, container, extra));
        assert_eq!(setup.endpoint(&format!("default/n1-cni-{container}-eth0"))["spec"]["node"], "n1");
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_19_the_same_container_again_has_the_same_address_and_endpoint() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let request = setup.request(
        &pod,
        "abc123",
        json!({"container_settings": {"allow_ip_forwarding": true}, "mtu": 1400}),
    );
    let first = setup.add(&request);
    assert!(address(&first).starts_with("10.65."), "{first}");
    assert_eq!(setup.add(&request)["ips"], first["ips"]);
    assert_eq!(setup.endpoints().len(), 1);
    // calico-cni.md oracle 9.
    assert_eq!(setup.sysctl(&pod.netns_name, "ipv4/ip_forward"), "1");
    assert!(setup.ip(&pod.netns_name, &["link", "show", "eth0"]).contains("mtu 1400"));
    // calico-cni.md oracle 20.
    let mut other = setup.request(&pod, "abc123", json!({}));
    other.config["name"] = json!("net2");
    assert_eq!(setup.add(&other)["ips"], first["ips"]);
    assert_eq!(setup.endpoint("default/n1-cni-abc123-eth0")["spec"]["profiles"], json!(["net1", "net2"]));
    assert_eq!(setup.fabric.keys(&format!("{RESOURCES}/profiles/")).len(), 2);
    setup.succeed("CHECK", &request);
    setup.succeed("DEL", &request);
    setup.succeed("DEL", &request);
    assert_eq!(setup.fabric.keys("/calico/ipam/v2/handle/"), Vec::<String>::new());
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_06_an_interface_of_the_host_ends_name_makes_room() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let node = setup.node.netns_name().to_owned();
    setup.ip(&node, &["link", "add", "caliabc123", "type", "veth", "peer", "name", "other"]);
    let request = setup.request(&pod, "abc123", json!({}));
    setup.add(&request);
    let links = setup.node.links();
    assert!(links.contains(&"caliabc123".to_owned()) && !links.contains(&"other".to_owned()), "{links:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_17_del_of_what_was_never_added_succeeds_with_and_without_a_namespace() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let never = setup.request(&pod, "never", json!({}));
    setup.succeed("DEL", &never);
    russet_linux::NetNs::delete_named(&pod.netns_name).unwrap();
    setup.succeed("DEL", &never);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_07_with_a_locked_datastore_del_fails_and_the_interface_goes_nevertheless() {
    let mut setup = CalicoSetup::new();
    let second = setup.node.pod();
    let request = setup.request(&second, "def456", json!({}));
    setup.add(&request);
    let locked = json!({"kind": "ClusterInformation", "metadata": {"name": "default"}, "spec": {"datastoreReady": false}});
    setup.fabric.put(&format!("{RESOURCES}/clusterinformations/default"), &locked.to_string());
    assert_ne!(setup.run("DEL", &request).status, 0);
    assert_ne!(setup.run("ADD", &setup.request(&second, "ghi789", json!({}))).status, 0);
    assert!(!setup.node.links().iter().any(|name| name.starts_with("cali")), "{:?}", setup.node.links());
}

/// Starts an API server that the node reaches, with a namespace and a pod.
fn api(setup: &CalicoSetup, annotations: Value) -> Server {
    let server = setup.node.netns().with(Server::start).unwrap();
    server.put(
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "annotations": {}}}),
    );
    let metadata = json!({"name": "web-0", "namespace": "shop", "generateName": "web-", "labels": {"app": "web"},
        "annotations": annotations});
    let container =
        json!({"name": "c", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]});
    let spec = json!({"nodeName": "n1", "serviceAccountName": "web-sa", "containers": [container]});
    server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"podCIDR": "10.10.0.0/24", "podCIDRs": ["10.10.0.0/24"]}});
    server.put(node);
    server.write_kubeconfig(&setup.node.path("kubeconfig"));
    server
}

fn of_pod<'a>(setup: &CalicoSetup, pod: &'a TestPod, container: &'a str, extra: Value) -> Request<'a> {
    let mut config =
        json!({"policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": setup.node.path("kubeconfig")}});
    config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let args =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=x".to_owned();
    Request { args, ..setup.request(pod, container, config) }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_25_a_kubernetes_pod_gets_the_endpoint_of_the_example() {
    let mut setup = CalicoSetup::new();
    let _api = api(&setup, json!({"cni.projectcalico.org/hwAddr": "8e:01:7c:aa:10:f3"}));
    let pod = setup.node.pod();
    let request = of_pod(&setup, &pod, "4be1", json!({}));
    let result = setup.add(&request);
    // calico-cni.md section 2.2.2
    let endpoint = setup.endpoint("shop/n1-k8s-web--0-eth0");
    let spec = json!({
        "orchestrator": "k8s", "node": "n1", "containerID": "4be1", "pod": "web-0", "endpoint": "eth0",
        "serviceAccountName": "web-sa", "ipNetworks": [address(&result)],
        "profiles": ["kns.shop", "ksa.shop.web-sa"], "interfaceName": "calia4fc3c48bd8", "mac": "8e:01:7c:aa:10:f3",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080, "hostPort": 0, "hostIP": ""}],
    });
    assert_eq!(endpoint["spec"], spec);
    assert_eq!(endpoint["metadata"]["generateName"], "web-");
    let labels = json!({"app": "web", "projectcalico.org/namespace": "shop",
        "projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "web-sa"});
    assert_eq!(endpoint["metadata"]["labels"], labels);
    assert!(setup.ip(&pod.netns_name, &["link", "show", "eth0"]).contains("8e:01:7c:aa:10:f3"));
    assert_eq!(setup.add(&request)["ips"], result["ips"]);
    assert_eq!(setup.check(&request, &result).status, 0);
    // calico-cni.md oracles 47 and 48: a newer container's endpoint survives.
    let second = setup.node.pod();
    let newer = of_pod(&setup, &second, "5cf2", json!({}));
    let fresh = setup.add(&newer);
    assert_ne!(fresh["ips"], result["ips"]);
    assert_eq!(setup.fabric.keys("/calico/ipam/v2/handle/").len(), 2);
    assert_ne!(setup.check(&request, &result).status, 0, "its endpoint is another container's");
    setup.succeed("DEL", &request);
    assert_eq!(setup.endpoint("shop/n1-k8s-web--0-eth0")["spec"]["containerID"], "5cf2");
    assert_eq!(setup.check(&newer, &fresh).status, 0);
    setup.succeed("DEL", &newer);
    setup.succeed("DEL", &newer);
    assert_eq!((setup.endpoints(), setup.fabric.keys("/calico/ipam/v2/handle/")), (Vec::new(), Vec::new()));
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_pods_address_moves_to_its_next_sandbox_after_the_go_plugins_link_is_deleted() {
    // calico-cni.md section 2.5.3. The Go plugin uses another prefix, and writes no owner on its
    // links.
    let mut setup = CalicoSetup::new();
    let _api = api(&setup, json!({"cni.projectcalico.org/ipAddrs": "[\"10.65.0.77\"]"}));
    let (old, new) = (setup.node.pod(), setup.node.pod());
    setup.add(&of_pod(&setup, &old, "4be1", json!({})));
    let node = setup.node.netns_name().to_owned();
    let (ours, gos) = ("calia4fc3c48bd8", "tapa4fc3c48bd8");
    setup.ip(&node, &["link", "set", ours, "down"]);
    setup.ip(&node, &["link", "set", ours, "alias", "", "name", gos]);
    setup.ip(&node, &["link", "set", gos, "up"]);
    setup.ip(&node, &["route", "add", "10.65.0.77", "dev", gos, "scope", "link"]);
    let key = format!("{RESOURCES}/workloadendpoints/shop/n1-k8s-web--0-eth0");
    let mut endpoint = setup.fabric.get(&key);
    endpoint["spec"]["interfaceName"] = json!(gos);
    setup.fabric.put(&key, &endpoint.to_string());
    assert!(setup.node.links().contains(&gos.to_owned()), "{:?}", setup.node.links());
    let again = of_pod(&setup, &new, "5cf2", json!({}));
    assert_eq!(address(&setup.add(&again)), "10.65.0.77/32");
    assert!(!setup.node.links().contains(&gos.to_owned()), "{:?}", setup.node.links());
    let route = setup.ip(&node, &["route", "get", "10.65.0.77"]);
    assert!(route.contains(&format!("dev {ours} ")), "{route}");
    assert!(!setup.ip(&old.netns_name, &["link"]).contains("eth0"), "nothing answers for it any more");
    setup.succeed("DEL", &again);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, host-local"]
fn oracle_30_host_local_takes_the_nodes_pod_prefix_and_its_routes() {
    let mut setup = CalicoSetup::new();
    let server = api(&setup, json!({}));
    let routes = json!([{"dst": "10.20.0.0/16"}]);
    let config = setup.host_local(json!({"subnet": "usePodCidr", "routes": routes}));
    let mut given = Vec::new();
    for container in ["one", "two"] {
        let pod = setup.node.pod();
        let request = of_pod(&setup, &pod, container, config.clone());
        let answer = setup.run("ADD", &request);
        let result = answer.result();
        assert!(address(&result).starts_with("10.10.0."), "{result}");
        for fact in ["fetching podCidr from Kubernetes", "passing podCidr to host-local IPAM: 10.10.0.0/24"] {
            let said = |line: &str| line.contains("[INFO]") && line.contains(&format!("Calico CNI {fact}"));
            assert!(answer.stderr.lines().any(said), "{fact}: {}", answer.stderr);
        }
        // calico-cni.md oracle 32.
        assert_eq!(
            setup.routes(&pod),
            ["10.20.0.0/16 via 169.254.1.1 dev eth0", "169.254.1.1 dev eth0 scope link"]
        );
        assert_eq!(setup.add(&request)["ips"], result["ips"], "the same container again");
        assert_eq!(setup.check(&request, &result).status, 0);
        given.push((pod, container, address(&result)));
    }
    assert_ne!(given[0].2, given[1].2);
    // calico-cni.md section 3.6: DEL asks no API server.
    drop(server);
    for (pod, container, _) in &given {
        setup.succeed("DEL", &of_pod(&setup, pod, container, config.clone()));
    }
    let left = std::fs::read_dir(setup.node.path("host-local/net1")).unwrap();
    let left: Vec<String> = left.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with("10.10.")), "{left:?}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, nft, portmap"]
fn a_chain_of_calico_and_portmap_opens_a_port_and_closes_it_again() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let mut calico = setup.config(json!({}));
    calico.as_object_mut().unwrap().retain(|key, _| key != "name" && key != "cniVersion");
    let portmap = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true}});
    let list = json!({"cniVersion": "1.0.0", "name": "net1", "plugins": [calico, portmap]});
    let list = russet_cni_spec::ConfigList::parse(list.to_string().as_bytes()).unwrap();
    let dirs = vec![setup.bin.clone(), "/usr/lib/cni".into()];
    let runtime = Runtime::new(dirs, setup.node.path("cache"));
    let mut attachment = Attachment::new("abc123".parse().unwrap(), pod.path(), "eth0".parse().unwrap());
    let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    attachment.capability_args.insert("portMappings".into(), mapping);
    let result = setup.node.netns().with(|| runtime.add(&list, &attachment)).unwrap().unwrap();
    assert_eq!((result.interfaces.len(), result.interfaces[0].name.as_str()), (2, "caliabc123"));
    let netns = russet_linux::NetNs::open(pod.path()).unwrap();
    let listener = netns.with(|| bound(|| TcpListener::bind("0.0.0.0:80"))).unwrap();
    let accepted = std::thread::spawn(move || listener.accept().unwrap().1);
    let connect = || TcpStream::connect_timeout(&"10.77.0.11:8080".parse().unwrap(), TIMEOUT);
    setup.node.netns().with(connect).unwrap().unwrap();
    accepted.join().unwrap();
    for _ in 0..2 {
        setup.node.netns().with(|| runtime.del(&list, &attachment)).unwrap().unwrap();
        assert!(setup.node.netns().with(connect).unwrap().is_err());
    }
    assert_eq!((setup.endpoints(), setup.fabric.keys("/calico/ipam/v2/handle/")), (Vec::new(), Vec::new()));
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip, ping"]
fn the_agent_makes_the_same_endpoint_and_the_pod_is_reachable() {
    let mut setup = CalicoSetup::new();
    let _api = api(&setup, json!({}));
    // In a fresh datastore the agent replaces calico/node.
    setup.fabric.etcdctl(&["del", &format!("{RESOURCES}/clusterinformations/default")]);
    setup.node.start_agent();
    let pod = setup.node.pod();
    let request = of_pod(&setup, &pod, "4be1", json!({}));
    let result = setup.add(&request);
    assert_eq!(setup.add(&request)["ips"], result["ips"]);
    assert_eq!(setup.check(&request, &result).status, 0);
    assert_eq!(setup.endpoint("shop/n1-k8s-web--0-eth0")["spec"]["ipNetworks"], json!([address(&result)]));
    let bare = address(&result).replace("/32", "");
    assert!(pings(setup.node.netns_name(), &bare));
    // A second network's STATUS, and GC that keeps valid attachments and deletes others.
    assert_eq!(setup.run("STATUS", &with_version(&request)).status, 0);
    let valid = |id: &str| json!({"cni.dev/valid-attachments": [{"containerID": id, "ifname": "eth0"}]});
    for (id, left) in [("4be1", 1), ("other", 0)] {
        let mut gc = with_version(&request);
        gc.config.as_object_mut().unwrap().extend(valid(id).as_object().unwrap().clone());
        setup.succeed("GC", &gc);
        assert_eq!(setup.endpoints().len(), left, "{id}");
        assert_eq!(setup.fabric.keys("/calico/ipam/v2/handle/net1.").len(), left, "{id}");
    }
    setup.succeed("DEL", &request);
}

/// The same request in the version that has STATUS and GC.
fn with_version<'a>(request: &Request<'a>) -> Request<'a> {
    let mut config = request.config.clone();
    config["cniVersion"] = json!("1.1.0");
    Request { args: request.args.clone(), config, ..*request }
}
