//! Whole rounds with a simulated store and a model of the machine: containers are added, die and
//! are deleted, the store fails and loses answers, in random order. No running pod may lose its
//! address, and in the end no leak is left.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use russet_ipam::Request;
use russet_model::{Block, Key, KeyKind, time};
use russet_store::sim::{Fault, Faults, Rng};
use russet_store::{Sim, Step};
use tokio::sync::{Mutex, RwLock};

use super::*;

const GRACE: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(3600);
const CONTAINERS: usize = 5;
const LIVES: u64 = 12;
const SEEDS: u64 = 20;
const FAULTS: Faults = Faults {
    conflict: 20,
    lost_reply: 20,
    lost_request: 20,
    unavailable: 20,
    delayed_event: 0,
    compaction: 0,
};

struct World {
    sim: Sim,
    allocator: Rc<Allocator>,
    /// A plugin in another process, with its own cache.
    peer: Allocator,
    now: Rc<Cell<SystemTime>>,
    rng: RefCell<Rng>,
    /// Containers with an interface: the address, and whether Russet wired it. A Go peer's link has
    /// no owner; its route is the evidence.
    live: Rc<RefCell<BTreeMap<String, (std::net::IpAddr, bool)>>>,
    everyone: RwLock<()>,
    containers: Vec<Mutex<()>>,
    requested: RefCell<BTreeSet<String>>,
    /// Containers between the first step of their IPAM plugin and their wiring, with a foreign main
    /// plugin.
    unwired: RefCell<BTreeSet<u64>>,
    released: Cell<usize>,
}

struct TestClock(Rc<Cell<SystemTime>>);

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        self.0.get()
    }
}

