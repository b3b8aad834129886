//! `calico-ipam` called by Debian's Go `bridge`, on a real etcd: without an agent, with an agent
//! that has its own store, and with one on that etcd (calico-ipam.md section 4, calico-cni.md
//! sections 1 and 5).

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use russet_testkit::run;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, PATH, TestNode, TestPod};

const GO_PLUGINS: &str = "/usr/lib/cni";

/// The process that executes the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Agent {
    None,
    OnItsOwnStore,
    OnThatEtcd,
}

/// A node with our executable under Calico's name.
struct CalicoSetup {
    fabric: Fabric,
    node: TestNode,
    plugins: tempfile::TempDir,
}

// === impl CalicoSetup ===

impl CalicoSetup {
    fn new(agent: Agent) -> Self {
        let mut fabric = Fabric::new();
        let pool = |name: &str, cidr: &str| {
            let spec =
                json!({"cidr": cidr, "ipipMode": "Never", "vxlanMode": "Never", "nodeSelector": "all()"});
            fabric.put_resource("ippools", "IPPool", name, spec);
        };
        pool("pool-a", "10.65.0.0/24");
        pool("pool-b", "10.66.0.0/24");
        pool("pool-six", "fd00:65::/112");
        if agent != Agent::OnThatEtcd {
            // Otherwise the agent registers its node.
            for name in ["node-a", "node-b"] {
                fabric.put_resource("nodes", "Node", name, json!({}));
            }
        }
        let mut node = match agent {
            Agent::OnItsOwnStore => fabric.node_with_own_store("node-a"),
            _ => fabric.node("node-a", &["--calico"]),
        };
        if agent != Agent::None {
            node.start_agent();
        }
        let plugins = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_russet"), plugins.path().join("calico-ipam")).unwrap();
        Self { fabric, node, plugins }
    }

