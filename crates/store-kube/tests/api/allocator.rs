//! The allocator on this store: which records and which requests it makes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use russet_ipam::{Allocator, Clock, IpamError, Request, SystemClock};
use russet_kube::testing::Fault;
use russet_model::{Block, HandleId, Prefix};
use russet_store::Store;
use russet_store_kube::{Group, KubeStore};
use serde_json::json;

use crate::bench::{Bench, node};

fn id(text: &str) -> HandleId {
    HandleId::new(text).unwrap()
}

fn allocator(bench: &Bench) -> Allocator {
    Allocator::new(Rc::new(bench.store.clone()), Rc::new(SystemClock))
}

fn pool(bench: &Bench) {
    bench.server.put(serde_json::json!({ "apiVersion": format!("{}/v1", bench.group), "kind": "IPPool", "metadata": { "name": "p" },
        "spec": { "cidr": "10.1.0.0/24", "blockSize": 26 } }));
}

fn counts(bench: &Bench, handle: &str) -> Option<u64> {
    let object = bench.object("IPAMHandle", handle)?;
    object["spec"]["block"].as_object().unwrap().values().next()?.as_u64()
}

#[tokio::test]
async fn of_two_handles_that_differ_in_case_the_release_of_one_keeps_the_other() {
    // kubernetes.md K27, section 1.3
    let bench = Bench::new();
    pool(&bench);
    let ipam = allocator(&bench);
    for handle in ["net.ABC", "net.abc"] {
        ipam.auto_assign(&Request::pod(node("node-a"), id(handle))).await.unwrap();
    }
    assert_eq!(counts(&bench, "net.abc"), Some(2));
    assert_eq!(ipam.release_by_handle(&id("net.ABC"), None).await.unwrap().addresses.len(), 1);
    assert_eq!(counts(&bench, "net.abc"), Some(1), "it is the other's");
    assert!(ipam.release_by_handle(&id("net.ABC"), None).await.unwrap().addresses.is_empty());
    assert_eq!(counts(&bench, "net.abc"), Some(1));
    assert_eq!(ipam.ips_by_handle(&id("net.abc")).await.unwrap().len(), 1);
    assert_eq!(ipam.release_by_handle(&id("net.abc"), None).await.unwrap().addresses.len(), 1);
    assert!(bench.object("IPAMHandle", "net.abc").is_none());
}

/// An allocator with a cache that has assigned an address of a block before.
async fn warm(bench: &Bench) -> Allocator {
    pool(bench);
    let ipam = allocator(bench).with_cache(Duration::from_secs(3600));
    ipam.auto_assign(&Request::pod(node("node-a"), id("net.first"))).await.unwrap();
    ipam
}

fn block_of(requests: &[String]) -> String {
    let path = requests.iter().find_map(|request| request.strip_prefix("PUT ipamblocks/"));
    path.unwrap_or_default().to_owned()
}

async fn addresses(ipam: &Allocator, handles: &[HandleId]) -> BTreeSet<IpAddr> {
    let requests: Vec<Request> = handles.iter().map(|id| Request::pod(node("node-a"), id.clone())).collect();
    let assigned = join(requests.iter().map(|request| ipam.auto_assign(request))).await;
    assigned.into_iter().map(|assigned| assigned.unwrap().addresses[0].addr()).collect()
}

/// The results of futures that run at the same time.
pub async fn join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in pending.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                *output = Some(done);
            }
        }
        if pending.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test]
async fn an_add_is_a_handle_and_a_block_and_a_del_a_block_and_a_handle() {
    // kubernetes.md K40 and K43, section 4.3: beside these, the pod's annotations
    let bench = Bench::new();
    let ipam = warm(&bench).await;
    let since = bench.server.seen().len();
    ipam.auto_assign(&Request::pod(node("node-a"), id("net.a"))).await.unwrap();
    let sent = bench.requests(since);
    let block = block_of(&sent);
    assert_eq!(sent, ["POST ipamhandles", &format!("PUT ipamblocks/{block}")]);
    let since = bench.server.seen().len();
    assert_eq!(ipam.release_by_handle(&id("net.a"), None).await.unwrap().addresses.len(), 1);
    assert_eq!(
        bench.requests(since),
        [format!("PUT ipamblocks/{block}"), "DELETE ipamhandles/net.a".to_owned()]
    );
}

#[tokio::test]
async fn adds_at_once_share_the_write_of_the_block() {
    // kubernetes.md K41
    let bench = Bench::new();
    let ipam = warm(&bench).await;
    let since = bench.server.seen().len();
    let handles: Vec<HandleId> = (0..16).map(|n| id(&format!("net.{n}"))).collect();
    assert_eq!(addresses(&ipam, &handles).await.len(), 16, "16 different addresses");
    let sent = bench.requests(since);
    let count = |verb: &str| sent.iter().filter(|request| request.starts_with(verb)).count();
    assert_eq!((count("POST ipamhandles"), count("GET")), (16, 0), "{sent:?}");
    assert!(count("PUT ipamblocks") <= 3, "{sent:?}");
    let since = bench.server.seen().len();
    join(handles.iter().map(|id| ipam.release_by_handle(id, None)))
        .await
        .into_iter()
        .for_each(|done| drop(done.unwrap()));
    let sent = bench.requests(since);
    let count = |verb: &str| sent.iter().filter(|request| request.starts_with(verb)).count();
    assert_eq!((count("DELETE ipamhandles"), count("GET")), (16, 0), "{sent:?}");
    assert!(count("PUT ipamblocks") <= 3, "{sent:?}");
}

