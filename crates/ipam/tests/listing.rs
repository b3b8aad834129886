//! What an ADD may list: the agent of a cluster with 10,000 blocks (200 MB) must not read all of
//! them to assign one address.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends where it stands")]

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use russet_ipam::{Allocator, Request, SystemClock};
use russet_model::{HandleId, IpPool, IpPoolSpec, Key, Prefix};
use russet_store::{BoxFuture, Record, Revision, Sim, Snapshot, Store, StoreError, Watch};
use russet_testkit::forward_store;

/// A store that records what is listed with values, and what by key only.
struct Counting {
    sim: Sim,
    listed: RefCell<Vec<Prefix>>,
    keys: RefCell<Vec<Prefix>>,
}

impl Store for Counting {
    forward_store!(self.sim: claims get commit);

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.listed.borrow_mut().push(prefix.clone());
        self.sim.list(prefix)
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        self.listed.borrow_mut().push(prefix.clone());
        self.sim.scan(prefix, take)
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        self.keys.borrow_mut().push(prefix.clone());
        self.sim.keys(prefix)
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        self.listed.borrow_mut().push(prefix.clone());
        self.sim.watch(prefix)
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// A pool of 16 blocks of 4 addresses, some of which another node has.
fn store(sim: Sim) -> Rc<Counting> {
    let ipam = Allocator::new(Rc::new(sim.clone()), Rc::new(SystemClock));
    let mut spec = IpPoolSpec::new("10.1.0.0/26".parse().unwrap());
    spec.block_size = Some(30);
    run(ipam.create_pool(IpPool::new("p", spec))).unwrap();
    (0..6).for_each(|n| add(&ipam, "other", n));
    Rc::new(Counting { sim, listed: RefCell::default(), keys: RefCell::default() })
}

#[track_caller]
fn add(ipam: &Allocator, node: &str, n: u32) {
    let handle = HandleId::new(format!("net.{node}-{n}")).unwrap();
    let request = Request::pod(node.parse().unwrap(), handle);
    assert_eq!(run(ipam.auto_assign(&request)).unwrap().addresses.len(), 1);
}

/// Whether some block is under the prefix.
fn covers_blocks(prefix: &Prefix) -> bool {
    let blocks = Prefix::blocks(None);
    prefix.as_str().starts_with(blocks.as_str()) || blocks.as_str().starts_with(prefix.as_str())
}

// The agent never lists all blocks on an ADD.

#[test]
fn an_add_lists_no_block_values() {
    for sim in [Sim::atomic, Sim::non_atomic] {
        for remembers in [false, true] {
            let store = store(sim(1));
            let node = if remembers { "agent" } else { "plugin" };
            let ipam = Allocator::new(store.clone(), Rc::new(SystemClock));
            let ipam = if remembers { ipam.with_cache(Duration::from_secs(600)) } else { ipam };
            // The first and the fifth claim a block; the others find room.
            (0..5).for_each(|n| add(&ipam, node, n));
            let listed = store.listed.borrow();
            assert!(!listed.iter().any(covers_blocks), "{listed:?}");
            let keys = store.keys.borrow();
            assert_eq!(
                *keys,
                [Prefix::blocks(Some(russet_addr::Family::V4)), keys[0].clone()],
                "once a claim"
            );
        }
    }
}

#[test]
fn blocks_are_read_when_no_free_range_is_left() {
    // calico-ipam.md section 3.5: at last an empty block of another node, or a borrowed address.
    let store = store(Sim::atomic(1));
    let ipam = Allocator::new(store.clone(), Rc::new(SystemClock));
    (0..56).for_each(|n| add(&ipam, "greedy", n));
    assert!(!store.listed.borrow().iter().any(covers_blocks));
    add(&ipam, "greedy", 56);
    assert!(store.listed.borrow().iter().any(covers_blocks));
}
