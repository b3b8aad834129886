//! `russet get`, `apply` and `delete` over the embedded store: no agent, no namespace, only a directory.

use std::process::Command;

use russet_testkit::spawn_with_input;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::Answer;

const POOLS: &str = "\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: blue
  labels: {team: net}
spec:
  cidr: 10.20.0.0/16
  natOutgoing: true
  vxlanMode: Always
---
# A second document, and a list in it.
apiVersion: projectcalico.org/v3
kind: IPPoolList
items:
- apiVersion: projectcalico.org/v3
  kind: IPPool
  metadata: {name: green}
  spec: {cidr: 'fd20::/64', disabled: true}
- {apiVersion: projectcalico.org/v3, kind: IPReservation, metadata: {name: gateways}, spec: {reservedCIDRs: [10.20.0.1]}}
";

/// A directory with the store of the verbs.
struct Store {
    root: TempDir,
}

// === impl Store ===

impl Store {
    fn empty() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    /// A store with the resources of `text`.
    fn with(text: &str) -> Self {
        let store = Self::empty();
        let answer = store.apply(text);
        assert_eq!(answer.status, 0, "{answer:?}");
        store
    }

    fn run_with(&self, args: &[&str], stdin: &str) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).arg("--root").arg(self.root.path()).env_remove("RUSSET_STORE");
        spawn_with_input(&mut command, stdin).wait_with_output().unwrap().into()
    }

    fn run(&self, args: &[&str]) -> Answer {
        self.run_with(args, "")
    }

    /// The output of a verb that must succeed.
    fn good(&self, args: &[&str]) -> String {
        let answer = self.run(args);
        assert_eq!(answer.status, 0, "{answer:?}");
        answer.stdout
    }

    /// The error of a verb that must fail.
    fn bad(&self, args: &[&str]) -> String {
        let answer = self.run(args);
        assert_eq!(answer.status, 1, "{answer:?}");
        answer.stderr
    }

    fn apply(&self, text: &str) -> Answer {
        self.run_with(&["apply", "-f", "-"], text)
    }

    /// The reason for which a text is refused.
    fn refusal(&self, text: &str) -> String {
        let answer = self.apply(text);
        assert_eq!(answer.status, 1, "{answer:?}");
        assert_eq!(answer.stdout, "");
        answer.stderr
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn put(&self, key: &str, value: &Value) {
        self.good(&["store", "put", key, &value.to_string()]);
    }

    /// How many records there are below a prefix.
    fn count(&self, prefix: &str) -> usize {
        let dump: Value = serde_json::from_str(&self.good(&["store", "dump", "--prefix", prefix])).unwrap();
        dump["records"].as_array().unwrap().len()
    }

    /// A block of `node` with one address, as its agent writes it, in pool 10.20.0.0/16.
    fn occupy(&self, node: &str) {
        self.put(
            "/calico/ipam/v2/assignment/ipv4/block/10.20.0.0-26",
            &json!({ "cidr": "10.20.0.0/26", "affinity": format!("host:{node}"), "deleted": false, "sequenceNumber": 9,
                "sequenceNumberForAllocation": { "2": 8 },
                "allocations": (0..64).map(|ordinal| if ordinal == 2 { json!(0) } else { json!(null) }).collect::<Vec<_>>(),
                "unallocated": (0..64).filter(|ordinal| *ordinal != 2).collect::<Vec<_>>(),
                "attributes": [{ "handle_id": "net.aaaa", "secondary": { "node": node, "namespace": "shop", "pod": "web-0" } }] }),
        );
        self.put(
            &format!("/calico/ipam/v2/host/{node}/ipv4/block/10.20.0.0-26"),
            &json!({ "state": "confirmed", "deleted": false }),
        );
        self.put(
            "/calico/ipam/v2/handle/net.aaaa",
            &json!({ "block": { "10.20.0.0/26": 1 }, "deleted": false }),
        );
    }
}

