//! `russet ipam` over given records: no agent, no namespace, only a directory.

use std::process::Command;

use russet_testkit::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::{Answer, StoreProcess, TIMEOUT, TestNode};

/// TV4 of calico-ipam.md: aaaa has one address, bbbb two, the tunnel one.
const TV4: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,1,1,2,null,null,null,null],"unallocated":[4,5,6,7],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0"}},{"handle_id":"net.bbbb","secondary":{"namespace":"default","node":"node-b","pod":"job-1"}},{"handle_id":"vxlan-tunnel-addr-node-a","secondary":{"node":"node-a","type":"vxlanTunnelAddress"}}],"sequenceNumber":1767322800000000003,"sequenceNumberForAllocation":{"0":1767322800000000000,"1":1767322800000000001,"2":1767322800000000001,"3":1767322800000000002},"deleted":false}"#;
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29";
const CLAIM: &str = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.16-29";
const CONFIG: &str = "/calico/ipam/v2/config";
const ENDPOINT: &str =
    "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0";
const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/p";

/// A directory with a store in it.
struct Planted {
    root: TempDir,
}

// === impl Planted ===

impl Planted {
    /// Only the directory.
    fn empty() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// Pool, block, claim and handles of TV4.
    fn tv4() -> Self {
        let planted = Self::empty();
        planted.put(POOL, r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/24","blockSize":29}}"#);
        planted.put(BLOCK, TV4);
        planted.put(CLAIM, r#"{"state":"confirmed","deleted":false}"#);
        planted.handle("net.aaaa", 1);
        planted.handle("net.bbbb", 2);
        planted.handle("vxlan-tunnel-addr-node-a", 1);
        planted
    }

    fn run(&self, args: &[&str]) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).arg("--root").arg(self.root.path()).env_remove("RUSSET_STORE");
        command.output().unwrap().into()
    }

    fn ipam(&self, args: &[&str]) -> Answer {
        self.run(&[&["ipam"], args].concat())
    }

    /// The output of a verb that must succeed.
    fn good(&self, args: &[&str]) -> String {
        let answer = self.ipam(args);
        assert_eq!(answer.status, 0, "{answer:?}");
        answer.stdout
    }

