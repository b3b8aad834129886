//! An address is never given away while it is on the loopback interface, and none is forgotten, whatever fails and wherever an agent
//! ends.

use std::rc::Rc;

use russet_ipam::Request;
use russet_model::{Block, HandleId, IpPoolSpec, Key, KeyKind};
use russet_overlay::Underlay;
use russet_plugins::SystemClock;
use russet_store::sim::{Faults, Rng};
use russet_store::{Sim, Step};

use super::*;

/// A node, its store, and the addresses of its loopback interface, which an agent's end does not change.
struct World {
    sim: Sim,
    allocator: Allocator,
    node: NodeName,
    loopback: BTreeSet<IpAddr>,
    probes: ProbeAddresses,
}

#[test]
fn while_the_kernel_cannot_be_asked_nothing_is_claimed_and_the_loop_does_not_ask_at_once_again() {
    russet_testkit::without_capabilities(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut probes = ProbeAddresses { waits: true, ..ProbeAddresses::default() };
        assert!(runtime.block_on(probes.usable(pools(&FIRST))).is_none());
        assert!(!probes.waits && probes.failures[SETTLING].is_some());
        // Nothing is wanted, so that the kernel need not be asked.
        assert_eq!(runtime.block_on(probes.usable(Pools::default())), Some(Pools::default()));
    });
}

/// Where an agent ends within a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Settled,
    Programmed,
    Complete,
}

const FIRST: [&str; 2] = ["10.1.0.0/26", "fd00:1::/120"];
const SECOND: [&str; 2] = ["10.2.0.0/26", "fd00:2::/120"];

fn pools(cidrs: &[&str]) -> Pools {
    let of = |family| {
        let nets = cidrs.iter().map(|cidr| cidr.parse::<IpNet>().unwrap());
        nets.filter(|net| Family::of_net(net) == family).collect()
    };
    Family::BOTH.map(of)
}

// === impl World ===

impl World {
    async fn new(sim: Sim) -> Self {
        let node: NodeName = "node-a".parse().unwrap();
        let pool = |cidr: &str| {
            let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
            spec.block_size = Some(if cidr.contains(':') { 126 } else { 30 });
            let name = cidr.replace([':', '/', '.'], "-");
            Step::create(Key::pool(&name).unwrap(), IpPool::new(name.as_str(), spec).encode())
        };
        let record = Node::new("node-a", Default::default()).encode();
        let mut steps: Vec<Step> = FIRST.iter().chain(&SECOND).map(|cidr| pool(cidr)).collect();
        steps.push(Step::create(Key::node(&node), record));
        for step in steps {
            sim.commit(vec![step]).await.unwrap();
        }
        let allocator = Allocator::new(Rc::new(sim.clone()), Rc::new(SystemClock));
        Self { sim, allocator, node, loopback: BTreeSet::new(), probes: ProbeAddresses::default() }
    }

    fn record(&self) -> Node {
        Node::decode(&self.sim.records()[&Key::node(&self.node)].value).unwrap()
    }

    /// What the store says that the node holds, by no way that can fail.
    fn held(&self) -> BTreeSet<IpAddr> {
        let handle = HandleId::probes(&self.node);
        let records = self.sim.records();
        let blocks = records.values().filter(|record| matches!(record.key.kind(), KeyKind::Block(_)));
        let of_block = |record: &russet_store::Record| {
            let block = Block::decode(&record.value).unwrap();
            let all = block.ordinals_of(&handle).filter_map(|ordinal| block.cidr.address(ordinal));
            all.collect::<Vec<_>>()
        };
        blocks.flat_map(of_block).collect()
    }

    /// One round of the loop up to `end`, after which the agent is another one unless it is complete.
    async fn round(&mut self, wanted: &Pools, end: End) {
        let record = self.record();
        let site =
            Site { store: &self.sim, allocator: &self.allocator, node: &self.node, record: Some(&record) };
        self.probes.settle(&site, wanted).await;
        if end != End::Settled {
            self.loopback = self.probes.own().into_iter().flatten().collect();
        }
        if end == End::Complete && self.probes.is_unfinished {
            self.probes.finish(&site, &self.loopback).await;
        }
        if end != End::Complete {
            self.probes = ProbeAddresses::default();
        }
        let held = self.held();
        assert!(self.loopback.is_subset(&held), "{:?} of {held:?}\n{}", self.loopback, self.sim.dump());
    }