#[test]
fn applied_resources_have_calicos_defaults() {
    let store = Store::empty();
    let answer = store.apply(POOLS);
    assert_eq!(
        (answer.status, answer.stdout.as_str()),
        (0, "IPPool/blue created\nIPPool/green created\nIPReservation/gateways created\n"),
        "{answer:?}"
    );
    assert_eq!(
        store.good(&["get", "pools"]),
        "NAME   CIDR          SELECTOR\nblue   10.20.0.0/16  all()\ngreen  fd20::/64     all()\n"
    );
    let wide = store.good(&["get", "ippools", "-o", "wide"]);
    assert!(
        wide.contains("blue   10.20.0.0/16  26         true   Never     Always     false     false"),
        "{wide}"
    );
    assert_eq!(store.good(&["get", "ipreservation", "-o", "wide"]), "NAME      CIDRS\ngateways  10.20.0.1\n");
    let blue = store.json(&["get", "ippool", "blue"]);
    assert_eq!(
        blue["spec"],
        json!({ "cidr": "10.20.0.0/16", "vxlanMode": "Always", "ipipMode": "Never", "natOutgoing": true, "blockSize": 26,
            "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic" })
    );
    let metadata = &blue["metadata"];
    assert_eq!(metadata["labels"], json!({ "team": "net" }));
    for name in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(metadata[name].is_string(), "{name}: {blue}");
    }
}

#[test]
fn output_of_get_can_be_applied_without_a_change() {
    let store = Store::with(POOLS);
    for format in ["yaml", "json"] {
        let shown = store.good(&["get", "pools", "-o", format]);
        let answer = store.apply(&shown);
        assert_eq!(answer.stdout, "IPPool/blue unchanged\nIPPool/green unchanged\n", "{answer:?}");
    }
    let again = store.apply(POOLS);
    assert_eq!(again.stdout.matches("unchanged").count(), 3, "{again:?}");
}

#[test]
fn exported_resources_can_be_applied_to_another_store() {
    let store = Store::with(POOLS);
    let pools = store.good(&["get", "pools", "-o", "yaml", "--export"]);
    assert!(!pools.contains("uid") && !pools.contains("resourceVersion"), "{pools}");
    let other = Store::with(&pools);
    assert_eq!(other.good(&["get", "pools", "-o", "yaml", "--export"]), pools);
    let one = store.good(&["get", "pool", "blue", "-o", "yaml"]);
    assert!(
        other
            .refusal(&one.replace("resourceVersion: \"", "resourceVersion: \"9"))
            .contains("another client changed it")
    );
}

