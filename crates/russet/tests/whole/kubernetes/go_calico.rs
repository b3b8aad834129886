//! Calico's own plugins and calicoctl, the Go programs, beside Russet's plugins on one node and one
//! datastore in the Kubernetes API.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;

use russet_testkit::kubernetes::require_program;
use russet_testkit::{eventually, let_pass, run, succeeds};
use serde_json::{Value, json};

use super::calico::{NETWORK, Site};
use super::policies::{create_policy, delete_policy, policy};
use super::{GROUP, args_of};
use crate::node::{Answer, TIMEOUT, TestPod};

/// The addresses that a pod of two families has.
const FAMILIES: usize = 2;
/// ADDs of each kind at once.
const AT_ONCE: usize = 50;
/// The group in which newer clusters serve Calico's resources.
const NATIVE: &str = "/apis/projectcalico.org/v3";
/// Calls until one has its answer in time.
const TRIES: usize = 5;

/// A node whose runtime can call either kind of plugin.
struct Both {
    site: Site,
}

fn pool(name: &str, cidr: &str, block_size: u8) -> Value {
    json!({ "kind": "IPPool", "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": name },
        "spec": { "cidr": cidr, "blockSize": block_size, "ipipMode": "Never", "vxlanMode": "Never" } })
}

// === impl Both ===

impl Both {
    fn new(pools: &[Value]) -> Self {
        let site = Site::with_pools(pools);
        let directory = site.node.path("go");
        std::fs::create_dir(&directory).unwrap();
        // One program, which looks at the name by which it is called.
        let program = require_program("calico", "calico");
        ["calico", "calico-ipam"].iter().for_each(|name| symlink(&program, directory.join(name)).unwrap());
        // The agent writes it once it is ready, and Go's plugins have no other.
        let kubeconfig = site.kubeconfig();
        eventually(TIMEOUT, || kubeconfig.exists());
        Self { site }
    }

    /// The configuration of both, with addresses of both families.
    fn config(&self) -> Value {
        let mut config = self.site.config();
        config["ipam"] = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
        config
    }

    fn call_russets(&self, verb: &str, pod: &TestPod, name: &str) -> Answer {
        super::call_with(&self.site.node, verb, pod, name, &self.config())
    }

    /// Calls Calico's plugin, which calls Calico's IPAM plugin.
    fn call_calicos(&self, verb: &str, pod: &TestPod, name: &str) -> Answer {
        let node = &self.site.node;
        let mut config = self.config();
        let mine = json!({
            // The newest one that it knows.
            "cniVersion": "1.0.0",
            // Another file than that of Russet's plugins: only the datastore keeps the two apart.
            "ipam_lock_file": node.path("go/ipam.lock"),
        });
        config.as_object_mut().unwrap().extend(mine.as_object().unwrap().clone());
        let (netns, args) = (pod.path().display().to_string(), args_of(pod, name));
        let mut command = Command::new(node.path("go/calico"));
        command.env_clear().env("CNI_PATH", node.path("go")).env("CNI_COMMAND", verb);
        command.env("CNI_CONTAINERID", &pod.container).env("CNI_NETNS", netns).env("CNI_IFNAME", "eth0");
        node.output(command.env("CNI_ARGS", args), config.to_string())
    }

    /// A pod whose ADD is done by a plugin; its addresses.
    fn add(
        &mut self,
        name: &str,
        plugin: fn(&Self, &str, &TestPod, &str) -> Answer,
    ) -> (TestPod, Vec<String>) {
        let (pod, answer) = self.answered_add(name, plugin);
        (pod, answer.addresses())
    }

    fn answered_add(
        &mut self,
        name: &str,
        plugin: fn(&Self, &str, &TestPod, &str) -> Answer,
    ) -> (TestPod, Answer) {
        self.site.cluster.create_pod(name, "n1", json!({}));
        let pod = self.site.node.pod();
        let answer = plugin(self, "ADD", &pod, name);
        assert_eq!(answer.status, 0, "{name}: {answer:?}");
        (pod, answer)
    }

    /// CHECK by Russet's plugin, of what either plugin's ADD has answered.
    fn check(&self, pod: &TestPod, name: &str, added: &Answer) -> Answer {
        let mut config = self.config();
        // That of Calico's plugin, the newest one that it knows.
        config["cniVersion"] = "1.0.0".into();
        config["prevResult"] = added.result();
        super::call_with(&self.site.node, "CHECK", pod, name, &config)
    }

