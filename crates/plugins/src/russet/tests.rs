use std::cell::Cell;
use std::rc::Rc;

use russet_ipam::{Allocator, DefaultPool};
use russet_model::EncapMode;
use russet_store::Sim;

use super::*;
use crate::Teardown;
use crate::datastore::{CalicoHost, Datastore, Fixed};

async fn node() -> Node {
    let store: Rc<dyn russet_store::Store> = Rc::new(Sim::atomic(1));
    let allocator = Rc::new(Allocator::new(store.clone(), Rc::new(SystemClock)));
    for (name, cidr) in [("four", "10.1.0.0/24"), ("six", "fd00:1::/112")] {
        let cidr = cidr.parse().unwrap();
        let pool = DefaultPool { name: name.into(), cidr, vxlan_mode: EncapMode::Never, nat_outgoing: false };
        allocator.ensure_pools(&[pool]).await.unwrap();
    }
    let fixed = Rc::new(Fixed(Datastore::of(store.clone(), Rc::clone(&allocator))));
    Node {
        calico: CalicoHost::new("/nonexistent", fixed),
        name: "node-a".parse().unwrap(),
        store,
        allocator,
        wiring: Default::default(),
        mtu_bytes: Rc::new(Cell::new(1450)),
        teardown: Teardown::Synchronous,
        not_ready: Rc::new(|| None),
        clusters: Default::default(),
    }
}

fn request(extra: &str) -> Request {
    let config = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"russet"{extra}}}"#);
    let vars = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/none"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/"),
    ];
    let vars = vars.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let prepared = russet_cni_spec::plugin::prepare(vars, config.into_bytes(), "test").unwrap();
    let russet_cni_spec::Prepared::Request(request) = prepared else { panic!("{prepared:?}") };
    *request
}

fn target(request: &Request) -> Target {
    Target::of(request, request.env.target().unwrap()).unwrap()
}

/// The addresses of an ADD up to the wiring.
async fn take(node: &Node, extra: &str, mark: &str) -> Vec<IpAddr> {
    let request = request(extra);
    let (settings, target) = (Settings::read(&request).unwrap(), target(&request));
    let assigned = allocate(node, &settings, &target, &handle(&target), mark).await.unwrap();
    assigned.addresses.iter().map(IpNet::addr).collect()
}

async fn held(node: &Node) -> Vec<IpAddr> {
    let held = node.allocator.ips_by_handle(&handle(&target(&request("")))).await.unwrap();
    held.into_iter().map(|held| held.address).collect()
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

#[test]
fn a_failed_repetition_gives_back_only_what_it_took_itself() {
    run(async {
        let node = node().await;
        let first = take(&node, r#","ipv4_pools":["10.1.0.0/24"]"#, "1").await;
        let both = take(&node, "", "2").await;
        assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
        let failed = Unattached { error: CniError::internal("no", ""), undone: true };
        give_back(&node, &handle(&target(&request(""))), "2", failed).await;
        assert_eq!(held(&node).await, first);
    });
}

#[test]
fn addresses_stay_held_as_long_as_something_may_answer_for_them() {
    run(async {
        let node = node().await;
        let taken = take(&node, "", "1").await;
        let failed = Unattached { error: CniError::internal("no", ""), undone: false };
        let error = give_back(&node, &handle(&target(&request(""))), "1", failed).await;
        assert!(error.details.contains("held until DEL"), "{error}");
        assert_eq!(held(&node).await, taken);
    });
}

#[test]
fn status_tells_a_node_that_is_not_ready_yet_from_one_that_lost_its_store() {
    run(async {
        let mut node = node().await;
        assert_eq!(status(&*node.not_ready), Ok(()));
        for (lost_store, code) in [(false, 50), (true, 51)] {
            node.not_ready = Rc::new(move || Some(NotReady { reason: "why".to_owned(), lost_store }));
            let error = status(&*node.not_ready).unwrap_err();
            assert_eq!((error.code, error.details.as_str()), (code, "why"));
        }
    });
}
