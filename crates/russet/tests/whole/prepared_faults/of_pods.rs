//! Faults of pods and their policies, of what Russet has in the kernel, and of the datastore.

use russet_testkit::{eventually, run};
use serde_json::{Value, json};

use super::asked::{
    CLUSTER, DOCTOR, DRIFT, EXPLAIN, Expected, FLOWS, Fault, JOURNAL, MAP, PAGE, STATUS, TOP, TRACE,
};
use super::cluster::Cluster;
use super::part;
use crate::node::TIMEOUT;
use crate::pinging::Pinging;
use crate::printed::Printed;

/// The policy of `shop/db`, which pods with this label alone may reach.
fn policy(app: &str) -> Value {
    let from = json!([{ "from": [{ "podSelector": { "matchLabels": { "app": app } } }] }]);
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "db-in", "namespace": "shop" },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"], "ingress": from } })
}

fn denied(cluster: &Cluster, page: &mut Printed) {
    cluster.stored("apply", &policy("api"));
    eventually(TIMEOUT, || !cluster.reaches());
    let pings = Pinging::begin(&cluster.web, &cluster.db_address, "0.2");
    let mut fault = cluster.at_db(
        "A policy denies it",
        "The NetworkPolicy `db-in` lets pods with the label `app=api` reach `shop/db`, and no others. Asked on node-b, the node of the pod that the policy is about.",
        vec![
            Expected::says(EXPLAIN, 3, &["icmp: DENIED", "KubernetesNetworkPolicy shop/db-in", "in kernel: ingress of shop/db"]).whole(),
            Expected::says(TRACE, 3, &["dropped by inet russet-decisions"]).whole(),
            Expected::says(FLOWS, 0, &["[KubernetesNetworkPolicy shop/db-in]"]),
            Expected::says(TOP, 0, &["KubernetesNetworkPolicy shop/db-in"]),
            Expected::says(PAGE, 0, &["KubernetesNetworkPolicy shop/db-in"]),
        ],
    );
    fault.reported = &[("flows.json", "db-in"), ("cluster/policies.txt", "db-in")];
    fault.ask(&cluster.stable, page);
    drop(pings);
}

/// The table that decides for policies is changed while no agent restores it.
fn changed_decisions(cluster: &mut Cluster, page: &mut Printed) {
    cluster.stored("apply", &policy("web"));
    eventually(TIMEOUT, || cluster.reaches());
    cluster.b.stop_agent();
    let element = format!("delete element inet russet-decisions ids4 {{ {} }}", cluster.web_address);
    cluster.b.inside("nft", &[&element]);
    let mut fault = cluster.at_db(
        "The kernel decides something else than the policies say",
        "`db-in` allows `app=web` now, which `shop/web` has. The agent of node-b was stopped, and then another program took an element out of the table `inet russet-decisions`. Asked on node-b.",
        vec![
            Expected::says(STATUS, 1, &["no agent runs at"]),
            Expected::says(EXPLAIN, 3, &["in kernel: ingress of shop/db", "note: agent: no agent runs on this node", "FOUND: drift: ingress of shop/db"]).whole(),
            Expected::says(DRIFT, 1, &["no agent runs at"]),
            Expected::says(TRACE, 3, &["dropped by inet russet-decisions"]),
            Expected::says(FLOWS, 1, &["no agent runs at"]),
            Expected::says(TOP, 1, &["no agent runs at"]),
            Expected::says(PAGE, 1, &["no agent answers at"]),
            Expected::says(DOCTOR, 3, &["no agent runs: pods start slowly"]),
        ],
    );
    fault.reported = &[
        ("doctor.txt", "no agent runs"),
        ("report.json", "no agent runs at"),
        ("kernel/nft.txt", "russet-decisions"),
    ];
    fault.ask(&cluster.stable, page);
    cluster.b.start_agent();
    cluster.stored("delete", &policy("web"));
    eventually(TIMEOUT, || cluster.reaches() && cluster.is_healthy());
}

fn address_of_no_pod(cluster: &Cluster, page: &mut Printed) {
    // The same last octet with another bit: an address of the same block.
    let (net, last) = cluster.db_address.rsplit_once('.').unwrap();
    let free = format!("{net}.{}", last.parse::<u8>().unwrap() ^ 32);
    let fault = cluster.to(
        &free,
        "The address is that of no pod",
        "A client has the address of a pod that is gone, in a block of node-b.",
        vec![Expected::says(EXPLAIN, 3, &["FOUND: address:"]).whole()],
    );
    fault.ask(&cluster.stable, page);
}

fn masquerade(cluster: &Cluster, page: &mut Printed) {
    let mut fault = cluster.to(
        "10.77.0.1",
        "The server sees the node's address",
        "A server outside of the cluster, 10.77.0.1, accepts the pod's address and not the node's. Here it only answers pings, so that nothing is lost.",
        vec![
            Expected::says(EXPLAIN, 0, &["note: masquerade: the source is translated: 10.77.0.1 sees 10.77.0.11"]).whole(),
            Expected::says(TRACE, 0, &["an answer before translation"]),
        ],
    );
    fault.seen = [true, false, false];
    fault.reported = &[("kernel/nft.txt", "masquerade")];
    fault.ask(&cluster.stable, page);
}