#[test]
fn a_change_with_a_version_does_not_overwrite_another_clients_change() {
    let store = Store::with(POOLS);
    let first = store.good(&["get", "pool", "blue", "-o", "yaml"]);
    let disabled = POOLS.replace("natOutgoing: true", "natOutgoing: true\n  disabled: true");
    assert_eq!(store.apply(&disabled).stdout.lines().next(), Some("IPPool/blue configured"));
    let before = store.json(&["get", "pool", "blue"]);
    assert_eq!(before["spec"]["disabled"], true);

    let late = store.refusal(&first.replace("vxlanMode: Always", "vxlanMode: Never"));
    assert!(late.contains("IPPool/blue is at resourceVersion") && late.contains("get it again"), "{late}");
    assert_eq!(store.json(&["get", "pool", "blue"]), before);
    let current = store.good(&["get", "pool", "blue", "-o", "yaml"]);
    let answer = store.apply(&current.replace("vxlanMode: Always", "vxlanMode: Never"));
    assert_eq!(answer.stdout, "IPPool/blue configured\n", "{answer:?}");
    let after = store.json(&["get", "pool", "blue"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);

    store.good(&["delete", "pool", "blue"]);
    let gone = store.refusal(&current);
    assert!(gone.contains("does not exist any more"), "{gone}");
}

#[test]
fn one_mistake_in_the_files_prevents_every_write() {
    let store = Store::with(POOLS);
    let reservation = "---\n{apiVersion: projectcalico.org/v3, kind: IPReservation, metadata: {name: other}, spec: {reservedCidrs: []}}\n";
    let changed = POOLS.replace("natOutgoing: true", "natOutgoing: false");
    let refused = store.refusal(&format!("{changed}{reservation}"));
    assert_eq!(
        refused,
        "error: standard input, document 3: IPReservation/other: spec.reservedCidrs: there is no such field; did you mean reservedCIDRs?\n"
    );
    assert_eq!(store.json(&["get", "pool", "blue"])["spec"]["natOutgoing"], true);
    for (text, problem) in [
        (POOLS.replace("cidr: 10.20.0.0/16", "cidr: 10.20.0.1/16"), "bits set behind the prefix"),
        (POOLS.replace("name: blue", "name: Blue"), "metadata.name"),
        (POOLS.replace("kind: IPPool\n", "kind: IPPols\n"), "did you mean IPPool?"),
        (
            POOLS.replace(
                "apiVersion: projectcalico.org/v3\nkind: IPPool\n",
                "apiVersion: v1\nkind: ipPool\n",
            ),
            "document 1",
        ),
        (POOLS.replace("natOutgoing: true", "natOutgoing: 'true'"), "true or false is wanted"),
        ("# nothing\n".to_owned(), "no resources"),
    ] {
        let refused = store.refusal(&text);
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn a_change_of_a_pool_that_would_strand_its_blocks_is_refused() {
    // calico-ipam.md section 1.8
    let store = Store::with(POOLS);
    let before = store.json(&["get", "pool", "blue"]);
    for (from, to, problem) in [
        ("cidr: 10.20.0.0/16", "cidr: 10.20.0.0/15", "spec.cidr: it cannot change from 10.20.0.0/16"),
        (
            "cidr: 10.20.0.0/16",
            "cidr: 10.20.0.0/16\n  blockSize: 28",
            "spec.blockSize: it cannot change from 26",
        ),
    ] {
        let refused = store.refusal(&POOLS.replace(from, to));
        assert!(refused.contains(problem), "{refused}");
    }
    let third = POOLS.replace("name: blue", "name: red").replace("10.20.0.0/16", "10.20.7.0/24");
    let refused = store.refusal(&third);
    assert!(refused.contains("overlap") && refused.contains("blue"), "{refused}");
    let mine = store.refusal(&format!("{third}---\n{}", third.replace("name: red", "name: pink")));
    assert!(
        mine.contains("IPPool/pink: spec.cidr: 10.20.7.0/24 overlaps 10.20.7.0/24 of IPPool/red"),
        "{mine}"
    );
    assert_eq!(store.json(&["get", "pool", "blue"]), before);
    assert_eq!(store.good(&["get", "pools"]).lines().count(), 3, "nothing was written before the refusal");
}

#[test]
fn a_dry_run_says_what_would_happen_and_does_nothing() {
    let store = Store::with(POOLS);
    let text = format!(
        "{}---\n{{apiVersion: projectcalico.org/v3, kind: Profile, metadata: {{name: dev}}, spec: {{labelsToApply: {{stage: dev}}}}}}\n",
        POOLS.replace("natOutgoing: true", "natOutgoing: false")
    );
    let answer = store.run_with(&["apply", "-f", "-", "--dry-run"], &text);
    let said: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(said[0], "IPPool/blue configured (dry run)", "{answer:?}");
    assert_eq!(said[3], "Profile/dev created (dry run)");
    assert_eq!(store.json(&["get", "pool", "blue"])["spec"]["natOutgoing"], true);
    assert!(store.bad(&["get", "profile", "dev"]).contains("Profile \"dev\" does not exist"));
}

#[test]
fn a_file_without_tunnel_members_does_not_erase_a_nodes_tunnel() {
    // calico-cni.md section 4.6
    let store = Store::with(POOLS);
    let node = json!({ "kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": { "name": "n1", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z" },
        "spec": { "bgp": { "ipv4Address": "10.0.0.1/24" }, "ipv4VXLANTunnelAddr": "10.20.0.0" } });
    store.put("/calico/resources/v3/projectcalico.org/nodes/n1", &node);
    let text = "{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1, labels: {zone: a}}, spec: {bgp: {ipv4Address: 10.0.0.2/24, asNumber: 64512}}}";
    assert_eq!(store.apply(text).stdout, "Node/n1 configured\n");
    let after = store.json(&["get", "node", "n1"]);
    assert_eq!(after["spec"]["ipv4VXLANTunnelAddr"], "10.20.0.0");
    assert_eq!(after["metadata"]["labels"], json!({ "zone": "a" }));
    assert_eq!(after["metadata"]["uid"], "u");
    let wide = store.good(&["get", "nodes", "-o", "wide"]);
    let rows: Vec<Vec<&str>> = wide.lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = ["NAME", "READY", "ADDRESSES", "AGE", "ASN", "IPV4", "IPV6", "VXLANV4", "VXLANV6"];
    assert_eq!(rows[0], heading);
    assert_eq!(rows[1][..3], ["n1", "unknown", "10.0.0.2"], "no agent speaks for another node");
    assert_eq!(rows[1][4..], ["64512", "10.0.0.2/24", "10.20.0.0"]);
}

#[test]
fn members_of_newer_releases_survive_an_older_file() {
    // calico-ipam.md section 1.10
    let store = Store::with(POOLS);
    let mut pool = store.json(&["get", "pool", "blue"]);
    pool["metadata"]["finalizers"] = json!(["x/y"]);
    pool["spec"]["future"] = json!({ "a": 1 });
    pool["status"] = json!({ "conditions": [{ "type": "Allocatable", "status": "True" }] });
    store.put("/calico/resources/v3/projectcalico.org/ippools/blue", &pool);
    let answer = store.apply(&POOLS.replace("natOutgoing: true", "natOutgoing: false"));
    assert_eq!(answer.stdout.lines().next(), Some("IPPool/blue configured"), "{answer:?}");
    let after = store.json(&["get", "pool", "blue"]);
    assert_eq!(after["spec"]["natOutgoing"], Value::Null);
    assert_eq!(after["spec"]["future"], json!({ "a": 1 }));
    assert_eq!(after["metadata"]["finalizers"], json!(["x/y"]));
    assert_eq!(after["status"], pool["status"]);
}

#[test]
fn concurrent_writers_lose_no_change() {
    let store = Store::with(POOLS);
    let text = |zone: usize| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: Node, metadata: {{name: n1, labels: {{zone: z{zone}}}}}}}"
        )
    };
    let with_spec = |zone| format!("{}, spec: {{}}}}", text(zone).strip_suffix('}').unwrap());
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..6)
            .map(|zone| {
                scope.spawn({
                    let (store, text) = (&store, with_spec(zone));
                    move || store.apply(&text)
                })
            })
            .collect();
        let answers: Vec<Answer> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.status == 0), "{answers:?}");
        let created = answers.iter().filter(|answer| answer.stdout.contains("created")).count();
        assert_eq!(created, 1, "{answers:?}");
    });
    let zone = store.json(&["get", "node", "n1"])["metadata"]["labels"]["zone"].clone();
    assert!(zone.as_str().unwrap().starts_with('z'), "{zone}");
}

