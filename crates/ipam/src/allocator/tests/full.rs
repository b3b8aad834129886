//! Many requests where there is no room: a request with the same source waits and
//! gets the reason; one with another source does not.

use std::pin::Pin;

use super::*;

/// A store whose answers take a while, and whose lists of keys stop while it is closed.
struct Slow {
    sim: Sim,
    /// Lists of keys and looks through records.
    looks: Rc<Cell<u32>>,
    is_closed: Rc<Cell<bool>>,
}

/// An agent on a node with a full pool and one with room.
struct Agent {
    bench: Bench,
    looks: Rc<Cell<u32>>,
    is_closed: Rc<Cell<bool>>,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Assigned, IpamError>> + 'a>>;

async fn a_while() {
    let mut is_over = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Store for Slow {
    forward_store!(self.sim: claims watch);

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            a_while().await;
            self.sim.get(key).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            a_while().await;
            self.sim.list(prefix).await
        })
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        self.looks.set(self.looks.get() + 1);
        Box::pin(async move {
            while self.is_closed.get() {
                a_while().await;
            }
            self.sim.keys(prefix).await
        })
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            a_while().await;
            self.sim.commit(steps).await
        })
    }
}

impl Agent {
    fn new() -> Self {
        let bench =
            Bench::new(Sim::atomic(1)).pool("full", "10.1.0.0/29", 29).pool("wide", "10.2.0.0/24", 29);
        for number in 0..8 {
            bench.assign(&of("10.1.0.0/29", &format!("old{number}"))).unwrap();
        }
        bench.claim("node-a", "10.2.0.0/29");
        let (looks, is_closed) = <(Rc<Cell<u32>>, Rc<Cell<bool>>)>::default();
        let store = Slow { sim: bench.sim.clone(), looks: looks.clone(), is_closed: is_closed.clone() };
        let ipam = Allocator::new(Rc::new(store), bench.clock.clone()).with_cache(Duration::from_secs(1));
        Self { bench: Bench { ipam, ..bench }, looks, is_closed }
    }

    fn add<'a>(&'a self, request: &'a Request) -> Answer<'a> {
        Box::pin(self.bench.ipam.auto_assign(request))
    }

    fn release_elsewhere(&self, id: &str) {
        let other = Allocator::new(Rc::new(self.bench.sim.clone()), self.bench.clock.clone());
        assert_eq!(run(other.release_by_handle(&handle(id), None)).unwrap().addresses.len(), 1);
    }
}

/// A pod of one pool.
fn of(pool: &str, id: &str) -> Request {
    Request { pools4: Some(vec![pool.parse().unwrap()]), ..pod("node-a", id, "p", "03:04:05") }
}

/// Polls all in turns until all are done.
fn all(mut work: Vec<Answer<'_>>) -> Vec<Result<Assigned, IpamError>> {
    let mut answers: Vec<_> = work.iter().map(|_| None).collect();
    for _ in 0..100_000 {
        for (work, answer) in work.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            *answer = begun(work);
        }
        if answers.iter().all(Option::is_some) {
            return answers.into_iter().flatten().collect();
        }
    }
    panic!("a request waits forever");
}

/// Goes one step further; the answer, when it is there.
fn begun<'a>(work: &mut Answer<'a>) -> Option<Result<Assigned, IpamError>> {
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

#[test]
fn requests_that_wait_for_a_full_pool_share_the_reason_of_the_first() {
    let agent = Agent::new();
    let single = of("10.1.0.0/29", "single");
    assert!(matches!(run(agent.add(&single)), Err(IpamError::PoolExhausted { .. })));
    let looks_of_one = agent.looks.replace(0);
    assert!(looks_of_one > 0);
    let requests: Vec<Request> = (0..20).map(|number| of("10.1.0.0/29", &format!("new{number}"))).collect();
    // Among them one that has its address already.
    let again = of("10.1.0.0/29", "old3");
    let mut work: Vec<Answer<'_>> = requests.iter().map(|request| agent.add(request)).collect();
    work.push(agent.add(&again));
    let mut answers = all(work);
    assert!(answers.pop().unwrap().unwrap().existing);
    for answer in answers {
        assert!(matches!(answer, Err(IpamError::PoolExhausted { .. })), "{answer:?}");
    }
    assert_eq!(agent.looks.get(), looks_of_one);
    // The reason is not kept: the next request searches, and finds what another process released.
    agent.release_elsewhere("old5");
    assert_eq!(run(agent.add(&requests[0])).unwrap().addresses.len(), 1);
    agent.bench.check_consistent();
}

#[test]
fn requests_of_another_pool_do_not_wait_for_the_search_of_a_full_one() {
    let agent = Agent::new();
    agent.is_closed.set(true);
    let (full, wide) = (of("10.1.0.0/29", "full"), of("10.2.0.0/24", "wide"));
    let mut looking = agent.add(&full);
    for _ in 0..1000 {
        assert!(begun(&mut looking).is_none());
    }
    assert!(agent.looks.get() > 0, "it looks");
    assert_eq!(run(agent.add(&wide)).unwrap().addresses.len(), 1);
    agent.is_closed.set(false);
    assert!(matches!(run(looking), Err(IpamError::PoolExhausted { .. })));
}

#[test]
fn a_reason_is_not_shared_after_a_release_of_ours() {
    for by_handle in [true, false] {
        let agent = Agent::new();
        agent.is_closed.set(true);
        let (first, second) = (of("10.1.0.0/29", "first"), of("10.1.0.0/29", "second"));
        let (mut looking, mut waiting) = (agent.add(&first), agent.add(&second));
        for _ in 0..1000 {
            assert!(begun(&mut looking).is_none() && begun(&mut waiting).is_none());
        }
        for id in ["old1", "old2"] {
            let held = run(agent.bench.ipam.ips_by_handle(&handle(id))).unwrap();
            let release = |held: &crate::Held| crate::ReleaseOptions {
                address: held.address,
                handle: None,
                sequence_number: Some(held.sequence_number),
            };
            let released = if by_handle {
                run(agent.bench.ipam.release_by_handle(&handle(id), None))
            } else {
                run(agent.bench.ipam.release_ips(&held.iter().map(release).collect::<Vec<_>>()))
            };
            assert_eq!(released.unwrap().addresses.len(), 1);
        }
        agent.is_closed.set(false);
        // The one who looked may have looked too early; the one who waited did not look at all.
        let answers = all(vec![looking, waiting]);
        assert!(answers[1].is_ok(), "{answers:?}");
        agent.bench.check_consistent();
    }
}

#[test]
fn requests_that_differ_do_not_share_a_reason() {
    let agent = Agent::new();
    agent.is_closed.set(true);
    let greedy = Request { v4: 3, ..of("10.1.0.0/29", "greedy") };
    let modest = of("10.1.0.0/29", "modest");
    agent.release_elsewhere("old1");
    let (mut looking, mut waiting) = (agent.add(&greedy), agent.add(&modest));
    for _ in 0..1000 {
        assert!(begun(&mut looking).is_none() && begun(&mut waiting).is_none());
    }
    agent.is_closed.set(false);
    let answers = all(vec![looking, waiting]);
    assert!(matches!(answers[0], Err(IpamError::PoolExhausted { .. })), "{answers:?}");
    assert!(answers[1].is_ok(), "{answers:?}");
}
