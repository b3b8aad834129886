//! The allocator over the simulated store, in atomic and in non-atomic mode. This file is the bench; the cases have files of their own.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use russet_model::IpPoolSpec;
use russet_store::sim::Fault;
use russet_store::{BoxFuture, Claims, CommitError, Sim, Snapshot, Step};
use russet_testkit::forward_store;

use super::*;
use crate::Assigned;

mod damaged;
mod edges;
mod faults;
mod full;
mod limits;
mod memory;
mod operator;
mod pairs;
mod published;
mod races;
mod rules;
mod shared;
mod vectors;
mod vectors_release;

/// The second in which the vectors begin, in nanoseconds: their `S`.
pub(super) const S: u64 = 1_767_322_800_000_000_000;

/// One store, one clock, one allocator.
pub(super) struct Bench {
    pub(super) sim: Sim,
    pub(super) log: Rc<RefCell<Vec<String>>>,
    pub(super) clock: Rc<TestClock>,
    pub(super) ipam: Allocator,
}

pub(super) struct TestClock(Cell<SystemTime>);

/// Writes down what is written.
struct Recorder {
    sim: Sim,
    log: Rc<RefCell<Vec<String>>>,
}

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        self.0.get()
    }
}

impl Store for Recorder {
    forward_store!(self.sim: claims get list watch);

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let lines: Vec<String> = steps.iter().map(line).collect();
            let result = self.sim.commit(steps).await;
            if result.is_ok() {
                self.log.borrow_mut().extend(lines);
            }
            result
        })
    }
}

/// `affinity 10.1.0.16-29 {...}`: the kind, the last segment and the value of a step.
fn line(step: &Step) -> String {
    let kind = match step.key().kind() {
        KeyKind::Block(_) => "block",
        KeyKind::Affinity { .. } => "affinity",
        KeyKind::Handle(_) => "handle",
        _ => "other",
    };
    let name = step.key().as_str().rsplit('/').next().unwrap().to_owned();
    let value = step.value().map_or("deleted".into(), |value| String::from_utf8(value.to_vec()).unwrap());
    format!("{kind} {name} {value}")
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    for _ in 0..1_000_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("the future does not end");
}

pub(super) fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

pub(super) fn handle(name: &str) -> HandleId {
    HandleId::new(format!("k8s-pod-network.{name}")).unwrap()
}

pub(super) fn cidr(text: &str) -> BlockCidr {
    text.parse().unwrap()
}

/// A pod's request as Calico's CNI plugin makes it.
pub(super) fn pod(node_name: &str, id: &str, pod: &str, time: &str) -> Request {
    Request::pod(node(node_name), handle(id))
        .with("namespace", "default")
        .with("pod", pod)
        .with("timestamp", format!("2026-01-02 {time} +0000 UTC"))
}

pub(super) fn texts(assigned: &Assigned) -> Vec<String> {
    assigned.addresses.iter().map(ToString::to_string).collect()
}

// === impl Bench ===

impl Bench {
    pub(super) fn new(sim: Sim) -> Self {
        let log = Rc::new(RefCell::new(Vec::new()));
        let clock = Rc::new(TestClock(Cell::new(UNIX_EPOCH + Duration::from_nanos(S))));
        let store = Rc::new(Recorder { sim: sim.clone(), log: log.clone() });
        let ipam = Allocator::new(store, clock.clone());
        Self { sim, log, clock, ipam }
    }

    /// An empty store of each mode.
    pub(super) fn both() -> [Self; 2] {
        [Self::new(Sim::atomic(1)), Self::new(Sim::non_atomic(1))]
    }

    pub(super) fn atomic(&self) -> bool {
        self.sim.claims().atomic
    }

    /// With the pool of the vectors: 10.1.0.0/24 in /29 blocks.
    pub(super) fn with_pool(self) -> Self {
        self.pool("default-ipv4-ippool", "10.1.0.0/24", 29)
    }

    pub(super) fn pool(self, name: &str, cidr: &str, block_size: u8) -> Self {
        let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
        spec.block_size = Some(block_size);
        self.put(Key::pool(name).unwrap(), IpPool::new(name, spec).encode());
        self
    }

    pub(super) fn config(self, text: &str) -> Self {
        self.put(Key::ipam_config(), text);
        self
    }

    pub(super) fn put(&self, key: Key, value: impl Into<Vec<u8>>) {
        run(self.sim.commit(vec![Step::put(key, value)])).unwrap();
    }

    pub(super) fn put_block(&self, text: &str) {
        self.put(Key::block(Block::decode(text.as_bytes()).unwrap().cidr), text);
    }

    pub(super) fn put_affinity(&self, node_name: &str, block: &str, text: &str) {
        self.put(Key::affinity(&node(node_name), cidr(block)), text);
    }

    pub(super) fn value(&self, key: &Key) -> Option<String> {
        self.sim.records().get(key).map(|record| String::from_utf8(record.value.clone()).unwrap())
    }

    pub(super) fn block_text(&self, block: &str) -> Option<String> {
        self.value(&Key::block(cidr(block)))
    }

    pub(super) fn block(&self, block: &str) -> Block {
        Block::decode(self.block_text(block).unwrap().as_bytes()).unwrap()
    }

    pub(super) fn affinity_text(&self, node_name: &str, block: &str) -> Option<String> {
        self.value(&Key::affinity(&node(node_name), cidr(block)))
    }

    pub(super) fn handle_text(&self, id: &str) -> Option<String> {
        self.value(&Key::handle(&handle(id)))
    }

    pub(super) fn assign(&self, request: &Request) -> Result<Vec<String>, IpamError> {
        run(self.ipam.auto_assign(request)).map(|assigned| texts(&assigned))
    }

    pub(super) fn claim(&self, node_name: &str, block: &str) {
        let claimed = run(self.ipam.claim(&node(node_name), cidr(block))).unwrap();
        assert!(matches!(claimed, claim::Claimed::Ours(_)));
    }

    pub(super) fn release(&self, id: &str) -> crate::Released {
        run(self.ipam.release_by_handle(&handle(id), None)).unwrap()
    }

    pub(super) fn wait(&self, time: Duration) {
        self.clock.0.set(self.clock.0.get() + time);
    }

    pub(super) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.log.borrow_mut())
    }

    /// Checks what must hold in every store that the allocator alone has written: each block keeps its invariants, and each handle counts exactly what
    /// the blocks say.
    pub(super) fn check_consistent(&self) {
        let mut truth = std::collections::BTreeMap::new();
        let records = self.sim.records();
        for record in records.values() {
            if let KeyKind::Block(cidr) = record.key.kind() {
                let block = Block::decode(&record.value).unwrap();
                for ordinal in 0..cidr.size() {
                    if let Some(id) = block.attribute(ordinal).and_then(|owner| owner.handle_id.clone()) {
                        *truth.entry((id, cidr.to_string())).or_insert(0_u64) += 1;
                    }
                }
            }
        }
        let mut counted = std::collections::BTreeMap::new();
        for record in records.values() {
            if let KeyKind::Handle(id) = record.key.kind() {
                let handle = Handle::decode(&record.value).unwrap();
                assert!(!handle.block.is_empty(), "{id} is empty and still there");
                counted
                    .extend(handle.block.into_iter().map(|(block, count)| ((id.to_string(), block), count)));
            }
        }
        assert_eq!(counted, truth);
    }
}
