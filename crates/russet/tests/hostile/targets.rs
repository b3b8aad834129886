//! The verbs' behaviour with records of other programs: `ipam check`, `show`, `who`, `why`, and the
//! tables in which they and `get` print them. Called by `main.rs` with committed inputs, and by
//! cargo-fuzz (fuzz/).

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use russet_ipam::audit::{Finding, Holder, audit};
use russet_ipam::explain::Explanation;
use russet_ipam::{Allocator, Request, SystemClock};
use russet_model::{
    Affinity, Block, ClusterInformation, DecodeError, FelixConfiguration, Handle, HandleId, IpPool,
    IpReservation, IpamConfig, Key, KeyKind, Node, Profile, ResourceKind, WorkloadEndpoint,
};
use russet_store::{Sim, Step, Store};

#[path = "../../src/output/table.rs"]
#[allow(dead_code, reason = "the command uses all of it")]
mod table;

/// The key of the block that every store of this target has.
pub const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29";
/// Its value.
pub const BLOCK_VALUE: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,null,null,null,null,null,null,null],"unallocated":[1,2,3,4,5,6,7],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0"}}],"sequenceNumber":3,"sequenceNumberForAllocation":{"0":2},"deleted":false}"#;
/// The rest of the store.
const RECORDS: [(&str, &str); 4] = [
    (
        "/calico/resources/v3/projectcalico.org/ippools/p",
        r#"{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":"10.1.0.0/24","blockSize":29}}"#,
    ),
    ("/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.16-29", r#"{"state":"confirmed","deleted":false}"#),
    ("/calico/ipam/v2/handle/net.aaaa", r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#),
    (
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0",
        r#"{"kind":"WorkloadEndpoint","metadata":{"name":"node--a-k8s-web--0-eth0","namespace":"default"},"spec":{"node":"node-a","ipNetworks":["10.1.0.16/32"]}}"#,
    ),
];
/// The longest line that a verb may print of a stored value. A table has up to seven columns, and an escaped character takes up to ten.
const LINE_MAX_CHARS: usize = 7 * 10 * 600;

/// A line with a key, followed by its value. Returns whether the value can be decoded as the key's
/// type.
pub fn stored(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return false };
    let (key, value) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
    let key = Key::from_stored(key);
    let read = decode(&key, value);
    if let Err(error) = &read {
        print(vec![key.to_string(), error.to_string()]);
    }
    let sim = Rc::new(Sim::atomic(1));
    let records = RECORDS.into_iter().chain([(BLOCK, BLOCK_VALUE)]);
    let mut steps: Vec<Step> = records
        .filter(|(known, _)| *known != key.as_str())
        .map(|(key, value)| Step::put(Key::from_stored(key), value.as_bytes().to_vec()))
        .collect();
    steps.push(Step::put(key, value.to_vec()));
    // A store refuses an invalid key, so this case cannot occur.
    if run(sim.commit(steps)).is_err() {
        return false;
    }
    check(&sim);
    show(&sim);
    why(&sim);
    read.is_ok()
}

/// `russet ipam check`, in both forms.
fn check(sim: &Sim) {
    let records: Vec<_> = sim.records().into_values().collect();
    for finding in audit(&records).findings {
        print(vec![finding.kind().to_owned(), finding.to_string()]);
        let text = serde_json::to_string(&finding).unwrap();
        assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding);
    }
}

/// `russet ipam show` and `who`, of every address.
fn show(sim: &Rc<Sim>) {
    let allocator = Allocator::new(sim.clone(), Rc::new(SystemClock));
    for last in 16..24 {
        let address = format!("10.1.0.{last}").parse().unwrap();
        match run(allocator.holder_of(address)) {
            Ok(None) => {}
            Ok(Some(held)) => print(vec![Holder::of(&held.attribute).to_string()]),
            Err(error) => print(vec![error.to_string()]),
        }
    }
}

/// `russet ipam why`.
fn why(sim: &Rc<Sim>) {
    let trial = HandleId::new("why.trial").unwrap();
    let request = Request::pod("node-a".parse().unwrap(), trial);
    match run(Explanation::of_families(sim.clone(), Rc::new(SystemClock), &request)) {
        Ok(explanations) => {
            for explanation in explanations {
                let parts = explanation.pools.iter().map(|pool| pool.why.clone());
                let problems = explanation.blocks.iter().filter_map(|block| block.problem.clone());
                print(parts.chain(problems).collect());
                serde_json::to_string(&explanation).unwrap();
            }
        }
        Err(error) => print(vec![error.to_string()]),
    }
}

/// Decodes a value as the type of its key; also prints a resource's name, labels and annotations.
fn decode(key: &Key, value: &[u8]) -> Result<(), DecodeError> {
    match key.kind() {
        KeyKind::Block(_) => Block::decode(value).map(drop),
        KeyKind::Affinity { .. } | KeyKind::VirtualAffinity { .. } => Affinity::decode(value).map(drop),
        KeyKind::Handle(_) => Handle::decode(value).map(drop),
        KeyKind::IpamConfig => IpamConfig::decode(value).map(drop),
        KeyKind::Pool(_) => IpPool::decode(value).map(|it| print(vec![it.metadata.name])),
        KeyKind::Reservation(_) => IpReservation::decode(value).map(|it| print(vec![it.metadata.name])),
        KeyKind::Node(_) => Node::decode(value).map(|it| print(vec![it.metadata.name])),
        KeyKind::WorkloadEndpoint { .. } => {
            WorkloadEndpoint::decode(value).map(|it| print(vec![it.metadata.name, it.spec.node, it.spec.pod]))
        }
        KeyKind::Resource { kind: ResourceKind::Profile, .. } => Profile::decode(value).map(drop),
        KeyKind::Resource { kind: ResourceKind::ClusterInformation, .. } => {
            ClusterInformation::decode(value).map(drop)
        }
        KeyKind::Resource { kind: ResourceKind::FelixConfiguration, .. } => {
            FelixConfiguration::decode(value).map(drop)
        }
        _ => Ok(()),
    }
}

/// A row of a table. Whatever was stored, it is one line of limited length.
fn print(row: Vec<String>) {
    let text = table::table(&["A", "B"], &[row]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text:?}");
    let good = |line: &&str| line.chars().count() < LINE_MAX_CHARS && !line.chars().any(char::is_control);
    assert!(lines.iter().all(good), "{text:?}");
}

/// Runs a future that waits for nothing but the simulated store.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..1_000_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("the future does not end");
}