    /// Rounds without faults lead to the state that is wanted, and keep it.
    async fn comes_to_rest(&mut self, wanted: &Pools) {
        self.sim.set_faults(Faults::default());
        for _ in 0..3 {
            self.round(wanted, End::Complete).await;
        }
        assert!(!self.probes.is_unfinished && !self.probes.waits);
        let (held, record) = (self.held(), self.record());
        for (at, family) in Family::BOTH.into_iter().enumerate() {
            let own = self.probes.own[at];
            let fits = own.is_some_and(|own| wanted[at].iter().any(|pool| pool.contains(&own)));
            assert_eq!((own.is_some(), fits), (!wanted[at].is_empty(), !wanted[at].is_empty()));
            assert_eq!(record.probe_address(family), own);
        }
        assert_eq!(held, self.loopback, "{}", self.sim.dump());
        assert_eq!(held, self.probes.own.into_iter().flatten().collect());
    }
}

#[tokio::test]
async fn an_address_is_claimed_once_kept_by_the_next_agent_and_released() {
    for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
        let mut world = World::new(sim).await;
        world.comes_to_rest(&pools(&FIRST)).await;
        let first = world.held();
        assert_eq!(first.len(), 2);
        world.probes = ProbeAddresses::default();
        world.comes_to_rest(&pools(&FIRST)).await;
        assert_eq!(world.held(), first, "the next agent finds them by the handle");
        let operations = world.sim.operations();
        world.round(&pools(&FIRST), End::Complete).await;
        assert_eq!(world.sim.operations() - operations, 3, "the handle, and the block of each");
        // One family less, then other pools, then none.
        world.comes_to_rest(&pools(&FIRST[..1])).await;
        assert!(world.held().is_subset(&first) && world.held().len() == 1);
        world.comes_to_rest(&pools(&SECOND)).await;
        assert!(world.held().is_disjoint(&first));
        world.probes = ProbeAddresses::default();
        world.comes_to_rest(&Pools::default()).await;
        assert_eq!(world.held(), [].into());
        let records = world.sim.records();
        let handle = Key::handle(&HandleId::probes(&world.node));
        assert!(!records.contains_key(&handle), "{}", world.sim.dump());
        let operations = world.sim.operations();
        world.round(&Pools::default(), End::Complete).await;
        assert_eq!(world.sim.operations(), operations, "a node that wants none asks nothing");
    }
}

#[tokio::test]
async fn no_address_is_given_twice_or_forgotten_whatever_fails_and_wherever_an_agent_ends() {
    let faults =
        Faults { conflict: 40, lost_reply: 60, lost_request: 60, unavailable: 60, ..Faults::default() };
    for seed in 0..400 {
        let sim = if seed % 2 == 0 { Sim::atomic(seed) } else { Sim::non_atomic(seed) };
        let (mut world, mut rng) = (World::new(sim).await, Rng::new(seed ^ 0x9e37));
        for step in 0..12 {
            world.sim.set_faults(if rng.below(4) == 0 { Faults::default() } else { faults });
            let wanted = match rng.below(4) {
                0 => Pools::default(),
                1 => pools(&SECOND),
                _ => pools(&FIRST),
            };
            let end = [End::Settled, End::Programmed, End::Complete, End::Complete][rng.below(4) as usize];
            world.round(&wanted, end).await;
            // A pod that comes now gets none of them.
            let handle = HandleId::new(format!("net.pod{step}")).unwrap();
            let request = Request::pod(world.node.clone(), handle);
            let given = world.allocator.auto_assign(&request).await.map(|given| given.addresses);
            let taken = |net: &IpNet| world.loopback.contains(&net.addr());
            assert!(!given.is_ok_and(|nets| nets.iter().any(taken)), "seed {seed}\n{}", world.sim.dump());
        }
        let wanted = if rng.below(2) == 0 { pools(&FIRST) } else { Pools::default() };
        world.comes_to_rest(&wanted).await;
    }
}

#[tokio::test]
async fn an_address_that_was_released_by_another_hand_is_replaced() {
    let mut world = World::new(Sim::atomic(1)).await;
    world.comes_to_rest(&pools(&FIRST[..1])).await;
    let [Some(lost), None] = world.probes.own() else { panic!("one address") };
    let held = world.allocator.probe_addresses(&world.node).await.unwrap();
    world.allocator.release_probe_addresses(&world.node, held).await.unwrap();
    let pod = Request::pod(world.node.clone(), HandleId::new("net.pod").unwrap());
    world.allocator.assign_ip(&pod, lost).await.unwrap();
    world.comes_to_rest(&pools(&FIRST[..1])).await;
    assert!(!world.loopback.contains(&lost) && world.loopback.len() == 1);
    // It is the pod's, whatever this node's handle counted.
    world.comes_to_rest(&Pools::default()).await;
    let held = world.allocator.ips_by_handle(&pod.handle).await.unwrap();
    assert_eq!(held.iter().map(|held| held.address).collect::<Vec<_>>(), [lost]);
}

