//! The power of a node fails in the middle of it all, and comes back.
//!
//! What goes is what goes with a real cut: every process, every namespace with its interfaces, routes and rules, `/run`, and whatever was not synced to the
//! disk. `/var` of the node is a file system of its own ([`Disk`]) that the kernel shuts down without writing anything more, mounted with options under which ext4
//! promises least; so no file of ours is cut where it was synced, and each may be where it was not. The history of addresses, which is never synced, is cut at a
//! random place besides, or ends in garbage.
//!
//! What must be true when the power is back: the store opens, and has every address whose ADD was answered and none whose DEL was, but for the few that were on
//! their way back; the journal that would know these is gone, so the agent's own look must find them, or GC. Then the agent
//! starts, a third of the pods that were get their DEL, as kubelet sends it, and the others are never heard of again; nothing of either may be left.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

use russet_testkit::{Disk, eventually, let_pass};

use super::plan::{KILL_WITHIN, Order, Plan};
use super::player::Arena;
use super::reckoning::reckon;
use super::ward::{Entry, State, Ward};
use super::{
    Evidence, Field, LANES, RECOVERY, Slots, Spared, clear, end, number, rage, seed, summary, wards,
};
use crate::chaos::books::Books;
use crate::chaos::victims::Victims;
use crate::fabric::Fabric;
use crate::node::TestPod;
use russet_testkit::Random;

/// What `cargo xtask test` does.
const CUTS: usize = 4;
/// Operations and kills before each cut.
const OPS_PER_CUT: usize = 60;
const KILLS_PER_CUT: usize = 2;
/// Options of ext4's: the usual ones, and those under which the least is on the disk after a cut.
const OPTIONS: [&str; 3] = [
    "defaults",
    "data=writeback,noauto_da_alloc,commit=1",
    "data=writeback,nodelalloc,noauto_da_alloc,commit=1",
];

/// Of how many pods the addresses may be on their way back at a time: each lane can have answers to a few DELs before the first store commit is through.
const LATE_MAX: usize = 4 * LANES;
/// A file that is never synced.
const HISTORY: &str = "var/lib/russet/history";

/// A power cut that is to come.
struct Cut {
    /// The node.
    victim: usize,
    /// When the plan is so far, which is somewhere in the middle of its round.
    at: usize,
    /// Somebody was in the middle of something.
    interrupts: bool,
    /// What the history of addresses had when the power failed.
    history_bytes: u64,
    random: Random,
}

// === impl Cut ===

impl Cut {
    fn of(order: Order, round: usize, plan: &Plan) -> Self {
        let mut random = Random::of_thread(order.seed, 1_000 + round as u64);
        let numbers = plan.lanes.iter().flatten().map(|step| step.number);
        let (first, last) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
        let half = (last - first) / 2;
        let at = first + half / 2 + random.below(half);
        Self { victim: round % order.sites, at, interrupts: false, history_bytes: 0, random }
    }

    /// At its moment the disk stands still, then everything is dead.
    fn happen(
        &mut self,
        arena: &Arena,
        wards: &[Ward],
        victims: &mut Victims<'_>,
        finished: &dyn Fn() -> bool,
    ) {
        eventually(RECOVERY, || arena.reached.load(Ordering::Relaxed) >= self.at || finished());
        let_pass(self.random.delay(KILL_WITHIN));
        self.interrupts = !finished();
        let ward = &wards[self.victim];
        self.history_bytes = history_bytes(ward);
        arena.diary.note(format_args!("the power of node {} fails after #{}", self.victim, self.at));
        ward.dark.store(true, Ordering::Relaxed);
        ward.disk.as_ref().unwrap().cut_power();
        victims.end_agent(self.victim);
        arena.over.store(true, Ordering::Relaxed);
    }