    /// What calicoctl finds, with the addresses.
    fn calicoctl_check(&self) -> Answer {
        let mut command = Command::new(require_program("calico", "calicoctl"));
        command.env("DATASTORE_TYPE", "kubernetes").env("KUBECONFIG", self.site.cluster.kubeconfig());
        command.args(["ipam", "check", "--show-problem-ips", "--allow-version-mismatch"]);
        self.site.node.output(&mut command, "")
    }

    /// DEL by a plugin, which must leave nothing of the pod but its annotations, without addresses.
    fn del(&self, pod: &TestPod, name: &str, plugin: fn(&Self, &str, &TestPod, &str) -> Answer) {
        let answer = plugin(self, "DEL", pod, name);
        assert_eq!(answer.status, 0, "{name}: {answer:?}");
        eventually(TIMEOUT, || self.site.node.unfinished() == 0);
        let announced = self.site.cluster.announced(name);
        assert_eq!((announced["podIP"].as_str(), announced["podIPs"].as_str()), ("", ""), "{name}");
        let inside = run("ip", &["-n", &pod.netns_name, "-o", "link", "show"]);
        assert!(!inside.contains("eth0"), "{name}: {inside}");
    }

    /// Neither calicoctl nor Russet's own check finds anything.
    fn assert_is_clean(&self) {
        let checked = self.calicoctl_check();
        assert_eq!(checked.status, 0, "{checked:?}");
        assert!(checked.stdout.contains("found 0 problems"), "{}", checked.stdout);
        self.site.cluster.assert_is_clean(&self.site.node);
    }

    /// The blocks that are affine to the node.
    fn blocks(&self) -> Vec<Value> {
        let blocks = self.site.cluster.with(|server| server.object(&format!("{GROUP}/ipamblocks"))).unwrap();
        blocks["items"].as_array().unwrap().iter().map(|block| block["spec"].clone()).collect()
    }