/// The records after an ADD with faults: one address, whose handle counts it once.
async fn assert_one(bench: &Bench, ipam: &Allocator, handle: &HandleId, answered: IpAddr) {
    let held = ipam.ips_by_handle(handle).await.unwrap();
    assert!(matches!(&held[..], [one] if one.address == answered), "{held:?}, answered: {answered}");
    assert_eq!(counts(bench, handle.as_str()), Some(1));
}

#[tokio::test]
async fn a_lost_answer_of_a_write_gives_no_second_address() {
    // kubernetes.md K60 and K61
    for lost in 0..2 {
        for fault in [Fault::Unanswered, Fault::Unexecuted] {
            let bench = Bench::new();
            let ipam = warm(&bench).await;
            (0..lost).for_each(|_| bench.server.lose_next_write(Fault::None));
            bench.server.lose_next_write(fault);
            let assigned = addresses(&ipam, &[id("net.a")]).await.pop_first().unwrap();
            assert_one(&bench, &ipam, &id("net.a"), assigned).await;
        }
    }
}

#[tokio::test]
async fn a_block_that_others_change_is_read_again_and_nothing_else_is_listed() {
    // kubernetes.md K64
    let bench = Bench::new();
    let ipam = warm(&bench).await;
    for n in 0..5 {
        let handle = id(&format!("net.{n}"));
        let mut block = bench.server.objects(&format!("IPAMBlock.{}", bench.group)).pop().unwrap();
        block["spec"]["sequenceNumber"] = (block["spec"]["sequenceNumber"].as_u64().unwrap() + 1).into();
        bench.server.put(block);
        let since = bench.server.seen().len();
        let assigned = addresses(&ipam, std::slice::from_ref(&handle)).await.pop_first().unwrap();
        assert_one(&bench, &ipam, &handle, assigned).await;
        let lists = bench.requests(since).iter().filter(|request| !request.contains('/')).count();
        assert_eq!(lists, 1, "the handle's POST is the only request of a collection");
    }
}

#[tokio::test]
async fn a_block_that_changes_before_each_write_costs_a_read_each_time_and_leaks_nothing() {
    // kubernetes.md K64
    let bench = Bench::new();
    let ipam = warm(&bench).await;
    let since = bench.server.seen().len();
    bench.server.overtake_next("ipamblocks", 5);
    let assigned = addresses(&ipam, &[id("net.a")]).await.pop_first().unwrap();
    assert_one(&bench, &ipam, &id("net.a"), assigned).await;
    let sent = bench.requests(since);
    let count = |verb: &str| sent.iter().filter(|request| request.starts_with(verb)).count();
    assert!(count("PUT ipamblocks") > 5 && count("GET ipamblocks") >= 5, "{sent:?}");
    bench.server.overtake_next("ipamblocks", usize::MAX);
    let error = ipam.auto_assign(&Request::pod(node("node-a"), id("net.b"))).await.unwrap_err();
    assert!(error.retryable(), "code 11: {error}");
    bench.server.overtake_next("ipamblocks", 0);
    assert!(ipam.ips_by_handle(&id("net.b")).await.unwrap().is_empty());
    // The runtime sends a DEL after an ADD that failed.
    assert!(ipam.release_by_handle(&id("net.b"), None).await.unwrap().addresses.is_empty());
    assert!(bench.object("IPAMHandle", "net.b").is_none(), "its handle is gone");
}

