//! `cargo xtask chaos`: operations of runtimes by the thousand, with kill -9 of plugins, agents and etcd by the hundred.
//!
//! A seed decides what is done and who is killed ([`plan`]). Lanes do it ([`player`]) and remember what must be there ([`ward`]); a watcher compares that
//! with the store and the pods all the time, and after each round everything there is with everything there should be ([`reckoning`]). Between pods
//! that nobody touches datagrams are counted. `RUSSET_CHAOS_SEED`, `RUSSET_CHAOS_OPS` and `RUSSET_CHAOS_KILLS` say what is asked for.

mod diary;
mod files;
mod plan;
mod player;
mod power;
mod reckoning;
mod stream;
mod ward;
mod watcher;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use russet_testkit::{eventually, let_pass};

use super::lane::Alive;
use super::setting;
use super::site::{Plugin, Site};
use super::victims::Victims;
use crate::configured::Configured;
use crate::conversation::Conversation;
use crate::fabric::Fabric;
use crate::node::TestPod;
use crate::pinging::Pinging;
use plan::{Blow, Order, Plan, SLOTS, Victim};
use player::{Arena, Player};
use reckoning::reckon;
use stream::Stream;
use ward::{State, Ward};

/// What `cargo xtask test` does.
const OPS: usize = 500;
const KILLS: usize = 25;
/// Operations between two reckonings.
const OPS_PER_ROUND: usize = 250;
/// Lanes of each node.
const LANES: usize = 3;
/// After a blow, how long it may take until requests succeed again.
const RECOVERY: Duration = Duration::from_secs(90);
/// A connection's pace: each round trip is checked, and the processors are for the storm.
const GAP: Duration = Duration::from_millis(5);
/// Pools that are no other test's: repairs look at all namespaces of the machine. Agents look for leaks all the time.
const SETTINGS: [(&str, &str); 3] =
    [("leak_repair", "2s"), ("ipv4_pool", "10.249.0.0/20"), ("ipv6_pool", "fd72:7573:7365:c4a0::/64")];

/// Where a trial takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// One node with a store of its own.
    Embedded,
    /// Two nodes with an etcd in common.
    Etcd(Plugin),
}

// === impl Field ===

impl Field {
    /// As `cargo xtask chaos --field` calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Etcd(Plugin::Russet) => "etcd",
            Self::Etcd(Plugin::Calico) => "calico",
        }
    }

    /// Whether the forgotten are found by GC in this round, or by the agents themselves. Endpoints of Calico's speak for addresses, so that there only
    /// GC can tell.
    fn by_gc(self, round: usize) -> bool {
        self == Self::Etcd(Plugin::Calico) || round.is_multiple_of(2)
    }
}

/// Pods that nobody touches, and what they say to each other.
struct Spared {
    pods: Vec<TestPod>,
    streams: Vec<Stream>,
    pinging: Vec<Pinging>,
    conversation: Conversation,
}

/// Ends a round for everybody when somebody panics.
struct OverOnPanic<'a>(&'a Arena);

// === impl OverOnPanic ===

impl Drop for OverOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.over.store(true, Ordering::Relaxed);
        }
    }
}

// === impl Spared ===

impl Spared {
    /// Two pods on the first node, and one on the last.
    fn settle(arena: &Arena, wards: &[Ward]) -> Self {
        let (first, last) = (&wards[0], &wards[wards.len() - 1]);
        let [a, b, c] = [first, first, last].map(|ward| {
            let pod = ward.site.new_pod();
            let answer = ward.site.call("ADD", &pod, None).unwrap();
            let alive = Alive::of(pod.clone(), &answer);
            arena.owners.claim(&alive);
            ward.set(&pod, State::There(alive.clone(), answer.result()));
            alive
        });
        let streams = [(&a, &b), (&c, &a)].map(|(from, to)| Stream::start(from, to, &to.addresses[0]));
        // Between nodes the underlay carries IPv4 only.
        let targets = c.addresses.iter().take(1).chain(a.addresses.iter().skip(1));
        let pinging = targets.map(|address| Pinging::start(&b.pod, address)).collect();
        let conversation = Conversation::start(&a.netns(), &c.netns(), &c.addresses[0], GAP);
        let pods = [a, b, c].map(|alive| alive.pod).into();
        Self { pods, streams: streams.into(), pinging, conversation }
    }