#[test]
#[ignore = "tool: etcd"]
fn the_verbs_work_on_etcd_as_on_a_file() {
    let etcd = russet_testkit::etcd::Cluster::single();
    etcd.wait();
    let location = etcd.location();
    let store = Store::empty();
    let on_etcd =
        |args: &[&str], stdin: &str| store.run_with(&[args, &["--store", &location]].concat(), stdin);
    let applied = on_etcd(&["apply", "-f", "-"], POOLS);
    assert_eq!(applied.stdout.matches("created").count(), 3, "{applied:?}");
    let shown = on_etcd(&["get", "pool", "blue", "-o", "yaml"], "").stdout;
    let stored = etcd.members[0].etcdctl(&[
        "get",
        "--print-value-only",
        "/calico/resources/v3/projectcalico.org/ippools/blue",
    ]);
    assert!(
        stored.starts_with(
            r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"blue","#
        ),
        "{stored}"
    );
    assert!(!stored.contains("resourceVersion"), "{stored}");
    let changed = on_etcd(&["apply", "-f", "-"], &shown.replace("natOutgoing: true", "natOutgoing: false"));
    assert_eq!(changed.stdout, "IPPool/blue configured\n", "{changed:?}");
    let late = on_etcd(&["apply", "-f", "-"], &shown.replace("natOutgoing: true", "disabled: true"));
    assert!(late.stderr.contains("another client changed it"), "{late:?}");
    let deleted = on_etcd(&["delete", "pool", "blue"], "");
    assert_eq!(deleted.stdout, "IPPool/blue deleted\n", "{deleted:?}");
    assert!(!store.root.path().join("var").exists(), "the file's store was left alone");
}

