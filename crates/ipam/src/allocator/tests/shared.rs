//! Requests that wait together share a commit (ARCHITECTURE.md, "ADD and DEL"): what that costs, and what one request's misfortune does to the others.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use super::*;

type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What each commit wrote: its keys' kinds and names.
type Commits = Rc<RefCell<Vec<Vec<String>>>>;

/// Counts reads, and writes down what goes together.
struct Counter {
    sim: Sim,
    reads: Rc<Cell<u64>>,
    commits: Commits,
    gate: Rc<Gate>,
}

/// Where commits wait while it is closed, as on a slow connection.
#[derive(Default)]
struct Gate {
    is_closed: Cell<bool>,
    waiting: RefCell<Vec<(Rc<Cell<bool>>, Waker)>>,
}

/// An agent's allocator on an atomic store, and what it asks of the store.
struct Agent {
    bench: Bench,
    reads: Rc<Cell<u64>>,
    commits: Commits,
    gate: Rc<Gate>,
}

/// Notes that it was woken.
struct WokenFlag(AtomicBool);

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Store for Counter {
    forward_store!(self.sim: claims watch);

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.reads.set(self.reads.get() + 1);
        self.sim.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.reads.set(self.reads.get() + 1);
        self.sim.list(prefix)
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        let kinds = steps.iter().map(line).map(|line| line.split('{').next().unwrap().trim().to_owned());
        self.commits.borrow_mut().push(kinds.collect());
        Box::pin(async move {
            self.gate.pass().await;
            self.sim.commit(steps).await
        })
    }
}

// === impl Gate ===

