//! The model against the vectors of calico-ipam.md section 8: it must do what the Go allocator does, or it proves nothing.

use russet_model::{Block, Handle, IpPool, IpPoolSpec, IpamConfig, Key, Node, NodeSpec};
use russet_store::{Sim, Step, Store};

use super::*;
use crate::executor::alone;
use crate::wire::{Log, Wire};

struct Bench {
    sim: Sim,
    log: Rc<Log>,
}

impl Bench {
    /// One pool, one node; and a cooldown, if any.
    fn new(cooldown_s: u64) -> Self {
        let mut spec = IpPoolSpec::new("10.1.0.16/29".parse().unwrap());
        spec.block_size = Some(29);
        let config = IpamConfig { ip_cooldown_seconds: cooldown_s, ..IpamConfig::default() };
        let steps = vec![
            Step::create(Key::pool("p").unwrap(), IpPool::new("p", spec).encode()),
            Step::create(Key::node(&host()), Node::new("node-a", NodeSpec::default()).encode()),
            Step::create(Key::ipam_config(), config.encode()),
        ];
        let sim = Sim::atomic(1);
        alone(sim.commit(steps)).unwrap().unwrap();
        Self { sim, log: Rc::new(Log::new(false)) }
    }

    fn go(&self, version: Version) -> Go {
        let wire = Wire { sim: self.sim.clone(), who: "node-a".into(), log: self.log.clone() };
        let wire = Rc::new(wire);
        Go::new(wire.clone(), wire, host(), version)
    }

    fn text(&self, key: &Key) -> Option<String> {
        self.sim.records().get(key).map(|record| String::from_utf8(record.value.clone()).unwrap())
    }

    fn block_text(&self) -> String {
        self.text(&Key::block("10.1.0.16/29".parse().unwrap())).unwrap()
    }

    fn block(&self) -> Block {
        Block::decode(self.block_text().as_bytes()).unwrap()
    }
}

fn host() -> NodeName {
    "node-a".parse().unwrap()
}

fn handle(name: &str) -> HandleId {
    HandleId::new(format!("k8s-pod-network.{name}")).unwrap()
}

fn added(bench: &Bench, version: Version, name: &str) -> Vec<IpAddr> {
    alone(bench.go(version).add(&handle(name), name, 1, 0)).unwrap().unwrap()
}

#[test]
fn the_first_address_of_a_new_block_is_its_first() {
    // TV1, TV2
    let bench = Bench::new(0);
    assert_eq!(added(&bench, Version::V332, "aaaa"), ["10.1.0.16".parse::<IpAddr>().unwrap()]);
    let block = bench.block();
    assert_eq!((block.allocations[0], block.unallocated), (Some(0), (1..8).collect()));
    assert_eq!(block.sequence_numbers.unwrap()["0"], block.sequence_number - 1);
    assert!(block.affinity_claim_time.is_some());
    let affinity = bench.text(&Key::affinity(&host(), "10.1.0.16/29".parse().unwrap()));
    assert_eq!(affinity.unwrap(), r#"{"state":"confirmed","deleted":false}"#);
    let counted = bench.text(&Key::handle(&handle("aaaa"))).unwrap();
    assert_eq!(counted, r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
}

#[test]
fn a_release_appends_and_leaves_the_block_to_its_node() {
    // calico-ipam.md sections 3.2 and 3.9
    let bench = Bench::new(0);
    added(&bench, Version::V331, "aaaa");
    alone(bench.go(Version::V331).del(&handle("aaaa"))).unwrap().unwrap();
    assert_eq!(bench.block().unallocated, [1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!(bench.text(&Key::handle(&handle("aaaa"))), None);
}

#[test]
fn an_old_release_drops_what_it_does_not_know_and_spells_none_out() {
    // calico-ipam.md section 1.10; TV17: what cools down is lost when a peer up to 3.32 writes the block
    let bench = Bench::new(60);
    added(&bench, Version::V333, "aaaa");
    alone(bench.go(Version::V333).del(&handle("aaaa"))).unwrap().unwrap();
    assert!(bench.block().attributes()[0].released_at.is_some(), "{}", bench.block_text());
    added(&bench, Version::V331, "bbbb");
    let text = bench.block_text();
    assert!(text.contains(r#"{"handle_id":null,"secondary":null}"#), "{text}");
    assert!(!text.contains("claim_time") && !text.contains("releasedAt"), "{text}");
    assert_eq!(bench.block().allocations[0], Some(0), "without an owner, and not free");
}

#[test]
fn what_has_cooled_down_is_free_with_the_next_write() {
    // TV17
    let bench = Bench::new(60);
    added(&bench, Version::V333, "aaaa");
    alone(bench.go(Version::V333).del(&handle("aaaa"))).unwrap().unwrap();
    bench.log.advance(std::time::Duration::from_secs(61));
    added(&bench, Version::V333, "bbbb");
    assert_eq!(bench.block().unallocated, [2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn a_lost_race_of_assign_ip_counts_twice() {
    // TV22
    let bench = Bench::new(0);
    added(&bench, Version::V332, "aaaa");
    // The handle is created (nothing to race for), the block's update loses.
    bench.sim.script([russet_store::sim::Fault::None, russet_store::sim::Fault::Conflict]);
    let address = "10.1.0.20".parse().unwrap();
    alone(bench.go(Version::V332).pin(&handle("pin"), "pin", address)).unwrap().unwrap();
    let counted = Handle::decode(bench.text(&Key::handle(&handle("pin"))).unwrap().as_bytes()).unwrap();
    assert_eq!(counted.block["10.1.0.16/29"], 2);
    alone(bench.go(Version::V332).del(&handle("pin"))).unwrap().unwrap();
    assert!(bench.text(&Key::handle(&handle("pin"))).is_some(), "for ever");
}