#[test]
fn endpoints_live_in_namespaces() {
    let endpoint = |namespace: &str, pod: &str| {
        format!(
            "---\napiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\nmetadata: {{name: n1-k8s-{pod}-eth0{namespace}}}\n\
             spec: {{orchestrator: k8s, node: n1, pod: {pod}, endpoint: eth0, ipNetworks: [10.20.0.7/32], interfaceName: cali1}}\n"
        )
    };
    let store = Store::with(&format!("{}{}", endpoint("", "web"), endpoint(", namespace: shop", "db")));
    let table = "WORKLOAD  NODE  NETWORKS      INTERFACE\n";
    assert_eq!(store.good(&["get", "wep"]), format!("{table}web       n1    10.20.0.7/32  cali1\n"));
    assert_eq!(
        store.good(&["get", "wep", "-n", "shop"]),
        format!("{table}db        n1    10.20.0.7/32  cali1\n")
    );
    let all = store.good(&["get", "weps", "-A"]);
    assert!(
        all.starts_with("NAMESPACE  WORKLOAD")
            && all.contains("\ndefault    web")
            && all.contains("\nshop       db"),
        "{all}"
    );
    let labels = &store.json(&["get", "wep", "n1-k8s-db-eth0", "-n", "shop"])["metadata"]["labels"];
    assert_eq!(
        labels,
        &json!({ "projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s" })
    );
    let answer = store.run_with(&["apply", "-f", "-", "-n", "other"], &endpoint(", namespace: shop", "db"));
    assert!(answer.status == 1 && answer.stderr.contains("is not the --namespace"), "{answer:?}");
    assert!(
        store
            .bad(&["delete", "wep", "n1-k8s-db-eth0"])
            .contains("WorkloadEndpoint/default/n1-k8s-db-eth0 does not exist")
    );
    assert_eq!(
        store.good(&["delete", "wep", "n1-k8s-db-eth0", "--namespace", "shop"]),
        "WorkloadEndpoint/shop/n1-k8s-db-eth0 deleted\n"
    );
}

#[test]
fn a_deleted_pool_gives_up_its_empty_blocks_and_leaves_addresses_that_are_in_use() {
    // calico-ipam.md section 1.8
    let store = Store::with(POOLS);
    store.occupy("n1");
    let answer = store.run(&["delete", "pool", "blue"]);
    assert_eq!((answer.status, answer.stdout.as_str()), (0, "IPPool/blue deleted\n"), "{answer:?}");
    assert!(answer.stderr.contains("1 addresses of 10.20.0.0/16 are still in use"), "{answer:?}");
    assert_eq!(store.count("/calico/ipam/v2/host/"), 0);
    assert_eq!(store.count("/calico/ipam/v2/assignment/"), 1);
    assert_eq!(store.good(&["get", "pools"]).lines().count(), 2);
}

#[test]
fn a_delete_by_file_is_guarded_by_its_version() {
    let store = Store::with(POOLS);
    let file = store.root.path().join("pool.yaml");
    std::fs::write(&file, store.good(&["get", "pool", "blue", "-o", "yaml"])).unwrap();
    let file = file.display().to_string();
    store.apply(&POOLS.replace("natOutgoing: true", "natOutgoing: false"));
    assert!(store.bad(&["delete", "-f", &file]).contains("another client changed it"));
    std::fs::write(&file, store.good(&["get", "pool", "blue", "-o", "yaml"])).unwrap();
    assert_eq!(store.good(&["delete", "-f", &file]), "IPPool/blue deleted\n");
    assert!(store.bad(&["delete", "-f", &file]).contains("IPPool/blue does not exist"));
    assert_eq!(store.good(&["delete", "-f", &file, "--skip-not-exists"]), "IPPool/blue does not exist\n");
    assert_eq!(store.good(&["delete", "ipreservation", "gateways"]), "IPReservation/gateways deleted\n");
}

