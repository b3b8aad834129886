use std::sync::Arc;

use russet_attach::{Attachment, Pod};
use russet_journal::EndpointTable;
use russet_model::ResourceKind;
use serde_json::{Value, json};

use super::*;
use crate::config::Paths;
use crate::fast_path::Signal;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use crate::policies::alone::Marker;
use crate::policies::{Change, Kind, Shared};

fn worker(source: Source, endpoints: EndpointTable) -> Worker {
    let dir = tempfile::tempdir().unwrap();
    let metrics = (PolicyMetrics::default(), Readiness::pending());
    let shared = Arc::new(Shared::new(source));
    let marker = Marker::new(&Paths::new(dir.path()));
    let mut worker = Worker::new("n1", (endpoints, &Signal::default()), marker, shared, metrics);
    worker.phase = Phase::Enforcing;
    worker
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The workload endpoint of a pod in the namespace `shop`.
fn record(pod: &str, address: &str) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": format!("n1-k8s-{pod}-eth0") },
        "spec": { "node": "n1", "orchestrator": "k8s", "pod": pod, "endpoint": "eth0",
            "ipNetworks": [format!("{address}/32")] } })
}

fn pod(name: &str, address: &str) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": name }, "spec": { "nodeName": "n1" },
        "status": { "phase": "Running", "podIP": address } })
}

/// As [`Worker::read_wiring`], with these ends.
fn with_ends(worker: &mut Worker, ends: &[(u32, &str, &str)]) {
    let end = |(index, name, address): &(u32, &str, &str)| End {
        index: *index,
        name: name.parse().unwrap(),
        addresses: Some(*address).filter(|it| !it.is_empty()).map(ip).into_iter().collect(),
    };
    worker.calico.ends = ends.iter().map(end).collect();
    (worker.wired, worker.unnamed) = worker.wiring();
    worker.match_calico();
}

/// The end of `shop/web-0`.
const END: &str = "calia4fc3c48bd8";
const ADDRESS: &str = "10.65.0.3";

#[test]
fn an_end_that_only_the_kernel_knows_is_decided_while_a_record_has_its_address_and_its_name() {
    let kind = Kind::Records(ResourceKind::WorkloadEndpoint);
    for (source, kind, object) in
        [(Source::Records, kind, record as fn(&str, &str) -> Value), (Source::Kubernetes, Kind::Pods, pod)]
    {
        let mut worker = worker(source, EndpointTable::default());
        with_ends(&mut worker, &[(7, END, ADDRESS), (8, "cali2", "")]);
        let decided = |worker: &mut Worker| {
            worker.match_calico();
            (worker.is_decided(ip(ADDRESS)), worker.decided_ends())
        };
        assert_eq!(decided(&mut worker), (false, BTreeSet::new()));
        // Of a pod that had the address before.
        worker.take(Change::Put(kind, object("web-1", ADDRESS)));
        assert_eq!(decided(&mut worker), (false, BTreeSet::new()));
        worker.take(Change::Put(kind, object("web-0", ADDRESS)));
        assert_eq!(decided(&mut worker), (true, BTreeSet::from([7])));
        let endpoint = worker.pods.values().find(|it| &*it.name == "web-0").map(Arc::clone).unwrap();
        assert_eq!(worker.with_wiring(endpoint).local.as_ref().unwrap().as_str(), END);
        // Another pod is about to be wired with it.
        let id: russet_addr::EndpointId = "net/c1/eth0".parse().unwrap();
        worker.in_progress.insert(id.clone(), [ip(ADDRESS)].into());
        assert_eq!(decided(&mut worker), (false, BTreeSet::new()));
        worker.in_progress.remove(&id);
        worker.take(Change::Deleted(kind, object("web-0", ADDRESS)));
        assert_eq!(decided(&mut worker), (false, BTreeSet::new()));
    }
}

#[test]
fn a_pod_that_calicos_plugin_wires_has_no_decisions_before_its_own_record() {
    let mut attachment =
        Attachment::new(russet_attach::Dialect::Calico, "net/c1/eth0".parse().unwrap(), None);
    attachment.addresses = vec![ip(ADDRESS)];
    attachment.host_name = END.parse().unwrap();
    attachment.pod = Some(Pod { namespace: "shop".to_owned(), name: "web-0".to_owned() });
    let endpoints = EndpointTable::default();
    endpoints.put(Wired::Routed(attachment));
    let mut worker = worker(Source::Records, endpoints);
    let kind = Kind::Records(ResourceKind::WorkloadEndpoint);
    with_ends(&mut worker, &[(7, END, ADDRESS)]);
    worker.apply_unrecorded();
    assert!(worker.unrecorded.is_empty() && !worker.is_decided(ip(ADDRESS)), "its labels are not known");
    // That of the pod that had the name before.
    worker.take(Change::Put(kind, record("web-0", "10.65.0.9")));
    worker.match_calico();
    assert!(!worker.is_decided(ip(ADDRESS)));
    worker.take(Change::Put(kind, record("web-0", ADDRESS)));
    worker.match_calico();
    assert!(worker.is_decided(ip(ADDRESS)));
    assert_eq!(worker.decided_ends(), BTreeSet::from([7]));

    // What another program leads there is the pod's, too.
    worker.calico.ends[0].addresses.insert(ip("192.0.2.7"));
    (worker.wired, worker.unnamed) = worker.wiring();
    worker.match_calico();
    assert!(worker.is_decided(ip("192.0.2.7")) && worker.decided_ends() == BTreeSet::from([7]));
}

#[test]
fn a_hold_takes_back_what_is_said_of_an_address() {
    let worker = worker(Source::Records, EndpointTable::default());
    let mut seen = worker.shared.decided_ends.subscribe();
    let these = |pairs: &[(u32, &str)]| {
        DecidedEnds::These(pairs.iter().map(|(index, address)| (*index, ip(address))).collect())
    };
    worker.shared.decided_ends.send_replace(these(&[(7, ADDRESS), (8, "10.65.0.4")]));
    seen.borrow_and_update();
    worker.withhold(&[ip(ADDRESS)].into());
    assert!(seen.has_changed().unwrap());
    assert_eq!(*seen.borrow_and_update(), these(&[(8, "10.65.0.4")]));
    worker.withhold(&[ip(ADDRESS)].into());
    assert!(!seen.has_changed().unwrap());
}

#[test]
fn what_is_wired_is_not_read_before_the_first_lists_because_the_endpoint_table_may_not_be_complete() {
    let mut worker = worker(Source::Records, EndpointTable::default());
    worker.phase = Phase::Waiting;
    // The thread that follows host ends may ask before the agent has read its journal.
    worker.shared.requests.lock().unwrap().push_back(crate::policies::Request::Ends);
    worker.serve_requests();
    worker.decide();
    assert!(worker.is_stale, "it is read once everything is listed");
}