    /// The power is back, and no process runs yet. Returns who was not known to be gone.
    fn power_on(&mut self, arena: &Arena, wards: &mut [Ward], fabric: Option<&mut Fabric>) -> Vec<Entry> {
        let ward = &mut wards[self.victim];
        let before = ward.forget_all();
        for entry in &before {
            if let State::There(alive, _) = &entry.state {
                arena.owners.give_up(alive);
            }
        }
        ward.site.remove_pods();
        ward.site.node.reboot();
        if let Some(fabric) = fabric {
            fabric.wire(&ward.site.node);
        }
        let disk = ward.disk.as_mut().unwrap();
        disk.power_off();
        disk.power_on(OPTIONS[self.random.below(OPTIONS.len())]);
        println!("{} of {} bytes of the history are there", history_bytes(ward), self.history_bytes);
        self.garble_history(ward);
        ward.dark.store(false, Ordering::Relaxed);
        before
    }

    fn garble_history(&mut self, ward: &Ward) {
        let Ok(mut history) = OpenOptions::new().append(true).open(ward.site.node.path(HISTORY)) else {
            return;
        };
        let bytes = usize::try_from(history.metadata().unwrap().len()).unwrap();
        match self.random.below(3) {
            0 => {}
            1 => history.set_len(self.random.below(bytes + 1) as u64).unwrap(),
            _ => history.write_all(self.random.hex().as_bytes()).unwrap(),
        }
    }

    /// What the store must have kept, and what it must have lost: all but the addresses that DELs were about to give back when the power failed, which
    /// belong to nobody from here on.
    fn assert_kept(&self, wards: &[Ward], before: &[Entry]) -> usize {
        let books = Books::read(&wards[self.victim].site).expect("the store can be read after a power cut");
        let mut acknowledged = 0;
        for entry in before {
            let State::There(alive, _) = &entry.state else { continue };
            let wanted = alive.addresses.iter().map(String::as_str).collect();
            assert_eq!(
                books.addresses(&alive.pod.container),
                wanted,
                "{} after a power cut",
                alive.pod.container
            );
            acknowledged += 1;
        }
        let here = |container: &str| before.iter().any(|entry| entry.pod.container == container);
        let elsewhere = |container: &str| wards.iter().any(|ward| ward.get(container).is_some());
        let containers =
            books.held.iter().filter_map(|entry| entry.split_once(' ')).map(|(container, _)| container);
        let held: BTreeSet<&str> =
            containers.filter(|container| !here(container) && !elsewhere(container)).collect();
        println!("{} pods were deleted, and their addresses are still held", held.len());
        assert!(held.len() <= LATE_MAX, "deleted, and held after a power cut: {held:?}");
        for container in held {
            let netns_name = format!("gone-{}", &container[..12]);
            wards[self.victim]
                .set(&TestPod { container: container.to_owned(), netns_name }, State::Forgotten);
        }
        acknowledged
    }

    /// Runtimes know some of their dead.
    fn mourn(&mut self, ward: &Ward, before: &[Entry]) {
        for Entry { pod, .. } in before {
            ward.set(pod, if self.random.once_in(3) { State::Dead } else { State::Forgotten });
        }
    }
}

fn history_bytes(ward: &Ward) -> u64 {
    ward.site.node.path(HISTORY).metadata().map_or(0, |metadata| metadata.len())
}

/// The node of those who are spared; there is none where there is one node only.
fn survivor<'a>(wards: &'a [Ward], cut: &Cut) -> Option<&'a Ward> {
    let next = (cut.victim + 1) % wards.len();
    (next != cut.victim).then(|| &wards[next])
}