/// Begins an operation, and drops it when the server has executed `count` of its writes, as the end of
/// its process would. Returns whether it was done before that.
async fn cut_off(bench: &Bench, count: usize, operation: impl Future) -> bool {
    bench.server.silence_after_writes(count);
    let executed = async {
        while bench.server.writes_left() != Some(0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let is_done = tokio::select! {
        biased;
        _ = operation => true,
        () = executed => false,
    };
    bench.server.speak();
    is_done
}

#[tokio::test]
async fn a_process_that_dies_after_any_write_leaves_what_the_next_one_completes() {
    // kubernetes.md K50
    let mut steps = 0;
    for is_cold in [true, false] {
        for executed in 1.. {
            let bench = Bench::new();
            if is_cold {
                pool(&bench)
            } else {
                drop(warm(&bench).await)
            }
            let dying = allocator(&bench);
            let request = Request::pod(node("node-a"), id("net.a"));
            let is_done = cut_off(&bench, executed, dying.auto_assign(&request)).await;
            drop(dying);
            let next = Allocator::new(Rc::new(bench.other()), Rc::new(SystemClock));
            let again = next.auto_assign(&request).await.unwrap();
            // The handle may count too many until the DEL, as that of a peer that died there.
            let held = next.ips_by_handle(&id("net.a")).await.unwrap();
            assert!(matches!(&held[..], [one] if one.address == again.addresses[0].addr()), "{held:?}");
            let is_deleted =
                cut_off(&bench, executed, allocator(&bench).release_by_handle(&id("net.a"), None)).await;
            next.release_by_handle(&id("net.a"), None).await.unwrap();
            assert!(next.ips_by_handle(&id("net.a")).await.unwrap().is_empty());
            assert!(bench.object("IPAMHandle", "net.a").is_none(), "after {executed} writes");
            let others = bench.server.objects(&format!("IPAMHandle.{}", bench.group)).len();
            assert_eq!(others, usize::from(!is_cold), "after {executed} writes");
            if is_done && is_deleted {
                break;
            }
            steps += 1;
        }
    }
    assert!(steps >= 6, "a claim has four writes more than an address: {steps}");
}

#[tokio::test]
async fn a_pool_that_is_disabled_or_terminates_gives_no_more_addresses_and_takes_its_own_back() {
    // kubernetes.md K53
    let disabled = (Group::V1, json!({ "spec": { "disabled": true } }));
    let condition = json!({ "type": "Allocatable", "status": "False", "reason": "Terminating", "message": "it is being deleted" });
    let terminating = (Group::V3, json!({ "status": { "conditions": [condition] } }));
    for (group, change) in [disabled, terminating] {
        let bench = Bench::with(group, |settings| settings);
        let version = if group == Group::V1 { "v1" } else { "v3" };
        let mut pool = json!({ "apiVersion": format!("{}/{version}", bench.group), "kind": "IPPool", "metadata": { "name": "p" },
            "spec": { "cidr": "10.1.0.0/24", "blockSize": 26 } });
        bench.server.put(pool.clone());
        let ipam = allocator(&bench).with_cache(Duration::from_secs(3600));
        let add = async |handle: &str| ipam.auto_assign(&Request::pod(node("node-a"), id(handle))).await;
        add("net.first").await.unwrap();
        for (member, value) in change.as_object().unwrap() {
            match pool[member].as_object_mut() {
                Some(known) => known.extend(value.as_object().unwrap().clone()),
                None => pool[member] = value.clone(),
            }
        }
        bench.server.put(pool);
        // The pool was chosen before, and nothing guards it at the write.
        add("net.chosen").await.unwrap();
        // The agent's watch of pools has the change.
        ipam.forget();
        let refused = add("net.next").await.unwrap_err();
        assert!(matches!(refused, IpamError::NoPool { .. }), "{group:?}: {refused}");
        assert!(bench.object("IPAMHandle", "net.next").is_none(), "{group:?}");
        for handle in ["net.first", "net.chosen"] {
            let released = ipam.release_by_handle(&id(handle), None).await.unwrap();
            assert_eq!(released.addresses.len(), 1, "{group:?}: {handle}");
            assert!(bench.object("IPAMHandle", handle).is_none(), "{group:?}: {handle}");
        }
    }
}

/// A machine's clock that is wrong: seconds ahead, or behind if negative.
struct WrongClock(i64);

impl Clock for WrongClock {
    fn now(&self) -> SystemTime {
        let by = Duration::from_secs(self.0.unsigned_abs());
        if self.0 < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }
}

#[tokio::test]
async fn clocks_that_are_an_hour_off_change_nothing_in_who_gets_an_address() {
    // kubernetes.md K79; tokens are read from their file by each request: K72
    const HOUR: i64 = 3600;
    let bench = Bench::new();
    pool(&bench);
    let at = |store: KubeStore, seconds: i64| {
        Allocator::new(Rc::new(store), Rc::new(WrongClock(seconds))).with_cache(Duration::from_secs(3600))
    };
    // Two processes of one node, which share its block.
    let (early, late) = (at(bench.store.clone(), -HOUR), at(bench.other(), HOUR));
    let handles: Vec<HandleId> = (0..16).map(|n| id(&format!("net.{n}"))).collect();
    let mut all = BTreeSet::new();
    for (index, handles) in handles.chunks(2).enumerate() {
        let (first, second) = if index % 2 == 0 { (&early, &late) } else { (&late, &early) };
        all.extend(addresses(first, &handles[..1]).await);
        all.extend(addresses(second, &handles[1..]).await);
    }
    assert_eq!(all.len(), handles.len(), "each address once");
    // Each releases what the other has assigned, and what is free is given again.
    for (index, handle) in handles.iter().enumerate() {
        let ipam = if index % 2 == 0 { &late } else { &early };
        assert_eq!(ipam.release_by_handle(handle, None).await.unwrap().addresses.len(), 1, "{handle}");
    }
    let block = bench.store.list(&Prefix::blocks(None)).await.unwrap().records.remove(0);
    let block = Block::decode(&block.value).unwrap();
    assert_eq!(block.unallocated.len(), 64, "{block:?}");
    assert_eq!(addresses(&early, &handles[..8]).await.len(), 8);
    assert_eq!(addresses(&late, &handles[8..]).await.len(), 8);
}
