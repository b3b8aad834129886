//! A power cut of a node during operations, and the boot after it.
//!
//! It takes what a real cut takes: every process, every namespace with its interfaces, routes and
//! rules, `/run`, and whatever was not synced to the disk. The node's `/var` is a file system of
//! its own ([`Disk`]) that the kernel shuts down without writing anything more, mounted with the
//! options under which ext4 promises least; so no file of ours is cut where it was synced, and each
//! may be where it was not. The history of addresses, which is never synced, is also cut at a
//! random place, or ends in garbage.
//!
//! After the boot: the store opens, and has every address whose ADD was answered and none whose DEL
//! was, except for the few whose release was in progress; the journal with these is lost, so the
//! agent's repair must find them, or GC. Then the agent starts, a third of the earlier pods get
//! their DEL, as kubelet sends it, and the others get none; nothing of either may be left.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

use russet_testkit::{Disk, eventually, let_pass};

use super::final_check::check_everything;
use super::plan::{KILL_WITHIN, Parameters, Plan};
use super::runtime_thread::Arena;
use super::tracked_node::{Entry, PodState, TrackedNode};
use super::{
    Evidence, Field, OwnPools, RECOVERY, Slots, UntouchedPods, WORKERS, clear, end, nodes, number, run_load,
    seed, summary,
};
use crate::chaos::shared_store::SharedStore;
use crate::chaos::store_records::StoreRecords;
use crate::chaos::victims::Victims;
use crate::node::TestPod;
use russet_testkit::Random;

/// The amount of `cargo xtask test`.
const CUTS: usize = 4;
/// Operations and kills before each cut.
const OPS_PER_CUT: usize = 60;
const KILLS_PER_CUT: usize = 2;
/// Options of ext4: the usual ones, and those with which the least is on the disk after a cut.
const OPTIONS: [&str; 3] = [
    "defaults",
    "data=writeback,noauto_da_alloc,commit=1",
    "data=writeback,nodelalloc,noauto_da_alloc,commit=1",
];

/// The maximum number of pods whose addresses are being released at a time: each thread can have
/// answers to a few DELs before the first store commit completes.
const LATE_MAX: usize = 4 * WORKERS;
/// A file that is never synced.
const HISTORY: &str = "var/lib/russet/history";

/// A planned power cut.
struct Cut {
    /// The node.
    victim: usize,
    /// The operation at which it happens, which is somewhere in the middle of its round.
    at: usize,
    /// Whether an operation was in progress.
    interrupts: bool,
    /// The size of the address history when the power failed.
    history_bytes: u64,
    random: Random,
}

// === impl Cut ===

impl Cut {
    fn of(order: Parameters, round: usize, plan: &Plan) -> Self {
        let mut random = Random::of_thread(order.seed, 1_000 + round as u64);
        let numbers = plan.workers.iter().flatten().map(|step| step.number);
        let (first, last) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
        let half = (last - first) / 2;
        let at = first + half / 2 + random.below(half);
        Self { victim: round % order.sites, at, interrupts: false, history_bytes: 0, random }
    }

    /// At its time the disk stops, then everything is killed.
    fn happen(
        &mut self,
        arena: &Arena,
        nodes: &[TrackedNode],
        victims: &mut Victims<'_>,
        finished: &dyn Fn() -> bool,
    ) {
        eventually(RECOVERY, || arena.reached.load(Ordering::Relaxed) >= self.at || finished());
        let_pass(self.random.delay(KILL_WITHIN));
        self.interrupts = !finished();
        let node = &nodes[self.victim];
        self.history_bytes = history_bytes(node);
        arena.events.note(format_args!("the power of node {} fails after #{}", self.victim, self.at));
        node.dark.store(true, Ordering::Relaxed);
        node.disk.as_ref().unwrap().cut_power();
        victims.end_agent(self.victim);
        arena.over.store(true, Ordering::Relaxed);
    }

    /// The power is back, and no process runs yet. Returns the pods that may still exist.
    fn power_on(
        &mut self,
        arena: &Arena,
        nodes: &mut [TrackedNode],
        shared: Option<&mut SharedStore>,
    ) -> Vec<Entry> {
        let node = &mut nodes[self.victim];
        let before = node.forget_all();
        for entry in &before {
            if let PodState::There(alive, _) = &entry.state {
                arena.owners.give_up(alive);
            }
        }
        node.site.remove_pods();
        node.site.node.reboot();
        if let Some(shared) = shared {
            shared.fabric().wire(&node.site.node);
        }
        let disk = node.disk.as_mut().unwrap();
        disk.power_off();
        disk.power_on(OPTIONS[self.random.below(OPTIONS.len())]);
        println!("{} of {} bytes of the history are there", history_bytes(node), self.history_bytes);
        self.garble_history(node);
        node.dark.store(false, Ordering::Relaxed);
        before
    }

    fn garble_history(&mut self, node: &TrackedNode) {
        let Ok(mut history) = OpenOptions::new().append(true).open(node.site.node.path(HISTORY)) else {
            return;
        };
        let bytes = usize::try_from(history.metadata().unwrap().len()).unwrap();
        match self.random.below(3) {
            0 => {}
            1 => history.set_len(self.random.below(bytes + 1) as u64).unwrap(),
            _ => history.write_all(self.random.hex().as_bytes()).unwrap(),
        }
    }