pub fn trial(field: Field) {
    let (seed, cuts) = (seed(), number("RUSSET_CHAOS_CUTS", CUTS));
    println!("cargo xtask chaos --cuts {cuts} --seed {seed} --field power-{}", field.name());
    let mut fabric = None;
    let mut wards = wards(field, &mut fabric, seed);
    for ward in &mut wards {
        std::fs::create_dir(ward.site.node.path("var")).unwrap();
        ward.disk = Some(Disk::new(&ward.site.node.path("var"), OPTIONS[0]));
    }
    let (ops, kills) = (cuts * OPS_PER_CUT, cuts * KILLS_PER_CUT);
    let order =
        Order { seed, ops, kills, lanes: LANES * wards.len(), sites: wards.len(), etcd: fabric.is_some() };
    let plan = Plan::of(order);
    let arena = Arena::new(&format!("{seed}-power-{}", field.name()));
    let mut slots = vec![Slots::default(); order.lanes];
    let (mut interrupted, mut kept, began) = (0, 0, Instant::now());
    for round in 0..cuts {
        let mut plan = plan.round(round, cuts);
        let mut cut = Cut::of(order, round, &plan);
        // Whoever dies later would be waited for, until all is quiet.
        plan.blows.retain(|blow| blow.at < cut.at);
        let spared = until_cut(&arena, &wards, fabric.as_mut(), (&plan, &mut slots), &mut cut);
        let before = cut.power_on(&arena, &mut wards, fabric.as_mut());
        let _evidence = Evidence(&arena, &wards);
        let acknowledged = cut.assert_kept(&wards, &before);
        cut.mourn(&wards[cut.victim], &before);
        let victims = boot(&wards, fabric.as_mut());
        let tally = reckon(&arena, &wards, field.by_gc(round));
        if let (Some(spared), Some(ward)) = (spared, survivor(&wards, &cut)) {
            spared.retire(&arena, ward);
        }
        interrupted += usize::from(cut.interrupts);
        kept += acknowledged;
        drop(victims);
        clear(&mut slots, &wards);
        println!(
            "cut {} of {cuts}, {:.0?}: {acknowledged} of {} pods were acknowledged and all found; {tally:?}",
            round + 1,
            began.elapsed(),
            before.len()
        );
    }
    let _evidence = Evidence(&arena, &wards);
    let _victims = boot(&wards, fabric.as_mut());
    end(&arena, &wards);
    summary(&arena, &plan, began);
    println!("{interrupted} of {cuts} cuts were in the middle of something");
    assert!(2 * interrupted > cuts, "the power failed when all was quiet");
    // Not who was looked at meanwhile: a boot may be over before a look.
    assert!(kept >= cuts, "of {cuts} cuts there were {kept} pods to be kept");
}

fn boot<'a>(wards: &'a [Ward], fabric: Option<&'a mut Fabric>) -> Victims<'a> {
    Victims::new(fabric, wards.iter().map(|ward| &ward.site).collect())
}

/// From one boot to the next cut. Those who are spared live on a node that is not struck.
fn until_cut(
    arena: &Arena,
    wards: &[Ward],
    fabric: Option<&mut Fabric>,
    (plan, slots): (&Plan, &mut [Slots]),
    cut: &mut Cut,
) -> Option<Spared> {
    let _evidence = Evidence(arena, wards);
    let mut victims = boot(wards, fabric);
    let survivor = survivor(wards, cut);
    let spared = survivor.map(|ward| Spared::settle(arena, std::slice::from_ref(ward)));
    rage(arena, wards, &mut victims, (plan, slots), |victims, finished| {
        cut.happen(arena, wards, victims, finished);
    });
    spared
}

#[test]
#[ignore = "root: makes network namespaces, mounts; kernel: ext4, loop; tool: mkfs.ext4, ip, nft, ping; takes a minute"]
fn power_cuts_lose_nothing_that_was_answered_and_leave_no_trace_on_a_node_with_its_own_store() {
    trial(Field::Embedded);
}

#[test]
#[ignore = "root: makes network namespaces, mounts; kernel: ext4, loop, vxlan; tool: mkfs.ext4, etcd, ip, nft, ping; takes a minute"]
fn power_cuts_lose_nothing_that_was_answered_and_leave_no_trace_on_two_nodes_of_an_etcd() {
    trial(Field::Etcd(crate::chaos::site::Plugin::Russet));
}