fn host_network(cluster: &Cluster, page: &mut Printed) {
    let mut fault = cluster.to(
        "10.77.0.12",
        "The pod is in the host's network",
        "A pod that uses the network of node-b has that node's address, 10.77.0.12, and a policy for its labels does nothing. Where the datastore is the Kubernetes API, `russet explain` takes the name of such a pod, too.",
        vec![
            Expected::says(EXPLAIN, 0, &["note: host-network: 10.77.0.12 is node node-b", "note: masquerade:"]).whole(),
            Expected::says(TRACE, 0, &["an answer before translation"]),
        ],
    );
    fault.seen = [true, false, false];
    fault.ask(&cluster.stable, page);
}

fn repaired(cluster: &Cluster, page: &mut Printed) {
    cluster.a.inside("nft", &["delete table inet russet"]);
    let mut fault = cluster.between(
        "Another program removes what is Russet's",
        "On node-a: `nft delete table inet russet`, while the agent runs, which restores the table at once.",
        vec![
            Expected::says(DRIFT, 0, &["by nft (pid", "replace the overlay's part of table inet russet"]),
            Expected::says(TOP, 0, &["replace the overlay's part of table inet russet"]),
            Expected::says(PAGE, 0, &["replace the overlay's part of table inet russet"]),
        ],
    );
    fault.reported = &[("drift.json", "\"nft\"")];
    fault.ask(&cluster.stable, page);
}

fn pod_down(cluster: &mut Cluster, page: &mut Printed) {
    let cron = cluster.pod("cron");
    run("ip", &["-n", &cron.netns_name, "link", "set", "eth0", "down"]);
    let fault = Fault {
        pod: "shop/cron",
        ends: ["shop/cron", "shop/db"],
        traffic: (&cron, &cluster.db_address),
        seen: [false, false, false],
        reported: &[("doctor.txt", "have no carrier")],
        ..cluster.between(
            "The pod's interface is down",
            "Inside of `shop/cron`, another pod of node-a: `ip link set eth0 down`.",
            vec![
                Expected::says(EXPLAIN, 3, &["FOUND: interface: eth0 of shop/cron is down"]).whole(),
                Expected::says(TRACE, 0, &["0 packets traced"]),
                Expected::says(DOCTOR, 3, &["pods' interfaces: 1 of 2 have no carrier"]).whole(),
            ],
        )
    };
    fault.ask(&cluster.stable, page);
    assert_eq!(cluster.a.del(&cron).status, 0);
    eventually(TIMEOUT, || cluster.a.russet_inside(&["doctor"]).status == 0);
}

fn datastore(cluster: &mut Cluster, page: &mut Printed) {
    let job = cluster.pod("job");
    cluster.stable.name(job.container.as_str(), "job-sandbox");
    cluster.fabric.kill_etcd();
    // It is answered; the release of its address waits for the datastore.
    assert_eq!(cluster.a.del(&job).status, 0);
    let mut fault = cluster.between(
        "The datastore does not answer",
        "etcd is stopped. Pods keep their network. Then `shop/job`, another pod of node-a, was deleted: the DEL is answered at once, and its address is released when etcd is back.",
        vec![
            Expected::says(STATUS, 3, &["! not ready: store: REQUEST: store unavailable: http://10.77.0.1:2379: transport error: tcp connect error: Connection refused"]).whole(),
            Expected::says(CLUSTER, 1, &["Connection refused"]),
            Expected::says(EXPLAIN, 1, &["Connection refused", "store: etcd:http://10.77.0.1:2379"]).whole(),
            Expected::says(DRIFT, 1, &["could not compare: compare pods' addresses with the store"]),
            Expected::says(TRACE, 1, &["Connection refused"]),
            Expected::says(MAP, 1, &["Connection refused"]),
            Expected::says(TOP, 3, &["! not ready: store: REQUEST: store unavailable"]),
            Expected::says(PAGE, 0, &["not ready: store: REQUEST: store unavailable"]),
            Expected::says(JOURNAL, 0, &["DEL  "]).whole(),
            Expected::says(DOCTOR, 3, &["it cannot be read: REQUEST: store unavailable", "agent: store: the node is not ready: REQUEST"]),
        ],
    );
    fault.reported = &[
        ("status.txt", "not ready: store"),
        ("doctor.txt", "it cannot be read"),
        ("report.json", "russet get nodes"),
    ];
    fault.ask(&cluster.stable, page);
}

#[test]
#[ignore = "root: two nodes on an etcd, with policies, a table that is changed, a pod whose interface is down, and without etcd; kernel: vxlan, nfnetlink_log; tool: etcd, ip, nft, ping, tar"]
fn each_command_says_what_it_knows_of_faults_of_pods_and_programs() {
    let mut cluster = Cluster::start();
    let mut page = part("of pods and programs");
    denied(&cluster, &mut page);
    changed_decisions(&mut cluster, &mut page);
    address_of_no_pod(&cluster, &mut page);
    masquerade(&cluster, &mut page);
    host_network(&cluster, &mut page);
    repaired(&cluster, &mut page);
    pod_down(&mut cluster, &mut page);
    datastore(&mut cluster, &mut page);
    page.assert_in_page();
}