    /// Nothing may have been lost.
    fn finish(self) {
        self.conversation.finish();
        let counts: Vec<u64> = self.streams.into_iter().map(Stream::finish).collect();
        println!("{counts:?} datagrams between pods that were left alone, none lost, doubled or overtaken");
        self.pinging.into_iter().for_each(Pinging::finish);
    }

    /// The same, and from now on nobody needs them.
    fn retire(self, arena: &Arena, ward: &Ward) {
        let mine = |alive: &Alive| self.pods.iter().any(|pod| pod.container == alive.pod.container);
        for (alive, _) in ward.alive().iter().filter(|(alive, _)| mine(alive)) {
            arena.owners.give_up(alive);
            ward.set(&alive.pod, State::Dead);
        }
        self.finish();
    }
}

/// One thing dies when the plan says so, and comes back.
fn strike(arena: &Arena, victims: &mut Victims<'_>, blow: &Blow, finished: &dyn Fn() -> bool) {
    eventually(RECOVERY, || arena.reached.load(Ordering::Relaxed) >= blow.at || finished());
    let_pass(blow.delay);
    arena.diary.note(format_args!("kill {:?} after #{} and {:?}", blow.victim, blow.at, blow.delay));
    match blow.victim {
        Victim::Agent(index) => victims.kill_agent(index, blow.down),
        Victim::Etcd => victims.kill_etcd(blow.down),
    }
    if !blow.hasty {
        let before = arena.successes.load(Ordering::Relaxed);
        eventually(RECOVERY, || arena.successes.load(Ordering::Relaxed) > before + LANES || finished());
    }
    victims.assert_alive();
}

type Slots = [Option<TestPod>; SLOTS];