    /// The addresses that the next ADD on the node is to get: the head of each block's free list.
    fn heads(&self) -> BTreeSet<String> {
        let head = |block: &Value| {
            let cidr: russet_addr::BlockCidr = block["cidr"].as_str().unwrap().parse().unwrap();
            let ordinal = block["unallocated"][0].as_u64().unwrap();
            cidr.address(usize::try_from(ordinal).unwrap()).unwrap().to_string()
        };
        self.blocks().iter().map(head).collect()
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, kube-apiserver, etcd, etcdctl, curl, openssl, ip"]
fn go_plugins_continue_blocks_of_russet_and_each_deletes_the_pods_of_the_other() {
    // kubernetes.md K21 and K47
    let mut both = Both::new(&[pool("four", "10.65.0.0/16", 26), pool("six", "fd65::/64", 122)]);
    let (ours, addresses) = both.add("ours", Both::call_russets);
    assert_eq!(addresses.len(), FAMILIES, "{addresses:?}");
    both.assert_is_clean();

    let heads = both.heads();
    let (theirs, added) = both.answered_add("theirs", Both::call_calicos);
    let addresses = added.addresses();
    assert_eq!(addresses.iter().cloned().collect::<BTreeSet<_>>(), heads, "the next ordinal of each block");
    let checked = both.check(&theirs, "theirs", &added);
    assert_eq!(checked.status, 0, "as Calico's plugin has wired it: {checked:?}");
    both.assert_is_clean();
    let heads = both.heads();
    let (again, addresses) = both.add("again", Both::call_russets);
    assert_eq!(addresses.iter().cloned().collect::<BTreeSet<_>>(), heads, "of blocks that Go has written");
    assert_eq!(both.blocks().len(), FAMILIES, "none has claimed a block beside the node's");
    both.assert_is_clean();
    // CHECK sees a loss, also of what Calico's plugin has made.
    run("ip", &["-n", &theirs.netns_name, "address", "flush", "dev", "eth0"]);
    assert_ne!(both.check(&theirs, "theirs", &added).status, 0);

    both.del(&theirs, "theirs", Both::call_russets);
    both.assert_is_clean();
    both.del(&ours, "ours", Both::call_calicos);
    both.assert_is_clean();
    // Either finds that there is nothing to do.
    both.del(&ours, "ours", Both::call_russets);
    both.del(&theirs, "theirs", Both::call_calicos);
    both.del(&again, "again", Both::call_russets);
    assert_eq!(both.site.cluster.held(NETWORK), 0);
    both.assert_is_clean();
}

/// The answer to a call that is repeated while it is "try again later", as runtimes do: a hundred
/// calls at once can keep a small machine's API server from answering some of them in time.
fn repeated(call: impl Fn() -> Answer) -> Answer {
    let is_busy = |answer: &Answer| answer.stdout.contains("\"code\":11,");
    let mut answers = (0..TRIES).map(|_| call());
    let mut answer = answers.next().unwrap();
    while is_busy(&answer) {
        let Some(next) = answers.next() else { break };
        answer = next;
    }
    answer
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan, nf_tables; tool: calico, kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn network_policies_of_the_api_server_are_in_force_on_pods_of_both_plugins() {
    let mut both = Both::new(&[pool("four", "10.65.0.0/16", 26), pool("six", "fd65::/64", 122)]);
    create_policy(&both.site.cluster, &policy("unrelated", "none", &[]));
    let enforces = |both: &Both| {
        both.site.node.netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    };
    eventually(TIMEOUT, || enforces(&both));
    let (ours, our_addresses) = both.add("ours", Both::call_russets);
    let (theirs, their_addresses) = both.add("theirs", Both::call_calicos);
    let reaches = |pod: &TestPod, addresses: &[String]| {
        addresses.iter().map(|address| pod.pings(&["-W", "1", address])).collect::<Vec<_>>()
    };
    eventually(TIMEOUT, || {
        reaches(&ours, &their_addresses) == [true; FAMILIES]
            && reaches(&theirs, &our_addresses) == [true; FAMILIES]
    });
    let mut all = policy("all", "none", &[]);
    all["spec"]["podSelector"] = json!({ "matchLabels": { "app": "web" } });
    create_policy(&both.site.cluster, &all);
    eventually(TIMEOUT, || reaches(&ours, &their_addresses) == [false; FAMILIES]);
    eventually(TIMEOUT, || reaches(&theirs, &our_addresses) == [false; FAMILIES]);
    // The next one is closed at once.
    let (_late, late_addresses) = both.add("late", Both::call_calicos);
    assert_eq!(reaches(&ours, &late_addresses), [false; FAMILIES]);
    ["all", "unrelated"].iter().for_each(|name| delete_policy(&both.site.cluster, name));
    eventually(TIMEOUT, || reaches(&ours, &late_addresses) == [true; FAMILIES] && !enforces(&both));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, kube-apiserver, etcd, etcdctl, curl, openssl, ip"]
fn calicoctl_and_russet_find_the_same_leak_and_the_same_unallocated_address() {
    let mut both = Both::new(&[pool("four", "10.65.0.0/16", 26), pool("six", "fd65::/64", 122)]);
    let (_leaked, leaks) = both.add("leaked", Both::call_russets);
    let (_used, used) = both.add("used", Both::call_calicos);
    let (_good, good) = both.add("good", Both::call_russets);
    both.assert_is_clean();
    // No DEL comes for this pod; the address of the other is given back while it runs.
    both.site.cluster.delete_pod("leaked");
    let store = both.site.cluster.store();
    let russet =
        |args: &[&str]| both.site.node.russet_inside(&[&["ipam"], args, &["--store", &store]].concat());
    for address in &used {
        let released = russet(&["release", "--ip", address, "--force"]);
        assert_eq!(released.status, 0, "{released:?}");
    }
    let theirs = both.calicoctl_check();
    let ours = russet(&["check"]);
    assert_eq!(ours.status, 3, "{ours:?}");
    assert!(theirs.stdout.contains(&format!("found {} problems", leaks.len() + used.len())), "{theirs:?}");
    for (answer, who) in [(&theirs, "calicoctl"), (&ours, "russet")] {
        for address in leaks.iter().chain(&used) {
            assert!(answer.stdout.contains(address.as_str()), "{who}, {address}: {answer:?}");
        }
        assert!(
            !good.iter().any(|address| answer.stdout.contains(&format!("{address} "))),
            "{who}: {answer:?}"
        );
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, kube-apiserver, etcd, etcdctl, curl, openssl, ip; takes a minute"]
fn a_hundred_adds_of_both_plugins_at_once_share_four_blocks_without_a_common_lock() {
    // kubernetes.md K48
    let mut both = Both::new(&[pool("four", "10.65.0.0/24", 26), pool("six", "fd65::/120", 122)]);
    let names: Vec<String> =
        (0..AT_ONCE).flat_map(|n| [format!("ours-{n}"), format!("theirs-{n}")]).collect();
    let pods: Vec<(TestPod, &String)> = names.iter().map(|name| (both.site.node.pod(), name)).collect();
    names.iter().for_each(|name| both.site.cluster.create_pod(name, "n1", json!({})));
    let both = Arc::new(both);
    let call = |verb: &'static str,
                of_ours: fn(&Both, &str, &TestPod, &str) -> Answer,
                of_theirs: fn(&Both, &str, &TestPod, &str) -> Answer| {
        std::thread::scope(|scope| {
            let calls: Vec<_> = pods
                .iter()
                .map(|(pod, name)| {
                    let both = &both;
                    let plugin = if name.starts_with("ours") { of_ours } else { of_theirs };
                    scope.spawn(move || repeated(|| plugin(both, verb, pod, name)))
                })
                .collect();
            let answers: Vec<Answer> = calls.into_iter().map(|call| call.join().unwrap()).collect();
            answers.iter().for_each(|answer| assert_eq!(answer.status, 0, "{verb}: {answer:?}"));
            answers
        })
    };
    let answers = call("ADD", Both::call_russets, Both::call_calicos);
    let addresses: BTreeSet<String> = answers.iter().flat_map(Answer::addresses).collect();
    assert_eq!(addresses.len(), FAMILIES * pods.len(), "each address once");
    assert_eq!(both.site.cluster.held(NETWORK), addresses.len());
    both.assert_is_clean();

    // And back, each by the other one.
    call("DEL", Both::call_calicos, Both::call_russets);
    eventually(TIMEOUT, || both.site.node.unfinished() == 0);
    assert_eq!(both.site.cluster.held(NETWORK), 0);
    both.assert_is_clean();
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, kube-apiserver, etcd, etcdctl, curl, openssl, ip"]
fn a_node_returns_to_go_plugins_which_delete_what_russet_has_added() {
    // kubernetes.md K115
    let mut both = Both::new(&[pool("four", "10.65.0.0/16", 26), pool("six", "fd65::/64", 122)]);
    let (old, _) = both.add("web-0", Both::call_russets);
    let new = both.site.node.pod();
    assert_eq!(both.call_russets("ADD", &new, "web-0").status, 0);
    let (other, _) = both.add("web-1", Both::call_russets);
    both.site.node.stop_agent();

    // The annotation names the newer sandbox: the late DEL of the older one leaves the pod as it is.
    assert_eq!(both.call_calicos("DEL", &old, "web-0").status, 0);
    let announced = both.site.cluster.announced("web-0");
    assert_eq!(announced["containerID"], new.container);
    assert!(!announced["podIP"].is_empty(), "{announced:?}");
    assert_eq!(both.site.cluster.held(NETWORK), 2 * FAMILIES, "the newer sandbox's, and the other pod's");

    both.del(&new, "web-0", Both::call_calicos);
    both.del(&other, "web-1", Both::call_calicos);
    assert_eq!(both.site.cluster.held(NETWORK), 0);
    both.assert_is_clean();
    // New pods are Go's.
    let (last, _) = both.add("web-2", Both::call_calicos);
    both.del(&last, "web-2", Both::call_calicos);
    both.assert_is_clean();
}

/// The definitions of the resources in the group of newer clusters; any spec is stored as it is.
fn native_definitions() -> Vec<Value> {
    let moved = |mut definition: Value| {
        let names = &mut definition["spec"]["names"];
        if names["plural"] == "ipamconfigs" {
            *names = json!({ "kind": "IPAMConfiguration", "listKind": "IPAMConfigurationList",
                "plural": "ipamconfigurations", "singular": "ipamconfiguration" });
        }
        let name = format!("{}.projectcalico.org", names["plural"].as_str().unwrap());
        definition["metadata"] = json!({ "name": name });
        definition["spec"]["group"] = json!("projectcalico.org");
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        definition["spec"]["versions"] = json!([{ "name": "v3", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }]);
        definition
    };
    super::definitions().into_iter().map(moved).collect()
}

/// What Calico's migration to the newer group does until it has converged: it locks the older one, copies the
/// objects, and unlocks the newer one.
fn migrate(cluster: &super::Cluster) {
    let lock = |group: &str, is_ready: bool| {
        let path = format!("{group}/clusterinformations/default");
        let patch = json!({ "spec": { "datastoreReady": is_ready } });
        cluster.with(|server| assert_eq!(server.request("PATCH", &path, &patch).0, 200));
    };
    lock(GROUP, false);
    cluster.with(|server| server.create(&native_definitions()));
    let copied = [
        ("clusterinformations", "clusterinformations"),
        ("ippools", "ippools"),
        ("ipamconfigs", "ipamconfigurations"),
        ("blockaffinities", "blockaffinities"),
        ("ipamblocks", "ipamblocks"),
        ("ipamhandles", "ipamhandles"),
    ];
    for (from, to) in copied {
        let path = format!("{NATIVE}/{to}");
        eventually(TIMEOUT, || {
            let_pass(super::BETWEEN_LOOKS);
            cluster.with(|server| server.request("GET", &path, &Value::Null)).0 == 200
        });
        let all = cluster.with(|server| server.object(&format!("{GROUP}/{from}"))).unwrap();
        for object in all["items"].as_array().unwrap() {
            let mut copy = object.clone();
            copy["apiVersion"] = json!("projectcalico.org/v3");
            if to == "ipamconfigurations" {
                copy["kind"] = json!("IPAMConfiguration");
            }
            if to == "blockaffinities" {
                // A text in the older group, and a boolean in the newer one.
                copy["spec"]["deleted"] = json!(copy["spec"]["deleted"] == "true");
            }
            let metadata = &object["metadata"];
            copy["metadata"] = json!({ "name": metadata["name"], "labels": metadata["labels"] });
            cluster.with(|server| assert_eq!(server.request("POST", &path, &copy).0, 201, "{copy}"));
        }
    }
    lock(NATIVE, true);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: calico, calicoctl, kube-apiserver, etcd, etcdctl, curl, openssl, ip"]
fn after_a_migration_to_the_newer_group_go_plugins_on_the_older_one_fail_and_russets_work() {
    // kubernetes.md K113, section 1.14
    let mut both = Both::new(&[pool("four", "10.65.0.0/16", 26), pool("six", "fd65::/64", 122)]);
    let (before, addresses) = both.add("before", Both::call_russets);
    migrate(&both.site.cluster);
    let old = both.blocks();

    ["theirs", "ours"].iter().for_each(|name| both.site.cluster.create_pod(name, "n1", json!({})));
    let theirs = both.site.node.pod();
    let answer = both.call_calicos("ADD", &theirs, "theirs");
    assert_ne!(answer.status, 0, "{answer:?}");
    assert!(answer.stdout.contains("not ready"), "{answer:?}");
    let ours = both.site.node.pod();
    let mut added = Vec::new();
    // Until the agent has noticed.
    eventually(TIMEOUT, || {
        let_pass(super::BETWEEN_LOOKS);
        let answer = both.call_russets("ADD", &ours, "ours");
        if answer.status != 0 {
            assert_eq!(answer.code(), 11, "{answer:?}");
            return false;
        }
        added = answer.addresses();
        true
    });
    assert_eq!(added.len(), FAMILIES, "{added:?}");
    assert!(added.iter().all(|address| !addresses.contains(address)), "{added:?} {addresses:?}");
    both.site.cluster.assert_is_clean(&both.site.node);

    for (pod, name) in [(&before, "before"), (&ours, "ours")] {
        both.del(pod, name, Both::call_russets);
    }
    let blocks = both.site.cluster.with(|server| server.object(&format!("{NATIVE}/ipamblocks"))).unwrap();
    assert!(!blocks.to_string().contains(NETWORK), "{blocks}");
    assert_eq!(both.blocks(), old, "nothing was written to the older group");
    both.site.cluster.assert_is_clean(&both.site.node);
}
