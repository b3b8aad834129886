use std::sync::Arc;

use russet_journal::EndpointTable;
use russet_model::ResourceKind;
use russet_testkit::{in_netns_with_loopback, run, succeeds};
use serde_json::{Value, json};

use super::*;
use crate::config::Paths;
use crate::fast_path::Signal;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use crate::policies::alone::Marker;
use crate::policies::felix::Felix;
use crate::policies::{Change, Kind, Shared, Source};

/// A worker of the node `n1`, in the calling thread's network namespace, without its thread.
fn worker(dir: &std::path::Path) -> Worker {
    let shared = Arc::new(Shared::new(Source::Records));
    let marker = Marker::new(&Paths::new(dir));
    let metrics = (PolicyMetrics::default(), Readiness::pending());
    let mut worker =
        Worker::new("n1", (EndpointTable::default(), &Signal::default()), marker, shared, metrics);
    worker.begin();
    worker
}

fn list(worker: &mut Worker, is_listed: impl Fn(&Kind) -> bool) {
    for kind in Source::Records.kinds().iter().copied().filter(is_listed) {
        worker.take(Change::Begin(kind));
        worker.take(Change::Complete(kind));
    }
    step(worker);
}

fn step(worker: &mut Worker) {
    worker.decide();
    worker.publish();
}

fn host(node: &str) -> Value {
    json!({ "metadata": { "name": format!("of-{node}") }, "spec": { "node": node, "interfaceName": "*" } })
}

impl Worker {
    fn is_in_force(&self) -> bool {
        *self.shared.in_force.borrow()
    }
}

fn has_table() -> bool {
    succeeds("nft list table inet russet-hosts")
}

const HOSTS: Kind = Kind::Records(ResourceKind::HostEndpoint);

const FELIX: Kind = Kind::Records(ResourceKind::FelixConfiguration);

fn felix(action: &str) -> Change {
    let spec = json!({ "defaultEndpointToHostAction": action });
    Change::Put(FELIX, json!({ "metadata": { "name": "default" }, "spec": spec }))
}

