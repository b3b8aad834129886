//! Many nodes on one simulated store that loses answers, while they start, crash and return: no two
//! ever own the same address.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use russet_lease::{LeaseError, Lost, SubnetManager, Wish};
use russet_model::flannel::{Attributes, SubnetKey};
use russet_store::Sim;
use russet_store::sim::{Faults, Rng};
use tokio::time::Instant;

use crate::bench::{DAY, attributes, config, keys, manager, network, run, stored};

/// The owners of subnets, until when by their own clocks.
#[derive(Default)]
struct Owners(RefCell<BTreeMap<u8, (SubnetKey, Instant)>>);

/// One run of the cluster load.
struct ClusterLoad {
    sim: Sim,
    seed: u64,
    config: &'static str,
    nodes: u8,
    owners: Owners,
    /// Counted, so that a run in which nothing happens is noticed.
    taken: Cell<u32>,
    lost: Cell<u32>,
}

// === impl Owners ===

impl Owners {
    fn own(&self, node: u8, subnet: SubnetKey, seed: u64) {
        let mut owners = self.0.borrow_mut();
        let now = Instant::now();
        owners.retain(|_, (_, until)| *until > now);
        for (other, (theirs, _)) in owners.iter().filter(|(other, _)| **other != node) {
            assert!(!theirs.overlaps(&subnet), "seed {seed}: {subnet} of {node} and {theirs} of {other}");
        }
        owners.insert(node, (subnet, now + DAY));
    }

    fn gone(&self, node: u8) {
        self.0.borrow_mut().remove(&node);
    }
}

/// The attributes of a node, in both families.
fn both(host: u8) -> Attributes {
    Attributes { public_ipv6: format!("fd00:2::{host:x}").parse().ok(), ..attributes(host) }
}

// === impl ClusterLoad ===

impl ClusterLoad {
    /// One run of a node: acquires a lease, keeps it for a while, and is dropped at an arbitrary
    /// step.
    async fn life(&self, node: u8, seed: u64, previous: SubnetKey) -> SubnetKey {
        let mine = Cell::new(previous);
        self.owners.gone(node);
        let manager = manager(&self.sim, seed);
        let living = async {
            loop {
                let wish = Wish { attributes: both(node), previous: mine.get() };
                match manager.acquire(&config(self.config), &wish).await {
                    Ok(lease) => {
                        self.owners.own(node, lease.key, self.seed);
                        mine.set(lease.key);
                        self.taken.set(self.taken.get() + 1);
                        let beat = async {
                            let _ = manager.ready(&lease).await;
                            std::future::pending::<()>().await;
                        };
                        let lost = tokio::select! {
                            lost = manager.keep(&lease, DAY - Duration::from_secs(40)) => lost,
                            () = beat => Lost::Gone,
                        };
                        assert_eq!(lost, Lost::Gone, "seed {}", self.seed);
                        self.owners.gone(node);
                        self.lost.set(self.lost.get() + 1);
                    }
                    Err(error) => {
                        let full = matches!(error, LeaseError::OutOfSubnets { .. }) && self.config == SMALL;
                        assert!(full || error.is_retryable(), "seed {}: {error}", self.seed);
                        tokio::time::sleep(Duration::from_millis(700)).await;
                    }
                }
            }
        };
        let mut chance = Rng::new(seed);
        // Short runs end while acquiring, long ones while keeping.
        let steps = [40, 400, 100_000][usize::try_from(chance.below(3)).unwrap()];
        let life = Duration::from_millis(chance.below(600_000));
        let _ = tokio::time::timeout(life, at_most(chance.below(steps), living)).await;
        mine.get()
    }

    async fn node(&self, node: u8, seed: u64) {
        let mut chance = Rng::new(seed.wrapping_mul(1000) + u64::from(node));
        let mut previous = SubnetKey::default();
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(chance.below(3_000))).await;
            let had = self.life(node, chance.next_u64(), previous).await;
            // subnet.env may be gone, or from another run.
            previous = if chance.below(3) == 0 { SubnetKey::default() } else { had };
        }
    }

    /// Deletes leases now and then.
    async fn delete_leases(&self, seed: u64) {
        let mut chance = Rng::new(seed);
        loop {
            tokio::time::sleep(Duration::from_millis(chance.below(60_000))).await;
            let all = self.sim.records();
            let leases: Vec<_> = all.keys().filter(|key| key.as_str().contains("/subnets/")).collect();
            let Some(key) = leases.get(chance.below(leases.len() as u64) as usize) else { continue };
            // Its owner may not have noticed the deletion when the next node acquires it; neither
            // is at fault.
            self.owners
                .0
                .borrow_mut()
                .retain(|_, (subnet, _)| !key.as_str().ends_with(&format!("/{subnet}")));
            let _ = russet_store::Store::commit(
                &self.sim,
                vec![russet_store::Step::delete((*key).clone(), None)],
            )
            .await;
        }
    }
}