#[test]
fn a_node_with_pods_is_deleted_only_when_the_operator_says_that_it_is_gone() {
    // calico-ipam.md section 3.10
    let store = Store::with(POOLS);
    let node = "---\n{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}, spec: {bgp: {ipv4Address: 10.0.0.1/24}}}\n";
    let endpoint = "---\n{apiVersion: projectcalico.org/v3, kind: WorkloadEndpoint, metadata: {name: n1-k8s-web--0-eth0, namespace: shop},\n spec: {orchestrator: k8s, node: n1, pod: web-0, endpoint: eth0}}\n";
    assert_eq!(store.apply(&format!("{node}{endpoint}")).status, 0);
    store.occupy("n1");
    let refused = store.bad(&["delete", "node", "n1"]);
    assert!(
        refused.contains("1 addresses of pods and 1 workload endpoints (10.20.0.2 shop/web-0)"),
        "{refused}"
    );
    assert_eq!(store.count("/calico/ipam/v2/"), 3, "nothing was touched");

    assert_eq!(store.good(&["delete", "node", "n1", "--release-addresses"]), "Node/n1 deleted\n");
    assert_eq!(store.count("/calico/ipam/v2/host/"), 0);
    assert_eq!(store.count("/calico/ipam/v2/handle/"), 0);
    assert_eq!(store.good(&["get", "wep", "-A"]).lines().count(), 1);
    assert_eq!(store.good(&["get", "nodes"]), "NAME  READY  ADDRESSES  AGE\n");
    assert_eq!(store.run(&["ipam", "check"]).status, 0);
}

#[test]
fn names_alone_are_printed_for_scripts() {
    let store = Store::empty();
    let applied = store.run_with(&["apply", "-f", "-", "-o", "name"], POOLS);
    assert_eq!(applied.stdout, "ippool/blue\nippool/green\nipreservation/gateways\n", "{applied:?}");
    assert_eq!(store.good(&["get", "pools", "-o", "name"]), "ippool/blue\nippool/green\n");
    assert_eq!(store.good(&["delete", "pool", "green", "-o", "name"]), "ippool/green\n");
    let missing = ["delete", "pool", "green", "-o", "name", "--skip-not-exists"];
    assert_eq!(store.good(&missing), "", "nothing was deleted");
}

#[test]
fn a_dry_run_deletes_nothing_and_refuses_what_a_deletion_would_refuse() {
    let store = Store::with(POOLS);
    let node = "{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}, spec: {bgp: {ipv4Address: 10.0.0.1/24}}}";
    assert_eq!(store.apply(node).status, 0);
    store.occupy("n1");
    let before = store.good(&["store", "dump"]);
    let pool = store.run(&["delete", "pool", "blue", "--dry-run"]);
    assert_eq!(pool.stdout, "IPPool/blue would be deleted (dry run)\n", "{pool:?}");
    assert!(pool.stderr.contains("1 addresses of 10.20.0.0/16 are still in use"), "{pool:?}");
    let would = "IPReservation/gateways would be deleted (dry run)\n";
    assert_eq!(store.good(&["delete", "ipreservation", "gateways", "--dry-run"]), would);
    assert!(store.bad(&["delete", "node", "n1", "--dry-run"]).contains("delete its pods first"));
    let released = ["delete", "node", "n1", "--dry-run", "--release-addresses"];
    assert_eq!(store.good(&released), "Node/n1 would be deleted (dry run)\n");
    assert!(store.bad(&["delete", "node", "n2", "--dry-run"]).contains("Node/n2 does not exist"));
    assert_eq!(store.good(&["store", "dump"]), before);
}

