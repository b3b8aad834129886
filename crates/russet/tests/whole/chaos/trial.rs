//! `cargo xtask chaos`: thousands of runtimes' operations, with hundreds of kill -9 of plugins,
//! agents, etcd and the API server.
//!
//! A seed decides the operations and the kills ([`plan`]). Threads execute them ([`runtime_thread`]) and
//! record what must exist ([`tracked_node`]); a watcher compares that with the store and the pods all the
//! time, and each round ends with a comparison of everything ([`final_check`]). Datagrams between
//! pods that are not touched are counted. `RUSSET_CHAOS_SEED`, `RUSSET_CHAOS_OPS` and
//! `RUSSET_CHAOS_KILLS` set the amount.

mod event_log;
mod files;
mod final_check;
mod lost_node;
mod plan;
mod power;
mod runtime_thread;
mod stream;
mod tracked_node;
mod watcher;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use russet_linux::FileLock;
use russet_testkit::{eventually, let_pass};

use super::shared_store::SharedStore;
use super::site::{Plugin, Site};
use super::victims::Victims;
use super::worker::Alive;
use super::{RECOVERY, setting};
use crate::configured::Configured;
use crate::conversation::Conversation;
use crate::fabric::Fabric;
use crate::kubernetes::Cluster;
use crate::node::TestPod;
use crate::pinging::Pinging;
use final_check::check_everything;
use plan::{Parameters, Plan, PlannedKill, SLOTS, Victim};
use runtime_thread::{Arena, RuntimeThread};
use stream::Stream;
use tracked_node::{PodState, TrackedNode};

/// The amount of `cargo xtask test`.
const OPS: usize = 500;
const KILLS: usize = 25;
/// Operations between two full comparisons.
const OPS_PER_ROUND: usize = 250;
/// Runtime threads of each node.
const WORKERS: usize = 3;
/// The interval between a connection's round trips: each is checked, and the CPUs are needed for
/// the load.
const GAP: Duration = Duration::from_millis(5);
/// Agents look for leaks all the time.
const LEAK_REPAIR: (&str, &str) = ("leak_repair", "2s");
/// The number of trials on one machine that have pools of their own.
const POOLS: u8 = 16;

/// The topology of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// One node with a store of its own.
    Embedded,
    /// Two nodes with a common etcd.
    Etcd(Plugin),
    /// Four nodes of a Kubernetes cluster.
    Kubernetes,
}

// === impl Field ===

impl Field {
    /// Its name for `cargo xtask chaos --field`.
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Etcd(Plugin::Russet) => "etcd",
            Self::Etcd(Plugin::Calico) => "calico",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Runtime threads of each node. A cluster has 20 on its four nodes.
    fn workers(self) -> usize {
        if self == Self::Kubernetes { 5 } else { WORKERS }
    }

    /// Whether GC removes the forgotten pods in this round, or the agents' own repair. Calico's
    /// endpoints count as owners of addresses, so with Calico's plugin only GC can.
    fn by_gc(self, round: usize) -> bool {
        self == Self::Etcd(Plugin::Calico) || round.is_multiple_of(2)
    }
}

/// Pools that no other test has at the same time. Repairs read all namespaces of the machine, so
/// pods of another test with the same addresses would keep a leaked address allocated.
struct OwnPools {
    ipv4: String,
    ipv6: String,
    _lock: FileLock,
}

/// Pods that no operation touches, and the traffic between them.
struct UntouchedPods {
    pods: Vec<TestPod>,
    streams: Vec<Stream>,
    pinging: Vec<Pinging>,
    conversation: Conversation,
}

/// Ends a round for all threads when one panics.
struct OverOnPanic<'a>(&'a Arena);

// === impl OverOnPanic ===

impl Drop for OverOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.over.store(true, Ordering::Relaxed);
        }
    }
}

// === impl OwnPools ===

impl OwnPools {
    /// The first free ones; other trials may be in other processes.
    fn take() -> Self {
        let lock_of = |number: u8| {
            let path = std::env::temp_dir().join(format!("russet-chaos-pools-{number}.lock"));
            Some((number, FileLock::try_exclusive(path).unwrap()?))
        };
        let (number, lock) = (0..POOLS).find_map(lock_of).expect("too many trials run at the same time");
        let ipv4 = format!("10.249.{}.0/20", 16 * number);
        Self { ipv4, ipv6: format!("fd72:7573:7365:c4{:x}::/64", 0xa0 + number), _lock: lock }
    }

    fn settings(&self) -> [(&str, &str); 2] {
        [("ipv4_pool", &self.ipv4), ("ipv6_pool", &self.ipv6)]
    }
}

// === impl UntouchedPods ===