// policy.md P86
#[test]
#[ignore = "kernel: nf_tables, root; tools: nft"]
fn p86_the_table_is_there_while_pods_may_not_reach_this_node() {
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let drops = || run("nft", &["list map inet russet-hosts endpoint-to-host"]).contains("not-to-node");
        let mut worker = worker(dir.path());
        list(&mut worker, |kind| kind.is_always_watched());
        assert!(!has_table() && worker.is_in_force());
        worker.take(felix("Drop"));
        step(&mut worker);
        assert!(has_table() && drops() && worker.is_in_force());
        assert!(!worker.shared.wants.borrow().peers, "nothing else depends on it");

        // Another program's change, and a restart.
        run("nft", &["delete table inet russet-hosts"]);
        worker.hosts.doubt();
        step(&mut worker);
        assert!(drops());
        let mut worker = self::worker(dir.path());
        step(&mut worker);
        list(&mut worker, |kind| kind.is_always_watched() && *kind != FELIX);
        assert!(drops(), "it is not known yet that it is not dropped");
        worker.take(Change::Begin(FELIX));
        worker.take(felix("drop"));
        worker.take(Change::Complete(FELIX));
        step(&mut worker);
        assert!(drops() && worker.is_in_force());

        // Felix itself, a host endpoint, and another action.
        worker.meet(Felix::Filtering);
        step(&mut worker);
        assert!(!has_table());
        worker.meet(Felix::Absent);
        worker.take(Change::Put(HOSTS, host("n1")));
        list(&mut worker, |kind| !kind.is_always_watched());
        assert!(drops());
        worker.take(felix("Return"));
        step(&mut worker);
        assert!(has_table() && !drops() && worker.is_in_force());
        worker.take(felix("Drop"));
        worker.take(Change::Deleted(HOSTS, host("n1")));
        step(&mut worker);
        assert!(drops());
        worker.take(Change::Deleted(FELIX, json!({ "metadata": { "name": "default" } })));
        step(&mut worker);
        assert!(!has_table() && worker.is_in_force());
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tools: nft"]
fn failsafe_ports_follow_the_felix_configurations_of_node_and_cluster() {
    // policy.md section 1.8
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let inbound = || run("nft", &["list set inet russet-hosts failsafe-in"]);
        let put = |name: &str, ports: Value| {
            let spec = json!({ "failsafeInboundHostPorts": ports });
            Change::Put(FELIX, json!({ "metadata": { "name": name }, "spec": spec }))
        };
        let mut worker = worker(dir.path());
        worker.take(Change::Put(HOSTS, host("n1")));
        list(&mut worker, |kind| kind.is_always_watched() && *kind != HOSTS);
        worker.take(Change::Complete(HOSTS));
        list(&mut worker, |kind| !kind.is_always_watched());
        assert!(inbound().contains("6443"));
        worker.take(put("default", json!([{ "port": 2222 }])));
        step(&mut worker);
        assert!(inbound().contains("2222") && !inbound().contains("6443"));
        assert!(worker.is_in_force());
        // One that cannot be read does not close the node, and one of another node is not about it.
        worker.take(put("node.n1", json!("none")));
        worker.take(put("node.n2", json!([])));
        step(&mut worker);
        assert!(inbound().contains("2222"));
        worker.take(put("node.n1", json!([])));
        step(&mut worker);
        assert!(!inbound().contains("elements"), "{}", inbound());
        worker.take(Change::Deleted(FELIX, json!({ "metadata": { "name": "node.n1" } })));
        worker.take(Change::Deleted(FELIX, json!({ "metadata": { "name": "default" } })));
        step(&mut worker);
        assert!(inbound().contains("6443"));
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tools: nft"]
fn the_table_is_there_while_a_host_endpoint_names_this_node_and_felix_is_away() {
    in_netns_with_loopback(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = worker(dir.path());
        list(&mut worker, |kind| kind.is_always_watched());
        assert!(!has_table() && worker.is_in_force());
        worker.take(Change::Put(HOSTS, host("n2")));
        step(&mut worker);
        assert!(!has_table() && worker.is_in_force(), "another node");
        worker.is_stale = true;
        step(&mut worker);
        assert!(worker.is_stale, "nothing depends on what is wired");

        // Nothing is decided before everything is listed that decisions depend on.
        worker.take(Change::Put(HOSTS, host("n1")));
        step(&mut worker);
        assert!(!has_table() && !worker.is_in_force());
        assert!(worker.shared.wants.borrow().peers && !worker.is_stale);
        list(&mut worker, |kind| !kind.is_always_watched());
        assert!(has_table() && worker.is_in_force());
        assert!(run("nft", &["list map inet russet-hosts others"]).contains("elements"));

        // Another program's change, and a restart of the agent, which keeps what is in force.
        run("nft", &["delete table inet russet-hosts"]);
        worker.hosts.doubt();
        step(&mut worker);
        assert!(has_table());
        let mut worker = self::worker(dir.path());
        step(&mut worker);
        list(&mut worker, |kind| kind.is_always_watched() && *kind != HOSTS);
        assert!(has_table(), "host endpoints are not listed yet");

        // Felix takes over and leaves again.
        worker.take(Change::Begin(HOSTS));
        worker.take(Change::Put(HOSTS, host("n1")));
        worker.take(Change::Complete(HOSTS));
        list(&mut worker, |kind| !kind.is_always_watched());
        assert!(has_table() && worker.is_in_force());
        worker.meet(Felix::Filtering);
        step(&mut worker);
        assert!(!has_table());
        worker.meet(Felix::Absent);
        step(&mut worker);
        assert!(has_table() && worker.is_in_force());

        worker.take(Change::Deleted(HOSTS, host("n1")));
        step(&mut worker);
        assert!(!has_table() && worker.is_in_force());
    });
}
