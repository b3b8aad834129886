//! kill -9 at random moments during many ADDs and DELs: plugins, agents and etcd. The agents get
//! their settings by flags, by variables or by their file, and plugins without them get none.
//!
//! A seed, which is printed, decides the operations; the timing is the machine's.
//! `RUSSET_CHAOS_SEED` repeats one, `RUSSET_CHAOS_MOMENTS` is the number of kills.

mod kernel;
mod owners;
mod shared_store;
mod site;
mod store_records;
mod trial;
mod victims;
mod worker;

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use russet_testkit::{eventually, let_pass};

use crate::configured::Configured;
use crate::conversation::Conversation;
use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestPod};
use crate::pinging::Pinging;
use russet_testkit::Random;
use shared_store::SharedStore;
use site::{Plugin, Site};
use store_records::StoreRecords;
use victims::Victims;
use worker::{Alive, Remaining, SharedLoad};

/// The number of kills, unless the environment sets it.
const MOMENTS: usize = 50;
/// Concurrent plugins on each node.
const WORKERS: usize = 3;
/// Longest time until the next kill, and from then until the restart.
const PAUSE: Duration = Duration::from_millis(150);
/// How long after a kill requests may fail: etcd's own restart takes two seconds, an API server's a
/// few more, and the pauses of those that wait for it double up to 30 s.
const RECOVERY: Duration = Duration::from_secs(90);
/// The time between a repair's two checks. By then every request is answered.
const REPAIR_GRACE: &str = "1s";
/// A little longer than the grace.
const YOUNG: Duration = Duration::from_millis(1200);
/// The interval between a connection's round trips: each is checked, and the CPUs are needed for
/// the load.
const GAP: Duration = Duration::from_millis(5);

/// Stops the workers when the test's main thread panics, too: they would never end.
struct StopOnPanic<'a>(&'a SharedLoad);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

// === impl StopOnPanic ===

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Kills a process, and starts it again.
fn kill_and_restart(victims: &mut Victims<'_>, load: &SharedLoad, random: &mut Random) {
    let_pass(random.delay(PAUSE));
    match random.below(10) {
        0..4 => {
            load.orders.fetch_add(1, Ordering::Relaxed);
            eventually(TIMEOUT, || load.orders.load(Ordering::Relaxed) == 0);
        }
        4..8 => victims.kill_agent(random.below(victims.sites.len()), random.delay(PAUSE)),
        _ => victims.kill_store(random.delay(PAUSE)),
    }
    // Mostly every request succeeds again before the next kill; sometimes not.
    if !random.once_in(3) {
        let before = load.successes.load(Ordering::Relaxed);
        eventually(RECOVERY, || load.successes.load(Ordering::Relaxed) > before + WORKERS);
    }
    victims.assert_alive();
}

/// Runs workers on every node while processes are killed; returns each node's remaining pods.
fn run_load(load: &SharedLoad, victims: &mut Victims<'_>, seed: u64, moments: usize) -> Vec<Remaining> {
    let sites = &victims.sites.clone();
    std::thread::scope(|scope| {
        let stop_on_panic = StopOnPanic(load);
        let workers: Vec<_> = (0..sites.len() * WORKERS)
            .map(|worker| {
                let random = Random::of_thread(seed, worker as u64 + 1);
                scope.spawn(move || {
                    (worker % sites.len(), Remaining::by(load, sites[worker % sites.len()], random))
                })
            })
            .collect();
        let mut random = Random::of_thread(seed, 0);
        for _ in 0..moments {
            assert!(!workers.iter().any(std::thread::ScopedJoinHandle::is_finished), "a worker has failed");
            kill_and_restart(victims, load, &mut random);
        }
        drop(stop_on_panic);
        let mut left: Vec<Remaining> = sites.iter().map(|_| Remaining::default()).collect();
        for worker in workers {
            let (site, worker) = worker.join().unwrap();
            left[site].alive.extend(worker.alive);
            left[site].dead.extend(worker.dead);
            left[site].forgotten.extend(worker.forgotten);
        }
        left
    })
}

/// Sends the DELs that runtimes owe for their dead pods.
fn delete_dead(site: &Site, dead: &[TestPod]) {
    for pod in dead {
        let answer = site.call("DEL", pod, None).unwrap();
        assert_eq!(answer.status, 0, "{}: {answer:?}", pod.container);
    }
}

