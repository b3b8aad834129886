//! One lane of a node: a runtime that executes its script, one request at a time. Its memory
//! survives its node's crashes, like a runtime's disk.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use russet_addr::{IfName, IpNet};
use russet_model::{Block, HandleId, Key, KeyKind, Node, NodeSpec};
use russet_store::sim::Rng;
use russet_store::{Sim, Step, Store};

use crate::failure::ViolationKind;
use crate::plan::Op;
use crate::process::{Problem, Process, Wanted};
use crate::wire::Log;
use crate::world::World;

/// A lane on a running node.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) process: Rc<Process>,
    pub(crate) memory: Rc<RefCell<Memory>>,
    pub(crate) world: Rc<RefCell<World>>,
    pub(crate) log: Rc<Log>,
    pub(crate) sim: Sim,
    /// The pool that addresses are pinned in.
    pub(crate) pool: IpNet,
    pub(crate) node_names: Rc<Vec<russet_addr::NodeName>>,
    /// The store has no faults.
    pub(crate) is_healthy: bool,
}

/// A lane's position in its script.
pub(crate) struct Memory {
    pub(crate) script: Vec<Op>,
    next: usize,
    under_way: Option<Op>,
    coin: Rng,
}

/// How often a runtime tries the same ADD before it gives the container up.
const ADD_TRIES: u32 = 3;
/// How often a runtime tries the same DEL before it puts it off.
const DEL_TRIES: u32 = 2;

// === impl Memory ===

impl Memory {
    pub(crate) fn new(script: Vec<Op>, seed: u64) -> Self {
        Self { script, next: 0, under_way: None, coin: Rng::new(seed) }
    }

    fn begin(&mut self) -> Option<Op> {
        let op = self.script.get(self.next)?.clone();
        self.next += 1;
        self.under_way = Some(op.clone());
        Some(op)
    }
}

// === impl Lane ===

impl Lane {
    /// Works until the script is done.
    pub(crate) async fn work(self) {
        let interrupted = self.memory.borrow_mut().under_way.clone();
        if let Some(op) = interrupted {
            self.log.note(&self.name, || format!("is back, was at {op:?}"));
            self.recover(op).await;
        }
        loop {
            let next = self.memory.borrow_mut().begin();
            let Some(op) = next else { return };
            self.log.note(&self.name, || format!("{op:?}"));
            self.perform(op).await;
            self.memory.borrow_mut().under_way = None;
        }
    }

    /// After a crash in the middle of an operation: repeats it, or deletes the container.
    async fn recover(&self, op: Op) {
        match op {
            Op::Add { pod, .. } | Op::Pin { pod, .. } if self.toss() => {
                self.del(pod, None).await;
            }
            Op::ReleaseAffinity { .. } | Op::ReleaseNode | Op::Relabel { .. } if self.toss() => {}
            op => self.perform(op).await,
        }
        self.memory.borrow_mut().under_way = None;
    }

    async fn perform(&self, op: Op) {
        match op {
            Op::Add { pod, interface, v4, v6 } => self.add(pod, interface, v4, v6, None).await,
            Op::Pin { pod, index } => {
                let hosts = u64::from(self.pool.max_prefix_len() - self.pool.prefix_len()).min(16);
                let address = nth(self.pool, index % (1 << hosts));
                self.add(pod, "eth0", 1, 0, Some(address)).await;
            }
            Op::Del { pod, interface } => self.del(pod, interface).await,
            Op::DelAddresses { pod } => {
                let Some((name, handle)) = self.container(pod) else { return };
                self.world.borrow_mut().gone(&name, None);
                self.world.borrow_mut().touch(&name, &handle, self.process.is_go());
                let result = self.process.del_addresses(&handle).await;
                self.tell("del addresses", &name, &result);
            }
            Op::ReleaseAffinity { pick, must_be_empty } => {
                let result = self.process.release_affinity(pick, must_be_empty).await;
                self.tell("release affinity", "", &result);
            }
            Op::ReleaseNode => {
                let result = self.process.release_node().await;
                self.tell("release node", "", &result);
            }
            Op::Relabel { node, zone } => self.relabel(node, zone).await,
        }
    }