    /// Checks what the store must have kept, and what it must have lost: all but the addresses that
    /// DELs were about to release when the power failed, which have no owner from here on.
    fn assert_kept(&self, nodes: &[TrackedNode], before: &[Entry]) -> usize {
        let records =
            StoreRecords::read(&nodes[self.victim].site).expect("the store can be read after a power cut");
        let mut acknowledged = 0;
        for entry in before {
            let PodState::There(alive, _) = &entry.state else { continue };
            let wanted = alive.addresses.iter().map(String::as_str).collect();
            assert_eq!(
                records.addresses(&alive.pod.container),
                wanted,
                "{} after a power cut",
                alive.pod.container
            );
            acknowledged += 1;
        }
        let here = |container: &str| before.iter().any(|entry| entry.pod.container == container);
        let elsewhere = |container: &str| nodes.iter().any(|node| node.get(container).is_some());
        let containers =
            records.held.iter().filter_map(|entry| entry.split_once(' ')).map(|(container, _)| container);
        let held: BTreeSet<&str> =
            containers.filter(|container| !here(container) && !elsewhere(container)).collect();
        println!("{} pods were deleted, and their addresses are still held", held.len());
        assert!(held.len() <= LATE_MAX, "deleted, and held after a power cut: {held:?}");
        for container in held {
            let netns_name = format!("gone-{}", &container[..12]);
            nodes[self.victim]
                .set(&TestPod { container: container.to_owned(), netns_name }, PodState::Forgotten);
        }
        acknowledged
    }

    /// The runtimes delete some of their dead pods.
    fn delete_some_dead(&mut self, node: &TrackedNode, before: &[Entry]) {
        for Entry { pod, .. } in before {
            node.set(pod, if self.random.once_in(3) { PodState::Dead } else { PodState::Forgotten });
        }
    }
}

fn history_bytes(node: &TrackedNode) -> u64 {
    node.site.node.path(HISTORY).metadata().map_or(0, |metadata| metadata.len())
}

/// The node of the untouched pods; None if there is only one node.
fn survivor<'a>(nodes: &'a [TrackedNode], cut: &Cut) -> Option<&'a TrackedNode> {
    let next = (cut.victim + 1) % nodes.len();
    (next != cut.victim).then(|| &nodes[next])
}

pub fn trial(field: Field) {
    let (seed, cuts) = (seed(), number("RUSSET_CHAOS_CUTS", CUTS));
    println!("cargo xtask chaos --cuts {cuts} --seed {seed} --field power-{}", field.name());
    let mut shared = None;
    let pools = OwnPools::take();
    let mut nodes = nodes(field, &mut shared, seed, &pools);
    for node in &mut nodes {
        std::fs::create_dir(node.site.node.path("var")).unwrap();
        node.disk = Some(Disk::new(&node.site.node.path("var"), OPTIONS[0]));
    }
    let (ops, kills) = (cuts * OPS_PER_CUT, cuts * KILLS_PER_CUT);
    let order = Parameters {
        seed,
        ops,
        kills,
        workers: WORKERS * nodes.len(),
        sites: nodes.len(),
        shared: shared.is_some(),
    };
    let plan = Plan::of(order);
    let arena = Arena::new(&format!("{seed}-power-{}", field.name()));
    let mut slots = vec![Slots::default(); order.workers];
    let (mut interrupted, mut kept, began) = (0, 0, Instant::now());
    for round in 0..cuts {
        let mut plan = plan.round(round, cuts);
        let mut cut = Cut::of(order, round, &plan);
        // Later kills would be waited for until the round ends.
        plan.kills.retain(|kill| kill.at < cut.at);
        let untouched = until_cut(&arena, &nodes, shared.as_mut(), (&plan, &mut slots), &mut cut);
        let before = cut.power_on(&arena, &mut nodes, shared.as_mut());
        let _evidence = Evidence(&arena, &nodes);
        let acknowledged = cut.assert_kept(&nodes, &before);
        cut.delete_some_dead(&nodes[cut.victim], &before);
        let victims = boot(&nodes, shared.as_mut());
        let counts = check_everything(&arena, &nodes, field.by_gc(round));
        if let (Some(untouched), Some(node)) = (untouched, survivor(&nodes, &cut)) {
            untouched.retire(&arena, node);
        }
        interrupted += usize::from(cut.interrupts);
        kept += acknowledged;
        drop(victims);
        clear(&mut slots, &nodes);
        println!(
            "cut {} of {cuts}, {:.0?}: {acknowledged} of {} pods were acknowledged and all found; {counts:?}",
            round + 1,
            began.elapsed(),
            before.len()
        );
    }
    let _evidence = Evidence(&arena, &nodes);
    let _victims = boot(&nodes, shared.as_mut());
    end(&arena, &nodes);
    summary(&arena, &plan, began);
    println!("{interrupted} of {cuts} cuts were in the middle of something");
    assert!(2 * interrupted > cuts, "the power failed when all was quiet");
    // Checks by the watcher do not count: a boot may be over before one.
    assert!(kept >= cuts, "of {cuts} cuts there were {kept} pods to be kept");
}

fn boot<'a>(nodes: &'a [TrackedNode], shared: Option<&'a mut SharedStore>) -> Victims<'a> {
    Victims::new(shared, nodes.iter().map(|node| &node.site).collect())
}

/// From one boot to the next cut. The untouched pods are on a node whose power stays.
fn until_cut(
    arena: &Arena,
    nodes: &[TrackedNode],
    shared: Option<&mut SharedStore>,
    (plan, slots): (&Plan, &mut [Slots]),
    cut: &mut Cut,
) -> Option<UntouchedPods> {
    let _evidence = Evidence(arena, nodes);
    let mut victims = boot(nodes, shared);
    let survivor = survivor(nodes, cut);
    let untouched = survivor.map(|node| UntouchedPods::settle(arena, std::slice::from_ref(node)));
    run_load(arena, nodes, &mut victims, (plan, slots), |victims, finished| {
        cut.happen(arena, nodes, victims, finished);
    });
    untouched
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
