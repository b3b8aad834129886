//! Tests of `calico-ipam` over the simulated store, once with atomic commits and once with one
//! write at a time. This file has the harness.

use std::rc::Rc;

use russet_ipam::{Allocator, SystemClock};
use russet_model::{IpPool, IpPoolSpec, Key};
use russet_store::{Sim, Step, Store};
use russet_wiring::failure;
use serde_json::{Value, json};

use super::*;
use crate::datastore::{CalicoHost, Datastore, Fixed};

mod add;
mod del;
mod faults;
mod oracles;
mod others;

/// A host and its datastore.
struct Bench {
    sim: Sim,
    host: CalicoHost,
    datastore: Datastore,
    _root: tempfile::TempDir,
}

/// The parameters of one request.
#[derive(Clone)]
struct Ask {
    version: &'static str,
    container: &'static str,
    ifname: &'static str,
    args: &'static str,
    ipam: Value,
    more: Value,
}

const ASK: fn() -> Ask =
    || Ask { version: "1.0.0", container: "abc", ifname: "eth0", args: "", ipam: json!({}), more: json!({}) };

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";

/// A node with these pools.
async fn bench(sim: Sim, pools: &[(&str, &str)]) -> Bench {
    let root = tempfile::tempdir().unwrap();
    let store: Rc<dyn Store> = Rc::new(sim.clone());
    let datastore = Datastore::new(Rc::clone(&store), Allocator::new(store, Rc::new(SystemClock)));
    for (name, cidr) in pools {
        let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
        if cidr.ends_with("/32") {
            spec.block_size = Some(32);
        }
        datastore.allocator.create_pool(IpPool::new(*name, spec)).await.unwrap();
    }
    let host = CalicoHost::new(root.path(), Rc::new(Fixed(datastore.clone())));
    let bench = Bench { sim, host, datastore, _root: root };
    for node in ["node-a", "node-b", "node-1", "host-1", "filed"] {
        let record = json!({"kind": "Node", "metadata": {"name": node}, "spec": {}});
        bench.put(Key::node(&node.parse().unwrap()), &record).await;
    }
    bench
}

/// Runs a test on a store whose commits are atomic, and on one that writes step by step.
fn on_both<F: Future<Output = ()>>(test: impl Fn(Sim) -> F) {
    for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(test(sim));
    }
}

impl Bench {
    async fn v4(sim: Sim) -> Self {
        bench(sim, &[("four", "10.1.0.0/24")]).await
    }

    async fn dual(sim: Sim) -> Self {
        bench(sim, &[("four", "10.1.0.0/24"), ("six", "fd00:1::/112")]).await
    }

    async fn run(&self, verb: &str, ask: &Ask) -> (Result<Option<CniResult>, CniError>, String) {
        let mut config = json!({
            "cniVersion": ask.version, "name": "net", "type": "bridge", "nodename": "node-a",
            "datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1",
        });
        let mut ipam = json!({"type": "calico-ipam"});
        ipam.as_object_mut().unwrap().extend(ask.ipam.as_object().unwrap().clone());
        config["ipam"] = ipam;
        config.as_object_mut().unwrap().extend(ask.more.as_object().unwrap().clone());
        let vars = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", ask.container),
            ("CNI_NETNS", "/run/netns/none"),
            ("CNI_IFNAME", ask.ifname),
            ("CNI_ARGS", ask.args),
            ("CNI_PATH", "/"),
        ];
        let request = Request::new(vars, config.to_string().into_bytes()).unwrap();
        let log = RequestLog::new(NAME);
        (run(&self.host, &request, &log).await, log.text())
    }

    async fn done(&self, verb: &str, ask: &Ask) -> Option<CniResult> {
        self.run(verb, ask).await.0.unwrap_or_else(|error| panic!("{verb}: {error}"))
    }

    async fn refused(&self, verb: &str, ask: &Ask) -> CniError {
        self.run(verb, ask).await.0.unwrap_err()
    }

    /// The addresses of an ADD, with their prefix lengths.
    async fn add(&self, ask: &Ask) -> Vec<String> {
        let result = self.done("ADD", ask).await.unwrap();
        result.ips.iter().map(|ip| ip.address.to_string()).collect()
    }

    /// How many addresses a handle holds.
    async fn held(&self, handle: &str) -> usize {
        self.datastore.allocator.ips_by_handle(&handle.parse().unwrap()).await.unwrap().len()
    }

    /// All records of the store about addresses, without pools.
    fn written(&self) -> Vec<String> {
        let keys = self.sim.records().into_keys().map(|key| key.to_string());
        keys.filter(|key| key.starts_with("/calico/ipam/")).collect()
    }

    async fn put(&self, key: Key, value: &Value) {
        self.sim.commit(vec![Step::create(key, value.to_string().into_bytes())]).await.unwrap();
    }

    /// The value of the record at `path`.
    fn record(&self, path: &str) -> String {
        let records = self.sim.records();
        let record = records.iter().find(|(key, _)| key.as_str() == path);
        String::from_utf8(record.unwrap_or_else(|| panic!("{path}")).1.value.to_vec()).unwrap()
    }
}