#[test]
fn resources_of_other_programs_in_a_file_are_skipped_on_request() {
    let store = Store::empty();
    let text =
        format!("{POOLS}---\n{{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {{name: x}}}}\n");
    assert!(store.refusal(&text).contains("BGPPeer"));
    assert_eq!(std::fs::read_dir(store.root.path()).unwrap().count(), 0, "nothing was written");
    let answer = store.run_with(&["apply", "-f", "-", "--skip-unknown-kinds"], &text);
    assert_eq!(answer.status, 0, "{answer:?}");
    assert_eq!(answer.stdout.lines().count(), 3);
    assert!(answer.stderr.contains("kind \"BGPPeer\" is skipped"), "{answer:?}");
}

/// One document of each kind of network policy.
const POLICIES: &str = r#"
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: first}, spec: {order: 10}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: deny}, spec: {tier: first, order: 1.5, selector: app == "db", types: [Ingress]}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {egress: [{action: Allow, protocol: TCP, destination: {ports: [80, "90:99"]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}}}
---
{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: ops, labels: {set: ops}}, spec: {nets: [192.0.2.0/24]}}
---
{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: ops}, spec: {nets: [192.0.2.0/24]}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: h}, spec: {node: n1, interfaceName: eth0}}
---
{apiVersion: projectcalico.org/v3, kind: StagedGlobalNetworkPolicy, metadata: {name: s}, spec: {stagedAction: Set}}
---
{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, metadata: {name: s}, spec: {stagedAction: Learn}}
---
{apiVersion: projectcalico.org/v3, kind: StagedKubernetesNetworkPolicy, metadata: {name: s}, spec: {stagedAction: Set, podSelector: {}}}
"#;

#[test]
fn policies_of_calico_and_kubernetes_are_applied_printed_and_deleted() {
    let store = Store::with(POLICIES);
    assert_eq!(store.apply(POLICIES).stdout.matches(" unchanged\n").count(), 10);
    assert_eq!(
        store.good(&["get", "gnp", "-o", "wide"]),
        "NAME  TIER   ORDER  SELECTOR\ndeny  first  1.5    app == \"db\"\n"
    );
    let calico = store.json(&["get", "networkpolicy", "db", "-n", "shop"]);
    assert_eq!((&calico["spec"]["tier"], &calico["spec"]["types"]), (&json!("default"), &json!(["Egress"])));
    let of_kubernetes = store.json(&["get", "netpol", "db", "-n", "shop"]);
    assert_eq!(of_kubernetes["apiVersion"], "networking.k8s.io/v1");
    assert_eq!(
        (&of_kubernetes["kind"], &of_kubernetes["spec"]["podSelector"]["matchLabels"]["app"]),
        (&json!("NetworkPolicy"), &json!("db"))
    );
    let listed = store.good(&["get", "netpol", "-A", "-o", "yaml"]);
    assert!(listed.contains("kind: NetworkPolicyList"), "{listed}");
    let again = store.run_with(&["apply", "-f", "-"], &listed);
    assert_eq!(again.stdout, "KubernetesNetworkPolicy/shop/db unchanged\n", "{again:?}");

    let in_tier = |tier: &str| {
        format!(
            "{{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {{name: late}}, spec: {{tier: {tier}, selector: all()}}}}"
        )
    };
    let refusal = store.refusal(&in_tier("nowhere"));
    assert!(
        refusal.contains("GlobalNetworkPolicy/late") && refusal.contains("tier \"nowhere\" does not exist"),
        "{refusal}"
    );
    for tier in ["first", "default", "kube-admin"] {
        assert_eq!(store.apply(&in_tier(tier)).status, 0, "{tier}");
        assert_eq!(store.good(&["delete", "gnp", "late"]), "GlobalNetworkPolicy/late deleted\n");
    }
    let tier = "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: nowhere}, spec: {order: 7}}";
    let both = store.apply(&format!("{}\n---\n{tier}\n", in_tier("nowhere")));
    assert_eq!(both.status, 0, "{both:?}");
    assert_eq!(store.good(&["delete", "gnp", "late"]), "GlobalNetworkPolicy/late deleted\n");

    assert!(store.bad(&["delete", "tier", "first"]).contains("Tier/first has 1 policies"));
    assert!(store.bad(&["delete", "tier", "default"]).contains("belongs to every cluster"));
    assert_eq!(store.good(&["delete", "gnp", "deny"]), "GlobalNetworkPolicy/deny deleted\n");
    assert_eq!(store.good(&["delete", "tier", "first"]), "Tier/first deleted\n");
    for kind in ["NetworkPolicy", "Tier"] {
        let wrong = format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: x}}}}");
        assert!(store.refusal(&wrong).contains("apiVersion: projectcalico.org/v3"));
    }
}