impl Gate {
    async fn pass(&self) {
        let may = Rc::new(Cell::new(!self.is_closed.get()));
        std::future::poll_fn(|context| {
            if may.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            waiting.retain(|(other, _)| !Rc::ptr_eq(other, &may));
            waiting.push((may.clone(), context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Lets those pass who wait; false when there are none.
    fn let_pass(&self) -> bool {
        let waiting = self.waiting.take();
        for (may, waker) in &waiting {
            may.set(true);
            waker.wake_by_ref();
        }
        !waiting.is_empty()
    }
}

// === impl Agent ===

impl Agent {
    /// With a block of 64 addresses of each family and one pod in them, so that all is remembered.
    fn warm() -> Self {
        Self::of(Sim::atomic(1))
    }

    fn of(sim: Sim) -> Self {
        let bench = Bench::new(sim).pool("four", "10.1.0.0/24", 26).pool("six", "fd80::/112", 122);
        let (reads, commits, gate) = <(Rc<Cell<u64>>, Commits, Rc<Gate>)>::default();
        let sim = bench.sim.clone();
        let store =
            Rc::new(Counter { sim, reads: reads.clone(), commits: commits.clone(), gate: gate.clone() });
        let ipam = Allocator::new(store, bench.clock.clone()).with_cache(Duration::from_secs(1));
        let agent = Self { bench: Bench { ipam, ..bench }, reads, commits, gate };
        agent.bench.assign(&dual("first")).unwrap();
        agent.forget_costs();
        agent
    }

    fn ipam(&self) -> &Allocator {
        &self.bench.ipam
    }

    fn forget_costs(&self) {
        self.reads.set(0);
        self.commits.borrow_mut().clear();
    }

    /// Commits and reads since they were last forgotten.
    fn costs(&self) -> (usize, u64) {
        (self.commits.borrow().len(), self.reads.get())
    }

    /// The IPv4 block.
    fn four(&self) -> Block {
        let records = self.bench.sim.records();
        let blocks = records.values().filter_map(|record| Block::decode(&record.value).ok());
        blocks.into_iter().find(|block| block.cidr.family() == Family::V4).unwrap()
    }

    /// Polls only those that were woken, as an executor does, until all are done. A commit is answered when there is nothing else to do; panics when there is
    /// none, and a request waits.
    fn all<T>(&self, work: Vec<Work<'_, T>>) -> Vec<T> {
        self.all_but(&[], usize::MAX, work).into_iter().map(Option::unwrap).collect()
    }

    /// The same; those of `dropped` that are not done are dropped in that round.
    fn all_but<T>(&self, dropped: &[usize], round: usize, work: Vec<Work<'_, T>>) -> Vec<Option<T>> {
        self.gate.is_closed.set(true);
        let mut tasks: Vec<_> =
            work.into_iter().map(|work| (Some(work), Arc::new(WokenFlag(true.into())), None)).collect();
        for now in 0.. {
            if now == round {
                dropped.iter().for_each(|index| tasks[*index].0 = None);
            }
            let mut progress = false;
            for (slot, bell, answer) in &mut tasks {
                let Some(work) = slot.as_mut().filter(|_| bell.0.swap(false, Ordering::Relaxed)) else {
                    continue;
                };
                progress = true;
                let waker = Waker::from(bell.clone());
                if let Poll::Ready(value) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                    *answer = Some(value);
                    *slot = None;
                }
            }
            if tasks.iter().all(|(slot, ..)| slot.is_none()) {
                break;
            }
            assert!(progress || self.gate.let_pass(), "a request waits, and none is woken");
        }
        self.gate.is_closed.set(false);
        self.gate.let_pass();
        tasks.into_iter().map(|(_, _, answer)| answer).collect()
    }

    fn adds<'a>(&'a self, requests: &'a [Request]) -> Vec<Work<'a, Result<Assigned, IpamError>>> {
        requests.iter().map(|request| Box::pin(self.ipam().auto_assign(request)) as Work<'a, _>).collect()
    }

    fn dels<'a>(&'a self, handles: &'a [HandleId]) -> Vec<Work<'a, Result<crate::Released, IpamError>>> {
        handles.iter().map(|id| Box::pin(self.ipam().release_by_handle(id, None)) as Work<'a, _>).collect()
    }

    /// The addresses that a handle holds according to the store.
    fn held(&self, id: &str) -> usize {
        let fresh = Allocator::new(Rc::new(self.bench.sim.clone()), self.bench.clock.clone());
        run(fresh.ips_by_handle(&handle(id))).unwrap().len()
    }

    /// Another process writes the IPv4 block.
    fn disturb(&self) {
        let other = Allocator::new(Rc::new(self.bench.sim.clone()), self.bench.clock.clone());
        run(other.auto_assign(&pod("node-a", "theirs", "t", "03:00:00"))).unwrap();
    }

    /// Another process takes the next free address of a block.
    fn overtake(&self, cidr: &str) {
        let cidr: BlockCidr = cidr.parse().unwrap();
        let record = self.bench.sim.records().into_values().find(|record| record.key == Key::block(cidr));
        let block = Block::decode(&record.unwrap().value).unwrap();
        let address = cidr.address(block.unallocated[0]).unwrap();
        let other = Allocator::new(Rc::new(self.bench.sim.clone()), self.bench.clock.clone());
        let request = pod("node-a", &format!("of-{}", block.sequence_number), "p", "03:04:05");
        run(other.assign_ip(&request, address)).unwrap();
    }
}

fn dual(id: &str) -> Request {
    Request { v6: 1, ..pod("node-a", id, "p", "03:04:05") }
}

fn duals(count: usize) -> Vec<Request> {
    (0..count).map(|i| dual(&format!("pod{i:03}"))).collect()
}

fn poll<T>(work: &mut Work<'_, T>) -> Poll<T> {
    work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn distinct(got: &[Assigned]) -> usize {
    got.iter().flat_map(texts).collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn thirty_two_concurrent_adds_are_two_commits_and_no_read() {
    let agent = Agent::warm();
    let requests = duals(33);
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!(distinct(&got), 66);
    assert!(got.iter().all(|assigned| !assigned.existing && assigned.addresses.len() == 2));
    let commits = agent.commits.borrow().clone();
    assert_eq!((commits.len(), agent.reads.get()), (2, 0), "{commits:?}");
    assert_eq!((commits[0].len(), commits[1].len()), (3, 32 + 2), "handles, and two blocks once");
    assert!(commits[1][..32].iter().all(|step| step.starts_with("handle")), "handles first: {commits:?}");
    agent.bench.check_consistent();
}

#[test]
fn a_commit_has_at_most_thirty_two_requests() {
    let agent = Agent::warm();
    let requests = duals(60);
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!(distinct(&got), 120);
    let sizes: Vec<usize> = agent.commits.borrow().iter().map(Vec::len).collect();
    assert_eq!((sizes, agent.reads.get()), (vec![3, 34, 27 + 2], 0));
    agent.bench.check_consistent();
}

#[test]
fn a_commit_counts_as_one_update_of_each_block() {
    // calico-ipam.md section 9, MUST 1
    let agent = Agent::warm();
    let before = agent.four().sequence_number;
    let requests = duals(5);
    agent.all(agent.adds(&requests)).into_iter().for_each(|got| drop(got.unwrap()));
    let block = agent.four();
    assert_eq!(block.sequence_number, before + 2);
    let numbers: Vec<u64> = (1..6).map(|ordinal| block.sequence_number_of(ordinal)).collect();
    assert_eq!(numbers, [before, before + 1, before + 1, before + 1, before + 1]);
}

#[test]
fn a_dual_stack_del_is_one_commit_and_waiting_ones_share_one() {
    let agent = Agent::warm();
    let requests = duals(20);
    agent.all(agent.adds(&requests)).into_iter().for_each(|got| drop(got.unwrap()));
    agent.forget_costs();
    let released = agent.bench.release("pod000");
    assert_eq!((released.addresses.len(), agent.costs()), (2, (1, 0)));
    let handles: Vec<HandleId> = requests[1..].iter().map(|request| request.handle.clone()).collect();
    agent.forget_costs();
    for released in agent.all(agent.dels(&handles)) {
        assert_eq!(released.unwrap().addresses.len(), 2);
    }
    let commits = agent.commits.borrow().clone();
    assert_eq!((commits.len(), agent.reads.get()), (2, 0), "{commits:?}");
    assert!(commits[1][..2].iter().all(|step| step.starts_with("block")), "blocks first: {commits:?}");
    assert_eq!(commits[1].len(), 2 + 18);
    agent.bench.check_consistent();
}

#[test]
fn a_dual_stack_del_is_one_commit_also_without_a_cache() {
    let bench = Bench::new(Sim::atomic(1)).with_pool().pool("six", "fd80::/112", 122);
    bench.assign(&dual("first")).unwrap();
    bench.assign(&dual("second")).unwrap();
    let before = bench.sim.operations();
    assert_eq!(bench.release("second").addresses.len(), 2);
    assert_eq!(bench.sim.operations() - before, 4, "handle, two blocks, one commit");
    bench.check_consistent();
}

#[test]
fn adds_and_dels_share_a_commit() {
    let agent = Agent::warm();
    let requests = duals(6);
    agent.all(agent.adds(&requests[..3])).into_iter().for_each(|got| drop(got.unwrap()));
    agent.forget_costs();
    let handles: Vec<HandleId> = requests[..2].iter().map(|request| request.handle.clone()).collect();
    let adds = agent.adds(&requests[3..]).into_iter();
    let adds = adds.map(|add| Box::pin(async { add.await.unwrap().addresses.len() }) as Work<'_, usize>);
    let dels = agent.dels(&handles).into_iter();
    let dels = dels.map(|del| Box::pin(async { del.await.unwrap().addresses.len() }) as Work<'_, usize>);
    assert_eq!(agent.all(adds.chain(dels).collect()), [2; 5]);
    let commits = agent.commits.borrow().clone();
    assert_eq!((commits.len(), agent.reads.get()), (2, 0), "{commits:?}");
    let kinds = commits[1].iter().map(|step| step.split(' ').next().unwrap());
    assert!(kinds.eq(["handle", "handle", "block", "block", "handle", "handle"]), "{commits:?}");
    agent.bench.check_consistent();
    assert_eq!((agent.held("pod000"), agent.held("pod002"), agent.held("pod005")), (0, 2, 2));
}

#[test]
fn a_block_changed_by_another_process_is_read_once_for_all_requests() {
    let agent = Agent::warm();
    agent.disturb();
    let requests = duals(20);
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!(distinct(&got), 40);
    // The first one's commit fails; everybody is in the one after that.
    assert_eq!(agent.costs(), (2, 1));
    agent.bench.check_consistent();
}

#[test]
fn a_request_with_an_existing_handle_does_not_affect_the_others() {
    let agent = Agent::warm();
    // Another process has answered for this container already; the agent does not know.
    let requests = duals(20);
    let other = Allocator::new(Rc::new(agent.bench.sim.clone()), agent.bench.clock.clone());
    let theirs = run(other.auto_assign(&requests[7])).unwrap();
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!((got[7].existing, texts(&got[7])), (true, texts(&theirs)));
    assert_eq!(distinct(&got), 40);
    let block = agent.four();
    assert!(requests.iter().all(|request| block.ordinals_of(&request.handle).count() == 1));
    agent.bench.check_consistent();
}

#[test]
fn a_request_for_too_many_addresses_does_not_affect_the_others() {
    let agent = Agent::warm();
    let mut requests = duals(10);
    requests[4].v4 = 300;
    let got = agent.all(agent.adds(&requests));
    assert!(matches!(&got[4], Err(IpamError::PoolExhausted { .. })), "{:?}", got[4]);
    assert_eq!(got.iter().filter(|got| got.is_ok()).count(), 9);
    agent.bench.check_consistent();
    assert_eq!(agent.held("pod004"), 0);
}

#[test]
fn after_a_lost_answer_each_request_gets_what_was_written_for_it() {
    for fault in [Fault::LostReply, Fault::LostRequest, Fault::Conflict, Fault::Unavailable] {
        let agent = Agent::warm();
        let requests = duals(20);
        agent.bench.sim.script([Fault::None, fault]);
        let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
        assert_eq!(distinct(&got), 40, "{fault:?}");
        for (request, got) in requests.iter().zip(&got) {
            let fresh = Allocator::new(Rc::new(agent.bench.sim.clone()), agent.bench.clock.clone());
            let again = run(fresh.auto_assign(request)).unwrap();
            assert_eq!((again.existing, texts(&again)), (true, texts(got)), "{fault:?}");
        }
        agent.bench.check_consistent();
        let handles: Vec<HandleId> = requests.iter().map(|request| request.handle.clone()).collect();
        agent.bench.sim.script([Fault::None, fault]);
        for released in agent.all(agent.dels(&handles)) {
            assert_eq!(released.unwrap().addresses.len(), 2, "{fault:?}");
        }
        agent.bench.check_consistent();
        assert!(handles.iter().all(|id| agent.bench.value(&Key::handle(id)).is_none()));
    }
}

#[test]
fn a_dropped_request_delays_none_and_its_allocation_is_found_again() {
    // Who drives the commit, who is merely part of it, who waits for the next one; at each point of both commits.
    for dropped in [&[0][..], &[1], &[4], &[7], &[0, 7], &[1, 2, 3], &[0, 1, 2, 3, 4, 5, 6]] {
        for round in 0..9 {
            let agent = Agent::warm();
            let requests = duals(8);
            let got = agent.all_but(dropped, round, agent.adds(&requests));
            let got: Vec<Option<Assigned>> = got.into_iter().map(|got| got.map(Result::unwrap)).collect();
            agent.bench.check_consistent();
            for (index, got) in got.iter().enumerate() {
                let id = format!("pod{index:03}");
                let held = agent.held(&id);
                match got {
                    Some(assigned) => assert_eq!((assigned.addresses.len(), held), (2, 2)),
                    None => assert!(dropped.contains(&index) && [0, 2].contains(&held), "{id} has {held}"),
                }
                let again = agent.bench.assign(&requests[index]).unwrap();
                assert_eq!((again.len(), agent.held(&id)), (2, 2), "{dropped:?} {round}");
                assert!(got.as_ref().is_none_or(|got| texts(got) == again), "{dropped:?} {round}");
                assert_eq!(agent.bench.release(&id).addresses.len(), 2);
            }
            agent.bench.check_consistent();
        }
    }
}

#[test]
fn an_abandoned_commit_is_finished_by_the_next_request() {
    let agent = Agent::warm();
    let requests = duals(1);
    let mut work = agent.adds(&requests);
    assert!(poll(&mut work[0]).is_pending());
    drop(work);
    // The commit was not given up with its request: a DEL that comes now must not find the handle missing, and the commit then happen.
    assert_eq!(agent.bench.release("pod000").addresses.len(), 2);
    assert_eq!(agent.held("pod000"), 0);
    agent.bench.check_consistent();
    let mut work = agent.adds(&requests);
    assert!(poll(&mut work[0]).is_pending());
    drop(work);
    let again = run(agent.ipam().auto_assign(&requests[0])).unwrap();
    assert!(again.existing, "the same container again gets what was written for it");
    agent.bench.check_consistent();
}

#[test]
fn concurrent_requests_with_a_cold_cache_take_the_slow_path_once() {
    let agent = Agent::warm();
    agent.ipam().forget();
    let requests = duals(33);
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!(distinct(&got), 66);
    let (commits, reads) = agent.costs();
    // One takes the slow path, with two commits; the others share.
    assert!(commits <= 4 && reads < 20, "{commits} commits, {reads} reads");
    agent.bench.check_consistent();
}

#[test]
fn without_atomic_commits_the_steps_are_written_one_by_one() {
    let agent = Agent::of(Sim::non_atomic(1));
    let requests = duals(6);
    let got: Vec<Assigned> = agent.all(agent.adds(&requests)).into_iter().map(Result::unwrap).collect();
    assert_eq!(distinct(&got), 12);
    assert_eq!(agent.bench.release("pod000").addresses.len(), 2);
    assert!(agent.commits.borrow().iter().all(|steps| steps.len() == 1), "{:?}", agent.commits);
    agent.bench.check_consistent();
}

#[test]
fn a_handle_counts_no_block_that_an_earlier_attempt_was_for() {
    let agent = Agent::of(Sim::non_atomic(1));
    // A free address in the first block, and 63 in the second one.
    agent.bench.assign(&Request { v4: 63, ..pod("node-a", "many", "p", "03:04:05") }).unwrap();
    agent.bench.assign(&pod("node-a", "second", "p", "03:04:05")).unwrap();
    agent.bench.release("first");
    let requests = [pod("node-a", "late", "p", "03:04:05")];
    let mut work = agent.adds(&requests);
    agent.gate.is_closed.set(true);
    let (mut seen, mut lost) = (agent.commits.borrow().len(), Vec::new());
    let assigned = loop {
        if let Poll::Ready(assigned) = poll(&mut work[0]) {
            break assigned.unwrap();
        }
        let commits = agent.commits.borrow().clone();
        for step in commits[seen..].iter().flatten() {
            if let Some(block) = step.strip_prefix("block ").filter(|_| lost.len() < 6) {
                agent.overtake(&block.replace('-', "/"));
                lost.push(block.to_owned());
            }
        }
        seen = commits.len();
        agent.gate.let_pass();
    };
    assert_eq!((assigned.addresses.len(), agent.held("late")), (1, 1));
    assert_eq!(lost.iter().collect::<std::collections::BTreeSet<_>>().len(), 2, "{lost:?}");
    agent.bench.check_consistent();
}