async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl World {
    fn new(seed: u64, atomic: bool) -> Rc<Self> {
        let sim = if atomic { Sim::atomic(seed) } else { Sim::non_atomic(seed) };
        let now = Rc::new(Cell::new(time::parse_rfc3339("2026-01-02T03:00:00Z").unwrap()));
        let put = |key: &str, value: &str| Step::create(Key::from_stored(key), value.as_bytes().to_vec());
        let v3 = "/calico/resources/v3/projectcalico.org";
        let steps = vec![
            put(
                &format!("{v3}/ippools/p"),
                r#"{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/26","blockSize":29}}"#,
            ),
            put(&format!("{v3}/nodes/node-a"), r#"{"kind":"Node","metadata":{"name":"node-a"},"spec":{}}"#),
        ];
        run_to_end(sim.commit(steps)).unwrap();
        let allocator = || Allocator::new(Rc::new(sim.clone()), Rc::new(TestClock(now.clone())));
        Rc::new(Self {
            allocator: Rc::new(allocator().with_cache(Duration::from_secs(1))),
            peer: allocator(),
            sim,
            now,
            rng: RefCell::new(Rng::new(seed ^ 0x5eed)),
            live: Rc::default(),
            everyone: RwLock::new(()),
            containers: (0..CONTAINERS).map(|_| Mutex::new(())).collect(),
            requested: RefCell::default(),
            unwired: RefCell::default(),
            released: Cell::new(0),
        })
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    fn finder(&self) -> LeakFinder {
        let live = Rc::clone(&self.live);
        let read_machine: MachineReader = Rc::new(move || {
            let live = Rc::clone(&live);
            Box::pin(async move {
                pause().await;
                let mut machine = Machine::default();
                for (container, (address, ours)) in live.borrow().iter() {
                    machine.routes.insert(*address);
                    if *ours {
                        let id = format!("net/{container}/eth0").parse().unwrap();
                        machine.links.push(russet_attach::Owner::new(&id));
                    }
                }
                pause().await;
                Ok(machine)
            })
        });
        LeakFinder {
            node: "node-a".parse().unwrap(),
            store: Rc::new(self.sim.clone()),
            allocator: Rc::clone(&self.allocator),
            clock: Rc::new(TestClock(self.now.clone())),
            read_machine,
        }
    }

    /// Checks that every running pod's address is allocated to it.
    fn check(&self, seed: u64) {
        let records = self.sim.records();
        let blocks: Vec<Block> = records
            .iter()
            .filter(|(key, _)| matches!(key.kind(), KeyKind::Block(_)))
            .map(|(_, record)| Block::decode(&record.value).unwrap())
            .collect();
        for (container, (address, _)) in self.live.borrow().iter() {
            let owner = blocks.iter().find_map(|block| block.attribute(block.cidr.ordinal(*address)?));
            let handle = owner.and_then(|owner| owner.handle_id.clone());
            let wanted = format!("net.{container}");
            assert_eq!(
                handle,
                Some(wanted),
                "seed {seed}: {address} of live {container} in\n{}",
                self.sim.dump()
            );
        }
    }

    fn entries(&self) -> Vec<String> {
        let records = self.sim.records();
        let blocks = records.iter().filter(|(key, _)| matches!(key.kind(), KeyKind::Block(_)));
        let blocks = blocks.map(|(_, record)| Block::decode(&record.value).unwrap());
        let taken = |block: Block| {
            let taken = (0..block.cidr.size()).filter(|ordinal| block.attribute(*ordinal).is_some());
            taken.map(|ordinal| block.cidr.address(ordinal).unwrap().to_string()).collect::<Vec<_>>()
        };
        blocks.flat_map(taken).collect()
    }
}

/// Adds and deletes one container repeatedly, by our plugin in the agent or by a Go peer, sometimes
/// twice, sometimes killed between allocation and wiring, sometimes never released.
async fn container(world: Rc<World>, index: usize) {
    let mut id = format!("c{index}x0");
    for life in 0..LIVES {
        let ours = index % 3 != 2;
        add(&world, index, &id, ours).await;
        for _ in 0..world.below(20) {
            pause().await;
        }
        match world.below(4) {
            // It is added again, as after a lost answer: it has its old address, and nothing is
            // written.
            0 => add(&world, index, &id, ours).await,
            // Its processes die, and no DEL follows: the interface is gone.
            1 => _ = world.live.borrow_mut().remove(&id),
            _ => del(&world, index, &id).await,
        }
        for _ in 0..world.below(200) {
            pause().await;
        }
        // The next one may be the same container again, even much later.
        if world.below(2) > 0 {
            world.live.borrow_mut().remove(&id);
            id = format!("c{index}x{}", life + 1);
        }
    }
}

async fn add(world: &Rc<World>, index: usize, id: &str, ours: bool) {
    world.requested.borrow_mut().insert(id.to_owned());
    let token = world.below(u64::MAX);
    world.unwired.borrow_mut().insert(token);
    let mut round_lock = Some((world.everyone.read().await, world.containers[index].lock().await));
    let request = Request::pod("node-a".parse().unwrap(), format!("net.{id}").parse().unwrap());
    let (request, allocator) = if ours {
        (request.with("interface", "eth0"), &*world.allocator)
    } else {
        (request.with("namespace", "default").with("pod", "web-0"), &world.peer)
    };
    let assigned = allocator.auto_assign(&request).await;
    if index % 2 == 1 {
        // An IPAM plugin has answered; a foreign main plugin does the wiring.
        drop(round_lock.take());
        world.requested.borrow_mut().insert(id.to_owned());
    }
    for _ in 0..world.below(40) {
        pause().await;
    }
    // Or it is killed here: the address is allocated, nothing is wired.
    if world.below(4) > 0
        && let Ok(assigned) = assigned
    {
        world.live.borrow_mut().insert(id.to_owned(), (assigned.addresses[0].addr(), ours));
    }
    world.requested.borrow_mut().insert(id.to_owned());
    world.unwired.borrow_mut().remove(&token);
}

async fn del(world: &Rc<World>, index: usize, id: &str) {
    world.requested.borrow_mut().insert(id.to_owned());
    let _shared = world.everyone.read().await;
    let _container = world.containers[index].lock().await;
    world.live.borrow_mut().remove(id);
    // If the store fails, the runtime gives up, and the address is leaked.
    let _ = world.allocator.release_by_handle(&format!("net.{id}").parse().unwrap(), None).await;
}

/// Rounds like those of the agent.
async fn repairs(world: Rc<World>, rounds: usize) {
    for _ in 0..rounds {
        if let Err(error) = round(&world).await {
            assert!(error.to_string().contains("simulated"), "{error}");
        }
        for _ in 0..world.below(30) {
            pause().await;
        }
    }
}

async fn round(world: &Rc<World>) -> Result<(), RepairError> {
    let options = Options { grace: GRACE, dry_run: false };
    world.requested.borrow_mut().clear();
    let unwired = world.unwired.borrow().clone();
    let finder = world.finder();
    let first = finder.check(Reach::Everything, GRACE).await?;
    world.now.set(world.now.get() + GRACE + Duration::from_secs(1));
    // The grace period is longer than any runtime takes.
    while world.unwired.borrow().intersection(&unwired).next().is_some() {
        pause().await;
    }
    for _ in 0..world.below(20) {
        pause().await;
    }
    let residues = finder.residues_again(&first).await?;
    finder.conclude_handles(&first, residues, options).await;
    let _alone = world.everyone.write().await;
    let requested = world.requested.borrow().clone();
    let findings = finder.conclude(Reach::Everything, &first, &requested, options, TIMEOUT).await?;
    let released = findings.iter().filter(|finding| finding.outcome == Outcome::Released).count();
    world.released.set(world.released.get() + released);
    Ok(())
}

/// Polls tasks in random order until all are done.
fn drive(world: &World, seed: u64, tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
    let mut context = Context::from_waker(Waker::noop());
    let mut tasks = tasks;
    let mut steps = 0;
    while !tasks.is_empty() {
        let index = usize::try_from(world.below(tasks.len() as u64)).unwrap();
        if tasks[index].as_mut().poll(&mut context).is_ready() {
            drop(tasks.swap_remove(index));
        }
        steps += 1;
        // Pods live for dozens of steps.
        if steps % 5 == 0 {
            world.check(seed);
        }
        assert!(steps < 200_000, "seed {seed}: it does not come to an end");
    }
}

fn run_to_end<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn run(seed: u64, atomic: bool) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _timers = runtime.enter();
    let world = World::new(seed, atomic);
    world.sim.set_faults(FAULTS);
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for index in 0..CONTAINERS {
        tasks.push(Box::pin(container(Rc::clone(&world), index)));
    }
    tasks.push(Box::pin(repairs(Rc::clone(&world), 60)));
    drive(&world, seed, tasks);
    world.sim.set_faults(Faults::default());
    // After two quiet rounds (the second one for entries that were too young in the first), only
    // addresses in use are left.
    for _ in 0..2 {
        world.now.set(world.now.get() + GRACE);
        drive(&world, seed, vec![Box::pin(repairs(Rc::clone(&world), 1))]);
    }
    let mut live: Vec<String> =
        world.live.borrow().values().map(|(address, _)| address.to_string()).collect();
    live.sort();
    let mut held = world.entries();
    held.sort();
    held.dedup();
    let leaked: Vec<&String> = held.iter().filter(|address| !live.contains(address)).collect();
    // A running container may have a second address, from an ADD whose answer was lost: its DEL
    // releases it.
    let of_the_living = |address: &String| {
        let records = world.sim.records();
        let blocks = records.iter().filter(|(key, _)| matches!(key.kind(), KeyKind::Block(_)));
        blocks.map(|(_, record)| Block::decode(&record.value).unwrap()).any(|block| {
            let owner =
                block.cidr.ordinal(address.parse().unwrap()).and_then(|ordinal| block.attribute(ordinal));
            let handle = owner.and_then(|owner| owner.handle_id.as_deref());
            handle.is_some_and(|handle| world.live.borrow().contains_key(handle.trim_start_matches("net.")))
        })
    };
    assert!(
        leaked.iter().all(|address| of_the_living(address)),
        "seed {seed}: {leaked:?}\n{}",
        world.sim.dump()
    );
    world.released.get()
}

#[test]
fn no_running_pod_loses_its_address_and_no_leak_is_left() {
    // calico#5044, #12257: the result of one check of one source
    let released: usize = (0..SEEDS).map(|seed| run(seed, true)).sum();
    assert!(
        released > usize::try_from(SEEDS).unwrap(),
        "{released} leaks in all: the test does not make any"
    );
}

#[test]
fn the_same_holds_where_handle_and_block_are_written_one_after_the_other() {
    let released: usize = (0..SEEDS).map(|seed| run(seed, false)).sum();
    assert!(
        released > usize::try_from(SEEDS).unwrap(),
        "{released} leaks in all: the test does not make any"
    );
}

/// A store with one old leak, and the finder.
fn store_with_one_leak() -> (Rc<World>, LeakFinder) {
    let world = World::new(1, true);
    let request =
        Request::pod("node-a".parse().unwrap(), "net.c1".parse().unwrap()).with("interface", "eth0");
    run_to_end(world.allocator.auto_assign(&request)).unwrap();
    world.now.set(world.now.get() + GRACE);
    let finder = world.finder();
    (world, finder)
}

fn both_checks(
    world: &World,
    finder: &LeakFinder,
    between: impl FnOnce(&World),
) -> Result<Vec<Finding>, RepairError> {
    let options = Options { grace: GRACE, dry_run: false };
    let first = run_to_end(finder.check(Reach::OwnBlocks, GRACE))?;
    assert_eq!(first.leaks.len(), 1);
    between(world);
    run_to_end(finder.conclude(Reach::OwnBlocks, &first, &BTreeSet::new(), options, TIMEOUT))
}

fn put_node(world: &World, spec: &str) {
    let key = Key::node(&"node-a".parse().unwrap());
    let node = format!(r#"{{"kind":"Node","metadata":{{"name":"node-a"}},"spec":{spec}}}"#);
    run_to_end(world.sim.commit(vec![Step::put(key, node.into_bytes())])).unwrap();
}

#[test]
fn a_leak_that_both_checks_find_is_released() {
    let (world, finder) = store_with_one_leak();
    let findings = both_checks(&world, &finder, |_| {}).unwrap();
    assert_eq!(findings.iter().map(|it| &it.outcome).collect::<Vec<_>>(), [&Outcome::Released]);
    assert!(world.entries().is_empty());
}

#[test]
fn after_a_failed_release_the_others_are_left_to_another_round() {
    let (world, finder) = store_with_one_leak();
    let request = |handle: &str| {
        Request::pod("node-a".parse().unwrap(), handle.parse().unwrap()).with("interface", "eth0")
    };
    for handle in ["net.c2", "net.c3"] {
        run_to_end(world.allocator.auto_assign(&request(handle))).unwrap();
    }
    world.now.set(world.now.get() + GRACE);
    let options = Options { grace: GRACE, dry_run: false };
    let first = run_to_end(finder.check(Reach::OwnBlocks, GRACE)).unwrap();
    world.sim.script([Fault::Unavailable; 64]);
    let requested = BTreeSet::new();
    let findings =
        run_to_end(finder.conclude(Reach::OwnBlocks, &first, &requested, options, TIMEOUT)).unwrap();
    let outcomes: Vec<_> = findings.iter().map(|it| &it.outcome).collect();
    assert!(
        matches!(outcomes[..], [Outcome::Failed { .. }, Outcome::Leaked, Outcome::Leaked]),
        "{outcomes:?}"
    );
}

#[test]
fn a_node_record_written_between_the_checks_is_an_error() {
    let (world, finder) = store_with_one_leak();
    let error = both_checks(&world, &finder, |world| put_node(world, "{}")).unwrap_err();
    assert!(matches!(error, RepairError::Rewritten(_)), "{error}");
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn a_node_record_of_another_machine_is_an_error() {
    let (world, finder) = store_with_one_leak();
    put_node(&world, r#"{"bgp":{"ipv4Address":"192.0.2.7/24"}}"#);
    let error = run_to_end(finder.check(Reach::OwnBlocks, GRACE)).unwrap_err();
    assert!(matches!(error, RepairError::Elsewhere { .. }), "{error}");
}

#[test]
fn a_second_check_without_the_machine_releases_nothing() {
    let (world, mut finder) = store_with_one_leak();
    let (looks, real) = (Rc::new(Cell::new(0)), Rc::clone(&finder.read_machine));
    finder.read_machine = Rc::new(move || {
        looks.set(looks.get() + 1);
        let (blind, real) = (looks.get() > 1, Rc::clone(&real));
        Box::pin(async move {
            if blind {
                let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
                return Err(MachineError::Namespaces { path: "/proc".into(), source }.into());
            }
            real().await
        })
    });
    assert!(matches!(both_checks(&world, &finder, |_| {}), Err(RepairError::Machine(_))));
    assert_eq!(world.entries().len(), 1);
}

#[test]
fn an_interface_wired_between_the_checks_keeps_its_address() {
    let (world, finder) = store_with_one_leak();
    let address = world.entries()[0].parse().unwrap();
    let wire = |world: &World| _ = world.live.borrow_mut().insert("c1".to_owned(), (address, true));
    let findings = both_checks(&world, &finder, wire).unwrap();
    assert!(matches!(findings[0].outcome, Outcome::Alive { .. }), "{findings:?}");
    world.check(1);
}
