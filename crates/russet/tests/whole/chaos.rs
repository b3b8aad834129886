//! kill -9 at random moments of storms of ADD and DEL: plugins, agents and etcd (issue 4, "Must show").
//!
//! What is tried is decided by a seed, which is printed; what it meets is the machine's affair. `RUSSET_CHAOS_SEED` repeats one,
//! `RUSSET_CHAOS_MOMENTS` says how often something is killed.

mod lane;
mod random;
mod site;

use std::collections::BTreeSet;
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use russet_testkit::{eventually, let_pass};
use serde_json::Value;

use crate::conversation::Conversation;
use crate::fabric::Fabric;
use crate::node::{PATIENCE, TestPod};
use crate::pinging::Pinging;
use lane::{Alive, Left, Storm};
use random::Random;
use site::{NETWORK, Plugin, Site};

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

/// The nodes, etcd and agents; killed and started by one thread.
struct Victims<'a> {
    fabric: &'a mut Fabric,
    sites: &'a [Site],
    agents: Vec<Child>,
    random: Random,
}

/// Ends the storm when its conductor panics, too: the lanes would go on for ever.
struct Conductor<'a>(&'a Storm);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

// === impl Victims ===

impl<'a> Victims<'a> {
    fn new(fabric: &'a mut Fabric, sites: &'a [Site], random: Random) -> Self {
        let agents = sites.iter().map(|site| site.node.spawn_agent()).collect();
        let victims = Self { fabric, sites, agents, random };
        victims.wait_until_ready();
        victims
    }

    fn wait_until_ready(&self) {
        eventually(PATIENCE, || self.fabric.etcd_serves());
        for site in self.sites {
            eventually(PATIENCE, || site.is_ready());
        }
    }

    /// Something dies, and comes back.
    fn strike(&mut self, storm: &Storm) {
        let_pass(self.random.delay(PAUSE));
        match self.random.below(10) {
            0..4 => {
                storm.orders.fetch_add(1, Ordering::Relaxed);
                eventually(PATIENCE, || storm.orders.load(Ordering::Relaxed) == 0);
            }
            4..8 => {
                let index = self.random.below(self.agents.len());
                self.agents[index].kill().unwrap();
                self.agents[index].wait().unwrap();
                let_pass(self.random.delay(PAUSE));
                self.agents[index] = self.sites[index].node.spawn_agent();
            }
            _ => {
                self.fabric.kill_etcd();
                let_pass(self.random.delay(PAUSE));
                self.fabric.start_etcd();
            }
        }
        // Mostly everything is well again before the next blow; now and then it is not.
        if !self.random.once_in(3) {
            let before = storm.successes.load(Ordering::Relaxed);
            eventually(RECOVERY, || storm.successes.load(Ordering::Relaxed) > before + LANES);
        }
        for (agent, site) in self.agents.iter_mut().zip(self.sites) {
            assert_eq!(agent.try_wait().unwrap(), None, "an agent ended:\n{}", site.node.log());
        }
    }
}

impl Drop for Victims<'_> {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

impl Drop for Conductor<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// A storm on every node while the victims are struck; returns what the lanes of each node left.
fn rage(storm: &Storm, victims: &mut Victims<'_>, seed: u64, moments: usize) -> Vec<Left> {
    std::thread::scope(|scope| {
        let conductor = Conductor(storm);
        let sites = victims.sites;
        let lanes: Vec<_> = (0..sites.len() * LANES)
            .map(|lane| {
                let random = Random::new(seed, lane as u64 + 1);
                scope.spawn(move || (lane % sites.len(), Left::by(storm, &sites[lane % sites.len()], random)))
            })
            .collect();
        for _ in 0..moments {
            assert!(!lanes.iter().any(std::thread::ScopedJoinHandle::is_finished), "a lane has failed");
            victims.strike(storm);
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
            let answer = site.gc(&valid);
            assert_eq!(answer.status, 0, "{answer:?}");
        }
    }
}

/// The addresses in the blocks that belong to pods, as `container address`.
fn held(fabric: &Fabric) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    for key in fabric.keys("/calico/ipam/v2/assignment/") {
        let block = fabric.get(&key);
        let cidr: russet_addr::BlockCidr = block["cidr"].as_str().unwrap().parse().unwrap();
        for (ordinal, index) in block["allocations"].as_array().unwrap().iter().enumerate() {
            let Some(index) = index.as_u64() else { continue };
            let attribute = &block["attributes"][usize::try_from(index).unwrap()];
            let handle = attribute["handle_id"].as_str().unwrap_or("nobody");
            let Some(container) = handle.strip_prefix(&format!("{NETWORK}.")) else { continue };
            let address = cidr.address(ordinal).unwrap();
            assert!(held.insert(format!("{container} {address}")), "{key}: {block}");
        }
    }
    held
}