    /// Repeats until there is an answer, or the container is deleted.
    async fn add(&self, pod: u32, interface: &'static str, v4: u32, v6: u32, pinned: Option<IpAddr>) {
        let Some((name, handle)) = self.container(pod) else { return };
        let Ok(ifname) = interface.parse::<IfName>() else { return };
        let go = self.process.is_go();
        let mixed = go || self.world.borrow().is_go(handle.as_str());
        if mixed && self.world.borrow().has_any(&name) {
            // There, ADD is not idempotent, and the interfaces of a container share one fate: a DEL, or a failed ADD, of one frees all.
            return;
        }
        let wanted = Wanted { handle, pod: name.clone(), interface: ifname, v4, v6 };
        for _ in 0..ADD_TRIES {
            let is_first = self.world.borrow_mut().touch(&name, &wanted.handle, go);
            let result = match pinned {
                Some(address) => self.process.pin(&wanted, address).await,
                None => self.process.add(&wanted).await,
            };
            self.tell("add", &name, &result);
            match result {
                Ok(addresses) => {
                    self.log.answered.set(true);
                    return self.world.borrow_mut().added(&name, interface, addresses);
                }
                Err(_) => self.world.borrow_mut().stats.failed_adds += 1,
            }
            if is_first && self.is_healthy && !go {
                self.check_given_back(&name, &wanted.handle);
            }
            if self.world.borrow().is_live(&name, interface) {
                return; // a repetition that failed takes nothing away
            }
            if self.toss() {
                break;
            }
        }
        self.del(pod, Some(interface)).await;
    }

    async fn del(&self, pod: u32, interface: Option<&'static str>) {
        let Some((name, handle)) = self.container(pod) else { return };
        let go = self.process.is_go();
        // The Go plugin frees all of a handle, whichever interface it is called for.
        let interface = interface.filter(|_| !go && !self.world.borrow().is_go(handle.as_str()));
        let ifname = interface.and_then(|name| name.parse::<IfName>().ok());
        self.world.borrow_mut().gone(&name, interface);
        for _ in 0..DEL_TRIES {
            self.world.borrow_mut().touch(&name, &handle, go);
            let result = self.process.del(&handle, ifname.as_ref()).await;
            self.tell("del", &name, &result);
            let stats = &mut self.world.borrow_mut().stats;
            match result {
                Ok(()) => {
                    stats.dels += 1;
                    return;
                }
                Err(_) => stats.failed_dels += 1,
            }
        }
    }

    /// With a healthy store, an ADD that failed has released its addresses (ARCHITECTURE.md,
    /// invariant 2).
    fn check_given_back(&self, name: &str, handle: &HandleId) {
        for record in
            self.sim.records().values().filter(|record| matches!(record.key.kind(), KeyKind::Block(_)))
        {
            let held = Block::decode(&record.value).map_or(0, |block| block.ordinals_of(handle).count());
            if held > 0 {
                let text = format!("the failed ADD of {name} left {held} addresses in {}", record.key);
                self.world.borrow_mut().complain(ViolationKind::Leak, text);
            }
        }
    }

    /// An operator writes the node's record anew.
    async fn relabel(&self, node: usize, zone: &'static str) {
        if let Some(name) = self.node_names.get(node)
            && let Err(error) = self.sim.commit(vec![node_record(name, zone)]).await
        {
            self.log.note(&self.name, || format!("relabel: {error}"));
        }
    }

    fn container(&self, pod: u32) -> Option<(String, HandleId)> {
        let name = format!("{}-{pod}", self.name.replace('/', "-"));
        let handle = HandleId::new(format!("net.{name}")).ok()?;
        Some((name, handle))
    }

    fn toss(&self) -> bool {
        self.memory.borrow_mut().coin.below(2) == 0
    }

    fn tell<T: std::fmt::Debug>(&self, what: &str, whom: &str, result: &Result<T, Problem>) {
        self.log.note(&self.name, || match result {
            Ok(value) => format!("{what} {whom} -> {value:?}"),
            Err(problem) => format!("{what} {whom} failed: {problem}"),
        });
    }
}

/// The step that writes a node's record, with its zone.
pub(crate) fn node_record(name: &russet_addr::NodeName, zone: &str) -> Step {
    let mut node = Node::new(name.to_string(), NodeSpec::default());
    node.metadata.labels.insert("zone".into(), zone.into());
    Step::put(Key::node(name), node.encode())
}

/// The `index`-th address of a prefix.
fn nth(net: IpNet, index: u64) -> IpAddr {
    match net.network() {
        IpAddr::V4(base) => IpAddr::V4((u32::from(base).wrapping_add(index as u32)).into()),
        IpAddr::V6(base) => IpAddr::V6((u128::from(base).wrapping_add(u128::from(index))).into()),
    }
}