    fn config(&self, version: &str, ipam: Value, more: Value) -> Value {
        let mut config = self.node.config(json!({
            "cniVersion": version, "name": "calicotest", "type": "bridge", "bridge": "cni0",
            "datastore_type": "etcdv3", "etcd_endpoints": "http://10.77.0.1:2379", "nodename": "node-a",
            "ipam": {"type": "calico-ipam"},
        }));
        config["ipam"].as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    /// Runs a plugin in the node as a runtime does; `more` adds variables.
    fn call(
        &self,
        plugin: &Path,
        verb: &str,
        pod: &TestPod,
        config: &Value,
        more: &[(&str, &str)],
    ) -> Answer {
        let path = format!("{}:{GO_PLUGINS}", self.plugins.path().display());
        let mut command = pod.call(plugin, verb, path);
        self.node.output(command.env("PATH", PATH).envs(more.iter().copied()), config.to_string())
    }

    fn bridge(&self, verb: &str, pod: &TestPod, config: &Value) -> Answer {
        self.call(&Path::new(GO_PLUGINS).join("bridge"), verb, pod, config, &[])
    }

    fn ipam(&self, verb: &str, pod: &TestPod, config: &Value, more: &[(&str, &str)]) -> Answer {
        self.call(&self.plugins.path().join("calico-ipam"), verb, pod, config, more)
    }

    /// How many addresses are taken by the blocks; the handles must agree.
    fn taken(&self) -> usize {
        let blocks = self.fabric.keys("/calico/ipam/v2/assignment/");
        let taken = |key: &String| {
            let block = self.fabric.get(key);
            block["allocations"].as_array().unwrap().iter().filter(|entry| !entry.is_null()).count()
        };
        let total = blocks.iter().map(taken).sum();
        let handles = self.fabric.keys("/calico/ipam/v2/handle/");
        let counted = |key: &String| {
            let handle = self.fabric.get(key);
            handle["block"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(handles.iter().map(counted).sum::<u64>(), total as u64, "{handles:?}");
        total
    }
}

fn inside(pod: &TestPod, args: &[&str]) -> String {
    let output = Command::new("ip").args(["-n", &pod.netns_name]).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The first address of a result in any version, with its prefix.
fn address(result: &Value) -> String {
    let ip = result.get("ip4").map_or_else(|| &result["ips"][0]["address"], |ip4| &ip4["ip"]);
    ip.as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

fn the_life_of_a_container(agent: Agent) {
    let mut setup = CalicoSetup::new(agent);
    for version in ["0.2.0", "0.3.1", "0.4.0", "1.0.0"] {
        let pod = setup.node.pod();
        let config = setup.config(version, json!({}), json!({}));
        let added = setup.bridge("ADD", &pod, &config);
        let result = added.result();
        assert_eq!(result["cniVersion"], version);
        if agent != Agent::None {
            let by_agent = format!("[INFO][{}] calico-ipam: ", setup.node.agent_pid());
            assert!(added.stderr.contains(&by_agent), "it was not the agent that did it: {added:?}");
        }
        let net = address(&result);
        assert!(net.starts_with("10.65.0.") && net.ends_with("/26"), "{result}");
        for fact in [
            "Calico CNI IPAM request count IPv4=1 IPv6=0".to_owned(),
            format!("Calico CNI IPAM handle=calicotest.{}", pod.container),
            format!("Calico CNI IPAM assigned addresses IPv4=[{net}] IPv6=[]"),
        ] {
            assert!(added.stderr.contains(&fact), "{fact}: {added:?}");
        }
        assert!(inside(&pod, &["-o", "-4", "address"]).contains(&net), "{net}");
        assert_eq!(setup.taken(), 1);
        // The plugin by itself, as a main plugin would repeat it.
        assert_eq!(address(&setup.ipam("ADD", &pod, &config, &[]).result()), net);
        assert_eq!(setup.taken(), 1);
        if version >= "0.4.0" {
            let mut with_result = config.clone();
            with_result["prevResult"] = result;
            let checked = setup.bridge("CHECK", &pod, &with_result);
            assert_eq!(checked.status, 0, "{checked:?}");
            let other = TestPod { container: "another".into(), ..pod.clone() };
            assert_eq!(setup.ipam("CHECK", &other, &with_result, &[]).code(), 100);
        }
        for _ in 0..2 {
            let deleted = setup.bridge("DEL", &pod, &config);
            assert_eq!(deleted.status, 0, "{deleted:?}");
            assert_eq!(setup.taken(), 0);
        }
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, bridge (containernetworking-plugins), etcd, etcdctl"]
fn go_bridge_calls_calico_ipam_without_an_agent() {
    the_life_of_a_container(Agent::None);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, bridge (containernetworking-plugins), etcd, etcdctl"]
fn go_bridge_calls_calico_ipam_of_an_agent_with_a_store_of_its_own() {
    the_life_of_a_container(Agent::OnItsOwnStore);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, bridge (containernetworking-plugins), etcd, etcdctl"]
fn go_bridge_calls_calico_ipam_of_an_agent_on_the_same_etcd() {
    the_life_of_a_container(Agent::OnThatEtcd);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, bridge (containernetworking-plugins), etcd, etcdctl"]
fn a_requested_address_and_two_families_work_under_go_bridge() {
    // calico-ipam.md section 4.2: requested ones /32, chosen ones with the block's prefix
    let mut setup = CalicoSetup::new(Agent::None);
    let pod = setup.node.pod();
    let config = setup.config("1.0.0", json!({}), json!({}));
    let bridge = Path::new(GO_PLUGINS).join("bridge");
    let with_request = [("CNI_ARGS", "IgnoreUnknown=1;IP=10.66.0.77")];
    let added = setup.call(&bridge, "ADD", &pod, &config, &with_request);
    assert_eq!(address(&added.result()), "10.66.0.77/32");
    assert!(added.stderr.contains("Calico CNI IPAM request IP: 10.66.0.77"), "{added:?}");
    assert_eq!(setup.bridge("DEL", &pod, &config).status, 0);
    let pod = setup.node.pod();
    let dual = json!({"assign_ipv6": "true", "ipv4_pools": ["pool-b"], "ipv6_pools": ["fd00:65::/112"]});
    let config = setup.config("1.0.0", dual, json!({}));
    let result = setup.bridge("ADD", &pod, &config).result();
    let ips: Vec<&str> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    assert!(
        ips[0].starts_with("10.66.0.") && ips[1].starts_with("fd00:65::") && ips[1].ends_with("/122"),
        "{ips:?}"
    );
    assert_eq!(setup.taken(), 2);
    assert_eq!(setup.bridge("DEL", &pod, &config).status, 0);
    assert_eq!(setup.taken(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, etcd, etcdctl"]
fn the_environment_counts_in_the_same_order_with_and_without_an_agent() {
    // calico-ipam.md section 4.1: CALICO_ETCD_ENDPOINTS, then the configuration, then ETCD_ENDPOINTS
    for agent in [Agent::None, Agent::OnItsOwnStore] {
        let mut setup = CalicoSetup::new(agent);
        let pod = setup.node.pod();
        let good = "http://10.77.0.1:2379";
        let bad = "http://10.77.0.1:1";
        let with =
            |endpoints: Value| setup.config("1.0.0", json!({}), json!({ "etcd_endpoints": endpoints }));
        let code = |config: &Value, vars: &[(&str, &str)]| {
            let answer = setup.ipam("ADD", &pod, config, vars);
            if answer.status == 0 { 0 } else { answer.code() }
        };
        assert_eq!(code(&with(Value::Null), &[("ETCD_ENDPOINTS", good)]), 0, "{agent:?}");
        assert_eq!(code(&with(json!(good)), &[("ETCD_ENDPOINTS", bad)]), 0, "{agent:?}");
        assert_eq!(code(&with(json!(bad)), &[("CALICO_ETCD_ENDPOINTS", good)]), 0, "{agent:?}");
        assert_eq!(code(&with(json!(good)), &[("CALICO_ETCD_ENDPOINTS", bad)]), 11, "{agent:?}");
        assert_eq!(code(&with(json!(good)), &[("CALICO_DATASTORE_TYPE", "kubernetes")]), 7, "{agent:?}");
        assert_eq!(setup.taken(), 1);
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, etcd, etcdctl"]
fn every_refusal_is_one_document_with_its_code_and_leaves_nothing() {
    let mut setup = CalicoSetup::new(Agent::None);
    let pod = setup.node.pod();
    let ipam = |ipam: Value, more: Value| setup.ipam("ADD", &pod, &setup.config("1.0.0", ipam, more), &[]);
    assert_eq!(ipam(json!({"assign_ipv4": "false"}), json!({})).code(), 7);
    let short = ipam(json!({"ipv4_pools": ["10.99.0.0/24"]}), json!({}));
    assert!(
        short.error()["msg"].as_str().unwrap().contains("does not exist, or is not enabled"),
        "{short:?}"
    );
    assert_eq!(ipam(json!({}), json!({"datastore_type": "etcdv2"})).code(), 7, "it holds v3 data");
    let nowhere = ipam(json!({}), json!({"datastore_type": "kubernetes"}));
    assert_eq!(nowhere.code(), 7, "no kubeconfig is named: {nowhere:?}");
    assert_eq!(ipam(json!({}), json!({"nodename": "a/b"})).code(), 7);
    assert_eq!(setup.fabric.keys("/calico/ipam/"), Vec::<String>::new());
    // STATUS without an agent works, since ADD does.
    let status = setup.config("1.1.0", json!({}), json!({}));
    let vars = [("CNI_CONTAINERID", ""), ("CNI_NETNS", "")];
    assert_eq!(setup.ipam("STATUS", &pod, &status, &vars).status, 0);
    let version = setup.ipam("VERSION", &pod, &json!({"cniVersion": "1.0.0"}), &[]).result();
    assert!(version["supportedVersions"].as_array().unwrap().contains(&json!("0.1.0")), "{version}");
    let printed = Command::new(setup.plugins.path().join("calico-ipam")).arg("-v").output().unwrap();
    assert!(printed.status.success() && printed.stdout.starts_with(b"Russet "));
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, etcd, etcdctl"]
fn many_containers_at_once_on_two_nodes_have_addresses_of_their_own() {
    // One node has an agent, the other none; both claim blocks of the same pool.
    const EACH: usize = 12;
    let mut setup = CalicoSetup::new(Agent::OnItsOwnStore);
    let other = setup.fabric.node("node-b", &["--calico"]);
    let pods: Vec<TestPod> = (0..EACH).map(|_| setup.node.pod()).collect();
    let config = |node: &TestNode, name: &str| {
        let mut config =
            setup.config("1.0.0", json!({"ipv4_pools": ["pool-a"]}), json!({ "nodename": name }));
        let own = node.config(json!({}));
        for key in ["agent_socket", "root"] {
            config[key] = own[key].clone();
        }
        config
    };
    let configs = [config(&setup.node, "node-a"), config(&other, "node-b")];
    let both = |verb: &str, pod: &TestPod| {
        let there = TestPod { container: format!("{}-b", pod.container), ..pod.clone() };
        [setup.ipam(verb, pod, &configs[0], &[]), setup.ipam(verb, &there, &configs[1], &[])]
    };
    let all = |verb: &str| -> Vec<Answer> {
        std::thread::scope(|scope| {
            let running: Vec<_> = pods.iter().map(|pod| scope.spawn(|| both(verb, pod))).collect();
            running.into_iter().flat_map(|it| it.join().unwrap()).collect()
        })
    };
    let added = all("ADD");
    let given: std::collections::BTreeSet<String> = added.iter().map(|it| address(&it.result())).collect();
    assert_eq!(given.len(), 2 * EACH, "{added:?}");
    assert_eq!(setup.taken(), 2 * EACH);
    assert!(all("DEL").iter().all(|answer| answer.status == 0));
    assert_eq!(setup.taken(), 0);
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, etcd, etcdctl"]
fn the_log_file_has_the_same_lines_with_and_without_an_agent() {
    for agent in [Agent::None, Agent::OnThatEtcd] {
        let mut setup = CalicoSetup::new(agent);
        let pod = setup.node.pod();
        let file = setup.node.path("log/cni.log");
        let config = setup.config("1.0.0", json!({}), json!({ "log_file_path": file }));
        let mut said = String::new();
        for verb in ["ADD", "DEL"] {
            let answer = setup.ipam(verb, &pod, &config, &[]);
            assert_eq!(answer.status, 0, "{answer:?}");
            said.push_str(&answer.stderr);
        }
        assert!(
            said.contains("request count IPv4=1") && said.contains("Released address using handleID"),
            "{said}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), said);
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, flock, etcd, etcdctl"]
fn an_add_waits_for_another_plugin_of_the_host_that_holds_calicos_lock() {
    // calico-ipam.md section 4.4: flock(2) on the same file
    let mut setup = CalicoSetup::new(Agent::None);
    let pod = setup.node.pod();
    let lock = setup.node.path("calico-ipam.lock");
    let marker = setup.node.path("released");
    let config = setup.config("1.0.0", json!({}), json!({ "ipam_lock_file": lock }));
    let hold = format!("touch {0}.held; sleep 1; touch {0}", marker.display());
    let mut holder = Command::new("flock").arg(&lock).args(["sh", "-c", &hold]).spawn().unwrap();
    russet_testkit::eventually(crate::node::TIMEOUT, || marker.with_extension("held").exists());
    let answer = setup.ipam("ADD", &pod, &config, &[]);
    assert!(marker.exists(), "the ADD was answered while another held the lock: {answer:?}");
    assert!(holder.wait().unwrap().success());
    assert_eq!(answer.status, 0, "{answer:?}");
    run("flock", &["--nonblock", lock.to_str().unwrap(), "true"]);
}