#[tokio::test]
async fn a_node_that_is_alone_claims_none_and_keeps_what_it_has() {
    let mut world = World::new(Sim::atomic(1)).await;
    world.probes.is_alone = true;
    for _ in 0..2 {
        world.round(&pools(&FIRST), End::Complete).await;
        assert_eq!(world.held(), [].into());
    }
    world.probes.is_alone = false;
    world.comes_to_rest(&pools(&FIRST)).await;
    world.probes.is_alone = true;
    world.comes_to_rest(&pools(&FIRST)).await;
    world.comes_to_rest(&Pools::default()).await;
}

#[tokio::test]
async fn a_full_pool_keeps_a_node_from_nothing_else() {
    let mut world = World::new(Sim::atomic(1)).await;
    for block in 0..16 {
        let other: NodeName = format!("other-{block}").parse().unwrap();
        let cidr = format!("10.1.0.{}/30", block * 4).parse().unwrap();
        world.allocator.claim_block(&other, cidr).await.unwrap();
    }
    for _ in 0..2 {
        world.round(&pools(&FIRST), End::Complete).await;
        let own = world.probes.own();
        assert!(own[0].is_none() && own[1].is_some(), "no address of another node's block: {own:?}");
        assert!(world.probes.failures[SETTLING].is_some());
    }
    assert_eq!(world.held().len(), 1);
}

#[test]
fn addresses_are_wanted_of_pools_with_plain_routes_that_no_tunnel_device_serves() {
    use EncapMode::{Always, CrossSubnet, Never};
    let pool = |cidr: &str, vxlan_mode: EncapMode| {
        let spec = IpPoolSpec { vxlan_mode, ..IpPoolSpec::new(cidr.parse().unwrap()) };
        IpPool::new(cidr.replace([':', '/', '.'], "-").as_str(), spec)
    };
    let underlay = Underlay {
        ifindex: 2,
        mtu: 1500,
        addresses: vec!["10.0.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()],
    };
    let choice = Choice { underlay, name: None, why: "", gateways: Vec::new(), is_running: true };
    let mut record = Node::new("node-a", Default::default());
    record.spec.set_vxlan_tunnel("10.1.0.0".parse().unwrap());
    let wanted = |all: &[IpPool], record: Option<&Node>| {
        let found = super::pools(all.iter(), record, &choice);
        found.into_iter().flatten().map(|net| net.to_string()).collect::<Vec<_>>()
    };
    let (v4, v6) = ("10.1.0.0/24", "fd01::/112");
    let both = |mode| [pool(v4, mode), pool(v6, mode)];
    assert_eq!(wanted(&both(Never), None), [v4, v6]);
    assert_eq!(wanted(&both(Always), Some(&record)), [""; 0]);
    // In IPv4 the tunnel's address is reached by the block's plain route.
    assert_eq!(wanted(&both(CrossSubnet), Some(&record)), [v6]);
    assert_eq!(wanted(&both(CrossSubnet), None), [v6], "it is not known yet where that is");
    let mixed = [pool(v4, Always), pool("10.2.0.0/24", Never), pool("10.3.0.0/24", CrossSubnet)];
    assert_eq!(wanted(&mixed, Some(&record)), ["10.2.0.0/24", "10.3.0.0/24"]);
    // What an operator keeps from nodes or from this node.
    for (change, why) in [
        ((|spec| spec.disabled = true) as fn(&mut IpPoolSpec), "disabled"),
        (|spec| spec.allowed_uses = vec!["Workload".into()], "for pods only"),
        (|spec| spec.node_selector = Some("rack == 'b'".into()), "for other nodes"),
        (|spec| spec.assignment_mode = russet_model::AssignmentMode::Manual, "by name only"),
        (|spec| spec.ipip_mode = Always, "not carried"),
    ] {
        let mut one = pool(v4, Never);
        change(&mut one.spec);
        assert_eq!(wanted(&[one], Some(&record)), [""; 0], "{why}");
    }
    let nowhere =
        Choice { underlay: Underlay { addresses: Vec::new(), ..choice.underlay.clone() }, ..choice.clone() };
    let found = super::pools(both(Never).iter(), Some(&record), &nowhere);
    assert_eq!(found, Pools::default(), "no other node reaches this one");
}