/// All lanes of a round at once, while the plan's victims die; and what is to happen after these.
fn rage(
    arena: &Arena,
    wards: &[Ward],
    victims: &mut Victims<'_>,
    (plan, slots): (&Plan, &mut [Slots]),
    last: impl FnOnce(&mut Victims<'_>, &dyn Fn() -> bool),
) {
    std::thread::scope(|scope| {
        let _over = OverOnPanic(arena);
        let lanes: Vec<_> = plan
            .lanes
            .iter()
            .zip(slots)
            .enumerate()
            .map(|(index, (steps, slots))| {
                let ward = &wards[index % wards.len()];
                scope.spawn(move || {
                    let _over = OverOnPanic(arena);
                    Player::play(arena, ward, slots, steps);
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let _over = OverOnPanic(arena);
            arena.seen.watch(arena, wards);
        });
        let finished = || lanes.iter().all(std::thread::ScopedJoinHandle::is_finished) || arena.is_over();
        for blow in &plan.blows {
            if arena.is_over() {
                break;
            }
            strike(arena, victims, blow, &finished);
        }
        last(victims, &finished);
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        arena.over.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    arena.over.store(false, Ordering::Relaxed);
}

/// What is left of a trial that failed: the nodes' files and what their kernels have.
struct Evidence<'a>(&'a Arena, &'a [Ward]);

// === impl Evidence ===

impl Drop for Evidence<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let place = self.0.diary.place();
        for (index, ward) in self.1.iter().enumerate() {
            let (node, netns) = (&ward.site.node, ward.site.node.netns_name());
            let dir = place.join(format!("node-{index}"));
            let copy = "mkdir -p \"$2\"; cp -r \"$1\"/agent.log \"$1\"/run \"$1\"/var \"$1\"/etc \"$2\"/; \
                for what in 'link' 'address' '-4 route' '-6 route' 'neigh'; do ip -n \"$3\" -d $what; done >\"$2\"/ip.txt; \
                ip netns exec \"$3\" nft list ruleset >\"$2\"/nft.txt";
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", copy, "sh"]).arg(node.root()).arg(&dir).arg(netns);
            let _ = sh.stderr(std::process::Stdio::null()).status();
            let books = node.russet_inside(&["store", "dump"]);
            let _ = std::fs::write(dir.join("store.json"), books.stdout);
        }
        eprintln!("--- artefacts: {}", place.display());
    }
}

fn wards(field: Field, fabric: &mut Option<Fabric>, seed: u64) -> Vec<Ward> {
    let how = |node| Configured::of_seed(seed, node);
    let mut sites = match field {
        Field::Embedded => vec![Site::alone("n1", how(0))],
        Field::Etcd(plugin) => {
            let fabric = fabric.insert(Fabric::new());
            if plugin == Plugin::Calico {
                crate::calico_containerd::found_cluster(fabric);
            }
            vec![Site::new(fabric, "n1", plugin, how(0)), Site::new(fabric, "n2", plugin, how(1))]
        }
    };
    // In Calico's place the pools are the cluster's.
    let settings = if field == Field::Etcd(Plugin::Calico) { &SETTINGS[..1] } else { &SETTINGS };
    sites.iter_mut().for_each(|site| site.set(settings));
    sites.into_iter().map(Ward::new).collect()
}

/// Every pod is deleted, and nothing may be left.
fn end(arena: &Arena, wards: &[Ward]) {
    for ward in wards {
        for pod in ward.valid() {
            ward.set(&pod, State::Dead);
        }
    }
    reckon(arena, wards, false);
}

fn number(name: &str, otherwise: usize) -> usize {
    setting(name).map_or(otherwise, |number| usize::try_from(number).unwrap())
}

fn seed() -> u64 {
    setting("RUSSET_CHAOS_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
}

/// Slots whose pods are gone are free.
fn clear(slots: &mut [Slots], wards: &[Ward]) {
    for (lane, slots) in slots.iter_mut().enumerate() {
        let ward = &wards[lane % wards.len()];
        slots.iter_mut().for_each(|slot| _ = slot.take_if(|pod| ward.get(&pod.container).is_none()));
    }
}

fn trial(field: Field) {
    let seed = seed();
    let (ops, kills) = (number("RUSSET_CHAOS_OPS", OPS), number("RUSSET_CHAOS_KILLS", KILLS));
    println!("cargo xtask chaos --ops {ops} --kills {kills} --seed {seed} --field {}", field.name());
    let mut fabric = None;
    let wards = wards(field, &mut fabric, seed);
    let etcd = fabric.is_some();
    let order = Order { seed, ops, kills, lanes: LANES * wards.len(), sites: wards.len(), etcd };
    let (plan, rounds) = (Plan::of(order), ops.div_ceil(OPS_PER_ROUND));
    let arena = Arena::new(&format!("{seed}-{}", field.name()));
    let _evidence = Evidence(&arena, &wards);
    let mut victims = Victims::new(fabric.as_mut(), wards.iter().map(|ward| &ward.site).collect());
    let spared = Spared::settle(&arena, &wards);
    let mut slots = vec![Slots::default(); order.lanes];
    let began = Instant::now();
    for round in 0..rounds {
        rage(&arena, &wards, &mut victims, (&plan.round(round, rounds), &mut slots), |_, _| {});
        victims.wait_until_ready();
        let tally = reckon(&arena, &wards, field.by_gc(round));
        clear(&mut slots, &wards);
        println!("round {} of {rounds}, {:.0?}: {tally:?}", round + 1, began.elapsed());
    }
    spared.finish();
    end(&arena, &wards);
    summary(&arena, &plan, began);
    let seen = [&arena.seen.in_store, &arena.seen.in_pods].map(|count| count.load(Ordering::Relaxed));
    assert!(seen.iter().all(|count| *count > 0), "nobody was looked at: {seen:?}");
    let (planned, killed) = (plan.plugin_kills(), arena.killed.load(Ordering::Relaxed));
    assert!(2 * killed >= planned, "of {planned} plugins that were to be killed only {killed} were");
}

/// What a trial came to.
fn summary(arena: &Arena, plan: &Plan, began: Instant) {
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{} operations, {} requests answered ({} with success), {} plugins and {} daemons killed, {:.0?}",
        count(&arena.begun),
        count(&arena.answers),
        count(&arena.successes),
        count(&arena.killed),
        plan.blows.len(),
        began.elapsed()
    );
    let (in_store, in_pods) = (count(&arena.seen.in_store), count(&arena.seen.in_pods));
    println!("meanwhile pods were looked up in the store {in_store} times, and {in_pods} times into one");
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, nft, ping; takes a minute"]
fn kills_at_random_leave_no_trace_on_a_node_with_its_own_store() {
    trial(Field::Embedded);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, nft, ping; takes a minute"]
fn kills_at_random_leave_no_trace_on_two_nodes_of_an_etcd() {
    trial(Field::Etcd(Plugin::Russet));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, nft, ping; takes a minute"]
fn kills_at_random_leave_no_trace_of_calicos_plugin() {
    trial(Field::Etcd(Plugin::Calico));
}
