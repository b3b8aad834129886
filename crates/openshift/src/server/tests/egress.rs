//! EgressNetworkPolicies of the Kubernetes API, with real packets to a machine outside of the cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use russet_kube::testing::Server;
use russet_linux::NetNs;
use russet_model::openshift::{Namespace, egressnetworkpolicy_key, everything};
use russet_store::{Event, Step};
use russet_testkit::forged::socket;
use russet_testkit::sh;
use serde_json::{Value, json};

use super::bench::{Bench, on_a_node, pings};
use crate::tenants::{View, resolve_names};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Addresses of the machine outside, which is the node's default gateway.
const ONE: &str = "198.51.100.7";
const OTHER: &str = "198.51.100.8";

/// The machine at the other end of the node's interface.
fn outside() {
    NetNs::create_named("outside").unwrap();
    sh("ip link set wire0 netns outside");
    for address in ["192.0.2.1/24", "198.51.100.7/32", "198.51.100.8/32"] {
        sh(&format!("ip -n outside address add {address} dev wire0"));
    }
    sh("ip -n outside link set wire0 up");
}

fn policy(name: &str) -> Value {
    json!({ "apiVersion": "network.openshift.io/v1", "kind": "EgressNetworkPolicy",
        "metadata": { "namespace": "ns1", "name": name },
        "spec": { "egress": [
            { "type": "Allow", "to": { "cidrSelector": "198.51.100.7/32" } },
            { "type": "Deny", "to": { "cidrSelector": "0.0.0.0/0" } }] } })
}

/// An API server that knows these pods of ns1; the node has access to it.
fn api(bench: &Bench, pods: &[&str]) -> Server {
    let api = Server::start();
    let kubeconfig = bench.path("kubeconfig");
    api.write_kubeconfig(&kubeconfig);
    bench.settings.borrow_mut().kubeconfig = Some(kubeconfig);
    for name in pods {
        api.put(json!({ "kind": "Pod", "metadata": { "name": name, "namespace": "ns1" }, "spec": { "containers": [] } }));
    }
    api
}