/// Drops a future after this many steps, wherever it is.
async fn at_most<T>(steps: u64, future: impl Future<Output = T>) {
    let mut future = std::pin::pin!(future);
    let mut left = steps;
    std::future::poll_fn(|context| {
        left = left.saturating_sub(1);
        if left == 0 || future.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn load(seed: u64, config: &'static str, nodes: u8) -> u32 {
    let sim = network(seed, config).await;
    sim.set_faults(Faults {
        lost_reply: 40,
        lost_request: 40,
        unavailable: 40,
        delayed_event: 100,
        compaction: 50,
        ..Faults::default()
    });
    let load = Rc::new(ClusterLoad {
        sim,
        seed,
        config,
        nodes,
        owners: Owners::default(),
        taken: Cell::new(0),
        lost: Cell::new(0),
    });
    let delete_leases = tokio::task::spawn_local({
        let load = load.clone();
        async move { load.delete_leases(seed).await }
    });
    let mut all = tokio::task::JoinSet::new();
    for node in 1..=nodes {
        let load = load.clone();
        all.spawn_local(async move { load.node(node, seed).await });
    }
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
    delete_leases.abort();
    assert!(load.taken.get() > u32::from(nodes), "seed {seed}: too few leases were acquired");
    calm(&load, seed).await;
    load.lost.get()
}

/// After the load every node starts once more; then each has one lease and no two share an address.
async fn calm(load: &ClusterLoad, seed: u64) {
    load.sim.set_faults(Faults::default());
    for node in 1..=load.nodes {
        let wish = Wish { attributes: both(node), previous: SubnetKey::default() };
        let lease = manager(&load.sim, seed).acquire(&config(load.config), &wish).await.unwrap();
        load.owners.own(node, lease.key, seed);
    }
    tokio::time::sleep(DAY / 2).await;
    let all = keys(&load.sim).await;
    let all: Vec<SubnetKey> = all.iter().map(|key| key.parse().unwrap()).collect();
    let of = |node: u8| {
        let wanted = String::from_utf8(both(node).to_json()).unwrap();
        async move { stored(&load.sim).await.into_iter().filter(|(_, value)| *value == wanted).count() }
    };
    for node in 1..=load.nodes {
        assert!(of(node).await >= 1, "seed {seed}: node {node} has lost its lease");
    }
    assert!(all.len() >= usize::from(load.nodes));
}

const SMALL: &str = r#"{"Network":"10.5.0.0/26","Backend":{"Type":"vxlan"}}"#;
const ROOMY: &str = r#"{"Network":"10.5.0.0/20","SubnetLen":24}"#;
const SMALL_DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.5.0.0/20","IPv6Network":"fd00::/60"}"#;

fn seeds() -> std::ops::Range<u64> {
    // RUSSET_SEEDS=from..to for more; a failure prints its seed.
    let given = std::env::var("RUSSET_SEEDS").ok();
    let given = given.as_deref().and_then(|text| text.split_once(".."));
    given.map_or(0..12, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

#[test]
fn no_two_nodes_ever_own_an_address_in_a_network_that_is_almost_too_small() {
    // 3 subnets of /28 for two nodes, so that their leftovers are in each other's way.
    let lost: u32 = seeds().map(|seed| run(load(seed, SMALL, 2))).sum();
    assert!(lost > 0, "no lease was ever lost");
}

#[test]
fn no_two_nodes_ever_own_an_address_with_ipv4_alone() {
    let lost: u32 = seeds().map(|seed| run(load(seed, ROOMY, 8))).sum();
    assert!(lost > 0, "no lease was ever lost");
}

#[test]
fn no_two_nodes_ever_own_an_address_with_both_families() {
    let lost: u32 = seeds().map(|seed| run(load(seed, SMALL_DUAL, 6))).sum();
    assert!(lost > 0, "no lease was ever lost");
}