fn assert_store_holds(fabric: &Fabric, alive: &[&Alive]) {
    let expected = alive
        .iter()
        .flat_map(|alive| alive.addresses.iter().map(|address| format!("{} {address}", alive.pod.container)));
    assert_eq!(held(fabric), expected.collect::<BTreeSet<_>>());
    let handles = fabric.keys("/calico/ipam/v2/handle/").into_iter();
    let prefix = format!("/calico/ipam/v2/handle/{NETWORK}.");
    let handles = handles.filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned));
    let containers: BTreeSet<String> = alive.iter().map(|alive| alive.pod.container.clone()).collect();
    assert_eq!(handles.collect::<BTreeSet<_>>(), containers);
    for key in fabric.keys("/calico/resources/v3/projectcalico.org/workloadendpoints/") {
        let container = fabric.get(&key)["spec"]["containerID"].as_str().unwrap().to_owned();
        assert!(containers.contains(&container), "{key} is of nobody");
    }
}

/// The node has the interfaces and routes of its living pods, and no others.
fn assert_node_holds(site: &Site, alive: &[&Alive]) {
    let links = || site.node.links().into_iter().filter(|name| name != "eth0").collect::<BTreeSet<_>>();
    let expected: BTreeSet<String> = alive.iter().map(|alive| alive.host_end.clone()).collect();
    let since = SystemTime::now();
    // The agent deletes the interfaces of deleted pods in groups.
    while links() != expected && since.elapsed().unwrap() < PATIENCE {
        let_pass(Duration::from_millis(10));
    }
    let details = |name: &String| {
        russet_testkit::run("ip", &["-n", site.node.netns_name(), "-d", "link", "show", name])
    };
    let strange: Vec<String> = links().difference(&expected).map(details).collect();
    assert!(strange.is_empty(), "interfaces of nobody: {strange:?}");
    assert_eq!(links(), expected);
    let mut routed = BTreeSet::new();
    for family in ["-4", "-6"] {
        let args = ["-n", site.node.netns_name(), "-j", family, "route", "show"];
        let routes: Value = serde_json::from_str(&russet_testkit::run("ip", &args)).unwrap();
        let ours = routes
            .as_array()
            .unwrap()
            .iter()
            .filter(|route| expected.contains(route["dev"].as_str().unwrap_or("")));
        routed.extend(
            ours.map(|route| route["dst"].as_str().unwrap().to_owned())
                .filter(|dst| !dst.starts_with("fe80")),
        );
    }
    let addresses = alive.iter().flat_map(|alive| alive.addresses.clone());
    assert_eq!(routed, addresses.collect::<BTreeSet<_>>());
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
    let sites = ["n1", "n2"].map(|name| Site::new(&mut fabric, name, plugin));
    let mut victims = Victims::new(&mut fabric, &sites, Random::new(seed, 0));
    let storm = Storm::default();

    // Two pods on one node and one on the other, that must notice nothing.
    let spared = [&sites[0], &sites[0], &sites[1]].map(|site| {
        let pod = site.new_pod();
        let alive = Alive::of(pod.clone(), &site.call("ADD", &pod, None).unwrap());
        storm.claim(&alive);
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
    assert_store_holds(victims.fabric, &alive.concat());
    for (site, alive) in sites.iter().zip(&alive) {
        assert_node_holds(site, alive);
    }
    // Nothing stands in the way of the end of those that lived.
    for (site, alive) in sites.iter().zip(&alive) {
        alive.iter().for_each(|alive| assert_eq!(site.call("DEL", &alive.pod, None).unwrap().status, 0));
        assert_node_holds(site, &[]);
    }
    assert_store_holds(victims.fabric, &[]);
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
