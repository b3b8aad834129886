//! Many nodes at once, interleaved by a seed, with faults and crashes: no address twice, none lost. A failing seed is printed and replays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;

use russet_store::sim::{Faults, Rng};

use super::*;

type Work = Pin<Box<dyn Future<Output = Outcome>>>;

enum Outcome {
    Assigned(String, Result<Vec<IpAddr>, IpamError>),
    Released,
}

/// How the nodes write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// Handle and block in one commit.
    Atomic,
    /// The same, with a memory.
    Remembering,
    /// One by one, because the engine cannot do more.
    OneByOne,
    /// Each second process one by one, as Go peers do in the same etcd; the others remember.
    Mixed,
}

/// A client that does not use the engine's transactions.
struct Peer(Sim);

impl Store for Peer {
    forward_store!(self.0: get list watch);

    fn claims(&self) -> Claims {
        Claims { atomic: false, ..self.0.claims() }
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        assert!(steps.len() <= 2, "a client of such an engine sends little at once");
        self.0.commit(steps)
    }
}

fn allocators(sim: &Sim, clock: &Rc<TestClock>, mode: Mode) -> [Rc<Allocator>; 2] {
    let own = || Allocator::new(Rc::new(sim.clone()), clock.clone());
    let remembering = || own().with_cache(Duration::from_secs(3600));
    let peer = || Allocator::new(Rc::new(Peer(sim.clone())), clock.clone());
    let both = match mode {
        Mode::Mixed => [remembering(), peer()],
        Mode::Remembering => [remembering(), remembering()],
        Mode::Atomic | Mode::OneByOne => [own(), own()],
    };
    both.map(Rc::new)
}

fn add(ipam: Rc<Allocator>, id: String, random: u64) -> Work {
    Box::pin(async move {
        let request = Request::pod(node(&format!("node-{}", random % 3)), handle(&id))
            .with("interface", "eth0")
            .with("timestamp", format!("of {id}"));
        let result = ipam.auto_assign(&request).await;
        let addresses = result.map(|assigned| assigned.addresses.iter().map(|net| net.addr()).collect());
        Outcome::Assigned(id, addresses)
    })
}

fn del(ipam: Rc<Allocator>, id: String) -> Work {
    Box::pin(async move {
        // A failure is repeated at the end, as a runtime does.
        let _ = ipam.release_by_handle(&handle(&id), None).await;
        Outcome::Released
    })
}

/// One run: adds and dels of 40 pods on three nodes, polled in an order that the seed decides; some are dropped half way.
fn play(seed: u64, mode: Mode) {
    let bench = Bench::new(if mode == Mode::OneByOne { Sim::non_atomic(seed) } else { Sim::atomic(seed) });
    let bench = bench.pool("p", "10.1.0.0/27", 29);
    bench.sim.set_faults(Faults {
        conflict: 30,
        lost_reply: 30,
        lost_request: 30,
        unavailable: 10,
        ..Faults::default()
    });
    let ipam = allocators(&bench.sim, &bench.clock, mode);
    let mut rng = Rng::new(seed);
    let mut work: Vec<Work> = Vec::new();
    let mut held: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    let mut next = 0;
    for _ in 0..6000 {
        if work.len() < 4 && next < 40 {
            let id = format!("pod{next}");
            next += 1;
            ids.insert(id.clone());
            let by = usize::try_from(rng.below(2)).unwrap();
            work.push(add(ipam[by].clone(), id, rng.below(3)));
            if !held.is_empty() && rng.below(2) == 0 {
                let index = usize::try_from(rng.below(held.len() as u64)).unwrap();
                let id = held.keys().nth(index).unwrap().clone();
                held.remove(&id);
                work.push(del(ipam[1 - by].clone(), id));
            }
        }
        if work.is_empty() {
            break;
        }
        let index = usize::try_from(rng.below(work.len() as u64)).unwrap();
        if rng.below(200) == 0 {
            drop(work.swap_remove(index)); // the node's process is killed
            continue;
        }
        if let Poll::Ready(outcome) = work[index].as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            drop(work.swap_remove(index));
            if let Outcome::Assigned(id, Ok(addresses)) = outcome {
                held.insert(id, addresses);
            }
        }
    }
    drop(work);
    bench.sim.set_faults(Faults::default());
    assert_owned_once(&bench, &held, seed, mode);
    assert_nothing_leaks(&bench, &ids, seed, mode);
}

/// Assigned addresses are stored, each with one owner.
fn assert_owned_once(bench: &Bench, held: &BTreeMap<String, Vec<IpAddr>>, seed: u64, mode: Mode) {
    let mut owners: BTreeMap<IpAddr, &String> = BTreeMap::new();
    for (id, addresses) in held {
        let stored: Vec<IpAddr> =
            run(bench.ipam.ips_by_handle(&handle(id))).unwrap().iter().map(|held| held.address).collect();
        for address in addresses {
            assert!(
                stored.contains(address),
                "seed {seed} {mode:?}: {address} of {id} is not stored\n{}",
                bench.sim.dump()
            );
            let other = owners.insert(*address, id);
            assert!(other.is_none(), "seed {seed} {mode:?}: {address} is given to {id} and {other:?}");
        }
    }
}

/// After the runtime has asked for every DEL, nothing is left.
fn assert_nothing_leaks(bench: &Bench, ids: &BTreeSet<String>, seed: u64, mode: Mode) {
    for id in ids {
        bench.release(id);
    }
    for record in bench.sim.records().values() {
        if let KeyKind::Block(cidr) = record.key.kind() {
            let block = Block::decode(&record.value).unwrap();
            assert!(block.is_empty(), "seed {seed} {mode:?}: {cidr} leaks\n{}", bench.sim.dump());
        }
        assert!(
            !matches!(record.key.kind(), KeyKind::Handle(_)),
            "seed {seed} {mode:?}: orphan {}",
            record.key
        );
    }
}

#[test]
fn no_address_is_assigned_twice_and_none_is_lost() {
    // ARCHITECTURE.md, invariants 1 and 2
    for seed in 0..60 {
        for mode in [Mode::Atomic, Mode::Remembering, Mode::OneByOne, Mode::Mixed] {
            play(seed, mode);
        }
    }
}
