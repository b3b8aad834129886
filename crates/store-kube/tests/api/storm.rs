//! Many callers allocate and release addresses at once while answers are lost and servers fail: no
//! address has two owners, and the records agree.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use russet_ipam::audit::audit;
use russet_ipam::{Allocator, IpamError, NoBackoff, Request, SystemClock};
use russet_kube::testing::Fault;
use russet_model::{HandleId, Prefix};
use russet_store::{Step, Store};
use russet_sync::Rng;

use crate::bench::{Bench, node};

const NODES: usize = 4;
const CALLERS: usize = 5;
/// ADD, and mostly a DEL, of a caller.
const ROUNDS: usize = 6;
const SEED: u64 = 20_260_102;
/// Attempts of a request, as a runtime makes them.
const TRIES: usize = 50;

/// One caller: the addresses that it was given and has not released.
async fn caller(store: Rc<dyn Store>, at: usize, name: String) -> BTreeMap<HandleId, IpAddr> {
    let allocator = Allocator::new(store, Rc::new(SystemClock)).with_backoff(Rc::new(NoBackoff));
    let mut rng = Rng::new(SEED + name.bytes().map(u64::from).sum::<u64>());
    let mut owned = BTreeMap::new();
    for round in 0..ROUNDS {
        let handle = HandleId::new(format!("net.{name}-{round}")).unwrap();
        let request = Request::pod(node(&format!("node-{at}")), handle.clone());
        let assigned = until_done(async || allocator.auto_assign(&request).await).await;
        owned.insert(handle.clone(), assigned.addresses[0].addr());
        if rng.below(4) > 0 {
            until_done(async || allocator.release_by_handle(&handle, None).await).await;
            owned.remove(&handle);
        }
    }
    owned
}

async fn until_done<T>(attempt: impl AsyncFn() -> Result<T, IpamError>) -> T {
    let mut last = None;
    for _ in 0..TRIES {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => last = Some(error),
        }
        tokio::task::yield_now().await;
    }
    panic!("not done after {TRIES} attempts: {last:?}");
}

/// Loses answers and requests, and lets requests fail, until it is dropped: one of some 30, however
/// long their callers pause.
async fn trouble(bench: &Bench) {
    let mut rng = Rng::new(SEED);
    let mut due = 0;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let requests = bench.server.seen().len();
        if requests < due {
            continue;
        }
        due = requests + 1 + usize::try_from(rng.below(60)).unwrap();
        match rng.below(4) {
            0 => bench.server.lose_next_write(Fault::Unanswered),
            1 => bench.server.lose_next_write(Fault::Unexecuted),
            2 => bench.server.fail_next(1, 500),
            _ => bench.server.fail_next(1, 504),
        }
    }
}

#[tokio::test]
async fn a_storm_gives_no_address_twice() {
    // kubernetes.md K41, K49, K60 and K61
    eprintln!("seed {SEED}");
    let bench = Bench::new();
    let pool = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"p","creationTimestamp":null},"spec":{"cidr":"10.1.0.0/22","blockSize":28}}"#;
    bench.one(Step::put(russet_model::Key::pool("p").unwrap(), pool)).await.unwrap();
    let local = tokio::task::LocalSet::new();
    let callers: Vec<_> = (0..NODES)
        .flat_map(|at| {
            // One process for each node, with several requests at once.
            let store: Rc<dyn Store> = Rc::new(bench.other());
            (0..CALLERS).map(move |n| (store.clone(), at, format!("{at}-{n}")))
        })
        .map(|(store, at, name)| local.spawn_local(caller(store, at, name)))
        .collect();
    tokio::select! {
        () = local => {}
        () = trouble(&bench) => {}
    }
    let mut owners: BTreeMap<IpAddr, HandleId> = BTreeMap::new();
    for caller in callers {
        for (handle, address) in caller.await.unwrap() {
            let other = owners.insert(address, handle.clone());
            assert_eq!(other, None, "{address} belongs to {handle}, too");
        }
    }
    bench.server.fail_next(0, 500);
    let quiet = Allocator::new(Rc::new(bench.other()), Rc::new(SystemClock));
    for (address, handle) in &owners {
        let holder = quiet.holder_of(*address).await.unwrap().expect("it is allocated");
        assert_eq!(holder.attribute.handle_id.as_deref(), Some(handle.as_str()), "{address}");
    }
    let mut records = bench.other().list(&Prefix::pools()).await.unwrap().records;
    records.extend(bench.other().list(&Prefix::from_stored("/calico/ipam/v2/")).await.unwrap().records);
    let report = audit(&records);
    assert_eq!(report.allocations, owners.len());
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
