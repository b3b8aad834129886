//! kill -9 at random moments of storms of ADD and DEL: plugins, agents and etcd. The agents are set up by flags, by variables or by their file, and plugins
//! without them by nothing.
//!
//! What is tried is decided by a seed, which is printed; what it meets is the machine's affair. `RUSSET_CHAOS_SEED` repeats one,
//! `RUSSET_CHAOS_MOMENTS` says how often something is killed.

mod books;
mod kernel;
mod lane;
mod owners;
mod site;
mod trial;
mod victims;

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use russet_testkit::{eventually, let_pass};

use crate::configured::Configured;
use crate::conversation::Conversation;
use crate::fabric::Fabric;
use crate::node::{PATIENCE, TestPod};
use crate::pinging::Pinging;
use books::Books;
use lane::{Alive, Left, Storm};
use russet_testkit::Random;
use site::{Plugin, Site};
use victims::Victims;

/// Moments at which something is killed, unless the environment says otherwise.
const MOMENTS: usize = 50;
/// Plugins at once on each node.
const LANES: usize = 3;
/// Longest time until the next thing is killed, and from then until it is started again.
const PAUSE: Duration = Duration::from_millis(150);
/// After a blow, how long it may take until requests succeed again: etcd's own restart takes two seconds.
const RECOVERY: Duration = Duration::from_secs(90);
/// Between the two looks of a repair. By then every request is answered.
const REPAIR_GRACE: &str = "1s";
/// A little longer than that.
const YOUNG: Duration = Duration::from_millis(1200);
/// A connection's pace: each round trip is checked, and the processors are for the storm.
const GAP: Duration = Duration::from_millis(5);

/// Ends the storm when its conductor panics, too: the lanes would go on for ever.
struct Conductor<'a>(&'a Storm);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

// === impl Conductor ===

impl Drop for Conductor<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Something dies, and comes back.
fn strike(victims: &mut Victims<'_>, storm: &Storm, random: &mut Random) {
    let_pass(random.delay(PAUSE));
    match random.below(10) {
        0..4 => {
            storm.orders.fetch_add(1, Ordering::Relaxed);
            eventually(PATIENCE, || storm.orders.load(Ordering::Relaxed) == 0);
        }
        4..8 => victims.kill_agent(random.below(victims.sites.len()), random.delay(PAUSE)),
        _ => victims.kill_etcd(random.delay(PAUSE)),
    }
    // Mostly everything is well again before the next blow; now and then it is not.
    if !random.once_in(3) {
        let before = storm.successes.load(Ordering::Relaxed);
        eventually(RECOVERY, || storm.successes.load(Ordering::Relaxed) > before + LANES);
    }
    victims.assert_alive();
}

/// A storm on every node while the victims are struck; returns what the lanes of each node left.
fn rage(storm: &Storm, victims: &mut Victims<'_>, seed: u64, moments: usize) -> Vec<Left> {
    let sites = &victims.sites.clone();
    std::thread::scope(|scope| {
        let conductor = Conductor(storm);
        let lanes: Vec<_> = (0..sites.len() * LANES)
            .map(|lane| {
                let random = Random::of_thread(seed, lane as u64 + 1);
                scope.spawn(move || (lane % sites.len(), Left::by(storm, sites[lane % sites.len()], random)))
            })
            .collect();
        let mut random = Random::of_thread(seed, 0);
        for _ in 0..moments {
            assert!(!lanes.iter().any(std::thread::ScopedJoinHandle::is_finished), "a lane has failed");
            strike(victims, storm, &mut random);
        }
        drop(conductor);
        let mut left: Vec<Left> = sites.iter().map(|_| Left::default()).collect();
        for lane in lanes {
            let (site, lane) = lane.join().unwrap();
            left[site].alive.extend(lane.alive);
            left[site].dead.extend(lane.dead);
            left[site].forgotten.extend(lane.forgotten);
        }
        left
    })
}

/// What runtimes do afterwards with the pods that they know to be dead.
fn bury(site: &Site, dead: &[TestPod]) {
    for pod in dead {
        let answer = site.call("DEL", pod, None).unwrap();
        assert_eq!(answer.status, 0, "{}: {answer:?}", pod.container);
    }
}

/// One repair pass for the pods that nobody knows any more: the node's own on one node, the runtime's GC on the other. Endpoints of Calico's speak for
/// addresses, so that there GC has the last word on both.
fn repair(sites: &[Site], plugin: Plugin, alive: &[Vec<&Alive>]) {
    for (index, (site, alive)) in sites.iter().zip(alive).enumerate() {
        if index == 0 {
            // What is younger than the grace is left alone, and the storm forgot pods to its last moment.
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

/// The store has the records of its pods and no others, and so has each node.
fn assert_holds(sites: &[Site], alive: &[Vec<&Alive>]) {
    // A DEL is answered before its addresses are back.
    sites.iter().for_each(|site| eventually(PATIENCE, || site.node.unfinished() == 0));
    let mut faults = Books::read(&sites[0]).unwrap().faults(&alive.concat());
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
        .map(|(name, node)| Site::new(&mut fabric, name, plugin, Configured::of_seed(seed, node)));
    let mut victims = Victims::new(Some(&mut fabric), sites.iter().collect());
    let storm = Storm::default();

    // Two pods on one node and one on the other, that must notice nothing.
    let spared = [&sites[0], &sites[0], &sites[1]].map(|site| {
        let pod = site.new_pod();
        let alive = Alive::of(pod.clone(), &site.call("ADD", &pod, None).unwrap());
        storm.owners.claim(&alive);
        alive
    });
    let [a, b, c] = &spared;
    let pinging = [b, c].map(|to| Pinging::start(&a.pod, &to.addresses[0]));
    let conversation = Conversation::start(&a.netns(), &c.netns(), &c.addresses[0], GAP);

    let left = rage(&storm, &mut victims, seed, moments);
    let (answers, successes) =
        (storm.answers.load(Ordering::Relaxed), storm.successes.load(Ordering::Relaxed));
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
        bury(site, &left.dead);
    }
    let spared = [&spared[..2], &spared[2..]];
    let alive = left.iter().zip(spared).map(|(left, spared)| left.alive.iter().chain(spared).collect());
    let alive: Vec<Vec<&Alive>> = alive.collect();
    repair(&sites, plugin, &alive);
    assert_check_finds_nothing(&sites);
    assert_holds(&sites, &alive);
    // Nothing stands in the way of the end of those that lived.
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
