//! The store fails at any one operation of a container's life: the next attempt finds one address
//! or none, never two.

use russet_model::Prefix;
use russet_store::sim::Fault;
use russet_store::{BoxFuture, Claims, CommitError, Record, Revision, Snapshot, StoreError, Watch};

use super::*;

/// More operations than an ADD or a DEL has.
const OPERATIONS: usize = 24;
const FAULTS: [Fault; 4] = [Fault::Conflict, Fault::LostReply, Fault::LostRequest, Fault::Unavailable];

fn script(sim: &Sim, at: usize, fault: Fault) {
    sim.script((0..at).map(|_| Fault::None).chain([fault]));
}

/// Repeats the request until it succeeds, as a runtime does.
async fn insist(bench: &Bench, verb: &str, ask: &Ask) -> Option<CniResult> {
    for _ in 0..3 {
        match bench.run(verb, ask).await.0 {
            Ok(result) => return result,
            Err(error) => assert_eq!(error.code, 11, "{verb}: {error}"),
        }
    }
    panic!("{verb} fails again and again");
}

#[test]
fn a_repeated_add_has_one_address_after_any_fault() {
    // calico-ipam.md section 9: a write of unknown outcome is looked up, and an ADD is idempotent.
    for fault in FAULTS {
        for at in 0..OPERATIONS {
            on_both(async |sim| {
                let bench = Bench::dual(sim.clone()).await;
                let ask = Ask { ipam: json!({"assign_ipv6": "true"}), args: POD, ..ASK() };
                script(&sim, at, fault);
                let result = insist(&bench, "ADD", &ask).await.unwrap();
                assert_eq!(bench.held("net.abc").await, 2, "{fault:?} at {at}: {result:?}");
                let taken: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
                let held =
                    bench.datastore.allocator.ips_by_handle(&"net.abc".parse().unwrap()).await.unwrap();
                assert!(held.iter().all(|held| taken.contains(&held.address)), "{fault:?} at {at}");
                insist(&bench, "DEL", &ask).await;
                assert_eq!(bench.held("net.abc").await, 0);
            });
        }
    }
}

#[test]
fn a_repeated_del_leaves_nothing_after_any_fault() {
    for fault in FAULTS {
        for at in 0..OPERATIONS {
            on_both(async |sim| {
                let bench = Bench::v4(sim.clone()).await;
                let ask = Ask { args: POD, ..ASK() };
                bench.add(&ask).await;
                script(&sim, at, fault);
                insist(&bench, "DEL", &ask).await;
                // If commits are not atomic, a lost answer may leave a count without an address,
                // which the next DEL clears.
                insist(&bench, "DEL", &ask).await;
                let handles = bench.written().into_iter().filter(|key| key.contains("/handle/")).count();
                let node = "node-a".parse().unwrap();
                let held = bench.datastore.allocator.held_by_node(&node).await.unwrap();
                assert_eq!((handles, held.len()), (0, 0), "{fault:?} at {at}");
            });
        }
    }
}

/// A store that accepts requests and never answers.
struct Silent;

impl Store for Silent {
    fn claims(&self) -> Claims {
        Claims { atomic: true, ttl: false }
    }

    fn get<'a>(&'a self, _: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(std::future::pending())
    }

    fn list<'a>(&'a self, _: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(std::future::pending())
    }

    fn commit<'a>(&'a self, _: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(std::future::pending())
    }

    fn watch<'a>(&'a self, _: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_store_that_never_answers_is_given_up_after_90_s_and_30_more() {
    // calico-ipam.md sections 2.2 and 4.2
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut bench = Bench::v4(Sim::atomic(1)).await;
        let silent: Rc<dyn Store> = Rc::new(Silent);
        let datastore = Datastore::new(Rc::clone(&silent), Allocator::new(silent, Rc::new(SystemClock)));
        bench.host = CalicoHost::new(bench.host.root.clone(), Rc::new(Fixed(datastore)));
        for (verb, seconds) in [("ADD", 120), ("DEL", 90)] {
            let begun = tokio::time::Instant::now();
            let error = bench.refused(verb, &ASK()).await;
            assert!(error.code == 11 && error.msg.contains("too slow"), "{verb}: {error}");
            assert_eq!(begun.elapsed().as_secs(), seconds, "{verb}");
        }
    });
}