impl UntouchedPods {
    /// Two pods on the first node, and one on the last.
    fn settle(arena: &Arena, nodes: &[TrackedNode]) -> Self {
        let (first, last) = (&nodes[0], &nodes[nodes.len() - 1]);
        let [a, b, c] = [first, first, last].map(|node| {
            let pod = node.site.new_pod();
            let answer = node.site.call("ADD", &pod, None).unwrap();
            let alive = Alive::of(pod.clone(), &answer);
            arena.owners.claim(&alive);
            node.set(&pod, PodState::There(alive.clone(), answer.result()));
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

    /// No datagram may have been lost.
    fn finish(self) {
        self.conversation.finish();
        let counts: Vec<u64> = self.streams.into_iter().map(Stream::finish).collect();
        println!("{counts:?} datagrams between pods that were left alone, none lost, doubled or overtaken");
        self.pinging.into_iter().for_each(Pinging::finish);
    }

    /// The same, and from now on the pods are not needed.
    fn retire(self, arena: &Arena, node: &TrackedNode) {
        let mine = |alive: &Alive| self.pods.iter().any(|pod| pod.container == alive.pod.container);
        for (alive, _) in node.alive().iter().filter(|(alive, _)| mine(alive)) {
            arena.owners.give_up(alive);
            node.set(&alive.pod, PodState::Dead);
        }
        self.finish();
    }
}

/// Kills a process at its planned time, and starts it again.
fn kill_and_restart(
    arena: &Arena,
    victims: &mut Victims<'_>,
    kill: &PlannedKill,
    finished: &dyn Fn() -> bool,
) {
    eventually(RECOVERY, || arena.reached.load(Ordering::Relaxed) >= kill.at || finished());
    let_pass(kill.delay);
    arena.events.note(format_args!("kill {:?} after #{} and {:?}", kill.victim, kill.at, kill.delay));
    match kill.victim {
        Victim::Agent(index) => victims.kill_agent(index, kill.down),
        Victim::Store => victims.kill_store(kill.down),
    }
    if !kill.skip_recovery_wait {
        let before = arena.successes.load(Ordering::Relaxed);
        eventually(RECOVERY, || arena.successes.load(Ordering::Relaxed) > before + WORKERS || finished());
    }
    victims.assert_alive();
}

type Slots = [Option<TestPod>; SLOTS];

/// Runs all threads of a round while processes are killed; returns the time of the next kill.
fn run_load(
    arena: &Arena,
    nodes: &[TrackedNode],
    victims: &mut Victims<'_>,
    (plan, slots): (&Plan, &mut [Slots]),
    last: impl FnOnce(&mut Victims<'_>, &dyn Fn() -> bool),
) {
    std::thread::scope(|scope| {
        let _over = OverOnPanic(arena);
        let workers: Vec<_> = plan
            .workers
            .iter()
            .zip(slots)
            .enumerate()
            .map(|(index, (steps, slots))| {
                let node = &nodes[index % nodes.len()];
                scope.spawn(move || {
                    let _over = OverOnPanic(arena);
                    RuntimeThread::play(arena, node, slots, steps);
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let _over = OverOnPanic(arena);
            arena.seen.watch(arena, nodes);
        });
        let finished = || workers.iter().all(std::thread::ScopedJoinHandle::is_finished) || arena.is_over();
        for kill in &plan.kills {
            if arena.is_over() {
                break;
            }
            kill_and_restart(arena, victims, kill, &finished);
        }
        last(victims, &finished);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        arena.over.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    arena.over.store(false, Ordering::Relaxed);
}

/// The evidence of a failed trial: the nodes' files and their kernels' state.
struct Evidence<'a>(&'a Arena, &'a [TrackedNode]);

// === impl Evidence ===

impl Drop for Evidence<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let place = self.0.events.place();
        for (index, node) in self.1.iter().enumerate() {
            let (node, netns) = (&node.site.node, node.site.node.netns_name());
            let dir = place.join(format!("node-{index}"));
            let copy = "mkdir -p \"$2\"; cp -r \"$1\"/agent.log \"$1\"/run \"$1\"/var \"$1\"/etc \"$2\"/; \
                for what in 'link' 'address' '-4 route' '-6 route' 'neigh'; do ip -n \"$3\" -d $what; done >\"$2\"/ip.txt; \
                ip netns exec \"$3\" nft list ruleset >\"$2\"/nft.txt";
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", copy, "sh"]).arg(node.root()).arg(&dir).arg(netns);
            let _ = sh.stderr(std::process::Stdio::null()).status();
            let records = node.russet_inside(&["store", "dump"]);
            let _ = std::fs::write(dir.join("store.json"), records.stdout);
        }
        eprintln!("--- artefacts: {}", place.display());
    }
}

fn nodes(field: Field, shared: &mut Option<SharedStore>, seed: u64, pools: &OwnPools) -> Vec<TrackedNode> {
    let how = |node| Configured::from_seed(seed, node);
    let mut sites = match field {
        Field::Embedded => vec![Site::alone("n1", how(0))],
        Field::Etcd(plugin) => {
            let fabric = shared.insert(SharedStore::Etcd(Fabric::new())).fabric();
            if plugin == Plugin::Calico {
                crate::calico_containerd::found_cluster(fabric);
            }
            vec![Site::new(fabric, "n1", plugin, how(0)), Site::new(fabric, "n2", plugin, how(1))]
        }
        Field::Kubernetes => {
            let mut cluster = Cluster::new();
            let names = ["n1", "n2", "n3", "n4"].into_iter().enumerate();
            let sites = names.map(|(index, name)| Site::in_cluster(&mut cluster, name, how(index))).collect();
            *shared = Some(SharedStore::Kubernetes(Box::new(cluster)));
            sites
        }
    };
    // In place of Calico the pools are the cluster's.
    let pools = if field == Field::Etcd(Plugin::Calico) { Vec::new() } else { pools.settings().to_vec() };
    sites.iter_mut().for_each(|site| site.set(&[&[LEAK_REPAIR], &pools[..]].concat()));
    sites.into_iter().map(TrackedNode::new).collect()
}

/// Deletes every pod; nothing may be left.
fn end(arena: &Arena, nodes: &[TrackedNode]) {
    for node in nodes {
        for pod in node.valid() {
            node.set(&pod, PodState::Dead);
        }
    }
    check_everything(arena, nodes, false);
}

fn number(name: &str, otherwise: usize) -> usize {
    setting(name).map_or(otherwise, |number| usize::try_from(number).unwrap())
}

fn seed() -> u64 {
    setting("RUSSET_CHAOS_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
}

/// Clears slots whose pods are gone.
fn clear(slots: &mut [Slots], nodes: &[TrackedNode]) {
    for (worker, slots) in slots.iter_mut().enumerate() {
        let node = &nodes[worker % nodes.len()];
        slots.iter_mut().for_each(|slot| _ = slot.take_if(|pod| node.get(&pod.container).is_none()));
    }
}

fn trial(field: Field) {
    let seed = seed();
    let (ops, kills) = (number("RUSSET_CHAOS_OPS", OPS), number("RUSSET_CHAOS_KILLS", KILLS));
    println!("cargo xtask chaos --ops {ops} --kills {kills} --seed {seed} --field {}", field.name());
    let mut shared = None;
    let pools = OwnPools::take();
    let nodes = nodes(field, &mut shared, seed, &pools);
    let workers = field.workers() * nodes.len();
    let order = Parameters { seed, ops, kills, workers, sites: nodes.len(), shared: shared.is_some() };
    let (plan, rounds) = (Plan::of(order), ops.div_ceil(OPS_PER_ROUND));
    let arena = Arena::new(&format!("{seed}-{}", field.name()));
    let _evidence = Evidence(&arena, &nodes);
    let mut victims = Victims::new(shared.as_mut(), nodes.iter().map(|node| &node.site).collect());
    let untouched = UntouchedPods::settle(&arena, &nodes);
    let mut slots = vec![Slots::default(); order.workers];
    let began = Instant::now();
    for round in 0..rounds {
        run_load(&arena, &nodes, &mut victims, (&plan.round(round, rounds), &mut slots), |_, _| {});
        victims.wait_until_ready();
        let counts = check_everything(&arena, &nodes, field.by_gc(round));
        clear(&mut slots, &nodes);
        println!("round {} of {rounds}, {:.0?}: {counts:?}", round + 1, began.elapsed());
    }
    untouched.finish();
    let remaining = match field {
        Field::Kubernetes => lost_node::lose_last(&arena, &nodes, &mut victims),
        Field::Embedded | Field::Etcd(_) => &nodes,
    };
    end(&arena, remaining);
    summary(&arena, &plan, began);
    let seen = [&arena.seen.in_store, &arena.seen.in_pods].map(|count| count.load(Ordering::Relaxed));
    assert!(seen.iter().all(|count| *count > 0), "nothing was checked: {seen:?}");
    let (planned, killed) = (plan.plugin_kills(), arena.killed.load(Ordering::Relaxed));
    assert!(2 * killed >= planned, "of {planned} plugins that were to be killed only {killed} were");
}

/// The result of a trial.
fn summary(arena: &Arena, plan: &Plan, began: Instant) {
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{} operations, {} requests answered ({} with success), {} plugins and {} daemons killed, {:.0?}",
        count(&arena.started),
        count(&arena.answers),
        count(&arena.successes),
        count(&arena.killed),
        plan.kills.len(),
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

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ip, nft, ping; takes a minute"]
fn kills_at_random_leave_no_trace_on_four_nodes_of_a_kubernetes_cluster() {
    trial(Field::Kubernetes);
}