#[test]
fn verbs_and_kinds_of_kubectl_and_calicoctl_get_a_hint() {
    let store = Store::empty();
    for (args, words) in [
        (&["node"][..], "russet status"),
        (&["describe", "pod", "x"], "russet get KIND NAME -o yaml"),
        (&["networkpolicy"], "russet get netpol -A"),
        (&["delete", "pod", "x"], "russet get pods -A"),
    ] {
        let answer = store.run(args);
        assert_eq!(answer.status, 2, "{answer:?}");
        assert!(answer.stderr.contains(words), "{answer:?}");
    }
}

#[test]
fn a_node_with_tunnel_addresses_is_deleted_at_the_first_attempt() {
    let store = Store::with(POOLS);
    let node = "---\n{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: n1}, spec: {bgp: {ipv4Address: 10.0.0.1/24}}}\n";
    assert_eq!(store.apply(node).status, 0);
    store.occupy("n1");
    // Its VXLAN device's address, and one of IPIP beside it, which has no handle record.
    let block = "/calico/ipam/v2/assignment/ipv4/block/10.20.0.0-26";
    let mut value = serde_json::from_str::<Value>(&store.good(&["store", "dump", "--prefix", block]))
        .unwrap()["records"][0]["value"]
        .take();
    value["attributes"] = json!([
        { "handle_id": "vxlan-tunnel-addr-n1", "secondary": { "node": "n1", "type": "vxlanTunnelAddress" } },
        { "handle_id": "ipip-tunnel-addr-n1", "secondary": { "node": "n1", "type": "ipipTunnelAddress" } },
    ]);
    value["allocations"][3] = json!(1);
    value["unallocated"].as_array_mut().unwrap().retain(|ordinal| *ordinal != 3);
    value["sequenceNumberForAllocation"]["3"] = json!(8);
    store.put(block, &value);
    store.good(&[
        "store",
        "put",
        "/calico/ipam/v2/handle/vxlan-tunnel-addr-n1",
        r#"{"block":{"10.20.0.0/26":1}}"#,
    ]);

    assert_eq!(store.good(&["delete", "node", "n1"]), "Node/n1 deleted\n");
    assert_eq!(store.count("/calico/ipam/v2/assignment/"), 0);
    assert_eq!(store.count("/calico/ipam/v2/handle/vxlan"), 0);
    assert_eq!(store.good(&["get", "nodes"]), "NAME  READY  ADDRESSES  AGE\n");
}

#[test]
fn unreadable_records_are_skipped_with_a_warning() {
    let store = Store::with(POOLS);
    store.put("/calico/resources/v3/projectcalico.org/ippools/broken", &json!({ "kind": "IPPool" }));
    let answer = store.run(&["get", "pools"]);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(
        answer.stdout.contains("blue") && answer.stderr.contains("ippools/broken is passed over"),
        "{answer:?}"
    );
    let usage = store.run(&["get", "gadgets"]);
    assert!(usage.status == 2 && usage.stderr.contains("there are ippools"), "{usage:?}");
    assert_eq!(store.run(&["delete", "pool"]).status, 2);
    assert_eq!(store.run(&["apply"]).status, 2);
    let nowhere = Store::empty();
    assert!(nowhere.bad(&["get", "pools"]).contains("there is no store"));
}
