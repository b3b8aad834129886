//! `russet migrate host-local`, over the test server: no agent, no namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use russet_addr::{ContainerId, NetworkName, NodeName};
use russet_agent::{Paths, StoreLocation};
use russet_ipam::{Allocator, Request, SystemClock};
use russet_kube::testing::Server;
use russet_model::HandleId;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::Answer;

const GROUP: &str = "crd.projectcalico.org";
const NETWORK: &str = "k8s-pod-network";
/// The addresses of `host-local` on node n1: the container, and the pod if there is one. The last one is in a
/// block of node n2.
const HELD: [(&str, &str, Option<&str>); 5] = [
    ("10.244.1.2", "aaaa", Some("web-0")),
    ("10.244.1.3", "bbbb", Some("web-1")),
    ("10.244.1.7", "cccc", None),
    ("10.244.1.200", "dddd", Some("web-2")),
    ("10.244.2.5", "eeee", Some("web-3")),
];

/// A cluster of two nodes, the files of n1, and the allocator of `calico-ipam`.
struct Site {
    server: Server,
    directory: TempDir,
    allocator: Allocator,
}

fn handle(container: &str) -> HandleId {
    HandleId::pod(&NetworkName::new(NETWORK).unwrap(), &ContainerId::new(container).unwrap())
}

fn request(node: &str, container: &str) -> Request {
    Request::pod(NodeName::new(node).unwrap(), handle(container))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

// === impl Site ===

impl Site {
    async fn new() -> Self {
        let server = Server::start();
        server.install(GROUP);
        let custom = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({ "name": name });
            server.put(json!({ "kind": kind, "apiVersion": format!("{GROUP}/v1"), "metadata": metadata, "spec": spec }));
        };
        custom("IPPool", "blue", json!({ "cidr": "10.244.0.0/16", "blockSize": 26 }));
        custom("ClusterInformation", "default", json!({ "datastoreReady": true }));
        for (name, range) in [("n1", "10.244.1.0/24"), ("n2", "10.244.2.0/24")] {
            let spec = json!({ "podCIDR": range, "podCIDRs": [range] });
            server.put(json!({ "kind": "Node", "metadata": { "name": name }, "spec": spec }));
        }
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        server.write_kubeconfig(&kubeconfig);
        let location: StoreLocation = format!("kubernetes:{}", kubeconfig.display()).parse().unwrap();
        let store = russet_agent::open_store(&Paths::new("/"), &location).await.unwrap().store.clone();
        let site = Self { server, directory, allocator: Allocator::new(store, Rc::new(SystemClock)) };
        site.allocator.assign_ip(&request("n2", "ffff"), address("10.244.2.9")).await.unwrap();
        std::fs::create_dir_all(site.files()).unwrap();
        for (address, container, pod) in HELD {
            std::fs::write(site.files().join(address), format!("{container}\r\neth0")).unwrap();
            if let Some(name) = pod {
                let status = json!({ "podIP": address, "podIPs": [{ "ip": address }] });
                site.server.put(json!({ "kind": "Pod", "metadata": { "namespace": "shop", "name": name },
                    "spec": { "nodeName": "n1" }, "status": status }));
            }
        }
        site
    }

    fn files(&self) -> PathBuf {
        self.directory.path().join("var/lib/cni/networks").join(NETWORK)
    }

    /// Runs the migration, which leaves two addresses; each address with what it says of it, and why.
    fn migrate(&self, more: &[&str]) -> Vec<(String, String, String)> {
        let store = format!("kubernetes:{}", self.directory.path().join("kubeconfig").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["migrate", "host-local", "--node-name", "n1", "-o", "json", "--store", &store]);
        command.arg("--root").arg(self.directory.path()).args(more).env_remove("CALICO_API_GROUP");
        let answer = Answer::from(command.output().unwrap());
        assert_eq!(answer.status, 3, "{answer:?}");
        let report: Value = serde_json::from_str(&answer.stdout).unwrap();
        let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let lines = report["addresses"].as_array().unwrap().iter();
        lines.map(|line| (text(line, "address"), text(line, "state"), text(line, "reason"))).collect()
    }

    /// Everything in the datastore that is not of n1.
    fn others(&self) -> Vec<Value> {
        let kinds = ["IPAMBlock", "BlockAffinity", "IPAMHandle", "ClusterInformation", "IPPool"];
        let all = kinds.iter().flat_map(|kind| self.server.objects(&format!("{kind}.{GROUP}")));
        let mine = ["host:n1", "\"n1\"", "aaaa", "bbbb", "dddd"];
        all.filter(|object| !mine.iter().any(|name| object["spec"].to_string().contains(name))).collect()
    }
}