/// Repairs once for the pods that no runtime knows any more: by the node's own repair on one node,
/// by the runtime's GC on the other. Calico's endpoints count as owners of addresses, so with
/// Calico's plugin GC is needed on both.
fn repair(sites: &[Site], plugin: Plugin, alive: &[Vec<&Alive>]) {
    for (index, (site, alive)) in sites.iter().zip(alive).enumerate() {
        if index == 0 {
            // Addresses younger than the grace are not released, and the workers forgot pods until
            // the end.
            let_pass(YOUNG);
            let answer = site.node.russet_inside(&["ipam", "repair", "--grace", REPAIR_GRACE]);
            assert_eq!(answer.status, 0, "{}{}", answer.stdout, answer.stderr);
            println!("{}", answer.stdout.lines().last().unwrap_or_default());
        }
        if index != 0 || plugin == Plugin::Calico {
            let valid: Vec<&TestPod> = alive.iter().map(|alive| &alive.pod).collect();
            let answer = site.gc(&valid, None).unwrap();
            assert_eq!(answer.status, 0, "{answer:?}");
        }
    }
}

/// The store has the records of exactly its pods, and so has each node's kernel.
fn assert_holds(sites: &[Site], alive: &[Vec<&Alive>]) {
    // A DEL is answered before its addresses are released.
    sites.iter().for_each(|site| eventually(TIMEOUT, || site.node.unfinished() == 0));
    let mut faults = StoreRecords::read(&sites[0]).unwrap().faults(&alive.concat());
    for (site, alive) in sites.iter().zip(alive) {
        faults.extend(kernel::faults(site, alive));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn assert_check_finds_nothing(sites: &[Site]) {
    let answer = sites[0].node.russet_inside(&["ipam", "check"]);
    assert_eq!(answer.status, 0, "{}{}", answer.stdout, answer.stderr);
}

fn weather(plugin: Plugin) {
    let moments =
        setting("RUSSET_CHAOS_MOMENTS").map_or(MOMENTS, |moments| usize::try_from(moments).unwrap());
    let seed = setting("RUSSET_CHAOS_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
    println!("RUSSET_CHAOS_SEED={seed} RUSSET_CHAOS_MOMENTS={moments}");
    let mut fabric = Fabric::new();
    if plugin == Plugin::Calico {
        crate::calico_containerd::found_cluster(&fabric);
    }
    let sites = [("n1", 0), ("n2", 1)]
        .map(|(name, node)| Site::new(&mut fabric, name, plugin, Configured::from_seed(seed, node)));
    let mut shared = SharedStore::Etcd(fabric);
    let mut victims = Victims::new(Some(&mut shared), sites.iter().collect());
    let load = SharedLoad::default();

    // Two pods on one node and one on the other, whose traffic must not be interrupted.
    let untouched = [&sites[0], &sites[0], &sites[1]].map(|site| {
        let pod = site.new_pod();
        let alive = Alive::of(pod.clone(), &site.call("ADD", &pod, None).unwrap());
        load.owners.claim(&alive);
        alive
    });
    let [a, b, c] = &untouched;
    let pinging = [b, c].map(|to| Pinging::start(&a.pod, &to.addresses[0]));
    let conversation = Conversation::start(&a.netns(), &c.netns(), &c.addresses[0], GAP);

    let left = run_load(&load, &mut victims, seed, moments);
    let (answers, successes) = (load.answers.load(Ordering::Relaxed), load.successes.load(Ordering::Relaxed));
    println!("{answers} requests answered, {successes} of them with success");
    victims.wait_until_ready();
    conversation.finish();
    pinging.into_iter().for_each(Pinging::finish);

    for (site, left) in sites.iter().zip(&left) {
        println!(
            "{} pods live, {} are dead, {} forgotten",
            left.alive.len(),
            left.dead.len(),
            left.forgotten.len()
        );
        delete_dead(site, &left.dead);
    }
    let untouched = [&untouched[..2], &untouched[2..]];
    let alive =
        left.iter().zip(untouched).map(|(left, untouched)| left.alive.iter().chain(untouched).collect());
    let alive: Vec<Vec<&Alive>> = alive.collect();
    repair(&sites, plugin, &alive);
    assert_check_finds_nothing(&sites);
    assert_holds(&sites, &alive);
    // The surviving pods can be deleted.
    for (site, alive) in sites.iter().zip(&alive) {
        alive.iter().for_each(|alive| assert_eq!(site.call("DEL", &alive.pod, None).unwrap().status, 0));
    }
    assert_holds(&sites, &[vec![], vec![]]);
    assert_check_finds_nothing(&sites);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, ping; takes a minute"]
fn chaos_kill_minus_nine_at_any_moment_loses_no_address_of_the_native_plugin() {
    weather(Plugin::Russet);
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, ping; takes a minute"]
fn chaos_kill_minus_nine_at_any_moment_loses_no_address_of_calicos_plugin() {
    weather(Plugin::Calico);
}