async fn reached(pod: &str) -> Vec<&'static str> {
    let mut reached = Vec::new();
    for address in [ONE, OTHER] {
        if pings(pod, address).await {
            reached.push(address);
        }
    }
    reached
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn policies_of_the_api_are_enforced_from_the_first_packet_of_a_pod() {
    // kubernetes.md section 6.4
    on_a_node(async |bench| {
        outside();
        let api = api(&bench, &["a", "b"]);
        api.install("network.openshift.io");
        api.put(policy("few"));
        let life = bench.serve().await;
        bench.add("ns1", "a").await;
        assert_eq!(reached("a").await, [ONE]);
        api.put(policy("second"));
        until("two policies deny everything", async || reached("a").await.is_empty()).await;
        api.delete("EgressNetworkPolicy.network.openshift.io", "ns1", "few");
        until("one is left", async || reached("a").await == [ONE]).await;
        life.kill().await;
        assert_eq!(reached("a").await, [ONE]);
        let life = bench.serve().await;
        bench.add("ns1", "b").await;
        assert_eq!((reached("a").await, reached("b").await), (vec![ONE], vec![ONE]));
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn pods_are_attached_once_the_apis_policies_are_listed() {
    on_a_node(async |bench| {
        outside();
        let api = api(&bench, &["a"]);
        api.install("network.openshift.io");
        api.put(policy("few"));
        api.fail_next(usize::MAX, 503);
        let life = bench.begin();
        let published = Rc::clone(&bench.published);
        let is_waiting = async || {
            let published = published.borrow();
            published.iter().flatten().any(|problem| problem.contains("EgressNetworkPolicies"))
        };
        until("the server waits for the policies", is_waiting).await;
        assert!(!bench.socket().exists(), "no pod is attached so long");
        api.fail_next(0, 503);
        until("it serves", async || *published.borrow() == Some(None)).await;
        until("its socket is there", async || bench.socket().exists()).await;
        bench.add("ns1", "a").await;
        assert_eq!(reached("a").await, [ONE]);
        life.stop().await;
    });
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn a_cluster_without_the_definition_or_the_permission_has_the_stores_policies() {
    on_a_node(async |bench| {
        outside();
        let api = api(&bench, &["a"]);
        let life = bench.serve().await;
        bench.add("ns1", "a").await;
        assert_eq!(reached("a").await, [ONE, OTHER]);
        life.stop().await;
        api.install("network.openshift.io");
        api.put(policy("few"));
        api.forbid("list egressnetworkpolicies");
        api.forbid("watch egressnetworkpolicies");
        let key = egressnetworkpolicy_key(&Namespace::new("ns1").unwrap(), "stored");
        bench.store.commit(vec![Step::put(key, policy("stored").to_string().into_bytes())]).await.unwrap();
        let life = bench.serve().await;
        assert_eq!(reached("a").await, [ONE]);
        life.stop().await;
    });
}

/// A DNS server of the machine outside, which answers every question alike.
#[derive(Clone, Default)]
struct Dns {
    /// Without one it fails.
    address: Arc<Mutex<Option<Ipv4Addr>>>,
    failures: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

// === impl Dns ===

impl Dns {
    fn start() -> Self {
        let dns = Self::default();
        let (served, socket) = (dns.clone(), socket("outside", IpAddr::from([192, 0, 2, 1]), 53));
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while !served.ends.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut query) {
                    let _ = socket.send_to(&served.answer(&query[..length]), from);
                }
            }
        });
        dns
    }

    fn answer(&self, query: &[u8]) -> Vec<u8> {
        let mut message = query.to_vec();
        match *self.address.lock().unwrap() {
            Some(address) => {
                message[2..4].copy_from_slice(&[0x81, 0x80]);
                message[7] = 1;
                // A reference to the question, type A, class IN, one second, four bytes.
                message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                message.extend(address.octets());
            }
            None => {
                message[2..4].copy_from_slice(&[0x81, 0x82]);
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        message
    }

    fn set(&self, address: Option<&str>) {
        *self.address.lock().unwrap() = address.map(|address| address.parse().unwrap());
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        // The thread has one, too.
        if Arc::strong_count(&self.ends) == 2 {
            self.ends.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn names_in_policies_are_resolved_again_and_keep_their_addresses_while_that_fails() {
    // policy.md P98
    on_a_node(async |bench| {
        outside();
        let dns = Dns::start();
        std::fs::create_dir_all(bench.path("etc")).unwrap();
        std::fs::write(bench.path("etc/resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
        let mut named = policy("named");
        named["spec"]["egress"][0]["to"] = json!({ "dnsName": "www.example.com" });
        let key = egressnetworkpolicy_key(&Namespace::new("ns1").unwrap(), "named");
        bench.store.commit(vec![Step::put(key, named.to_string().into_bytes())]).await.unwrap();
        dns.set(Some(ONE));
        let life = bench.serve().await;
        bench.add("ns1", "a").await;
        assert_eq!(reached("a").await, [ONE], "it was resolved before a pod was attached");
        // A verb that shows policies finds the same.
        let mut view = View::default();
        view.take(Event::Snapshot(bench.store.list(&everything()).await.unwrap()));
        let failed = resolve_names(&bench.path("etc/resolv.conf"), &mut view).await;
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(view.addresses("www.example.com"), Some(&[ONE.parse().unwrap()].into()));
        let failed = resolve_names(&bench.path("etc/none"), &mut view).await;
        assert!(failed.get("www.example.com").is_some_and(|why| why.contains("etc/none")), "{failed:?}");
        dns.set(Some(OTHER));
        until("the other address is allowed", async || reached("a").await == [OTHER]).await;
        dns.set(None);
        until("it fails", async || dns.failures.load(Ordering::Relaxed) > 0).await;
        assert_eq!(reached("a").await, [OTHER]);
        // What is not resolved is not allowed, and the agent does not wait for it for ever.
        life.kill().await;
        let life = bench.serve().await;
        until("it is closed", async || reached("a").await.is_empty()).await;
        life.stop().await;
    });
}