/// The expected states, in the order of the addresses.
fn states(done: &str) -> Vec<(String, String)> {
    let state = |pod: Option<&str>, address: &str| match pod {
        Some(_) if address.starts_with("10.244.1.") => done.to_owned(),
        _ => "left".to_owned(),
    };
    HELD.iter().map(|(address, _, pod)| ((*address).to_owned(), state(*pod, address))).collect()
}

#[tokio::test]
async fn a_node_changes_from_host_local_to_calico_ipam_and_nothing_of_others_is_written() {
    // kubernetes.md K116, section 2.5
    let site = Site::new().await;
    let (before, since) = (site.others(), site.server.seen().len());
    let lines = site.migrate(&[]);
    let shown: Vec<_> = lines.iter().map(|(address, state, _)| (address.clone(), state.clone())).collect();
    assert_eq!(shown, states("allocated"), "{lines:?}");
    assert!(lines[2].2.contains("no pod") && lines[4].2.contains("n2"), "{lines:?}");

    assert_eq!(site.others(), before, "n2's block, the pool, and the cluster, which is not locked");
    let written: Vec<_> =
        site.server.seen().into_iter().skip(since).filter(|seen| seen.method != "GET").collect();
    let is_allocators =
        |path: &str| ["ipamblocks", "ipamhandles", "blockaffinities"].iter().any(|it| path.contains(it));
    assert!(!written.is_empty() && written.iter().all(|seen| is_allocators(&seen.path)), "{written:?}");
    let held = site.allocator.holder_of(address("10.244.1.200")).await.unwrap().unwrap();
    let names = ["namespace", "pod", "node"].map(|name| held.attribute.get(name));
    assert_eq!(names, [Some("shop"), Some("web-2"), Some("n1")]);
}

#[tokio::test]
async fn after_it_new_pods_get_other_addresses_and_a_del_finds_those_of_older_pods() {
    // kubernetes.md K116
    let site = Site::new().await;
    site.migrate(&[]);
    let migrated = ["10.244.1.2", "10.244.1.3", "10.244.1.200", "10.244.2.5"].map(address);
    for number in 0..8 {
        let assigned = site.allocator.auto_assign(&request("n1", &format!("new-{number}"))).await.unwrap();
        let new = assigned.addresses[0].addr();
        assert!(!migrated.contains(&new) && new.to_string().starts_with("10.244.1."), "{new}");
    }
    let released = site.allocator.release_by_handle(&handle("aaaa"), None).await.unwrap();
    assert_eq!(released.addresses, [address("10.244.1.2")]);

    std::fs::remove_file(site.files().join("10.244.1.2")).unwrap();
    let lines = site.migrate(&["--remove-files"]);
    let shown: Vec<_> = lines.iter().map(|(address, state, _)| (address.clone(), state.clone())).collect();
    assert_eq!(shown, states("allocated-before")[1..], "{lines:?}");
    let names = std::fs::read_dir(site.files()).unwrap().map(|file| file.unwrap().file_name());
    let kept: BTreeSet<IpAddr> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    assert_eq!(kept, ["10.244.1.7", "10.244.2.5"].map(address).into(), "those that were left");
}
