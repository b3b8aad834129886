//! What changes or fails between a verdict and its write.

use std::cell::Cell;
use std::rc::Rc;

use russet_ipam::{Allocator, SystemClock};
use russet_kube::testing::Fault;
use russet_model::{Key, KeyKind, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};

use crate::bench::{Bench, handle, settings};

/// What happens before a commit, once.
type Meanwhile = Box<dyn Fn() -> BoxFuture<'static, ()>>;

/// Lets something happen right before the first write of a block.
struct Meddled {
    store: Rc<dyn Store>,
    meanwhile: Cell<Option<Meanwhile>>,
}

impl Store for Meddled {
    fn claims(&self) -> Claims {
        self.store.claims()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.store.list(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let writes_block = steps.iter().any(|step| matches!(step.key().kind(), KeyKind::Block(_)));
            if writes_block && let Some(meanwhile) = self.meanwhile.take() {
                meanwhile().await;
            }
            self.store.commit(steps).await
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.store.watch(prefix)
    }
}

#[tokio::test]
async fn an_address_that_was_given_to_another_pod_before_the_write_is_not_freed() {
    // kubernetes.md K85
    let bench = Bench::with(&["n1", "n2"]).await;
    let address = bench.pod("n1", "web-0").await;
    bench.delete_node("n1", &["web-0"]);
    let store = bench.store.clone();
    let meanwhile: Meanwhile = Box::new(move || {
        let store = store.clone();
        Box::pin(async move {
            let peer = Allocator::new(store, Rc::new(SystemClock));
            peer.release_by_handle(&handle("web-0"), None).await.unwrap();
            let request = russet_ipam::Request::pod("n1".parse().unwrap(), handle("other"));
            peer.assign_ip(&request, address).await.unwrap();
        })
    });
    let meddled = Meddled { store: bench.store.clone(), meanwhile: Cell::new(Some(meanwhile)) };
    let mut others = 0;
    bench
        .run_on(Rc::new(meddled), settings("a"), |report| {
            others += usize::from(format!("{:?}", report.nodes).contains("net.other"));
            others == 10
        })
        .await;
    let holder = bench.allocator.holder_of(address).await.unwrap().expect("it is allocated");
    assert_eq!(holder.attribute.handle_id.as_deref(), Some("net.other"));
}

#[tokio::test]
async fn failures_of_the_server_delay_and_lost_answers_free_nothing_twice() {
    let bench = Bench::with(&["n1", "n2"]).await;
    let mut addresses = Vec::new();
    let pods: Vec<String> = (0..12).map(|n| format!("web-{n}")).collect();
    for pod in &pods {
        addresses.push(bench.pod("n1", pod).await);
    }
    let living = bench.pod("n2", "living").await;
    bench.delete_node("n1", &pods.iter().map(String::as_str).collect::<Vec<_>>());
    let mut looks = 0;
    bench
        .run(russet_controller::Settings { once: true, ..settings("a") }, |_| {
            looks += 1;
            match looks % 4 {
                0 => bench.server.lose_next_write(Fault::Unanswered),
                1 => bench.server.lose_next_write(Fault::Unexecuted),
                2 => bench.server.fail_next(2, 503),
                _ => {}
            }
            false
        })
        .await;
    for address in addresses {
        assert!(!bench.is_allocated(address).await, "{address}");
    }
    assert!(bench.is_allocated(living).await);
    assert_eq!(bench.names("/calico/ipam/v2/host/").await.len(), 1);
}