    fn put(&self, key: &str, value: &str) {
        let answer = self.run(&["store", "put", key, value]);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn register_node_a(&self) {
        let node =
            r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-a"},"spec":{}}"#;
        self.put("/calico/resources/v3/projectcalico.org/nodes/node-a", node);
    }

    fn handle(&self, name: &str, count: u64) {
        let value = json!({ "block": { "10.1.0.16/29": count }, "deleted": false });
        self.put(&format!("/calico/ipam/v2/handle/{name}"), &value.to_string());
    }

    fn dump(&self, prefix: &str) -> String {
        self.run(&["store", "dump", "--prefix", prefix]).stdout
    }

    /// `check -o json`, which must find something: its text, and the kinds of its findings.
    fn report(&self) -> (String, Vec<String>) {
        let answer = self.ipam(&["check", "-o", "json"]);
        assert_eq!(answer.status, 3, "{answer:?}");
        let report: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!(report["schema"], 1);
        let kinds = report["findings"].as_array().unwrap().iter();
        let kinds = kinds.map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect();
        (answer.stdout, kinds)
    }

    /// A report as a file.
    fn file(&self, name: &str, report: &str) -> String {
        let path = self.root.path().join(name);
        std::fs::write(&path, report).unwrap();
        path.display().to_string()
    }
}

#[test]
fn a_good_store_has_no_problems() {
    let planted = Planted::tv4();
    let repair = format!("russet ipam repair --dry-run --root {}", planted.root.path().display());
    assert_eq!(
        planted.good(&["check"]),
        format!(
            "checked 1 blocks, 4 addresses in use, 3 handles, 1 affinities\n\
             there are no workload endpoints to compare 4 addresses with; `{repair}` compares a node's with its \
             interfaces\nno problems found\n"
        )
    );
    let report: Value = serde_json::from_str(&planted.good(&["check", "-o", "json"])).unwrap();
    assert_eq!((&report["schema"], &report["findings"]), (&json!(1), &json!([])));
}

#[test]
fn check_finds_every_planted_fault_and_writes_nothing() {
    // calico-ipam.md section 1.3, TV8, TV20, TV21, TV22
    let planted = Planted::tv4();
    planted.put(&BLOCK.replace("0.16", "0.24"), r#"{"cidr":"10.1.0.24/29","allocations":[0]}"#);
    planted.put(
        &BLOCK.replace("0.16-29", "0.18-31"),
        r#"{"cidr":"10.1.0.18/31","affinity":"host:node-c","allocations":[0,null],"unallocated":[1],"attributes":[{"handle_id":"net.gone"}],"sequenceNumber":9,"sequenceNumberForAllocation":{"0":8},"deleted":false}"#,
    );
    planted.put(
        &BLOCK.replace("10.1.0.16-29", "10.9.0.0-32"),
        r#"{"cidr":"10.9.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{}]}"#,
    );
    planted.handle("net.bbbb", 3);
    planted.handle("net.orphan", 1);
    planted.put(&CLAIM.replace("node-a", "node-b"), "");
    planted.put(&CLAIM.replace("0.16", "0.32"), "{}");
    let before = planted.dump("/");
    let (_, kinds) = planted.report();
    assert_eq!(
        kinds,
        [
            "overlap",
            "unreadable",
            "double-owner",
            "handle-missing",
            "handle-count",
            "handle-leaked",
            "block-missing",
            "affinity-foreign",
            "affinity-missing",
            "outside-pools"
        ]
    );
    let text = planted.ipam(&["check"]);
    assert_eq!(text.status, 3);
    assert!(text.stdout.ends_with("10 problems found, 2 of them leaks\n"), "{}", text.stdout);
    assert_eq!(planted.dump("/"), before);
}

#[test]
fn an_address_is_released_once_and_then_is_not_assigned() {
    // calico-ipam.md section 5.2
    let planted = Planted::tv4();
    assert_eq!(
        planted.good(&["release", "--ip", "10.1.0.16"]),
        "released 10.1.0.16: handle net.aaaa, pod default/web-0, node node-a\n"
    );
    let again = planted.ipam(&["release", "--ip", "10.1.0.16"]);
    assert_eq!((again.status, again.stdout.as_str()), (1, ""));
    assert!(format!("{again:?}").contains("error: 10.1.0.16 is not assigned"), "{again:?}");
    assert!(!planted.dump("/calico/ipam/v2/handle/").contains("net.aaaa"));
    assert!(planted.good(&["check"]).contains("3 addresses in use"));
    assert_eq!(planted.ipam(&["release"]).status, 2);
}

/// The endpoint of TV4's pod, with this address.
fn endpoint(address: &str) -> String {
    json!({ "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
        "metadata": { "name": "node--a-k8s-web--0-eth0", "namespace": "default" },
        "spec": { "orchestrator": "k8s", "node": "node-a", "pod": "web-0", "endpoint": "eth0", "ipNetworks": [format!("{address}/32")] } })
    .to_string()
}

#[test]
fn check_compares_addresses_with_endpoints_both_ways() {
    // calico-ipam.md section 5.2
    let planted = Planted::tv4();
    planted.put(ENDPOINT, &endpoint("10.1.0.21"));
    let text = planted.ipam(&["check"]);
    assert_eq!(text.status, 3, "{text:?}");
    for line in [
        "allocation-missing  10.1.0.21 is not allocated, but ",
        "endpoint-missing    10.1.0.16: no endpoint's or node's record names it (handle net.aaaa, pod default/web-0, node node-a)",
        "5 problems found, 0 of them leaks",
    ] {
        assert!(text.stdout.contains(line), "{text:?}");
    }
    // The report marks none as leaked, because pods of plugin `russet` have no endpoints; an
    // operator may edit that.
    let (report, _) = planted.report();
    let released = planted.good(&["release", "--from-report", &planted.file("report.json", &report)]);
    assert!(released.contains("0 of 0 leaks released"), "{released}");
    let mut report: Value = serde_json::from_str(&report).unwrap();
    let findings = report["findings"].as_array_mut().unwrap();
    let lost = findings.iter_mut().find(|finding| finding["address"] == "10.1.0.16").unwrap();
    assert_eq!(lost["leaked"].take(), false);
    lost["leaked"] = true.into();
    let file = planted.file("report.json", &report.to_string());
    let released = planted.good(&["release", "--from-report", &file]);
    assert!(released.starts_with("released 10.1.0.16: handle net.aaaa"), "{released}");
}

#[test]
fn an_address_that_an_endpoint_has_is_released_by_force_only() {
    let planted = Planted::tv4();
    planted.put(ENDPOINT, &endpoint("10.1.0.16"));
    let refused = planted.ipam(&["release", "--ip", "10.1.0.16"]);
    let said = format!("{refused:?}");
    assert!(refused.status == 1 && said.contains("node--a-k8s-web--0-eth0 has it; delete the pod"), "{said}");
    assert!(said.contains("--force"), "{said}");
    assert!(planted.dump("/calico/ipam/v2/handle/").contains("net.aaaa"));
    assert!(planted.good(&["release", "--ip", "10.1.0.16", "--force"]).starts_with("released 10.1.0.16"));
    assert_eq!(planted.ipam(&["release", "--from-report", "x", "--force"]).status, 2);
}

#[test]
fn a_report_releases_its_leaks_and_nothing_that_changed_since() {
    let planted = Planted::tv4();
    // Two orphans of a 3.32 peer (TV8), and aaaa without its record: a handle of that name is
    // irrelevant.
    planted.handle("net.one", 1);
    planted.handle("net.two", 1);
    planted.put(BLOCK, &TV4.replace("net.aaaa", "net.lost").replace("net.bbbb", "net.kept"));
    let (report, kinds) = planted.report();
    assert_eq!(kinds.iter().filter(|kind| *kind == "handle-missing").count(), 3, "{kinds:?}");
    // Since the report: two is written again, and the first address of kept has a new owner.
    planted.handle("net.two", 1);
    planted.put(
        BLOCK,
        &TV4.replace("net.aaaa", "net.lost")
            .replace("net.bbbb", "net.kept")
            .replace("\"1\":1767322800000000001", "\"1\":1767322800000000003"),
    );
    let file = planted.file("report.json", &report);
    let answer = planted.ipam(&["release", "--from-report", &file]);
    assert_eq!(answer.status, 3, "{answer:?}");
    let out = &answer.stdout;
    assert!(out.contains("released 10.1.0.16: handle net.lost, pod default/web-0, node node-a\n"), "{out}");
    assert!(out.contains("released 10.1.0.18: handle net.kept"), "{out}");
    assert!(out.contains("kept 10.1.0.17") && out.contains("the stored one 1767322800000000003"), "{out}");
    assert!(out.contains("released handle net.one\n"), "{out}");
    assert!(out.contains("kept handle net.two") && out.contains("it has changed since the report"), "{out}");
    // What is left has changed; after another report it is released, too.
    let (second, kinds) = planted.report();
    assert_eq!(kinds, ["handle-missing", "handle-leaked"]);
    let both = [planted.file("a.json", &second), planted.file("b.json", &planted.report().0)];
    let out = planted.good(&["release", "--from-report", &both[0], "--from-report", &both[1]]);
    assert!(out.ends_with("2 of 2 leaks released\n"), "{out}");
    assert!(planted.good(&["check"]).contains("1 addresses in use, 1 handles"));
}

#[test]
fn a_report_goes_into_a_file_as_with_calicoctl_and_a_misspelled_format_does_not() {
    let planted = Planted::tv4();
    planted.handle("net.one", 1);
    let file = planted.root.path().join("report").display().to_string();
    let answer = planted.ipam(&["check", "-o", &file]);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(answer.stdout.ends_with("1 problems found, 1 of them leaks\n"), "{answer:?}");
    let out = planted.good(&["release", "--from-report", &file]);
    assert!(out.ends_with("1 of 1 leaks released\n"), "{out}");
    let answer = planted.ipam(&["check", "-o", "jsno"]);
    assert!(answer.status != 0 && format!("{answer:?}").contains("as ./report"), "{answer:?}");
    let answer = planted.ipam(&["check", "-o", "/nowhere/at.all"]);
    assert!(
        answer.status == 1 && format!("{answer:?}").contains("write report /nowhere/at.all: "),
        "{answer:?}"
    );
}

#[test]
fn a_file_that_is_no_report_is_refused() {
    let planted = Planted::tv4();
    for (name, text, why) in [
        ("cut.json", "{\"schema\":1", "no report"),
        ("calico.json", "{\"version\":\"v3.32\",\"allocations\":{}}", "no report"),
        (
            "new.json",
            r#"{"schema":2,"revision":1,"blocks":0,"allocations":0,"handles":0,"affinities":0,"findings":[]}"#,
            "its schema is 2",
        ),
    ] {
        let answer = planted.ipam(&["release", "--from-report", &planted.file(name, text)]);
        assert_eq!(answer.status, 1);
        assert!(format!("{answer:?}").contains(why), "{answer:?}");
    }
}

#[test]
fn no_stored_record_aborts_a_verb() {
    let planted = Planted::tv4();
    let long = "a".repeat(70_000);
    planted.put(BLOCK, &TV4.replace("net.aaaa", &long));
    planted.put(ENDPOINT, &endpoint("10.1.0.16").replace("web-0", &long));
    planted.put(&BLOCK.replace("0.16", "0.24"), &TV4.replace("0.16/29", "0.24/29").replace("node-b", &long));
    planted.put(
        "/calico/resources/v3/projectcalico.org/nodes/node-a",
        &json!({ "metadata": { "name": long } }).to_string(),
    );
    for words in [
        "ipam check",
        "ipam check -o json",
        "ipam show --show-blocks",
        "ipam show --show-borrowed",
        "ipam show --ip 10.1.0.16",
        "ipam show --ip 10.1.0.25",
        "ipam who 10.1.0.25",
        "ipam why --node node-a",
        "get pools",
        "get nodes -o wide",
        "get wep -A",
        "get wep -A -o yaml",
        "store dump",
    ] {
        let answer = planted.run(&words.split(' ').collect::<Vec<_>>());
        assert!(
            [0, 1, 3].contains(&answer.status),
            "{words}: status {}: {:.500}",
            answer.status,
            answer.stderr
        );
        let is_table = !words.contains("-o json") && !words.contains("-o yaml") && !words.contains("dump");
        let longest = answer.stdout.lines().map(str::len).max().unwrap_or(0);
        assert!(!is_table || longest < 8000, "{words}: a line of {longest} bytes");
    }
    let check = planted.ipam(&["check"]);
    assert!(
        check.stdout.contains("a text of 70000 bytes; at most 1024 are accepted"),
        "{:.2000}",
        check.stdout
    );
}

#[test]
fn settings_keep_calicos_rules_and_unknown_members() {
    // calico-ipam.md section 1.7
    let planted = Planted::empty();
    planted.put(
        CONFIG,
        r#"{"auto_allocate_blocks":true,"kubeVirtVMAddressPersistence":"Enabled","new":{"b":1}}"#,
    );
    let refused = planted.ipam(&["configure", "--max-blocks-per-host", "4"]);
    assert_eq!(refused.status, 1);
    assert!(format!("{refused:?}").contains("maxBlocksPerHost needs strict_affinity"), "{refused:?}");
    let text = planted.good(&["configure", "--strictaffinity=true", "--max-blocks-per-host", "4"]);
    assert!(
        text.contains("StrictAffinity      true\n") && text.contains("MaxBlocksPerHost    4\n"),
        "{text}"
    );
    let stored: Value = serde_json::from_str(&planted.dump(CONFIG)).unwrap();
    assert_eq!(
        stored["records"][0]["value"].to_string(),
        r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,"kubeVirtVMAddressPersistence":"Enabled","new":{"b":1}}"#
    );
    assert_eq!(planted.ipam(&["configure", "--strict-affinity", "false"]).status, 1);
    assert_eq!(planted.good(&["show", "--show-configuration"]), text);
    let shown: Value =
        serde_json::from_str(&planted.good(&["show", "--show-configuration", "-o", "json"])).unwrap();
    assert_eq!((&shown["schema"], &shown["max_blocks_per_host"]), (&json!(1), &json!(4)));
    for usage in [&["configure"][..], &["configure", "--strict-affinity", "maybe"]] {
        assert_eq!(planted.ipam(usage).status, 2);
    }
}

#[test]
fn pools_blocks_holders_and_borrowers_are_shown() {
    // calico-ipam.md section 5.2, TV10: bbbb lives on node-b, in node-a's block
    let planted = Planted::tv4();
    assert_eq!(
        planted.good(&["show", "--show-blocks"]),
        "GROUPING  CIDR          IPS TOTAL  IPS IN USE  IPS FREE\n\
         IP Pool   10.1.0.0/24   256        4 (2%)      252 (98%)\n\
         Block     10.1.0.16/29  8          4 (50%)     4 (50%)\n"
    );
    let usage: Value = serde_json::from_str(&planted.good(&["show", "-o", "json"])).unwrap();
    assert_eq!(
        usage,
        json!({"schema": 1, "usage": [{"grouping": "IP Pool", "cidr": "10.1.0.0/24", "total": 256, "in_use": 4, "free": 252}]})
    );
    assert_eq!(
        planted.good(&["show", "--show-borrowed"]),
        "IP         BORROWING-NODE  BLOCK         BLOCK OWNER  TYPE  ALLOCATED-TO\n\
         10.1.0.17  node-b          10.1.0.16/29  node-a       Pod   default/job-1\n\
         10.1.0.18  node-b          10.1.0.16/29  node-a       Pod   default/job-1\n"
    );
    assert_eq!(planted.good(&["show", "--ip", "10.1.0.20"]), "10.1.0.20 is not assigned\n");
    // calicoctl reports addresses of a disabled pool as "not assigned".
    planted.put(POOL, r#"{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/24","blockSize":29,"disabled":true}}"#);
    let text = planted.good(&["show", "--ip", "10.1.0.16"]);
    assert!(text.starts_with("IP 10.1.0.16 is in use\n") && text.contains("  pod: web-0\n"), "{text}");
    let holder: Value =
        serde_json::from_str(&planted.good(&["show", "--ip", "10.1.0.16", "-o", "json"])).unwrap();
    assert_eq!(holder["sequence_number"], 1767322800000000000_u64);
    assert_eq!((&holder["handle"], &holder["attributes"]["pod"]), (&json!("net.aaaa"), &json!("web-0")));
}

#[test]
fn a_missing_store_is_not_created() {
    let planted = Planted::empty();
    let answer = planted.ipam(&["check"]);
    assert_eq!(answer.status, 1);
    assert!(format!("{answer:?}").contains("there is no store at"), "{answer:?}");
    assert_eq!(std::fs::read_dir(planted.root.path()).unwrap().count(), 0);
}

#[test]
fn the_store_of_the_settings_file_is_accessed_through_its_owner() {
    let (owner, other) = (Planted::tv4(), Planted::empty());
    let process = StoreProcess::start(owner.root.path());
    assert!(owner.good(&["check"]).contains("no problems found"));
    let store = format!("unix:{}", process.socket.display());
    assert!(other.good(&["check", "--store", &store]).contains("4 addresses in use"));
    let settings = other.root.path().join("etc/russet");
    std::fs::create_dir_all(&settings).unwrap();
    std::fs::write(settings.join("russet.toml"), format!("store = '{store}'\n")).unwrap();
    assert!(other.good(&["release", "--ip", "10.1.0.16"]).contains("net.aaaa"));
    assert!(owner.good(&["check"]).contains("3 addresses in use"));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn what_an_agent_writes_has_no_problems_and_is_shown_while_it_runs() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/24"]);
    let pods = [node.pod(), node.pod()];
    let ipam = |node: &TestNode, args: &[&str]| -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.arg("ipam").args(args).arg("--root").arg(node.root()).output().unwrap().into()
    };
    let addresses = node.add(&pods[0]).addresses();
    assert_eq!(node.add(&pods[1]).status, 0);
    let check = ipam(&node, &["check"]);
    assert_eq!(check.status, 0, "{check:?}");
    for address in &addresses {
        let holder = ipam(&node, &["show", "--ip", address]).stdout;
        assert!(holder.contains(&format!("Handle: testnet.{}\n", pods[0].container)), "{holder}");
    }
    // The agent caches its blocks: a release by another program must not confuse it.
    let refused = ipam(&node, &["release", "--ip", &addresses[0]]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("an interface in ") && refused.stderr.contains("--force"), "{refused:?}");
    let released = ipam(&node, &["release", "--ip", &addresses[0], "--force"]);
    assert_eq!(released.status, 0, "{released:?}");
    for pod in &pods {
        assert_eq!(node.del(pod).status, 0);
    }
    let check = ipam(&node, &["check"]);
    assert_eq!(check.status, 0, "{check:?}");
    node.stop_agent();
    assert_eq!(node.allocated(), 0);
    assert_eq!(ipam(&node, &["check"]).status, 0);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn why_and_add_give_one_answer_before_and_after_a_pool_is_disabled() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/24", "--ipv6-pool", "fd77::/112"]);
    let why = |node: &TestNode| {
        let answer = node.russet(&["ipam", "why", "--node-name", "node-a"]);
        assert_eq!(answer.status, 0, "{answer:?}");
        answer.stdout
    };
    // What is foretold for each family, and what the next ADD gives.
    let foretold = |text: &str| -> Vec<String> {
        let after = |line: &str| Some(line.split_once("would get an address such as ")?.1.to_owned());
        let address = |rest: String| rest.split([' ', ',', ';']).next().unwrap().to_owned();
        text.lines().filter_map(after).map(address).collect()
    };
    let first = node.pod();
    let before = foretold(&why(&node));
    assert_eq!(node.add(&first).addresses(), before);
    assert_eq!(before.len(), 2, "{before:?}");
    let pools = node.russet(&["get", "ippools", "-o", "json"]).result();
    let pool = |pool: &&Value| pool["spec"]["cidr"].as_str().unwrap().starts_with("fd77");
    let mut six = pools["items"].as_array().unwrap().iter().find(pool).unwrap().clone();
    six["spec"]["disabled"] = true.into();
    let file = node.path("six.json");
    std::fs::write(&file, six.to_string()).unwrap();
    assert_eq!(node.russet(&["apply", "-f", &file.display().to_string()]).status, 0);
    let second = node.pod();
    let text = why(&node);
    assert!(text.contains("every IPv6 pool is disabled"), "{text}");
    let answer = node.add(&second);
    let given = answer.addresses();
    assert_eq!((given.len(), &given), (1, &foretold(&text)), "{text}");
    let said = "the pod gets no IPv6 address: every IPv6 pool is disabled";
    assert!(answer.stderr.contains(said), "{answer:?}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_live_pods_address_that_was_released_is_seen_by_check_repair_and_drift() {
    let mut node = TestNode::start(&["--ipv4-pool", "10.77.0.0/24", "--ipv6-pool", "none"]);
    let pods = [node.pod(), node.pod()];
    let addresses = pods.each_ref().map(|pod| node.add(pod).addresses().remove(0));
    // The verbs must know the node's name.
    std::fs::create_dir_all(node.path("etc/russet")).unwrap();
    std::fs::write(node.path("etc/russet/russet.toml"), "node_name = 'node-a'\n").unwrap();
    eventually(TIMEOUT, || node.russet(&["drift"]).status == 0);
    let repair = ["ipam", "repair", "--dry-run", "--grace", "1s"];
    assert_eq!(node.russet_inside(&repair).status, 0);
    assert_eq!(node.russet(&["ipam", "release", "--ip", &addresses[0], "--force"]).status, 0);
    let sees = |node: &TestNode, verb: &[&str]| {
        let answer = node.russet_inside(verb);
        let named = answer.stdout.contains(&addresses[0]) && answer.stdout.contains(&pods[0].container);
        assert!(answer.status == 3 && named, "{verb:?}: {answer:?}");
        assert!(!answer.stdout.contains(&addresses[1]), "{verb:?}: {answer:?}");
    };
    sees(&node, &["drift"]);
    for _ in 0..2 {
        sees(&node, &["ipam", "check"]);
        sees(&node, &repair);
        // The same without an agent.
        node.stop_agent();
    }
    assert_eq!(node.del(&pods[0]).status, 0);
    assert_eq!(node.russet_inside(&["ipam", "check"]).status, 0);
    assert_eq!(node.russet_inside(&repair).status, 0);
}

/// The owner of an address, and its earlier owners.
#[test]
#[ignore = "root: makes network namespaces"]
fn who_shows_deleted_pods_with_and_without_an_agent() {
    let mut node = TestNode::start(&["--ipv6-pool", "none"]);
    let pod = node.pod();
    let address = node.add(&pod).addresses().remove(0);
    let who = |node: &TestNode, more: &[&str]| {
        let answer = node.russet(&[&["ipam", "who", &address, "-o", "json"], more].concat());
        let status = answer.status;
        (status, serde_json::from_str::<Value>(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}")))
    };
    let (status, known) = who(&node, &[]);
    assert_eq!((status, &known["now"]["node"]), (0, &json!("node-a")), "{known}");
    let tenure = &known["history"][0];
    assert_eq!((&tenure["container"], &tenure["until"]), (&json!(pod.container), &Value::Null), "{known}");

    assert_eq!(node.del(&pod).status, 0);
    assert_eq!(node.allocated(), 0);
    let (status, known) = who(&node, &[]);
    assert_eq!((status, &known["now"]), (0, &Value::Null), "{known}");
    let until = known["history"][0]["until"].as_str().unwrap().to_owned();
    assert_eq!(who(&node, &["--at", "2020-01-01T00:00:00Z"]).0, 3, "no owner is known then");
    assert_eq!(who(&node, &["--at", &until]).0, 3, "it ended at that moment");

    // A plugin without an agent writes the history, too.
    node.stop_agent();
    let other = node.pod();
    node.add(&other).result();
    let log = std::fs::read_to_string(node.path("var/lib/russet/history")).unwrap();
    assert!(log.lines().count() == 3 && log.contains(&other.container), "{log}");
    assert_eq!(node.russet(&["ipam", "who", "10.244.0.300"]).status, 2);
}

#[test]
fn why_refuses_the_name_of_a_node_that_is_not_registered() {
    let planted = Planted::tv4();
    let answer = planted.ipam(&["why", "--node", "ghost"]);
    assert_eq!(answer.status, 1, "{answer:?}");
    for words in ["node ghost is not registered", "/nodes/ghost", "get nodes"] {
        assert!(answer.stderr.contains(words), "{answer:?}");
    }
    let own = planted.ipam(&["why"]);
    assert_eq!(own.status, 0, "the agent of this machine registers its own name: {own:?}");
}

/// The reasons for the result of a request.
#[test]
fn why_names_the_pools_and_the_limit_and_writes_nothing() {
    let planted = Planted::tv4();
    planted.register_node_a();
    let before = planted.dump("/");
    let output: Value =
        serde_json::from_str(&planted.good(&["why", "--node", "node-a", "-o", "json"])).unwrap();
    let family = &output["families"][0];
    assert_eq!(family["pools"][0]["serves"], true, "{output}");
    assert_eq!(
        (&family["blocks"][0]["cidr"], &family["blocks"][0]["free"]),
        (&json!("10.1.0.16/29"), &json!(4))
    );
    assert_eq!(family["outcome"]["address"]["from"], "own_block");

    let other = planted.ipam(&["why", "--node", "node-a", "--pool", "10.9.0.0/24"]);
    assert_eq!(other.status, 3, "{other:?}");
    assert!(other.stdout.contains("the given pool 10.9.0.0/24 does not exist"), "{other:?}");
    assert_eq!(planted.dump("/"), before);
}

#[test]
fn why_takes_a_pool_by_its_name() {
    let planted = Planted::tv4();
    planted.register_node_a();
    let by = |pool: &str| planted.good(&["why", "--node", "node-a", "--pool", pool]);
    assert_eq!(by("p"), by("10.1.0.0/24"));
    let unknown = planted.ipam(&["why", "--node", "node-a", "--pool", "q"]);
    assert_eq!(unknown.status, 1);
    assert!(format!("{unknown:?}").contains("there are: p"), "{unknown:?}");
    assert_eq!(planted.ipam(&["why", "--pool", "10.1.0.0/"]).status, 2);
}

#[test]
fn why_agrees_with_add_on_a_family_whose_pools_are_disabled() {
    let planted = Planted::tv4();
    planted.register_node_a();
    planted.put(
        &format!("{POOL}6"),
        r#"{"kind":"IPPool","metadata":{"name":"p6"},"spec":{"cidr":"fd00:1::/112","disabled":true}}"#,
    );
    let text = planted.good(&["why", "--node", "node-a"]);
    assert!(text.starts_with("IPv4: node-a would get an address such as 10.1.0.20"), "{text}");
    let without = "IPv6: a pod on node-a starts without such an address: every IPv6 pool is disabled\n";
    assert!(text.contains(without), "{text}");
}
