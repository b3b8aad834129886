//! Shared by the tests: a simulated network whose clock follows the paused clock of the runtime,
//! nodes, and access to the stored records.

use std::rc::Rc;
use std::time::Duration;

use russet_lease::{Lease, Settings, StoreManager, SubnetManager, Wish};
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey, vtep_data};
use russet_model::{Key, Prefix};
use russet_store::{Sim, Step, Store};

pub const PREFIX: &str = "/coreos.com/network";
pub const V4: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub const DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}"#;
pub const DAY: Duration = Duration::from_secs(86_400);

/// Interval at which the simulated store's clock advances.
const TICK: Duration = Duration::from_secs(20);

/// Runs on one thread with a paused clock, which jumps whenever all tasks are idle.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// A network on a simulated store, which executes commits step by step if the seed is odd, as
/// etcd's v2 API does.
pub async fn network(seed: u64, config: &str) -> Sim {
    let sim = if seed.is_multiple_of(2) { Sim::atomic(seed) } else { Sim::non_atomic(seed) };
    put(&sim, "config", config).await;
    let clock = sim.clone();
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(TICK).await;
            clock.advance(TICK);
        }
    });
    sim
}

pub fn path(below: &str) -> Key {
    Key::from_stored(format!("{PREFIX}/{below}"))
}

pub fn key(text: &str) -> SubnetKey {
    text.parse().unwrap_or_default()
}

pub async fn put(store: &dyn Store, below: &str, value: &str) {
    store.commit(vec![Step::put(path(below), value)]).await.unwrap();
}

pub async fn delete(store: &dyn Store, below: &str) {
    store.commit(vec![Step::delete(path(below), None)]).await.unwrap();
}

/// All stored leases: the last part of the key, and the value.
pub async fn stored(store: &dyn Store) -> Vec<(String, String)> {
    let snapshot = store.list(&Prefix::from_stored(format!("{PREFIX}/subnets"))).await.unwrap();
    let text = |record: russet_store::Record| {
        let key = record.key.as_str().trim_start_matches(PREFIX).trim_start_matches("/subnets/").to_owned();
        (key, String::from_utf8(record.value).unwrap())
    };
    snapshot.records.into_iter().map(text).collect()
}

pub async fn keys(store: &dyn Store) -> Vec<String> {
    stored(store).await.into_iter().map(|(key, _)| key).collect()
}

pub fn attributes(host: u8) -> Attributes {
    let mac = russet_mac(host);
    Attributes {
        public_ip: [192, 0, 2, host].into(),
        public_ipv6: None,
        backend_type: "vxlan".into(),
        backend_data: Some(vtep_data(1, mac)),
        backend_v6_data: None,
    }
}

fn russet_mac(host: u8) -> russet_addr::Mac {
    russet_addr::Mac([0x0a, 0, 0, 0, 0, host])
}

pub fn wish(host: u8) -> Wish {
    Wish { attributes: attributes(host), previous: SubnetKey::default() }
}

pub fn value(host: u8) -> String {
    String::from_utf8(attributes(host).to_json()).unwrap()
}

pub fn manager(store: &(impl Store + Clone + 'static), seed: u64) -> Rc<StoreManager> {
    let settings = Settings { seed: Some(seed), ..Settings::new(PREFIX) };
    Rc::new(StoreManager::new(Rc::new(store.clone()), settings))
}

pub async fn acquire(manager: &StoreManager, wish: &Wish) -> Lease {
    let config = manager.network().await.unwrap();
    manager.acquire(&config, wish).await.unwrap()
}

pub fn config(text: &str) -> NetworkConfig {
    NetworkConfig::parse(text.as_bytes()).unwrap().validated().unwrap()
}
