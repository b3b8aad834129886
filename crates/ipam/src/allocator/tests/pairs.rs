//! An ADD and a DEL of one container at the same time, by two processes, in every order of their first requests, on an engine that applies steps one by one.

use std::pin::Pin;

use super::*;

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The order of requests: false is the ADD's turn.
#[derive(Default)]
struct Schedule {
    turns: Vec<bool>,
    /// Turns in every order; after them both alternate.
    free: usize,
    /// The next turn to take.
    next: usize,
}

// === impl Schedule ===

impl Schedule {
    /// Whether the DEL is next while both have something to do.
    fn turn(&mut self) -> bool {
        self.next += 1;
        if self.next > self.free {
            return self.next.is_multiple_of(2);
        }
        if self.next > self.turns.len() {
            self.turns.push(false);
        }
        self.turns[self.next - 1]
    }

    /// The next order that was not tried; none if all were.
    fn advance(&mut self) -> bool {
        self.turns.truncate(self.next);
        self.next = 0;
        while self.turns.pop_if(|turn| *turn).is_some() {}
        match self.turns.last_mut() {
            Some(turn) => {
                *turn = true;
                true
            }
            None => false,
        }
    }
}

/// Lets one side send its next request. Returns whether it has ended.
fn request(sim: &Sim, side: &mut Work) -> bool {
    let before = sim.operations();
    while sim.operations() == before {
        if side.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
    }
    false
}

/// One order. The DEL begins when the ADD has raised the handle: before that there is nothing to delete.
fn play(schedule: &mut Schedule, allocators: &[Rc<Allocator>; 2], bench: &Bench, faults: &[Fault]) {
    let asked = pod("node-a", "x", "web-0", "10:00:00");
    let (adder, deleter) = (allocators[0].clone(), allocators[1].clone());
    let mut add: Work = Box::pin(async move { drop(adder.auto_assign(&asked).await) });
    let mut del: Work = Box::pin(async move { drop(deleter.release_by_handle(&handle("x"), None).await) });
    while bench.handle_text("x").is_none() {
        assert!(!request(&bench.sim, &mut add), "the ADD needs a handle");
    }
    bench.sim.script(faults.iter().copied());
    let (mut add_ended, mut del_ended) = (false, false);
    while !add_ended || !del_ended {
        let is_del = if add_ended || del_ended { add_ended } else { schedule.turn() };
        match is_del {
            true => del_ended = request(&bench.sim, &mut del),
            false => add_ended = request(&bench.sim, &mut add),
        }
    }
}

/// Every address has a handle that counts at least as many as its block has.
fn assert_reachable(bench: &Bench, schedule: &Schedule) {
    for record in bench.sim.records().values() {
        let KeyKind::Block(cidr) = record.key.kind() else { continue };
        let block = Block::decode(&record.value).unwrap();
        for ordinal in 0..cidr.size() {
            let Some(owner) = block.attribute(ordinal).and_then(|owner| owner.handle_id.clone()) else {
                continue;
            };
            let id = HandleId::new(owner).unwrap();
            let stored = bench.value(&Key::handle(&id)).map(|text| Handle::decode(text.as_bytes()).unwrap());
            let count = stored.map_or(0, |stored| stored.count(cidr));
            let held = block.ordinals_of(&id).count() as u64;
            assert!(
                count >= held,
                "{id} counts {count} of {held}: {:?}\n{}",
                schedule.turns,
                bench.sim.dump()
            );
        }
    }
}

fn play_all(cached: bool, free: usize, faults: &[Fault]) -> u32 {
    let mut schedule = Schedule { free, ..Schedule::default() };
    let mut played = 0;
    loop {
        let bench = Bench::new(Sim::non_atomic(1)).with_pool();
        let allocators = [(); 2].map(|()| {
            let own = Allocator::new(Rc::new(bench.sim.clone()), bench.clock.clone());
            Rc::new(if cached { own.with_cache(Duration::from_secs(3600)) } else { own })
        });
        run(allocators[0].auto_assign(&pod("node-a", "other", "web-1", "09:00:00"))).unwrap();
        play(&mut schedule, &allocators, &bench, faults);
        assert_reachable(&bench, &schedule);
        bench.release("x");
        bench.release("other");
        bench.check_consistent();
        played += 1;
        if !schedule.advance() {
            return played;
        }
    }
}

#[test]
fn no_order_of_an_add_and_a_del_leaves_an_address_without_its_handle() {
    // ARCHITECTURE.md, invariants 1 and 2; kubernetes.md section 1.12
    for cached in [false, true] {
        let played = play_all(cached, 10, &[]);
        assert!(played > 30, "{played} orders are few");
    }
}

#[test]
fn no_lost_answer_between_an_add_and_a_del_leaves_an_address_without_its_handle() {
    for cached in [false, true] {
        for lost in 0..4 {
            for fault in [Fault::LostReply, Fault::LostRequest, Fault::Conflict] {
                let mut faults = vec![Fault::None; lost];
                faults.push(fault);
                play_all(cached, 7, &faults);
            }
        }
    }
}
